"""The demo's parts that need no processes: its table, and its verdict over ledgers."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from feedhandler.codecs import load_feed
from feedhandler.config import GatewaySettings
from feedhandler.demo.ledger_client import LedgerClient
from feedhandler.demo.showing import Demo, Options, Verdict, free_port_base, line_texts
from feedhandler.demo.view import PlainView, Rates, Row, milliseconds, table
from feedhandler.gateway import misfit_of
from feedhandler.ops.scenes import SCENES
from feedhandler.replay.exchange.ledger import LedgerWriter, read_ledger
from feedhandler.replay.exchange.ledger_check import CheckReport, Offender, Selection, check
from feedhandler.terminal.console import ExitCode


def snapshot(seconds: float, packets: int, messages: int) -> dict[str, Any]:
    """Return a snapshot of the statistics bus, as far as the table reads it."""
    line = {"won": 60, "duplicates": 40}
    return {
        "time_ns": int(seconds * 1e9),
        "channels": [
            {
                "service": 104,
                "packets": packets,
                "messages": messages,
                "gaps": 2,
                "lines": {"A": line, "B": {**line, "won": 50}, "R": {"won": 7, "duplicates": 0}},
                "latency_ns": {"p50": 240_000, "p99": 1_100_000},
            }
        ],
    }


def test_rates_are_differences_between_snapshots() -> None:
    rates = Rates()
    rates.rows(snapshot(1.0, 100, 500))
    (row,) = rates.rows(snapshot(1.5, 300, 1500))
    assert row == Row(104, 400.0, 2000.0, 240_000, 1_100_000, 60, 50, 7, 80, 2)


def test_the_first_snapshot_has_no_rate_yet() -> None:
    (row,) = Rates().rows(snapshot(1.0, 100, 500))
    assert (row.packets_per_second, row.messages_per_second) == (0, 0)


def test_frozen_rates_stay_while_counters_go_on() -> None:
    rates = Rates()
    rates.rows(snapshot(1.0, 100, 500))
    rates.rows(snapshot(1.5, 300, 1500))
    rates.frozen = True
    later = snapshot(9.0, 300, 1500)
    later["channels"][0]["gaps"] = 7
    (row,) = rates.rows(later)
    assert (row.packets_per_second, row.gaps) == (400.0, 7)


def test_the_table_has_a_row_a_service_and_a_sum() -> None:
    rows = Rates().rows(snapshot(1.0, 100, 500))
    assert table(rows).row_count == len(rows) + 1
    assert milliseconds(240_000) == "0.24 ms"


def test_without_a_terminal_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView(interval_s=0)
    view.show(Rates().rows(snapshot(1.0, 100, 500)))
    view.close()
    assert "service 104: 0 packets/s" in capsys.readouterr().out


def test_a_verdict_counts_over_all_subscribers() -> None:
    reports = {
        "euronext.104": CheckReport(expected=10, ok=9, lost_announced=1, delivered=9),
        "euronext.#": CheckReport(expected=20, ok=20, delivered=20),
    }
    verdict = Verdict(20, reports, 1, 2)
    assert (verdict.delivered, verdict.lost_unannounced, verdict.lost) == (29, 0, 1)
    assert verdict.faults == ["euronext.104: 1 lost, announced, never made good"]


def test_what_a_snapshot_made_good_is_not_lost() -> None:
    reports = {"euronext.104": CheckReport(expected=10, ok=9, refreshed=1, delivered=9)}
    verdict = Verdict(20, reports, 1, 2)
    assert (verdict.lost, verdict.faults) == (0, [])


def test_what_each_line_lost_is_printed() -> None:
    lines = {"A": {"dropped": 3, "datagrams": 1_200, "together": 1}}
    assert list(line_texts(Verdict(10, {}, 1, 2, lines=lines))) == [
        "  line A: 3 of 1,200 datagrams lost, 1 of them on both lines"
    ]


@pytest.mark.parametrize("key", SCENES)
def test_a_scenes_gateway_listens_where_its_exchange_sends(key: str) -> None:
    scene = SCENES[key]
    config = scene.config(12_000, gateway=GatewaySettings(feed=scene.feed))
    assert misfit_of(config, load_feed(scene.feed)) is None
    sent_to = set(scene.groups(12_000))
    assert {(line.group, line.port) for each in config.channels for line in each.lines} <= sent_to
    services = {str(each.service) for each in config.channels}
    assert {pattern.split(".")[1] for _, pattern, _ in scene.subscribers} <= {*services, "#"}


def test_the_last_line_tells_what_was_recovered() -> None:
    demo = Demo(Options(), None)  # type: ignore[arg-type]
    reports = {"euronext.104": CheckReport(expected=10, ok=10, delivered=10)}
    recovery = {"retransmitted": 4120, "requests": 3870, "refreshes": 1, "rejected": 1}
    assert demo._last_line(Verdict(412_345, reports, 240_000, 2_100_000, recovery)) == (
        "demo: 412,345 messages published, 10 delivered, 0 lost, 4,120 retransmitted in 3,870 "
        "requests, 1 refresh, latency p50 0.24 ms p99 2.10 ms"
    )
    assert "0 retransmitted in 0 requests, 0 refreshes" in demo._last_line(Verdict(1, {}, 1, 2))


def test_a_verdict_without_traffic_is_a_fault() -> None:
    verdict = Verdict(0, {"euronext.104": CheckReport()}, 0, 0)
    assert verdict.faults == ["euronext.104: the exchange sent nothing for it"]


def test_a_fault_is_printed_and_makes_the_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = Demo(Options(), None)  # type: ignore[arg-type]
    demo.folder = tmp_path
    demo.subscribers = list(demo._subscribers())
    reports = {each.pattern: CheckReport(expected=9, ok=9) for each in demo.subscribers}
    assert demo._report(Verdict(9, reports, 1, 2)) == ExitCode.OK
    lost = CheckReport(expected=9, ok=8, lost_unannounced=1)
    lost.offenders["lost_unannounced"] = [Offender(104, 7, 0)]
    reports["euronext.104"] = lost
    assert demo._report(Verdict(9, reports, 1, 2)) == ExitCode.FOUND
    captured = capsys.readouterr()
    assert " 1 lost, " in captured.out.splitlines()[-1]
    assert "demo: euronext.104: 1 lost unannounced (service:packet.message 104:7.0)" in captured.err


class FakeMessage:
    """Message with only the attributes that the bookkeeper reads."""

    received_ns = 1

    def __init__(self, content: str, body: bytes = b"", **quality: Any) -> None:
        self.content = content
        self.body = body
        self.service = quality.get("service", 104)
        self.quality = quality or None


UTP = load_feed("euronext-utp-md")


def packet(number: int) -> bytes:
    message = UTP.encode_message(230, symbol_index=10_001, price=number)
    return UTP.encode_packet(sequence=number, service=104, messages=[message])


def test_losses_that_were_announced_are_no_fault(tmp_path: Path) -> None:
    packets = [packet(number) for number in range(2, 8)]
    with LedgerWriter(tmp_path / "sent", UTP) as sent, LedgerWriter(tmp_path / "got", UTP) as got:
        books = LedgerClient(UTP, got)
        start = {"service": 104, "reason": "start", "since": 2, "lost": []}
        gap = {"service": 104, "reason": "gap", "since": 2, "lost": [[4, 5]]}
        books.record(FakeMessage("quality", **start))  # type: ignore[arg-type]
        for each in packets:
            sent.sent(each)
        books.record(FakeMessage("packet", packets[0]))  # type: ignore[arg-type]
        books.record(FakeMessage("packet", packets[1]))  # type: ignore[arg-type]
        books.record(FakeMessage("quality", **gap))  # type: ignore[arg-type]
        books.record(FakeMessage("batch", packets[4] + packets[5]))  # type: ignore[arg-type]
        assert books.received == 4
    ledgers = (read_ledger(tmp_path / name) for name in ("sent", "got"))
    report = check(UTP, *ledgers, Selection("euronext.#"))
    assert report.clean
    assert (report.ok, report.lost_announced, report.lost_unannounced) == (4, 2, 0)


def test_a_snapshot_is_no_delivery_but_makes_good_what_was_announced_lost(tmp_path: Path) -> None:
    packets = [packet(number) for number in range(2, 9)]
    common = {"service": 104, "since": 2}
    with LedgerWriter(tmp_path / "sent", UTP) as sent, LedgerWriter(tmp_path / "got", UTP) as got:
        books = LedgerClient(UTP, got)
        for each in packets:
            sent.sent(each)
        stream = [
            FakeMessage("quality", **common, reason="start"),
            FakeMessage("packet", packets[0]),
            FakeMessage("quality", **common, reason="gap", lost=[[3, 3]]),
            FakeMessage("packet", packets[2]),
            FakeMessage("quality", **common, reason="snapshot-begin", last=4, packets=2),
            FakeMessage("packet", packets[2]),
            FakeMessage("quality", **{**common, "service": 103}, reason="snapshot-end", last=9),
            FakeMessage("batch", packets[3] + packets[4]),
            FakeMessage("quality", **common, reason="snapshot-end", last=4),
            FakeMessage("batch", packets[3] + packets[4]),
            FakeMessage("quality", **common, reason="gap", lost=[[7, 7]]),
            FakeMessage("packet", packets[6]),
        ]
        for message in stream:
            books.record(message)  # type: ignore[arg-type]
    ledgers = (read_ledger(tmp_path / name) for name in ("sent", "got"))
    report = check(UTP, *ledgers, Selection("euronext.#"))
    assert report.clean
    assert (report.ok, report.refreshed, report.lost_announced) == (5, 1, 1)


def test_the_three_subscribers_are_a_service_a_symbol_and_a_pattern(tmp_path: Path) -> None:
    demo = Demo(Options(), None)  # type: ignore[arg-type]
    demo.folder = tmp_path
    patterns = [each.pattern for each in demo._subscribers()]
    assert patterns == ["euronext.104", "euronext.104.10001", "euronext.#"]


@pytest.mark.parametrize("key", SCENES)
def test_demos_that_run_at_a_time_have_ports_of_their_own(key: str) -> None:
    scene = SCENES[key]
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
        taken = free_port_base(scene, one)
        for _ in range(30):
            with contextlib.ExitStack() as third:
                assert free_port_base(scene, third) != taken
        assert free_port_base(scene, other) != taken
