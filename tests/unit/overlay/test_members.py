"""Parts of the overlay's members, in tables: datagrams, copies, order, delays, clocks."""

import contextlib
import dataclasses
import random
import socket
from types import SimpleNamespace

import pytest

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.overlay import running
from feedhandler.overlay.admission import FRESH_NS
from feedhandler.overlay.clocks import AGREEING, OffsetEstimator, Sample, sample_of
from feedhandler.overlay.deduplication import Deduplicator, Verdict
from feedhandler.overlay.delays import (
    INTERVAL_NS,
    LATE_BITS,
    SAMPLES_MAX,
    DelayRecord,
    Report,
    ReportGatherer,
    decode_report,
)
from feedhandler.overlay.fairness import LADDER, HoldController
from feedhandler.overlay.members import HEARTBEAT_NS, PROBE_NS, Proxy, Receiver, Sender
from feedhandler.overlay.release import HELD_MAX, Deliver, Gap, Release, Restart
from feedhandler.overlay.topology import Member, make_topology
from feedhandler.overlay.topology_file import parse_topology, topology_text
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import (
    HEAD_BYTES,
    PAYLOAD_MAX,
    Fault,
    Head,
    Kind,
    encode,
    is_sealed,
    payload_of,
    read,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
S, MS = 1_000_000_000, 1_000_000
NOW = 1_800_000_000 * S
HEAD = Head(Kind.DATA, 7, 5, 1, 100, 200)
SHAPE = Shape(4, 2, 2, 1)


def keys() -> list[bytes]:
    return [bytes([n]) * 32 for n in range(1, 100)]


def addresses(count: int = 20) -> list[tuple[str, int]]:
    return [("10.0.0.1", 7_000 + n) for n in range(count)]


TOPOLOGY = make_topology(SHAPE, 7, addresses(), keys())


# -- datagrams ---------------------------------------------------------------------------------


def test_a_datagram_is_read_as_it_was_written() -> None:
    datagram = encode(HEAD, b"payload", KEY)
    assert len(datagram) == HEAD_BYTES + 7 == 63
    assert read(datagram) == HEAD
    assert payload_of(datagram) == b"payload"
    assert is_sealed(datagram, KEY)
    assert not is_sealed(datagram, OTHER_KEY)


def test_fields_stand_where_the_page_says() -> None:
    datagram = encode(Head(1, 0x0203, 4, 5, 6, 7), b"", KEY)
    assert datagram[:40].hex(" ", 1) == (
        "4f 56 01 01 03 02 00 00 04 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00"
        " 06 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00"
    )


@pytest.mark.parametrize("index", range(HEAD_BYTES + 3))
def test_a_byte_that_is_changed_breaks_the_form_or_the_seal(index: int) -> None:
    datagram = bytearray(encode(HEAD, b"abc", KEY))
    datagram[index] ^= 0x40
    made = bytes(datagram)
    assert isinstance(read(made), Fault) or not is_sealed(made, KEY)


GOOD = encode(HEAD, b"abc", KEY)


@pytest.mark.parametrize(
    ("datagram", "fault"),
    [
        (b"", Fault.SHORT), (GOOD[: HEAD_BYTES - 1], Fault.SHORT), (b"XX" + GOOD[2:], Fault.MAGIC),
        (GOOD[:2] + b"\2" + GOOD[3:], Fault.VERSION), (GOOD[:3] + b"\0" + GOOD[4:], Fault.KIND),
        (GOOD[:3] + b"\7" + GOOD[4:], Fault.KIND), (GOOD[:-1], Fault.LENGTH),
        (GOOD + b"x", Fault.LENGTH), (encode(HEAD._replace(id=0), b"", KEY), Fault.NUMBER),
        (encode(HEAD._replace(epoch=0), b"", KEY), Fault.NUMBER),
        (encode(HEAD._replace(sent_ns=-1), b"", KEY), Fault.NUMBER),
        (encode(HEAD._replace(deadline_ns=-1), b"", KEY), Fault.NUMBER),
    ],
)  # fmt: skip
def test_what_is_no_datagram_is_refused_with_the_reason(datagram: bytes, fault: Fault) -> None:
    assert read(datagram) == fault


def test_a_payload_that_is_too_long_is_refused() -> None:
    encode(HEAD, b"x" * PAYLOAD_MAX, KEY)
    with pytest.raises(ValueError, match="at most 1400"):
        encode(HEAD, b"x" * (PAYLOAD_MAX + 1), KEY)


# -- copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "asked", "verdict"),
    [
        ([], (1, 1), Verdict.FIRST), ([(1, 1)], (1, 1), Verdict.DUPLICATE),
        ([(1, 1)], (1, 2), Verdict.FIRST), ([(1, 2)], (1, 1), Verdict.FIRST),
        ([(1, 9)], (1, 1), Verdict.BEHIND), ([(1, 1)], (1, 9), Verdict.FIRST),
        ([(2, 1)], (1, 2), Verdict.OLD), ([(1, 5)], (2, 1), Verdict.FIRST),
        ([(1, 5), (2, 5)], (2, 5), Verdict.DUPLICATE), ([(1, 5), (2, 1)], (2, 5), Verdict.FIRST),
    ],
)  # fmt: skip
def test_the_first_copy_of_each_id_and_epoch_wins(
    taken: list[tuple[int, int]], asked: tuple[int, int], verdict: Verdict
) -> None:
    copies = Deduplicator(8)
    for each in taken:
        copies.accept(*each)
    assert copies.judge(*asked) is verdict
    assert copies.judge(*asked) is verdict, "judging changes nothing"


