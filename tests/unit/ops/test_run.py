"""Messages of `feedhandler run` to an operator: short buffers at first, an account at the end."""

import asyncio
import errno
from typing import Any

import pytest

import feedhandler.gateway
from feedhandler.config import ReceiveConfig, loopback_config
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ops import run
from feedhandler.terminal.console import HostFault

WANTED_BYTES = 1 << 20
CONFIG = loopback_config(
    services=(101, 104), receive=ReceiveConfig(socket_buffer_bytes=WANTED_BYTES)
)


def snapshot(**counters: int) -> dict[str, Any]:
    """A gateway's snapshot of two channels; `counters` stand in the second, and in its line B."""

    def row(scope: Any, counts: dict[str, int]) -> dict[str, int]:
        return {each.name.lower(): counts.get(each.name.lower(), 0) for each in scope}

    def channel(service: int, counts: dict[str, int]) -> dict[str, Any]:
        return {
            "service": service,
            "arbitration": row(ChannelCounter, counts),
            "lines": {"A": row(LineCounter, {}), "B": row(LineCounter, counts)},
        }

    node = {"route_lookups": 0, "route_hits": 0}
    return {"name": "gate", "channels": [channel(101, {}), channel(104, counters)], "node": node}


def test_a_line_that_got_less_buffer_than_it_asked_for_is_warned_of() -> None:
    granted = {"101/A": WANTED_BYTES, "101/B": 212_992, "104/A": 2 * WANTED_BYTES}
    assert list(run.short_buffers(CONFIG, granted)) == [
        (
            "line 101/B: receive buffer of 212,992 bytes, 1,048,576 asked for",
            "sysctl -w net.core.rmem_max=1048576",
        )
    ]


def test_the_account_has_a_line_for_each_channel_that_lost_something() -> None:
    gateway = snapshot(gaps=2, lost=1005, kernel_drops=7, truncated=3, duplicates=99, packets=5)
    assert list(run.account(gateway)) == [
        "gate: service 104: gaps 2, lost 1,005; line B kernel_drops 7, truncated 3"
    ]


def test_nothing_wrong_is_nothing_said() -> None:
    assert list(run.account(snapshot(packets=5, won=5, duplicates=5, heartbeats=1))) == []


def test_the_account_tells_the_routing_caches_hit_rate() -> None:
    gateway = snapshot()
    gateway["node"] = {"route_lookups": 2000, "route_hits": 1996}
    assert list(run.account(gateway)) == ["gate: routing cache: 99.8% of 2,000 look-ups answered"]


class FailingGateway:
    """Fails with `error`, before or after it is ready."""

    def __init__(self, error: OSError, is_ready_first: bool) -> None:
        self.error = error
        self.is_ready_first = is_ready_first
        self.receiver = self.node = self
        self.address = ("127.0.0.1", 5672)

    def receive_buffers(self) -> dict[str, int]:
        return {"101/A": 4096}

    def snapshot(self) -> dict[str, Any]:
        return snapshot(gaps=1, lost=1)

    async def run(self, ready: Any, stop: asyncio.Event) -> None:
        if self.is_ready_first:
            ready()
        raise self.error


def serve(
    monkeypatch: pytest.MonkeyPatch, error: OSError, is_ready_first: bool
) -> BaseException | None:
    """Return what `run.serve` raises with a gateway that fails with `error`, or None."""
    gateway = FailingGateway(error, is_ready_first)
    monkeypatch.setattr(feedhandler.gateway, "Gateway", lambda _: gateway)

    async def scenario() -> None:
        await run.serve(CONFIG, asyncio.Event())

    try:
        asyncio.run(scenario())
    except Exception as raised:
        return raised
    return None


def test_a_failure_after_ready_is_the_hosts_and_the_account_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raised = serve(monkeypatch, OSError(errno.ENODEV, "No such device"), True)
    assert isinstance(raised, HostFault)
    assert raised.message == "no such device"
    warning, ready, account = capsys.readouterr().err.splitlines()
    assert "101/A" in warning
    assert ": ready: 2 channels, 4 lines, AMQP on 127.0.0.1:5672" in ready
    assert account == "feedhandler: gate: service 104: gaps 1, lost 1"


def test_a_failure_before_ready_stays_the_operators(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(errno.EACCES, "Permission denied")
    assert serve(monkeypatch, error, False) is error
    assert capsys.readouterr().err == ""


def test_the_account_tells_what_was_not_recorded_and_why() -> None:
    gateway = snapshot()
    gateway["recorder"] = {
        "state": "stopped",
        "reason": "the disk is full",
        "series": {"lines": {"dropped": 1_234, "unwritable": 0}},
    }
    assert list(run.account(gateway)) == [
        "gate: recording stopped: the disk is full",
        "gate: recorder lines: dropped 1,234",
    ]
