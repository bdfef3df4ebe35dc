"""A tally at its bounds, with odd clocks and new epochs; compiled and interpreted."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from feedhandler.characterise import digest as digests
from feedhandler.characterise import interarrival, millisecond_buckets, skew, tally
from feedhandler.characterise.digest import Digest, FineHistogram, summed
from feedhandler.characterise.tally import STRAY_MAX, TOTALS
from feedhandler.codecs import load_feed
from feedhandler.codecs.kinds import Reject
from tests.support.characterise import FEED, TWIN
from tests.support.scanners import COMPILED
from tests.support.twins import either
from tests.support.unsequenced import setting_aside

IEX = load_feed("iex-deep")
COMPILED = SimpleNamespace(
    tally=tally,
    skew=skew,
    interarrival=interarrival,
    scanner=COMPILED,
    table=FEED.table,
    name="compiled",
)
MESSAGE = FEED.encode_message("trade_cancel", symbol_index=7)

Row = tuple[int, int, bytes]  # time, group, packet

twin = either({"compiled": COMPILED, "interpreted": TWIN})


def fed(tally: Any, rows: list[Row]) -> Any:
    """The tally, after these packets."""
    data = b"".join(packet for _, _, packet in rows)
    lengths = np.array([len(packet) for _, _, packet in rows], np.uint32)
    offsets = (np.cumsum(lengths) - lengths).astype(np.uint32)
    times = np.array([at_ns for at_ns, _, _ in rows], np.int64)
    groups = np.array([group for _, group, _ in rows], np.uint32)
    ports = np.full(len(rows), 9, np.uint16)
    tally.count(np.frombuffer(data, np.uint8), offsets, lengths, lengths + 42, times, groups, ports)
    return tally


def of(twin: Any, rows: list[Row]) -> dict[str, np.ndarray]:
    return fed(twin.tally.Tally(twin.table), rows).columns()  # type: ignore[no-any-return]


def packet(number: int, *messages: bytes, service: int = 104, **more: Any) -> bytes:
    return FEED.encode_packet(service=service, sequence=number, messages=messages, **more)


def reset(number: int, following: int) -> bytes:
    return FEED.encode_packet(kind="reset", service=104, sequence=number, next_sequence=following)


def total(columns: dict[str, np.ndarray], name: str) -> list[int]:
    return columns["totals"][:, TOTALS.index(name)].tolist()  # type: ignore[no-any-return]


def test_channels_beyond_the_bound_are_counted_together(twin: Any) -> None:
    rows = [(10, 1_000 + group, packet(1)) for group in range(skew.CHANNELS_MAX + 3)]
    columns = of(twin, rows)
    assert len(columns["lines"]) == skew.CHANNELS_MAX
    assert columns["overflow"].tolist() == [3, 0]


@pytest.mark.parametrize("short", range(1, 6))
def test_columns_of_different_lengths_are_refused(twin: Any, short: int) -> None:
    kinds = (np.uint32, np.uint32, np.uint32, np.int64, np.uint32, np.uint16)
    columns = [np.zeros(1 if index == short else 2, kind) for index, kind in enumerate(kinds)]
    with pytest.raises(ValueError, match="different lengths"):
        twin.tally.Tally(twin.table).count(np.zeros(9, np.uint8), *columns)


def test_types_beyond_the_bound_are_counted_as_one(twin: Any) -> None:
    def unknown(code: int) -> bytes:
        return (2).to_bytes(2, "big") + code.to_bytes(2, "big")

    count = tally.TYPES_MAX + 20
    rows = [
        (10, 1, packet(n + 1, *(unknown(2_000 + n * 100 + m) for m in range(100))))
        for n in range(count // 100 + 1)
    ]
    cells = of(twin, rows)["cells"]
    assert cells[2].sum() == 100 * len(rows)
    assert cells.shape[1] <= tally.TYPES_MAX
    assert -1 in cells[1].tolist()


def test_a_clock_that_steps_back_moves_the_first_time_and_is_counted_apart(twin: Any) -> None:
    rows = [(9_000_000, 1, packet(1, MESSAGE)), (5_000_000, 1, packet(2, MESSAGE))]
    columns = of(twin, [*rows, (7_000_000, 1, packet(3, MESSAGE))])
    assert (total(columns, "first_ns"), total(columns, "last_ns")) == ([5_000_000], [9_000_000])
    assert columns["interarrival_tallies"][:, 0].tolist() == [0, 1, 1]
    assert summed([millisecond_buckets.expanded(digests.buckets_of(columns))], 4)[0].tolist() == [
        5,
        7,
        9,
    ]


def test_broken_packets_and_foreign_datagrams_are_told_apart(twin: Any) -> None:
    broken = packet(2, MESSAGE, count=2)
    columns = of(twin, [(1, 1, broken), (1, 1, b"nothing of the feed, but long enough")])
    assert total(columns, "broken") == [1]
    assert total(columns, "messages") == [2]
    assert columns["foreign"].sum() == columns["foreign"][Reject.LENGTH_MISMATCH] == 1


def test_a_reset_begins_an_epoch_and_a_stray_one_does_not(twin: Any) -> None:
    high = STRAY_MAX + 10
    rows = [reset(1, 2), packet(high), reset(19, 20), packet(high + 1), reset(1, 2), packet(2)]
    columns = of(twin, [(n, 1, each) for n, each in enumerate(rows)])
    assert columns["epochs"].tolist() == [1]
    runs = columns["runs"][1:].T.tolist()
    assert runs == [[0, 1, 2], [0, high, high + 1], [0, 19, 20], [0, high + 1, high + 2], [1, 1, 3]]


def test_a_reset_at_the_beginning_of_a_stretch_is_judged_by_the_stretch_before(twin: Any) -> None:
    high = STRAY_MAX + 10
    whole, stray = Digest(), Digest()
    whole.add(of(twin, [(1, 1, packet(high))]))
    whole.add(of(twin, [(2, 1, reset(1, 2)), (3, 1, packet(2))]))
    assert sorted(whole.runs()[0]) == [0, 1]
    stray.add(of(twin, [(1, 1, packet(9))]))
    stray.add(of(twin, [(2, 1, reset(1, 2)), (3, 1, packet(10))]))
    assert sorted(stray.runs()[0]) == [0]


def test_a_new_session_is_an_epoch_within_a_stretch_and_between_two() -> None:
    def session(number: int) -> bytes:
        return IEX.encode_packet(
            service=1, session=number, sequence=1, messages=[IEX.encode_message("system_event")]
        )

    def columns(*sessions: int) -> dict[str, np.ndarray]:
        rows = [(n, 1, session(each)) for n, each in enumerate(sessions)]
        return fed(tally.Tally(IEX.table), rows).columns()  # type: ignore[no-any-return]

    digest = Digest()
    digest.add(columns(7, 8))
    digest.add(columns(8))
    digest.add(columns(9))
    assert sorted(digest.runs()[0]) == [0, 1, 2]


def test_copies_too_far_apart_backwards_or_on_the_same_line_are_no_pairs_or_reported(
    twin: Any,
) -> None:
    pairs = twin.skew.Skew()
    service = pairs.add_service()
    for channel, number, at_ns in [
        (0, 1, 0), (0, 1, 5), (1, 1, 7), (1, 2, 50), (0, 2, 40),
        (0, 3, 0), (1, 3, skew.APART_NS_MAX + 1),
    ]:  # fmt: skip
        pairs.note(service, channel, number, at_ns)
    found = pairs.histograms()
    assert found["count"].tolist() == [1]
    assert found["bucket"].tolist() == [7]
    assert found["backwards"].tolist() == [0, 1]
    assert pairs.left == 1


def test_what_waits_too_long_is_left_over_and_bounded(twin: Any) -> None:
    pairs = twin.skew.Skew()
    for _ in range(9):
        pairs.add_service()
    count = 40 if twin is TWIN else skew.LEFT_MAX + 5
    for turn in range(count + 1):
        pairs.note(8, 0, turn * skew.RING, turn)
    expected = min(count, skew.LEFT_MAX)
    assert (pairs.left, pairs.left_behind) == (expected, count - expected)
    assert len(pairs.leftovers()["number"]) == expected + 1
    for channel in range(1, 12):
        pairs.note(0, channel, 5, 10)
        pairs.note(0, channel + 20, 5, 11)
    assert pairs.pairs == 11


def test_symbols_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TWIN.interarrival, "_SYMBOLS_MAX", 1_024)
    table = TWIN.interarrival.Interarrival()
    for symbol in range(1_030):
        table.note(0, 0, symbol, 1)
    assert (table.rows, table.overflow) == (1_024, 6)


def test_histograms_that_are_put_together_have_both_counts() -> None:
    one, two = FineHistogram(), FineHistogram()
    one.add(np.array([5, -1], np.int64))
    two.add(np.array([2_000_000, 20_000_000], np.int64))
    one.merge(two)
    assert (one.count, one.within_1ms, one.within_10ms, one.backwards) == (3, 1, 2, 1)


def test_moments_are_those_of_the_whole_however_they_are_cut_and_however_large() -> None:
    def part(*rows: tuple[int, int]) -> dict[str, np.ndarray]:
        columns = of(
            COMPILED, [(at_ms * 1_000_000, 1, packet(n)) for n, (at_ms, _) in enumerate(rows)]
        )
        found = millisecond_buckets.expanded(digests.buckets_of(columns))
        found[2] = [size for _, size in rows]
        return columns | {
            f"moments_{k}": each for k, each in millisecond_buckets.compact(found).items()
        }

    digest = Digest()
    day = 1_300_176_000_000
    for rows in ([(5, 10), (7, 1)], [(7, 2), (8, 3)], [], [(8, 1 << 40)], [(6, 5), (1 << 35, 4)]):
        digest.add(part(*((day + at_ms, size) for at_ms, size in rows)))
    whole = digest.buckets()
    assert (whole[0] - day).tolist() == [5, 6, 7, 8, 1 << 35]
    assert whole[1].tolist() == [1, 1, 2, 2, 1]
    assert whole[2].tolist() == [10, 5, 3, 3 + (1 << 40), 4]


def test_totals_of_a_channel_go_on_from_stretch_to_stretch(twin: Any) -> None:
    digest = Digest()
    digest.add(of(twin, [(5_000, 1, packet(1, MESSAGE))]))
    digest.add(of(twin, [(2_000, 1, packet(2, MESSAGE)), (9_000, 2, packet(2))]))
    assert digest.totals[:, TOTALS.index("packets")].tolist() == [2, 1]
    assert digest.totals[0, TOTALS.index("first_ns")] == 2_000
    assert digest.totals[0, TOTALS.index("last_ns")] == 5_000
    assert digests.Channel(1, 9, 104, False) in digest.channels
    assert digest.cells[0, FEED.layout("trade_cancel").code].interarrival.backwards == 1


def test_packets_outside_the_sequence_are_counted_and_are_no_run(twin: Any) -> None:
    feed = setting_aside("euronext-utp-md")
    made = twin.tally.Tally(feed.table_of(twin.scanner))
    aside = packet(0, MESSAGE)
    columns = fed(made, [(at, 1, each) for at, each in enumerate(
        [aside, packet(7, MESSAGE), aside, aside, packet(8, MESSAGE)]
    )]).columns()  # fmt: skip
    assert (total(columns, "data"), total(columns, "unsequenced")) == ([2], [3])
    assert total(columns, "read_messages") == [5]
    assert columns["runs"].T.tolist() == [[0, 0, 7, 9]]
