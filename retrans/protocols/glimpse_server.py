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
from collections.abc import Callable, Iterator

from feedhandler.codecs import soupbin
from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.soupbin import Login, LoginAccepted, SoupStream
from feedhandler.retrans.protocol import NEVER_NS, WireError
from feedhandler.retrans.protocols.glimpse import END, FIRST, MESSAGE_LENGTH, check_feed
from feedhandler.retrans.protocols.setup import ServerSetup

#: Longest payload that a client may send: a login has 46 bytes.
PAYLOAD_BYTES_MAX = 256

#: What the server counts, by name.
SERVER_COUNTS: dict[str, str] = {
    "clients": "connections accepted",
    "clients_refused": "connections closed because there were too many",
    "clients_left": "connections that the client or the network ended",
    "clients_silent": "connections closed because nothing came from the client",
    "clients_slow": "connections closed because the client took nothing any more",
    "clients_wrong": "connections closed because of what the client sent",
    "logins": "logins accepted",
    "login_refused": "logins refused",
    "logouts": "clients that logged out",
    "heartbeats": "heartbeats from clients",
    "heartbeats_sent": "heartbeats sent",
    "snapshots": "snapshots sent whole",
    "bytes": "bytes of snapshots",
    "wrong_direction": "packets that no client may send, or not now",
    "bad_packet": "packets that no SoupBinTCP client sends",
    "badly_formed": "logins that cannot be read",
}


class GlimpseServer:
    """The GLIMPSE server of one channel; `counts` counts by the names of `SERVER_COUNTS`.

    `setup.refresher` is a `SnapshotSource`. A client is known by username: those of the settings'
    `source_ids`, where there are any, and by password, where `setup.passwords` has the username's.

    Raises `UsageError` for a feed of another framing, and another number of services than one.
    """

    def __init__(self, setup: ServerSetup) -> None:
        check_feed(setup.feed)
        if len(setup.stores) != 1:
            raise UsageError("a GLIMPSE server serves one channel", "give each channel a server")
        (self.service,) = setup.stores
        self.setup = setup
        self.settings = setup.settings
        self.sessions: set[GlimpseSession] = set()
        self.counts: dict[str, int] = dict.fromkeys(SERVER_COUNTS, 0)

    def session(self, peer: str, now_ns: int) -> "GlimpseSession":
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
        session = GlimpseSession(self, now_ns)
        if len(self.sessions) >= self.settings.clients_max:
            self.counts["clients_refused"] += 1
            session.closed = f"more than {self.settings.clients_max} clients"
        else:
            self.counts["clients"] += 1
            self.sessions.add(session)
        return session

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
        bodies = itertools.chain((each[MESSAGE_LENGTH.size :] for each in messages), (end,))
        return (soupbin.packet(soupbin.SEQUENCED, body) for body in bodies)


