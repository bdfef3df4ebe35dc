"""Traffic and receivers for tests of flow control: every kind of message, any pattern of stalls."""

import random
from types import SimpleNamespace
from typing import Any

import msgspec

from feedhandler.amqp.routing import parse_address
from feedhandler.amqp.serving.backlogged_link import BackloggedLink
from feedhandler.ingest.records import RecordKind
from feedhandler.market.stream_market import Market
from tests.support.amqp import FEED, FakeLink, Rig, Sent
from tests.support.market import DAY


class Traffic:
    """One service's messages, as an exchange could send them: orders that come, change and go,
    books that are cleared or sent again, and all else beside. Its symbols begin at `first`: one
    belongs to one service."""

    def __init__(self, chance: random.Random, symbols: int = 6, first: int = 1) -> None:
        self.chance = chance
        self.symbols = range(first, first + symbols)
        self.resting: dict[int, dict[int, tuple[int, int]]] = {s: {} for s in self.symbols}
        self.again: list[bytes] = []
        self.order_id = self.trade_id = 0

    def messages(self, count: int) -> list[bytes]:
        """The next messages of the stream."""
        return [self._next() for _ in range(count)]

    def _next(self) -> bytes:
        if self.again and self.chance.random() < 0.5:
            return self.again.pop(0)
        symbol = self.chance.choice(self.symbols)
        what = self.chance.random()
        if what < 0.55:
            return self._order(symbol)
        if what < 0.75:
            level = self.chance.randrange(1, 4)
            return FEED.encode_message(
                140, symbol_index=symbol, quote_number=level, ask_price=self.chance.randrange(99)
            )
        if what < 0.9:
            self.trade_id += 1
            return FEED.encode_message(
                240, symbol_index=symbol, trade_id_number=self.trade_id, price=what
                and self.chance.randrange(99)
            )  # fmt: skip
        if what < 0.95:
            group = self.chance.choice(["A1", "B2"])
            state = self.chance.choice(["OPEN", "CLSD"])
            return FEED.encode_message(516, instrument_group_code=group, class_state=state)
        if what < 0.97:
            return FEED.encode_message(523, title=str(self.chance.random()))
        if what < 0.98 and not self.again:
            return self._report_again()
        return FEED.encode_message(505, symbol_index=symbol, halt_reason=self.chance.choice("RCM"))

    def _order(self, symbol: int) -> bytes:
        resting = self.resting[symbol]
        what = self.chance.random()
        if any(self.again) or what > 0.015 or not resting:
            if resting and what < 0.35:
                number = self.chance.choice(list(resting))
                price, _ = resting.pop(number)
                return self._encode("D", symbol, number, price, 1)
            if resting and what < 0.6:
                number = self.chance.choice(list(resting))
                resting[number] = (self.chance.randrange(10, 20), self.chance.randrange(1, 50))
                return self._encode("M", symbol, number, *resting[number])
            self.order_id += 1
            resting[self.order_id] = (self.chance.randrange(10, 20), self.chance.randrange(1, 50))
            return self._encode("A", symbol, self.order_id, *resting[self.order_id])
        resting.clear()
        return self._encode("F", symbol, 0, 0, 0)

    def _report_again(self) -> bytes:
        """A retransmission of the orders as they are now begins; it may be overtaken by changes."""
        self.again = [
            self._encode("Y", symbol, number, *resting)
            for symbol in self.symbols
            for number, resting in self.resting[symbol].items()
        ]
        self.again.append(FEED.encode_message(231, retransmission_indicator="E"))
        return FEED.encode_message(231, retransmission_indicator="S")

    def _encode(self, action: str, symbol: int, number: int, price: int, volume: int) -> bytes:
        return FEED.encode_message(
            230, symbol_index=symbol, action_type=action, order_id=number, price=price,
            volume=volume, side="1" if number % 2 else "2", order_date=DAY,
        )  # fmt: skip


def without(messages: list[bytes], *codes: int) -> list[bytes]:
    """The messages but for those of these types; one quote at least."""
    kept = [each for each in messages if int.from_bytes(each[2:4], "big") not in codes]
    return kept or [FEED.encode_message(140, symbol_index=1, quote_number=1)]


class Reader:
    """A subscriber's market, from what a link was sent."""

    def __init__(self, feed: Any = FEED) -> None:
        self.market = Market(feed, keeps_messages=True)

    def receive(self, message: Sent) -> None:
        content = message.content.removesuffix("+json")
        service = int(message.key.split(".")[1])
        quality = msgspec.json.decode(message.body) if content == "quality" else None
        self.market.update(
            SimpleNamespace(content=content, body=message.body, service=service, quality=quality)
        )


class ConflatedLink:
    """A fan-out with one link that conflates, and what a link without stalls would know."""

    def __init__(
        self,
        address: str = "#",
        queue_bytes: int = 1 << 20,
        services: tuple[int, ...] = (104, 105),
        batch_bytes: int = 2000,
        feed: Any = FEED,
    ) -> None:
        self.rig = Rig(services, feed, conflate=True)
        self.link = FakeLink(0)
        self.now_ns = 0
        asked = parse_address(address, feed.type_code, snapshots=True)
        self.sender_queue = BackloggedLink(
            self.rig.peer, self.link, asked, self.rig.fanout.streams, queue_bytes, batch_bytes,
            lambda: self.now_ns,
        )  # fmt: skip
        self.sender_queue.conflate(self.rig.fanout, feed)
        self.rig.fanout.add(self.sender_queue)
        _, self.ideal = self.rig.attach(address)
        self.following = [1] * len(services)
        for index in range(len(services)):
            self.rig.control_event(RecordKind.START, channel=index, sequence=0, next_sequence=1)
        self.rig.pump()

    def put(self, messages: list[bytes], index: int = 0) -> None:
        """Publish one packet."""
        service, sequence = self.rig.streams[index].service, self.following[index]
        data = FEED.encode_packet(sequence=sequence, service=service, messages=messages)
        self.rig.put(data, sequence, len(messages), channel=index)
        self.following[index] += 1

    def grant(self, count: int) -> None:
        self.link.grants += count
        self.sender_queue.drain()

    @property
    def notes(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(m.body) for m in self.link.sent if "quality" in m.content]

    def bodies_of(self, link: FakeLink, code: int) -> list[bytes]:
        """All live market messages of a type that a link was sent, each service's in order."""
        found = []
        for message in link.sent:
            if "quality" in message.content or message.block_position is not None:
                continue
            if message.content == "message":
                parts = [message.body]
            else:
                parts, at = [], 0
                while at < len(message.body):
                    size = int.from_bytes(message.body[at : at + 2], "big")
                    inner = at + 16
                    while inner < at + size:
                        length = 2 + int.from_bytes(message.body[inner : inner + 2], "big")
                        parts.append(message.body[inner : inner + length])
                        inner += length
                    at += size
            service = message.key.split(".")[1].encode()
            found += [service + p for p in parts if int.from_bytes(p[2:4], "big") == code]
        return sorted(found, key=lambda body: body[:3])
