"""The server of GLIMPSE snapshots: what an exchange offers, for many clients at once.

A client logs in; the state as it is then goes out to it, a chunk at a time so that clients take
turns, and last the number of the first message that is not in it (`glimpse` has the messages). Then
the client logs out, or is closed when it has been silent for too long.

A client costs a bounded amount of memory: its snapshot is the one that the source gave, shared
where the source shares it, and what is written of it is no more than the connection takes. A
connection that takes nothing for too long is closed.

Sans-IO; `retrans.protocols.setup` says what it must do.
"""

import hmac
import itertools
from collections.abc import Iterator

from feedhandler.codecs import soupbin
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.soupbin import Login, LoginAccepted
from feedhandler.retrans import soupbin_serving
from feedhandler.retrans.protocols.glimpse import END, FIRST, MESSAGE_LENGTH, check_feed
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.serving import ClientsServer
from feedhandler.retrans.settings import ServerSettings
from feedhandler.retrans.soupbin_serving import SoupBinSession

#: What the server counts, by name.
SERVER_COUNTS: dict[str, str] = {
    **soupbin_serving.COUNTS,
    "snapshots": "snapshots sent whole",
    "bytes": "bytes of snapshots",
}


class GlimpseServer(ClientsServer[ServerSettings, "GlimpseSession"]):
    """The GLIMPSE server of one channel; `counts` counts by the names of `SERVER_COUNTS`.

    `setup.refresher` is a `SnapshotSource`. A client is known by username: those of the settings'
    `source_ids`, where there are any, and by password, where `setup.passwords` has the username's.

    Raises `UsageError` for a feed of another framing, and another number of services than one.
    """

    def __init__(self, setup: ServerSetup) -> None:
        check_feed(setup.feed)
        if len(setup.stores) != 1:
            raise UsageError("a GLIMPSE server serves one channel", "give each channel a server")
        super().__init__(setup.settings, dict.fromkeys(SERVER_COUNTS, 0))
        (self.service,) = setup.stores
        self.setup = setup

    def session(self, peer: str, now_ns: int) -> "GlimpseSession":
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
        return self.admit(GlimpseSession(self, now_ns))

    def refusal(self, login: Login) -> bytes:
        """Return why a login is refused, or b""."""
        allowed, known = self.settings.source_ids, self.setup.passwords
        if allowed and login.username not in allowed:
            return soupbin.NOT_AUTHORIZED
        wanted = known.get(login.username, login.password if not known else None)
        if wanted is None or not hmac.compare_digest(wanted.encode(), login.password.encode()):
            return soupbin.NOT_AUTHORIZED
        return soupbin.NO_SESSION if login.session not in ("", self.setup.session) else b""

    def snapshot(self) -> Iterator[bytes] | None:
        """Return the packets of a snapshot of now; None where there is none."""
        state = self.setup.refresher(self.service) if self.setup.refresher is not None else None
        if state is None:
            return None
        last, messages = state
        end = END + b"%0*d" % (soupbin.NUMBER_BYTES, last + 1)
        bodies = itertools.chain((message[MESSAGE_LENGTH.size :] for message in messages), (end,))
        return (soupbin.packet(soupbin.SEQUENCED, body) for body in bodies)


class GlimpseSession(SoupBinSession[GlimpseServer]):
    """The server's end of one client's connection."""

    def __init__(self, server: GlimpseServer, now_ns: int) -> None:
        super().__init__(server, now_ns)
        #: What is left of the snapshot; None before and behind it.
        self._snapshot: Iterator[bytes] | None = None

    @property
    def _busy(self) -> bool:
        return self._snapshot is not None

    def _drop(self) -> None:
        self._snapshot = None

    def _chunk(self) -> bytes:
        chunk = bytearray()
        while self._snapshot is not None and len(chunk) < self._server.settings.chunk_bytes:
            packet = next(self._snapshot, None)
            if packet is None:
                self._snapshot = None
                self._counts["snapshots"] += 1
            else:
                chunk += packet
        self._counts["bytes"] += len(chunk)
        return bytes(chunk)

    def _admit(self, login: Login) -> LoginAccepted | bytes:
        server = self._server
        if refusal := server.refusal(login):
            return refusal
        self._snapshot = server.snapshot()
        if self._snapshot is None:
            return soupbin.NO_SESSION
        return LoginAccepted(server.setup.session, FIRST)
