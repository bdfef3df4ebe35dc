"""The receiver: joins the lines of channels, requests missing messages, delivers the stream.

    async with Receiver(channels, ["equities-1"], settings, on_events) as receiver:
        await stop.wait()

`on_events(channel, events)` is called with the events of a channel, in order. `fixcast.receiving`
has the logic; here are sockets, the event loop's clock and connections to servers of Resend
Requests, which are kept up.
"""

import asyncio
import contextlib
import functools
import itertools
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from feedhandler.codecs.errors import ConfigError, PeerError
from feedhandler.codecs.fix.stream import FixStream
from feedhandler.fixcast.channels import (
    Address,
    Channel,
    Channels,
    Retransmission,
    host_and_port,
)
from feedhandler.fixcast.market_data_service import Following, MarketDataConnection
from feedhandler.fixcast.membership import Membership
from feedhandler.fixcast.messages import datagram_of
from feedhandler.fixcast.publisher import (
    HOPS_USUAL,
    KEYS_REFRESH_NS,
    open_sender,
    protection_of,
)
from feedhandler.fixcast.receiving import ChannelReceiver
from feedhandler.fixcast.reception import RETRANSMISSION, Event, ReceptionSettings
from feedhandler.fixcast.resend_service import watch_host
from feedhandler.ingest.lines import Line, open_line, source_addresses
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.fix.client import RequesterSettings
from feedhandler.retrans.fix.market_data import MarketDataFormat
from feedhandler.retrans.fix.market_follower import Event as BookEvent
from feedhandler.retrans.fix.market_follower import Healed, Unhealed
from feedhandler.retrans.fix.market_state import MarketState
from feedhandler.retrans.fix.request import CHANNEL_TAG, RequestFormat, ResendRequest

if TYPE_CHECKING:
    from feedhandler.fixcast.protection import ChannelOpener, Opened, Protection

#: Upper limit on datagrams read from one socket before others get their turn.
TURN_DATAGRAMS = 64
DATAGRAM_BYTES_MAX = 65_535
#: Longest wait for a connection to be made.
CONNECT_SECONDS = 5.0
#: Waits before a server is connected to again.
RECONNECT_FIRST_US, RECONNECT_MOST_US = 100_000, 5_000_000
#: Upper limit on bytes of requests that wait for a server that does not read.
UNSENT_BYTES_MAX = 256 << 10
_READ_BYTES = 64 << 10
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """Settings of receiving.

    interface    local address, or name, of the interface that A comes by; `interface_b`: that of B,
                 where it is another
    reception    settings of each channel; its number of lines follows from the definition
    requests     when missing messages are requested
    channel_tag  tag of Resend Requests that names the channel
    seed         seed of random waits; None: another each time
    keys         folder of the channels' keys; None: they are in clear
    verify       check signatures "before" messages are delivered, "after", or "off"
    states       request the books' state where messages are lost for good, and the definition names
                 a server of Market Data Requests
    """

    interface: str = "127.0.0.1"
    interface_b: str = ""
    reception: ReceptionSettings = field(default_factory=ReceptionSettings)
    requests: RequesterSettings = field(default_factory=RequesterSettings)
    channel_tag: int = CHANNEL_TAG
    seed: int | None = None
    keys: Path | None = None
    verify: Literal["off", "before", "after"] = "before"
    states: bool = True


class Stated(NamedTuple):
    """The books' present state, where messages are lost for good.

    `states`: one snapshot for each security, as of the number `as_of`; `since`: the messages
    (number, bytes) after it, up to `number`, which were delivered before.
    """

    as_of: int
    number: int
    states: tuple[bytes, ...]
    since: tuple[tuple[int, bytes], ...]


class NoState(NamedTuple):
    """No state was available; it is requested again."""

    reason: str


#: Called with a channel and its events: those of the reception, `Stated` and `NoState`.
OnEvents = Callable[[str, list[Any]], None]
Notice = Callable[[str, dict[str, object]], None]


class _NoBooks(MarketState):
    """Books without content, which only track whether they would be complete."""

    def apply(self, data: bytes, number: int) -> None:
        """Record the number of the message."""
        self.number = number


