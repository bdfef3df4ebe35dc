"""Channels of a feed whose packets name no service: guessed, shown, and used by every table."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from feedhandler.characterise import report
from feedhandler.characterise.arbitrated import arbitrated_tables, characterise_arbitrated
from feedhandler.characterise.channels import SAMPLES_MAX, Samples, _chosen, parse_channel_map
from feedhandler.characterise.job import Outcome, Request, characterise
from feedhandler.characterise.lake import fill_lake, outcome_of
from feedhandler.characterise.tables import Table, tables_of
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import ConfigError
from feedhandler.replay.captures.reading import Capture
from feedhandler.terminal.console import ExitCode
from tests.support.channels import (
    A1,
    A2,
    B1,
    LINES,
    NYSE,
    START_NS,
    UNKNOWN_TYPE,
    Row,
    rows_of,
    write_rows,
)
from tests.support.commands import run_here

UTP = load_feed("euronext-utp-md")


def by_name(tables: Sequence[Table]) -> dict[str, list[list[Any]]]:
    return {each.name: each.rows for each in tables}


def tables_by_name(outcome: Outcome) -> dict[str, list[list[Any]]]:
    return by_name(tables_of(outcome, NYSE, "UTC"))


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("nyse") / "two.pcap", rows_of())


@pytest.fixture(scope="module")
def found(capture: str) -> dict[str, list[list[Any]]]:
    return tables_by_name(characterise([capture], Request(NYSE.name)))


ONE, TWO = "233.75.215.1:50001", "233.75.215.2:50002"


def test_two_lossless_channels_are_two_of_two_lines_each(
    found: dict[str, list[list[Any]]],
) -> None:
    assert found["channels"] == [
        [ONE, "A", ONE],
        [ONE, "B", "233.75.215.65:50001"],
        [TWO, "A", TWO],
        [TWO, "B", "233.75.215.66:50002"],
    ]
    figures = dict(found["figures"])
    assert figures["unique_messages"] == 2 * 1_000
    assert figures["received_again_pct"] == 50.0
    assert [row[0] for row in found["services"]] == ["realtime", ONE, TWO, "refresh", "total"]
    assert [row[1] for row in found["services"]] == [1_600, 800, 800, 0, 1_600]
    assert [row[:5] for row in found["gaps"]] == [
        [channel, line, 1_000, 0, 0] for channel in (ONE, TWO) for line in ("A", "B", "all lines")
    ]
    assert [row[:4] for row in found["skew"]] == [[ONE, "A", "B", 400], [TWO, "A", "B", 400]]
    assert {row[4] for row in found["skew"]} == {4_992}  # the lower edge of 5 us' bucket
    assert {row[0] for row in found["minutes_by_service"][:1]} == {"2023-11-14 22:13"}
    repeats = {(row[0], row[1]): row[2] for row in found["interarrival"]}
    assert repeats[ONE, "all"] == repeats[TWO, "all"] == 980 - 3
    assert {(row[0], row[1]) for row in found["symbols"]} == {
        (channel, str(10 * number + n))
        for channel, number in ((ONE, 1), (TWO, 2))
        for n in range(3)
    }


def test_types_without_a_description_count_as_unknown(found: dict[str, list[list[Any]]]) -> None:
    mine = [row[:3] for row in found["message_types"] if "unknown" in row[1]]
    assert mine == [[channel, f"{UNKNOWN_TYPE} (unknown)", 20] for channel in (ONE, TWO)]
    assert dict(found["figures"])["messages_of_unknown_types"] == 4 * 20


def test_slices_and_the_lake_give_the_same_tables(
    capture: str, found: dict[str, list[list[Any]]], tmp_path: Path
) -> None:
    sliced = tables_by_name(characterise([capture], Request(NYSE.name), slice_size=5_000))
    # Each line recorded into a file of its own: only all of them together tell the channels.
    files = [
        write_rows(tmp_path / f"{number}.pcap", [row for row in rows_of() if row[1] == line])
        for number, line in enumerate(LINES)
    ]
    lake = tmp_path / "lake"
    for _ in fill_lake(files, NYSE.name, lake):
        pass
    from_lake, apart = (
        tables_by_name(outcome_of(lake, NYSE.name)),
        tables_by_name(characterise(files, Request(NYSE.name))),
    )
    assert sliced.pop("files")[0][6] > 5
    for name, rows in sliced.items():
        assert rows == found[name], name
        if name not in ("bursts", "peaks"):
            assert from_lake[name] == rows == apart[name], name


def essence(tables: dict[str, list[list[Any]]], channel: str | int) -> list[Any]:
    """Return what the tables tell of one channel, without its name and shares of the whole."""
    packets = [row[1:2] + row[3:4] for row in tables["services"] if row[0] == str(channel)]
    gaps = [row[1:] for row in tables["gaps"] if row[0] == channel]
    types = [(row[1], row[2], row[4]) for row in tables["message_types"] if row[0] == channel]
    return [packets, gaps, types, [row[1:] for row in tables["skew"] if row[0] == channel]]


def test_the_arbitrated_stream_of_each_channel_is_its_own(tmp_path: Path) -> None:
    rows = rows_of(loss=0.05)
    path = write_rows(tmp_path / "lossy.pcap", rows)
    # The oracle: each channel's capture for itself.
    alone = {}
    for name, number in ((ONE, 1), (TWO, 2)):
        mine = [row for row in rows if LINES[row[1]] == number]
        own = characterise_arbitrated([write_rows(tmp_path / "own.pcap", mine)], Request(NYSE.name))
        alone[name] = essence(by_name(arbitrated_tables(own, NYSE, "UTC")), 0)
    for slice_size in (None, 4_000):
        outcome = characterise_arbitrated([path], Request(NYSE.name), slice_size=slice_size)
        tables = by_name(arbitrated_tables(outcome, NYSE, "UTC"))
        assert {name: essence(tables, name) for name in alone} == alone


def test_one_channel_is_the_service_0_that_it_always_was(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "one.pcap", rows_of({A1: 1, B1: 1}))
    tables = tables_by_name(characterise([path], Request(NYSE.name)))
    assert "channels" not in tables
    assert [row[:2] for row in tables["gaps"]] == [[0, "A"], [0, "B"], [0, "all lines"]]
    assert [row[0] for row in tables["services"]] == ["realtime", "0", "refresh", "total"]


MAP = """
[[channel]]
name = "tape B"
[[channel.line]]
name = "second"
group = "233.75.215.66"
port = 50002
[[channel.line]]
name = "first"
group = "233.75.215.2"
port = 50002
[[channel]]
service = 1
[[channel.line]]
name = "A"
group = "233.75.215.1"
port = 50001
"""


def test_a_map_says_what_is_a_channel_and_how_lines_are_called(capture: str) -> None:
    channels = parse_channel_map(MAP, "map.toml", by_service=False)
    tables = tables_by_name(characterise([capture], Request(NYSE.name, channels=channels)))
    assert tables["channels"] == [
        ["tape B", "second", "233.75.215.66:50002"],
        ["tape B", "first", TWO],
        ["1", "A", ONE],
        ["233.75.215.65:50001", "A", "233.75.215.65:50001"],
    ]
    assert [row[:4] for row in tables["skew"]] == [["tape B", "first", "second", 400]]


def test_the_gateways_configuration_is_a_map() -> None:
    text = Path("docs/gateway.toml").read_text()
    assert parse_channel_map(text, "gateway.toml", by_service=False).names


def test_where_packets_name_their_service_a_map_names_the_lines_only(tmp_path: Path) -> None:
    packet = UTP.encode_packet(service=7, sequence=1, body=b"", count=0, kind="heartbeat")
    rows = [(START_NS, A1, packet), (START_NS, B1, packet), (START_NS, A2, packet)]
    path = write_rows(tmp_path / "utp.pcap", rows)
    text = MAP.replace("233.75.215.66", "233.75.215.65").replace("50002", "50001", 1)
    channels = parse_channel_map(text, "map.toml", by_service=True)
    outcome = characterise([path], Request(UTP.name, channels=channels))
    tables = by_name(tables_of(outcome, UTP, "UTC"))
    assert [row[0] for row in tables["services"]] == ["realtime", "7", "refresh", "total"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("channel = 3", "map.toml is no channel map: Expected `array`"),
        ("[[channel", "map.toml is no channel map"),
        (MAP.replace('name = "tape B"\n', ""), "channel 1 has no name"),
        (MAP.replace('name = "tape B"', "service = 1"), "two channels are called 1"),
        (MAP.replace("233.75.215.1", "233.75.215.2").replace("50001", "50002"), "of two channels"),
        (MAP.replace("233.75.215.1", "here"), "'here' is no IPv4 address"),
        (MAP.replace("50001", "70000"), "Expected `int` <= 65535"),
    ],
)
def test_a_map_that_says_nothing_clear_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse_channel_map(text, "map.toml", by_service=False)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def batches(path: str) -> Iterator[Any]:
    return Capture(path).batches()


def changed(rows: Sequence[Row], line: tuple[str, int], later_ns: int, byte: int) -> list[Row]:
    """The rows with those of a line later, and their last byte another one."""
    return [
        (at_ns + later_ns, its, packet[:-1] + bytes([packet[-1] ^ byte]))
        if its == line
        else (at_ns, its, packet)
        for at_ns, its, packet in rows
    ]


@pytest.mark.parametrize(
    ("later_ns", "byte", "channels"),
    [(0, 0, 1), (9 * 10**9, 0, 1), (11 * 10**9, 0, 2), (0, 1, 2)],
    ids=["copies", "near in time", "far apart in time", "other bytes"],
)
def test_lines_of_one_channel_bring_the_same_bytes_at_about_the_same_time(
    tmp_path: Path, later_ns: int, byte: int, channels: int
) -> None:
    rows = changed(rows_of({A1: 1, B1: 1}, packets=40), B1, later_ns, byte)
    samples = Samples()
    for batch in batches(write_rows(tmp_path / "x.pcap", rows)):
        samples.add(NYSE.table, batch)
    guessed = samples.guess()
    assert guessed is not None
    assert len(set(guessed.firsts.values())) == channels


def test_lines_whose_recordings_overlap_little_are_found_by_bounded_samples(
    tmp_path: Path,
) -> None:
    rows = rows_of({A1: 1, B1: 1}, packets=4 * SAMPLES_MAX)
    half = START_NS + 2 * SAMPLES_MAX * 1_000_000
    early = [row for row in rows if row[1] == A1 and row[0] < half + 300_000_000]
    late = [row for row in rows if row[1] == B1 and row[0] >= half]
    whole = Samples()
    for number, part in enumerate((early, late)):
        samples = Samples()
        for batch in batches(write_rows(tmp_path / f"{number}.pcap", part)):
            samples.add(NYSE.table, batch)
        whole.merge(msgspec.msgpack.decode(msgspec.msgpack.encode(samples), type=Samples))
    assert all(len(each.packets) <= SAMPLES_MAX for each in whole.of.values())
    guessed = whole.guess()
    assert guessed is not None
    assert len(set(guessed.firsts.values())) == 1


def test_the_command_tells_what_it_guessed_and_takes_a_map(
    capture: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "draw", lambda tables: [])  # figures take their time
    out = tmp_path / "out"
    words = [capture, "--feed", NYSE.name, "--out", str(out), "--master", "none"]
    for more in ([], ["--arbitrated"], ["--once"]):
        folder = tmp_path / f"out{len(more)}{''.join(more)}"
        words[4] = str(folder)
        code, _, errors = run_here("characterise", *words, *more)
        assert code == ExitCode.OK
        assert f"2 channels, guessed from their numbers: {ONE} with 233.75.215.65" in errors
        unknown = 40 if "--arbitrated" in more else 80
        assert f"{unknown} messages are of types that nyse-integrated-xdp does not" in errors
        tables = msgspec.json.decode((folder / "session.json").read_bytes())["tables"]
        assert [row[0] for row in tables["channels"]["rows"]] == [ONE, ONE, TWO, TWO]
    (tmp_path / "map.toml").write_text(MAP)
    words[4] = str(tmp_path / "report")
    code, _, errors = run_here("characterise", *words, "--channels", str(tmp_path / "map.toml"))
    assert code == ExitCode.OK
    assert "guessed" not in errors
    code, _, errors = run_here("characterise", *words, "--channels", str(tmp_path / "absent"))
    assert code == ExitCode.USAGE
    assert "absent: no such file" in errors


def test_captures_of_another_feed_end_with_the_name_of_the_one_that_fits(
    capture: str, tmp_path: Path
) -> None:
    packets = [
        UTP.encode_packet(service=7, sequence=n, body=b"", count=0, kind="heartbeat")
        for n in range(1, 21)
    ]
    utp = write_rows(tmp_path / "utp.pcap", [(START_NS, A1, packet) for packet in packets])
    noise = write_rows(tmp_path / "noise.pcap", [(START_NS, A1, b"no feed at all" * 9)] * 5)
    for path, count, hint in (
        (utp, 20, "they fit --feed euronext-utp-md"),
        (capture, 1_600, "they fit --feed nyse-integrated-"),
        (noise, 5, "no built-in feed fits"),
    ):
        out = tmp_path / "out"
        for more in (["--master", "none"], ["--master", "none", "--arbitrated"]):
            words = ("characterise", path, "--feed", "iex-deep", "--out", str(out), *more)
            code, printed, errors = run_here(*words)
            assert (code, printed, out.exists()) == (ExitCode.FOUND, "", False)
            assert f"none of {count:,} datagrams is a packet of iex-deep ({hint}" in errors
            assert errors.count("\n") == 1
        code, printed, errors = run_here("decode", path, "--feed", "iex-deep")
        assert (code, printed) == (ExitCode.FOUND, "")
        assert f"{count:,} datagrams are no iex-deep packets" in errors
        assert hint in errors
        assert errors.count("\n") == 1
    words = ("--feed", UTP.name, "--out", str(out), "--master", "none", "--service", "9")
    code, printed, errors = run_here("characterise", utp, *words)
    assert (code, printed, out.exists()) == (ExitCode.FOUND, "", False), "not what was asked for"
    assert "is a packet of euronext-utp-md and of what was chosen (see --service" in errors
    lake = str(tmp_path / "lake")
    for _ in range(2):  # the second time it is there already
        code, _, errors = run_here("pipeline", utp, "--feed", "iex-deep", "--lake", lake)
        assert code == ExitCode.FOUND
        assert "none of 20 datagrams is a packet of iex-deep (they fit --feed euronext-" in errors
    code, _, errors = run_here("decode", utp, "--types", "999")
    assert code == ExitCode.FOUND
    assert "no message has type 999, which euronext-utp-md does not describe" in errors
    code, _, errors = run_here("decode", utp, "--types", "230")
    assert (code, errors) == (ExitCode.OK, "")


def test_numbers_are_kept_by_their_hash_whatever_else_comes() -> None:
    """Both destinations keep the same numbers, one of which brings a thousandth of them."""
    numbers = np.arange(1, 100_000, dtype=np.uint64)
    kept = set(numbers[_chosen(numbers, 6)].tolist())
    few = numbers[50_000:50_100]
    assert set(few[_chosen(few, 6)].tolist()) == kept & set(few.tolist())
    assert 1_000 < len(kept) < 2_200
