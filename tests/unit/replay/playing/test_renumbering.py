"""Loops: a recording that is played again and again looks like one uninterrupted session.

The judge is the gateway's own arbitration: it is fed what a loop sends, line by line, and must
publish every packet once, in order, without a gap. Random tests print their seed;
`pytest tests/unit/replay/playing/test_renumbering.py -k seed` runs them again.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.scanner import parse_header
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.replay.captures.reading import Capture, Datagram
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing import renumbering as module
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.renumbering import Renumberer
from feedhandler.replay.playing.selection import LeftOut, Selection
from feedhandler.replay.playing.timeline import LONE_DISTANCE_NS, Timeline
from tests.support.ingest import Channel
from tests.support.seeds import drawn
from tests.support.unsequenced import setting_aside

UTP, IEX = load_feed("euronext-utp-md"), load_feed("iex-deep")
GROUPS = ("239.1.1.1", "239.1.2.1")
PASSES = 4


def recorded(folder: Path, datagrams: list[tuple[int, str, bytes]], name: str = "x.pcap") -> Path:
    """A capture of (time, group, payload)."""
    with CaptureWriter(folder / name) as writer:
        for time_ns, group, payload in datagrams:
            writer.write(time_ns, group, 5_001, payload)
    return folder / name


def played(path: Path, feed: Feed, **options: object) -> list[Datagram]:
    options = {"passes": PASSES, **options}
    return list(Pipeline([Capture(path)], feed=feed, **options))  # type: ignore[arg-type]


def arbitrated(datagrams: list[Datagram], feed: Feed, service: int) -> Channel:
    """Return the gateway's channel of a service; line A is the first group, B the second."""
    channel = Channel(counts_messages=feed.table.counts_messages)
    for one in datagrams:
        payload = memoryview(one.payload)
        if parse_header(feed.table, payload, 0, len(payload), channel.header) == 0:
            if channel.header.service != service:
                continue
            channel.now += 1_000
            line = GROUPS.index(one.group)
            channel.arbiter.receive(line, channel.header, payload, 0, channel.now, channel.now)
            channel.collect()
    channel.wait(1_000)
    return channel


def numbers(datagrams: list[Datagram], feed: Feed, service: int, group: str) -> list[int]:
    found = []
    for one in datagrams:
        if one.group == group:
            packet = feed.decode_packet(one.payload)
            if packet.service == service and packet.kind == 0:
                found.append(packet.sequence)
    return found


def session(random_source: random.Random, lag: int) -> list[tuple[int, str, bytes]]:
    """Two services on two lines, B some packets behind A, cut out of the middle of a day."""
    line_a = []
    after = {101: random_source.randrange(2, 900), 104: random_source.randrange(2, 900)}
    for number in range(200):
        service = random_source.choice((101, 104))
        message = UTP.encode_message(240, symbol_index=number)
        line_a.append(
            UTP.encode_packet(sequence=after[service], service=service, messages=[message])
        )
        after[service] += 1
        if random_source.random() < 0.1:
            line_a.append(UTP.encode_packet(kind="heartbeat", service=service))
    both: list[tuple[str, bytes]] = []
    for index, payload in enumerate(line_a):
        both.append((GROUPS[0], payload))
        if index >= lag:
            both.append((GROUPS[1], line_a[index - lag]))
    return [(1_000 * at, group, payload) for at, (group, payload) in enumerate(both)]


@drawn(3)
def test_a_looped_session_is_one_session_to_arbitration_by_seed(tmp_path: Path, seed: int) -> None:
    random_source = random.Random(seed)
    path = recorded(tmp_path, session(random_source, lag=random_source.randrange(20)))
    datagrams = played(path, UTP)
    assert len(datagrams) == PASSES * len(list(Capture(path)))
    for service in (101, 104):
        channel = arbitrated(datagrams, UTP, service)
        story = channel.story()
        assert story[0][0] == "start"
        sent = numbers(datagrams, UTP, service, GROUPS[0])
        assert sent == list(range(sent[0], sent[0] + len(sent)))
        assert story[1:] == [("packet", number) for number in sent]
        assert channel.line(0, LineCounter.LATE) == channel.line(1, LineCounter.LATE) == 0
        assert channel.line(0, LineCounter.DUPLICATES) == 0
        assert channel.count(ChannelCounter.GAPS) == 0
    times = [one.time_ns for one in datagrams]
    assert times == sorted(times)


def iex_session() -> list[tuple[int, str, bytes]]:
    message = IEX.encode_message("S")
    made, after = [], 77
    for number in range(50):
        count = number % 4  # none: a heartbeat, which names the next number
        made.append(IEX.encode_packet(sequence=after, messages=[message] * count, session=5))
        after += count
    return [(1_000 * at, GROUPS[0], payload) for at, payload in enumerate(made)]


