"""The exchange's side of recovery in the simulation: retransmission server, refresh server, faults.

The servers are the real cores (`retrans.server.RequestServer`, `retrans.snapshots.SnapshotCutter`)
behind simulated TCP links and refresh lines. Between a link and its server stands `Mischief`, which
now and then lets the server behave badly: refuse for any reason, stall, answer another range,
another client or a question never asked, send garbage, the answer twice, half of it and then
disconnect, or keep its heartbeats to itself. Requests and answers are taken apart here by the
specification's offsets, not by the code under test.
"""

import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from network import MS, NEVER, Connection, TcpFaults, TcpLink, sometimes
from sessions import DATA, FEED, HEADER, RESET, Session

from feedhandler.retrans.server import RequestServer
from feedhandler.retrans.settings import ServerSettings
from feedhandler.retrans.snapshots import SnapshotCutter
from feedhandler.retrans.store import PacketStore

RANGE = struct.Struct(">II20s")
ANSWER = struct.Struct(">I20ssBxx")
REQUEST_TYPE, ANSWER_TYPE, REFRESH_TYPE, REFRESH_ANSWER_TYPE = 20, 10, 22, 23
SOURCE_ID = "SIMULATED"

#: What a server may do instead of its duty.
RETRANS_TRICKS = (
    "refuse", "stall", "other range", "other client", "garbage", "half", "unasked", "twice", "slow",
    "live flag",
)  # fmt: skip
REFRESH_TRICKS = ("refuse", "stall", "garbage", "unasked", "mute", "twice")
REASONS = range(1, 8)


@dataclass
class Mischief:
    """Rates at which a server plays each trick on a request, until `until_ns`.

    `silent` are times in which its heartbeats are lost.
    """

    rates: dict[str, float] = field(default_factory=dict)
    silent: list[tuple[int, int]] = field(default_factory=list)
    until_ns: int = NEVER
    played: Counter = field(default_factory=Counter)

    @classmethod
    def drawn(cls, draw: random.Random, tricks: tuple[str, ...], duration_ns: int) -> "Mischief":
        """A swarm: each trick is off, or has a rate of its own."""
        mischief = cls(until_ns=duration_ns)
        if draw.random() < 0.5:
            mischief.rates = {trick: sometimes(draw, 0.3, 0.0, 0.5) for trick in tricks}
            if draw.random() < 0.1:
                mischief.rates = {draw.choice(tricks): 1.0}
        if draw.random() < 0.2:
            begin = draw.randrange(duration_ns)
            mischief.silent.append((begin, begin + draw.randrange(1_000 * MS)))
        return mischief

    def pick(self, draw: random.Random, now_ns: int) -> str:
        """The trick to play on a request that came now, or nothing."""
        if now_ns < self.until_ns:
            for trick, rate in self.rates.items():
                if rate and draw.random() < rate:
                    self.played[trick] += 1
                    return trick
        return ""


@dataclass
class RefreshFaults:
    """Faults of snapshots on their way out, on both lines alike; rates are per snapshot."""

    start_lost: float = 0.0
    end_lost: float = 0.0
    gap: float = 0.0
    again: float = 0.0
    mute: float = 0.0
    until_ns: int = NEVER

    @classmethod
    def drawn(cls, draw: random.Random, duration_ns: int) -> "RefreshFaults":
        """The refresh faults of a seed."""
        faults = cls(until_ns=duration_ns)
        for name in ("start_lost", "end_lost", "gap", "again", "mute"):
            setattr(faults, name, sometimes(draw, 0.3, 0.0, 0.6))
        return faults


