"""Paces as absolute schedules: right at the start, right after a day, whatever the chunks."""

import numpy as np
import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.playing.pace import Pace, PaceKind, Schedule, parse_pace

DAY_NS = 86_400 * 10**9
START_NS = 1_700_000_000_123_456_789


def due(pace: Pace, times: list[int], lengths: list[int], chunk: int = 0) -> list[int]:
    """The schedule of a whole stream, asked for in chunks."""
    schedule = Schedule(pace)
    chunk = chunk or max(1, len(times))
    answer: list[int] = []
    for at in range(0, len(times), chunk):
        part = schedule.due_ns(
            np.array(times[at : at + chunk], np.int64),
            np.array(lengths[at : at + chunk], np.uint32),
        )
        answer += part.tolist()
    return answer


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("1x", Pace()),
        ("original", Pace()),
        ("0.5x", Pace(value=0.5)),
        ("100X", Pace(value=100)),
        ("40mbps", Pace(PaceKind.FRAME_BITS, 40e6)),
        ("1.5 gbps", Pace(PaceKind.FRAME_BITS, 1.5e9)),
        ("40mbps-payload", Pace(PaceKind.PAYLOAD_BITS, 40e6)),
        ("7100pps", Pace(PaceKind.PACKETS, 7_100)),
        ("7_100.5pps", Pace(PaceKind.PACKETS, 7_100.5)),
        (".5x", Pace(value=0.5)),
        ("400kpps", Pace(PaceKind.PACKETS, 400_000)),
        ("max", Pace(PaceKind.FLAT_OUT)),
    ],
)
def test_paces_are_read_from_text(text: str, pace: Pace) -> None:
    assert parse_pace(text) == pace
    assert str(pace)


@pytest.mark.parametrize(
    "text",
    ["", "x", "fast", "0x", "-1x", "10", "10mb", "1e400x", "5pps-payload", "_5x", "1__0x", "1_x"],
)
def test_what_is_no_pace_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pace(text)
    assert "give" in str(caught.value)


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_original_pace_is_the_captures_own_to_the_nanosecond(chunk: int) -> None:
    times = [START_NS, START_NS + 1, START_NS + 1_000_000_007, START_NS + DAY_NS]
    assert due(Pace(), times, [9] * 4, chunk) == [0, 1, 1_000_000_007, DAY_NS]
    assert due(Pace(value=100), times, [9] * 4, chunk) == [0, 0, 10_000_000, DAY_NS // 100]
    assert due(Pace(value=0.5), times, [9] * 4, chunk) == [0, 2, 2_000_000_014, 2 * DAY_NS]


@pytest.mark.parametrize("chunk", [0, 1])
def test_times_that_go_back_leave_with_the_one_before(chunk: int) -> None:
    times = [START_NS, START_NS + 500, START_NS + 300, START_NS - 10**9, START_NS + 600]
    assert due(Pace(), times, [9] * 5, chunk) == [0, 500, 500, 500, 600]


def test_packets_a_second_do_not_drift_over_a_day_of_chunks() -> None:
    schedule = Schedule(Pace(PaceKind.PACKETS, 3))
    chunk = np.zeros(30_000, np.int64)
    for _ in range(8):
        last = schedule.due_ns(chunk, chunk)
    assert last[-1] == round((8 * 30_000 - 1) * 10**9 / 3)


def test_bits_count_frames_or_payloads_from_the_start() -> None:
    lengths = [100, 1, 1_000]
    # 142, 60 (padded) and 1,042 bytes on the wire.
    assert due(Pace(PaceKind.FRAME_BITS, 8e9), [0] * 3, lengths, 1) == [0, 142, 202]
    assert due(Pace(PaceKind.PAYLOAD_BITS, 8e9), [0] * 3, lengths, 1) == [0, 100, 101]


def test_flat_out_has_no_schedule_unless_it_is_capped() -> None:
    assert due(Pace(PaceKind.FLAT_OUT), [START_NS, START_NS + DAY_NS], [9, 9]) == [0, 0]
    assert not Pace(PaceKind.FLAT_OUT).has_schedule
    capped = Pace(PaceKind.FLAT_OUT, packets_max=1_000)
    assert capped.has_schedule
    assert due(capped, [START_NS] * 3, [9] * 3) == [0, 1_000_000, 2_000_000]


@pytest.mark.parametrize("chunk", [0, 1, 2, 3])
def test_a_ceiling_spreads_bursts_and_catches_up_in_quiet_times(chunk: int) -> None:
    pace = Pace(packets_max=1_000)
    times = [0, 0, 0, 1_500_000, 10_000_000, 10_000_000, 12_000_000]
    expected = [0, 1_000_000, 2_000_000, 3_000_000, 10_000_000, 11_000_000, 12_000_000]
    assert due(pace, times, [9] * 7, chunk) == expected


def test_no_datagrams_have_no_schedule() -> None:
    empty = np.empty(0, np.int64)
    assert len(Schedule(Pace()).due_ns(empty, empty)) == 0
