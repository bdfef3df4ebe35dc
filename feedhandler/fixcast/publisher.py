"""The publisher: channels of a definition, sent by multicast on both lines.

    async with Publisher(channels, ["equities-1"], settings) as publisher:
        await publisher.publish("equities-1", message)

`publish` takes whole FIX messages and waits where a channel has as much waiting as may. Leaving
the block ends the sessions in order: what waits is sent, then the Logouts. The work is
`fixcast.sending`'s; here are sockets, the event loop's clock and the numbering that is kept.
"""

import asyncio
import errno
import ipaddress
import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from feedhandler.codecs.errors import ConfigError, UsageError, reason_of
from feedhandler.fixcast.channels import (
    Address,
    Channel,
    Channels,
    Retransmission,
    host_and_port,
)
from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.numbering import Kept, NumberingFile
from feedhandler.fixcast.pacing import OVERHEAD_BYTES, TokenBucket
from feedhandler.fixcast.resend_service import ResendService
from feedhandler.fixcast.sending import (
    WAITING_MAX,
    ChannelSender,
    SendingSettings,
    next_numbering,
    plain_packer,
)
from feedhandler.fixcast.session import NEVER
from feedhandler.fixcast.values import NUMBER_MAX, Kind, Message
from feedhandler.ingest.lines import Line
from feedhandler.retrans.fix.request import CHANNEL_TAG, RequestFormat
from feedhandler.retrans.fix.server import Answer, ResendServer, ResendSettings, ServedChannel

if TYPE_CHECKING:
    from feedhandler.fixcast.protection import Protection

#: What a line's socket asks the kernel for: the bucket keeps it nearly empty.
SEND_BUFFER_BYTES = 4 << 20
#: How far multicast goes where nothing else is said: a site's network.
HOPS_USUAL = 16
#: Keys are looked for so often: they are made, and given, a minute before they are valid.
KEYS_REFRESH_NS = 1_000_000_000
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """How channels are published.

    interface     local address that multicast leaves by, and of B where that is another; "": the
                  line's source, or loopback where it has none
    rate_bytes_s  of the token bucket, for each line, all channels together, headers included
    burst_bytes   the bucket's size
    state         folder of the numberings that are kept; None: nothing is kept, or locked
    numbering     after an ordered end: "keep" it, or begin a "new" one
    hops          routers that multicast may pass
    serves        answer Resend Requests at the servers that the definition names
    channel_tag   tag of Resend Requests that names the channel
    resend        how they are answered
    keys          folder of keys to seal and sign with; None: datagrams are sent in clear
    """

    interface: str = ""
    interface_b: str = ""
    rate_bytes_s: int = 125_000_000
    burst_bytes: int = 64 << 10
    state: Path | None = None
    numbering: Literal["keep", "new"] = "keep"
    hops: int = HOPS_USUAL
    begin_string: str = "FIXT.1.1"
    tells_numbering: bool = True
    serves: bool = True
    channel_tag: int = CHANNEL_TAG
    resend: ResendSettings = field(default_factory=ResendSettings)
    keys: Path | None = None
    sending: SendingSettings = field(default_factory=SendingSettings)


