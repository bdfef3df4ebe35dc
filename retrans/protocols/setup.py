"""The parts of a protocol: what its client and its server are made with, and what both must do.

A client is a `retrans.reconnection.RecoveryClient`, whatever its protocol: it is informed when its
connection is there (`connected`) or gone, asked for ranges and snapshots (`ask`, `ask_refresh`),
fed what came (`feed`) and the time (`tick`), and returns `retrans.events`. A server makes a session
for each client, as `retrans.tcp.SessionServer` says.

**Over UDP** nothing is connected, but all else is the same: the owner opens a socket and calls
`connected`; `feed` gets exactly one datagram; each call of a client's `data_to_send`, or of a
session's `feed` and `tick`, returns one datagram or b"" (the owner calls `data_to_send` until it
returns b"", and `tick` while a session is `waiting`). A client that gives its server up returns
`Broken`, as over TCP.

**On demand**: a client that needs its connection only now and then is an `OnDemandClient` as well
(`retrans.reconnection`).

**By lines**: where a protocol's answers come by multicast lines (`retransmission_lines`), its
client is a `LineClient` as well: `datagram` takes each datagram of a channel's retransmission
lines.

Packets that a client hands on (`Packet.data`) are packets of the feed, as a line would have brought
them: the arbiter reads their numbers by the feed's own scanner. Snapshots that come whole are
`RefreshSnapshot`s, their messages as the feed frames them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, runtime_checkable
from typing import Protocol as TypingProtocol

import msgspec

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.recovery import ProtocolFacts
from feedhandler.retrans.events import Event
from feedhandler.retrans.reconnection import RecoveryClient
from feedhandler.retrans.sessions import SessionServer
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.snapshot_forms import Snapshots
from feedhandler.retrans.store import PacketStore


def _no_packet(service: int) -> bytes:
    return b""


def _nowhere(service: int, data: bytes) -> None:
    """Drop a datagram: there are no lines."""


@dataclass(frozen=True)
class ChannelNames:
    """The names by which requests call a channel: its service, or text where numbers will not do.

    `topic` and `target` are the configuration's (`ChannelConfig`).
    """

    service: int
    topic: str = ""
    target: str = ""


@dataclass(frozen=True)
class ClientSetup:
    """Arguments that make a client.

    `settings` are the operator's, with the description's numbers put in (`settled`); `source_id`
    and `password` say who we are; `session` is the server's session to log in to, "" for its
    current one. `retransmission` and `refresh` are the channels whose losses, and whose snapshots,
    this server is asked for. `latest` returns the newest packet of a service's present sequence
    epoch, b"" before any: where requests name a session, it says which. `product` is the feed's
    number where requests name it. `seed` draws what must not be guessed or in step.
    """

    feed: Feed
    settings: RecoverySettings
    source_id: str
    retransmission: tuple[ChannelNames, ...] = ()
    refresh: tuple[ChannelNames, ...] = ()
    password: str = ""
    session: str = ""
    latest: Callable[[int], bytes] = _no_packet
    seed: int = 0
    product: int = 0


@dataclass(frozen=True)
class ServerSetup:
    """Arguments that make a server.

    `stores` has the packets of each service, which the publisher appends to. `refresher` gives
    snapshots: its type is the protocol's (UTP-MD: `retrans.server.Refresher`; those whose snapshots
    come whole, or by lines: `SnapshotSource`). None: refused. `retransmit` and `refresh` put a
    datagram on a service's retransmission, or refresh, lines, where answers come by lines;
    `refresh` gets the packets of a snapshot all at once. `product` is the number that requests
    name. `passwords` are compared by username, where there are any and the protocol has them.
    """

    feed: Feed
    stores: Mapping[int, PacketStore]
    settings: ServerSettings
    refresher: Any = None
    session: str = ""
    retransmit: Callable[[int, bytes], None] = _nowhere
    refresh: Callable[[int, bytes], None] = _nowhere
    product: int = 0
    passwords: Mapping[str, str] = field(default_factory=dict)


#: The state of a service as (live number that it is valid up to, its messages as the feed frames
#: them); None where it has none.
SnapshotSource = Callable[[int], tuple[int, tuple[bytes, ...]] | None]


@runtime_checkable
class LineClient(RecoveryClient, TypingProtocol):
    """A client whose packets come by the retransmission lines of channels."""

    def datagram(self, service: int, data: bytes, now_ns: int) -> list[Event]:
        """Take in a datagram of a service's retransmission lines and return its events."""


@dataclass(frozen=True)
class Protocol:
    """One protocol: its facts, and how its parts are made.

    `client` None: nothing is asked for. `server` None: the publisher's own servers speak it
    (`retrans.fix.server`), or there are none. `snapshots` makes the form in which its snapshots
    come; None: it has none. Each of the three raises `UsageError`
    for a feed whose packets and messages are not the protocol's.
    """

    facts: ProtocolFacts
    client: Callable[[ClientSetup], RecoveryClient] | None
    server: Callable[[ServerSetup], SessionServer] | None
    snapshots: Callable[[Feed, RecoverySettings], Snapshots] | None = None


#: The operator's settings where he has said nothing.
_USUAL = RecoverySettings()


def settled(settings: RecoverySettings, feed: Feed) -> RecoverySettings:
    """Return the operator's settings with the numbers of the feed's `[recovery]` table.

    A request never asks for more than the table allows. The table's times stand where the
    operator's are the defaults.
    """
    recovery = feed.recovery
    if recovery is None:
        return settings
    changes: dict[str, int] = {}
    if recovery.request_max:
        changes["request_packets_max"] = min(settings.request_packets_max, recovery.request_max)
    for key, seconds in (("heartbeat_us", recovery.heartbeat_s), ("dead_us", recovery.timeout_s)):
        if seconds and getattr(settings, key) == getattr(_USUAL, key):
            changes[key] = round(seconds * 1_000_000)
    heartbeat_us = changes.get("heartbeat_us", settings.heartbeat_us)
    changes["heartbeat_us"] = min(heartbeat_us, changes.get("dead_us", settings.dead_us))
    return msgspec.structs.replace(settings, **changes)
