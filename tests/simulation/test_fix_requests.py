"""Market Data Requests in simulated time: a publisher, a server with faults, a lossy receiver.

What plays are the objects that ship: `MarketDataServer` and its sessions, `MarketDataClient` and
`MarketFollower`. A seed draws how the server is (good, late, silent, wrong in one of several ways,
cut off in mid-answer), how its bytes are cut, how often it fails, how much of the live stream is
lost for good, whether the publisher leaves out numbers or begins a new epoch, and how small the
store is. The follower joins late, and asks for the books whenever it has lost something; beside it
a user asks for time ranges, whole and of some securities.

Checked: whenever the follower says that its books are whole, they equal what was published up to
its number; a complete answer is what was published in its range, each message once and in order;
once the server is healed and the stream goes on, the follower is whole, if the server's own state
is.

`SEEDS=n` plays n seeds, `SEED=s` just one.
"""

import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

from feedhandler.retrans.events import Broken
from feedhandler.retrans.fix.market_data import MarketDataFormat, concerns
from feedhandler.retrans.fix.market_data_client import (
    Complete,
    Failed,
    MarketDataClient,
    MarketDataClientSettings,
    Rejected,
)
from feedhandler.retrans.fix.market_data_requests import (
    MarketDataServer,
    MarketDataSession,
    MarketDataSettings,
)
from feedhandler.retrans.fix.market_follower import (
    Event,
    Healed,
    MarketFollower,
    Standing,
    Unhealed,
    Wanted,
)
from tests.support.fix_market import OPENING, SECOND, Flow, PublishedChannel, Truth
from tests.support.fix_messages import summed

SEEDS = int(os.environ.get("SEEDS", "50"))
MS = 1_000_000
FORMAT = MarketDataFormat()
CLIENT = MarketDataClientSettings(
    answer_wait_us=300_000, retry_us=20_000, retry_most_us=100_000, heartbeat_us=200_000
)
SERVER = MarketDataSettings(part_messages=5, scan_messages=20, heartbeat_us=200_000)
STEP = 5 * MS
Fault = Callable[[bytes, random.Random], bytes]


def messages_of(data: bytes) -> list[bytes]:
    """Whole messages, one behind the other."""
    return [b"8=FIX" + each for each in data.split(b"8=FIX")[1:]]


def _changed(data: bytes, old: bytes, new: bytes) -> bytes:
    """The first message of `data` with `old` replaced, its length and sum right again."""
    first, *others = messages_of(data)
    body = first.split(b"\x01", 2)[2].rpartition(b"10=")[0].replace(old, new, 1)
    return summed(b"8=FIXT.1.1\x019=%d\x01%b" % (len(body), body)) + b"".join(others)


def _value(data: bytes, tag: int) -> bytes:
    return data.partition(b"\x01%d=" % tag)[2].partition(b"\x01")[0]


def wrong_count(data: bytes, rng: random.Random) -> bytes:
    """The last part says another total."""
    total = _value(data, 911)
    return _changed(data, b"911=%b\x01" % total, b"911=%d\x01" % (int(total or 0) + 1))


def wrong_part_count(data: bytes, rng: random.Random) -> bytes:
    """A part says that more messages follow than do."""
    count = _value(data, 20104)
    return _changed(data, b"20104=%b\x01" % count, b"20104=%d\x01" % (int(count or 0) + 1))


def wrong_order(data: bytes, rng: random.Random) -> bytes:
    """The messages of a part in another order."""
    first, *others = messages_of(data)
    rng.shuffle(others)
    return b"".join([first, *others])


def wrong_id(data: bytes, rng: random.Random) -> bytes:
    """The answer to another request."""
    id = _value(data, 262)
    return _changed(data, b"262=%b\x01" % id, b"262=x%b\x01" % id)


def one_missing(data: bytes, rng: random.Random) -> bytes:
    """A message of a part is left out, and the counts agree with it."""
    found = messages_of(data)
    if len(found) < 2:
        return data
    del found[rng.randrange(1, len(found))]
    for tag, before in ((20104, len(found)), (911, int(_value(found[0], 911) or 0))):
        found[0] = _changed(
            found[0], b"%d=%d\x01" % (tag, before), b"%d=%d\x01" % (tag, before - 1)
        )
    return b"".join(found)


def one_twice(data: bytes, rng: random.Random) -> bytes:
    """A message of a part comes twice, in the place of another."""
    found = messages_of(data)
    if len(found) > 2:
        found[-1] = found[-2]
    return b"".join(found)


def part_missing(data: bytes, rng: random.Random) -> bytes:
    """A part does not come."""
    return b""