@pytest.mark.parametrize("slots", [0, 3, -8, 1 << 25])
def test_a_ring_is_a_power_of_two(slots: int) -> None:
    with pytest.raises(UsageError, match="power of two"):
        Deduplicator(slots)


# -- order -------------------------------------------------------------------------------------


def put(release: Release, number: int, deadline: int = 0, now: int = 10, epoch: int = 1) -> bool:
    head = Head(Kind.DATA, 7, epoch, number, 5, deadline)
    return release.put(head, b"%d" % number, now)


def had(release: Release, now: int) -> list[object]:
    return [each.id if isinstance(each, Deliver) else each for each in release.release(now)]


def test_nothing_is_released_before_its_deadline_and_all_is_at_it() -> None:
    release = Release(5)
    assert not put(release, 1, 100)
    assert release.deadline_ns == 100
    assert had(release, 99) == []
    assert had(release, 100) == [1]
    assert release.deadline_ns == 0


def test_what_comes_late_is_released_at_once_and_counted() -> None:
    release = Release(5)
    assert put(release, 1, 100, now=101)
    assert had(release, 101) == [1]
    assert (release.late, release.delivered) == (1, 1)


def test_order_holds_and_what_is_missing_is_waited_for_and_announced() -> None:
    release = Release(5)
    put(release, 1)
    assert had(release, 10) == [1]
    put(release, 4, 50)
    put(release, 3, 50)
    assert release.deadline_ns == 55
    assert had(release, 54) == []
    assert had(release, 55) == [Gap(1, 2, 2), 3, 4]
    put(release, 2, 50, now=60)
    assert had(release, 100) == []
    assert (release.passed, release.missing) == (1, 1)


def test_what_comes_while_it_is_waited_for_is_no_gap() -> None:
    release = Release(5)
    put(release, 1)
    put(release, 3, 50)
    put(release, 2, 50, now=52)
    assert had(release, 52) == [1, 2, 3]


def test_a_heartbeat_tells_the_end_and_where_a_late_joiner_begins() -> None:
    release = Release(5)
    release.heard(1, 7, 10)
    assert release.deadline_ns == 0
    put(release, 7)
    assert had(release, 20) == []
    put(release, 8)
    release.heard(1, 10, 20)
    assert had(release, 20) == [8]
    assert release.deadline_ns == 25
    assert had(release, 25) == [Gap(1, 9, 10)]


