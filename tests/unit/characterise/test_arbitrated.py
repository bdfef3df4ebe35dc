"""The arbitrated stream is what a plain calculation makes of it, however captures are cut."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from feedhandler.characterise import arbitrated, in_order, ranges, reading, report
from feedhandler.characterise.arbitrated import characterise_arbitrated
from feedhandler.characterise.digest import Digest
from feedhandler.characterise.job import Request, characterise
from feedhandler.characterise.tables import tables_of
from feedhandler.characterise.tally import TOTALS
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.histogram import FINE_BUCKETS, fine_bucket_of
from feedhandler.ops import characterise as ops
from feedhandler.replay.captures.reading import COLUMNS, DatagramBatch
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.terminal.console import ExitCode
from tests.support.characterise import (
    FEED,
    LINE_A,
    LINE_B,
    OPENING_NS,
    PORT,
    Independent,
    refresh_packet,
    table_rows,
    write_session,
)

UTP = Request("euronext-utp-md")


class Plain(NamedTuple):
    """A packet of the arbitrated stream, as the plain calculation has it."""

    epoch: int
    number: int
    time_ns: int
    messages: list[tuple[int, Any, int]]
    file_bytes: int


def in_plain_order(packets: dict[int, list[Plain]]) -> dict[int, list[Plain]]:
    return {each: sorted(mine, key=lambda p: (p.epoch, p.number)) for each, mine in packets.items()}


def first_copies(independent: Independent, refresh: set[tuple[bytes, int]]) -> Any:
    """The stream of each service: one dict of numbers, and a sort."""
    came: dict[int, dict[int, Plain]] = defaultdict(dict)
    for each in independent.packets:
        if each.kind == "data" and each.line not in refresh:
            plain = Plain(0, each.number, each.time_ns, each.messages, each.file_bytes)
            came[each.service].setdefault(each.number, plain)
    return in_plain_order({service: list(mine.values()) for service, mine in came.items()})


def assert_is(digest: Digest, streams: dict[int, list[Plain]], note: str) -> None:
    """The digest says of each service what its stream is."""
    services = [channel.service for channel in digest.channels]
    assert sorted(services) == sorted(service for service, mine in streams.items() if mine), note
    for index, service in enumerate(services):
        mine = streams[service]
        packets, _, file_bytes, messages = digest.totals[index, :4].tolist()
        assert packets == len(mine), (note, service)
        assert file_bytes == sum(each.file_bytes for each in mine)
        assert messages == sum(len(each.messages) for each in mine)
        last: dict[Any, int] = {}
        buckets: dict[int, Any] = defaultdict(lambda: np.zeros(FINE_BUCKETS, np.int64))
        backwards: dict[int, int] = defaultdict(int)
        for each in mine:
            for code, symbol, _ in each.messages:
                since = each.time_ns - last.get(symbol, each.time_ns)
                if since < 0:
                    backwards[code] += 1
                elif symbol in last and symbol is not None:
                    buckets[code][fine_bucket_of(since)] += 1
                last[symbol] = each.time_ns
        for (where, code), cell in digest.cells.items():
            if where == index:
                assert (cell.interarrival.buckets == buckets[code]).all(), (note, service, code)
                assert cell.interarrival.backwards == backwards[code], (note, service, code)
    minutes = defaultdict(int)
    for mine in streams.values():
        for each in mine:
            minutes[each.time_ns // 1_000_000] += 1
    buckets = digest.buckets()
    assert dict(zip(buckets[0].tolist(), buckets[1].tolist(), strict=True)) == minutes


def test_a_session_s_arbitrated_stream_is_the_plain_calculation_s(
    tmp_path: Path, seed: int
) -> None:
    path = write_session(tmp_path / "day.pcap", seed, seconds=0.2, loss=0.1, skew_us=3_000)
    independent = Independent(path, UTP.feed)
    # Compressed packets, and with them all that comes on their line.
    refresh = {each.line for each in independent.packets if each.inflated}
    streams = first_copies(independent, refresh)
    whole = characterise_arbitrated([str(path)], UTP)
    assert_is(whole.digest, streams, f"seed {seed}")
    (tmp_path / "day.pcap.gz").write_bytes(gzip.compress(path.read_bytes()))
    zipped = characterise_arbitrated([str(tmp_path / "day.pcap.gz")], UTP)
    assert table_rows(zipped) == table_rows(whole)
    for size in (7_000, 50_000):
        parts = characterise_arbitrated([str(path)], UTP, slice_size=size)
        assert parts.files[0].slices > 3
        assert table_rows(parts) == table_rows(whole), f"seed {seed}, slices of {size} bytes"
    assert len(streams) > 1


def test_tables_of_lines_stay_the_lines_own(tmp_path: Path) -> None:
    path = write_session(tmp_path / "day.pcap", 3, seconds=0.1, loss=0.05)
    found = dict(table_rows(characterise_arbitrated([str(path)], UTP)))
    lines = {t.name: t.rows for t in tables_of(characterise([str(path)], UTP), FEED, "UTC")}
    for name in lines.keys() & arbitrated.OF_LINES:
        assert found[name] == lines[name]
    assert found["skew"]
    packets = {row[0]: row[1] for row in found["services"]}
    numbers = {row[0]: row[2] for row in lines["gaps"] if row[1] == "all lines"}
    # A reset at the beginning has a number and is no part of the stream.
    streams = {int(name): count for name, count in packets.items() if name.isdigit()}
    assert {service: count - 1 for service, count in numbers.items() if count > 1} == streams
    assert packets["refresh"] == 0


# -- any order, any copies, any cut --------------------------------------------------------------

#: (line, service, number, symbol, how much later)
Sent = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(104, 105),
        st.integers(1, 40),
        st.integers(0, 3),
        st.integers(-500_000, 2_000_000),
    ),
    max_size=60,
)


@given(
    sent=Sent,
    size=st.integers(90, 9_000),
    files=st.integers(1, 3),
    batch=st.integers(1, 9),
    held=st.sampled_from([90, 400, in_order.HELD_BYTES_MAX]),
)
def test_whatever_order_packets_come_in_and_wherever_captures_are_cut(
    tmp_path_factory: pytest.TempPathFactory,
    sent: Any,
    size: int,
    files: int,
    batch: int,
    held: int,
) -> None:
    """`batch`: datagrams in one; `held`: bytes that may wait for lower numbers."""
    folder = tmp_path_factory.mktemp("any")
    at_ns, code = OPENING_NS, FEED.layout("trade_cancel").code
    streams: dict[int, dict[int, Plain]] = defaultdict(dict)
    for part in range(files):
        with CaptureWriter(folder / f"{part}.pcap") as writer:
            for line, service, number, symbol, later in sent[part::files]:
                at_ns += later
                messages = [FEED.encode_message("trade_cancel", symbol_index=symbol)]
                packet = FEED.encode_packet(sequence=number, service=service, messages=messages)
                writer.write(at_ns, (LINE_A, LINE_B)[line], PORT, packet)
                plain = Plain(0, number, at_ns, [(code, symbol, 0)], max(60, 42 + len(packet)) + 16)
                streams[service].setdefault(number, plain)
    expected = in_plain_order({service: list(mine.values()) for service, mine in streams.items()})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(in_order, "HELD_BYTES_MAX", held)
        patched.setattr(reading, "BATCH_DATAGRAMS_MAX", batch)
        found = characterise_arbitrated([str(folder)], UTP, slice_size=size)
    assert_is(found.digest, expected, f"{sent}")


def test_a_reset_begins_new_numbers_on_both_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(writer: CaptureWriter, first: int, count: int, at_ns: int) -> None:
        for number in range(first, first + count):
            message = FEED.encode_message("trade_cancel", symbol_index=1)
            packet = FEED.encode_packet(sequence=number, service=104, messages=[message])
            for late, line in enumerate((LINE_A, LINE_B)):
                writer.write(at_ns + number * 1_000 + late * 7, line, PORT, packet)

    with CaptureWriter(tmp_path / "day.pcap") as writer:
        sent(writer, 5_000, 40, OPENING_NS)
        heartbeat = FEED.encode_packet(kind="heartbeat", sequence=2, service=104)
        reset = FEED.encode_packet(kind="reset", sequence=1, service=104, next_sequence=2)
        for line in (LINE_A, LINE_B):
            writer.write(OPENING_NS + 10**8, line, PORT, reset)
            for _ in range(9):
                writer.write(OPENING_NS + 10**8, line, PORT, heartbeat)
        sent(writer, 2, 60, OPENING_NS + 2 * 10**8)
    whole = characterise_arbitrated([str(tmp_path / "day.pcap")], UTP)
    monkeypatch.setattr(reading, "BATCH_DATAGRAMS_MAX", 7)
    assert whole.digest.totals[0, 0] == 100
    (cell,) = whole.digest.cells.values()
    assert (cell.interarrival.count, cell.interarrival.backwards) == (99, 0)
    for size in (200, 1_000, 6_000):
        parts = characterise_arbitrated([str(tmp_path / "day.pcap")], UTP, slice_size=size)
        assert table_rows(parts) == table_rows(whole)


def test_lines_in_files_of_their_own_are_put_in_order_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, line, left_out in (("a", LINE_A, 7), ("b", LINE_B, 11)):
        with CaptureWriter(tmp_path / f"{name}.pcap") as writer:
            for number in range(1, 400):
                if number % left_out:
                    message = FEED.encode_message("trade_cancel", symbol_index=number % 3)
                    packet = FEED.encode_packet(sequence=number, service=104, messages=[message])
                    writer.write(OPENING_NS + number * 10**6, line, PORT, packet)
    found = characterise_arbitrated([str(tmp_path)], UTP)
    assert found.digest.totals[0, 0] == sum(bool(n % 7 or n % 11) for n in range(1, 400))
    assert sum(cell.interarrival.backwards for cell in found.digest.cells.values()) == 0
    monkeypatch.setattr(in_order, "PIECES_MAX", 20)
    with pytest.raises(UsageError, match="service 104: its lines lie too far apart"):
        characterise_arbitrated([str(tmp_path)], UTP)


def test_packets_of_overlapping_numbers_count_where_their_first_is_new() -> None:
    first, after = np.array([1, 3, 2, 5, 5]), np.array([4, 5, 3, 9, 9])
    assert in_order._firsts(first, after).tolist() == [True, False, False, True, False]
    assert in_order._firsts(first[3:], after[3:]).tolist() == [True, False]


@given(*[st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=8)] * 2)
def test_ranges_are_cut_out_of_one_another_as_sets_are(one: Any, other: Any) -> None:
    made = [
        ranges.normal(np.array([(a, a + n) for a, n in each], np.int64).reshape(-1, 2))
        for each in (one, other)
    ]
    sets = [{n for a, b in each.tolist() for n in range(a, b)} for each in made]
    for function, expected in ((ranges.minus, sets[0] - sets[1]), (ranges.both, sets[0] & sets[1])):
        found = function(*made)
        assert [n for a, b in found.tolist() for n in range(a, b)] == sorted(expected)
        assert (found[:, 0] < found[:, 1]).all()
    numbers = np.arange(45)
    assert set(numbers[ranges.within(numbers, made[0])].tolist()) == sets[0]


def test_refresh_lines_are_no_part_of_it(tmp_path: Path) -> None:
    order = FEED.encode_message("trade_cancel", symbol_index=1)
    packets = [FEED.encode_packet(sequence=n, service=104, messages=[order]) for n in range(1, 5)]
    with CaptureWriter(tmp_path / "day.pcap") as writer:
        for number, packet in enumerate(packets):
            writer.write(OPENING_NS + number, "239.1.3.1", PORT, packet)
            writer.write(OPENING_NS + number, "239.1.3.1", PORT, refresh_packet(packet))
            writer.write(OPENING_NS + 10**6 + number, LINE_A, PORT, packet)
    digest = characterise_arbitrated([str(tmp_path / "day.pcap")], UTP).digest
    assert digest.totals[:, 0].tolist() == [4]
    assert digest.totals[0, TOTALS.index("first_ns")] == OPENING_NS + 10**6


def test_the_command_tells_of_the_arbitrated_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "draw", lambda tables: [])
    path = write_session(tmp_path / "day.pcap", 3, seconds=0.05)
    asked = ops.Options(
        captures=(str(path),), feed=UTP.feed, out=tmp_path, master="none", zone="UTC"
    )
    assert ops.run(structs.replace(asked, arbitrated=True)) == ExitCode.OK
    found = json.loads((tmp_path / "session.json").read_text())
    assert found["about"]["of"] == "the arbitrated stream"
    expected = dict(table_rows(characterise_arbitrated([str(path)], UTP)))
    assert {name: found["tables"][name]["rows"] for name in expected} == expected
    for other in ({"exact": True}, {"profile": tmp_path / "x.json"}):
        with pytest.raises(UsageError, match="are of lines"):
            ops.run(structs.replace(asked, arbitrated=True, **other))


@pytest.mark.parametrize("held", [100, 1 << 20])
def test_what_waits_too_long_goes_on_in_tallies_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Numbers far too late, in one slice; foreign datagrams between them."""
    monkeypatch.setattr(in_order, "HELD_BYTES_MAX", held)
    monkeypatch.setattr(reading, "BATCH_DATAGRAMS_MAX", 3)
    numbers = [1, 2, *range(5, 20), 3, *range(30, 40), 4, 20, *range(40, 50), 29, 21]
    with CaptureWriter(tmp_path / "day.pcap") as writer:
        for index, number in enumerate(numbers):
            message = FEED.encode_message("trade_cancel", symbol_index=number % 2)
            packet = FEED.encode_packet(sequence=number, service=104, messages=[message])
            writer.write(OPENING_NS + index * 1_000, LINE_A, PORT, packet)
            for _ in range(3 * (index % 5 == 0)):
                writer.write(OPENING_NS + index * 1_000, LINE_A, PORT, b"nobody's")
    tallies: list[Any] = []
    finish = in_order.InOrder.finish
    monkeypatch.setattr(
        in_order.InOrder, "finish", lambda self: tallies.append(self._tallies) or finish(self)
    )
    found = characterise_arbitrated([str(tmp_path / "day.pcap")], UTP)
    assert (len(tallies[0]) > 3) == (held == 100)
    assert found.digest.totals[0, 0] == len(numbers)
    times = {number: index * 1_000 for index, number in enumerate(numbers)}
    last: dict[int, int] = {}
    expected = []
    for number in sorted(numbers):
        if number % 2 in last:
            expected.append(times[number] - last[number % 2])
        last[number % 2] = times[number]
    (cell,) = found.digest.cells.values()
    buckets = np.zeros(FINE_BUCKETS, np.int64)
    np.add.at(buckets, [fine_bucket_of(since) for since in expected if since >= 0], 1)
    assert (cell.interarrival.buckets == buckets).all()
    assert cell.interarrival.backwards == sum(since < 0 for since in expected)


