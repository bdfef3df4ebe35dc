"""The settings of metrics and health: `[metrics]`, `[health]`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from feedhandler.codecs.toml_text import WrongKey

#: The conditions of readiness: the word in `ready_when`, and its meaning.
CONDITIONS: dict[str, str] = {
    "lines": "every line is joined and the receive thread runs",
    "node": "the AMQP node listens",
    "joined": "no channel has waited for its first packet longer than joining_max_ms",
    "complete": "no channel is STALE or SILENT, or closed until its first snapshot",
    "servers": "there is a connection to every [[server]]",
    "queues": "no durable queue has stopped",
    "recorder": "recording, where it is configured, has not stopped by itself",
}


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[metrics]`: the HTTP endpoint."""

    listen: Annotated[
        str,
        Meta(description="host:port of /metrics, /live and /ready; empty: none; port 0 picks one"),
    ] = ""
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="names by which it may be asked, besides localhost, this machine's own "
            "name and every address: what a reverse proxy or a browser sends as Host"
        ),
    ] = ()


class HealthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[health]`: when the gateway is ready."""

    ready_when: Annotated[
        str,
        Meta(description=f"conditions of readiness, commas between; of {', '.join(CONDITIONS)}"),
    ] = "lines, node, joined"
    joining_max_ms: Annotated[
        int,
        Meta(
            description="how long a channel may wait for its first packet; 0: for ever",
            ge=0,
            le=86_400_000,
        ),
    ] = 30_000

    @property
    def conditions(self) -> tuple[str, ...]:
        """The words of `ready_when`, known or not."""
        return tuple(filter(None, (word.strip() for word in self.ready_when.split(","))))

    def check(self) -> None:
        """Check that each word of `ready_when` is a condition. Raises `WrongKey`."""
        for word in self.conditions:
            if word not in CONDITIONS:
                hint = f"conditions: {', '.join(CONDITIONS)}"
                raise WrongKey(("ready_when",), f"unknown condition {word!r}", hint)