class Receiver:
    """Receiver of a definition's channels; without `ids` of all of them.

    `on_events` is called with the stream's events, and `Stated` and `NoState` where states are
    requested; `notice` with alarms of false or missing signatures, and once where a channel is
    sealed and there are no keys.

    counts   datagrams from foreign sources, requests that could not be sent, groups joined
    openers  of sealed channels, with their counts
    """

    def __init__(
        self,
        channels: Channels,
        ids: Sequence[str],
        settings: ReceiverSettings,
        on_events: OnEvents,
        notice: Notice | None = None,
    ) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.receivers: dict[str, ChannelReceiver] = {}
        self.openers: dict[str, ChannelOpener] = {}
        self._protection: Protection | None = None
        self._refresh_ns = 0
        self._noticed: set[str] = set()
        self._notice = notice or (lambda channel, what: None)
        self._channels = channels
        self._ids = channels.chosen(ids)
        self._on_events = on_events
        self._sockets: list[socket.socket] = []
        self._links: dict[str, _Link | _Topic] = {}
        self._groups: list[_Group] = []
        self._states: dict[str, MarketDataConnection] = {}
        self._following: dict[str, Following] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._form = RequestFormat(settings.channel_tag)

    async def __aenter__(self) -> "Receiver":
        groups: dict[str, list[ChannelReceiver]] = {}
        self._protection = protection_of(self.settings.keys)
        try:
            for id in self._ids:
                channel = self._channels.channels[id]
                receiver = self.receivers[id] = self._receiver(channel)
                if self._protection is not None:
                    self.openers[id] = self._protection.opener(id, self.settings.verify)
                for line, address in enumerate(channel.lines):
                    self.join(f"{id} {'AB'[line]}", address, line, [receiver])
                if channel.retransmission:
                    groups.setdefault(channel.retransmission, []).append(receiver)
            for id, receivers in groups.items():
                self._open(self._channels.retransmissions[id], receivers)
        except BaseException:
            await self._close()
            raise
        self._turn()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()
        for id, receiver in self.receivers.items():
            self._give(id, receiver.finish())

    def _receiver(self, channel: Channel) -> ChannelReceiver:
        settings = self.settings
        group = self._channels.retransmission_of(channel)
        asks = group is not None and group.asked
        reception = replace(settings.reception, lines=len(channel.lines))
        if group is None:
            reception = replace(reception, recovery_wait_ns=0)
        seed = random.getrandbits(32) if settings.seed is None else settings.seed
        return ChannelReceiver(
            channel.id,
            channel.topic.encode(),
            reception,
            settings.requests if asks else None,
            seed,
            time.monotonic_ns(),
        )

    def _open(self, group: Retransmission, receivers: list[ChannelReceiver]) -> None:
        """Join a retransmission group, and connect to its server."""
        if group.line is not None:
            name = f"retransmission {group.id}"
            if group.join == "always":
                self.join(name, group.line, RETRANSMISSION, receivers)
            else:
                self._groups.append(_Group(self, name, group.line, receivers))
        # States are not sealed, so they are not requested where the messages are.
        if group.market_data and self.settings.states and not self.openers:
            self._follow(group.market_data, receivers)
        if group.server:
            link = _Link(group.server, lambda data: self._hand_answer(data, receivers))
            self._links.update({receiver.name: link for receiver in receivers})
        elif group.requests is not None:
            topic = _Topic(group.requests, self.settings.interface)
            self._links.update({receiver.name: topic for receiver in receivers})

    def _follow(self, server: str, receivers: list[ChannelReceiver]) -> None:
        """Follow channels' books, to request their state where messages are lost for good."""
        connection = self._states.get(server)
        if connection is None:
            host, port = host_and_port(server)
            form = MarketDataFormat(self.settings.channel_tag)
            connection = MarketDataConnection(
                host, port, on_event=lambda event: None, form=form, seed=self.settings.seed or 0
            )
            self._states[server] = connection
            connection.start()
        for receiver in receivers:
            on_state = functools.partial(self._stated, receiver.name)
            self._following[receiver.name] = connection.follow(receiver.name, on_state, _NoBooks())

    def _stated(self, channel: str, event: BookEvent) -> None:
        """Deliver the outcome of a request for the state."""
        follower = self._following[channel].follower
        if isinstance(event, Healed):
            states, since = tuple(follower.states), tuple(follower.since)
            self._on_events(channel, [Stated(event.as_of, event.number, states, since)])
        elif isinstance(event, Unhealed):
            self._on_events(channel, [NoState(event.reason)])

    def join(
        self, name: str, address: Address, line: int, receivers: list[ChannelReceiver]
    ) -> socket.socket:
        """Join a group, whose datagrams go to `receivers`; return the socket.

        Raises `ConfigError`.
        """
        interface = self.settings.interface
        if line == 1 and self.settings.interface_b:
            interface = self.settings.interface_b
        joined = Line(name, address.group, address.port, interface, address.source or None)
        sources = frozenset(source_addresses(joined))
        sock = open_line(joined)
        self._sockets.append(sock)
        loop = asyncio.get_running_loop()
        loop.add_reader(sock, self._read, sock, sources, line, receivers)
        return sock

    def leave(self, sock: socket.socket) -> None:
        """Leave a group and close its socket."""
        asyncio.get_running_loop().remove_reader(sock)
        self._sockets.remove(sock)
        sock.close()

    def _read(
        self,
        sock: socket.socket,
        sources: frozenset[int],
        line: int,
        receivers: list[ChannelReceiver],
    ) -> None:
        for _ in range(TURN_DATAGRAMS):
            try:
                data, (host, _) = sock.recvfrom(DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                break
            if sources and int.from_bytes(socket.inet_aton(host), "big") not in sources:
                self.counts["foreign_sources"] += 1
                continue
            self._hand(data, line, receivers)
        self._turn()

    def _hand(self, data: bytes, line: int, receivers: list[ChannelReceiver]) -> None:
        now_ns = time.monotonic_ns()
        for receiver in receivers:
            opener = self.openers.get(receiver.name)
            if opener is not None:
                self._open_sealed(receiver, opener.datagram(data, line, now_ns), now_ns)
                continue
            self._give(receiver.name, receiver.datagram(data, line, now_ns))
            if receiver.counts["sealed"] and receiver.name not in self._noticed:
                self._noticed.add(receiver.name)
                self._notice(receiver.name, {"event": "sealed"})

    def _hand_answer(self, data: bytes, receivers: list[ChannelReceiver]) -> None:
        """Handle an answer from a TCP session.

        With sealed channels an answer in clear is dropped: anyone who can connect could have made
        it.
        """
        if not self.openers:
            self._hand(data, RETRANSMISSION, receivers)
        elif datagram := datagram_of(data):
            self._hand(datagram, RETRANSMISSION, receivers)
        else:
            self.counts["answers_in_clear"] += 1

    def _open_sealed(self, receiver: ChannelReceiver, events: "list[Opened]", now_ns: int) -> None:
        """Deliver what was opened; report alarms."""
        for event in events:
            if isinstance(event, dict):
                self._notice(receiver.name, event)
            else:
                found = receiver.datagram(event.payload, event.line, now_ns)
                self._give(receiver.name, found)

    def _give(self, channel: str, events: list[Event]) -> None:
        if not events:
            return
        self._on_events(channel, events)
        if following := self._following.get(channel):
            following.receive(events, self.receivers[channel].reception.epoch)

    def _turn(self) -> None:
        """Do what is due on every channel, and set the timer for what is due next."""
        if self._timer is not None:
            self._timer.cancel()
        now_ns = time.monotonic_ns()
        deadline_ns = now_ns + _SECOND
        if self._protection is not None and now_ns >= self._refresh_ns:
            self._refresh_ns = now_ns + KEYS_REFRESH_NS
            self._protection.refresh(time.time_ns() - now_ns, time.time_ns())
        for id, opener in self.openers.items():
            self._open_sealed(self.receivers[id], opener.tick(now_ns), now_ns)
            deadline_ns = min(deadline_ns, opener.deadline_ns)
        for id, receiver in self.receivers.items():
            if receiver.deadline_ns <= now_ns:
                self._give(id, receiver.tick(now_ns))
        # A group is joined as soon as a loss is noticed, before what it brings is requested.
        for group in self._groups:
            group.update_membership(group.missing, now_ns)
            deadline_ns = min(deadline_ns, group.membership.deadline_ns)
        for id, receiver in self.receivers.items():
            if receiver.deadline_ns <= now_ns:
                for request in receiver.requests(now_ns):
                    self._ask(id, request)
            deadline_ns = min(deadline_ns, receiver.deadline_ns)
        delay_s = max(deadline_ns - time.monotonic_ns(), 0) / _SECOND
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._turn)

    def _ask(self, channel: str, request: ResendRequest) -> None:
        if not self._links[channel].send(self._form.encode(request)):
            self.counts["requests_unsent"] += 1

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)
            sock.close()
        for link in set(self._links.values()):
            await link.close()
        for connection in self._states.values():
            await connection.close()