def test_a_heartbeat_behind_the_first_messages_takes_none_of_them_away() -> None:
    release = Release(5)
    put(release, 1)
    put(release, 2)
    release.heard(1, 3, 10)
    assert had(release, 15) == [1, 2, Gap(1, 3, 3)]


def test_a_sender_that_begins_anew_is_announced_and_begins_with_1() -> None:
    release = Release(5)
    put(release, 5)
    put(release, 6, 50)
    put(release, 2, 60, epoch=2)
    assert had(release, 10) == [5]
    assert had(release, 60) == [6, Restart(2)]
    assert had(release, 65) == [Gap(2, 1, 1), 2]
    release.heard(3, 0, 70)
    assert had(release, 70) == [Restart(3)]


def test_what_is_held_and_how_far_ahead_is_bounded() -> None:
    release = Release(5)
    put(release, 1, 10**15)
    assert release.deadline_ns == 5 + 1_000_000_000
    for number in range(2, HELD_MAX + 3):
        put(release, number)
    assert release.overfull == 2


def test_the_extra_hold_of_a_short_last_hop_is_held_besides() -> None:
    release = Release(5, extra_hold_ns=30)
    put(release, 1, 100)
    assert had(release, 129) == []
    assert had(release, 130) == [1]


# -- delays ------------------------------------------------------------------------------------


def report(interval: int = 1, low: int = 10, high: int = 20, late: int = 0) -> Report:
    return Report(interval, 1, 100, (low,) * (len(LADDER) - 1) + (high,), late)


def test_a_report_is_read_as_it_was_written() -> None:
    sent = report(late=(1 << 5) | (1 << (LATE_BITS - 1)))
    assert decode_report(sent.encoded()) == sent
    assert sent.late_count == 2


@pytest.mark.parametrize(
    "payload",
    [
        b"", report().encoded()[:-1], report(low=30).encoded(),
        Report(1, 0, 1, (1,) * len(LADDER)).encoded(),
    ],
    ids=["empty", "short", "falling", "of nobody"],
)  # fmt: skip
def test_what_is_no_report_is_none(payload: bytes) -> None:
    assert decode_report(payload) is None


def test_delays_are_reported_when_the_next_interval_begins() -> None:
    record = DelayRecord(1_000)
    assert record.close() is None
    for number in range(1, 101):
        assert record.add(number, 500, number, number > 98) is None
    assert record.ends_ns == 1_000
    finished = record.add(101, 1_500, 7, False)
    assert finished is not None
    assert (finished.interval, finished.messages, finished.late_count) == (0, 100, 2)
    assert finished.rungs[0] == 50
    assert finished.rungs[-1] >= 99
    assert record.add(5, 400, 1, False) is None, "of an interval that was reported"
    record.missed(102, 103)
    closed = record.close()
    assert closed is not None
    assert (closed.messages, closed.late_count) == (1, 2)


def test_an_interval_that_was_closed_by_time_is_not_reported_again() -> None:
    record = DelayRecord(1_000)
    record.add(1, 500, 1, False)
    assert record.close() is not None
    assert record.add(2, 501, 700, True) is None, "of the interval that was reported"
    assert record.ends_ns == 0
    assert record.close() is None
    record.add(3, 1_500, 7, False)
    closed = record.close()
    assert closed is not None
    assert (closed.interval, closed.messages, closed.late_count) == (1, 1, 0)


def test_delays_of_a_busy_interval_are_thinned_out() -> None:
    record = DelayRecord(1 << 40)
    for number in range(1, 3 * SAMPLES_MAX):
        record.add(number, 1, number % 1_000, False)
    finished = record.close()
    assert finished is not None
    assert finished.messages == 3 * SAMPLES_MAX - 1
    assert finished.rungs[0] == pytest.approx(500, abs=20)


def test_reports_are_merged_as_soon_as_all_are_there() -> None:
    gathered = ReportGatherer(["a", "b"], wait_ns=50, bound_ns=1_000)
    gathered.add("a", report(low=10, high=30, late=0b01), 5)
    assert gathered.deadline_ns == 55
    assert gathered.due(54) is None
    gathered.add("b", report(low=15, high=20, late=0b11), 20)
    merged = gathered.due(20)
    assert merged == Report(1, 2, 100, (15,) * (len(LADDER) - 1) + (30,), 0b11)
    assert gathered.due(100) is None