class _Outlet:
    """One channel with its sockets."""

    def __init__(
        self,
        channel: Channel,
        settings: PublisherSettings,
        bucket: TokenBucket,
        protection: "Protection | None",
    ) -> None:
        self.channel = channel
        header = Header(
            settings.begin_string.encode(),
            channel.sender.encode(),
            channel.topic.encode(),
            settings.tells_numbering,
        )
        # Answers by the retransmission group have a run of their own.
        self.sealer = protection.sealer(channel.id) if protection else None
        self.answers_sealer = protection.sealer(channel.id) if protection else None
        self.sender = ChannelSender(header, settings.sending, bucket, self.sealer)
        self.kept = NumberingFile(settings.state, channel.id) if settings.state else None
        self.sockets: list[tuple[socket.socket, tuple[str, int]]] = []
        self.room = asyncio.Event()
        self.served = ServedChannel(self.sender.store, self._gap_fill, header.repeated)
        self._poss_dup = settings.resend.poss_dup

    def _gap_fill(self, first: int, end: int) -> bytes:
        fill = Message(Kind.GAP_FILL, first, b"", end, self.sender.session.numbering)
        return self.sender.header.administrative(fill, poss_dup=self._poss_dup)

    def open(self, settings: PublisherSettings) -> None:
        """Open the lines' sockets and begin the session."""
        interfaces = (settings.interface, settings.interface_b or settings.interface)
        for line, interface in zip(self.channel.lines, interfaces, strict=False):
            interface = interface or line.source.partition(",")[0] or "127.0.0.1"
            made = open_sender(line, interface, settings.hops)
            self.sockets.append((made, (line.group, line.port)))
        before = self.kept.read() if self.kept else Kept()
        goes_on = settings.numbering == "keep" and 0 < before.next <= NUMBER_MAX
        numbering = before.numbering
        if not goes_on:
            numbering = next_numbering(before.numbering, time.time_ns())
        if self.kept:
            self.kept.write(Kept(numbering))
        self.sender.start(time.monotonic_ns(), numbering, before.next if goes_on else 1)

    def close(self, ended: bool) -> None:
        """Close the sockets; `ended` in order, the next number is kept."""
        session = self.sender.session
        for each, _ in self.sockets:
            each.close()
        if self.kept:
            if ended and session.numbering:
                self.kept.write(Kept(session.numbering, session.next))
            self.kept.close()


class _Answers:
    """What is retransmitted by one group: packed and paced, for a common loss may be long.

    Answers that wait beyond `WAITING_MAX` datagrams are not sent: whoever misses them asks again.
    """

    def __init__(self, line: Address, settings: PublisherSettings) -> None:
        interface = settings.interface or line.source.partition(",")[0] or "127.0.0.1"
        self.sock = open_sender(line, interface, settings.hops)
        self.address = (line.group, line.port)
        self.waiting: deque[bytes] = deque()
        self.bucket = TokenBucket(settings.rate_bytes_s, settings.burst_bytes)


