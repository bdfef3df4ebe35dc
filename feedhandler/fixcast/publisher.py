"""The publisher: channels of a definition, sent by multicast on both lines.

    async with Publisher(channels, ["equities-1"], settings) as publisher:
        await publisher.publish("equities-1", message)
        await publisher.publish_many("equities-1", messages)

Both take whole FIX messages and wait while the channel is full; many at once cost a fraction of
what they cost one by one. Leaving the block ends the sessions in order: what waits is sent, then
the Logouts. `fixcast.sending` has the logic; here are sockets, the clock and the stored
sequence epoch.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from feedhandler.codecs.errors import ConfigError, UsageError, reason_of
from feedhandler.fixcast.channels import (
    Address,
    Channel,
    Channels,
    Retransmission,
    host_and_port,
)
from feedhandler.fixcast.epoch_file import EpochFile, StoredEpoch
from feedhandler.fixcast.messages import Header, enveloped
from feedhandler.fixcast.pacing import OVERHEAD_BYTES, TokenBucket
from feedhandler.fixcast.resend_service import ResendService
from feedhandler.fixcast.sending import (
    WAITING_MAX,
    ChannelSender,
    SendingSettings,
    next_epoch,
    plain_packer,
)
from feedhandler.fixcast.session import NEVER
from feedhandler.fixcast.system_calls import BATCH, Alarm, LineSender
from feedhandler.fixcast.values import NUMBER_MAX, Kind, Message
from feedhandler.ingest.lines import Line
from feedhandler.retrans.fix.request import CHANNEL_TAG, RequestFormat
from feedhandler.retrans.fix.server import Answer, ResendServer, ResendSettings, ServedChannel

if TYPE_CHECKING:
    from feedhandler.fixcast.protection import Protection

#: Send buffer requested for a line's socket: the bucket keeps it nearly empty.
SEND_BUFFER_BYTES = 4 << 20
#: Longest wait for an interface that takes nothing, before its line's datagrams are lost.
STALL_US = 100_000
#: Default hop limit of multicast: a site's network.
HOPS_USUAL = 16
#: Interval of key refreshes: keys are made, and given, a minute before they are valid.
KEYS_REFRESH_NS = 1_000_000_000
#: (channel, datagram): by line, whether it carries the datagram. For deliberate losses.
Network = Callable[[str, bytes], Sequence[bool]]
#: Messages that are published before complete datagrams are sent: some 50 us of a clock period of
#: 1 ms.
SLICE_MESSAGES = 200
#: Upper limit on the time that calls of `publish_many` keep the event loop.
TURN_NS = 200_000
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """Settings of publishing.

    interface        local address that multicast leaves by, and of B where that is another; "": the
                     line's source, or loopback where it has none
    rate_bytes_s     rate of the token bucket, for each line, all channels together, with headers
    burst_bytes      the bucket's size
    state            folder of the stored epochs; None: nothing is stored, or locked
    epoch_after_end  after an ordered end: "keep" it, or begin a "new" one
    hops             routers that multicast may pass
    serves           answer Resend Requests at the servers that the definition names
    channel_tag      tag of Resend Requests that names the channel
    resend           how they are answered
    keys             folder of keys to seal and sign with; None: datagrams are sent in clear
    """

    interface: str = ""
    interface_b: str = ""
    rate_bytes_s: int = 125_000_000
    burst_bytes: int = 64 << 10
    state: Path | None = None
    epoch_after_end: Literal["keep", "new"] = "keep"
    hops: int = HOPS_USUAL
    begin_string: str = "FIXT.1.1"
    has_epoch: bool = True
    serves: bool = True
    channel_tag: int = CHANNEL_TAG
    resend: ResendSettings = field(default_factory=ResendSettings)
    keys: Path | None = None
    sending: SendingSettings = field(default_factory=SendingSettings)


class _ChannelOutput:
    """One channel with its sockets."""

    def __init__(
        self,
        channel: Channel,
        settings: PublisherSettings,
        bucket: TokenBucket,
        protection: "Protection | None",
        network: Network | None = None,
    ) -> None:
        self.channel = channel
        self._network = network
        header = Header(
            settings.begin_string.encode(),
            channel.sender.encode(),
            channel.topic.encode(),
            settings.has_epoch,
        )
        # Answers, by the retransmission group or in TCP sessions, are sealed in a separate run.
        self.sealer = protection.sealer(channel.id) if protection else None
        self.answers_sealer = protection.sealer(channel.id) if protection else None
        self.sender = ChannelSender(header, settings.sending, bucket, self.sealer)
        self.kept = EpochFile(settings.state, channel.id) if settings.state else None
        self.sockets: list[tuple[socket.socket, tuple[str, int]]] = []
        self.lines: LineSender | None = None
        self.room = asyncio.Event()
        self._before, self._has_sent = StoredEpoch(), False
        self.served = ServedChannel(self.sender.store, self._gap_fill, self._repeated)
        self._poss_dup = settings.resend.poss_dup

    def _gap_fill(self, first: int, end: int) -> bytes:
        fill = Message(Kind.GAP_FILL, first, b"", end, self.sender.session.epoch)
        return self.sender.header.administrative(fill, poss_dup=self._poss_dup)

    def _repeated(self, message: bytes) -> bytes:
        """Mark a message as a possible duplicate, where it is not too long to be sent then."""
        marked = self.sender.header.repeated(message)
        return marked if len(marked) <= self.sender.queue.longest else message

    def sealed(self, datagrams: list[bytes], now_ns: int) -> list[bytes]:
        """Seal the datagrams of an answer, with their signatures behind them."""
        sealer = self.answers_sealer
        if sealer is None:
            return datagrams
        sealed = [out for datagram in datagrams for out in sealer.seal(datagram, now_ns)]
        return sealed + sealer.flush(now_ns)

    def open(self, settings: PublisherSettings) -> None:
        """Open the lines' sockets and begin the session."""
        interfaces = (settings.interface, settings.interface_b or settings.interface)
        for line, interface in zip(self.channel.lines, interfaces, strict=False):
            made = open_sender(line, _interface(line, interface), settings.hops)
            self.sockets.append((made, (line.group, line.port)))
        self.lines = LineSender(self.sockets)
        self._before = before = self.kept.read() if self.kept else StoredEpoch()
        goes_on = settings.epoch_after_end == "keep" and 0 < before.next <= NUMBER_MAX
        epoch = before.epoch
        if not goes_on:
            epoch = next_epoch(before.epoch, time.time_ns())
        if self.kept:
            self.kept.write(StoredEpoch(epoch))
        self.sender.start(time.monotonic_ns(), epoch, before.next if goes_on else 1)

    def send(self, now_ns: int) -> None:
        """Send the datagrams that may leave by now."""
        sender, queue = self.sender, self.sender.queue
        if self.lines is None:
            return
        while count := sender.due(now_ns, BATCH):
            self._has_sent = True
            if self._network is None:
                self.lines.send(queue.slab, queue.offsets, queue.sizes, queue.first, count)
            else:
                self._send_with_losses(self.lines, queue.datagrams(count), self._network)
            # Read again: the bucket is charged when they have left, however long that took.
            now_ns = time.monotonic_ns()
            sender.gone(count, now_ns)
        if not sender.full:
            self.room.set()

    def _send_with_losses(
        self, lines: LineSender, datagrams: list[bytes], network: Network
    ) -> None:
        """Send each datagram on the lines that carry it."""
        for datagram in datagrams:
            carried = network(self.channel.id, datagram)
            for (each, address), carries in zip(self.sockets, carried, strict=True):
                if carries:
                    try:
                        each.sendto(datagram, address)
                    except OSError as error:
                        reason = error.errno or 0
                        lines.errors[reason] = lines.errors.get(reason, 0) + 1

    def close(self, ended: bool) -> None:
        """Close the sockets; after an ordered end (`ended`) store the next number.

        A start that has sent nothing leaves what had been stored before it.
        """
        session = self.sender.session
        for each, _ in self.sockets:
            each.close()
        if self.kept is None:
            return
        try:
            if ended and session.epoch:
                self.kept.write(StoredEpoch(session.epoch, session.next))
            elif session.epoch and not self._has_sent:
                self.kept.write(self._before)
        finally:
            self.kept.close()