def test_a_slice_that_brings_less_than_it_did_is_counted_as_it_is() -> None:
    """A file that was changed between the two walks: what waits for the rest waits in vain."""
    wanted = {(104, 0): np.array([[1, 9]], np.int64)}
    plan = in_order.Plan(frozenset({(1, 2)}), {(1, 2, 104): 0}, wanted, {})
    order = in_order.InOrder(FEED.table, plan)
    packets = [FEED.encode_packet(sequence=n, service=104, session=0) for n in (1, 5)]
    length = np.array([len(each) for each in packets], np.uint32)
    columns = {name: np.zeros(2, np.uint32) for name in COLUMNS}
    columns |= {
        "time_ns": np.array([10, 20], np.int64),
        "destination": np.ones(2, np.uint32),
        "destination_port": np.full(2, 2, np.uint16),
        "offset": (np.cumsum(length) - length).astype(np.uint32),
        "length": length,
    }
    order.add(DatagramBatch(np.frombuffer(b"".join(packets), np.uint8), **columns))
    ((service, _, first, found),) = order.finish()
    assert (service, first, found["totals"][0, 0]) == (in_order.MAIN, 1, 2)


def test_sessions_begin_new_numbers_where_the_feed_has_them(tmp_path: Path) -> None:
    iex = load_feed("iex-deep")
    with CaptureWriter(tmp_path / "day.pcap") as writer:
        for session in (7, 8):
            for number in range(1, 30):
                message = iex.encode_message("operational_halt_status", symbol="ABC")
                packet = iex.encode_packet(
                    sequence=number, service=1, session=session, messages=[message]
                )
                for late, line in enumerate((LINE_A, LINE_B)):
                    at_ns = OPENING_NS + session * 10**6 + number * 1_000 + late
                    writer.write(at_ns, line, PORT, packet)
    for size in (None, 500, 2_000):
        found = characterise_arbitrated(
            [str(tmp_path / "day.pcap")], Request("iex-deep"), slice_size=size
        )
        assert found.digest.totals[:, 0].tolist() == [58]
        (cell,) = found.digest.cells.values()
        assert (cell.interarrival.count, cell.interarrival.backwards) == (57, 0)
