"""Last hops (model 3): measured by probes, exchanged over the tree, held off within bounds."""

import random

import numpy
import pytest

from feedhandler.overlay.delays import Report, ReportGatherer
from feedhandler.overlay.fairness import LADDER
from feedhandler.overlay.last_hop import (
    BOUND_NS,
    PROBE_BYTES,
    PROBE_NS,
    SAMPLES,
    VALID_INTERVALS,
    VALID_NS,
    WAIT_NS,
    LastHop,
    LongestHop,
)
from feedhandler.overlay.members import Proxy, Receiver, Sender, Sends
from feedhandler.overlay.release import Deliver
from feedhandler.overlay.topology import Address, make_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import Head, Kind, encode
from tests.support.overlay_trees import Timeline

US, MS, S = 1_000, 1_000_000, 1_000_000_000
NOW = 1_800_000_000 * S
INTERVAL_NS = 50 * MS
KEY = b"k" * 32


def measured(*trips_us: int) -> LastHop:
    hop = LastHop(KEY)
    for trip in trips_us:
        hop.observe(trip * US, NOW)
    return hop


def test_half_of_the_median_round_trip_is_the_last_hop() -> None:
    hop = LastHop(KEY)
    assert hop.own_ns(NOW) == 0
    for at, trip in enumerate((20 * US, 900 * US, 22 * US)):
        began = NOW + at * PROBE_NS
        probe = hop.probe(began)
        assert len(probe) == PROBE_BYTES
        assert hop.probe_ns == began + PROBE_NS
        assert hop.answered(probe, began + trip)
    assert hop.own_ns(NOW) == 11 * US
    assert hop.own_ns(NOW + 2 * PROBE_NS + VALID_NS) > 0
    assert hop.own_ns(NOW + 3 * PROBE_NS + VALID_NS) == 0, "the process is gone"
    hop.observe(40 * US, NOW + 2 * VALID_NS)
    assert hop.own_ns(NOW + 2 * VALID_NS) == 20 * US, "what was before does not count"


def test_only_the_last_samples_count() -> None:
    hop = measured(*([900] * SAMPLES), *([20] * SAMPLES))
    assert hop.own_ns(NOW) == 10 * US


@pytest.mark.parametrize("after_ns", [-1, WAIT_NS + 1])
def test_an_answer_that_takes_too_long_or_comes_before_is_no_measurement(after_ns: int) -> None:
    hop = LastHop(KEY)
    assert hop.answered(hop.probe(NOW), NOW + after_ns)
    assert hop.own_ns(NOW) == 0


