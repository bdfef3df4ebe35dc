"""The tables hold what an independent calculation from the same capture gives, to the last packet.

Each is made twice: by the job, and by `characterise_by_hand` out of lists of packets that dpkt and
the standard library read. The captures are the real one of IEX and a generated session that was
given loss, skew, refreshes and strangers.
"""

from pathlib import Path
from typing import Any

import pytest

from feedhandler.characterise.digest import Digest
from feedhandler.characterise.job import Outcome, Request, characterise
from feedhandler.characterise.tables import Tables, tables_of
from feedhandler.codecs import load_feed
from tests.support.characterise import Independent, write_session
from tests.support.characterise_by_hand import hold, tables_by_hand

NAMES = (
    "services", "packet_peaks", "byte_peaks", "figures", "peaks", "bursts", "message_types",
    "symbols", "concentration", "interarrival", "interarrival_distribution", "gaps", "skew",
    "minutes", "minutes_by_service", "left_out", "files",
)  # fmt: skip
#: Why datagrams are left out here.
LENGTH = "the header's length differs from the size of the datagram"

Both = dict[str, tuple[list[list[Any]], list[list[Any]]]]


def both_ways(path: Path, name: str, slice_size: int | None) -> Both:
    """Every table's rows, as the job has them and by hand."""
    feed, zone = load_feed(name), "Europe/Lisbon"
    outcome = characterise([str(path)], Request(name), slice_size=slice_size)
    ours = {each.name: each.rows for each in tables_of(outcome, feed, zone)}
    independent = Independent(path, name)
    by_hand = tables_by_hand(independent.packets, feed, zone)
    foreign = independent.foreign
    by_hand["left_out"] = [[LENGTH, foreign]] if foreign else []
    file, datagrams = outcome.files[0], len(independent.packets) + foreign
    by_hand["files"] = [
        [str(path), file.kind, path.stat().st_size, datagrams, datagrams, "", file.slices,
         file.read_again, "", ""]
    ]  # fmt: skip
    assert ours.keys() == by_hand.keys() == set(NAMES)
    return {table: (rows, by_hand[table]) for table, rows in ours.items()}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Both:
    path = write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=11)
    found = both_ways(path, "euronext-utp-md", 100_000)
    assert found["files"][0][0][6] > 5, "too few slices to say anything of slices"
    return found


@pytest.fixture(scope="module")
def iex(captures: Path) -> Both:
    return both_ways(captures / "iex" / "deep-2023-10-02.pcap.gz", "iex-deep", None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", ["session", "iex"])
def test_a_table_is_what_it_is_by_hand(
    which: str, name: str, request: pytest.FixtureRequest
) -> None:
    ours, by_hand = request.getfixturevalue(which)[name]
    hold(name, ours, by_hand)


def test_the_sessions_have_something_for_every_table(session: Both, iex: Both) -> None:
    assert [name for name, (rows, _) in session.items() if not rows] == []
    assert [name for name, (rows, _) in iex.items() if not rows] == ["skew", "left_out"]
    figures = dict(session["figures"][0])
    assert figures["packets_received_again"] > 100
    assert figures["refresh_packets_pct"] > 0
    assert any(row[4] for row in session["gaps"][0])


def test_nothing_gives_tables_without_rows() -> None:
    tables = Tables(Outcome(Digest(), []), load_feed("iex-deep"), "UTC").all()
    filled = {each.name for each in tables if each.rows}
    assert filled == {"services", "figures", "concentration"}
    assert all(each.columns and each.title for each in tables)
