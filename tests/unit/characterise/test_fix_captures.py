"""Captures of FIX channels: headers, what a session looks like, and what is refused."""

import csv
import json
import random
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import databento_dbn
import numpy as np
import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.characterise import tally as compiled_tally
from feedhandler.characterise.digest import Digest
from feedhandler.characterise.tally import TOTALS
from feedhandler.cli import app as cli
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import MBO
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.fixcast.exchange_plan import symbols_of
from feedhandler.market.stream_market import Market
from feedhandler.replay.captures import packet_headers as compiled_headers
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.generating.fix_market import FixMarket
from feedhandler.terminal.console import ExitCode, run_guarded
from tests.support.characterise import TWIN
from tests.support.fix_messages import sealed
from tests.support.fix_readers import our_messages
from tests.support.fix_translation import MS, Wire

FEED = load_feed("fix-marketdata")
#: 2026-01-05 09:00:00 UTC.
OPENING_NS = 1_767_603_600_000_000_000
GROUPS, PORT = ("239.101.7.1", "239.101.7.2"), 30_107
HEADERS = {
    "compiled": compiled_headers,
    "interpreted": load_interpreted("feedhandler.replay.captures.packet_headers"),
}
TALLIES = {
    "compiled": SimpleNamespace(Tally=compiled_tally.Tally, table=FEED.table),
    "interpreted": SimpleNamespace(Tally=TWIN.tally.Tally, table=FEED.table_of(TWIN.scanner)),
}


def message(number: int, symbol: str = "ABC") -> bytes:
    return sealed(b"35=X|34=%d|268=1|279=0|269=0|55=%b|270=1|" % (number, symbol.encode()))


def admin(type: bytes, number: int, more: bytes = b"") -> bytes:
    return sealed(b"35=%b|34=%d|%b" % (type, number, more))


BEACON = sealed(b"35=UB|49=PUB|")
#: Datagrams, and of each its kind, its first number and the number after its last.
DATAGRAMS = [
    (admin(b"A", 1, b"141=Y|108=1|"), PacketKind.RESET, 1, 1),
    (message(1) + message(2), PacketKind.DATA, 1, 3),
    (message(3) + admin(b"0", 4), PacketKind.DATA, 3, 4),
    (admin(b"0", 4) + message(4) + message(5), PacketKind.DATA, 4, 6),
    (message(6) + message(9), PacketKind.DATA, 6, 10),
    (admin(b"0", 10), PacketKind.HEARTBEAT, 10, 10),
    (admin(b"4", 10, b"123=Y|36=20|"), PacketKind.SKIP, 10, 20),
    (message(20) + BEACON + message(21) + admin(b"5", 22), PacketKind.DATA, 20, 22),
]  # fmt: skip
WRONG = [message(1)[:-2], message(1) + b"8=FIX", b"no FIX at all", b""]