def test_a_silent_child_is_passed_over() -> None:
    gathered = ReportGatherer(["a", "b"], wait_ns=50)
    gathered.add("a", report(), 5)
    merged = gathered.due(55)
    assert merged is not None
    assert merged.receivers == 1


@pytest.mark.parametrize(
    ("child", "interval"), [("a", 1), ("stranger", 2), ("b", 0)], ids=["again", "stranger", "over"]
)
def test_reports_that_come_again_or_too_late_are_counted(child: str, interval: int) -> None:
    gathered = ReportGatherer(["a", "b", "c"], wait_ns=50)
    gathered.add("b", report(0), 0)
    gathered.due(50)
    gathered.add("a", report(1), 60)
    gathered.add(child, report(interval), 61)
    assert gathered.useless == 1


def test_intervals_gathered_at_a_time_are_bounded_and_old_ones_given_up() -> None:
    gathered = ReportGatherer(["a", "b"], wait_ns=50)
    for interval in range(1, 6):
        gathered.add("a", report(interval), interval)
    assert gathered.useless == 1
    gathered.add("b", report(3), 10)
    merged = gathered.due(10)
    assert merged is not None
    assert merged.interval == 3
    assert gathered.useless == 3


def test_a_liar_counts_as_the_bound_and_one_beyond_it_is_set_apart() -> None:
    gathered = ReportGatherer(["a", "b"], bound_ns=100)
    gathered.add("a", report(1, 10, 1 << 60), 0)
    gathered.add("b", report(1, 101, 200), 0)
    merged = gathered.due(0)
    assert merged is not None
    assert (merged.receivers, merged.rungs[0], merged.rungs[-1]) == (1, 10, 100)
    assert gathered.apart == {"b"}
    gathered.add("b", report(2, 500, 500), 0)
    gathered.add("a", report(2, 500, 500), 0)
    assert gathered.due(0) is None, "no report counts"
    gathered.add("b", report(3), 0)
    gathered.add("a", report(3), 0)
    assert gathered.due(0) is not None
    assert not gathered.apart


# -- clocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "sample"),
    [
        ((100, 1_110, 1_120, 130), Sample(1_000, 20)), ((100, 90, 90, 100), Sample(-10, 0)),
        ((100, 50, 60, 90), None), ((100, 60, 50, 110), None), ((100, 50, 90, 110), None),
    ],
)  # fmt: skip
def test_an_answer_tells_offset_and_round_trip(
    times: tuple[int, int, int, int], sample: Sample | None
) -> None:
    assert sample_of(*times) == sample


def test_the_shortest_round_trip_counts() -> None:
    clock = OffsetEstimator()
    assert not clock.known
    for sample in (Sample(120, 50), Sample(100, 10), Sample(140, 100)):
        clock.add(sample)
    assert (clock.offset_ns, clock.error_ns) == (100, 5)


def test_a_step_is_believed_once_some_answers_agree() -> None:
    clock = OffsetEstimator()
    clock.add(Sample(100, 10))
    for _ in range(AGREEING - 1):
        clock.add(Sample(5_000, 10))
    assert (clock.offset_ns, clock.steps) == (100, 0)
    clock.add(Sample(5_001, 8))
    assert (clock.offset_ns, clock.steps) == (5_001, 1)


def test_a_single_answer_that_disagrees_is_passed_over() -> None:
    clock = OffsetEstimator()
    for offset in (100, 9_000, 101, 9_000, 102, 9_000):
        clock.add(Sample(offset, 10))
    assert clock.offset_ns == 100
    assert clock.steps == 0


# -- members -----------------------------------------------------------------------------------


def proxy() -> Proxy:
    return Proxy(TOPOLOGY, "proxy-0-0", NOW)


SENDER_AT = TOPOLOGY.members[0].address
CHILD = TOPOLOGY.member("receiver-0")


