"""Generated sessions: every table is what the generator's ledger says, and profiles come back."""

import json
from pathlib import Path
from typing import Any

import pytest

from feedhandler.characterise.digest import Digest
from feedhandler.characterise.job import Outcome, Request, characterise
from feedhandler.characterise.measured_profile import profile_of
from feedhandler.characterise.tables import Table, Tables
from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.ops import characterise as ops
from feedhandler.replay.generating.profile import load_profile
from feedhandler.replay.generating.tape import CHANNELS
from feedhandler.replay.generating.traffic import Traffic
from feedhandler.replay.generating.traffic_capture import ledger_path, write_capture
from tests.support.characterise import Seen, utp_packet
from tests.support.characterise_by_hand import hold, tables_by_hand

FEED = load_feed("euronext-utp-md")


def session() -> Traffic:
    """Return the traffic that is generated here, the same at each call."""
    return Traffic(load_profile("market"), 7, rate_mbps=10.0, duration_s=3, loss=(0.01, 0.01))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, dict[str, Any], Path]:
    path = tmp_path_factory.mktemp("day") / "market.pcap"
    write_capture(session(), path)
    outcome = characterise([str(path)], Request("euronext-utp-md"), slice_size=300_000)
    return Tables(outcome, FEED, "Europe/Lisbon"), ledger_of(path), path


def ledger_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(ledger_path(path).read_text()))


