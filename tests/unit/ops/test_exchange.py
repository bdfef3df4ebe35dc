"""`feedhandler exchange`: its options in the exchange's terms, and its account."""

from pathlib import Path

import pytest

from feedhandler.cli.app import ExchangedFeed
from feedhandler.codecs.errors import UsageError
from feedhandler.config import loopback_lines, loopback_refresh_lines
from feedhandler.gateway.capabilities import open_config
from feedhandler.ops.exchange import FIX, Options, _print_account, fix_plan, plan
from feedhandler.ops.exchange_config import PASSWORD, write_config
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
            assert made.recovery_address(line.name, service) == (line.group, line.port)
    assert (made.retransmission_port, made.refresh_port) == (port_base + 1, port_base + 2)


@pytest.mark.parametrize(
    ("feed", "ports"),
    [
        ("nasdaq-totalview-itch", (30_001, 30_002)),
        ("cboe-byx-pitch", (30_001, 30_002)),
        ("nyse-integrated-pillar", (30_001, 30_002)),
        ("iex-deep-plus", (30_001, None)),
        ("cme-mdp3", (30_001, None)),
        ("memx-memoir", (None, None)),
    ],
)
def test_order_sessions_have_the_servers_and_the_refresh_lines_of_their_feed(
    feed: str, ports: tuple[int | None, int | None]
) -> None:
    made = plan(Options(feed=feed))
    assert (made.retransmission_port, made.refresh_port) == ports
    assert made.refresh_s == (5.0 if feed == "cme-mdp3" else None)
    bare = plan(Options(feed=feed, servers=False))
    assert bare.retransmission_port is bare.refresh_port is bare.refresh_s is None


@pytest.mark.parametrize("feed", ExchangedFeed)
def test_the_configuration_that_is_written_is_one_of_the_exchanges_addresses(
    feed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "SECRET")
    options, path = Options(feed=feed, port_base=44_000), tmp_path / "gateway.toml"
    write_config(options, path)
    write_config(options, path)  # the same once more
    config, _ = open_config(path)
    addresses = [server.address for server in config.servers]
    if feed == FIX:
        assert addresses == ["127.0.0.1:44001", "127.0.0.1:44002"]
        return
    made = plan(options)
    ports = [each for each in (made.retransmission_port, made.refresh_port) if each]
    assert addresses == [f"127.0.0.1:{port}" for port in ports]
    channel = config.channels[0]
    assert [(line.group, line.port) for line in channel.lines] == [
        made.address(name, 101) for name in "AB"
    ]
    for line in channel.retransmission_lines:
        assert (line.group, line.port) == made.recovery_address(line.name, 101)
    of_refreshes = made.refresh_address if "nyse" in feed else made.recovery_address
    for refresh in channel.refresh_lines:
        assert (refresh.group, refresh.port) == of_refreshes(refresh.name, 101)


def test_a_configuration_is_not_written_over_another_nor_for_what_it_would_not_fit(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        write_config(Options(), path)
    assert path.read_text() == "mine"
    path.write_bytes(b"\xff\x00")
    with pytest.raises(UsageError, match="is there already"):
        write_config(Options(), path)
    for unfit in (Options(servers=False), Options(host="0.0.0.0"), Options(interface="eth1")):
        with pytest.raises(UsageError, match="--write-config is for"):
            write_config(unfit, tmp_path / "new.toml")
    with pytest.raises(UsageError, match="cannot write"):
        write_config(Options(), tmp_path)


def test_what_is_of_refresh_lines_is_refused_where_there_are_none() -> None:
    for wrong in (
        Options(feed="iex-deep", refresh_s=1),
        Options(feed="nyse-integrated-xdp", refresh_s=1),
        Options(feed=FIX, refresh_over_tcp=True),
    ):
        with pytest.raises(UsageError, match="makes no sense for"):
            (fix_plan if wrong.feed == FIX else plan)(wrong)
    assert plan(Options(feed="cme-mdp3", refresh_s=1)).refresh_s == 1


def test_what_the_retransmission_server_keeps_is_printed_and_bounded() -> None:
    assert plan(Options(keep_bytes=1 << 20)).servers.window_bytes == 1 << 20
    with pytest.raises(UsageError, match="--keep is 100 bytes"):
        plan(Options(keep_bytes=100))


def test_faults_are_passed_on() -> None:
    made = plan(Options(losses=(0.1, 0.2), together=0.3, refresh_loss=0.4, gap_s=5.0))
    assert [faults.loss for faults in made.faults] == [0.1, 0.2]
    assert [faults.loss for faults in made.refresh_faults] == [0.4, 0.4]
    assert (made.together, made.gap_s) == (0.3, 5.0)


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
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "exchange: 900 messages in 100 packets, 2.0 s, seed 9",
        "  line A: 7 of 100 packets dropped, 3 of them on both lines",
        "  withheld for good: service 104, packet 17",
        "  retransmission: 2 requests, 3 packets",
        "  refresh: nothing was asked for",
        "  snapshots: 4 in turn, 1 at request",
    ]
