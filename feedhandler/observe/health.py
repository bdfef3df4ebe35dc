"""Liveness and readiness of the gateway, judged from facts; no I/O, no clock.

*Live*: it works, so that a restart would not help; a gateway that is not live should be restarted.
The event loop turns (else there would be no answer) and has not stood still for `LOOP_LAG_NS_MAX`,
and the receive thread runs.

*Ready*: subscribers may connect. The conditions are the operator's choice
(`settings.CONDITIONS`, `[health] ready_when`); a gateway that is starting or ending is never ready.

Each answer is a list of reasons against it, one line each: an empty list means yes.
"""

from msgspec import Struct

from feedhandler.config.observing import HealthConfig

#: The longest time since the event loop's last regular turn.
LOOP_LAG_NS_MAX = 5_000_000_000
#: Reasons of one kind that are listed; the rest is counted.
REASONS_MAX = 20
#: Qualities of incomplete streams.
UNWELL = ("STALE", "SILENT")


class Facts(Struct, kw_only=True):
    """The facts that are judged. Channels by service, servers by name; times are durations."""

    phase: str = "serving"  #: starting, serving or stopping
    receiving: bool = True
    receive_error: str = ""
    listening: bool = True
    loop_lag_ns: int = 0
    joining_ns: dict[int, int] = {}  #: how long each channel that joins has done so
    quality: dict[int, str] = {}
    closed: list[int] = []
    servers: dict[str, bool] = {}
    recording_stopped: str = ""  #: why
    queues_stopped: dict[str, str] = {}  #: why, by name


def not_live(facts: Facts) -> list[str]:
    """Return why the gateway is not live; empty where it is."""
    reasons = []
    if facts.loop_lag_ns > LOOP_LAG_NS_MAX:
        reasons.append(f"the event loop stood still for {facts.loop_lag_ns / 1e9:.1f} s")
    if facts.phase == "serving" and not facts.receiving:
        reasons.append(_thread_ended(facts))
    return reasons


def not_ready(facts: Facts, settings: HealthConfig) -> list[str]:
    """Return why the gateway is not ready; empty where it is."""
    if facts.phase != "serving":
        return [f"the gateway is {facts.phase}"]
    reasons = []
    for condition in dict.fromkeys(settings.conditions):
        reasons += _REASONS[condition](facts, settings)
    return reasons


def _thread_ended(facts: Facts) -> str:
    error = f": {facts.receive_error}" if facts.receive_error else ""
    return f"the receive thread has ended{error}"


def _lines(facts: Facts, _settings: HealthConfig) -> list[str]:
    return [] if facts.receiving else [_thread_ended(facts)]


def _node(facts: Facts, _settings: HealthConfig) -> list[str]:
    return [] if facts.listening else ["the AMQP node does not listen"]


def _joined(facts: Facts, settings: HealthConfig) -> list[str]:
    most_ns = settings.joining_max_ms * 1_000_000
    if not most_ns:
        return []
    return _shortened(
        [
            f"service {service}: no packet to begin with for {waited_ns / 1e9:.0f} s"
            for service, waited_ns in facts.joining_ns.items()
            if waited_ns > most_ns
        ]
    )


def _complete(facts: Facts, _settings: HealthConfig) -> list[str]:
    unwell = [f"service {s}: {state}" for s, state in facts.quality.items() if state in UNWELL]
    closed = [f"service {s}: closed until its snapshot" for s in facts.closed]
    return _shortened(unwell) + _shortened(closed)


def _servers(facts: Facts, _settings: HealthConfig) -> list[str]:
    return _shortened(
        [f"server {name}: no connection" for name, up in facts.servers.items() if not up]
    )


def _queues(facts: Facts, _settings: HealthConfig) -> list[str]:
    return _shortened(
        [f"queue {name} has stopped: {why}" for name, why in facts.queues_stopped.items()]
    )


def _recorder(facts: Facts, _settings: HealthConfig) -> list[str]:
    return [f"recording stopped: {facts.recording_stopped}"] if facts.recording_stopped else []


def _shortened(reasons: list[str]) -> list[str]:
    if len(reasons) <= REASONS_MAX:
        return reasons
    return [*reasons[:REASONS_MAX], f"and {len(reasons) - REASONS_MAX} more like this"]


_REASONS = {
    "lines": _lines,
    "node": _node,
    "joined": _joined,
    "complete": _complete,
    "servers": _servers,
    "queues": _queues,
    "recorder": _recorder,
}