def rows_of(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def generators_own(traffic: Traffic) -> list[Seen]:
    """The packets that the generator says arrive, in time: from the columns that it writes about
    each packet (its times on both lines, which of them lost it), not from the capture."""
    names = ("offset", "length", "channel", "lost", "time_a_ns", "time_b_ns")
    found = []
    for block in traffic.blocks():
        columns = [block.columns[name].tolist() for name in names]
        for at, length, channel, lost, *times_ns in zip(*columns, strict=True):
            payload = block.data[at : at + length].tobytes()
            for number, time_ns in enumerate(times_ns):
                if lost >> number & 1:
                    continue
                group, port = traffic.destinations[channel + number * CHANNELS]
                line = (bytes(int(part) for part in group.split(".")), port)
                on_file = max(length + 42, 60) + 16
                seen = utp_packet(time_ns + traffic.midnight_ns, line, payload, on_file)
                assert seen is not None
                found.append(seen)
    return sorted(found, key=lambda each: each.time_ns)


def test_every_table_is_what_the_generator_s_own_account_of_its_packets_gives(
    generated: tuple[Tables, dict[str, Any], Path],
) -> None:
    tables, _, _ = generated
    by_hand = tables_by_hand(generators_own(session()), FEED, "Europe/Lisbon")
    ours = {each.name: each.rows for each in tables.all()}
    assert ours.pop("left_out") == []
    assert ours.pop("files")[0][3] == ours["services"][-1][1]
    assert ours.keys() == by_hand.keys()
    for name, rows in ours.items():
        hold(name, rows, by_hand[name])


def test_the_ledger_says_the_same_of_services_minutes_and_peaks(
    generated: tuple[Tables, dict[str, Any], Path],
) -> None:
    tables, ledger, _ = generated
    services = {row["service"]: row for row in rows_of(tables.services())}
    for name, entry in ledger["services"].items():
        row = services[name]
        assert [row["packets"], row["payload_bytes"], row["file_bytes"]] == [
            entry["packets"],
            entry["payload_bytes"],
            entry["counted_bytes"],
        ]
    figures = dict(tables.prose().rows)
    for mine, theirs in [
        ("packets", "packets"),
        ("messages", "messages"),
        ("payload_bytes", "payload_bytes"),
        ("file_bytes", "counted_bytes"),
    ]:
        assert figures[mine] == ledger[theirs]
    for mine, theirs in [
        ("mean_packet_bytes_udp_payload", "mean_payload_bytes"),
        ("mean_message_bytes", "mean_message_bytes"),
        ("mean_messages_per_packet", "mean_messages"),
    ]:
        assert figures[mine] == pytest.approx(ledger[theirs], abs=1e-4)
    for name, table in [("packets", "packet_peaks"), ("counted_bytes", "byte_peaks")]:
        found = next(each for each in tables.all() if each.name == table)
        expected = [
            [peak["at"], peak["packets"], peak["counted_bytes"]] for peak in ledger["peaks"][name]
        ]
        ours = [[row[0].partition(" ")[2], *row[1:3]] for row in found.rows]
        assert ours == expected[: len(ours)]
    minutes = ledger["minutes"]
    whole = [sum(each) for each in zip(*minutes["packets"].values(), strict=True)]
    assert [row["packets"] for row in rows_of(tables.minutes())] == [n for n in whole if n]


def test_the_ledger_says_the_same_of_repeats_and_lines(
    generated: tuple[Tables, dict[str, Any], Path],
) -> None:
    tables, ledger, _ = generated
    whole, repeats = tables.whole_interarrival(), ledger["repeats"]
    assert [whole.count, whole.within_1ms, whole.within_10ms] == [
        repeats["repeats"],
        repeats["within_1_ms"],
        repeats["within_10_ms"],
    ]
    gaps = rows_of(tables.gaps())
    lost = {line: sum(r["missing"] for r in gaps if r["line"] == line) for line in "AB"}
    # The ledger counts the few lost refresh packets too.
    for line, name in (("A", "lost_a"), ("B", "lost_b")):
        assert 0 < lost[line] <= ledger["lines"][name] <= lost[line] + 20
    numbers = {line: sum(r["numbers"] for r in gaps if r["line"] == line) for line in "AB"}
    unique = sum(row["numbers"] for row in gaps if row["line"] == "all lines")
    pairs = sum(row["packets"] for row in rows_of(tables.skew()))
    resets = len({line.service for line in tables.lines})
    assert pairs + resets == numbers["A"] + numbers["B"] - unique
    longest = max(row["longest_ns"] for row in rows_of(tables.skew()))
    assert longest <= ledger["skew"]["most_ns"] * 1.01


@pytest.mark.usefixtures("without_figures")
def test_a_profile_that_was_measured_generates_a_session_like_it(
    generated: tuple[Tables, dict[str, Any], Path], tmp_path: Path
) -> None:
    tables, _, path = generated
    target = tmp_path / "ours.json"
    asked = ops.Options(
        captures=(str(path),),
        feed="euronext-utp-md",
        out=tmp_path / "out",
        zone="Europe/Lisbon",
        master="none",
        profile=target,
    )
    assert ops.run(asked) == 0
    profile = load_profile(target)
    assert profile == profile_of(tables, "ours")
    assert profile.rate_mbps == pytest.approx(10.0, rel=0.05)
    whole = tables.whole_interarrival()
    assert profile.repeats.within_1_ms == pytest.approx(whole.within_1ms / whole.count, abs=1e-4)
    again = tmp_path / "again.pcap"
    write_capture(Traffic(profile, 8, duration_s=2), again)
    outcome = characterise([str(again)], Request("euronext-utp-md"))
    figures = dict(Tables(outcome, FEED, "UTC").prose().rows)
    before = dict(tables.prose().rows)
    # The opening, which every session has, weighs more the shorter it is.
    for name in ("mean_packet_bytes_udp_payload", "mean_messages_per_packet"):
        assert figures[name] == pytest.approx(before[name], rel=0.5)


def test_profiles_are_of_the_feed_that_can_be_generated() -> None:
    nothing = Outcome(Digest(), [])
    with pytest.raises(UsageError, match="sessions of iex-deep cannot be generated"):
        profile_of(Tables(nothing, load_feed("iex-deep"), "UTC"), "ours")
    with pytest.raises(UsageError, match="nothing of the feed was read"):
        profile_of(Tables(nothing, FEED, "UTC"), "ours")
