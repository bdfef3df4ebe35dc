"""The gateway without its sockets, threads and clock: from the ring and the servers to the links.

What it is for: `GatewayCore` makes the parts that stand between what comes in and what goes out
(streams, fan-out, quality, the recovery manager, a client for each server, names of symbols, the
trading day) and connects them. `pump` has the fan-out deliver packets up to an event of the ring,
applies the event, and goes on: control events go to recovery, packets of refresh lines to its
snapshots, as answers of servers do. What recovery wants done goes to the fan-out, to the servers,
and to the receive thread. `gateway.Gateway` runs it with real sockets and a real clock, the
simulation in the tests with a simulated network: what connects the parts is the same.

What it leaves to its `GatewayIO`: the timer, the connections to servers (the `ends` of each of
`servers`: one, or a primary and a secondary), the receive thread's inlet, writing to links, the
operator. The time is an argument. Who takes links calls `fanout.add` and `attached`.

The times of recovery are nanoseconds since 1970, at the pace of the monotonic clock: a step of the
host's clock neither hangs nor hurries anything, and servers' daily quotas begin anew with the
trading day.
"""

import struct
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from feedhandler.amqp.fanout import Fanout, ReferenceMessages
from feedhandler.amqp.queueing.book_cache import book_cache_of
from feedhandler.amqp.sender_queue import SenderQueue
from feedhandler.amqp.stream import Stream
from feedhandler.codecs import Feed, key_word
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.trading_day import day_number
from feedhandler.config import ChannelConfig, Config, LineConfig, ServerConfig
from feedhandler.config.trading_day import DayWatch
from feedhandler.counters import RECOVERY_IO_COUNTS
from feedhandler.gateway.alert_limiter import AlertLimiter
from feedhandler.gateway.server_clients import client_of, names_session
from feedhandler.ingest.lines import ChannelPlan, Line
from feedhandler.ingest.records import ControlEvent, RefreshLinePacket
from feedhandler.ingest.ring import Ring
from feedhandler.retrans import (
    QualityState,
    RecoveryChannel,
    RecoveryManager,
    StreamEvent,
    StreamEventKind,
)
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Event,
    Packet,
    RefreshAccepted,
    RefreshPacket,
    RefreshSnapshot,
)
from feedhandler.retrans.failover import FailoverPair
from feedhandler.retrans.fix.resend_client import ResendClient
from feedhandler.retrans.protocols.registry import snapshots_of
from feedhandler.retrans.protocols.setup import LineClient, settled
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.store import PacketStore

if TYPE_CHECKING:
    from feedhandler.amqp.record_fanout import RecordFanout

#: Answers that show that a server is well, whatever it did before.
_USEFUL = (Accepted, Answered, Packet, RefreshAccepted, RefreshPacket, RefreshSnapshot)

#: Of a stream that is not stored otherwise, the packets that carry the session for requests.
SESSION_STORE_BYTES = 64 << 10


class GatewayIO(Protocol):
    """Work that the core leaves to its driver. `channel_index`: of a channel in the ring."""

    def fill(self, channel_index: int, data: bytes, epoch: int) -> bool:
        """Give the arbiter a packet that was missing; False where there is no room."""

    def disprove(self, channel_index: int, number: int, epoch: int) -> bool:
        """Inform the arbiter that nothing from `number` on was sent; False without room."""

    def give_up(self, channel_index: int, until: int, epoch: int) -> bool:
        """Have the arbiter announce what is missing below `until`; False without room."""

    def flush_soon(self) -> None:
        """Links were given something outside a pump: write it (`fanout.flush`)."""

    def wake_at(self, deadline_ns: int, now_ns: int) -> None:
        """Call `tick` at `deadline_ns`, which may have moved."""

    def line_changed(self, kind: int, channel_index: int, line: int) -> None:
        """Take a control event of the ring, which may say that a line fell silent or is back."""

    def renumbered(self) -> None:
        """Note a new sequence epoch, maybe a new trading day's: `turn_day` with the host's time."""

    def report(self, text: str) -> None:
        """Inform the operator."""


