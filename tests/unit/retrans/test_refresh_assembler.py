"""Assembling snapshots from a refresh line: the whole ones, and everything that can be wrong."""

import random
import tracemalloc
import zlib
from collections.abc import Sequence

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.market.stream_market import Market
from feedhandler.replay.generating.packets import ORDERS, SERVICES
from feedhandler.retrans.refresh import (
    COUNTS,
    NEVER,
    RefreshAssembler,
    Snapshot,
    SnapshotBegan,
    SnapshotFailed,
)
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshots import SnapshotCutter
from tests.support.market import FEED, order, session
from tests.support.seeds import drawn

SETTINGS = RecoverySettings(refresh_timeout_us=1_000)
TIMEOUT_NS = 1_000_000


def orders(count: int, seed: int = 1) -> list[bytes]:
    """Order messages that compress about as badly as real ones."""
    draw = random.Random(seed)
    return [
        order("Y", number, draw.randrange(9_999), draw.randrange(1, 9_999),
              source_seq_num=draw.getrandbits(32), order_priority_time=draw.getrandbits(26))
        for number in range(count)
    ]  # fmt: skip


MESSAGES = orders(200)


class Line:
    """A refresh line: numbers packets, hands them to an assembler."""

    def __init__(self, **settings: int) -> None:
        chosen = RecoverySettings(refresh_timeout_us=1_000, **settings) if settings else SETTINGS
        self.assembler = RefreshAssembler(FEED, ORDERS, chosen)
        self.sequence = 1
        self.now_ns = 1_000

    def send(self, *packets: bytes) -> list:
        for packet in packets:
            self.assembler.packet(packet, self.sequence, self.now_ns)
            self.sequence += 1
        return self.assembler.pop_events()

    def messages(self, *messages: bytes, **fields) -> list:
        """One uncompressed packet of these messages."""
        packet = FEED.encode_packet(
            sequence=self.sequence, messages=messages, service=ORDERS, **fields
        )
        return self.send(packet)

    def counted(self) -> dict[str, int]:
        """Return the assembler's counts that are not zero, packets left out."""
        return {k: v for k, v in self.assembler.counts.items() if v and k != "packets"}


@pytest.fixture
def line() -> Line:
    return Line()


def refresh(last: int = 500, messages: Sequence[bytes] = MESSAGES, first: int = 1) -> list[bytes]:
    packets = SnapshotCutter(FEED).cut(ORDERS, messages, last, first, 1000)
    assert len(packets) > 2
    return packets


def start(last: int = 500) -> bytes:
    return FEED.encode_message(580, last_seq_num=last)


def end(last: int = 500) -> bytes:
    return FEED.encode_message(581, last_seq_num=last)


def failed(reason: str) -> SnapshotFailed:
    return SnapshotFailed(ORDERS, reason)


def works_again(line: Line) -> None:
    """The next cycle leads to a whole snapshot, whatever happened before."""
    began, whole = line.send(*refresh(900))
    assert began == SnapshotBegan(ORDERS, 900)
    assert isinstance(whole, Snapshot)
    assert whole.last == 900
    assert whole.messages == len(MESSAGES) + 2
    assert line.assembler.deadline_ns == NEVER
    assert not line.assembler.running


# -- whole snapshots ------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [True, False])
def test_a_whole_refresh_becomes_a_snapshot_of_plain_packets(line, compress):
    packets = SnapshotCutter(FEED).cut(ORDERS, MESSAGES, 500, 1, 1000, compress)
    began, whole = line.send(*packets)
    assert began == SnapshotBegan(ORDERS, 500)
    assert (whole.service, whole.last, whole.messages) == (ORDERS, 500, len(MESSAGES) + 2)
    records = []
    for data in whole.packets:
        assert len(data) <= 1400
        packet = FEED.decode_packet(data)
        assert (packet.sequence, packet.flags, packet.service) == (500, 0, ORDERS)
        assert packet.send_time == 1000
        records += packet.messages
    assert [r.layout.code for r in (records[0], records[-1])] == [580, 581]
    assert [r.order_id for r in records[1:-1]] == list(range(200))
    assert line.counted() == {"began": 1, "snapshots": 1}


@drawn(2)
def test_a_market_refreshed_by_every_service_equals_the_exchanges(seed):
    exchange, user = Market(FEED, keeps_messages=True), Market(FEED, keeps_messages=True)
    packets = session(seed)
    for outgoing in packets[: random.Random(seed).randrange(len(packets))]:
        exchange.apply(outgoing.packet)
    for service in SERVICES:
        assembler = RefreshAssembler(FEED, service, SETTINGS)
        cut = SnapshotCutter(FEED).cut(service, exchange.snapshot(service), 9, 41, 0)
        for index, data in enumerate(cut):
            assembler.packet(data, 41 + index, index)
        *_, whole = assembler.pop_events()
        for data in whole.packets:
            user.apply(data)
        assert user.digest(service) == exchange.digest(service), (seed, service)
    assert not user.problems


