"""The server of CME's TCP replay: one request a connection, answered by packets and a logout.

The wire and its source are `cme_replay`'s. A client that logs on is confirmed, its first request is
judged, and its packets are sent a share with each `tick`, a logout behind them; further requests of
the connection are ignored. A logout whose text says why refuses a logon or a request. Then the
connection is closed.

Sans-IO; `retrans.protocols.setup` says what it must do.
"""

from collections.abc import Iterator

from feedhandler.retrans.packet_reading import packets_of
from feedhandler.retrans.protocol import WireError
from feedhandler.retrans.protocols.cme_replay import (
    BEATS,
    BEGIN,
    CHANNEL,
    END,
    HEARTBEAT,
    LENGTH,
    LOGON,
    LOGOUT,
    LOGS_ON,
    LOGS_OUT,
    MSG_TYPE,
    NUMBER_MAX,
    PACKET,
    PACKETS_MAX,
    REQUESTS,
    SOH,
    USERNAME,
    check_feed,
    fields_of,
)
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.server import DailyQuota
from feedhandler.retrans.serving import ClientsServer, PacketSession, PacketsOwed
from feedhandler.retrans.settings import ServerSettings

#: Longest message of a client.
REQUEST_BYTES_MAX = 512
#: Digits of a BodyLength, and bytes of a CheckSum field.
LENGTH_DIGITS, CHECKSUM_BYTES = 3, 7
#: Characters of a logout's text.
TEXT_CHARS = 180
#: The longest HeartBtInt that a logon can give.
HEARTBEAT_S_MAX = 127
#: The text of a logout behind all packets.
COMPLETE = "replay complete"

#: What the server counts, by name.
SERVER_COUNTS: dict[str, str] = {
    "clients": "connections accepted",
    "clients_refused": "connections closed because there were too many",
    "clients_left": "connections that the client or the network ended",
    "clients_silent": "connections closed because the client was silent",
    "clients_wrong": "connections closed because of what the client sent",
    "badly_formed": "messages that cannot be read",
    "too_long": "messages longer than any may be",
    "wrong_direction": "messages that no client may send now",
    "logins": "logins accepted",
    "login_refused": "logins refused",
    "heartbeats": "heartbeats from clients",
    "heartbeats_sent": "heartbeats sent",
    "requests": "requests for packets",
    "accepted": "requests accepted",
    "rejected": "requests rejected",
    "ignored": "requests after the first of a connection",
    "cut_short": "answers cut short because the packets had left the window meanwhile",
    "replays": "answers sent whole",
    "packets": "packets in them",
    "bytes": "bytes of them",
}