class Exchange:
    """Exchange's output up to now, servers' windows and snapshots included.

    `stretch` scales the session's times; `send_refresh(service, [(at, packet)])` gives packets to
    the refresh lines. Windows are brought up to date when they are read.
    """

    def __init__(
        self,
        session: Session,
        stretch: float,
        draw: random.Random,
        window_bytes: int,
        faults: RefreshFaults,
        send_refresh: Callable[[int, list[tuple[int, bytes]]], None],
    ) -> None:
        self.session = session
        self.draw = draw
        self.faults = faults
        self.stores = {service: PacketStore(window_bytes) for service in session.services}
        self.snapshots = Counter[str]()
        self._times = [int(sent.at * stretch) for sent in session.sent]
        self._reached = 0
        #: service -> index of its last packet that was sent, -1 before the first.
        self._last_sent = dict.fromkeys(session.services, -1)
        self._refresh_next = dict.fromkeys(session.services, 1)
        self._subscribers: dict[int, list[Callable[[list[bytes]], None]]] = {
            service: [] for service in session.services
        }
        self._busy_until = dict.fromkeys(session.services, 0)
        self._cutter = SnapshotCutter(FEED)
        self._send_refresh = send_refresh

    def advance(self, now_ns: int) -> None:
        """Take in what was sent by now."""
        sent, times, at = self.session.sent, self._times, self._reached
        while at < len(sent) and times[at] <= now_ns:
            packet = sent[at]
            self._last_sent[packet.service] = packet.number
            if packet.kind == DATA:
                data = packet.packet
                self.stores[packet.service].append(
                    packet.sequence, packet.next_sequence, data, 0, len(data)
                )
            elif packet.kind == RESET:
                self.stores[packet.service].clear()
            at += 1
        self._reached = at

    def request(self, service: int, now_ns: int) -> int:
        """A snapshot is wanted (the server's `Refresher`): it goes out on the refresh lines."""
        self.advance(now_ns)
        if service not in self._last_sent or self._last_sent[service] < 0:
            return 6
        if self._busy_until[service] > now_ns:
            return 0  # the one under way is for everybody
        self.snapshot(service, now_ns)
        return 0

    def subscribe(
        self, service: int, callback: Callable[[list[bytes]], None]
    ) -> Callable[[], None]:
        """`callback` gets the service's snapshots too, over a connection."""
        heard = self._subscribers[service]
        heard.append(callback)
        return lambda: heard.remove(callback)

    def snapshot(self, service: int, now_ns: int) -> None:
        """Cut the service's state and send it, with what may go wrong on the way."""
        self.advance(now_ns)
        last = self._last_sent[service]
        if last < 0:
            return
        faults, chance = self.faults, self.draw.random
        calm = now_ns >= faults.until_ns
        if not calm and chance() < faults.mute:
            self.snapshots["mute"] += 1
            return
        packets = self._cut(service, last, now_ns)
        at, pace = now_ns + 200_000, 20_000
        self.snapshots["sent"] += 1
        if not calm and chance() < faults.again:
            # It breaks off and begins anew, without an end.
            cut = self.draw.randrange(1, len(packets) + 1)
            self.snapshots["again"] += 1
            at = self._put(service, packets[:cut], at, pace)
            self._refresh_next[service] -= len(packets) - cut
            packets = self._cut(service, last, now_ns)
        kept = list(range(len(packets)))
        if not calm and chance() < faults.start_lost:
            self.snapshots["start lost"] += 1
            del kept[0]
        if not calm and kept and chance() < faults.end_lost:
            self.snapshots["end lost"] += 1
            del kept[-1]
        if not calm and len(kept) > 2 and chance() < faults.gap:
            self.snapshots["gap"] += 1
            del kept[self.draw.randrange(1, len(kept) - 1)]
        self._busy_until[service] = self._put(service, [packets[n] for n in kept], at, pace)

    def _cut(self, service: int, index: int, now_ns: int) -> list[bytes]:
        packet = self.session.packets[service][index]
        last = packet.sequence
        messages = list(self.session.truth(service, index).messages)
        first = self._refresh_next[service]
        packets = self._cutter.cut(
            service, messages, last, first, HEADER.unpack_from(packet.packet)[3]
        )
        self._refresh_next[service] = first + len(packets)
        return packets

    def _put(self, service: int, packets: list[bytes], at: int, pace: int) -> int:
        for callback in list(self._subscribers[service]):
            callback(packets)
        timed = [(at + pace * n, packet) for n, packet in enumerate(packets)]
        self._send_refresh(service, timed)
        return at + pace * len(packets)


class Port:
    """A server that listens: `kind` is "rts" or "rfs".

    `schedule(at, function, *arguments)` and `now()` are the world's.
    """

    def __init__(
        self,
        kind: str,
        exchange: Exchange,
        settings: ServerSettings,
        faults: TcpFaults,
        mischief: Mischief,
        draw: random.Random,
        schedule: Callable[..., None],
    ) -> None:
        self.kind = kind
        self.exchange = exchange
        self.faults = faults
        self.mischief = mischief
        self.draw = draw
        self.schedule = schedule
        self.requests = Counter[str]()
        #: Reasons of refusals that were tricks.
        self.refused = Counter[int]()
        self.bytes_sent = 0
        self.server = RequestServer(FEED, exchange.stores, settings, exchange)

    def connect(self, now_ns: int, to_client: Callable[[bytes | None, int], None]):
        """A connection whose client's end is `to_client`, or None: refused."""
        faults = self.faults
        if now_ns < faults.until_ns and faults.refused and self.draw.random() < faults.refused:
            return None
        return PortConnection(self, to_client, now_ns)