def data(number: int = 1, key: bytes = TOPOLOGY.key, sent_ns: int = NOW, epoch: int = NOW) -> bytes:
    return encode(Head(Kind.DATA, 7, epoch, number, sent_ns), b"m", key)


def sealed(kind: Kind, payload: bytes, key: bytes, number: int = 1) -> bytes:
    return encode(Head(kind, 7, 9, number, NOW), payload, key)


def test_a_proxy_forwards_a_first_copy_unchanged_to_its_own_and_to_those_it_hedges_for() -> None:
    one = proxy()
    datagram = data()
    addressed = tuple(TOPOLOGY.member(f"receiver-{n}").address for n in range(4))
    assert one.receive(datagram, SENDER_AT, NOW) == [(datagram, addressed)]
    assert one.receive(datagram, SENDER_AT, NOW) == []
    assert one.counts["duplicate"] == 1


@pytest.mark.parametrize(
    ("datagram", "address", "counter"),
    [
        (data(), ("10.9.9.9", 9), "stranger"), (data(), CHILD.address, "stranger"),
        (data(key=OTHER_KEY), SENDER_AT, "seal"),
        (data(sent_ns=NOW - 2 * FRESH_NS), SENDER_AT, "stale"),
        (b"junk", SENDER_AT, "short"),
        (encode(Head(Kind.DATA, 8, NOW, 1, NOW), b"", TOPOLOGY.key), SENDER_AT, "tree"),
        (sealed(Kind.REPORT, report().encoded(), CHILD.key), ("10.9.9.9", 9), "stranger"),
        (sealed(Kind.REPORT, report().encoded(), OTHER_KEY), CHILD.address, "seal"),
        (sealed(Kind.REPORT, b"", CHILD.key), CHILD.address, "content"),
        (sealed(Kind.PROBE, b"", OTHER_KEY), CHILD.address, "seal"),
        (sealed(Kind.ANSWER, b"", TOPOLOGY.members[0].key), SENDER_AT, "content"),
        (sealed(Kind.ANSWER, b"", TOPOLOGY.members[0].key), CHILD.address, "stranger"),
    ],
)  # fmt: skip
def test_what_may_not_be_sent_is_neither_forwarded_nor_answered(
    datagram: bytes, address: tuple[str, int], counter: str
) -> None:
    one = proxy()
    assert one.receive(datagram, address, NOW) == []
    assert one.counts == {counter: 1}


def test_a_forged_copy_takes_no_datagrams_slot() -> None:
    one = proxy()
    one.receive(data(1, OTHER_KEY), SENDER_AT, NOW)
    assert len(one.receive(data(1), SENDER_AT, NOW)) == 1


def test_a_report_is_not_taken_twice() -> None:
    one = proxy()
    datagram = sealed(Kind.REPORT, report().encoded(), CHILD.key)
    one.receive(datagram, CHILD.address, NOW)
    one.receive(datagram, CHILD.address, NOW)
    assert one.counts["number"] == 1


def test_a_restarted_senders_ids_begin_anew_and_the_old_ones_are_over() -> None:
    one = proxy()
    for epoch, forwarded in ((NOW, 1), (NOW + 1, 1), (NOW, 0)):
        assert len(one.receive(data(epoch=epoch), SENDER_AT, NOW)) == forwarded
    assert one.counts["old"] == 1


def test_heartbeats_go_down_the_tree_once() -> None:
    sender, one = Sender(TOPOLOGY, NOW), proxy()
    (beat, targets), *_ = sender.tick(NOW)
    assert targets == tuple(TOPOLOGY.member(f"proxy-0-{n}").address for n in range(2))
    assert len(one.receive(beat, SENDER_AT, NOW)) == 1
    assert one.receive(beat, SENDER_AT, NOW) == []
    assert sender.tick(NOW + 1) == []
    assert sender.deadline_ns == NOW + HEARTBEAT_NS
    (later, _), *_ = sender.tick(NOW + HEARTBEAT_NS)
    assert len(one.receive(later, SENDER_AT, NOW)) == 1
    assert one.receive(beat, SENDER_AT, NOW) == []
    (first, _), *_ = Sender(TOPOLOGY, NOW + 5).tick(NOW + 5)
    assert len(one.receive(first, SENDER_AT, NOW)) == 1
    assert one.receive(later, SENDER_AT, NOW) == []