def garbled(data: bytes, rng: random.Random) -> bytes:
    """A byte is another."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def half(data: bytes, rng: random.Random) -> bytes:
    """The bytes end in the middle, and what follows them comes behind."""
    return data[: rng.randrange(len(data))]


FAULTS: tuple[Fault, ...] = (
    wrong_count,
    wrong_part_count,
    wrong_order,
    wrong_id,
    one_missing,
    one_twice,
    part_missing,
    garbled,
    half,
)


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.kind = rng.choice(["good", "late", "silent", "wrong", "wrong", "wrong", "cut"])
        self.fault = rng.choice(FAULTS)
        self.fault_share = rng.choice([0.05, 0.3, 1.0])
        self.lost = rng.choice([0, 0.01, 0.05])
        self.pieces = rng.random() < 0.5
        self.late_ns = rng.choice([0, 20, 100]) * MS
        self.channel = PublishedChannel(rng.choice([4 << 10, 1 << 20]))
        self.truth = Truth(self.channel.bodies)
        self.flow = Flow(rng)
        self.now_ns = OPENING
        self.history = self.channel.history(OPENING)
        self.server = MarketDataServer(FORMAT, {"c": self.history}, SERVER)
        self.client = MarketDataClient(FORMAT, CLIENT, seed=seed)
        self.follower = MarketFollower()
        self.session: MarketDataSession | None = None
        self.connect_ns = 0
        self.wire: list[tuple[int, bytes]] = []
        self.healed = False
        self.joins_at = rng.choice([1, 1, 20])
        self.received = 0
        self.state_ask = 0
        self.ranges: dict[int, dict[int, bytes]] = {}
        self.counts: Counter[str] = Counter()
        self.done: list[tuple[str, str]] = []

    # -- the connection --------------------------------------------------------------------------

    def turn(self) -> None:
        """A step of time: bytes go both ways."""
        self.now_ns += STEP
        self.server.catch_up(50)
        if self.session is None:
            if self.now_ns >= self.connect_ns:
                self.session = self.server.session("client", self.now_ns)
                self.client.connected(self.now_ns)
            return
        self._hear(self.client.tick(self.now_ns))
        if self.session is None:
            return
        if output := self.client.data_to_send():
            self._send(self.session.feed(output, self.now_ns))
        self._send(self.session.tick(self.now_ns))
        while self.wire and self.wire[0][0] <= self.now_ns and self.session is not None:
            self._hear(self.client.feed(self.wire.pop(0)[1], self.now_ns))
        if self.session is not None and self.session.closed:
            self._cut()

    def _send(self, data: bytes) -> None:
        """The server's bytes, as the server's fault has them."""
        if not data or (self.kind == "silent" and not self.healed):
            return
        faulty = not self.healed and self.rng.random() < self.fault_share
        if self.kind == "wrong" and faulty and b"\x0135=UP\x01" in data:
            data = self.fault(data, self.rng)
            self.counts["faults"] += 1
        cut = self.kind == "cut" and faulty and len(data) > 200
        if cut:
            data = data[: self.rng.randrange(len(data))]
        due_ns = self.now_ns + (self.late_ns if self.kind == "late" and not self.healed else 0)
        size = self.rng.randint(1, 50) if self.pieces else len(data)
        self.wire += [(due_ns, data[at : at + size]) for at in range(0, len(data), size or 1)]
        if cut:
            self.counts["cuts"] += 1
            while self.wire and self.session is not None:
                self._hear(self.client.feed(self.wire.pop(0)[1], self.now_ns))
            self._cut()

    def _cut(self) -> None:
        """The connection ends."""
        if self.session is not None:
            self.session.end()
            self.session = None
            self.client.disconnected(self.now_ns)
            self.wire.clear()
            self.connect_ns = self.now_ns + 20 * MS

    # -- what comes ------------------------------------------------------------------------------

    def _hear(self, events: list[object]) -> None:
        for event in events:
            if isinstance(event, Broken):
                self.counts["broken"] += 1
                self._cut()
            elif isinstance(event, Complete | Rejected | Failed):
                self.counts[type(event).__name__.lower()] += 1
                if event.request == self.state_ask:
                    self._state(event)
                else:
                    self._range(event)

    def _state(self, event: Complete | Rejected | Failed) -> None:
        if isinstance(event, Complete):
            self.follow(self.follower.snapshot(event.messages, event.last, event.epoch))
        else:
            self.follow(self.follower.failed(str(event)))

    def _range(self, event: Complete | Rejected | Failed) -> None:
        """A complete answer is what was published in its range."""
        bodies = self.ranges.pop(event.request)
        if not isinstance(event, Complete):
            return
        asked = event.asked
        expected = [
            body
            for number, body in sorted(bodies.items())
            if event.first <= number <= event.last
            and concerns(body, asked.securities, asked.entry_types)
        ]
        found = [each for each in event.messages if b"\x0135=4\x01" not in each]
        assert found == expected
        self.counts["ranges"] += 1

    def follow(self, events: list[Event]) -> None:
        """Do what the follower wants."""
        for event in events:
            if isinstance(event, Wanted):
                self.client.cancel(self.state_ask)
                wait_ns = event.olds * 20 * MS
                self.state_ask = self.client.ask("c", self.now_ns + wait_ns)
            elif isinstance(event, Healed):
                self.counts["healed"] += 1
            elif isinstance(event, Unhealed):
                self.counts["unhealed"] += 1
        self.check()

    def check(self) -> None:
        """Check that the state which the follower says to be whole is whole."""
        if self.follower.standing is Standing.WHOLE:
            if self.truth.bodies is not self.channel.bodies:
                self.truth = Truth(self.channel.bodies)
            wanted = self.truth.up_to(self.follower.state.number)
            assert self.follower.state.contents() == wanted.contents()
            self.counts["checks"] += 1

    # -- the stream ------------------------------------------------------------------------------

    def publish(self) -> None:
        """One message, to each client that has not lost it."""
        rng = self.rng
        self.channel.now_ns = self.now_ns
        if rng.random() < 0.02:
            first, count = self.channel.next, rng.randint(1, 5)
            self.channel.skip(count)
            if self.received:
                self.follower.skipped(first + count - 1)
        number = self.channel.publish(self.flow.message())
        self.received += self.received > 0 or number >= self.joins_at
        if not self.received:
            return
        lost = not self.healed and rng.random() < self.lost
        if self.received == 1:
            self.follow(self.follower.joined(number, self.channel.epoch))
            lost = False
        if lost:
            self.follow(self.follower.lost(number))
        else:
            self.follow(self.follower.deliver(number, self.channel.bodies[number]))

    def begin_anew(self) -> None:
        """The publisher begins anew."""
        self.channel.restart()
        self.flow = Flow(self.rng)
        if self.received:
            self.follow(self.follower.renumbered(self.channel.epoch))

    def ask(self) -> None:
        """A user asks for a time range."""
        rng = self.rng
        begin_ns = OPENING + rng.randint(0, max(self.now_ns - OPENING, 1))
        number = self.client.ask(
            "c",
            self.now_ns,
            securities=rng.choice([(), (b"S1",), (b"S0", b"S2")]),
            begin_ns=begin_ns,
            end_ns=rng.choice([-1, begin_ns + SECOND]),
        )
        self.ranges[number] = self.channel.bodies


def play(seed: int) -> Counter[str]:
    """One seed; what it met."""
    world = World(seed)
    restart = world.rng.choice([0, 0, 0, 60])
    for round in range(120):
        world.publish()
        for _ in range(world.rng.randint(0, 4)):
            world.turn()
        if round == restart and restart:
            world.begin_anew()
        if round % 20 == 10:
            world.ask()
    world.healed = True
    for _ in range(2000):
        world.turn()
    whole = world.follower.standing is Standing.WHOLE
    if not whole and world.history.state.whole:
        # Its requests may have been used up while the server was ill.
        world.follow(world.follower.want())
        for _ in range(2000):
            world.turn()
        whole = world.follower.standing is Standing.WHOLE
    assert whole or not world.history.state.whole
    assert not world.ranges, "a request was never answered"
    if whole:
        world.publish()
        world.check()
        assert world.follower.state.number == world.channel.next - 1
    world.counts[world.kind] += 1
    world.counts["not_whole"] += not whole
    return world.counts


@pytest.mark.parametrize("number", range(SEEDS))
def test_what_the_requester_has_is_what_was_published_or_it_says_that_it_has_not(
    number: int, seed: int
) -> None:
    play(seed)


def test_a_good_server_heals_every_loss_and_a_late_joiner(seed: int) -> None:
    world = World(seed)
    world.kind, world.lost, world.joins_at = "good", 0.1, 20
    for _ in range(100):
        world.publish()
        for _ in range(10):
            world.turn()
    assert world.follower.standing is Standing.WHOLE
    assert world.counts["healed"] > 1
    assert world.counts["checks"] > world.counts["healed"]
    assert not world.counts["failed"] + world.counts["broken"]


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_of_a_server_brings_anything_else(fault: Fault, seed: int) -> None:
    met: Counter[str] = Counter()
    for number in range(4):
        rng = random.Random(seed + number)
        world = World(rng.getrandbits(32))
        world.kind, world.fault, world.fault_share = "wrong", fault, 0.5
        world.joins_at = 5
        for _ in range(30):
            world.publish()
        for _ in range(600):
            world.turn()
        world.ask()
        for _ in range(600):
            world.turn()
        world.check()
        met += world.counts
    assert met["faults"]
    assert met["broken"] + met["failed"] + met["complete"] + met["rejected"]
