"""A channel that publishes market data, for tests of requests: messages, a store, a random flow."""

import random

from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.values import Kind, Message
from feedhandler.retrans.fix.market_history import MarketHistory
from feedhandler.retrans.fix.market_state import MarketState
from feedhandler.retrans.fix.server import ServedChannel
from feedhandler.retrans.store import PacketStore
from tests.support.fix_messages import sealed

SECOND = 1_000_000_000
#: 2026-01-05 09:00:00 UTC, when the channel begins.
OPENING = 1_767_603_600 * SECOND


def refresh(*entries: str) -> bytes:
    """An X of entries, written with `|`: `279=0|269=0|278=a|55=ABC|270=10|271=5`."""
    body = f"35=X|34=1|268={len(entries)}|" + "".join(f"{each}|" for each in entries)
    return sealed(body.encode())


def full(symbol: str, *entries: str) -> bytes:
    """A W of one security."""
    body = f"35=W|34=1|55={symbol}|268={len(entries)}|" + "".join(f"{each}|" for each in entries)
    return sealed(body.encode())


class PublishedChannel:
    """Channel as its publisher keeps it; each message comes a second after the one before."""

    def __init__(self, bytes_max: int = 1 << 20, epoch: int = 7) -> None:
        self.header = Header(sender=b"PUB", target=b"c")
        self.epoch = epoch
        self.store = PacketStore(bytes_max)
        self.served = ServedChannel(self.store, self.gap_fill, self.header.repeated)
        self.next = 1
        self.now_ns = OPENING
        self.bodies: dict[int, bytes] = {}

    def gap_fill(self, first: int, next_number: int) -> bytes:
        """A GapFill of the channel."""
        said = Message(Kind.GAP_FILL, first, new_number=next_number, epoch=self.epoch)
        return self.header.administrative(said)

    def publish(self, data: bytes) -> int:
        """Number a message and keep it."""
        number = self.next
        message = self.header.application(data, number, self.epoch)
        self.store.append(number, number + 1, message, 0, len(message), self.now_ns)
        self.bodies[number] = message
        self.next += 1
        self.now_ns += SECOND
        return number

    def skip(self, count: int) -> None:
        """Leave out numbers."""
        self.served.skip(self.next, self.next + count - 1)
        self.next += count

    def restart(self) -> None:
        """Begin a new epoch."""
        self.store.clear()
        self.served.skipped.clear()
        self.epoch += 1
        self.next = 1
        self.bodies = {}

    def history(self, since_ns: int = 0) -> MarketHistory:
        """A server's view of the channel."""
        return MarketHistory(self.served, 0, since_ns)


class Flow:
    """A random flow of order messages over some securities, some of them of several at once."""

    def __init__(self, rng: random.Random, symbols: int = 4) -> None:
        self.rng = rng
        self.symbols = [f"S{number}" for number in range(symbols)]
        self.standing: dict[str, list[str]] = {each: [] for each in self.symbols}
        self.ids = 0

    def message(self) -> bytes:
        """The next message."""
        rng = self.rng
        if rng.random() < 0.05:
            symbol = rng.choice(self.symbols)
            self.standing[symbol] = []
            return full(symbol, *(self._new(symbol) for _ in range(rng.randint(1, 4))))
        entries = []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            symbol = rng.choice(self.symbols)
            entries.append(f"{self._entry(symbol)}|55={symbol}")
        return refresh(*entries)

    def _new(self, symbol: str) -> str:
        rng = self.rng
        self.ids += 1
        self.standing[symbol].append(f"o{self.ids}")
        side = rng.choice("01")
        price = rng.randint(90, 110) / 10
        return f"269={side}|278=o{self.ids}|270={price}|271={rng.randint(1, 99)}"

    def _entry(self, symbol: str) -> str:
        rng, standing = self.rng, self.standing[symbol]
        kind = rng.random()
        if kind < 0.1:
            return f"279=0|269=2|270={rng.randint(90, 110)}|271=1"
        if not standing or kind < 0.5:
            return f"279=0|{self._new(symbol)}"
        id = standing.pop(rng.randrange(len(standing)))
        if kind < 0.8:
            standing.append(id)
            price = f"|270={rng.randint(90, 110) / 10}" if rng.random() < 0.5 else ""
            return f"279=1|278={id}{price}|271={rng.randint(1, 99)}"
        return f"279=2|278={id}"


def state_of(bodies: dict[int, bytes]) -> MarketState:
    """The state that messages leave, applied one behind the other."""
    return Truth(bodies).up_to(max(bodies, default=0))


class Truth:
    """The state that messages leave, from number to number: none is applied twice on the way."""

    def __init__(self, bodies: dict[int, bytes]) -> None:
        self.bodies = bodies
        self._begin()

    def _begin(self) -> None:
        self._state, self._number = MarketState(), -1

    def up_to(self, number: int) -> MarketState:
        """The state behind the message with this number; messages before it stay what they are."""
        if number < self._number:
            self._begin()
        for each in sorted(each for each in self.bodies if self._number < each <= number):
            self._state.apply(self.bodies[each], each)
        self._number = number
        return self._state