def test_a_feed_that_counts_messages_goes_on_too_with_its_heartbeats(tmp_path: Path) -> None:
    datagrams = played(recorded(tmp_path, iex_session()), IEX)
    decoded = [IEX.decode_packet(one.payload) for one in datagrams]
    after = 77
    for packet in decoded:
        assert packet.sequence == after
        after = packet.next_sequence
    assert after == 77 + PASSES * (12 * 6 + 1)
    channel = arbitrated(datagrams, IEX, 0)
    assert channel.count(ChannelCounter.GAPS) == channel.line(0, LineCounter.LATE) == 0


def utp(sequence: int, service: int = 104, **fields: object) -> bytes:
    return UTP.encode_packet(sequence=sequence, service=service, **fields)  # type: ignore[arg-type]


def on_a(*payloads: bytes) -> list[tuple[int, str, bytes]]:
    return [(1_000 * at, GROUPS[0], payload) for at, payload in enumerate(payloads)]


RESET = utp(1, kind="reset", next_sequence=2)


def test_the_reset_that_a_recording_begins_with_is_not_repeated(tmp_path: Path) -> None:
    both = [
        *[(0, GROUPS[0], RESET), (1, GROUPS[0], utp(2)), (2, GROUPS[1], RESET)],
        *[(3, GROUPS[0], utp(3)), (4, GROUPS[1], utp(2)), (5, GROUPS[1], utp(3))],
    ]
    datagrams = played(recorded(tmp_path, both), UTP, passes=3)
    for group in GROUPS:
        kinds = [UTP.decode_packet(one.payload).kind for one in datagrams if one.group == group]
        assert kinds == [2, 0, 0, 0, 0, 0, 0]
        assert numbers(datagrams, UTP, 104, group) == [2, 3, 4, 5, 6, 7]


def test_a_reset_in_the_middle_is_repeated_and_numbers_after_it_are_as_recorded(
    tmp_path: Path,
) -> None:
    path = recorded(tmp_path, on_a(utp(50), utp(51), RESET, utp(2), utp(3)))
    datagrams = played(path, UTP, passes=3)
    assert numbers(datagrams, UTP, 104, GROUPS[0]) == [50, 51, 2, 3, 4, 5, 2, 3, 4, 5, 2, 3]
    assert len(datagrams) == 15


def test_what_has_no_number_and_what_is_no_packet_stays_as_it_is(tmp_path: Path) -> None:
    strange = [b"no packet", utp(0, kind="heartbeat"), utp(7, kind="control", packet_type=22)]
    strange[2] = UTP.encode_packet(
        kind="control", packet_type=22, sequence=7, service=104, body=bytes(20)
    )
    datagrams = played(recorded(tmp_path, on_a(utp(5), *strange)), UTP, passes=2)
    assert [one.payload for one in datagrams] == [utp(5), *strange, utp(6), *strange]


def test_services_and_refresh_packets_count_each_for_itself(tmp_path: Path) -> None:
    snapshot = utp(1, flags=17, count=1, body=b"zzzz")
    path = recorded(tmp_path, on_a(utp(9), snapshot, utp(30, service=101), utp(10)))
    datagrams = played(path, UTP, passes=2)
    found = [int.from_bytes(one.payload[4:8], "big") for one in datagrams]
    assert found == [9, 1, 30, 10, 11, 2, 31, 12]


def test_a_feed_without_services_counts_by_group(tmp_path: Path) -> None:
    feed = load_feed("nyse-openbook-ultra")
    datagrams = [
        (at, group, feed.encode_packet(sequence=number, packet_type=230))
        for at, (group, number) in enumerate([(GROUPS[0], 5), (GROUPS[1], 90), (GROUPS[0], 6)])
    ]
    found = played(recorded(tmp_path, datagrams), feed, passes=2)
    assert [feed.decode_packet(one.payload).sequence for one in found] == [5, 90, 6, 7, 91, 8]


def test_a_loop_plays_what_was_chosen_and_counts_what_was_not(tmp_path: Path) -> None:
    path = recorded(tmp_path, on_a(utp(5), utp(6), utp(7, service=101)))
    pipeline = Pipeline(
        [Capture(path)], feed=UTP, passes=2, selection=Selection(services=(104,), from_ns=1_000)
    )
    assert numbers(list(pipeline), UTP, 104, GROUPS[0]) == [6, 7]
    assert pipeline.left_out == {LeftOut.BEFORE: 2, LeftOut.SERVICE: 2}
    assert pipeline.share_done == 1.0
    nothing = Pipeline([Capture(path)], feed=UTP, passes=0, selection=Selection(ports=(1,)))
    assert list(nothing) == []


