"""The tables hold what an independent reading of the same capture gives, to the last packet."""

import collections
import datetime
import zoneinfo
from pathlib import Path
from typing import Any

import pytest
from characterise_kit import LINE_A, LINE_B, OPENING_NS, PORT, Independent, Seen, write_session

from feedhandler.characterise.digest import Digest
from feedhandler.characterise.job import Outcome, Request, characterise
from feedhandler.characterise.scale import BUCKETS, bucket_of, lower_bounds
from feedhandler.characterise.tables import Table, Tables, tables_of
from feedhandler.codecs import load_feed

LISBON = zoneinfo.ZoneInfo("Europe/Lisbon")


def named(outcome: Outcome, feed: str) -> dict[str, Table]:
    return {each.name: each for each in tables_of(outcome, load_feed(feed), "Europe/Lisbon")}


def rows_of(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Table], Independent]:
    path = write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=11)
    tables = named(characterise([str(path)], Request("euronext-utp-md")), "euronext-utp-md")
    return tables, Independent(path, "euronext-utp-md")


@pytest.fixture(scope="module")
def iex(captures: Path) -> tuple[dict[str, Table], Independent]:
    path = captures / "iex" / "deep-2023-10-02.pcap.gz"
    outcome = characterise([str(path)], Request("iex-deep"))
    return named(outcome, "iex-deep"), Independent(path, "iex-deep")


Both = pytest.mark.parametrize("which", ["session", "iex"])


def is_refresh(packet: Seen) -> bool:
    return packet.line[0][2] == 3


def line_of(letter: str) -> tuple[bytes, int]:
    address = {"A": LINE_A, "B": LINE_B}[letter]
    return bytes(int(part) for part in address.split(".")), PORT


@Both
def test_traffic_by_service(which: str, request: pytest.FixtureRequest) -> None:
    tables, whole = request.getfixturevalue(which)
    expected: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for each in whole.packets:
        refresh = is_refresh(each)
        for name in ("total", "refresh" if refresh else "realtime"):
            _add(expected[name], each)
        if not refresh:
            _add(expected[str(each.service)], each)
    expected.setdefault("refresh", [0, 0, 0])
    rows = rows_of(tables["services"])
    assert {
        row["service"]: [row["packets"], row["file_bytes"], row["payload_bytes"]] for row in rows
    } == expected
    total = expected["total"][0]
    assert all(abs(row["packets_pct"] - 100 * row["packets"] / total) < 0.001 for row in rows)


def _add(totals: list[int], packet: Seen) -> None:
    totals[0] += 1
    totals[1] += packet.file_bytes
    totals[2] += packet.payload_bytes


def text_of(second: int) -> str:
    return f"{datetime.datetime.fromtimestamp(second, LISBON):%Y-%m-%d %H:%M:%S}"


@Both
def test_peak_seconds(which: str, request: pytest.FixtureRequest) -> None:
    tables, whole = request.getfixturevalue(which)
    for name, column in (("packet_peaks", 0), ("byte_peaks", 1)):
        order = sorted(whole.bins(1_000).items(), key=lambda each: (-each[1][column], each[0]))
        expected = [[text_of(second), *values] for second, values in order[:10]]
        assert tables[name].rows == expected


@Both
def test_peaks_at_every_width(which: str, request: pytest.FixtureRequest) -> None:
    tables, whole = request.getfixturevalue(which)
    rows = {(row["width_ms"], row["what"]): row for row in rows_of(tables["peaks"])}
    for width_ms in (1_000, 100, 10, 1):
        bins = whole.bins(width_ms)
        for column, what in enumerate(("packets", "file_bytes", "payload_bytes")):
            assert rows[width_ms, what]["most"] == max(each[column] for each in bins.values())


@Both
def test_figures_in_words(which: str, request: pytest.FixtureRequest) -> None:
    tables, whole = request.getfixturevalue(which)
    figures = dict(tables["figures"].rows)
    packets = whole.packets
    sizes = [size for each in packets for _, _, size in each.messages]
    assert figures["packets"] == len(packets)
    assert figures["messages"] == sum(each.count for each in packets)
    assert figures["mean_packet_bytes_udp_payload"] == pytest.approx(
        sum(each.payload_bytes for each in packets) / len(packets), abs=1e-4
    )
    assert figures["mean_message_bytes_read"] == pytest.approx(sum(sizes) / len(sizes), abs=1e-4)
    header = 40 if which == "iex" else 16
    bodies = sum(each.payload_bytes - header for each in packets)
    messages = sum(each.count for each in packets)
    assert figures["mean_message_bytes"] == pytest.approx(bodies / messages, abs=1e-4)
    assert figures["mean_messages_per_packet"] == pytest.approx(
        sum(each.count for each in packets) / len(packets), abs=1e-4
    )
    refresh = sum(map(is_refresh, packets))
    assert figures["refresh_packets_pct"] == pytest.approx(100 * refresh / len(packets), abs=1e-3)


def test_duplicates_between_lines(session: tuple[dict[str, Table], Independent]) -> None:
    tables, whole = session
    figures = dict(tables["figures"].rows)
    numbered = [
        (each.service, each.number)
        for each in whole.packets
        if not is_refresh(each) and each.kind != "heartbeat"
    ]
    assert figures["unique_packets"] == len(set(numbered))
    assert figures["packets_received_again"] == len(numbered) - len(set(numbered))
    assert figures["packets_received_again"] > 100


