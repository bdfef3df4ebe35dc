"""The recovery manager: takes events of streams and servers, and says what is to be done.

It takes the events of streams (gaps, what is missing, declared losses, resets), the answers of
retransmission and refresh servers, the packets of the refresh lines, and the time. For each channel
it keeps the recovery state machine (`recovery`), the assembler of snapshots (`refresh`), the
quality that subscribers know (`quality`) and the packets published lately (`store`). What is to be
done goes out through its `RecoveryIO`: requests to servers, packets to the arbiter, quality
messages and snapshot blocks to subscribers.

What it promises:

* The live stream never waits for a refresh. What cannot be had is announced, the stream goes on,
  and the snapshot comes later as a block: begin marker, snapshot, the packets published since its
  LastSeqNum once more, end marker.
* A start in mid-day is the exception: the stream is closed (its packets go to the store) until the
  reference data and then its own snapshot are there, or no longer than the refresh may take and
  the store can hold. Then it opens, whole or honestly stale.
* A stream is not announced as whole unless a snapshot with everything lost in it was published,
  and everything since.

Sans-IO: the time is an argument, `deadline_ns` is when `tick` must be called next.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from feedhandler.codecs import Feed
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.retrans.actions import Alert, Ask, AskRefresh, Cancel, Disprove, GiveUp, NoSnapshot
from feedhandler.retrans.channel import Channel
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Packet,
    RefreshAccepted,
    RefreshFailed,
    RefreshPacket,
    RefreshRejected,
    RefreshSnapshot,
    Rejected,
)
from feedhandler.retrans.io import RecoveryChannel, RecoveryIO
from feedhandler.retrans.packet_cut import PacketCutter, can_be_cut
from feedhandler.retrans.protocol import NEVER_NS as NEVER
from feedhandler.retrans.quality import QualityState
from feedhandler.retrans.quota import Quota
from feedhandler.retrans.recovery import Recovery
from feedhandler.retrans.refresh import Snapshot, SnapshotBegan, SnapshotFailed
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import LINES, TCP, Assembler, LineAssembler, Snapshots
from feedhandler.retrans.states import State
from feedhandler.retrans.store import PacketStore
from feedhandler.retrans.stream_events import StreamEvent, StreamEventKind

#: Requests are numbered by channel: the channel's index stands above this many bits.
CHANNEL_INDEX_SHIFT = 32
#: A closed stream opens when its store is so full: what comes until the next look must fit.
CLOSED_SHARE_MAX = 0.5
#: Nothing must have been missing for this long before subscribers are notified: where every
#: hundredth packet is lost, gaps follow one another so closely that reporting each end would double
#: what they get.
RECOVERED_AFTER_NS = 10_000_000
#: A snapshot ahead of a sequence epoch that is young may be one of the epoch before: it is waited
#: for only as long as live lines may lag behind refresh lines.
LAG_NS = 700_000_000

#: Key of `RecoveryManager.counts`: what it counts, over all channels.
COUNTS: dict[str, str] = {
    "retransmitted": "packets that a retransmission server brought",
    "retransmitted_bytes": "bytes of those packets",
    "requests": "retransmission requests",
    "rejected": "retransmission requests that a server refused",
    "refreshes": "snapshot blocks sent to all whom a service concerns",
    "refresh_requests": "refresh requests",
    "refresh_rejected": "refresh requests that a server refused",
    "snapshots": "snapshots that came whole, wanted or not",
    "snapshots_failed": "snapshots that had begun and came to nothing",
    "foreign": "snapshots of another sequence epoch, as their send times show",
    "overflows": "snapshots that were of no use: too much had been published since",
    "mid_day_starts": "streams that were joined in mid-day, and closed until their snapshot",
    "opened_stale": "of those, opened without one",
}


class RecoveryManager:
    """Recovery for all channels of one gateway.

    `feed` is their description, `channels` and `qualities` one a channel, in the order of the
    ring's channel numbers; `snapshots` the form of the feed's snapshots; `seed` draws the jitter of
    retries. `store_bytes_least`: for others who read the stores as well. `trading_day`: what a
    server's day is; the feed's where it is None.
    """

    def __init__(
        self,
        feed: Feed,
        channels: Sequence[RecoveryChannel],
        qualities: Sequence[QualityState],
        io: RecoveryIO,
        settings: RecoverySettings,
        snapshots: Snapshots,
        seed: int = 0,
        store_bytes_least: int = 0,
        trading_day: TradingDay | None = None,
    ) -> None:
        self.settings = settings
        self._trading_day = trading_day or feed.trading_day
        self._snapshots = snapshots
        self._cutter = PacketCutter(feed) if can_be_cut(feed) else None
        self._store_bytes = max(settings.store_bytes, store_bytes_least)
        self._io = io
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._quotas: dict[str, Quota] = {}
        for channel in channels:
            if channel.retransmission and channel.retransmission not in self._quotas:
                self._quotas[channel.retransmission] = Quota(
                    settings.requests_per_s,
                    settings.requests_per_day,
                    settings.outstanding_max,
                    self._trading_day,
                )
        self._channels = [
            self._channel(channel_index, plan, quality, self._quotas.get(plan.retransmission), seed)
            for channel_index, (plan, quality) in enumerate(zip(channels, qualities, strict=True))
        ]
        #: Packets of refresh servers name the service.
        self._by_service = {channel.plan.service: channel for channel in self._channels}
        # A reset packet may be the day's first: who joins behind it has missed nothing.
        self._first = feed.first_sequence
        kind = feed.description.packet.kind
        self._first_joined = feed.first_sequence + bool(kind is not None and kind.reset)
        self._reference = next((each for each in self._channels if each.plan.reference), None)
        self._reference_until_ns = NEVER
        self._reference_asked = False
        #: Channels whose own refresh waits for the reference data.
        self._deferred: list[Channel] = []
        self._deadlines = [NEVER] * len(self._channels)
        self.deadline_ns = NEVER

    def _channel(
        self,
        channel_index: int,
        plan: RecoveryChannel,
        quality: QualityState,
        quota: Quota | None,
        seed: int,
    ) -> Channel:
        settings = self.settings
        recovery = Recovery(
            plan.service,
            settings,
            quota=quota,
            refresh=plan.refresh,
            refresh_server=bool(plan.refresh_server),
            seed=seed + channel_index,
            first_id=(channel_index << CHANNEL_INDEX_SHIFT) + 1,
            trading_day=self._trading_day,
        )
        channel = Channel(channel_index, plan, recovery, quality)
        if plan.refresh:
            channel.store = PacketStore(self._store_bytes)
            if self._cutter is not None:
                channel.store.trim_by(self._cutter.cut)
            channel.assemblers = self._snapshots.assemblers(plan.service)
        return channel

    # -- what it knows ----------------------------------------------------------------------

    def store(self, channel_index: int) -> PacketStore | None:
        """Store for a channel's published packets; None where none is needed."""
        return self._channels[channel_index].store

    def state(self, channel_index: int) -> State:
        """State of the channel's recovery."""
        return self._channels[channel_index].recovery.state

    def snapshot(self, channel_index: int) -> dict[str, Any]:
        """Return a channel's recovery as JSON-ready values; ranges include both ends."""
        channel = self._channels[channel_index]
        recovery = channel.recovery
        refreshes: Counter[str] = Counter()
        for assembler in channel.assemblers:
            refreshes.update(assembler.counts)
        return {
            "state": recovery.state.name,
            "requested": [[first, end - 1] for first, end in recovery.requested],
            "lost": [[first, end - 1] for first, end in recovery.lost_ranges],
            "closed": channel.closed,
            "counts": recovery.counts,
            "refresh": refreshes,
        }

    def paused_until_ns(self, server: str, now_ns: int) -> int:
        """Return until when `server` is not asked any more, ns; 0 where it is asked.

        Of a refresh server it is the latest of its services.
        """
        until_ns = [0]
        if server in self._quotas:
            until_ns.append(self._quotas[server].closed_until_ns(now_ns))
        until_ns.extend(
            channel.recovery.refresh_barred_until_ns(now_ns)
            for channel in self._channels
            if server == channel.plan.refresh_server
        )
        return max(until_ns)

    def resume(self, server: str, now_ns: int) -> bool:
        """Ask `server` again today, at the operator's request; whether it was given up before.

        The day's requests are counted anew. What was abandoned meanwhile stays so.
        """
        resumed = server in self._quotas and self._quotas[server].resume(now_ns)
        for channel in self._channels:
            if server == channel.plan.refresh_server:
                resumed |= channel.recovery.resume_refresh(now_ns)
        self._settle_all(now_ns)
        return resumed

    # -- what it hears ----------------------------------------------------------------------

    def stream_event(self, event: StreamEvent, now_ns: int) -> None:
        """Apply an event of a channel's own lines; `_BY_KIND` names the method for each kind."""
        channel = self._channels[event.channel]
        _BY_KIND[event.kind](self, channel, event, now_ns)
        if event.kind != StreamEventKind.GAP_NOTICED:  # nothing comes of it yet
            self._settle(channel, now_ns)

    def _gap_noticed(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        channel.recovery.noticed(now_ns)

    def _passed(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        channel.recovery.progress(self._following(channel), now_ns)

    def _gap_closed(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        channel.recovery.closed(event.sequence, now_ns)
        channel.unreported = False
        if len(channel.quality.missing):
            channel.report_recovered_ns = now_ns + RECOVERED_AFTER_NS

    def _numbers_missing(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        channel.epoch = event.epoch
        channel.recovery.progress(self._following(channel), now_ns)
        channel.recovery.missing(event.sequence, event.next_sequence, event.epoch, now_ns)
        channel.report_recovered_ns = NEVER
        if len(channel.quality.missing):
            channel.quality.missing.add(event.sequence, event.next_sequence - 1)
            channel.unreported = True
        else:
            self._report_missing(channel)

    def _line_changed(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        if channel.unreported:
            self._report_missing(channel)
        self._io.quality(channel.index, _notice(channel, event))

    def _skipped(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        channel.recovery.progress(self._following(channel), now_ns)
        self._io.quality(channel.index, _notice(channel, event))

    def _gap_declared(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        if channel.closed:
            self._line_changed(channel, event, now_ns)
        else:
            # The notice has what is missing: nobody waits for any number before this one.
            channel.unreported = False
            channel.quality.missing.discard_below(event.sequence)
            self._io.quality(channel.index, _notice(channel, event))
        self._add_loss(channel, event.sequence, event.next_sequence, now_ns)

    def _loss_withdrawn(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        if channel.closed:
            self._open_stale(channel, "no snapshot", now_ns)
            self._io.quality(channel.index, _notice(channel, event))
        else:
            self._line_changed(channel, event, now_ns)
        self._withdraw(channel, now_ns)

    def _started(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        if channel.unreported:
            self._report_missing(channel)
        notice = _notice(channel, event)
        if self._needs_snapshot(channel, event.next_sequence):
            self._start_closed(channel, event.next_sequence, "start", now_ns)
        else:
            self._io.quality(channel.index, notice)
        channel.joined = True

    def _epoch_reset(self, channel: Channel, event: StreamEvent, now_ns: int) -> None:
        self._reset(channel, now_ns)
        self._io.quality(channel.index, _notice(channel, event))
        # An epoch whose beginning was not received is joined in its middle, as at a start.
        if self._needs_snapshot(channel, event.next_sequence):
            self._start_closed(channel, event.next_sequence, "missing", now_ns)
        channel.joined = True

    def client_events(self, server: str, events: Sequence[Any], now_ns: int) -> None:
        """Apply a server's answers."""
        touched: dict[int, Channel] = {}
        for event in events:
            if isinstance(event, RefreshPacket):
                channel = self._by_service.get(event.service)
                if channel is None:
                    continue
                self._assemble(channel, TCP, event.sequence, event.data, now_ns)
            else:
                channel = self._channels[event.request_id >> CHANNEL_INDEX_SHIFT]
                self._answer(channel, event.request_id, event, now_ns)
            touched[channel.index] = channel
        for channel in touched.values():
            self._settle(channel, now_ns)

    def _answer(self, channel: Channel, request_id: int, event: Any, now_ns: int) -> None:
        """Apply an answer to one of a channel's requests."""
        recovery = channel.recovery
        if isinstance(event, Packet):
            self.counts["retransmitted"] += 1
            self.counts["retransmitted_bytes"] += len(event.data)
            if channel.unreported:
                self._report_missing(channel)  # before what it concerns
            # Without room it is still missing: the end of the answer has it asked for again.
            if self._io.fill(channel.index, event.data, channel.epoch):
                recovery.arrived(request_id, event.sequence, event.next_sequence, now_ns)
        elif isinstance(event, Accepted):
            recovery.accepted(request_id, now_ns)
        elif isinstance(event, Rejected):
            self.counts["rejected"] += 1
            recovery.rejected(request_id, event.reason, now_ns)
        elif isinstance(event, Answered):
            recovery.answered(request_id, now_ns)
        elif isinstance(event, RefreshAccepted):
            channel.accepted_id = request_id
            recovery.refresh_accepted(request_id, now_ns)
        elif isinstance(event, RefreshRejected):
            self.counts["refresh_rejected"] += 1
            recovery.refresh_rejected(request_id, event.reason, now_ns)
        elif isinstance(event, RefreshSnapshot):
            self._snapshot_arrived(channel, self._snapshots.whole(event), now_ns)
        elif isinstance(event, RefreshFailed):
            self._snapshot_failed(channel, event.reason, now_ns)

    def server_up(self, server: str, now_ns: int) -> None:
        """Note that the connection to `server` is up."""
        for channel in self._channels:
            if server == channel.plan.retransmission:
                channel.recovery.server_up(now_ns)
            if server == channel.plan.refresh_server:
                channel.recovery.refresh_up(now_ns)
        self._settle_all(now_ns)

    def server_down(self, server: str, now_ns: int) -> None:
        """Note that the connection to `server` is lost: its requests will not be answered."""
        for channel in self._channels:
            if server == channel.plan.retransmission:
                channel.recovery.server_down(now_ns)
        self._settle_all(now_ns)

    def refresh_packet(self, channel_index: int, sequence: int, data: bytes, now_ns: int) -> None:
        """Take the next packet of the channel's refresh lines."""
        channel = self._channels[channel_index]
        self._assemble(channel, LINES, sequence, data, now_ns)
        self._settle(channel, now_ns)

    def refresh_datagram(self, channel_index: int, line: int, data: bytes, now_ns: int) -> None:
        """Take the next datagram of a refresh line that is not arbitrated.

        It is looked at only while a snapshot is of use.
        """
        channel = self._channels[channel_index]
        # Other lines are arbitrated. To check the protocol would take longer than the datagram.
        assembler = cast(LineAssembler, channel.assemblers[LINES])
        if not channel.awaits_snapshot:
            assembler.idle()
            return
        assembler.datagram(line, data, now_ns)
        self._apply_outcomes(channel, assembler, now_ns)
        self._settle(channel, now_ns)

    def refresh_line_event(self, channel_index: int, kind: StreamEventKind, now_ns: int) -> None:
        """Apply an event of the channel's refresh lines: a snapshot with a gap is void."""
        channel = self._channels[channel_index]
        if not channel.assemblers:
            return
        assembler = channel.assemblers[LINES]
        if kind == StreamEventKind.GAP:
            assembler.gap(now_ns)
        elif kind == StreamEventKind.RESET:
            assembler.reset(now_ns)
        self._apply_outcomes(channel, assembler, now_ns)
        self._settle(channel, now_ns)

    def attached(self, link: Any, channel_indices: Sequence[int], now_ns: int) -> None:
        """Take a link that wants each service's state first: it gets nothing of it before."""
        for channel_index in channel_indices:
            channel = self._channels[channel_index]
            if channel.store is None:
                self._io.quality(channel.index, channel.quality.no_snapshot("no refresh"), [link])
            elif not channel.closed and not self._send_latest(channel, [link]):
                self._io.withhold(channel.index, link)
                self._io.quality(channel.index, channel.quality.awaiting_snapshot(), [link])
                channel.waiting = [each for each in channel.waiting if self._io.is_here(each)]
                channel.waiting.append(link)
                channel.recovery.want_snapshot(now_ns)
                self._settle(channel, now_ns)

    def open_all(self, reason: str, now_ns: int) -> None:
        """Publish what closed streams have stored, as stale: the gateway stops."""
        for channel in self._channels:
            if channel.closed:
                self._open_stale(channel, reason, now_ns)

    def _admit(self, channel: Channel, why_not: str) -> list[Any]:
        """Admit the links that waited for a snapshot and return them; where there is none, for the
        reason `why_not`, they are informed."""
        waiting, channel.waiting = channel.waiting, []
        for link in waiting:
            self._io.admit(channel.index, link)
        if why_not and waiting:
            self._io.quality(channel.index, channel.quality.no_snapshot(why_not), waiting)
        return waiting

    def tick(self, now_ns: int) -> None:
        """Let time pass."""
        for channel in self._channels:
            if self._deadlines[channel.index] > now_ns:
                continue
            if channel.recovery.deadline_ns <= now_ns:
                channel.recovery.tick(now_ns)
            for assembler in channel.assemblers:
                if assembler.deadline_ns <= now_ns:
                    assembler.tick(now_ns)
                    self._apply_outcomes(channel, assembler, now_ns)
            if channel.pending is not None:
                self._try_pending(channel, now_ns)
            if channel.report_recovered_ns <= now_ns:
                self._report_recovered(channel)
            self._settle(channel, now_ns)

    # -- starts and resets ------------------------------------------------------------------

    def _add_loss(self, channel: Channel, first: int, end: int, now_ns: int) -> None:
        """Have a declared loss healed; a channel that waits for reference data asks for all of it
        at once."""
        if channel.deferred is not None:
            channel.deferred = (channel.deferred[0], end)
        else:
            channel.recovery.lost(first, end, now_ns)

    def _withdraw(self, channel: Channel, now_ns: int) -> None:
        """Begin recovery anew with what else is lost: the announced range was not."""
        channel.recovery.reset(now_ns)
        channel.unreported, channel.latest = False, None
        still = list(channel.quality.lost)
        following = channel.quality.next or 0
        if channel.quality.doubt is not None and following > 1:
            # Nothing is lost, but what was published is in doubt: any snapshot from here on heals.
            still.append((following - 1, following - 1))
        channel.recovery.still_lost(still, now_ns)
        self._admit(channel, "withdrawn")

    def _needs_snapshot(self, channel: Channel, sequence: int) -> bool:
        """Return whether a stream that was joined at `sequence` lacks its state.

        A stream that is joined in front of its early snapshot's end lacks nothing, but it must not
        publish what is in the snapshot already.
        """
        return channel.plan.refresh and sequence > self._first_joined and sequence != channel.base

    def _start_closed(self, channel: Channel, sequence: int, reason: str, now_ns: int) -> None:
        """Close a stream that was joined in mid-day: its state must come by snapshot."""
        channel.closed = channel.joined = True
        self.counts["mid_day_starts"] += 1
        self._io.close_stream(channel.index)
        channel.closed_serial = 0 if channel.store is None else channel.store.next_serial
        lost = channel.before = (min(max(self._first, channel.base), sequence - 1), sequence)
        self._io.quality(channel.index, channel.quality.recovering([lost], sequence, reason))
        if channel.early is not None and channel.base > sequence:
            channel.pending, channel.early = channel.early, None
            channel.pending_until_ns = now_ns + self.settings.refresh_timeout_us * 1000
        reference = self._reference
        if reference is None or channel is reference:
            channel.recovery.lost(*lost, now_ns)
            return
        channel.deferred = lost
        self._deferred.append(channel)
        if not self._reference_asked:
            # Reference data is quiet in mid-day: its stream may not say anything for long.
            self._reference_asked = True
            self._reference_until_ns = now_ns + self.settings.refresh_timeout_us * 1000
            if not reference.joined:
                reference.recovery.want_snapshot(now_ns)
                self._settle(reference, now_ns)

    def _reference_ready(self, now_ns: int) -> bool:
        """Return whether the reference data is there, or was waited for long enough."""
        reference = self._reference
        if reference is None or now_ns >= self._reference_until_ns:
            return True
        if reference.joined:
            return not reference.closed
        return reference.base > 0

    def _reset(self, channel: Channel, now_ns: int) -> None:
        """Begin a new sequence epoch: what was lost before it no longer matters."""
        if channel.closed:
            self._open_stale(channel, "no snapshot", now_ns)
        channel.joined = True
        channel.recovery.reset(now_ns)
        if channel.plan.retransmission in self._quotas:
            self._quotas[channel.plan.retransmission].reopen()
        if channel.accepted_id:  # its snapshot would be of the epoch before
            self._io.cancel(channel.plan.refresh_server, channel.accepted_id)
        channel.void()
        channel.young_until_ns = now_ns + self.settings.refresh_timeout_us * 1000
        if channel.store is not None:
            channel.store.clear()
        self._io.renumber(channel.index)
        for assembler in channel.assemblers:
            assembler.reset(now_ns)
            assembler.pop_events()
        self._admit(channel, "")

    def _open(
        self,
        channel: Channel,
        packets: list[tuple[int, int, bytes]],
        following: int,
    ) -> None:
        channel.closed = False
        self._io.open_stream(channel.index, packets, following)

    # -- snapshots --------------------------------------------------------------------------

    def _assemble(
        self, channel: Channel, which: int, sequence: int, data: bytes, now_ns: int
    ) -> None:
        if channel.assemblers:
            assembler = channel.assemblers[which]
            assembler.packet(data, sequence, now_ns)
            self._apply_outcomes(channel, assembler, now_ns)

    def _apply_outcomes(self, channel: Channel, assembler: Assembler, now_ns: int) -> None:
        """Apply what an assembler reports: snapshots that began, are complete or have failed."""
        for outcome in assembler.pop_events():
            if isinstance(outcome, SnapshotBegan):
                channel.recovery.snapshot_began(now_ns)
            elif isinstance(outcome, SnapshotFailed):
                self._snapshot_failed(channel, outcome.reason, now_ns)
            else:
                self._snapshot_arrived(channel, outcome, now_ns)

    def _snapshot_failed(self, channel: Channel, reason: str, now_ns: int) -> None:
        """Note that a snapshot failed."""
        self.counts["snapshots_failed"] += 1
        channel.recovery.snapshot_failed(reason, now_ns)

    def _snapshot_arrived(self, channel: Channel, snapshot: Snapshot, now_ns: int) -> None:
        """Take a complete snapshot."""
        self.counts["snapshots"] += 1
        channel.pending = snapshot
        patience_ns = self.settings.refresh_timeout_us * 1000
        if now_ns < channel.young_until_ns:
            patience_ns = min(patience_ns, LAG_NS)
        channel.pending_until_ns = now_ns + patience_ns
        self._try_pending(channel, now_ns)

    def _try_pending(self, channel: Channel, now_ns: int) -> None:
        """Use the newest snapshot once its stream has come as far as it has."""
        snapshot = channel.pending
        assert snapshot is not None
        assert channel.store is not None
        if not self._snapshots.fit(snapshot, channel.store):
            channel.pending = None
            self.counts["foreign"] += 1
            channel.recovery.snapshot_failed("foreign", now_ns)
            return
        following = self._following(channel)
        reach = max(snapshot.last, snapshot.highest)
        if reach >= following if channel.joined else reach > snapshot.last:
            # The snapshot overtook the live lines, or belongs to another epoch.
            if now_ns >= channel.pending_until_ns:
                channel.pending = None
                channel.recovery.snapshot_failed("ahead", now_ns)
            return
        channel.pending = None
        if not channel.joined:
            self._before_joining(channel, snapshot, now_ns)
            return
        lost = channel.lost()
        if lost and snapshot.last + 1 < max(end for _, end in lost):
            channel.recovery.snapshot(snapshot.last, now_ns)  # too old: it will ask again
            return
        if not self._has_since(channel, snapshot.last + 1, following):
            self.counts["overflows"] += 1
            channel.recovery.snapshot_failed("overflow", now_ns)
            return
        channel.latest = snapshot
        channel.deferred = None
        channel.recovery.snapshot(snapshot.last, now_ns)
        waiting = self._admit(channel, "")
        if channel.closed:
            self._open_with(channel, snapshot, following)
        elif lost:
            self._send_latest(channel, None)
        elif waiting:
            self._send_latest(channel, waiting)

    def _has_since(self, channel: Channel, first: int, end: int) -> bool:
        """Return whether everything published from number `first` on can be repeated in a block.

        The store may be larger than what a block may have (`store_bytes`), for others read it.
        """
        assert channel.store is not None
        return channel.store.covers(first, end) and (
            channel.store.bytes <= self.settings.store_bytes
            or channel.store.bytes_of(first, end) <= self.settings.store_bytes
        )

    def _before_joining(self, channel: Channel, snapshot: Snapshot, now_ns: int) -> None:
        """Send the snapshot of a service whose live lines have brought nothing yet: once to all,
        later to each link that waits for one."""
        waiting = self._admit(channel, "")
        if channel.base and not waiting:
            return
        links = waiting if channel.base else None
        if links is None:
            channel.base, channel.early = snapshot.last + 1, snapshot
        channel.recovery.snapshot(snapshot.last, now_ns)
        self._block(channel, snapshot, [], snapshot.last + 1, links)

    def _open_with(self, channel: Channel, snapshot: Snapshot, following: int) -> None:
        """Publish the first snapshot of a closed stream, then what was stored behind it."""
        assert channel.store is not None
        packets = self._snapshots.since(snapshot, channel.store, following)
        # Of parts that reach further, what lies before is part of the block.
        reach = max(snapshot.last, snapshot.highest)
        before = [data for first, _, data in packets if first <= reach]
        self._block(channel, snapshot, before, reach + 1, None)
        behind = [packet for packet in packets if packet[0] > reach]
        self._open(channel, behind, reach + 1)

    def _send_latest(self, channel: Channel, links: list[Any] | None) -> bool:
        """Send the latest snapshot and what was published since; False where it cannot serve."""
        snapshot = channel.latest
        assert channel.store is not None
        following = self._io.next_sequence(channel.index)
        if snapshot is None or not self._has_since(channel, snapshot.last + 1, following):
            return False
        since = [data for _, _, data in self._snapshots.since(snapshot, channel.store, following)]
        self._block(channel, snapshot, since, following, links)
        return True

    def _block(
        self,
        channel: Channel,
        snapshot: Snapshot,
        since: list[bytes],
        following: int,
        links: list[Any] | None,
    ) -> None:
        if channel.unreported:
            self._report_missing(channel)  # it may be beyond the snapshot
        packets = [*snapshot.packets, *since]
        begin = channel.quality.snapshot_begin(snapshot.last, len(packets))
        if links is None:
            self.counts["refreshes"] += 1
        end = channel.quality.snapshot_end(following, heals=links is None)
        self._io.block(channel.index, begin, packets, snapshot.last, end, links)

    def _following(self, channel: Channel) -> int:
        return channel.following(self._io.next_sequence(channel.index))

    # -- what is to be done -----------------------------------------------------------------

    def _settle(self, channel: Channel, now_ns: int) -> None:
        """Carry out what the channel's recovery wants, and find the next deadline."""
        if self._deferred:
            self._begin_deferred(now_ns)
        if channel.closed:
            self._watch_closed(channel, now_ns)
        while actions := channel.recovery.pop_actions():
            for action in actions:
                self._act(channel, action, now_ns)
        self._deadlines[channel.index] = channel.deadline_ns(now_ns)
        self.deadline_ns = min(self._deadlines)

    def _settle_all(self, now_ns: int) -> None:
        for channel in self._channels:
            self._settle(channel, now_ns)

    def _begin_deferred(self, now_ns: int) -> None:
        """Have the channels that waited for the reference data ask for their own snapshots, once it
        is there."""
        if not self._reference_ready(now_ns):
            return
        waiting, self._deferred = self._deferred, []
        for channel in waiting:
            if channel.deferred is not None:
                lost, channel.deferred = channel.deferred, None
                channel.recovery.lost(*lost, now_ns)
                self._settle(channel, now_ns)

    def _watch_closed(self, channel: Channel, now_ns: int) -> None:
        """Open a closed stream as stale when no snapshot comes or its store fills up."""
        assert channel.store is not None
        if channel.store.bytes > self.settings.store_bytes * CLOSED_SHARE_MAX:
            self._open_stale(channel, "overflow", now_ns)
        elif channel.recovery.state == State.STALE:
            self._open_stale(channel, "no snapshot", now_ns)

    def _open_stale(self, channel: Channel, reason: str, now_ns: int) -> None:
        """Publish what a closed stream has stored, marked stale: it has no snapshot."""
        assert channel.store is not None
        self.counts["opened_stale"] += 1
        self._io.quality(channel.index, channel.quality.stale(reason))
        self._report_evicted(channel, now_ns)
        self._open(channel, channel.store.packets(0, NEVER), 0)

    def _report_evicted(self, channel: Channel, now_ns: int) -> None:
        """Declare lost what was evicted from a closed stream's store: it was never published."""
        store, (_, joined) = channel.store, channel.before
        assert store is not None
        if store.next_serial - store.held <= channel.closed_serial:
            return  # what gave way, if anything, was history of an earlier sequence epoch
        for first, last in channel.quality.lost.missing_in(joined, store.gone_next - 1):
            gap = channel.quality.control_event(StreamEventKind.GAP, 0, first, last + 1)
            self._io.quality(channel.index, gap)
            channel.recovery.lost(first, last + 1, now_ns)

    def _act(self, channel: Channel, action: Any, now_ns: int) -> None:
        io, plan = self._io, channel.plan
        if isinstance(action, Ask):
            self.counts["requests"] += 1
            if not io.ask(plan.retransmission, action, now_ns):
                # Nothing will come of it, which says nothing of the server.
                channel.recovery.answered(action.request_id, now_ns)
        elif isinstance(action, Cancel):
            refresh = action.request_id == channel.refresh_id
            server = plan.refresh_server if refresh else plan.retransmission
            if server:
                io.cancel(server, action.request_id)
        elif isinstance(action, GiveUp):
            io.give_up(channel.index, action.until, action.epoch)
        elif isinstance(action, Disprove):
            io.disprove(channel.index, action.number, action.epoch)
        elif isinstance(action, AskRefresh):
            channel.refresh_id = action.request_id
            if plan.refresh_server:
                self.counts["refresh_requests"] += 1
                io.ask_refresh(plan.refresh_server, action, now_ns)
        elif isinstance(action, NoSnapshot):
            self._admit(channel, action.reason)
        elif isinstance(action, Alert):
            io.alert(f"service {plan.service}: {action.text}", now_ns)

    def _recovering(self, channel: Channel) -> bytes:
        """Return a quality message with what is missing now."""
        return channel.quality.recovering(channel.missing(), self._following(channel))

    def _report_missing(self, channel: Channel) -> None:
        """Report to subscribers all that is missing now."""
        channel.unreported = False
        self._io.quality(channel.index, self._recovering(channel))

    def _report_recovered(self, channel: Channel) -> None:
        """Report to subscribers that nothing is missing any more. The stream may still be stale or
        closed."""
        channel.report_recovered_ns = NEVER
        if not len(channel.quality.missing):
            return
        if channel.closed:
            self._io.quality(channel.index, self._recovering(channel))
        else:
            self._io.quality(channel.index, channel.quality.recovered(self._following(channel)))


def _notice(channel: Channel, event: StreamEvent) -> bytes:
    """Return the quality message that a control event makes of the channel's quality."""
    return channel.quality.control_event(
        event.kind, event.line, event.sequence, event.next_sequence
    )


#: Method that applies a stream's event, by its kind.
_BY_KIND = {
    StreamEventKind.PASSED: RecoveryManager._passed,
    StreamEventKind.GAP_NOTICED: RecoveryManager._gap_noticed,
    StreamEventKind.CLOSED: RecoveryManager._gap_closed,
    StreamEventKind.MISSING: RecoveryManager._numbers_missing,
    StreamEventKind.GAP: RecoveryManager._gap_declared,
    StreamEventKind.LINE_SILENT: RecoveryManager._line_changed,
    StreamEventKind.LINE_BACK: RecoveryManager._line_changed,
    StreamEventKind.MISMATCH: RecoveryManager._line_changed,
    StreamEventKind.SKIPPED: RecoveryManager._skipped,
    StreamEventKind.WITHDRAWN: RecoveryManager._loss_withdrawn,
    StreamEventKind.START: RecoveryManager._started,
    StreamEventKind.RESET: RecoveryManager._epoch_reset,
}