class PortConnection(Connection):
    """One client's connection: its link, the server's session, and the mischief between."""

    def __init__(self, port: Port, to_client: Callable[[bytes | None, int], None], now_ns: int):
        super().__init__(TcpLink(port.draw, port.faults), port.schedule, to_client)
        self.port = port
        self._read = b""
        self._session = port.server.session("simulated", now_ns)
        self._session.on_output = self._plan
        self._tick_ns = NEVER
        self._now_ns = now_ns
        self._plan()

    def ended(self) -> None:
        self._session.end()

    def _plan(self) -> None:
        """Have the server ticked when it wants to be, where that is sooner than planned."""
        due = max(self._session.deadline_ns, self._now_ns)
        if self.open and due < self._tick_ns:
            self._tick_ns = due
            self.port.schedule(due, self._tick)

    def _tick(self, now_ns: int) -> None:
        """The server's timers, and answers that go out in parts; its heartbeats may get lost."""
        if not self.open or now_ns != self._tick_ns:
            return
        self._tick_ns, self._now_ns = NEVER, now_ns
        busy = self._session.waiting
        said = self._session.tick(now_ns)
        silent = any(begin <= now_ns < end for begin, end in self.port.mischief.silent)
        if busy or not silent or now_ns >= self.port.mischief.until_ns:
            self._say(said, now_ns)
        self._hang_up(now_ns)
        self._plan()

    def _say(self, data: bytes, now_ns: int) -> None:
        self.port.bytes_sent += len(data)
        self.link.send(1, data, now_ns)
        self.watch()

    def _say_later(self, now_ns: int, data: bytes = b"") -> None:
        self._say(data, now_ns)

    def _end(self) -> None:
        if self.open:
            self.open = False
            self.ended()

    def _hang_up(self, now_ns: int) -> None:
        if self._session.closed and self.open:
            self._end()
            self.link.break_off(now_ns)
            self.watch()

    def heard(self, data: bytes, now_ns: int) -> None:
        """Cut the client's bytes into packets; requests may meet a trick."""
        self._now_ns = now_ns
        self.port.exchange.advance(now_ns)
        self._read += data
        while len(self._read) >= HEADER.size:
            length, kind = HEADER.unpack_from(self._read)[:2]
            if len(self._read) < length:
                break
            packet, self._read = self._read[:length], self._read[length:]
            trick = ""
            if kind in (REQUEST_TYPE, REFRESH_TYPE):
                self.port.requests["requests"] += 1
                trick = self.port.mischief.pick(self.port.draw, now_ns)
                if trick:
                    self._play(trick, packet, kind, now_ns)
            if not trick:
                self._say(self._session.feed(packet, now_ns), now_ns)
            self._hang_up(now_ns)
            if not self.open:
                return
        self._plan()

    def _play(self, trick: str, packet: bytes, kind: int, now_ns: int) -> None:
        draw = self.port.draw
        if trick in ("stall", "mute"):
            if trick == "mute":
                self._say(answer(packet, kind, 0), now_ns)
        elif trick == "refuse":
            reason = draw.choice(REASONS)
            self.port.refused[reason] += 1
            self._say(answer(packet, kind, reason), now_ns)
        elif trick == "garbage":
            self._say(draw.randbytes(draw.randrange(1, 300)), now_ns)
        elif trick == "unasked":
            self._say(answer(packet, kind, 0, shift=draw.randrange(100, 10_000)), now_ns)
        elif trick == "other range":
            begin, end, source = RANGE.unpack_from(packet, HEADER.size)
            shift = draw.choice([-1, 1]) * draw.randrange(1, 20)
            other = RANGE.pack(max(1, begin + shift), max(1, end + shift), source)
            self._say(self._session.feed(packet[: HEADER.size] + other, now_ns), now_ns)
        else:
            self._play_on_answer(trick, self._session.feed(packet, now_ns), now_ns)

    def _play_on_answer(self, trick: str, said: bytes, now_ns: int) -> None:
        """Tricks that spoil an honest answer."""
        draw = self.port.draw
        if trick == "half":
            self._say(said[: draw.randrange(len(said) + 1)], now_ns)
            self._end()
            self.link.break_off(now_ns)
            self.watch()
        elif trick == "other client":
            self._say(said.replace(SOURCE_ID.encode(), b"SOMEBODY_"), now_ns)
        elif trick == "twice":
            self._say(said + said, now_ns)
        elif trick == "live flag":
            self._say(unflagged(said), now_ns)
        else:
            later = now_ns + draw.randrange(300 * MS)
            self.port.schedule(later, self._say_later, said)


def answer(packet: bytes, kind: int, reason: int, shift: int = 0) -> bytes:
    """A response to the request in `packet`."""
    _, _, sequence, time, service, _, _ = HEADER.unpack_from(packet)
    at = HEADER.size + (8 if kind == REQUEST_TYPE else 0)
    source = packet[at : at + 20]
    status = b"R" if reason else b"A"
    body = ANSWER.pack((sequence + shift) & 0xFFFFFFFF, source, status, reason)
    response = ANSWER_TYPE if kind == REQUEST_TYPE else REFRESH_ANSWER_TYPE
    return HEADER.pack(HEADER.size + len(body), response, 1, time, service, 0, 0) + body


def unflagged(said: bytes) -> bytes:
    """The same packets with the delivery flag of live traffic."""
    out, index = bytearray(said), 0
    while index + HEADER.size <= len(out):
        length, kind = HEADER.unpack_from(out, index)[:2]
        if kind == 501:
            out[index + 14] = 0
        index += length
    return bytes(out)
