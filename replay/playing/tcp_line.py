"""A TCP line made of datagrams: a SoupBinTCP session, or length-prefixed packets.

`TcpFrames` makes of datagrams what a line by TCP sends: those of one service that go on with its
numbers, each message once, whichever lines they were recorded on. `TcpLineServer` keeps all that
was sent and has a session for each client. A login to the SoupBinTCP session, which has the name
and the numbers of the packets, gets what it asks for, whenever it comes; of packets behind lengths
a client gets what is sent from then on. All usernames and passwords are taken.

Sans-IO, as `retrans.serving`: bytes and the time are arguments.
"""

from typing import Any

from feedhandler.codecs import soupbin
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import PacketHeader
from feedhandler.codecs.scanner import parse_header
from feedhandler.codecs.soupbin import Login, LoginAccepted
from feedhandler.retrans.protocols import moldudp64
from feedhandler.retrans.serving import ClientSession, ClientsServer
from feedhandler.retrans.settings import ServerSettings
from feedhandler.retrans.soupbin_serving import COUNTS, SoupBinSession

#: The framings of a line by TCP, as `[channel.line.tcp]` names them.
SOUPBIN, LENGTH, LENGTH_LITTLE = FRAMINGS = ("soupbin", "length", "length-little")
#: Bytes of the length in front of a message in a MoldUDP64 packet, and of that in front of a
#: packet; a length of 0 is a sign of life.
LENGTH_BYTES = 2
SIGN_OF_LIFE = bytes(LENGTH_BYTES)


class TcpFrames:
    """Frames that a line by TCP sends of a feed's datagrams.

    `service`, `session` and `first` are those of the first packet, None and empty before; `others`
    counts packets of other services, `lacking` numbers that no datagram had, which a SoupBinTCP
    session cannot leave out: from there on it numbers its messages lower.
    Raises `UsageError` for a SoupBinTCP session of a feed whose packets are not MoldUDP64's.
    """

    def __init__(self, feed: Feed, framing: str) -> None:
        if framing == SOUPBIN:
            moldudp64.check_feed(feed)
        self._feed, self._framing = feed, framing
        self._header = PacketHeader()
        self.service: int | None = None
        self.others = 0
        self._following = 0
        self.session, self.first, self.lacking = "", 1, 0

    def of(self, data: bytes) -> list[bytes]:
        """Return what is sent of a datagram; nothing where it is another service's or a copy."""
        header, table = self._header, self._feed.table
        if parse_header(table, data, 0, len(data), header):
            return []
        if self.service is None:
            self.service, self._following = header.service, header.sequence
            self.first = header.sequence
            if self._framing == SOUPBIN:
                named = data[table.session_at : table.session_at + soupbin.SESSION_BYTES]
                self.session = named.decode("latin-1").strip()
        if header.service != self.service:
            self.others += 1
            return []
        if not header.next_sequence > header.sequence >= self._following:
            return []
        self.lacking += header.sequence - self._following
        self._following = header.next_sequence
        if self._framing != SOUPBIN:
            order: Any = "little" if self._framing == LENGTH_LITTLE else "big"
            return [len(data).to_bytes(LENGTH_BYTES, order) + data]
        bodies = (each[LENGTH_BYTES:] for each in self._feed.messages_of(data))
        return [soupbin.packet(soupbin.SEQUENCED, body) for body in bodies]


class TcpLineServer(ClientsServer[ServerSettings, "SoupBinFollower | LengthFollower"]):
    """The server of one line; `counts` counts by the names of `soupbin_serving.COUNTS`."""

    def __init__(self, frames: TcpFrames, framing: str, settings: ServerSettings) -> None:
        super().__init__(settings, dict.fromkeys(COUNTS, 0))
        self.frames = frames
        self.sent: list[bytes] = []
        self._follower = SoupBinFollower if framing == SOUPBIN else LengthFollower

    def session(self, peer: str, now_ns: int) -> "SoupBinFollower | LengthFollower":
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
        return self.admit(self._follower(self, now_ns))

    @property
    def followed(self) -> bool:
        """Return whether a client follows the line."""
        return any(session.at is not None for session in self.sessions)

    def publish(self, frames: list[bytes]) -> None:
        """Send frames to all who follow."""
        self.sent += frames
        for session in list(self.sessions):
            if session.on_output is not None and frames:
                session.on_output()

    def since(self, at: int) -> tuple[bytes, int]:
        """Return frames from offset `at` on, about `chunk_bytes` of them, and the next offset."""
        chunk = bytearray()
        while at < len(self.sent) and len(chunk) < self.settings.chunk_bytes:
            chunk += self.sent[at]
            at += 1
        return bytes(chunk), at


class SoupBinFollower(SoupBinSession[TcpLineServer]):
    """A client of a SoupBinTCP session; `at` is the offset of its next frame, None before login."""

    at: int | None = None

    @property
    def _busy(self) -> bool:
        return self.at is not None and self.at < len(self._server.sent)

    def _drop(self) -> None:
        self.at = None

    def _chunk(self) -> bytes:
        assert self.at is not None
        chunk, self.at = self._server.since(self.at)
        return chunk

    def _admit(self, login: Login) -> LoginAccepted | bytes:
        frames, count = self._server.frames, len(self._server.sent)
        if login.session not in ("", frames.session):
            return soupbin.NO_SESSION
        # 0 asks for the latest message; a number that is not there yet, for the next one.
        wanted = login.number - frames.first if login.number else count - 1
        self.at = max(0, min(wanted, count))
        return LoginAccepted(frames.session, frames.first + self.at)


class LengthFollower(ClientSession[TcpLineServer]):
    """A client of length-prefixed packets, which sends nothing."""

    def __init__(self, server: TcpLineServer, now_ns: int) -> None:
        super().__init__(server, now_ns)
        self.at: int | None = len(server.sent)

    @property
    def _busy(self) -> bool:
        return self.at is not None and self.at < len(self._server.sent)

    def _drop(self) -> None:
        self.at = None

    def feed(self, data: bytes, now_ns: int) -> bytes:
        """Pass over what the client sends."""
        return b""

    def tick(self, now_ns: int) -> bytes:
        """Let time pass and return the bytes to write: more frames, or a sign of life."""
        self._heard_ns = now_ns
        if self._idle(now_ns):
            return b""
        if self._busy:
            assert self.at is not None
            self._said_ns = now_ns
            chunk, self.at = self._server.since(self.at)
            return chunk
        return SIGN_OF_LIFE if self._beats(now_ns) else b""