class Publisher:
    """Publishes channels of a definition; `ids` none: all of them.

    counts  datagrams that the operating system did not take, by the name of its error
    """

    def __init__(
        self, channels: Channels, ids: Sequence[str] = (), settings: PublisherSettings | None = None
    ) -> None:
        self.settings = settings or PublisherSettings()
        self.channels = channels
        self.counts: Counter[str] = Counter()
        self._bucket = TokenBucket(self.settings.rate_bytes_s, self.settings.burst_bytes)
        for id in ids:
            if id not in channels.channels:
                known = ", ".join(channels.channels)
                raise UsageError(f"there is no channel {id}", f"there are: {known}")
        self._ids = list(ids or channels.channels)
        self._outlets: dict[str, _Outlet] = {}
        self._services: dict[str, ResendService] = {}
        self._answers: dict[str, _Answers] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake: asyncio.Handle | None = None
        self._protection: Protection | None = None
        self._refresh_ns = NEVER

    async def __aenter__(self) -> "Publisher":
        self._protection = protection_of(self.settings.keys)
        self._refresh_ns = 0 if self._protection else NEVER
        try:
            for id in self._ids:
                channel = self.channels.channels[id]
                outlet = self._outlets[id] = _Outlet(
                    channel, self.settings, self._bucket, self._protection
                )
                outlet.open(self.settings)
                await self._serve(outlet)
        except BaseException:
            await self._close(ended=False)
            raise
        self._turn()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            for outlet in self._outlets.values():
                outlet.sender.stop(time.monotonic_ns())
            await self._drained()
        finally:
            await self._close(ended=kind is None)

    async def publish(self, channel: str, message: bytes) -> int:
        """Publish a message; its number. Waits while the channel is full. Raises `UsageError` for
        what is no application message, or too long."""
        outlet = self._outlet(channel)
        while outlet.sender.full:
            outlet.room.clear()
            await outlet.room.wait()
        number = outlet.sender.publish(message, time.monotonic_ns())
        self._soon()
        return number

    def skip(self, channel: str, next_number: int) -> None:
        """Leave out the numbers up to `next_number`: a GapFill says so."""
        outlet = self._outlet(channel)
        first = outlet.sender.session.next
        outlet.sender.skip(next_number, time.monotonic_ns())
        outlet.served.skip(first, next_number - 1)
        self._soon()

    def _soon(self) -> None:
        """Whatever else is published in this turn of the loop goes out with it."""
        if self._wake is None:
            self._wake = asyncio.get_running_loop().call_soon(self._turn)

    def sender(self, channel: str) -> ChannelSender:
        """A channel's sender, for its counters and numbers."""
        return self._outlet(channel).sender

    @property
    def served(self) -> dict[str, ServedChannel]:
        """What was sent, by channel, for whoever answers requests."""
        return {id: outlet.served for id, outlet in self._outlets.items()}

    def _outlet(self, channel: str) -> _Outlet:
        try:
            return self._outlets[channel]
        except KeyError:
            known = ", ".join(self._outlets) or "none, for it is not entered"
            raise UsageError(
                f"channel {channel} is not published here", f"there are: {known}"
            ) from None

    def _turn(self) -> None:
        """Do what is due on every channel, and come back when something is due next."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._wake = None
        now_ns = time.monotonic_ns()
        deadline_ns = now_ns + _SECOND
        if self._protection is not None and now_ns >= self._refresh_ns:
            self._refresh_ns = now_ns + KEYS_REFRESH_NS
            self._protection.refresh(time.time_ns() - now_ns, time.time_ns())
        for outlet in self._outlets.values():
            outlet.sender.tick(now_ns)
            for datagram in outlet.sender.take(now_ns):
                self._send(outlet, datagram)
            if not outlet.sender.full:
                outlet.room.set()
            deadline_ns = min(deadline_ns, outlet.sender.deadline_ns)
        for answers in self._answers.values():
            deadline_ns = min(deadline_ns, self._send_answers(answers, now_ns))
        loop = asyncio.get_running_loop()
        delay_s = max(deadline_ns - time.monotonic_ns(), 0) / _SECOND
        self._timer = loop.call_later(delay_s, self._turn)

    def _send(self, outlet: _Outlet, datagram: bytes) -> None:
        for each, address in outlet.sockets:
            self._send_to(each, datagram, address)

    def _send_to(self, sock: socket.socket, datagram: bytes, address: tuple[str, int]) -> None:
        try:
            sock.sendto(datagram, address)
        except OSError as error:
            # Lost on this line, as by the network: the other one, or retransmission, has it.
            self.counts[errno.errorcode.get(error.errno or 0, "OSError")] += 1

    # -- Resend Requests ------------------------------------------------------------------------

    async def _serve(self, outlet: _Outlet) -> None:
        """Answer requests for a channel where the definition says."""
        group = self.channels.retransmission_of(outlet.channel)
        if group is None or not group.asked or not self.settings.serves:
            return
        resend = self.settings.resend
        if resend.route == "tcp" and not group.server:
            raise ConfigError(
                f"retransmission {group.id} has no TCP sessions to answer in",
                "give it a server, or answer by a group",
            )
        if resend.route == "group" and group.line is None:
            raise ConfigError(
                f"retransmission {group.id} has no line to send answers to",
                "give it one, or answer by tcp or on the main group",
            )
        if resend.route == "main" and not (resend.poss_dup or self.settings.tells_numbering):
            raise ConfigError(
                "answers on the main group could be taken for a new numbering",
                "mark them as possible duplicates, or say the numbering",
            )
        if group.line is not None and group.id not in self._answers:
            self._answers[group.id] = _Answers(group.line, self.settings)
        where = group.server or group.id
        if where not in self._services:
            self._services[where] = await self._service(group)
        self._services[where].server.add(outlet.channel.id, outlet.served)

    async def _service(self, group: Retransmission) -> ResendService:
        """What takes the requests of a retransmission group."""
        form = RequestFormat(self.settings.channel_tag)
        service = ResendService(ResendServer(self.settings.resend), form, self._answer)
        if group.requests is not None:
            topic = group.requests
            interface = self.settings.interface or "127.0.0.1"
            service.join(Line(f"requests {group.id}", topic.group, topic.port, interface))
        else:
            await service.start(*host_and_port(group.server))
        return service

    def _answer(self, answer: Answer) -> None:
        """Send an answer to all, by the main group or by that of retransmissions."""
        outlet = self._outlets[answer.channel]
        now_ns = time.monotonic_ns()
        packer = plain_packer(self.settings.sending, 1, outlet.sealer)
        datagrams = [each for message in answer.messages for each in packer.add(message, 0)]
        datagrams += packer.flush()
        if self.settings.resend.route == "main":
            for datagram in datagrams:
                outlet.sender.repeat(datagram, now_ns)
        else:
            if sealer := outlet.answers_sealer:
                datagrams = [out for each in datagrams for out in sealer.seal(each, now_ns)]
                datagrams += sealer.flush(now_ns)
            waiting = self._answers[outlet.channel.retransmission].waiting
            room = max(WAITING_MAX - len(waiting), 0)
            self.counts["answers_dropped"] += max(len(datagrams) - room, 0)
            waiting += datagrams[:room]
        self._soon()

    def _send_answers(self, answers: _Answers, now_ns: int) -> int:
        """Send what may leave now; when the next may."""
        while answers.waiting:
            size = len(answers.waiting[0]) + OVERHEAD_BYTES
            ready_ns = answers.bucket.ready_ns(size, now_ns)
            if ready_ns > now_ns:
                return ready_ns
            answers.bucket.take(size, now_ns)
            self._send_to(answers.sock, answers.waiting.popleft(), answers.address)
        return NEVER

    async def _drained(self) -> None:
        """Wait until nothing waits."""
        self._turn()
        while any(outlet.sender.waiting for outlet in self._outlets.values()):
            for outlet in self._outlets.values():
                outlet.room.clear()
            waiting = next(o for o in self._outlets.values() if o.sender.waiting)
            await waiting.room.wait()

    async def _close(self, ended: bool) -> None:
        for outlet in self._outlets.values():
            for sealer in (outlet.sealer, outlet.answers_sealer):
                self.counts += sealer.counts if sealer is not None else Counter()
        for service in self._services.values():
            await service.close()
        for handle in (self._timer, self._wake):
            if handle is not None:
                handle.cancel()
        for answers in self._answers.values():
            answers.sock.close()
        for outlet in self._outlets.values():
            outlet.close(ended)


def protection_of(keys: Path | None) -> "Protection | None":
    """The keys of a folder; None without one. Raises `ConfigError` where the folder, or the
    library, is missing."""
    if keys is None:
        return None
    from feedhandler.fixcast.protection import Protection

    return Protection(keys, time.time_ns() - time.monotonic_ns())


def open_sender(line: Address, interface: str, hops: int) -> socket.socket:
    """A socket that sends to a line's group by the local address `interface`. Raises
    `ConfigError`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        address = ipaddress.IPv4Address(interface).packed
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.bind((interface, 0))
    except ValueError as error:
        sock.close()
        raise ConfigError(
            f"{interface!r} is not an IPv4 address", "give the interface's own address"
        ) from error
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot send to {line.group} by {interface}: {reason_of(error)}",
            "give the address of an interface of this machine; see `ip address`",
        ) from error
    return sock