@Both
def test_traffic_by_minute(which: str, request: pytest.FixtureRequest) -> None:
    tables, whole = request.getfixturevalue(which)
    expected = [
        [text_of(60 * minute)[:-3], *values]
        for minute, values in sorted(whole.bins(60_000).items())
    ]
    assert [row[:4] for row in tables["minutes"].rows] == expected
    by_service = rows_of(tables["minutes_by_service"])
    assert sum(row["packets"] for row in by_service) == len(whole.packets)
    assert sum(row["messages"] for row in by_service) == sum(e.count for e in whole.packets)


@Both
def test_interarrival_of_the_same_symbol(which: str, request: pytest.FixtureRequest) -> None:
    tables, whole = request.getfixturevalue(which)
    first = whole.packets if which == "iex" else whole.of_line(line_of("A"))
    expected = whole.interarrivals(first)
    rows = rows_of(tables["interarrival"])
    found = {(row["service"], row["type"].partition(" ")[0]): row for row in rows}
    feed = load_feed("iex-deep" if which == "iex" else "euronext-utp-md")
    everything = [since for each in expected.values() for since in each]
    assert everything
    for (service, code), times in [*expected.items(), (("all", "all"), everything)]:
        row = found[str(service), str(feed.type_label(code)) if code != "all" else "all"]
        assert row["repeats"] == len(times)
        assert row["within_1_ms_pct"] == pytest.approx(
            100 * sum(t <= 10**6 for t in times) / len(times), abs=1e-3
        )
        assert row["within_10_ms_pct"] == pytest.approx(
            100 * sum(t <= 10**7 for t in times) / len(times), abs=1e-3
        )
        median = sorted(times)[(len(times) + 1) // 2 - 1]
        assert row["p50_ns"] <= median <= row["p50_ns"] * 1.01
    distribution = tables["interarrival_distribution"].rows
    assert distribution[-1][2] == 1.0
    assert sum(row[1] for row in distribution) == len(everything)


@Both
def test_message_types_and_symbols(which: str, request: pytest.FixtureRequest) -> None:
    tables, whole = request.getfixturevalue(which)
    first = whole.packets if which == "iex" else whole.of_line(line_of("A"))
    types = collections.Counter((e.service, kind) for e in first for kind, _, _ in e.messages)
    assert sorted(row[2] for row in tables["message_types"].rows) == sorted(types.values())
    symbols = collections.Counter(
        (e.service, symbol) for e in first for _, symbol, _ in e.messages if symbol is not None
    )
    busiest = [row[2] for row in tables["symbols"].rows]
    assert busiest == sorted(symbols.values(), reverse=True)[: len(busiest)]
    assert tables["concentration"].rows[0][1] == len(symbols)


def test_gaps_of_each_line_and_of_both(session: tuple[dict[str, Table], Independent]) -> None:
    tables, whole = session
    rows = {(row["service"], row["line"]): row for row in rows_of(tables["gaps"])}
    services = {each.service for each in whole.packets if not is_refresh(each)}
    assert len(rows) == 3 * len(services)
    for service in services:
        sets = {}
        for letter in "AB":
            sets[letter] = {
                each.number
                for each in whole.of_line(line_of(letter))
                if each.service == service and each.kind != "heartbeat"
            }
        sets["all lines"] = sets["A"] | sets["B"]
        span = range(min(sets["all lines"]), max(sets["all lines"]) + 1)
        for name, numbers in sets.items():
            missing = [number for number in span if number not in numbers]
            begins = [number for number in missing if number - 1 not in missing]
            row = rows[service, name]
            assert [row["numbers"], row["missing"], row["gaps"]] == [
                len(numbers), len(missing), len(begins)
            ]  # fmt: skip


def test_skew_between_the_lines(session: tuple[dict[str, Table], Independent]) -> None:
    tables, whole = session
    waiting: dict[tuple[int, int], Seen] = {}
    apart: dict[tuple[int, str, str], list[int]] = collections.defaultdict(list)
    letters = {line_of("A"): "A", line_of("B"): "B"}
    for each in whole.packets:
        if is_refresh(each) or each.kind != "data":
            continue
        before = waiting.pop((each.service, each.number), None)
        if before is None:
            waiting[each.service, each.number] = each
        else:
            sides = (letters[before.line], letters[each.line])
            apart[(each.service, *sides)].append(each.time_ns - before.time_ns)
    rows = {(r["service"], r["first"], r["later"]): r for r in rows_of(tables["skew"])}
    assert {key: len(times) for key, times in apart.items()} == {
        key: row["packets"] for key, row in rows.items()
    }
    for key, times in apart.items():
        longest = rows[key]["longest_ns"]
        assert longest <= max(times) <= longest * 1.01


def test_datagrams_that_are_not_of_the_feed_are_told(
    session: tuple[dict[str, Table], Independent],
) -> None:
    tables, _ = session
    assert (
        tables["left_out"].rows[0][0] == "the header's length differs from the size of the datagram"
    )


def test_nothing_gives_tables_without_rows() -> None:
    tables = Tables(Outcome(Digest(), []), load_feed("iex-deep"), "UTC").all()
    filled = {each.name for each in tables if each.rows}
    assert filled == {"services", "figures", "concentration"}
    assert all(each.columns and each.title for each in tables)


def test_buckets_are_within_one_percent_and_meet_each_other() -> None:
    edges = lower_bounds().tolist()
    assert len(edges) == BUCKETS
    for bucket, edge in enumerate(edges):
        assert bucket_of(edge) == bucket
        if bucket:
            assert bucket_of(edge - 1) == bucket - 1
            assert bucket < 256 or edge - edges[bucket - 1] <= edges[bucket - 1] / 100
    assert bucket_of(2**62) == BUCKETS - 1
    assert OPENING_NS % 10**9 == 0
