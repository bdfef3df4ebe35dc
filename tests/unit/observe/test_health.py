"""Liveness and readiness, condition by condition; and what systemd is sent."""

import os
import socket
from pathlib import Path

import pytest

from feedhandler.config.observing import CONDITIONS, HealthConfig
from feedhandler.observe import health
from feedhandler.observe.health import Facts, not_live, not_ready
from feedhandler.observe.systemd import Notifier
from tests.support.checkout import CHECKOUT

SECOND_NS = 10**9
ALL = HealthConfig(ready_when=",".join(CONDITIONS))


def test_a_gateway_at_work_is_live_and_ready() -> None:
    assert not_live(Facts()) == []
    assert not_ready(Facts(), ALL) == []


@pytest.mark.parametrize("phase", ["starting", "stopping"])
def test_a_gateway_that_starts_or_ends_is_live_but_not_ready(phase: str) -> None:
    facts = Facts(phase=phase, receiving=False)
    assert not_live(facts) == []
    assert not_ready(facts, HealthConfig()) == [f"the gateway is {phase}"]


def test_a_dead_receive_thread_is_neither() -> None:
    facts = Facts(receiving=False, receive_error="Bad file descriptor")
    assert not_live(facts) == ["the receive thread has ended: Bad file descriptor"]
    assert not_ready(facts, HealthConfig()) == not_live(facts)


def test_an_event_loop_that_stood_still_is_not_live() -> None:
    assert not_live(Facts(loop_lag_ns=health.LOOP_LAG_NS_MAX)) == []
    assert not_live(Facts(loop_lag_ns=7 * SECOND_NS)) == ["the event loop stood still for 7.0 s"]


#: For each condition: facts that break it, and the reason.
BROKEN = {
    "lines": (Facts(receiving=False), "the receive thread has ended"),
    "node": (Facts(listening=False), "the AMQP node does not listen"),
    "joined": (
        Facts(joining_ns={104: 31 * SECOND_NS, 105: SECOND_NS}),
        "service 104: no packet to begin with for 31 s",
    ),
    "complete": (Facts(quality={101: "OK", 104: "STALE"}), "service 104: STALE"),
    "servers": (Facts(servers={"rts": True, "rfs": False}), "server rfs: no connection"),
    "queues": (
        Facts(queues_stopped={"orders": "its disk failed"}),
        "queue orders has stopped: its disk failed",
    ),
    "recorder": (Facts(recording_stopped="disk full"), "recording stopped: disk full"),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_counts_where_it_is_asked_for_and_only_there(condition: str) -> None:
    facts, reason = BROKEN[condition]
    assert not_ready(facts, HealthConfig(ready_when=condition)) == [reason]
    others = ", ".join(set(CONDITIONS) - {condition})
    assert not_ready(facts, HealthConfig(ready_when=others)) == []


def test_a_closed_or_silent_channel_is_not_complete() -> None:
    facts = Facts(closed=[101], quality={104: "SILENT", 105: "RECOVERING", 106: "REFRESHED"})
    reasons = not_ready(facts, HealthConfig(ready_when="complete"))
    assert reasons == ["service 104: SILENT", "service 101: closed until its snapshot"]


def test_channels_may_join_for_ever_where_that_is_configured() -> None:
    facts = Facts(joining_ns={104: 10**18})
    assert not_ready(facts, HealthConfig(joining_max_ms=0)) == []


def test_many_reasons_are_shortened() -> None:
    facts = Facts(joining_ns=dict.fromkeys(range(200), 10**18))
    reasons = not_ready(facts, HealthConfig())
    assert len(reasons) == health.REASONS_MAX + 1
    assert reasons[-1] == "and 180 more like this"


def test_the_settings_ready_conditions_are_what_the_page_says() -> None:
    page = (CHECKOUT / "docs" / "operating.md").read_text()
    for condition, meaning in CONDITIONS.items():
        assert f"| `{condition}` | {meaning} |" in page


# -- systemd ---------------------------------------------------------------------------------


@pytest.fixture
def listening(tmp_path: Path) -> socket.socket:
    """A socket as systemd's."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.settimeout(10)
    sock.bind(str(tmp_path / "notify"))
    return sock


def test_systemd_hears_of_ready_stopping_and_the_watchdog(listening: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": listening.getsockname(), "WATCHDOG_USEC": "10000000"}
    notifier = Notifier(environment)
    assert notifier.watchdog_ns == 5 * SECOND_NS
    notifier.ready("serving 7 channels")
    notifier.watchdog()
    notifier.status("ready")
    notifier.stopping()
    notices = [listening.recv(4096).decode() for _ in range(4)]
    assert notices == [
        "READY=1\nSTATUS=serving 7 channels",
        "WATCHDOG=1",
        "STATUS=ready",
        "STOPPING=1\nSTATUS=stopping",
    ]
    notifier.close()
    listening.close()


def test_an_abstract_address_begins_with_an_at_sign() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"feedhandler-test-{os.getpid()}"
        sock.bind("\0" + name)
        sock.settimeout(10)
        notifier = Notifier({"NOTIFY_SOCKET": "@" + name})
        notifier.ready("x")
        assert sock.recv(100).startswith(b"READY=1")
        notifier.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "much"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
def test_without_systemd_nothing_happens(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)
    assert notifier.watchdog_ns == 0
    notifier.ready("x")
    notifier.stopping()
    notifier.close()


def test_a_socket_that_takes_nothing_is_not_waited_for(listening: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": listening.getsockname()})
    for _ in range(10_000):
        notifier.watchdog()
    notifier.close()
    listening.close()
