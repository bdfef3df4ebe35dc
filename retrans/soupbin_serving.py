"""The server's end of a SoupBinTCP session: login, heartbeats, and sequenced packets, chunk by
chunk.

What is sent, and who is let in, is the subclass's: a snapshot (`protocols.glimpse_server`), or a
stream that goes on (`replay.playing.tcp_line`). Sans-IO, as `serving`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TypeVar

from feedhandler.codecs import soupbin
from feedhandler.codecs.errors import PeerError
from feedhandler.codecs.soupbin import Login, LoginAccepted, SoupStream
from feedhandler.retrans.protocol import WireError
from feedhandler.retrans.serving import ClientsServer, PacketSession

#: Longest payload that a client may send: a login has 46 bytes.
PAYLOAD_BYTES_MAX = 256

#: What a server of such sessions counts, by name.
COUNTS: dict[str, str] = {
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
    "wrong_direction": "packets that no client may send, or not now",
    "bad_packet": "packets that no SoupBinTCP client sends",
    "badly_formed": "logins that cannot be read",
}

ServerT = TypeVar("ServerT", bound=ClientsServer)  # type: ignore[type-arg]


class SoupBinSession(PacketSession[ServerT]):
    """The server's end of one client's connection."""

    def __init__(self, server: ServerT, now_ns: int) -> None:
        super().__init__(server, now_ns)
        self._stream = SoupStream(soupbin.FROM_CLIENT, PAYLOAD_BYTES_MAX)
        self._logged_in = False

    @abstractmethod
    def _admit(self, login: Login) -> LoginAccepted | bytes:
        """Begin what a client asks for, and return that it is accepted; else the refusal."""

    @abstractmethod
    def _chunk(self) -> bytes:
        """Return the next packets, about `chunk_bytes` of them; called while `_busy`."""

    def tick(self, now_ns: int) -> bytes:
        """Let time pass and return the bytes to write: more packets, or a heartbeat."""
        if self._idle(now_ns, patient=self._busy):
            return b""
        if self._busy:
            self._said_ns = now_ns
            return self._chunk()
        return soupbin.packet(soupbin.SERVER_HEARTBEAT) if self._beats(now_ns) else b""

    def _packets(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        packets, fault = self._stream.feed(data)
        yield from packets
        if fault:
            raise WireError("bad_packet", fault)

    def _packet(self, packet: tuple[bytes, bytes], now_ns: int, output: bytearray) -> None:
        kind, payload = packet
        if kind == soupbin.LOGIN_REQUEST and not self._logged_in:
            output += self._login(payload, now_ns)
        elif kind == soupbin.CLIENT_HEARTBEAT:
            self._counts["heartbeats"] += 1
        elif kind == soupbin.LOGOUT_REQUEST:
            self._close("logouts", "the client logged out")
        elif kind != soupbin.DEBUG:
            raise WireError("wrong_direction", f"a packet of type {kind!r}")

    def _login(self, payload: bytes, now_ns: int) -> bytes:
        try:
            login = Login.decode(payload)
        except PeerError as error:
            raise WireError("badly_formed", error.message) from None
        self._said_ns = now_ns
        answer = self._admit(login)
        if isinstance(answer, bytes):
            self._close("login_refused", soupbin.REJECT_REASONS[answer])
            return soupbin.packet(soupbin.LOGIN_REJECTED, answer)
        self._counts["logins"] += 1
        self._logged_in = True
        return answer.encode()