def test_the_largest_messages_fill_packets_of_their_own(line):
    long = (1382).to_bytes(2, "big") + b"\x27\x10" + bytes(1380)
    _, whole = line.send(*SnapshotCutter(FEED).cut(ORDERS, [long] * 3, 5, 1, 0))
    assert [len(data) for data in whole.packets] == [24, 1400, 1400, 1400, 24]


def test_many_small_messages_are_counted_within_a_u8(line):
    small = [b"\0\x02\x27\x10"] * 1000
    _, whole = line.send(*SnapshotCutter(FEED).cut(ORDERS, small, 5, 1, 0))
    assert [data[15] for data in whole.packets] == [255, 255, 255, 237]


def test_the_next_cycle_may_begin_in_the_packet_where_the_last_one_ended(line):
    events = line.messages(start(), end(), start(501), end(501))
    assert [type(event) for event in events] == [SnapshotBegan, Snapshot] * 2


def test_heartbeats_and_control_packets_do_no_harm(line):
    packets = refresh()
    line.send(packets[0])
    line.send(FEED.encode_packet(kind="heartbeat", service=ORDERS))
    line.send(FEED.encode_packet(kind="control", packet_type=22, body=bytes(20), service=7))
    assert isinstance(line.send(*packets[1:])[-1], Snapshot)


# -- failures, each by its name -------------------------------------------------------------------


def test_a_lost_start_is_an_end_without_a_start(line):
    assert line.send(*refresh()[1:]) == []
    assert line.counted() == {"end_without_start": 1, "outside": len(refresh()) - 1}
    works_again(line)


def test_a_lost_end_fails_within_the_time_out(line):
    line.send(*refresh()[:-1])
    assert line.assembler.deadline_ns == line.now_ns + TIMEOUT_NS
    line.assembler.tick(line.now_ns + TIMEOUT_NS - 1)
    assert line.assembler.pop_events() == []
    line.assembler.tick(line.now_ns + TIMEOUT_NS)
    assert line.assembler.pop_events() == [failed("timed_out")]
    assert line.counted() == {"began": 1, "failed_timed_out": 1}
    works_again(line)


def test_a_lost_end_followed_by_the_next_cycle_starts_over(line):
    line.send(*refresh()[:-1])
    works_again(line)
    assert line.counted()["started_over"] == 1


def test_a_second_start_drops_what_was_gathered_and_has_its_own_time(line):
    line.messages(start(1), order("Y", 1))
    line.now_ns += TIMEOUT_NS - 1
    assert line.messages(start(2), order("Y", 2)) == [SnapshotBegan(ORDERS, 2)]
    line.now_ns += TIMEOUT_NS - 1
    (whole,) = line.messages(end(2))
    assert (whole.last, whole.messages) == (2, 3)


def test_a_packet_that_comes_after_the_time_out_is_outside(line):
    line.messages(start(), order("Y", 1))
    line.now_ns += TIMEOUT_NS
    assert line.messages(order("Y", 2), end()) == [failed("timed_out")]
    assert line.counted()["end_without_start"] == line.counted()["outside"] == 1


def test_a_gap_within_fails_whether_it_is_announced_or_shows_in_the_numbers(line):
    packets = refresh()
    line.send(packets[0])
    line.assembler.gap(line.now_ns)
    assert line.assembler.pop_events() == [failed("gap")]
    works_again(line)
    line.send(packets[0])
    line.sequence += 1
    assert line.send(packets[1]) == [failed("gap")]
    assert line.counted()["failed_gap"] == 2
    works_again(line)


def test_a_gap_between_refreshes_harms_nothing(line):
    works_again(line)
    line.assembler.gap(line.now_ns)
    line.sequence += 100
    works_again(line)


def test_a_reset_fails_what_runs_and_takes_any_number_after_it(line):
    line.send(refresh()[0])
    line.assembler.reset(line.now_ns)
    assert line.assembler.pop_events() == [failed("reset")]
    line.sequence = 1
    works_again(line)


def test_an_end_that_names_another_number_fails(line):
    assert line.messages(start(), end(501))[1:] == [failed("end_differs")]
    works_again(line)


def test_packets_that_cannot_be_read_fail_what_runs_and_are_counted(line):
    good = refresh()[1]
    broken_stream = good[:30] + bytes([good[30] ^ 0xFF]) + good[31:]
    trailing = FEED.encode_packet(
        service=ORDERS, flags=17, count=1, body=zlib.compress(order("Y", 1)) + b"more"
    )
    cut_short = FEED.encode_packet(
        service=ORDERS, flags=17, count=1, body=zlib.compress(order("Y", 1))[:-12]
    )
    miscounted = FEED.encode_packet(
        service=ORDERS, flags=17, count=2, body=zlib.compress(order("Y", 1))
    )
    short_start = FEED.encode_packet(service=ORDERS, messages=[b"\0\x04\x02\x44\0\0"])
    short_end = FEED.encode_packet(service=ORDERS, messages=[b"\0\x04\x02\x45\0\0"])
    for number, packet in enumerate(
        (b"", good[:-1], broken_stream, trailing, cut_short, miscounted, short_start, short_end), 1
    ):
        line.messages(start(), order("Y", 1))
        assert line.send(packet) == [failed("malformed")], number
        assert line.counted()["malformed"] == line.counted()["failed_malformed"] == number
    works_again(line)


