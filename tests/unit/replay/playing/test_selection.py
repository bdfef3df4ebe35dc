"""Choosing datagrams: by times, groups, ports, services, numbers; what is left out is counted."""

import datetime
from pathlib import Path

import numpy as np
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.kinds import Reject
from feedhandler.replay.captures.packet_headers import read_headers
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.pipeline import Pipeline, endpoints, first_time_ns
from feedhandler.replay.playing.selection import (
    LeftOut,
    Selection,
    Selector,
    parse_group,
    parse_sequences,
)
from feedhandler.replay.playing.time_spec import TimeSpec, check_zone, parse_time_spec, rfc3339_text

FEED = load_feed("euronext-utp-md")
#: 2026-11-20, 09:00 in Paris.
NINE_NS = int(datetime.datetime(2026, 11, 20, 8, tzinfo=datetime.UTC).timestamp()) * 10**9
GROUPS = ("239.1.1.1", "239.1.1.2")


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("+0", NINE_NS),
        ("+1.5", NINE_NS + 1_500_000_000),
        ("+90s", NINE_NS + 90 * 10**9),
        ("+0.000000001", NINE_NS + 1),
        ("09:00", NINE_NS),
        ("9:00:00.25", NINE_NS + 250_000_000),
        ("2026-11-20T08:00:00Z", NINE_NS),
        ("2026-11-20 09:00:00.123456789+01:00", NINE_NS + 123_456_789),
    ],
)
def test_moments_are_full_times_times_of_day_or_seconds_from_the_start(text: str, ns: int) -> None:
    assert parse_time_spec(text).at_ns(NINE_NS, "Europe/Paris") == ns


@pytest.mark.parametrize(
    ("day", "text", "utc"),
    [
        # Clocks go forward at 02:00, and back at 03:00.
        ("2026-03-29", "01:30", "00:30"),
        ("2026-03-29", "09:00:00", "07:00"),
        ("2026-10-25", "02:30", "00:30"),
        ("2026-10-25", "09:00", "08:00"),
    ],
)
def test_a_time_of_day_is_what_clocks_show_on_a_day_on_which_they_change(
    day: str, text: str, utc: str
) -> None:
    start_ns = parse_time_spec(f"{day}T00:10:00Z").ns
    expected_ns = parse_time_spec(f"{day}T{utc}:00Z").ns
    assert parse_time_spec(text).at_ns(start_ns, "Europe/Paris") == expected_ns


@pytest.mark.parametrize(
    "text",
    ["", "noon", "25:00", "12:60", "12:00:60", "-5", "+", "2026-13-01T00:00:00Z", "2026-11-20"],
)
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="is no moment"):
        parse_time_spec(text)


def test_a_moment_reads_back_to_the_nanosecond_and_zones_are_checked() -> None:
    assert parse_time_spec(rfc3339_text(NINE_NS + 7)) == TimeSpec(
        "epoch", NINE_NS + 7, "2026-11-20T08:00:00.000000007Z"
    )
    assert check_zone("Europe/Paris") == "Europe/Paris"
    for name in ("Paris", "../etc/passwd", ""):
        with pytest.raises(UsageError, match="is no time zone"):
            check_zone(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1-9", (1, 9)), ("7", (7, 7)), ("7-", (7, 2**64 - 1)), ("0-0", (0, 0))],
)
def test_ranges_of_numbers(text: str, expected: tuple[int, int]) -> None:
    assert parse_sequences(text) == expected