class TextStream:
    """Cuts what a client sends into messages; holds one that is incomplete, of bounded size.

    Where no message begins, or one is too long or has another CheckSum, `failure` says so, behind
    the messages before it; after that nothing more is taken.
    """

    def __init__(self) -> None:
        self.failure: WireError | None = None
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take in received bytes and return the messages that are whole now."""
        messages: list[bytes] = []
        self._held += data
        try:
            while size := self._whole():
                messages.append(bytes(self._held[:size]))
                del self._held[:size]
        except WireError as error:
            self.failure = error
        return messages

    def _whole(self) -> int:
        """Return the size of the message at the front; 0: it is not whole yet."""
        head = bytes(self._held[: len(b"9=") + LENGTH_DIGITS + 1])
        digits, soh, _ = head[len(b"9=") :].partition(SOH)
        if not b"9=".startswith(head[:2]) or (digits and not digits.isdigit()):
            raise WireError("badly_formed", "a message without BodyLength")
        if not soh:
            if len(digits) > LENGTH_DIGITS:
                raise WireError("too_long", "a message longer than any may be")
            return 0
        if not digits or int(digits) > REQUEST_BYTES_MAX:
            raise WireError("too_long", f"a message of {digits.decode()} bytes")
        body_end = len(b"9=") + len(digits) + 1 + int(digits)
        if len(self._held) < body_end + CHECKSUM_BYTES:
            return 0
        wanted = b"10=%03d" % (sum(self._held[:body_end]) & 0xFF) + SOH
        if self._held[body_end : body_end + CHECKSUM_BYTES] != wanted:
            raise WireError("badly_formed", "a message with another CheckSum")
        return body_end + CHECKSUM_BYTES


def _range(fields: dict[int, bytes]) -> tuple[int, int, int]:
    """Return channel, first number and number after of a request; (0, 0, 0): it has none."""
    found = [fields.get(tag, b"") for tag in (CHANNEL, BEGIN, END)]
    if not all(value.isdigit() and len(value) <= 10 for value in found):
        return 0, 0, 0
    channel, first, last = map(int, found)
    return channel, first, last + 1


class ReplayServer(ClientsServer[ServerSettings, "ReplaySession"]):
    """The replay server of any number of channels; `counts` counts by the names of `SERVER_COUNTS`.

    A client is known by its username: one of the settings' `source_ids`; where these are empty,
    any. Passwords are not compared. Raises `UsageError` for a feed of another framing.
    """

    def __init__(self, setup: ServerSetup) -> None:
        check_feed(setup.feed)
        super().__init__(setup.settings, dict.fromkeys(SERVER_COUNTS, 0))
        self.setup = setup
        self.quota = DailyQuota(setup.settings.requests_per_day)
        beat_s = min(-(-self.settings.heartbeat_us // 1_000_000), HEARTBEAT_S_MAX)
        self.confirmation = setup.feed.encode_message(LOGON, heart_bt_int=beat_s)
        self.beat = setup.feed.encode_message(HEARTBEAT)

    def session(self, peer: str, now_ns: int) -> "ReplaySession":
        """Return the session of a new connection from `peer`; `closed` where there are too many."""
        return self.admit(ReplaySession(self, now_ns))

    def judge(self, username: str, channel: int, first: int, end: int, now_ns: int) -> str:
        """Return why a request is refused; "": it is not. Counts it for the day."""
        store = self.setup.stores.get(channel)
        if store is None:
            return f"channel {channel} is not replayed here"
        if not 0 < first < end <= NUMBER_MAX + 1:
            return "the range is empty, or has numbers that no packet has"
        most = min(self.settings.request_packets_max, PACKETS_MAX)
        if end - first > most:
            return f"more than {most} packets"
        if not self.quota.try_acquire(username, self.setup.feed.trading_day.since_ns(now_ns)):
            return "too many requests today"
        if not store.covers(first, end):
            return "not all of these packets are available"
        return ""


class ReplaySession(PacketSession[ReplayServer]):
    """The server's end of one client's connection."""

    closes_slow = False

    def __init__(self, server: ReplayServer, now_ns: int) -> None:
        super().__init__(server, now_ns)
        #: The username, once logged on.
        self._name = ""
        self._stream = TextStream()
        self._answer: PacketsOwed | None = None
        self._asked = False
        self._number = 0

    @property
    def _busy(self) -> bool:
        return self._answer is not None and self._paused_ns is None

    def _drop(self) -> None:
        self._answer = None

    def _own(self, message: bytes, now_ns: int) -> bytes:
        """Return a message of the session as a packet, behind its length."""
        self._number += 1
        self._said_ns = now_ns
        return framed(PACKET.pack(self._number, now_ns) + message)

    def _logout(self, text: str, now_ns: int) -> bytes:
        message = self._server.setup.feed.encode_message(LOGOUT, text=text[:TEXT_CHARS])
        return self._own(message, now_ns)

    def tick(self, now_ns: int) -> bytes:
        """Let time pass and return the bytes to write: packets of an answer, or a heartbeat."""
        if self._idle(now_ns):
            return b""
        if self._busy:
            return self._share(now_ns)
        return self._own(self._server.beat, now_ns) if self._beats(now_ns) else b""

    def _share(self, now_ns: int) -> bytes:
        """Return the next packets of the answer; behind the last one the logout."""
        answer, counts = self._answer, self._counts
        assert answer is not None
        store, share = answer.store, bytearray()
        if not (answer.same and store.covers(answer.at, answer.end)):
            self._close("cut_short", "the packets are no longer available")
            return self._logout(self.closed, now_ns)
        for number, end, packet in store.packets(answer.at, answer.end):
            if len(share) >= self._server.settings.chunk_bytes:
                break
            assert end == number + 1, "numbers count packets"
            share += framed(packet)
            counts["packets"] += 1
            answer.at = end
        counts["bytes"] += len(share)
        if answer.at >= answer.end:
            self._close("replays", COMPLETE)
            share += self._logout(COMPLETE, now_ns)
        return bytes(share)

    def _packets(self, data: bytes) -> Iterator[bytes]:
        return packets_of(self._stream, data)

    def _packet(self, packet: bytes, now_ns: int, output: bytearray) -> None:
        output += self._message(fields_of(packet), now_ns)

    def _message(self, fields: dict[int, bytes], now_ns: int) -> bytes:
        code, counts = fields.get(MSG_TYPE, b""), self._counts
        if code == LOGS_OUT:
            self._close("clients_left", "the client logged out")
            return b""
        if code == LOGS_ON and not self._name:
            return self._logged_on(fields, now_ns)
        if code == BEATS and self._name:
            counts["heartbeats"] += 1
            return b""
        if code != REQUESTS or not self._name:
            raise WireError("wrong_direction", "a message that no client may send now")
        if self._asked:
            counts["ignored"] += 1
            return b""
        self._asked = True
        return self._requested(fields, now_ns)

    def _logged_on(self, fields: dict[int, bytes], now_ns: int) -> bytes:
        name = fields.get(USERNAME, b"").decode("ascii", "replace")
        allowed = self._server.settings.source_ids
        if not name or (allowed and name not in allowed):
            self._close("login_refused", "unknown username")
            return self._logout("unknown username or password", now_ns)
        self._counts["logins"] += 1
        self._name = name
        return self._own(self._server.confirmation, now_ns)

    def _requested(self, fields: dict[int, bytes], now_ns: int) -> bytes:
        counts = self._counts
        counts["requests"] += 1
        channel, first, end = _range(fields)
        reason = self._server.judge(self._name, channel, first, end, now_ns)
        if reason:
            self._close("rejected", reason)
            return self._logout(reason, now_ns)
        counts["accepted"] += 1
        store = self._server.setup.stores[channel]
        self._answer = PacketsOwed(store, first, end)
        return b""


def framed(packet: bytes) -> bytes:
    """Return a packet behind its length."""
    return LENGTH.pack(len(packet)) + packet