class GlimpseSession:
    """The server's end of one client's connection."""

    def __init__(self, server: GlimpseServer, now_ns: int) -> None:
        self.closed = ""
        self.on_output: Callable[[], None] | None = None
        self._server = server
        self._stream = SoupStream(soupbin.FROM_CLIENT, PAYLOAD_BYTES_MAX)
        self._logged_in = False
        #: What is left of the snapshot; None before and behind it.
        self._snapshot: Iterator[bytes] | None = None
        self._now_ns = self._heard_ns = self._said_ns = now_ns
        self._paused_ns: int | None = None

    # -- the connection -------------------------------------------------------------------------

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next: at once while there is more to write."""
        if self.closed:
            return NEVER_NS
        settings = self._server.settings
        dead_ns, beat_ns = settings.dead_us * 1_000, settings.heartbeat_us * 1_000
        if self._paused_ns is not None:
            return self._paused_ns + dead_ns
        if self._snapshot is not None:
            return self._now_ns
        return min(self._heard_ns + dead_ns, self._said_ns + beat_ns)

    def pause(self, now_ns: int) -> None:
        """Return nothing more until `resume`: the connection takes no more."""
        self._now_ns = now_ns
        if self._paused_ns is None:
            self._paused_ns = now_ns

    def resume(self, now_ns: int) -> None:
        """Return output again; what the client said meanwhile is still to be read."""
        self._now_ns = self._heard_ns = now_ns
        self._paused_ns = None

    def end(self) -> None:
        """End the session of a connection that is gone."""
        if not self.closed:
            self._close("clients_left", "the client left")

    def _close(self, name: str, reason: str) -> None:
        self._server.counts[name] += 1
        self.closed = reason
        self._snapshot = None
        self._server.sessions.discard(self)

    # -- time and bytes -------------------------------------------------------------------------

    def tick(self, now_ns: int) -> bytes:
        """Let time pass and return the bytes to write: more of the snapshot, or a heartbeat."""
        if self.closed or now_ns < self.deadline_ns:
            return b""
        self._now_ns = now_ns
        settings = self._server.settings
        if self._paused_ns is not None:
            self._close("clients_slow", "the client takes nothing any more")
            return b""
        if self._snapshot is not None:
            return self._chunk(now_ns)
        if now_ns >= self._heard_ns + settings.dead_us * 1_000:
            self._close("clients_silent", "the client is silent")
            return b""
        self._said_ns = now_ns
        self._server.counts["heartbeats_sent"] += 1
        return soupbin.packet(soupbin.SERVER_HEARTBEAT)

    def _chunk(self, now_ns: int) -> bytes:
        """Return the next packets of the snapshot, about `chunk_bytes` of them."""
        chunk = bytearray()
        while self._snapshot is not None and len(chunk) < self._server.settings.chunk_bytes:
            packet = next(self._snapshot, None)
            if packet is None:
                self._snapshot = None
                self._server.counts["snapshots"] += 1
            else:
                chunk += packet
        self._said_ns = now_ns
        self._server.counts["bytes"] += len(chunk)
        return bytes(chunk)

    def feed(self, data: bytes, now_ns: int) -> bytes:
        """Take in the client's bytes and return the bytes to write."""
        if self.closed or not data:
            return b""
        self._now_ns = now_ns
        output = bytearray()
        packets, fault = self._stream.feed(data)
        try:
            for kind, payload in packets:
                self._heard_ns = now_ns
                if not self.closed:
                    output += self._packet(kind, payload, now_ns)
            if fault and not self.closed:
                raise WireError("bad_packet", fault)
        except WireError as error:
            self._server.counts[error.name] += 1
            self._close("clients_wrong", f"the client sent {error.message}")
        return bytes(output)

    def _packet(self, kind: bytes, payload: bytes, now_ns: int) -> bytes:
        if kind == soupbin.LOGIN_REQUEST and not self._logged_in:
            return self._login(payload, now_ns)
        if kind == soupbin.CLIENT_HEARTBEAT:
            self._server.counts["heartbeats"] += 1
        elif kind == soupbin.LOGOUT_REQUEST:
            self._close("logouts", "the client logged out")
        elif kind != soupbin.DEBUG:
            raise WireError("wrong_direction", f"a packet of type {kind!r}")
        return b""

    def _login(self, payload: bytes, now_ns: int) -> bytes:
        server = self._server
        try:
            login = Login.decode(payload)
        except PeerError as error:
            raise WireError("badly_formed", error.message) from None
        refusal, snapshot = server.refusal(login), None
        if not refusal:
            snapshot = server.snapshot()
            refusal = b"" if snapshot is not None else soupbin.NO_SESSION
        self._said_ns = now_ns
        if refusal:
            self._close("login_refused", soupbin.REJECT_REASONS[refusal])
            return soupbin.packet(soupbin.LOGIN_REJECTED, refusal)
        server.counts["logins"] += 1
        self._logged_in, self._snapshot = True, snapshot
        return LoginAccepted(server.setup.session, FIRST).encode()
