"""A running gateway seen from outside: scraped, asked, attacked, and what systemd hears of it."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_gateway_loopback import configured, running, until

import feedhandler
from feedhandler.codecs import ConfigError, PeerError
from feedhandler.config import ControlConfig
from feedhandler.config.observing import HealthConfig, MetricsConfig
from feedhandler.gateway import Gateway, watch
from feedhandler.operator_log import LogConfig, opened
from feedhandler.rpc import ask
from tests.support import free_addresses
from tests.support.checkout import CHECKOUT
from tests.support.gateway import ending
from tests.support.node import PATIENCE_S

pytestmark = pytest.mark.gateways_loop

ANY_PORT = MetricsConfig(listen="127.0.0.1:0")


async def fetch(gateway: Gateway, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body of a page."""
    assert gateway.watch.web is not None
    reader, writer = await asyncio.open_connection(*gateway.watch.web.address)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            response = await reader.read()
    finally:
        writer.close()
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def samples(gateway: Gateway) -> dict[tuple[str, ...], float]:
    """Every sample of a scrape: (name, label values ...) and value."""
    status, body = await fetch(gateway, "/metrics")
    assert status == 200
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


async def until_true(check: Any) -> None:
    """Wait until `check()` is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not await check():
            await asyncio.sleep(0.02)


def last(sequence: int) -> Any:
    """Return a predicate of messages: whether one is the packet with this sequence number."""
    return lambda message: message.content == "packet" and message.sequence == sequence


async def test_a_gateway_is_scraped_under_load_and_tells_what_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "KEEP_SECONDS", 0.0)
    total = 3000
    config = configured(metrics=ANY_PORT)
    async with (
        running(config) as (gateway, exchange, url),
        feedhandler.subscribe(url, "euronext.104") as messages,
    ):
        reader = asyncio.create_task(until(messages, last(total)))
        scrapes = []
        for begin in range(1, total + 1, 500):
            await exchange.packets(begin, begin + 499)
            scrapes.append(await samples(gateway))
        got = await reader
        assert [m.sequence for m in got if m.content == "packet"] == list(range(1, total + 1))
        metrics = await samples(gateway)
        assert metrics["feedhandler_channel_packets_total", "104"] == total
        assert metrics["feedhandler_line_packets_total", "A", "104"] == total
        assert metrics["feedhandler_channel_latency_seconds_count", "104"] > 0
        assert metrics["feedhandler_channel_quality_state", "104", "OK"] == 1
        assert metrics["feedhandler_channel_arbitration_state", "104", "FLOWING"] == 1
        ((key, sent),) = (
            (key, value)
            for key, value in metrics.items()
            if key[0] == "feedhandler_subscription_sent_total"
        )
        assert key[1].startswith("euronext.104")
        assert key[2] == "127.0.0.1"
        assert sent >= total
        assert metrics["feedhandler_stage_seconds_count", "route"] > 0
        assert metrics["feedhandler_web_scrapes_total",] >= 1
        for before, after in zip([{}, *scrapes], [*scrapes, metrics], strict=True):
            for key, value in before.items():
                if key[0].endswith("_total"):
                    assert after[key] >= value, key


async def test_slow_lorises_and_garbage_do_not_hurt_the_stream() -> None:
    total = 2000
    async with (
        running(configured(metrics=ANY_PORT)) as (gateway, exchange, url),
        feedhandler.subscribe(url, "euronext.104") as messages,
        contextlib.AsyncExitStack() as stack,
    ):
        assert gateway.watch.web is not None
        address = gateway.watch.web.address
        reader = asyncio.create_task(until(messages, last(total)))
        for number in range(200):
            _, writer = await asyncio.open_connection(*address)
            stack.callback(writer.close)
            writer.write((b"GET /met", os.urandom(3000), b"")[number % 3])
            await exchange.packets(1 + 10 * number, 10 + 10 * number)
        got = await reader
        assert [m.sequence for m in got if m.content == "packet"] == list(range(1, total + 1))
        status, _ = await fetch(gateway, "/live")
        assert status == 200
        counts = gateway.watch.web.counts()
        assert counts["pushed_out"] > 0
        assert gateway.snapshot()["channels"][0]["lost"] == 0


async def test_readiness_turns_with_the_channels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "TICK_NS", 10_000_000)
    lines: list[str] = []

    async def is_logged(text: str) -> bool:
        lines.extend(capsys.readouterr().err.splitlines())
        return any(text in line for line in lines)

    with opened(LogConfig(), "gate"):
        health = HealthConfig(ready_when="lines, node, joined, complete", joining_max_ms=1)
        config = configured(metrics=ANY_PORT, health=health)
        async with running(config) as (gateway, exchange, _):

            async def is_unready() -> bool:
                status, body = await fetch(gateway, "/ready")
                assert status in (200, 503)
                return status == 503 and "service 104: no packet to begin with" in body

            async def is_ready() -> bool:
                return await fetch(gateway, "/ready") == (200, "ready\n")

            await until_true(is_unready)
            # The page looks when it is asked, the watch in its own time: both must have seen it.
            await until_true(lambda: is_logged("gateway: not ready: "))
            assert await fetch(gateway, "/live") == (200, "live\n")
            await exchange.packets(1, 10)
            await until_true(is_ready)
            await until_true(lambda: is_logged("gateway: ready again"))
            await exchange.packets(12, 20)  # 11 is lost

            async def is_stale() -> bool:
                status, body = await fetch(gateway, "/ready")
                return status == 503 and "service 104: STALE" in body

            await until_true(is_stale)
            await until_true(lambda: is_logged("gateway: service 104: STALE, was OK"))
            assert (await fetch(gateway, "/ready", "HEAD"))[1] == ""
            assert (await fetch(gateway, "/ready", "PUT"))[0] == 405
            assert (await fetch(gateway, "/"))[0] == 404
    lines.extend(capsys.readouterr().err.splitlines())
    assert "gateway: service 104: OK, was WAITING" in lines
    assert "gateway: service 104: STALE, was OK" in lines


async def test_a_refused_link_is_reported_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with opened(LogConfig(), "gate"):
        config = configured(metrics=ANY_PORT)
        async with running(config) as (gateway, _, url):
            with pytest.raises(PeerError):
                async with feedhandler.subscribe(url, "euronext..104") as messages:
                    await until(messages, last(1))
            metrics = await samples(gateway)
            assert metrics["feedhandler_node_links_refused_total",] == 1
    errors = capsys.readouterr().err
    assert "refused: pattern 'euronext..104" in errors


async def test_the_control_socket_tells_of_health_too_and_takes_the_operators_word() -> None:
    control = ControlConfig(bind=f"tcp://127.0.0.1:{free_addresses.port()}")
    async with running(configured(control=control)) as (gateway, _, _url):
        answer = await asyncio.to_thread(ask, gateway.control.endpoint, "health")
        assert answer["live"] == {"ok": True, "reasons": []}
        assert answer["ready"]["ok"]
        assert gateway.watch.web is None
        resume = {"do": "resume-requests"}
        answer = await asyncio.to_thread(ask, gateway.control.endpoint, resume)
        assert answer == {"resumed": []}
        for server, reason in (("rts", "no server 'rts'"), (7, "`server` is no text")):
            wrong = {**resume, "server": server}
            with pytest.raises(PeerError, match=reason):
                await asyncio.to_thread(ask, gateway.control.endpoint, wrong)


async def test_an_endpoint_that_is_taken_ends_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = configured(metrics=MetricsConfig(listen=f"127.0.0.1:{port}"))
        with pytest.raises(ConfigError, match=r"metrics\.listen"):
            await Gateway(config).run()


# -- the command -----------------------------------------------------------------------------


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket as systemd's NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


@contextlib.asynccontextmanager
async def commanded(path: Path, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`feedhandler run` on a configuration."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "feedhandler", "run", str(path),
        cwd=CHECKOUT, env={**os.environ, **variables}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with ending(process):
        yield process


def test_systemd_hears_ready_watchdog_and_stopping_and_the_log_is_json(
    tmp_path: Path, systemd: socket.socket
) -> None:
    path = tmp_path / "gateway.toml"
    port = free_addresses.port()
    path.write_text(
        f"""
        [amqp]
        listen = "127.0.0.1:0"
        [log]
        format = "json"
        level = "debug"
        [[channel]]
        service = 104
        [[channel.line]]
        name = "A"
        group = "{free_addresses.group()}"
        port = {port}
        """
    )

    async def heard(wanted: str) -> str:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                notice = (await loop.sock_recv(systemd, 4096)).decode()
                if notice.startswith(wanted):
                    return notice

    async def scenario() -> list[dict[str, Any]]:
        address = systemd.getsockname()
        async with commanded(path, NOTIFY_SOCKET=address, WATCHDOG_USEC="1000000") as process:
            assert await heard("READY=1") == "READY=1\nSTATUS=serving 1 channels"
            await heard("WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            await heard("STOPPING=1")
            async with asyncio.timeout(PATIENCE_S):
                _, errors = await process.communicate()
            assert process.returncode == 0
            return [msgspec.json.decode(line) for line in errors.splitlines()]

    events = asyncio.run(scenario())
    assert {"ready", "stopping"} <= {each["event"] for each in events}
    ready = next(each for each in events if each["event"] == "ready")
    assert ready["message"].startswith("gateway: ready: 1 channels, 1 lines, AMQP on 127.0.0.1:")
    assert ready["lines"] == 1
    assert all({"time", "level", "gateway", "event", "message"} <= set(each) for each in events)