def test_a_loop_that_was_entered_in_the_middle_goes_on_with_whole_passes(tmp_path: Path) -> None:
    path = recorded(tmp_path, on_a(*[utp(number) for number in range(10, 15)]))
    pipeline = Pipeline([Capture(path)], feed=UTP, passes=3)
    reading: Iterator[Datagram] = iter(pipeline)
    for _ in range(6):
        next(reading)
    entered = pipeline.starting_at(3_000)
    assert numbers(list(entered), UTP, 104, GROUPS[0]) == [13, 14, *range(15, 20)]
    assert entered.passes == 2


def test_a_loop_for_ever_needs_its_feed_and_does_not_end_by_itself(tmp_path: Path) -> None:
    path = recorded(tmp_path, on_a(utp(5)))
    with pytest.raises(UsageError, match="--feed"):
        Pipeline([Capture(path)], passes=0)
    reading = iter(Pipeline([Capture(path)], feed=UTP, passes=0))
    found = [next(reading) for _ in range(1_000)]
    assert numbers(found, UTP, 104, GROUPS[0]) == list(range(5, 1_005))
    apart = {later.time_ns - one.time_ns for one, later in itertools.pairwise(found)}
    assert apart == {LONE_DISTANCE_NS}


def test_passes_follow_at_the_mean_distance_and_amounts_never_add_up(tmp_path: Path) -> None:
    times = [100, 103, 110]  # a mean distance of 5: a pass takes 15
    path = recorded(tmp_path, [(at, GROUPS[0], utp(9 + at)) for at in times])
    pipeline = Pipeline([Capture(path)], feed=UTP, passes=500)
    found = [batch.time_ns.tolist() for batch in pipeline.batches()]
    assert found == [[100 + 15 * each, 103 + 15 * each, 110 + 15 * each] for each in range(500)]
    assert [len(batch) for batch in Pipeline([Capture(path)], feed=UTP, passes=2).batches()] == [
        3,
        3,
    ]
    timeline = Timeline()
    batch = next(Capture(path).batches())
    assert [timeline(batch).moved_ns for _ in range(2)] == [0, 0]
    empty = next(Capture(path).batches()).select(slice(0))
    assert timeline(empty) is empty


def test_numbers_that_would_leave_their_field_end_the_loop(tmp_path: Path) -> None:
    path = recorded(tmp_path, on_a(utp(2**32 - 3), utp(2**32 - 2)))
    with pytest.raises(UsageError, match="end of their field"):
        played(path, UTP, passes=2)


def test_the_bounds_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path, on_a(RESET, utp(2), RESET, utp(2, service=101), utp(3)))
    monkeypatch.setattr(module, "EPOCHS_MAX", 2)
    with pytest.raises(UsageError, match="more than 2 resets"):
        played(path, UTP)
    monkeypatch.setattr(module, "EPOCHS_MAX", 1_024)
    monkeypatch.setattr(module, "LINES_MAX", 0)
    with pytest.raises(UsageError, match="more than 0"):
        played(path, UTP)
    with pytest.raises(UsageError, match="more than 0 channels"):
        played(recorded(tmp_path, on_a(utp(3)), "y.pcap"), UTP)


def test_nothing_is_numbered_where_nothing_is(tmp_path: Path) -> None:
    renumberer = Renumberer(UTP.table)
    batch = next(Capture(recorded(tmp_path, on_a(utp(3)))).batches())
    assert len(renumberer(batch.select(slice(0)))) == 0
    assert renumberer.dropped_resets == 0
    # Only a heartbeat: a channel without data has nothing to go on from.
    beats = played(recorded(tmp_path, on_a(utp(0, kind="heartbeat")), "z.pcap"), UTP, passes=2)
    assert [one.payload for one in beats] == [utp(0, kind="heartbeat")] * 2
    only_resets = played(recorded(tmp_path, on_a(RESET), "r.pcap"), UTP, passes=2)
    assert [one.payload for one in only_resets] == [RESET] * 2


def test_packets_outside_the_sequence_stay_as_they_are_and_count_for_nothing(
    tmp_path: Path,
) -> None:
    feed = setting_aside("iex-deep")
    message = feed.encode_message("S")

    def packet(sequence: int, count: int = 1) -> bytes:
        return feed.encode_packet(sequence=sequence, messages=[message] * count)

    aside, beat = packet(0), packet(0, count=0)
    made = [aside, packet(50, 2), beat, aside, packet(52), packet(53, count=0), aside]
    datagrams = played(recorded(tmp_path, on_a(*made)), feed, passes=2)
    again = [aside, packet(53, 2), beat, aside, packet(55), packet(56, count=0), aside]
    assert [one.payload for one in datagrams] == made + again
    channel = arbitrated(datagrams, feed, 0)
    assert [sequence for _, sequence in channel.story() if sequence < 2**62] == [50, 50, 52, 53, 55]
    assert channel.count(ChannelCounter.UNSEQUENCED) == 6
    assert channel.count(ChannelCounter.GAPS) == channel.line(0, LineCounter.STALE) == 0
