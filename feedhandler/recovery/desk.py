"""The desk where recovery is run: one place that hears everything and tells everyone what to do.

It hears the control events of the ring (holes, what is missing, what was announced lost, resets),
the answers of retransmission and refresh servers, the packets of the refresh lines, and the time.
For each channel it keeps the recovery state machine (`retrans.recovery`), the assembler of
snapshots (`retrans.refresh`), what quality subscribers were told (`amqp.quality`) and the packets
published lately (`retrans.store`). What is to be done goes out through its `Ports`: requests to
servers, packets to the arbiter, quality messages and snapshot blocks to subscribers.

What it promises:

* The live stream never waits for a refresh. What cannot be had is announced, the stream goes on,
  and the snapshot comes later as a block: begin marker, snapshot, the packets published since its
  LastSeqNum once more, end marker.
* A start in mid-day is the exception: the stream is closed (its packets go to the store) until the
  reference data and then its own snapshot are there, or no longer than the refresh may take and
  the store can hold. Then it opens, whole or honestly stale.
* Nobody is told that a stream is whole unless a snapshot with everything lost in it was published,
  and everything since.

Sans-IO: the time is an argument, `deadline_ns` is when `tick` must be called next.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from feedhandler.amqp.quality import QualityState
from feedhandler.codecs import Feed
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.ingest.records import ControlEvent, RecordKind
from feedhandler.recovery.channel import Channel
from feedhandler.recovery.ports import DeskChannel, Ports
from feedhandler.recovery.protocols import LINES, TCP, snapshots_of
from feedhandler.retrans.actions import Alert, Ask, AskRefresh, Cancel, Disprove, GiveUp, NoSnapshot
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
from feedhandler.retrans.protocol import NEVER_NS as NEVER
from feedhandler.retrans.quota import Quota
from feedhandler.retrans.recovery import Recovery
from feedhandler.retrans.refresh import RefreshAssembler, Snapshot, SnapshotBegan, SnapshotFailed
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.states import State
from feedhandler.retrans.store import PacketStore

#: Requests are numbered by channel: the channel's place stands above this many bits.
PLACE_SHIFT = 32
#: A closed stream opens when its store is so full: what comes until the next look must fit.
CLOSED_SHARE_MAX = 0.5
#: How long nothing may have been missing before subscribers are told so: where every hundredth
#: packet is lost, holes follow one another so closely that telling each end would double what
#: they get.
WELL_NS = 10_000_000
#: A snapshot ahead of a numbering that is young may be one of the numbering before: it is waited
#: for only as long as live lines may lag behind refresh lines.
LAG_NS = 700_000_000

#: Key of `Desk.counts`: what it counts, over all channels.
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


class Desk:
    """Recovery for all channels of one gateway.

    `feed` is their description, `channels` and `qualities` one a channel, in the order of the
    ring's channel numbers; `seed` draws the jitter of retries. `store_bytes_least`: for others who
    read the stores as well. `trading_day`: what a server's day is; the feed's where it is None.
    """

    def __init__(
        self,
        feed: Feed,
        channels: Sequence[DeskChannel],
        qualities: Sequence[QualityState],
        ports: Ports,
        settings: RecoverySettings,
        seed: int = 0,
        store_bytes_least: int = 0,
        trading_day: TradingDay | None = None,
    ) -> None:
        self.settings = settings
        self._trading_day = trading_day or feed.trading_day
        self._snapshots = snapshots_of(feed, settings)
        self._store_bytes = max(settings.store_bytes, store_bytes_least)
        self.ports = ports
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
        self._desks = [
            self._desk(place, channel, quality, self._quotas.get(channel.retransmission), seed)
            for place, (channel, quality) in enumerate(zip(channels, qualities, strict=True))
        ]
        # A reset packet may be the day's first: who joins behind it has missed nothing.
        self._first = feed.first_sequence
        kind = feed.description.packet.kind
        self._first_joined = feed.first_sequence + bool(kind is not None and kind.reset)
        self._reference = next((d for d in self._desks if d.plan.reference), None)
        self._reference_until_ns = NEVER
        self._reference_asked = False
        #: Channels whose own refresh waits for the reference data.
        self._deferred: list[int] = []
        self._deadlines = [NEVER] * len(self._desks)
        self.deadline_ns = NEVER

    def _desk(
        self,
        place: int,
        channel: DeskChannel,
        quality: QualityState,
        quota: Quota | None,
        seed: int,
    ) -> Channel:
        settings = self.settings
        recovery = Recovery(
            channel.service,
            settings,
            quota=quota,
            refresh=channel.refresh,
            refresh_server=bool(channel.refresh_server),
            seed=seed + place,
            first_id=(place << PLACE_SHIFT) + 1,
            trading_day=self._trading_day,
        )
        desk = Channel(channel, recovery, quality)
        if channel.refresh:
            desk.store = PacketStore(self._store_bytes)
            desk.assemblers = self._snapshots.assemblers(channel.service)
        return desk

    # -- what it knows ----------------------------------------------------------------------

    def store(self, place: int) -> PacketStore | None:
        """Where a channel's published packets are to be kept; None where nobody needs them."""
        return self._desks[place].store

    def state(self, place: int) -> State:
        """Where the channel's recovery stands."""
        return self._desks[place].recovery.state

    def snapshot(self, place: int) -> dict[str, Any]:
        """Return a channel's recovery as JSON-ready values; ranges include both ends."""
        desk = self._desks[place]
        recovery = desk.recovery
        refreshes: Counter[str] = Counter()
        for assembler in desk.assemblers:
            refreshes.update(assembler.counts)
        return {
            "state": recovery.state.name,
            "requested": [[first, end - 1] for first, end in recovery.requested],
            "lost": [[first, end - 1] for first, end in recovery.lost_ranges],
            "closed": desk.closed,
            "counts": recovery.counts,
            "refresh": refreshes,
        }

    def paused_until_ns(self, server: str, now_ns: int) -> int:
        """When `server` is asked again that is not asked any more today; 0 where it is asked.

        Of a refresh server it is the latest of its services.
        """
        until_ns = [0]
        if server in self._quotas:
            until_ns.append(self._quotas[server].closed_until_ns(now_ns))
        until_ns.extend(
            desk.recovery.refresh_barred_until_ns(now_ns)
            for desk in self._desks
            if server == desk.plan.refresh_server
        )
        return max(until_ns)

    def resume(self, server: str, now_ns: int) -> bool:
        """Ask `server` again today, at the operator's request; whether it was given up before.

        The day's requests are counted anew. What was abandoned meanwhile stays so.
        """
        resumed = server in self._quotas and self._quotas[server].resume(now_ns)
        for desk in self._desks:
            if server == desk.plan.refresh_server:
                resumed |= desk.recovery.resume_refresh(now_ns)
        self._settle_all(now_ns)
        return resumed

    # -- what it hears ----------------------------------------------------------------------

    def control_event(self, event: ControlEvent, now_ns: int) -> None:
        """Apply a control event of a channel's own lines."""
        kind, place = event.kind, event.channel
        desk = self._desks[place]
        recovery = desk.recovery
        if kind == RecordKind.HOLE:
            recovery.noticed(now_ns)
            return  # nothing comes of it yet
        if kind == RecordKind.PASSED:
            recovery.progress(self._following(place, desk), now_ns)
        elif kind == RecordKind.CLOSED:
            recovery.closed(event.sequence, now_ns)
            desk.untold = False
            if len(desk.quality.missing):
                desk.well_ns = now_ns + WELL_NS
        elif kind == RecordKind.MISSING:
            desk.epoch = event.auxiliary
            recovery.progress(self._following(place, desk), now_ns)
            recovery.missing(event.sequence, event.next_sequence, event.auxiliary, now_ns)
            desk.well_ns = NEVER
            if len(desk.quality.missing):
                desk.quality.missing.add(event.sequence, event.next_sequence - 1)
                desk.untold = True
            else:
                self._tell_missing(place, desk)
        else:
            if kind == RecordKind.RESET:
                self._reset(place, desk, now_ns)
            elif kind == RecordKind.SKIPPED:
                recovery.progress(self._following(place, desk), now_ns)
            elif kind == RecordKind.WITHDRAWN and desk.closed:
                self._open_stale(place, desk, "no snapshot", now_ns)
            elif desk.untold:
                self._tell_missing(place, desk)
            told = desk.quality.control_event(kind, event.line, event.sequence, event.next_sequence)
            # A numbering whose beginning nobody saw is joined in its middle as well.
            joins = kind in (RecordKind.START, RecordKind.RESET)
            in_the_middle = joins and self._needs_snapshot(desk, event.next_sequence)
            if kind != RecordKind.START or not in_the_middle:
                self.ports.quality(place, told)
            if in_the_middle:
                reason = "start" if kind == RecordKind.START else "missing"
                self._start_closed(place, desk, event.next_sequence, reason, now_ns)
            if joins:
                desk.joined = True
            elif kind == RecordKind.GAP:
                self._lost(desk, event.sequence, event.next_sequence, now_ns)
            elif kind == RecordKind.WITHDRAWN:
                self._withdraw(place, desk, now_ns)
        self._settle(place, now_ns)

    def client_events(self, server: str, events: Sequence[Any], now_ns: int) -> None:
        """Apply a server's answers."""
        touched: set[int] = set()
        for event in events:
            if isinstance(event, RefreshPacket):
                place = self._place_of(event.service)
                if place >= 0:
                    self._assemble(place, TCP, event.sequence, event.data, now_ns)
                    touched.add(place)
                continue
            place = event.request_id >> PLACE_SHIFT
            self._answer(place, event.request_id, event, now_ns)
            touched.add(place)
        for place in touched:
            self._settle(place, now_ns)

    def _answer(self, place: int, request_id: int, event: Any, now_ns: int) -> None:
        """One answer to one of a channel's requests."""
        desk = self._desks[place]
        recovery = desk.recovery
        if isinstance(event, Packet):
            self.counts["retransmitted"] += 1
            self.counts["retransmitted_bytes"] += len(event.data)
            if desk.untold:
                self._tell_missing(place, desk)  # before what it concerns
            self.ports.fill(place, event.data, desk.epoch)
            recovery.arrived(request_id, event.sequence, event.next_sequence, now_ns)
        elif isinstance(event, Accepted):
            recovery.accepted(request_id, now_ns)
        elif isinstance(event, Rejected):
            self.counts["rejected"] += 1
            recovery.rejected(request_id, event.reason, now_ns)
        elif isinstance(event, Answered):
            recovery.answered(request_id, now_ns)
        elif isinstance(event, RefreshAccepted):
            recovery.refresh_accepted(request_id, now_ns)
        elif isinstance(event, RefreshRejected):
            self.counts["refresh_rejected"] += 1
            recovery.refresh_rejected(request_id, event.reason, now_ns)
        elif isinstance(event, RefreshSnapshot):
            self._came(place, desk, self._snapshots.whole(event), now_ns)
        elif isinstance(event, RefreshFailed):
            self._failed(desk, event.reason, now_ns)

    def server_up(self, server: str, now_ns: int) -> None:
        """Note that the connection to `server` is up."""
        for desk in self._desks:
            if server == desk.plan.retransmission:
                desk.recovery.server_up(now_ns)
            if server == desk.plan.refresh_server:
                desk.recovery.refresh_up(now_ns)
        self._settle_all(now_ns)

    def server_down(self, server: str, now_ns: int) -> None:
        """Note that the connection to `server` is lost: its requests will not be answered."""
        for desk in self._desks:
            if server == desk.plan.retransmission:
                desk.recovery.server_down(now_ns)
        self._settle_all(now_ns)

    def refresh_packet(self, place: int, sequence: int, data: bytes, now_ns: int) -> None:
        """Take the next packet of the channel's refresh lines."""
        self._assemble(place, LINES, sequence, data, now_ns)
        self._settle(place, now_ns)

    def refresh_control_event(self, place: int, kind: RecordKind, now_ns: int) -> None:
        """Apply a control event of the channel's refresh lines: a snapshot with a gap is void."""
        if not self._desks[place].assemblers:
            return
        assembler = self._desks[place].assemblers[LINES]
        if kind == RecordKind.GAP:
            assembler.gap(now_ns)
        elif kind == RecordKind.RESET:
            assembler.reset(now_ns)
        self._outcomes(place, assembler, now_ns)
        self._settle(place, now_ns)

    def attached(self, link: Any, places: Sequence[int], now_ns: int) -> None:
        """Take a link that wants each service's state first: it gets nothing of it before."""
        for place in places:
            desk = self._desks[place]
            if desk.store is None:
                self.ports.quality(place, desk.quality.no_snapshot("no refresh"), [link])
            elif not desk.closed and not self._send_latest(place, desk, [link]):
                self.ports.withhold(place, link)
                self.ports.quality(place, desk.quality.awaiting_snapshot(), [link])
                desk.waiting = [each for each in desk.waiting if self.ports.is_here(each)]
                desk.waiting.append(link)
                desk.recovery.want_snapshot(now_ns)
                self._settle(place, now_ns)

    def open_all(self, reason: str, now_ns: int) -> None:
        """Publish what closed streams have stored, as stale: the gateway stops."""
        for place, desk in enumerate(self._desks):
            if desk.closed:
                self._open_stale(place, desk, reason, now_ns)

    def _admit(self, place: int, desk: Channel, why_not: str) -> list[Any]:
        """Let the links take part that waited for a snapshot; with `why_not` they get none."""
        waiting, desk.waiting = desk.waiting, []
        for link in waiting:
            self.ports.admit(place, link)
        if why_not and waiting:
            self.ports.quality(place, desk.quality.no_snapshot(why_not), waiting)
        return waiting

    def tick(self, now_ns: int) -> None:
        """Let time pass."""
        for place, desk in enumerate(self._desks):
            if self._deadlines[place] > now_ns:
                continue
            if desk.recovery.deadline_ns <= now_ns:
                desk.recovery.tick(now_ns)
            for assembler in desk.assemblers:
                if assembler.deadline_ns <= now_ns:
                    assembler.tick(now_ns)
                    self._outcomes(place, assembler, now_ns)
            if desk.pending is not None:
                self._try_pending(place, desk, now_ns)
            if desk.well_ns <= now_ns:
                self._tell_well(place, desk)
            self._settle(place, now_ns)

    # -- starts and resets ------------------------------------------------------------------

    def _lost(self, desk: Channel, first: int, end: int, now_ns: int) -> None:
        """Announced lost; a channel that waits for the reference data asks for all at once."""
        if desk.deferred is not None:
            desk.deferred = (desk.deferred[0], end)
        else:
            desk.recovery.lost(first, end, now_ns)

    def _withdraw(self, place: int, desk: Channel, now_ns: int) -> None:
        """Begin recovery anew with what else is lost: the announced range was not."""
        desk.recovery.reset(now_ns)
        desk.untold, desk.latest = False, None
        for first, last in desk.quality.lost:
            desk.recovery.lost(first, last + 1, now_ns)
        following = desk.quality.next or 0
        if desk.quality.doubt is not None and following > 1:
            # Nothing is lost, but what was published is in doubt: any snapshot from here on heals.
            desk.recovery.lost(following - 1, following, now_ns)
        self._admit(place, desk, "withdrawn")

    def _needs_snapshot(self, desk: Channel, sequence: int) -> bool:
        """Return whether a stream that was joined at `sequence` lacks its state.

        A stream that is joined in front of its early snapshot's end lacks nothing, but it must not
        publish what is in the snapshot already.
        """
        return desk.plan.refresh and sequence > self._first_joined and sequence != desk.base

    def _start_closed(
        self, place: int, desk: Channel, sequence: int, reason: str, now_ns: int
    ) -> None:
        """Close a stream that was joined in mid-day: its state must come by snapshot."""
        desk.closed = desk.joined = True
        self.counts["mid_day_starts"] += 1
        self.ports.close_stream(place)
        desk.evicted_before = 0 if desk.store is None else desk.store.evicted
        lost = desk.before = (min(max(self._first, desk.base), sequence - 1), sequence)
        self.ports.quality(place, desk.quality.recovering([lost], sequence, reason))
        if desk.early is not None and desk.base > sequence:
            desk.pending, desk.early = desk.early, None
            desk.pending_until_ns = now_ns + self.settings.refresh_timeout_us * 1000
        reference = self._reference
        if reference is None or desk is reference:
            desk.recovery.lost(*lost, now_ns)
            return
        desk.deferred = lost
        self._deferred.append(place)
        if not self._reference_asked:
            # Reference data is quiet in mid-day: its stream may not say anything for long.
            self._reference_asked = True
            self._reference_until_ns = now_ns + self.settings.refresh_timeout_us * 1000
            if not reference.joined:
                reference.recovery.want_snapshot(now_ns)
                self._settle(self._desks.index(reference), now_ns)

    def _reference_ready(self, now_ns: int) -> bool:
        """Return whether the reference data is there, or was waited for long enough."""
        reference = self._reference
        if reference is None or now_ns >= self._reference_until_ns:
            return True
        if reference.joined:
            return not reference.closed
        return reference.base > 0

    def _reset(self, place: int, desk: Channel, now_ns: int) -> None:
        """Begin a new sequence epoch: what was lost before it no longer matters."""
        if desk.closed:
            self._open_stale(place, desk, "no snapshot", now_ns)
        desk.joined = True
        desk.recovery.reset(now_ns)
        desk.void()
        desk.young_until_ns = now_ns + self.settings.refresh_timeout_us * 1000
        if desk.store is not None:
            desk.store.clear()
        self.ports.renumber(place)
        for assembler in desk.assemblers:
            assembler.reset(now_ns)
            assembler.take()
        self._admit(place, desk, "")

    def _open(
        self, place: int, desk: Channel, packets: list[tuple[int, int, bytes]], following: int
    ) -> None:
        desk.closed = False
        self.ports.open_stream(place, packets, following)

    # -- snapshots --------------------------------------------------------------------------

    def _assemble(self, place: int, which: int, sequence: int, data: bytes, now_ns: int) -> None:
        desk = self._desks[place]
        if desk.assemblers:
            assembler = desk.assemblers[which]
            assembler.packet(data, sequence, now_ns)
            self._outcomes(place, assembler, now_ns)

    def _outcomes(self, place: int, assembler: RefreshAssembler, now_ns: int) -> None:
        """Apply the outcomes of snapshots."""
        desk = self._desks[place]
        for outcome in assembler.take():
            if isinstance(outcome, SnapshotBegan):
                desk.recovery.snapshot_began(now_ns)
            elif isinstance(outcome, SnapshotFailed):
                self._failed(desk, outcome.reason, now_ns)
            else:
                self._came(place, desk, outcome, now_ns)

    def _failed(self, desk: Channel, reason: str, now_ns: int) -> None:
        """Note that a snapshot failed."""
        self.counts["snapshots_failed"] += 1
        desk.recovery.snapshot_failed(reason, now_ns)

    def _came(self, place: int, desk: Channel, snapshot: Snapshot, now_ns: int) -> None:
        """Take a complete snapshot."""
        self.counts["snapshots"] += 1
        desk.pending = snapshot
        patience_ns = self.settings.refresh_timeout_us * 1000
        if now_ns < desk.young_until_ns:
            patience_ns = min(patience_ns, LAG_NS)
        desk.pending_until_ns = now_ns + patience_ns
        self._try_pending(place, desk, now_ns)

    def _try_pending(self, place: int, desk: Channel, now_ns: int) -> None:
        """Use the newest snapshot once its stream has come as far as it has."""
        snapshot = desk.pending
        assert snapshot is not None
        assert desk.store is not None
        if not self._snapshots.fit(snapshot, desk.store):
            desk.pending = None
            self.counts["foreign"] += 1
            desk.recovery.snapshot_failed("foreign", now_ns)
            return
        following = self._following(place, desk)
        if desk.joined and snapshot.last >= following:
            # The snapshot overtook the live lines, or belongs to another numbering.
            if now_ns >= desk.pending_until_ns:
                desk.pending = None
                desk.recovery.snapshot_failed("ahead", now_ns)
            return
        desk.pending = None
        if not desk.joined:
            self._before_joining(place, desk, snapshot, now_ns)
            return
        lost = desk.lost()
        if lost and snapshot.last + 1 < max(end for _, end in lost):
            desk.recovery.snapshot(snapshot.last, now_ns)  # too old: it will ask again
            return
        if not self._has_since(desk, snapshot.last + 1, following):
            self.counts["overflows"] += 1
            desk.recovery.snapshot_failed("overflow", now_ns)
            return
        desk.latest = snapshot
        desk.deferred = None
        desk.recovery.snapshot(snapshot.last, now_ns)
        waiting = self._admit(place, desk, "")
        if desk.closed:
            self._open_with(place, desk, snapshot, following)
        elif lost:
            self._send_latest(place, desk, None)
        elif waiting:
            self._send_latest(place, desk, waiting)

    def _has_since(self, desk: Channel, first: int, end: int) -> bool:
        """Can everything published from number `first` on be repeated in a block? The store may be
        larger than what a block may have (`store_bytes`), for others read it."""
        assert desk.store is not None
        return desk.store.covers(first, end) and (
            desk.store.bytes <= self.settings.store_bytes
            or desk.store.bytes_of(first, end) <= self.settings.store_bytes
        )

    def _before_joining(self, place: int, desk: Channel, snapshot: Snapshot, now_ns: int) -> None:
        """State of a service whose live lines have said nothing yet: once, for all."""
        waiting = self._admit(place, desk, "")
        if desk.base and not waiting:
            return
        links = waiting if desk.base else None
        if links is None:
            desk.base, desk.early = snapshot.last + 1, snapshot
        desk.recovery.snapshot(snapshot.last, now_ns)
        self._block(place, desk, snapshot, [], snapshot.last + 1, links)

    def _open_with(self, place: int, desk: Channel, snapshot: Snapshot, following: int) -> None:
        """Publish the first snapshot of a closed stream, then what was stored behind it."""
        assert desk.store is not None
        self._block(place, desk, snapshot, [], snapshot.last + 1, None)
        packets = self._snapshots.since(snapshot, desk.store, following)
        self._open(place, desk, packets, snapshot.last + 1)

    def _send_latest(self, place: int, desk: Channel, links: list[Any] | None) -> bool:
        """Send the latest snapshot and what was published since; False where it cannot serve."""
        snapshot = desk.latest
        assert desk.store is not None
        following = self.ports.next_sequence(place)
        if snapshot is None or not self._has_since(desk, snapshot.last + 1, following):
            return False
        since = [data for _, _, data in self._snapshots.since(snapshot, desk.store, following)]
        self._block(place, desk, snapshot, since, following, links)
        return True

    def _block(
        self,
        place: int,
        desk: Channel,
        snapshot: Snapshot,
        since: list[bytes],
        following: int,
        links: list[Any] | None,
    ) -> None:
        if desk.untold:
            self._tell_missing(place, desk)  # it may be beyond the snapshot
        packets = [*snapshot.packets, *since]
        begin = desk.quality.snapshot_begin(snapshot.last, len(packets))
        if links is None:
            self.counts["refreshes"] += 1
        end = desk.quality.snapshot_end(following, heals=links is None)
        self.ports.block(place, begin, packets, snapshot.last, end, links)

    def _following(self, place: int, desk: Channel) -> int:
        return desk.following(self.ports.next_sequence(place))

    # -- what is to be done -----------------------------------------------------------------

    def _settle(self, place: int, now_ns: int) -> None:
        """Carry out what the channel's recovery wants, and find the next deadline."""
        desk = self._desks[place]
        if self._deferred:
            self._begin_deferred(now_ns)
        if desk.closed:
            self._watch_closed(place, desk, now_ns)
        for action in desk.recovery.take():
            self._act(place, desk, action, now_ns)
        self._deadlines[place] = desk.deadline_ns(now_ns)
        self.deadline_ns = min(self._deadlines)

    def _settle_all(self, now_ns: int) -> None:
        for place in range(len(self._desks)):
            self._settle(place, now_ns)

    def _begin_deferred(self, now_ns: int) -> None:
        """Once the reference data is there, the channels that waited for it ask for their own."""
        if not self._reference_ready(now_ns):
            return
        waiting, self._deferred = self._deferred, []
        for place in waiting:
            desk = self._desks[place]
            if desk.deferred is not None and not desk.recovery.lost_ranges:
                desk.recovery.lost(*desk.deferred, now_ns)
                self._settle(place, now_ns)

    def _watch_closed(self, place: int, desk: Channel, now_ns: int) -> None:
        """Open a closed stream as stale when no snapshot comes or its store fills up."""
        assert desk.store is not None
        if desk.store.bytes > self.settings.store_bytes * CLOSED_SHARE_MAX:
            self._open_stale(place, desk, "overflow", now_ns)
        elif desk.recovery.state == State.STALE:
            self._open_stale(place, desk, "no snapshot", now_ns)

    def _open_stale(self, place: int, desk: Channel, reason: str, now_ns: int) -> None:
        """Publish what a closed stream has stored, without being sure of it."""
        assert desk.store is not None
        self.counts["opened_stale"] += 1
        self.ports.quality(place, desk.quality.stale(reason))
        self._tell_evicted(place, desk, now_ns)
        self._open(place, desk, desk.store.packets(0, NEVER), 0)

    def _tell_evicted(self, place: int, desk: Channel, now_ns: int) -> None:
        """Declare lost what was evicted from a closed stream's store: it was never published."""
        assert desk.store is not None
        _, joined = desk.before
        if desk.store.evicted == desk.evicted_before:
            return
        for first, last in desk.quality.lost.missing_in(joined, desk.store.gone_next - 1):
            gap = desk.quality.control_event(RecordKind.GAP, 0, first, last + 1)
            self.ports.quality(place, gap)
            desk.recovery.lost(first, last + 1, now_ns)

    def _act(self, place: int, desk: Channel, action: Any, now_ns: int) -> None:
        ports, plan = self.ports, desk.plan
        if isinstance(action, Ask):
            self.counts["requests"] += 1
            ports.ask(plan.retransmission, action, now_ns)
        elif isinstance(action, Cancel):
            refresh = action.request_id == desk.refresh_id
            server = plan.refresh_server if refresh else plan.retransmission
            if server:
                ports.cancel(server, action.request_id)
        elif isinstance(action, GiveUp):
            ports.give_up(place, action.until, action.epoch)
        elif isinstance(action, Disprove):
            ports.disprove(place, action.number, action.epoch)
        elif isinstance(action, AskRefresh):
            desk.refresh_id = action.request_id
            if plan.refresh_server:
                self.counts["refresh_requests"] += 1
                ports.ask_refresh(plan.refresh_server, action, now_ns)
        elif isinstance(action, NoSnapshot):
            self._admit(place, desk, action.reason)
        elif isinstance(action, Alert):
            ports.alert(f"service {plan.service}: {action.text}", now_ns)

    def _recovering(self, place: int, desk: Channel) -> bytes:
        """Return a quality message with what is missing now."""
        return desk.quality.recovering(desk.missing(), self._following(place, desk))

    def _tell_missing(self, place: int, desk: Channel) -> None:
        """Tell subscribers all that is missing now."""
        desk.untold = False
        self.ports.quality(place, self._recovering(place, desk))

    def _tell_well(self, place: int, desk: Channel) -> None:
        """Nothing is missing any more, though the stream may be stale, or closed, all the same."""
        desk.well_ns = NEVER
        if not len(desk.quality.missing):
            return
        if desk.closed:
            self.ports.quality(place, self._recovering(place, desk))
        else:
            self.ports.quality(place, desk.quality.recovered(self._following(place, desk)))

    def _place_of(self, service: int) -> int:
        for place, desk in enumerate(self._desks):
            if desk.plan.service == service:
                return place
        return -1