def test_a_packet_of_another_service_does_not_belong(line):
    line.messages(start())
    other = FEED.encode_packet(service=101, messages=[order("Y", 1)])
    assert line.send(other) == [failed("malformed")]
    assert line.counted()["wrong_service"] == 1
    works_again(line)


def test_a_packet_that_inflates_without_end_is_refused_and_not_inflated(line):
    bomb = zlib.compress(bytes(60_000_000), 9)
    assert len(bomb) < 65_000
    packet = FEED.encode_packet(service=ORDERS, flags=17, count=200, body=bomb)
    line.messages(start())
    tracemalloc.start()
    try:
        assert line.send(packet) == [failed("malformed")]
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert line.counted()["too_large_inflated"] == 1
    works_again(line)


def test_the_bound_on_inflated_packets_is_exact():
    body = b"".join([order("Y", 1)] * 20)
    packet = FEED.encode_packet(service=ORDERS, flags=17, count=20, body=zlib.compress(body))
    for spare, counted in ((0, "outside"), (-1, "too_large_inflated")):
        line = Line(inflated_bytes_max=len(body) + spare)
        line.send(packet)
        assert line.counted() == {counted: 1}


def test_a_snapshot_beyond_its_bound_fails_and_is_let_go():
    line = Line(snapshot_bytes_max=64 * 100)
    events = line.send(*refresh())
    assert events == [SnapshotBegan(ORDERS, 500), failed("too_large")]
    # 580 and 581 have eight bytes each; the bound is 6,400.
    exactly = [*orders(99), b"\0\x2e\x27\x10" + bytes(44)]
    assert isinstance(line.send(*refresh(messages=exactly))[-1], Snapshot)
    with_end_too_much = [*orders(99), b"\0\x2f\x27\x10" + bytes(45)]
    assert line.send(*refresh(messages=with_end_too_much))[-1] == failed("too_large")
    works_again(Line())


def test_a_message_too_long_for_a_packet_fails(line):
    long = (1500).to_bytes(2, "big") + b"\x27\x10" + bytes(1498)
    body = zlib.compress(start() + long)
    packet = FEED.encode_packet(service=ORDERS, flags=17, count=2, body=body)
    assert line.send(packet)[1:] == [failed("message_too_long")]
    works_again(line)


def test_a_feed_without_refresh_is_refused():
    with pytest.raises(UsageError, match="no refresh"):
        RefreshAssembler(load_feed("iex-deep"), 1, SETTINGS)


# -- anything at all ------------------------------------------------------------------------------


@drawn(6)
def test_whatever_the_line_does_a_snapshot_is_whole_and_the_rest_is_reported(seed):
    draw = random.Random(seed)
    line = Line(snapshot_bytes_max=14_000)
    cycles = {}
    first = 1
    running = 0
    for last in range(1, 40):
        messages = orders(last * 6, last)
        packets = SnapshotCutter(FEED).cut(ORDERS, messages, last, first, 0)
        first += len(packets)
        cycles[last] = [start(last), *messages, end(last)]
        for packet in packets:
            fate, data = draw.random(), packet
            line.now_ns += draw.choice((0, 1, TIMEOUT_NS // 3))
            if packet is packets[-1] and draw.random() < 0.2:
                continue  # an end that is lost where nothing shows it
            if fate < 0.03:
                line.sequence += 1
                continue
            if fate < 0.06:
                line.assembler.gap(line.now_ns)
            elif fate < 0.09:
                data = draw.randbytes(draw.randrange(100))
            elif fate < 0.12:
                mangled = bytearray(packet)
                mangled[draw.randrange(len(mangled))] ^= 1 << draw.randrange(8)
                data = bytes(mangled)
            elif fate < 0.14:
                line.assembler.reset(line.now_ns)
            elif fate < 0.16:
                line.assembler.tick(line.now_ns + TIMEOUT_NS)
            for event in line.send(data):
                running = _check(event, cycles, running, seed)
    assert line.assembler.running == bool(running)
    counts = line.assembler.counts
    failures = sum(n for name, n in counts.items() if name.startswith("failed_"))
    accounted = counts["snapshots"] + failures + counts["started_over"] + line.assembler.running
    assert counts["began"] == accounted
    assert set(counts) == set(COUNTS)


def _check(event, cycles: dict[int, list[bytes]], running: int, seed: int) -> int:
    """One event after another makes sense; returns what runs after it."""
    if isinstance(event, SnapshotBegan):
        return event.last or -1
    assert running, seed
    if isinstance(event, Snapshot):
        held = b"".join(data[16:] for data in event.packets)
        assert held == b"".join(cycles[event.last]), seed
    return 0