class _Answers:
    """Answers sent by one retransmission group: packed and paced, for a common loss may be long.

    Answers beyond `WAITING_MAX` waiting datagrams are dropped: receivers that miss them ask again.
    """

    def __init__(self, line: Address, settings: PublisherSettings) -> None:
        self.sock = open_sender(line, _interface(line, settings.interface), settings.hops)
        self.address = (line.group, line.port)
        self.waiting: deque[bytes] = deque()
        self.bucket = TokenBucket(settings.rate_bytes_s, settings.burst_bytes)


class Publisher:
    """Publisher of a definition's channels; without `ids` of all of them.

    `network` decides for each datagram which lines carry it; without one all do. Retransmissions do
    not pass it.
    """

    def __init__(
        self,
        channels: Channels,
        ids: Sequence[str] = (),
        settings: PublisherSettings | None = None,
        network: Network | None = None,
    ) -> None:
        self.settings = settings or PublisherSettings()
        self.channels = channels
        self._counts: Counter[str] = Counter()
        self._network = network
        self._bucket = TokenBucket(self.settings.rate_bytes_s, self.settings.burst_bytes)
        self._ids = channels.chosen(ids)
        self._outputs: dict[str, _ChannelOutput] = {}
        self._services: dict[str, ResendService] = {}
        self._answers: dict[str, _Answers] = {}
        self._alarm: Alarm | None = None
        self._alarm_ns = NEVER
        # Kept from call to call: many short runs keep the loop as long as one that is long.
        self._turn_over_ns = 0
        self._wake: asyncio.Handle | None = None
        self._protection: Protection | None = None
        self._refresh_ns = NEVER

    async def __aenter__(self) -> "Publisher":
        self._protection = protection_of(self.settings.keys)
        self._refresh_ns = 0 if self._protection else NEVER
        self._alarm = Alarm()
        asyncio.get_running_loop().add_reader(self._alarm.fileno(), self._turn)
        try:
            for id in self._ids:
                channel = self.channels.channels[id]
                output = self._outputs[id] = _ChannelOutput(
                    channel, self.settings, self._bucket, self._protection, self._network
                )
                output.open(self.settings)
                await self._serve(output)
        except BaseException:
            await self._close(ended=False)
            raise
        self._turn()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        drained = False
        try:
            for output in self._outputs.values():
                output.sender.stop(time.monotonic_ns())
            await self._drained()
            drained = True
        finally:
            await self._close(ended=drained and kind is None)

    @property
    def counts(self) -> Counter[str]:
        """Datagrams that were not sent, by reason.

        The reasons are names of the operating system's errors, `answers_dropped`, `dropped`
        (Heartbeats and answers on a channel that is full), and `no_key`: none is valid.
        """
        counts = +self._counts
        for output in self._outputs.values():
            for sealer in (output.sealer, output.answers_sealer):
                counts += sealer.counts if sealer is not None else Counter()
            if dropped := output.sender.counts["dropped"]:
                counts["dropped"] += dropped
            for number, count in (output.lines.errors if output.lines else {}).items():
                counts[errno.errorcode.get(number, "OSError")] += count
        return counts

    async def publish(self, channel: str, message: bytes) -> int:
        """Publish a message and return its number. Waits while the channel is full.

        Raises `UsageError` where it is no application message, or too long.
        """
        output = self._output(channel)
        while output.sender.full:
            output.room.clear()
            await output.room.wait()
        number = output.sender.publish(message, time.monotonic_ns())
        self._soon()
        return number

    async def publish_many(self, channel: str, messages: Sequence[bytes]) -> int:
        """Publish messages in this order, and return the number of the last one.

        Waits while the channel is full. Raises `UsageError` where there are none, and for the first
        that is no application message, or too long; its hint says which one. Those before it are
        published.
        """
        output, given = self._output(channel), list(messages)
        if not given:
            raise UsageError("there is nothing to publish", "give one message or more")
        sender, done, last = output.sender, 0, 0
        while done < len(given):
            now_ns = time.monotonic_ns()
            try:
                count = sender.publish_each(given, done, done + SLICE_MESSAGES, now_ns)
            except UsageError as error:
                at = f"message {done + 1} of {len(given)}; those before it are published"
                raise UsageError(error.message, f"{error.hint} ({at})") from None
            done += count
            last = sender.session.next - 1  # others may publish while this one waits
            self._sent(output, now_ns)
            if not count and sender.full:
                output.room.clear()
                await output.room.wait()
            elif now_ns >= self._turn_over_ns:
                await asyncio.sleep(0)
                self._turn_over_ns = time.monotonic_ns() + TURN_NS
        return last

    def _sent(self, output: _ChannelOutput, now_ns: int) -> None:
        """Send what may leave, and set the alarm for the rest."""
        output.send(now_ns)
        deadline_ns = output.sender.deadline_ns
        if deadline_ns < self._alarm_ns:
            self._set_alarm(deadline_ns)

    def _set_alarm(self, at_ns: int) -> None:
        assert self._alarm is not None
        self._alarm_ns = at_ns
        self._alarm.set(at_ns)

    def skip(self, channel: str, next_number: int) -> None:
        """Leave out the numbers up to `next_number`, which a GapFill announces."""
        output = self._output(channel)
        first = output.sender.session.next
        output.sender.skip(next_number, time.monotonic_ns())
        output.served.skip(first, next_number - 1)
        self._soon()

    def _soon(self) -> None:
        """Schedule a turn, which also sends whatever else is published until then."""
        if self._wake is None:
            self._wake = asyncio.get_running_loop().call_soon(self._turn)

    def sender(self, channel: str) -> ChannelSender:
        """Return a channel's sender, for its counters and numbers."""
        return self._output(channel).sender

    @property
    def served(self) -> dict[str, ServedChannel]:
        """What was sent, by channel, for servers that answer requests."""
        return {id: output.served for id, output in self._outputs.items()}

    @property
    def answered(self) -> Counter[str]:
        """Counts of all servers of Resend Requests, added up."""
        return sum((service.server.counts for service in self._services.values()), Counter())

    def _output(self, channel: str) -> _ChannelOutput:
        try:
            return self._outputs[channel]
        except KeyError:
            known = ", ".join(self._outputs) or "none, for it is not entered"
            raise UsageError(
                f"channel {channel} is not published here", f"there are: {known}"
            ) from None

    def _turn(self) -> None:
        """Do what is due on every channel, and set the alarm for what is due next."""
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None
        now_ns = time.monotonic_ns()
        deadline_ns = now_ns + _SECOND
        if self._protection is not None and now_ns >= self._refresh_ns:
            self._refresh_ns = now_ns + KEYS_REFRESH_NS
            self._protection.refresh(time.time_ns() - now_ns, time.time_ns())
        for output in self._outputs.values():
            output.sender.tick(now_ns)
            output.send(now_ns)
            deadline_ns = min(deadline_ns, output.sender.deadline_ns)
        for answers in self._answers.values():
            deadline_ns = min(deadline_ns, self._send_answers(answers, now_ns))
        self._set_alarm(deadline_ns)

    def _send_to(self, sock: socket.socket, datagram: bytes, address: tuple[str, int]) -> None:
        try:
            sock.sendto(datagram, socket.MSG_DONTWAIT, address)
        except OSError as error:
            # Lost on this line, as in the network; the other one, or retransmission, has it.
            self._counts[errno.errorcode.get(error.errno or 0, "OSError")] += 1

    # -- Resend Requests ------------------------------------------------------------------------

    async def _serve(self, output: _ChannelOutput) -> None:
        """Answer requests for a channel where the definition says."""
        group = self.channels.retransmission_of(output.channel)
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
        if resend.route == "main" and not (resend.poss_dup or self.settings.has_epoch):
            raise ConfigError(
                "answers on the main group could be taken for a new sequence epoch",
                "mark them as possible duplicates, or state the sequence epoch",
            )
        if group.line is not None and group.id not in self._answers:
            self._answers[group.id] = _Answers(group.line, self.settings)
        where = group.server or group.id
        if where not in self._services:
            self._services[where] = await self._service(group, group.line or output.channel.a)
        self._services[where].server.add(output.channel.id, output.served)

    async def _service(self, group: Retransmission, answers: Address) -> ResendService:
        """Start the service that takes the requests of a retransmission group.

        Requests by multicast come in where `answers` leave.
        """
        form = RequestFormat(self.settings.channel_tag)
        service = ResendService(
            ResendServer(self.settings.resend), form, self._answer, self._written
        )
        if group.requests is not None:
            topic = group.requests
            interface = _interface(answers, self.settings.interface)
            service.join(Line(f"requests {group.id}", topic.group, topic.port, interface))
        else:
            await service.start(*host_and_port(group.server))
        return service

    def _answer(self, answer: Answer) -> None:
        """Send an answer to all receivers, by the main group or that of retransmissions."""
        output = self._outputs[answer.channel]
        now_ns = time.monotonic_ns()
        packer = plain_packer(self.settings.sending, 1, output.sealer)
        datagrams = [each for message in answer.messages for each in packer.add(message, 0)]
        datagrams += packer.flush()
        if self.settings.resend.route == "main":
            for datagram in datagrams:
                output.sender.repeat(datagram, now_ns)
        else:
            datagrams = output.sealed(datagrams, now_ns)
            waiting = self._answers[output.channel.retransmission].waiting
            room = max(WAITING_MAX - len(waiting), 0)
            self._counts["answers_dropped"] += max(len(datagrams) - room, 0)
            waiting += datagrams[:room]
        self._soon()

    def _written(self, answer: Answer) -> list[bytes]:
        """Encode an answer for a TCP session: messages, or sealed datagrams in `US` messages."""
        output = self._outputs[answer.channel]
        if output.answers_sealer is None:
            return answer.messages
        packer = plain_packer(self.settings.sending, 1, output.answers_sealer)
        datagrams = [each for message in answer.messages for each in packer.add(message, 0)]
        sealed = output.sealed([*datagrams, *packer.flush()], time.monotonic_ns())
        return [enveloped(each) for each in sealed]

    def _send_answers(self, answers: _Answers, now_ns: int) -> int:
        """Send the answers that may leave now; return when the next may."""
        while answers.waiting:
            size = len(answers.waiting[0]) + OVERHEAD_BYTES
            ready_ns = answers.bucket.ready_ns(size, now_ns)
            if ready_ns > now_ns:
                return ready_ns
            answers.bucket.charge(size, now_ns)
            self._send_to(answers.sock, answers.waiting.popleft(), answers.address)
        return NEVER

    async def _drained(self) -> None:
        """Wait until no datagram waits."""
        self._turn()
        while any(output.sender.waiting for output in self._outputs.values()):
            for output in self._outputs.values():
                output.room.clear()
            waiting = next(o for o in self._outputs.values() if o.sender.waiting)
            await waiting.room.wait()

    async def _close(self, ended: bool) -> None:
        try:
            for service in self._services.values():
                await service.close()
        finally:
            self._release(ended)

    def _release(self, ended: bool) -> None:
        """Close sockets and files; one that fails is reported once the others are closed."""
        if self._wake is not None:
            self._wake.cancel()
        if self._alarm is not None:
            asyncio.get_running_loop().remove_reader(self._alarm.fileno())
            self._alarm.close()
        with contextlib.ExitStack() as closing:
            for output in self._outputs.values():
                closing.callback(output.close, ended)
            for answers in self._answers.values():
                closing.callback(answers.sock.close)


def protection_of(keys: Path | None) -> "Protection | None":
    """Load the keys of a folder; None without one.

    Raises `ConfigError` where the folder, or the library, is missing.
    """
    if keys is None:
        return None
    from feedhandler.fixcast.protection import Protection

    return Protection(keys, time.time_ns() - time.monotonic_ns())


def _interface(line: Address, given: str) -> str:
    """Return the local address of a line: the given one, else its source, else loopback."""
    return given or line.source.partition(",")[0] or "127.0.0.1"


def open_sender(line: Address, interface: str, hops: int) -> socket.socket:
    """Open a socket that sends to a line's group from the local address `interface`.

    Raises `ConfigError`.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        address = ipaddress.IPv4Address(interface).packed
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, STALL_US))
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