class _Group:
    """A retransmission group that is joined when needed.

    An attempt to join that fails is repeated with every turn while the group is needed.
    """

    def __init__(
        self, owner: Receiver, name: str, address: Address, receivers: list[ChannelReceiver]
    ) -> None:
        self.membership = Membership()
        self._owner = owner
        self._name, self._address, self._receivers = name, address, receivers
        self._sock: socket.socket | None = None

    @property
    def missing(self) -> bool:
        """Whether its channels wait for requested messages."""
        return any(each.requester and each.requester.waiting for each in self._receivers)

    def update_membership(self, missing: bool, now_ns: int) -> None:
        """Join or leave the group, as the membership says."""
        member = self.membership.update(missing, now_ns)
        if member and self._sock is None:
            try:
                self._sock = self._owner.join(
                    self._name, self._address, RETRANSMISSION, self._receivers
                )
            except ConfigError:
                self._owner.counts["groups_not_joined"] += 1
                return
            self._owner.counts["groups_joined"] += 1
        elif not member and self._sock is not None:
            self._owner.counts["groups_left"] += 1
            self._owner.leave(self._sock)
            self._sock = None


class _Link:
    """A connection to a server of Resend Requests, kept up; its messages go to `on_message`."""

    _seeds = itertools.count(1)

    def __init__(self, server: str, on_message: Callable[[bytes], None]) -> None:
        self._host, self._port = host_and_port(server)
        self._on_message = on_message
        self._writer: asyncio.StreamWriter | None = None
        self._backoff = Backoff(RECONNECT_FIRST_US, RECONNECT_MOST_US, next(self._seeds))
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, message: bytes) -> bool:
        """Send a request; return False without a connection, or where the server does not read."""
        writer = self._writer
        if writer is None or writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            return False
        writer.write(message)
        return True

    async def _run(self) -> None:
        tries, clock = 0, asyncio.get_running_loop().time
        while True:
            began = clock()
            with contextlib.suppress(OSError, PeerError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, self._writer = await asyncio.open_connection(self._host, self._port)
                watch_host(self._writer.transport)
                await self._read(reader)
            tries += 1
            if self._writer is not None:
                self._writer.transport.abort()
                self._writer = None
                if clock() - began >= RECONNECT_MOST_US / 1e6:
                    tries = 1  # it has lasted, however many were lost before
            await asyncio.sleep(self._backoff.delay_ns(tries) / _SECOND)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Handle messages until the connection ends. Raises `PeerError` where one is not FIX.

        What `on_message` raises is the loop's to report, as of the lines, and ends no connection.
        """
        stream, loop = FixStream(), asyncio.get_running_loop()
        while data := await reader.read(_READ_BYTES):
            for message in stream.receive(data):
                loop.call_soon(self._on_message, message)

    async def close(self) -> None:
        """End the connection, and do not reconnect."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._writer is not None:
            self._writer.transport.abort()


class _Topic:
    """A request topic: requests are sent to a group, and may be lost as any datagram."""

    def __init__(self, topic: Address, interface: str) -> None:
        self._sock = open_sender(topic, interface, HOPS_USUAL)
        self._address = (topic.group, topic.port)

    def send(self, message: bytes) -> bool:
        """Send a request; return False where the operating system did not take it."""
        try:
            self._sock.sendto(message, self._address)
        except OSError:
            return False
        return True

    async def close(self) -> None:
        """Close the socket."""
        self._sock.close()