def reported(sender: Sender, low: int, interval: int, late: int = 0, number: int = 0) -> None:
    for n in range(2):
        member = TOPOLOGY.member(f"proxy-0-{n}")
        payload = report(interval, low, low, late).encoded()
        datagram = sealed(Kind.REPORT, payload, member.key, number or interval)
        sender.receive(datagram, member.address, NOW)


def test_deadlines_lie_a_hold_ahead_and_never_go_back() -> None:
    sender = Sender(TOPOLOGY, NOW)
    deadlines = []
    for interval, (low, now) in enumerate([(500, NOW), (90, NOW + 10), (90, NOW - 50)], 1):
        reported(sender, low, interval)
        (datagram, _), *_ = sender.send(b"m", now)
        head = read(datagram)
        assert isinstance(head, Head)
        deadlines.append(head.deadline_ns - NOW)
    assert deadlines == [500, 500, 500]
    assert sender.hold_ns == 90


@pytest.mark.parametrize("ahead", [0, 1, 1 << 60], ids=["running", "next", "far"])
def test_a_report_of_an_interval_that_is_still_to_end_does_not_end_the_others(ahead: int) -> None:
    sender, present = Sender(TOPOLOGY, NOW), NOW // INTERVAL_NS
    reported(sender, 500, present + ahead, number=1)
    assert sender.counts["content"] == 2
    assert sender.hold_ns == 0
    assert sender.reports.apart == {"proxy-0-0", "proxy-0-1"}, "their clocks are off, or the own"
    reported(sender, 90, present - 1, number=2)
    assert sender.hold_ns == 90
    assert sender.reports.apart == set()


def test_before_the_first_report_and_without_deadlines_nothing_is_held() -> None:
    for sender in (Sender(TOPOLOGY, NOW), Sender(TOPOLOGY, NOW, held=False)):
        if not sender.held:
            reported(sender, 500, 1)
        head = read(sender.send(b"m", NOW)[0][0])
        assert isinstance(head, Head)
        assert head.deadline_ns == 0


def test_a_controller_is_told_what_was_late() -> None:
    controller = HoldController(0.99)
    sender = Sender(TOPOLOGY, NOW, controller=controller)
    before = controller.quantile
    reported(sender, 500, 1)
    assert controller.quantile == before, "nothing was held in that interval"
    reported(sender, 500, 2, late=(1 << 50) - 1)
    assert controller.quantile > before


def test_a_sender_in_rotation_begins_with_another_child_each_time() -> None:
    sender = Sender(TOPOLOGY, NOW, rotate=True)
    firsts = [sender.send(b"m", NOW)[0][1][0] for _ in range(4)]
    assert firsts == [firsts[0], firsts[1]] * 2
    assert firsts[0] != firsts[1]


def test_a_message_that_is_too_long_takes_no_id() -> None:
    sender = Sender(TOPOLOGY, NOW)
    with pytest.raises(ValueError, match="at most"):
        sender.send(b"x" * (PAYLOAD_MAX + 1), NOW)
    assert sender.last_id == 0
    sender.receive(sealed(Kind.REPORT, b"", TOPOLOGY.member("proxy-0-0").key),
                   TOPOLOGY.member("proxy-0-0").address, NOW)  # fmt: skip
    sender.receive(b"", SENDER_AT, NOW)
    assert (sender.counts["content"], sender.counts["short"]) == (1, 1)


