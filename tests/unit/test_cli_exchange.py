"""`feedhandler exchange`: its options in the exchange's terms, and its account."""

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.config import loopback_lines, loopback_refresh_lines
from feedhandler.ops.exchange import Options, _print_account, plan
from feedhandler.replay.exchange.simulated import ExchangeResult
from feedhandler.replay.generating.packets import SERVICES
from feedhandler.replay.playing.inject import FaultCounts


@pytest.mark.parametrize("port_base", [30_000, 44_000])
def test_a_gateways_loopback_configuration_finds_what_the_exchange_offers(port_base: int) -> None:
    made = plan(Options(port_base=port_base))
    for service in SERVICES:
        for line in loopback_lines(service, port_base):
            assert made.address(line.name, service) == (line.group, line.port)
        for line in loopback_refresh_lines(service, port_base):
            assert made.refresh_address(line.name, service) == (line.group, line.port)
    assert (made.retransmission_port, made.refresh_port) == (port_base + 1, port_base + 2)


@pytest.mark.parametrize(
    ("feed", "ports"),
    [("nasdaq-totalview-itch", (30_001, 30_002)), ("memx-memoir", (None, None))],
)
def test_order_sessions_have_the_servers_of_their_feed_and_no_refresh_lines(
    feed: str, ports: tuple[int | None, int | None]
) -> None:
    made = plan(Options(feed=feed))
    assert (made.retransmission_port, made.refresh_port) == ports
    assert made.refresh_s is None
    assert plan(Options(feed=feed, servers=False)).refresh_port is None


def test_without_servers_only_the_two_lines_are_left() -> None:
    made = plan(Options(servers=False))
    assert made.retransmission_port is made.refresh_port is made.refresh_s is None


def test_what_the_retransmission_server_keeps_is_told_and_bounded() -> None:
    assert plan(Options(keep_bytes=1 << 20)).servers.window_bytes == 1 << 20
    with pytest.raises(UsageError, match="--keep is 100 bytes"):
        plan(Options(keep_bytes=100))


def test_faults_are_passed_on() -> None:
    made = plan(Options(losses=(0.1, 0.2), together=0.3, refresh_loss=0.4, hole_s=5.0))
    assert [faults.loss for faults in made.faults] == [0.1, 0.2]
    assert [faults.loss for faults in made.refresh_faults] == [0.4, 0.4]
    assert (made.together, made.hole_s) == (0.3, 5.0)


def test_the_account_tells_what_was_lost_and_what_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = ExchangeResult(
        packets={104: 100},
        messages={104: 900},
        lines={"A": FaultCounts(datagrams=100, dropped=7, together=3)},
        next_sequences={104: 101},
        sent=193,
        duration_ns=2_000_000_000,
        lateness_max_ns=0,
        behind=0,
        withheld=(104, 17),
        snapshots={"cyclic": 4, "asked": 1},
        servers={"retransmission": {"requests": 2, "packets": 3}, "refresh": {}},
        stopped=False,
    )
    _print_account(result, Options(seed=9))
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "exchange: 900 messages in 100 packets, 2.0 s, seed 9",
        "  line A: 7 of 100 packets dropped, 3 of them on both lines",
        "  withheld for good: service 104, packet 17",
        "  retransmission: 2 requests, 3 packets",
        "  refresh: nothing was asked for",
        "  snapshots: 4 in turn, 1 at request",
    ]