class GatewayCore:
    """The core of one gateway; see the module's text.

    `ring` is what the receive thread writes, whose channels are `plans`: the live ones in the order
    of the configuration, behind them one for each that has refresh lines. `wall_ns` is the host's
    time, `seed` draws the jitter of retries.
    """

    def __init__(
        self, config: Config, feed: Feed, ring: Ring, io: GatewayIO, wall_ns: int, seed: int
    ) -> None:
        self.config = config
        self.feed = feed
        self._io = io
        #: Of symbols that reference data has named: their words in routing keys.
        self.names: dict[int, str] = {}
        self.day = DayWatch(config.trading_day, feed, wall_ns)
        self.streams = [self._stream(*each) for each in enumerate(config.channels)]
        self.qualities = [
            QualityState(channel.service, [line.name for line in channel.lines])
            for channel in config.channels
        ]
        #: Whether each refresh line is read by itself (`refresh_datagram`).
        self.lines_apart = feed.recovery is not None and feed.recovery.apart
        #: Of each refresh channel, in order: the live channel that it serves.
        self.refresh_indices = [
            channel_index
            for channel_index, channel in enumerate(config.channels)
            if channel.refresh_lines and not self.lines_apart
        ]
        #: The channels of the ring: the live ones, and behind them those of refresh lines.
        self.plans = [
            *map(self._plan, config.channels),
            *(
                self._refresh_plan(config.channels[channel_index])
                for channel_index in self.refresh_indices
            ),
        ]
        self.counts: dict[str, int] = dict.fromkeys(RECOVERY_IO_COUNTS, 0)
        self._alerts = AlertLimiter(io.report)
        self.recovery = self._recovery(seed)
        self.servers = {
            server.name: self._server(server, seed + number)
            for number, server in enumerate(config.servers)
        }
        self._pairs = [each for each in self.servers.values() if isinstance(each, FailoverPair)]
        #: What makes normalised records, where they are offered.
        self.record_fanout: "RecordFanout | None" = None
        self.fanout = self._fanout(ring)
        for name, server in self.servers.items():
            if server.on_demand:
                self.recovery.server_up(name, 0)  # it may be asked at any time

    # -- its parts --------------------------------------------------------------------------

    def _stream(self, channel_index: int, channel: ChannelConfig) -> Stream:
        service = channel.service
        return Stream(
            channel_index,
            service,
            f"{self.feed.key}.{service}",
            self._prefix(service),
            self.config.amqp.max_symbols,
        )

    def _prefix(self, service: int) -> bytes:
        """Return the first eight bytes of the service's tags."""
        return struct.pack(">IHH", day_number(self.day.today), self.feed.number, service)

    def _plan(self, channel: ChannelConfig) -> ChannelPlan:
        return ChannelPlan(
            channel.service,
            tuple(self._line(channel.service, line, "") for line in channel.lines),
            self.config.recovery.recovery_wait_us if channel.retransmission else 0,
        )

    def _refresh_plan(self, channel: ChannelConfig) -> ChannelPlan:
        lines = tuple(
            self._line(channel.service, line, "refresh/") for line in channel.refresh_lines
        )
        return ChannelPlan(channel.service, lines, refresh=True)

    def _line(self, service: int, line: LineConfig, kind: str) -> Line:
        return Line(
            f"{service}/{kind}{line.name}",
            line.group,
            line.port,
            self.config.interface_of(line),
            line.source or None,
            line.source_filter,
            line.overlay,
            None if line.tcp is None else line.tcp.server(),
        )

    def _recovery(self, seed: int) -> RecoveryManager:
        """Make the recovery manager, and the stores that it shares with the streams."""
        config = self.config
        channels = [
            RecoveryChannel(
                channel.service,
                retransmission=channel.retransmission,
                refresh=channel.refreshes,
                refresh_server=channel.refresh,
                reference=channel.reference,
            )
            for channel in config.channels
        ]
        history_bytes = config.amqp.history_bytes
        manager = RecoveryManager(
            self.feed,
            channels,
            self.qualities,
            self,
            settled(config.recovery, self.feed),
            snapshots_of(self.feed, config.recovery),
            seed,
            history_bytes,
            config.trading_day.of(self.feed),
        )
        for channel_index, stream in enumerate(self.streams):
            stream.store = manager.store(channel_index)
            if history_bytes:
                stream.remember(history_bytes)
            if stream.store is None and names_session(self.feed):
                stream.store = PacketStore(SESSION_STORE_BYTES)
        return manager

    def _latest(self, service: int) -> bytes:
        """Return the newest packet of a service's present sequence epoch; b"" before any."""
        for stream in self.streams:
            if stream.service == service and stream.store is not None and stream.store.count:
                newest = stream.store.packet(stream.store.next_serial - 1)
                return b"" if newest is None else newest[2]
        return b""

    def _server(self, config: ServerConfig, seed: int) -> ReconnectingClient | FailoverPair:
        recovery, name = settled(self.config.recovery, self.feed), config.name
        make = partial(client_of, self.config, self.feed, config, seed, self._latest)
        on_events, on_up = partial(self._on_events, name), partial(self._on_up, name)
        on_down, on_switch = partial(self._on_down, name), partial(self._on_switch, name)
        if not config.secondary:
            return ReconnectingClient(
                make(), recovery, on_events=on_events, on_up=on_up, on_down=on_down, seed=seed
            )
        return FailoverPair(
            make, recovery, on_events=on_events, on_up=on_up, on_down=on_down,
            on_switch=on_switch, on_deadline=self._after, seed=seed,
        )  # fmt: skip

    def _fanout(self, ring: Ring) -> Fanout:
        feed = self.feed
        # A packet shorter than this names no symbol.
        reference_bytes_min = feed.table.header_size + min(
            (reference.least_size for reference in feed.references.values()), default=0
        )
        fanout = Fanout(
            ring,
            feed.table,
            self.streams,
            self.name_of,
            self.alias_of,
            feed.references,
            reference_bytes_min,
        )
        fanout.has_send_time = feed.needs_send_time
        if self.config.conflates:
            fanout.book_cache = book_cache_of(feed)
        if self.config.amqp.records:
            from feedhandler.amqp.record_fanout import RecordFanout

            fanout.records = self.record_fanout = RecordFanout(
                feed, self.streams, self.name_of, self.alias_of, self.names, self.day.today
            )
        return fanout

    # -- what comes out of the ring -----------------------------------------------------------

    def pump(self, bytes_max: int, now_ns: int) -> bool:
        """Deliver a share of what the ring holds, some `bytes_max` bytes at most, and apply each
        event between the packets it stands between; True when more waits.

        An event that could not be applied, because of an error of ours, is the first of the next
        share.
        """
        fanout = self.fanout
        more = fanout.event is not None or fanout.pump(bytes_max)
        while (event := fanout.event) is not None:
            self._apply(event, now_ns)
            more = fanout.resume()
        return more

    def _apply(
        self, event: ControlEvent | RefreshLinePacket | ReferenceMessages, now_ns: int
    ) -> None:
        """Apply an event: subscribers get the quality message of a gap, a reset or a silent line
        before any later packet."""
        recovery, live = self.recovery, len(self.streams)
        if isinstance(event, ReferenceMessages):
            self._learn(event.messages)
            return
        if isinstance(event, RefreshLinePacket):
            served = self.refresh_indices[event.channel - live]
            recovery.refresh_packet(served, event.sequence, event.data, now_ns)
        else:
            self._io.line_changed(event.kind, event.channel, event.line)
            if event.channel < live:
                recovery.stream_event(_stream_event(event), now_ns)
            else:
                served = self.refresh_indices[event.channel - live]
                recovery.refresh_line_event(served, StreamEventKind(event.kind), now_ns)
        self._io.wake_at(self.deadline_ns, now_ns)

    def _learn(self, messages: Sequence[tuple[int, bytes]]) -> None:
        """Take symbols' names from reference data, (type, message) each: from here on their keys
        have the names."""
        names, renamed = self.names, []
        for code, message in messages:
            found = self.feed.references[code].read(message)
            if found is None or not found[1]:
                continue
            symbol, word = found[0], key_word(found[1])
            known = names.get(symbol)
            if known != word and (known or len(names) < self.config.amqp.max_symbols):
                names[symbol] = word
                renamed.append(symbol)
        if renamed:
            for stream in self.streams:
                stream.forget_routes()
            if self.fanout.records is not None:
                self.fanout.records.renamed(renamed)

    # -- what else happens ----------------------------------------------------------------------

    def attached(self, sender_queue: SenderQueue, streams: Sequence[Stream], now_ns: int) -> None:
        """Take a link with snapshot=1, which wants the state of these services first."""
        self.recovery.attached(sender_queue, [stream.index for stream in streams], now_ns)
        self._after(now_ns)

    @property
    def deadline_ns(self) -> int:
        """When `tick` must be called next."""
        return min([self.recovery.deadline_ns, *(pair.deadline_ns for pair in self._pairs)])

    def tick(self, now_ns: int) -> None:
        """Do what is due in recovery; connections to servers have deadlines of their own."""
        for pair in self._pairs:
            if pair.deadline_ns <= now_ns:
                pair.tick(now_ns)
        self.recovery.tick(now_ns)
        self._after(now_ns)

    def finish(self, now_ns: int) -> None:
        """Publish what closed streams hold back, as stale, when the gateway stops."""
        self.recovery.open_all("stopping", now_ns)

    def resume_requests(self, server: str, now_ns: int) -> list[str]:
        """Request again from `server` (from all for ""), although it refused further requests for
        today; return the names of those that had. Raises `UsageError` for an unknown server."""
        if server and server not in self.servers:
            known = ", ".join(self.servers)
            remedy = f"servers: {known}" if known else "no [[server]] is configured"
            raise UsageError(f"no server {server[:64]!r}", remedy)
        wanted = [server] if server else list(self.servers)
        resumed = [name for name in wanted if self.recovery.resume(name, now_ns)]
        if resumed:
            self._alerts.renew()
        self._after(now_ns)
        return resumed

    def _pause(self, server: str, now_ns: int) -> dict[str, bool | int]:
        """Return whether a server is not asked any more today, and until when (ns since 1970)."""
        until_ns = self.recovery.paused_until_ns(server, now_ns)
        return {"paused": bool(until_ns), "paused_until_ns": until_ns}

    def turn_day(self, wall_ns: int) -> bool:
        """Begin the trading day where it has turned; return whether it has.

        Tags are new, no symbol has a name until the day's reference data has it, and what the
        operator was alerted to is reported again where it is still so. Servers' quotas, recordings
        and queues see to themselves.
        """
        if not self.day.turn(wall_ns):
            return False
        self.names.clear()
        self._alerts.renew()
        for stream in self.streams:
            stream.begin_day(self._prefix(stream.service))
        if self.record_fanout is not None:
            self.record_fanout.set_day(self.day.today)
        return True

    def group_datagram(self, server: str, data: bytes, now_ns: int) -> None:
        """Take a datagram of the group by which a server of Resend Requests answers."""
        for end in self.servers[server].ends:
            assert isinstance(end.client, ResendClient), "only such servers have groups"
            end.pass_on(end.client.datagram(data, now_ns), now_ns)

    def line_datagram(self, channel_index: int, data: bytes, now_ns: int) -> None:
        """Take a datagram of a channel's retransmission lines, by which its server answers."""
        channel = self.config.channels[channel_index]
        for end in self.servers[channel.retransmission].ends:
            assert isinstance(end.client, LineClient), "only such servers answer by lines"
            end.pass_on(end.client.datagram(channel.service, data, now_ns), now_ns)

    def refresh_datagram(self, channel_index: int, line: int, data: bytes, now_ns: int) -> None:
        """Take a datagram of a channel's refresh line that is read by itself."""
        self.recovery.refresh_datagram(channel_index, line, data, now_ns)
        self._after(now_ns)

    def _on_events(self, server: str, events: list[Event], now_ns: int) -> None:
        if any(isinstance(event, _USEFUL) for event in events):
            self._alerts.well(server)
        self.recovery.client_events(server, events, now_ns)
        self._after(now_ns)

    def _on_up(self, server: str, now_ns: int) -> None:
        self._alerts.connected(server, now_ns)
        self.recovery.server_up(server, now_ns)
        self._after(now_ns)

    def _on_down(self, server: str, reason: str, now_ns: int) -> None:
        self.counts["disconnects"] += 1
        self._alerts.disconnected(server, reason, now_ns)
        if not self.servers[server].on_demand:
            self.recovery.server_down(server, now_ns)
        self._after(now_ns)

    def _on_switch(self, server: str, text: str, now_ns: int) -> None:
        self._alerts.report(server, f"server {server}: the {text}", now_ns)

    def _after(self, now_ns: int) -> None:
        """Flush links that recovery may have filled outside a pump, and take the new deadline."""
        self._io.flush_soon()
        self._io.wake_at(self.deadline_ns, now_ns)

    # -- what recovery has carried out (`RecoveryIO`) -----------------------------------------

    def ask(self, server: str, request: Ask, now_ns: int) -> bool:
        """Send a retransmission request; return False where it cannot be sent."""
        return self.servers[server].ask(request, now_ns)

    def cancel(self, server: str, request_id: int) -> None:
        """Forget a request."""
        self.servers[server].cancel(request_id)

    def ask_refresh(self, server: str, request: AskRefresh, now_ns: int) -> None:
        """Send a refresh request."""
        self.servers[server].ask_refresh(request, now_ns)

    def fill(self, channel_index: int, data: bytes, epoch: int) -> bool:
        """Give the arbiter a packet that was missing; without room it will be asked for again."""
        has_room = self._io.fill(channel_index, data, epoch)
        self.counts["inlet_full"] += not has_room
        return has_room

    def disprove(self, channel_index: int, number: int, epoch: int) -> None:
        """Inform the arbiter that nothing from `number` on was sent; without room the server's next
        answer does."""
        if not self._io.disprove(channel_index, number, epoch):
            self.counts["inlet_full"] += 1

    def give_up(self, channel_index: int, until: int, epoch: int) -> None:
        """Have the arbiter announce what is missing; without room its own deadline does."""
        if not self._io.give_up(channel_index, until, epoch):
            self.counts["inlet_full"] += 1

    def quality(self, channel_index: int, body: bytes, links: Any = None) -> None:
        """Send a quality message to the service's subscribers, or only to these."""
        self.fanout.quality(self.streams[channel_index], body, links)

    def withhold(self, channel_index: int, link: Any) -> None:
        """Withhold the service from the link until it is admitted."""
        self.streams[channel_index].withhold(link)

    def admit(self, channel_index: int, link: Any) -> None:
        """Admit the link to the service from here on."""
        if self.is_here(link):
            self.streams[channel_index].admit(link)

    def block(
        self,
        channel_index: int,
        begin: bytes,
        packets: list[bytes],
        last: int,
        end: bytes,
        links: Any,
    ) -> None:
        """Send a snapshot block, whose reference data names its symbols first."""
        self._learn(self.fanout.references(packets))
        self.fanout.block(self.streams[channel_index], begin, packets, last, end, links)

    def close_stream(self, channel_index: int) -> None:
        """Packets go to the store only."""
        self.streams[channel_index].close()

    def open_stream(
        self, channel_index: int, packets: list[tuple[int, int, bytes]], following: int
    ) -> None:
        """Publish stored packets, whose reference data names their symbols first, then live ones
        again."""
        self._learn(self.fanout.references([data for _, _, data in packets]))
        self.fanout.replay(self.streams[channel_index], packets, following)

    def renumber(self, channel_index: int) -> None:
        """Begin a new sequence epoch."""
        self._io.renumbered()

    def next_sequence(self, channel_index: int) -> int:
        """Return the number after the last packet published."""
        return self.streams[channel_index].next_sequence

    def is_here(self, link: Any) -> bool:
        """Return whether the link is still attached."""
        return link in self.fanout.sender_queues

    def alert(self, text: str, now_ns: int) -> None:
        """Inform the operator."""
        self._alerts.report(text, text, now_ns)

    # -- what it knows --------------------------------------------------------------------------

    def name_of(self, symbol: int) -> str:
        """Return a symbol's word in routing keys."""
        if self.config.gateway.symbols == "name":
            name = self.names.get(symbol)
            if name is not None:
                return name
        return self.feed.symbol_text(symbol)

    def alias_of(self, symbol: int) -> str | None:
        """Return the other word by which patterns may name a symbol, once its name is known."""
        name = self.names.get(symbol)
        if name is None or self.config.gateway.symbols == "index":
            return name
        return self.feed.symbol_text(symbol)

    def recovery_snapshot(self, now_ns: int) -> dict[str, Any]:
        """Return what recovery did for all channels, and each server's own counts."""
        self.counts["untold"] = self._alerts.suppressed
        return {
            **self.recovery.counts,
            **self.counts,
            "servers": {
                name: {
                    "up": server.available,
                    "secondary": server.asked_end,
                    **self._pause(name, now_ns),
                    **server.counts,
                }
                for name, server in self.servers.items()
            },
        }


def _stream_event(event: ControlEvent) -> StreamEvent:
    """Make the event for recovery of one of the ring."""
    return StreamEvent(
        StreamEventKind(event.kind),
        event.channel,
        event.line,
        event.sequence,
        event.next_sequence,
        event.auxiliary,
    )