def test_the_senders_time_goes_down_the_tree() -> None:
    sender = Sender(TOPOLOGY, NOW)
    one = Proxy(TOPOLOGY, "proxy-0-0", NOW, follows_clock=True)
    two = Receiver(TOPOLOGY, "receiver-0", NOW, follows_clock=True)
    (probe, to), *_ = two.tick(NOW + 7 * S)
    assert to == (one.me.address,)
    assert one.receive(probe, two.me.address, NOW - 3 * S) == [], "it does not know yet"
    (probe, _), *_ = one.tick(NOW - 3 * S)
    (answer, _), *_ = sender.receive(probe, one.me.address, NOW)
    one.receive(answer, SENDER_AT, NOW - 3 * S)
    assert one.senders_time(NOW - 3 * S) == NOW
    (probe, _), *_ = two.tick(NOW + 8 * S)
    (answer, _), *_ = one.receive(probe, two.me.address, NOW - 2 * S)
    two.receive(answer, one.me.address, NOW + 8 * S)
    assert two.senders_time(NOW + 8 * S) == NOW + S
    odd = b"\xff" * 8 + (b"\0" * 8) * 2
    two.receive(sealed(Kind.ANSWER, odd, one.me.key, 9), one.me.address, NOW)
    assert two.counts["number"] + two.counts["content"] == 1


@pytest.mark.parametrize("name", ["proxy-0-0", "receiver-0"])
def test_a_clock_that_is_set_back_stops_no_probes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Proxy if name.startswith("proxy") else Receiver
    one, now_ns, sent = kind(TOPOLOGY, name, NOW, follows_clock=True), [NOW], [0]
    monkeypatch.setattr(running, "time", SimpleNamespace(time_ns=lambda: now_ns[0]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        loop = running.Loop(one, sock)
        loop.send = lambda sends: sent.append(len(sends))  # type: ignore[method-assign]
        loop.send(one.tick(NOW))
        for now_ns[0] in (NOW + 1, NOW - 3_600 * S, NOW - 3_600 * S + 1):
            loop._tick()
    assert sent == [0, 1, 1]
    assert one.deadline_ns == NOW - 3_600 * S + PROBE_NS


def test_what_is_due_at_once_is_released_where_the_senders_clock_is_ahead() -> None:
    receiver = Receiver(TOPOLOGY, "receiver-0", NOW, follows_clock=True)
    receiver.clock.add(Sample(5 * MS, 10))
    parent = TOPOLOGY.member("proxy-0-0").address
    receiver.receive(data(), parent, NOW)
    assert 0 < receiver.release_ns <= NOW, "a message without a deadline"
    assert len(receiver.release(NOW)) == 1
    receiver.receive(data(epoch=NOW + 1), parent, NOW)
    assert 0 < receiver.release_ns <= NOW, "a restart"
    assert receiver.release(NOW)[0] == Restart(NOW + 1)
    assert receiver.release_ns == 0, "nothing is held"


# -- topologies --------------------------------------------------------------------------------


def test_a_topology_is_read_as_it_was_written() -> None:
    assert parse_topology(topology_text(TOPOLOGY), "t.toml") == TOPOLOGY


def test_a_failed_proxy_is_replaced_while_the_others_run() -> None:
    one, two = proxy(), Receiver(TOPOLOGY, "receiver-0", NOW)
    after = TOPOLOGY.replaced("proxy-0-1", ("10.0.0.9", 7_000), OTHER_KEY)
    assert one.change(after) == two.change(after) == ""
    assert one.change(after) == "its version 2 is not above 2"
    old, new = TOPOLOGY.member("proxy-0-1"), after.member("proxy-0-1")
    assert two.receive(data(), old.address, NOW) == []
    assert two.counts["stranger"] == 1
    two.receive(data(), new.address, NOW)
    assert [each.id for each in two.release(NOW) if isinstance(each, Deliver)] == [1]


def test_useless_reports_are_counted_on_over_a_change() -> None:
    one = proxy()
    one.reports.add("nobody", report(), NOW)
    assert one.change(TOPOLOGY.replaced("proxy-0-1", ("10.0.0.9", 7_000), OTHER_KEY)) == ""
    assert one.reports.useless == 1


def test_an_interval_that_was_reported_is_not_reported_again_after_a_change() -> None:
    one = proxy()
    children = sorted(one.reports.children)
    for child in children:
        one.reports.add(child, report(1), NOW)
    assert one.reports.due(NOW) is not None
    assert one.change(TOPOLOGY.replaced("proxy-0-1", ("10.0.0.9", 7_000), OTHER_KEY)) == ""
    one.reports.add(children[0], report(1), NOW)
    assert one.reports.due(NOW + INTERVAL_NS) is None
    assert one.reports.useless == 1


def test_a_sender_takes_a_later_version_too_and_no_other() -> None:
    sender = Sender(TOPOLOGY, NOW)
    after = TOPOLOGY.replaced("proxy-0-1", ("10.0.0.9", 7_000), OTHER_KEY)
    assert sender.change(after) == ""
    assert ("10.0.0.9", 7_000) in sender.targets
    assert "not above 2" in sender.change(after)


def test_an_answer_whose_times_cannot_be_is_dropped() -> None:
    one = Receiver(TOPOLOGY, "receiver-0", NOW, follows_clock=True)
    times = b"".join(each.to_bytes(8, "little") for each in (NOW, NOW + 5, NOW))
    answer = sealed(Kind.ANSWER, times, TOPOLOGY.member("proxy-0-0").key)
    one.receive(answer, TOPOLOGY.member("proxy-0-0").address, NOW + 9)
    assert one.counts == {"content": 1}
    assert not one.clock.known


def test_receivers_have_no_targets_and_the_sender_no_source() -> None:
    assert TOPOLOGY.targets(CHILD) == TOPOLOGY.children(CHILD) == []
    assert TOPOLOGY.sources(TOPOLOGY.members[0]) == []


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (TOPOLOGY.members[:-1], "a member is missing"),
        ((*TOPOLOGY.members[1:], TOPOLOGY.members[0]), "proxy-0-0 is not it"),
    ],
)
def test_members_that_do_not_fill_the_shape_are_refused(
    members: tuple[Member, ...], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        dataclasses.replace(TOPOLOGY, members=members)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (make_topology(Shape(5, 2, 2, 1), 7, addresses(), keys()), "another tree"),
        (make_topology(SHAPE, 8, addresses(), keys()), "another tree"),
        (TOPOLOGY.replaced("proxy-0-0", ("10.0.0.9", 1), OTHER_KEY), "another machine"),
    ],
)  # fmt: skip
def test_what_is_no_later_version_is_not_taken(change: object, said: str) -> None:
    assert said in proxy().change(change)  # type: ignore[arg-type]