def columns(payloads: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The payloads one behind the other, with offsets and lengths."""
    length = np.array([len(each) for each in payloads], np.uint32)
    offset = (np.cumsum(length) - length).astype(np.uint32)
    return np.frombuffer(b"".join(payloads), np.uint8), offset, length


@pytest.mark.parametrize("twin", HEADERS)
def test_a_datagram_of_several_runs_has_one_row_of_headers(twin: str) -> None:
    module: ModuleType = HEADERS[twin]
    payloads = [each[0] for each in DATAGRAMS] + WRONG
    found = module.read_headers(FEED.table, *columns(payloads))
    rows = zip(found.kind, found.sequence, found.next_sequence, strict=True)
    expected = [(kind, first, after) for _, kind, first, after in DATAGRAMS]
    assert [tuple(map(int, row)) for row in rows][: len(DATAGRAMS)] == expected
    verdicts = found.verdict.tolist()
    assert set(verdicts[: len(DATAGRAMS)]) == {Reject.FINE}
    assert Reject.FINE not in verdicts[len(DATAGRAMS) :]


def tallied(twin: str, payloads: list[bytes]) -> Any:
    """A tally that was given these payloads on one line."""
    made = TALLIES[twin].Tally(TALLIES[twin].table)
    data, offset, length = columns(payloads)
    count = len(payloads)
    times = OPENING_NS + np.arange(count, dtype=np.int64) * MS
    group, port = np.full(count, 0xEF650701, np.uint32), np.full(count, PORT, np.uint16)
    made.count(data, offset, length, length + 42, times, group, port)
    return made


@pytest.mark.parametrize("twin", TALLIES)
def test_a_tally_counts_runs_messages_and_numbers(twin: str) -> None:
    payloads = [each[0] for each in DATAGRAMS]
    digest = Digest()
    digest.add(tallied(twin, [*payloads, *WRONG]).columns())
    totals = dict(zip(TOTALS, digest.totals.sum(axis=0).tolist(), strict=True))
    kinds = ("packets", "data", "heartbeats", "resets", "controls", "messages", "broken")
    assert [totals[name] for name in kinds] == [15, 8, 4, 1, 2, 10, 0]
    # Of a wrong datagram what stands before the fault is counted.
    assert totals["payload_bytes"] == sum(map(len, payloads)) + len(message(1))
    assert totals["file_bytes"] == sum(len(each) + 42 + 16 for each in (*payloads, WRONG[1]))
    ((epoch, found),) = digest.runs()[0].items()
    assert (epoch, found.tolist()) == (0, [[1, 7], [9, 22], [1, 2]])


@pytest.mark.parametrize("twin", TALLIES)
def test_datagrams_may_hold_more_runs_of_numbers_than_there_is_room_for_at_first(
    twin: str,
) -> None:
    """No number follows the one before it: a sender that leaves numbers out, say."""
    numbers = range(2, 12_002, 2)
    digest = Digest()
    digest.add(tallied(twin, [b"".join(map(message, numbers))]).columns())
    ((_, found),) = digest.runs()[0].items()
    assert found.tolist() == [[number, number + 1] for number in numbers]


def mutated(rng: random.Random) -> list[bytes]:
    """Datagrams of a session with bytes changed, cut, doubled or put together."""
    sent = [*session(), *(each[0] for each in DATAGRAMS)]
    found = []
    for each in rng.choices(sent, k=300):
        data = bytearray(each)
        kind = rng.randrange(5)
        if kind == 0:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif kind == 1:
            del data[rng.randrange(len(data)) :]
        elif kind == 2:
            data += rng.choice(sent)
        elif kind == 3:
            at = rng.randrange(len(data))
            data[at:at] = data[at : at + rng.randrange(40)]
        found.append(bytes(data))
    return found


def test_both_twins_count_mutated_datagrams_alike(seed: int) -> None:
    payloads = mutated(random.Random(seed))
    ours, theirs = (tallied(twin, payloads).columns() for twin in TALLIES)
    assert ours.keys() == theirs.keys()
    for name, column in ours.items():
        np.testing.assert_array_equal(column, theirs[name], name)
    assert ours["foreign"].sum() > 10
    found = [module.read_headers(FEED.table, *columns(payloads)) for module in HEADERS.values()]
    for name in ("verdict", "kind", "sequence", "next_sequence", "service"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name), name)


def session() -> list[bytes]:
    """The datagrams of a session of a simulated market, a GapFill in the middle."""
    wire, market = Wire(), FixMarket(3, symbols_of(1)[:8])
    list(wire.publish(market.next_message(OPENING_NS) for _ in range(200)))
    list(wire.end_period())
    wire.sender.skip(wire.sender.session.next + 50, wire.now_ns)
    list(wire.publish(market.next_message(OPENING_NS) for _ in range(100)))
    list(wire.end())
    return wire.datagrams


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "fix.pcap"
    with CaptureWriter(path) as writer:
        for number, datagram in enumerate(session()):
            for group in GROUPS:
                writer.write(OPENING_NS + number * MS, group, PORT, datagram)
    return path


def run(*words: object) -> int:
    return run_guarded(cli.chosen([str(word) for word in words]))


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("arbitrated", [False, True])
def test_a_session_is_characterised(capture: Path, tmp_path: Path, arbitrated: bool) -> None:
    out = tmp_path / "day"
    words = ["characterise", capture, "--feed", FEED.name, "--out", out, "--master", "none"]
    assert run(*words, *(["--arbitrated"] if arbitrated else [])) == ExitCode.OK
    sent = [each for datagram in session() for each in our_messages(datagram)]
    data = [each for each in sent if b"\x0135=X\x01" in each or b"\x0135=W\x01" in each]
    types = Counter(each.split(b"\x01")[2][3:].decode() for each in data)
    rows = {row["type"].split()[0]: row for row in table(out, "message_types")}
    assert {name: int(row["messages"]) for name, row in rows.items()} == types
    assert rows["X"]["type"] == "X market_data_incremental_refresh"
    for name in types:
        size = sum(len(each) for each in data if b"\x0135=%b\x01" % name.encode() in each)
        assert int(rows[name]["bytes"]) == size
    symbols = Counter(each.split(b"\x0155=")[1].split(b"\x01")[0].decode() for each in data)
    assert {r["symbol"]: int(r["messages"]) for r in table(out, "symbols")} == symbols
    figures = {row["figure"]: row["value"] for row in table(out, "figures")}
    assert int(figures["messages"]) == len(data) * (1 if arbitrated else 2)
    assert "messages_of_unknown_types" not in figures
    assert {row["missing"] for row in table(out, "gaps")} == {"0"}


def test_messages_are_decoded_by_type_and_symbol(
    capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["decode", capture, "--feed", FEED.name, "--types", "W", "--symbol", "EQ1003"]
    assert run(*words, "--limit", "1") == ExitCode.OK
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[2:5] == ["3", "W", "market_data_snapshot"]
    assert "EQ1003" in line


def test_numbers_choose_what_is_played(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["replay", capture, "--as-recorded", "--dry-run", "--feed", FEED.name, "--json"]
    assert run(*words, "--sequence", "260-") == ExitCode.OK
    chosen = json.loads(capsys.readouterr().out)
    assert run(*words) == ExitCode.OK
    everything = json.loads(capsys.readouterr().out)
    assert everything["left_out"] == {}
    datagrams = session()
    wanted = [each for each in datagrams if numbers_of(each) and max(numbers_of(each)) >= 260]
    assert everything["datagrams"] == 2 * len(datagrams)
    assert chosen["datagrams"] == 2 * len(wanted) < everything["datagrams"]


def numbers_of(datagram: bytes) -> list[int]:
    """The numbers of its application messages."""
    return [
        int(each.split(b"\x0134=")[1].split(b"\x01")[0])
        for each in our_messages(datagram)
        if each.split(b"\x01")[2] in (b"35=X", b"35=W")
    ]


def test_records_of_a_capture_are_read_by_the_library_of_their_format(
    capture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "records.dbn"
    assert (
        run("decode", capture, "--feed", FEED.name, "--as", "mbo", "--format", "dbn", "--out", out)
        == 0
    )
    decoder = databento_dbn.DBNDecoder()
    decoder.write(out.read_bytes())
    metadata, *records = decoder.decode()
    assert sorted(metadata.symbols) == sorted(symbols_of(1)[:8])
    read = numpy_records(records)
    whole, of_records = Market(FEED), Market(FEED)
    for datagram in session():
        whole.apply(datagram)
    names = {number: name for name, number in whole.instruments().items()}
    message = SimpleNamespace(content="records", service=1, records=lambda: read, symbols=names)
    of_records.update(message)
    assert len(whole.books) == len(of_records.books) == 8
    for name, book in whole.books.items():
        for side in ("bids", "asks"):
            levels = getattr(book, side).top(100)
            assert levels
            assert getattr(of_records.books[name], side).top(100) == levels
    assert dict(whole.trades) == dict(of_records.trades) != {}


def numpy_records(records: list[Any]) -> np.ndarray:
    """Return records of the format's own library as an array."""
    found = np.zeros(len(records), MBO)
    for row, each in zip(found, records, strict=True):
        for name in ("instrument_id", "order_id", "price", "size", "flags", "ts_event"):
            row[name] = int(getattr(each, name))
        row["action"], row["side"] = str(each.action).encode(), str(each.side).encode()
    return found
