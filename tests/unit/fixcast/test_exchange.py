"""The simulated FIX exchange: its plan, its lossy lines, its ledger."""

import asyncio
from pathlib import Path

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.fixcast import exchange as module
from feedhandler.fixcast.exchange import FixExchange, LossyLines
from feedhandler.fixcast.exchange_plan import (
    FEED_NAME,
    SERVICES,
    FixExchangePlan,
    channel_id,
    definition,
    symbols_of,
)
from feedhandler.ops.exchange import FIX, Options, fix_plan
from feedhandler.replay.exchange.ledger import LedgerWriter, RecordKind, read_ledger
from feedhandler.replay.exchange.ledger_check import Selection, check
from feedhandler.replay.generating.fix_market import FixMarket
from tests.support import free_addresses
from tests.support.fix_messages import sealed

FEED = load_feed(FEED_NAME)


def test_lines_lose_the_shares_that_are_asked_for(seed: int) -> None:
    lines = LossyLines((0.1, 0.2), seed, together=0.05)
    carried = [tuple(lines.carry()) for _ in range(20_000)]
    for line, share in enumerate((0.1, 0.2)):
        lost = sum(not each[line] for each in carried)
        assert lines.counts[line].dropped == lost
        assert abs(lost / 20_000 - (1 - (1 - share) * 0.95)) < 0.02
    both = sum(not any(each) for each in carried)
    assert both == lines.counts[0].together == lines.counts[1].together


def test_what_one_line_lost_is_spared_on_the_other_where_that_is_asked_for(seed: int) -> None:
    lines = LossyLines((0.2, 0.2), seed, spare_shared=True)
    assert all(any(lines.carry()) for _ in range(5_000))


def test_healed_lines_lose_nothing(seed: int) -> None:
    lines = LossyLines((1.0, 1.0), seed)
    assert not any(lines.carry())
    lines.healed = True
    assert all(lines.carry())


def test_a_definition_says_where_a_receiver_finds_channels_and_server() -> None:
    served = definition(FixExchangePlan(server_port=30_001))
    assert list(served.channels) == [channel_id(service) for service in SERVICES]
    assert {each.server for each in served.retransmissions.values()} == {"127.0.0.1:30001"}
    assert not definition(FixExchangePlan()).retransmissions


@pytest.mark.parametrize(
    ("option", "value"),
    [("refresh_s", 1.0), ("refresh_loss", 0.1), ("refresh_over_tcp", True)],
)
def test_options_of_refreshes_are_refused_for_fix(option: str, value: object) -> None:
    with pytest.raises(UsageError, match="makes no sense for FIX channels"):
        fix_plan(Options(feed=FIX, **{option: value}))


@pytest.mark.parametrize("wrong", [{"seconds": -1.0}, {"messages_per_s": 0.0}])
def test_a_plan_without_rate_or_with_negative_time_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        FixExchangePlan(**wrong)  # type: ignore[arg-type]


def test_a_hole_is_lost_on_both_lines_and_kept_back_by_the_server(tmp_path: Path) -> None:
    plan = FixExchangePlan(
        seconds=0.2,
        messages_per_s=500,
        port_base=free_addresses.exchange_port(),
        gap_s=0.05,
        ledger=tmp_path / "sent",
        linger_s=0,
    )
    exchange = FixExchange(plan, FEED)
    result = asyncio.run(exchange.run(asyncio.Event()))
    assert result.withheld is not None
    service, number = result.withheld
    assert service == SERVICES[0]
    assert [result.lines[line].dropped for line in "AB"] == [1, 1]
    records = read_ledger(tmp_path / "sent").records
    assert len(records) == 100  # it was published all the same
    assert number in records["sequence"][records["service"] == service]


def test_a_run_that_is_behind_stops_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = asyncio.Event()

    class Stopping(FixMarket):
        def next_message(self, time_ns: int) -> bytes:
            stop.set()
            return super().next_message(time_ns)

    monkeypatch.setattr(module, "FixMarket", Stopping)
    plan = FixExchangePlan(messages_per_s=1e9, port_base=free_addresses.exchange_port())
    result = asyncio.run(FixExchange(plan, FEED).run(stop))
    assert result.stopped
    assert sum(result.messages.values()) == 1


def test_what_is_published_is_in_the_ledger(tmp_path: Path) -> None:
    plan = FixExchangePlan(
        seconds=0.2,
        messages_per_s=500,
        losses=(0.5, 0.5),
        port_base=free_addresses.exchange_port(),
        ledger=tmp_path / "sent",
        linger_s=0,
    )
    result = asyncio.run(FixExchange(plan, FEED).run(asyncio.Event()))
    records = read_ledger(tmp_path / "sent").records
    assert sum(result.messages.values()) == len(records) == 100
    for service in SERVICES:
        numbers = records["sequence"][records["service"] == service].tolist()
        assert numbers == list(range(1, result.messages[service] + 1))
        assert result.next_sequences[service] == len(numbers) + 1
    assert result.lines["A"].dropped > 0
    assert {FEED.symbol_text(int(each)) for each in set(records["symbol"])} <= {
        symbol for service in SERVICES for symbol in symbols_of(service)
    }


# -- ledgers of FIX messages: numbered by themselves, in packets that name no service -----------


def messages(*numbers: int, symbol: str = "ABC") -> bytes:
    """Messages of these numbers, one behind the other."""
    return b"".join(
        sealed(b"35=X|34=%d|268=1|279=0|269=0|55=%b|270=1|" % (number, symbol.encode()))
        for number in numbers
    )


def test_fix_messages_are_held_against_one_another_however_they_were_packed(
    tmp_path: Path,
) -> None:
    with LedgerWriter(tmp_path / "sent", FEED) as sent:
        assert sent.sent(messages(1, 2, 3) + sealed(b"35=0|34=4|") + messages(4), 7) == 4
        assert sent.sent(messages(5, 6, 7, 8), 7) == 4
    with LedgerWriter(tmp_path / "got", FEED) as got:
        got.start(7, 1)
        got.received_packet(messages(1), 7)
        got.received_packet(messages(2, 3), 7)
        got.lost(7, 4, 4)
        got.received_packet(messages(5), 7)
        got.received_message(7, 6, 0, messages(6))
        got.received_packet(messages(8, symbol="XYZ"), 7)
    received = read_ledger(tmp_path / "got")
    assert set(received.records["kind"]) == {
        RecordKind.START, RecordKind.MESSAGE, RecordKind.LOST
    }  # fmt: skip
    report = check(FEED, read_ledger(tmp_path / "sent"), received, Selection("fix.7.ABC"))
    fates = (report.ok, report.lost_announced, report.lost_unannounced, report.corrupt)
    assert fates == (5, 1, 1, 1)


def test_bytes_that_are_no_fix_messages_are_refused_by_a_ledger(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "sent", FEED) as sent, pytest.raises(PeerError, match="not a"):
        sent.sent(messages(1)[:-3], 7)