def test_an_answer_counts_once_and_only_to_a_probe_that_was_sent() -> None:
    hop = LastHop(KEY)
    probe = hop.probe(NOW)
    forged = LastHop(b"o" * 32).probe(NOW)
    assert not hop.answered(forged, NOW)
    assert hop.answered(probe, NOW + US)
    assert not hop.answered(probe, NOW + 2 * US)
    old = hop.probe(NOW)
    for at in range(WAIT_NS // PROBE_NS):
        hop.probe(NOW + at * PROBE_NS)
    assert not hop.answered(old, NOW + WAIT_NS), "probes under way are bounded"


@pytest.mark.parametrize(
    ("own_us", "longest", "extra"),
    [
        (10, 50 * US, 40 * US), (50, 50 * US, 0), (60, 50 * US, 0), (10, 0, 0),
        (10, 1 << 60, BOUND_NS - 10 * US), (0, 50 * US, 0),
    ],
    ids=["shorter", "longest", "longer than reported", "nobody's", "a liar's", "not known"],
)  # fmt: skip
def test_the_difference_is_held(own_us: int, longest: int, extra: int) -> None:
    hop = measured(2 * own_us) if own_us else LastHop(KEY)
    hop.longest_ns = longest
    assert hop.extra_ns(NOW) == extra


def test_the_longest_of_those_reported_lately_counts() -> None:
    longest = LongestHop(100)
    assert longest.longest_ns(0) == 0
    longest.report("a", 10, 1)
    longest.report("b", 1 << 60, 1)
    assert longest.longest_ns(1) == 100
    longest.report("b", 7, 2)
    assert longest.longest_ns(VALID_INTERVALS) == 10
    assert longest.longest_ns(VALID_INTERVALS + 1) == 7
    longest.report("b", 0, 3)
    assert longest.longest_ns(3) == 0


def test_a_child_that_is_silent_for_an_interval_still_counts() -> None:
    gathered = ReportGatherer(["a", "b"], wait_ns=50)
    rungs = (1,) * len(LADDER)
    for interval, hops in ((1, {"a": 10, "b": 30}), (2, {"a": 11}), (3, {"a": 12, "b": 0})):
        for child, hop in hops.items():
            gathered.add(child, Report(interval, 1, 9, rungs, last_hop_ns=hop), 100 * interval)
        report = gathered.due(100 * interval + 50)
        assert report is not None
        assert report.last_hop_ns == (30 if interval < 3 else 12)


# -- members ------------------------------------------------------------------------------------

ECHO = ("10.1.0.1", 5_000)
TOPOLOGY = make_topology(
    Shape(2, 1, 2), 7, [("10.0.0.1", 7_000 + n) for n in range(3)],
    [bytes([n]) * 32 for n in range(1, 9)],
)  # fmt: skip
SENDER = TOPOLOGY.members[0]


def notice(payload: bytes, key: bytes = TOPOLOGY.key, sent_ns: int = NOW) -> bytes:
    return encode(Head(Kind.NOTICE, 7, NOW, 0, sent_ns), payload, key)


def test_a_receiver_probes_its_process_and_holds_what_is_answered() -> None:
    one = Receiver(TOPOLOGY, "receiver-0", NOW, echo=ECHO)
    ((probe, to),) = one.tick(NOW)
    assert to == (ECHO,)
    assert one.deadline_ns == NOW + PROBE_NS
    one.receive(probe, ECHO, NOW + 30 * US)
    one.receive(notice((40 * US).to_bytes(8, "little")), SENDER.address, NOW)
    assert one.holding.extra_hold_ns == 25 * US
    one.receive(notice((1 << 60).to_bytes(8, "little"), sent_ns=NOW + 1), SENDER.address, NOW)
    assert one.holding.extra_hold_ns == BOUND_NS - 15 * US
    assert len(one.tick(NOW + VALID_NS + S)) == 1
    assert one.holding.extra_hold_ns == 0, "its process does not answer"
    assert one.counts == {"echoes": 1, "first": 2}


def test_a_hold_that_is_given_stays() -> None:
    one = Receiver(TOPOLOGY, "receiver-0", NOW, echo=ECHO, extra_hold_ns=7)
    ((probe, _),) = one.tick(NOW)
    one.receive(probe, ECHO, NOW + 30 * US)
    one.receive(notice((40 * US).to_bytes(8, "little")), SENDER.address, NOW)
    assert one.holding.extra_hold_ns == 7


@pytest.mark.parametrize(
    ("datagram", "address", "counts"),
    [
        (b"no answer", ECHO, {"echo": 1}),
        (notice(bytes(8)), ("10.9.9.9", 9), {"stranger": 1}),
        (notice(bytes(8), b"o" * 32), SENDER.address, {"seal": 1}),
        (notice(bytes(7)), SENDER.address, {"first": 1, "content": 1}),
    ],
    ids=["echo", "stranger", "seal", "content"],
)
def test_what_tells_a_receiver_nothing_is_counted(
    datagram: bytes, address: Address, counts: dict[str, int]
) -> None:
    one = Receiver(TOPOLOGY, "receiver-0", NOW, echo=ECHO)
    assert one.receive(datagram, address, NOW) == []
    assert one.counts == counts
    assert one.last_hop.longest_ns == one.holding.extra_hold_ns == 0


def test_a_notice_is_taken_once_and_none_from_before() -> None:
    one = Receiver(TOPOLOGY, "receiver-0", NOW)
    for sent_ns, hop in ((NOW, 5), (NOW, 6), (NOW - 1, 7), (NOW + 1, 8)):
        datagram = notice(hop.to_bytes(8, "little"), sent_ns=sent_ns)
        one.receive(datagram, SENDER.address, NOW)
    assert one.last_hop.longest_ns == 8
    assert one.counts == {"first": 2, "duplicate": 2}


class Model3(Timeline):
    """A tree at work, each receiver before a process that answers its probes. All clocks are one;
    a message takes `hop_us` from the release to its process, give or take what varies."""

    def __init__(self, shape: Shape, rng: random.Random, *, exchanged: bool) -> None:
        super().__init__(NOW)
        self.rng = rng
        addresses = [("10.0.0.1", 7_000 + n) for n in range(1 + shape.proxies + shape.receivers)]
        keys = (rng.randbytes(32) for _ in range(len(addresses) + 1))
        self.topology = make_topology(shape, 1, addresses, keys)
        self.sender = Sender(self.topology, NOW, interval_ns=INTERVAL_NS)
        self.members: dict[Address, Sender | Proxy | Receiver] = {addresses[0]: self.sender}
        self.echo = {}
        self.hop_us: dict[Address, float] = {}
        #: When each process had each message, less its deadline; by receiver.
        self.stamps: dict[Address, dict[int, int]] = {}
        for index, each in enumerate(self.topology.members[1:]):
            if each.role == "proxy":
                self.members[each.address] = Proxy(
                    self.topology, each.name, NOW, interval_ns=INTERVAL_NS
                )
                continue
            echo = ("10.1.0.1", 5_000 + index)
            self.echo[echo] = each.address
            self.hop_us[each.address] = rng.uniform(10, 50)
            self.stamps[each.address] = {}
            self.members[each.address] = Receiver(
                self.topology, each.name, NOW, interval_ns=INTERVAL_NS,
                echo=echo, extra_hold_ns=None if exchanged else 0,
            )  # fmt: skip

    def last_hop(self, receiver: Address) -> int:
        """Half of the source's 5.4 us both ways between lowest and 90th percentile varies."""
        varies = self.rng.expovariate(numpy.log(10) / (5.4 / 2))
        return int((self.hop_us[receiver] + varies) * US)

    def send(self, source: Address, sends: Sends) -> None:
        for datagram, addresses in sends:
            for to in addresses:
                if to in self.echo:
                    trip = self.last_hop(source) + self.last_hop(source)
                    self.later(trip, lambda d=datagram, e=to: self.arrive(source, d, e))  # type: ignore[misc]
                else:
                    delay = 30 * US + int(self.rng.expovariate(1 / (10 * US)))
                    self.later(delay, lambda t=to, d=datagram: self.arrive(t, d, source))  # type: ignore[misc]

    def arrive(self, to: Address, datagram: bytes, source: Address) -> None:
        self.send(to, self.members[to].receive(datagram, source, self.now))
        self.release(to)

    def release(self, at: Address) -> None:
        member = self.members[at]
        if not isinstance(member, Receiver):
            return
        for event in member.release(self.now):
            if isinstance(event, Deliver) and event.deadline_ns and not event.late:
                had = self.now + self.last_hop(at)
                self.stamps[at][event.id] = had - event.deadline_ns
        if member.release_ns:
            self.later(member.release_ns - self.now, lambda: self.release(at))

    def wake(self, at: Address) -> None:
        self.send(at, self.members[at].tick(self.now))
        due = self.members[at].deadline_ns or self.now + 50 * MS
        self.later(max(due - self.now, US), lambda: self.wake(at))

    def publish(self) -> None:
        self.send(self.topology.members[0].address, self.sender.send(b"m", self.now))
        self.later(2 * MS, self.publish)

    def windows(self, seconds: int) -> list[int]:
        """Windows at the processes of messages that were in time everywhere, in the last half."""
        for address in self.members:
            self.wake(address)
        self.publish()
        self.run(NOW + seconds * S)
        first, *others = self.stamps.values()
        everywhere = sorted(n for n in first if all(n in each for each in others))
        found = [[each[n] for each in self.stamps.values()] for n in everywhere]
        return [max(each) - min(each) for each in found[len(found) // 2 :]]


@pytest.mark.random
def test_the_difference_held_leaves_a_quarter_of_the_window(seed: int) -> None:
    medians = {}
    for exchanged in (False, True):
        tree = Model3(Shape(20, 2, 4, 1), random.Random(seed), exchanged=exchanged)
        windows = tree.windows(2)
        assert len(windows) > 100
        medians[exchanged] = sorted(windows)[len(windows) // 2]
        longest = max(tree.hop_us.values()) * US
        assert tree.sender.longest_hop_ns == pytest.approx(longest, abs=5 * US)
    assert medians[True] <= medians[False] / 4, medians