TEXT = topology_text(TOPOLOGY)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "t.toml:1: not TOML"), (TEXT.replace("depth", "depht"), "did you mean depth"),
        (TEXT.replace("10.0.0.1:7003", "nowhere"), "is no address"),
        (TEXT.replace("10.0.0.1:7003", "proxy.example:7003"), "is no IPv4 address"),
        (TEXT.replace('"10.0.0.1:7003"', "5"), "wants text"),
        (TEXT.replace("10.0.0.1:7003", "10.0.0.1:7002"), "2 members have the address"),
        (TEXT.replace("receiver-3", "receiver-2"), "2 members have the name"),
        (TEXT.replace("fan_out = 2", "fan_out = 40"), "receivers 0"),
        (TEXT.replace("hedging = 1", "hedging = 2"), "fewer neighbours"),
        (TEXT.replace("01" * 32, "zz" * 32), "t.toml:7"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_topology_is_reported_by_line(text: str, said: str) -> None:
    assert text != TEXT
    with pytest.raises(ConfigError, match=said):
        parse_topology(text, "t.toml")


def test_a_name_that_is_not_there_and_too_few_addresses_are_reported() -> None:
    with pytest.raises(UsageError, match="no member nobody"):
        TOPOLOGY.member("nobody")
    with pytest.raises(UsageError, match="7 members, and 3 addresses"):
        make_topology(SHAPE, 7, addresses(3), keys())


@pytest.mark.random
def test_mutated_topologies_load_or_are_refused_in_one_line(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        text = list(TEXT)
        for _ in range(rng.randrange(1, 4)):
            index = rng.randrange(len(text))
            text[index] = rng.choice([*'0159az"=[]\n.-', ""])
        with contextlib.suppress(ConfigError):
            parse_topology("".join(text), "t.toml")
