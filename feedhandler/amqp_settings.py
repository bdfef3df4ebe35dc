"""`[amqp]`: the embedded node. What the operator may say of it.

Names end in their unit; every setting has a default.
"""

import re
from typing import Annotated, Any

from msgspec import Meta, Struct

_Bytes = Annotated[int, Meta(ge=4096, le=2**32)]


def _setting(description: str, **bounds: Any) -> Meta:
    return Meta(description=description, **bounds)


def split_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as host and port. Raises `ValueError` for anything else."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    plain_colons = ":" in host and not bracketed
    if not colon or not host or plain_colons or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError(f"{text!r} is not host:port")
    if int(port) > 65535:
        raise ValueError(f"port {port} is above 65535")
    return host, int(port)


class AmqpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[amqp]`: the embedded node and its bounds."""

    listen: Annotated[str, _setting("host:port subscribers connect to; port 0 picks one")] = (
        "127.0.0.1:5672"
    )
    queue_bytes: Annotated[
        _Bytes,
        _setting(
            "waiting bytes per subscriber, room for a snapshot block; who overruns it is detached"
        ),
    ] = 64 * 2**20
    history_bytes: Annotated[
        int,
        _setting(
            "published packets kept per service for links that resume (half as much again for "
            "quality messages and snapshot blocks); 0 for none",
            ge=0,
            le=2**32,
        ),
    ] = 16 * 2**20
    max_connections: Annotated[int, _setting("connections at a time", ge=1, le=100_000)] = 1000
    max_links: Annotated[int, _setting("receiving links at a time", ge=1, le=1_000_000)] = 10_000
    max_frame_bytes: Annotated[
        int, _setting("largest AMQP frame, offered and accepted", ge=512, le=2**24)
    ] = 65_536
    batch_max_bytes: Annotated[
        int, _setting("largest body of an `as=batch` message", ge=1500, le=2**24)
    ] = 65_536
    idle_timeout_ms: Annotated[
        int, _setting("a peer silent for this long is dropped; 0 for never", ge=0, le=86_400_000)
    ] = 30_000
    max_symbols: Annotated[
        int, _setting("symbols remembered for routing and names", ge=1, le=100_000_000)
    ] = 1_000_000

    @property
    def address(self) -> tuple[str, int]:
        """`listen` as host and port."""
        return split_address(self.listen)