@pytest.mark.parametrize("text", ["", "9-1", "a-b", "-5", f"{2**64}"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no range of numbers"):
        parse_sequences(text)


def test_groups_may_name_their_port() -> None:
    assert parse_group("239.1.1.1") == (0xEF010101, None)
    assert parse_group("239.1.1.1:5001") == (0xEF010101, 5_001)
    for text in ("239.1.1", "239.1.1.1:x", "239.1.1.1:70000", "group"):
        with pytest.raises(UsageError, match=r"no group|no port"):
            parse_group(text)


def packets() -> list[bytes]:
    """Service 104's reset, 101's and 104's data packets 2 to 9, heartbeats, and one no packet."""
    made = [FEED.encode_packet(kind="reset", service=104, sequence=1, next_sequence=2)]
    for number in range(2, 10):
        for service in (101, 104):
            made.append(FEED.encode_packet(sequence=number, service=service, send_time=number))
    made.append(FEED.encode_packet(kind="heartbeat", service=104))
    made.append(b"no packet")
    return made


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    """One datagram a millisecond, by turns to either group, port 5001 or 5002."""
    with CaptureWriter(tmp_path / "day.pcap") as writer:
        for number, packet in enumerate(packets()):
            at_ns = NINE_NS + number * 1_000_000
            writer.write(at_ns, GROUPS[number % 2], 5_001 + number % 2, packet)
    return Capture(tmp_path / "day.pcap")


def chosen(pipeline: Pipeline) -> list[bytes]:
    return [one.payload for batch in pipeline.batches() for one in batch.datagrams()]


@pytest.mark.parametrize(
    ("selection", "rows", "left_out"),
    [
        (Selection(), range(19), {}),
        (Selection(from_ns=NINE_NS + 1), range(1, 19), {LeftOut.BEFORE: 1}),
        (Selection(until_ns=NINE_NS + 2_000_000), range(2), {LeftOut.AFTER: 17}),
        (Selection(groups=(parse_group("239.1.1.2"),)), range(1, 19, 2), {LeftOut.GROUP: 10}),
        (Selection(groups=(parse_group("239.1.1.2:5001"),)), (), {LeftOut.GROUP: 19}),
        (
            Selection(groups=(parse_group(GROUPS[0]), parse_group("239.1.1.2:5002"))),
            range(19),
            {},
        ),
        (Selection(ports=(5_001, 9)), range(0, 19, 2), {LeftOut.PORT: 9}),
        (
            Selection(services=(104,)),
            [0, *range(2, 17, 2), 17],
            {LeftOut.NOT_OF_FEED: 1, LeftOut.SERVICE: 8},
        ),
        (
            Selection(services=(104,), sequences=(1, 3)),
            [0, 2, 4],
            {LeftOut.NOT_OF_FEED: 1, LeftOut.SERVICE: 8, LeftOut.SEQUENCE: 7},
        ),
        (
            Selection(sequences=(9, 2**64 - 1)),
            [15, 16],
            {LeftOut.NOT_OF_FEED: 1, LeftOut.SEQUENCE: 16},
        ),
    ],
)
def test_what_is_chosen_and_what_is_left_out(
    capture: Capture, selection: Selection, rows: object, left_out: dict[LeftOut, int]
) -> None:
    pipeline = Pipeline([capture], selection=selection, feed=FEED)
    everything = packets()
    assert chosen(pipeline) == [everything[row] for row in rows]  # type: ignore[attr-defined]
    assert pipeline.left_out == left_out
    assert chosen(pipeline) == [everything[row] for row in rows]  # type: ignore[attr-defined]
    assert pipeline.left_out == left_out


def test_services_are_known_only_of_a_feed() -> None:
    with pytest.raises(UsageError, match="name it with --feed"):
        Selector(Selection(services=(104,)))
    with pytest.raises(UsageError, match="nothing to play"):
        Pipeline([])
    assert Selection().is_everything


def test_a_feed_that_counts_messages_is_chosen_by_any_of_a_packets_numbers() -> None:
    feed = load_feed("iex-deep")
    message = feed.encode_message("S")
    data = [
        feed.encode_packet(sequence=number, messages=[message] * count)
        for number, count in ((1, 3), (4, 1), (5, 2), (7, 0))
    ]
    lengths = np.array([len(each) for each in data], np.uint32)
    offsets = (np.cumsum(lengths) - lengths).astype(np.uint32)
    headers = read_headers(feed.table, np.frombuffer(b"".join(data), np.uint8), offsets, lengths)
    assert headers.verdict.tolist() == [Reject.FINE] * 4
    assert headers.next_sequence.tolist() == [4, 5, 7, 7]
    assert headers.select(slice(1, 3)).sequence.tolist() == [4, 5]


def test_a_reading_may_start_at_a_time_and_ends_behind_its_window(tmp_path: Path) -> None:
    path = tmp_path / "long.pcap"
    with CaptureWriter(path) as writer:
        for second in range(10_000):
            writer.write(second * 10**9, GROUPS[0], 5_001, bytes(400))
    capture = Capture(path)
    pipeline = Pipeline([capture], selection=Selection(from_ns=2 * 10**9, until_ns=9 * 10**9))
    times = [batch.time_ns.tolist() for batch in pipeline.starting_at(5 * 10**9).batches()]
    assert times == [[second * 10**9 for second in range(5, 9)]]
    assert [len(batch) for batch in pipeline.starting_at(0).batches()] == [7]
    assert capture.statistics.datagrams < 10_000
    assert first_time_ns([capture]) == 0
    assert endpoints(pipeline) == [(GROUPS[0], 5_001)]


def test_a_capture_that_ends_in_the_past_is_moved_behind_the_one_before_it(tmp_path: Path) -> None:
    starts = {"late": 100, "next": 103, "early": 5}
    captures = []
    for name, start in starts.items():
        with CaptureWriter(tmp_path / name) as writer:
            for second in range(start, start + 3):
                writer.write(second * 10**9, GROUPS[0], 5_001, b"x")
        captures.append(Capture(tmp_path / name))
    pipeline = Pipeline(captures)
    batches = list(pipeline.batches())
    times = np.concatenate([batch.time_ns for batch in batches]) // 10**9
    assert times.tolist() == list(range(100, 109))
    assert [batch.moved_ns // 10**9 for batch in batches] == [0, 0, 101]
