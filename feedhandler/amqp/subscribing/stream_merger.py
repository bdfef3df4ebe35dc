"""Arbitration between several gateways' streams of the same services: the first copy wins.

What it is for: a subscriber that is attached to several gateways at once hands everything that they
send to one `StreamMerger`, which returns one stream that loses nothing as long as one gateway does
not.
The arbiter of the gateway's own lines (`ingest.arbitration`) cannot do that: a link brings only
what its address selects, so that missing numbers are no loss, and a gateway itself announces what
it has lost. The properties are the same:

    order       per service the numbers ascend; nothing is handed out twice
    first copy  what is new is handed out at once, whichever gateway brings it
    gaps        what one gateway lacks (it has said so, or it was not attached) the others fill in:
                what it sends behind the gap waits for that
    bound       for `HOLD_NS` at most, or until no gateway is left that could; then what all lack is
                announced as lost, exactly, by a quality message of our own
    outside     packets outside the sequence are handed out where their first copy comes; a copy is
                a message that another gateway brings with the same tag, among a service's latest
                `ASIDE_MAX`
    withdrawn   a loss that one gateway has after all is withdrawn, and handed out late
    epochs      a new epoch begins with the first gateway that announces it; what others still
                send of the old one is dropped

A gateway may be lost at any moment, and come back at any other. Its part in a service is a `Lane`:
what it lacks, and what it has sent that waits. A snapshot block is handed out whole or not
at all, and only where the merged stream lacks something or was to begin with one; behind it the
stream goes on where that gateway's does, with the others held back as far as they were ahead.

Quality messages have the best state that any gateway announces, with what the merged stream lacks.

No I/O; the time is an argument. `Shape` is what the merge must know about messages.
"""

from collections import deque
from typing import Any, Protocol

import msgspec

from feedhandler.retrans.quality import RANGES_REPORTED_MAX
from feedhandler.retrans.ranges import RangeSet

#: How long messages behind a gap wait for an attached gateway that has not said that it lacks the
#: gap, too: longer than gateways are apart, and short, for the subscriber gets nothing meanwhile.
HOLD_NS = 1_000_000_000
#: A gateway that attaches so many numbers behind the stream is taken to have begun a new epoch:
#: no healthy one is so late.
LAG_MAX = 16_384
#: Tags of messages outside the sequence that are remembered of each service: such are few, and
#: gateways are no more than `HOLD_NS` apart.
ASIDE_MAX = 1_024
#: A message number that stands for the whole packet.
WHOLE = 0xFFFF
NEVER = 1 << 63

_BEGIN, _END = "snapshot-begin", "snapshot-end"
#: The reason of a quality message that a gateway's coming or going has changed.
GATEWAY = "gateway"
#: Reasons of quality messages that announce what an attached link will not bring: lost on the
#: gateway's lines; dropped from its queue; gone from its history before it could be sent again.
_LOSSES = ("gap", "overflow", "resume")
#: Ranks of the states that gateways announce; `STALE` by ranges alone is no worse than `OK` here,
#: since the ranges are compared one by one.
_RANKS = {"OK": 0, "REFRESHED": 0, "STALE": 2, "RECOVERING": 1, "SILENT": 3, "WAITING": 4}


class Shape(Protocol):
    """The positions of messages, as the merge needs them: `sequence << 16 | message number`."""

    def span(self, message: Any) -> tuple[int, int]:
        """Return the first and the last position in a message that is no quality message."""

    def cut(self, message: Any, after: int) -> Any:
        """Return the message without its packets up to and including sequence number `after`."""

    def note(self, like: Any, body: bytes) -> Any:
        """Return a quality message with this body and otherwise the properties of `like`."""


class Lane:
    """One gateway's part in one service.

    `quality` is its latest quality message, None until one has come on this connection; `block` is
    a snapshot block that is not complete yet.
    """

    def __init__(self) -> None:
        self.live = False
        self.epoch = 0
        self.lacks = RangeSet(only_grows=True)
        #: The gateway has sent all that it has before this number.
        self.reach = 0
        self.held: deque[Any] = deque()
        self.block: list[Any] | None = None
        self.quality: dict[str, Any] | None = None
        self.note: Any = None

    def part(self) -> None:
        """Forget what the gateway said on a connection that has ended."""
        self.quality = self.block = None

    @property
    def speaks(self) -> bool:
        """Return whether the gateway is attached and has said where its stream is."""
        return self.live and self.quality is not None and self.quality.get("next") is not None

    @property
    def rank(self) -> int:
        """Rank of the state that the gateway announces, 0 the best."""
        assert self.quality is not None
        if self.quality["state"] == "STALE" and not self.quality.get("doubt"):
            return 0
        return _RANKS.get(self.quality["state"], 2)


class Service:
    """One service of the merged stream.

    `at` is the position before which everything was handed out, not subscribed to, or announced
    as lost; -1 before the start.
    """

    def __init__(self, number: int, wants_block: bool) -> None:
        self.number = number
        self.lanes: dict[int, Lane] = {}
        self.at = -1
        self.day = 0
        self.epoch = 0
        self.lost = RangeSet(only_grows=True)
        #: Withdrawn losses, and the position up to which their messages have come.
        self.back = RangeSet()
        self.back_at = -1
        #: Tags of messages outside the sequence, and which links have brought each.
        self.aside: dict[bytes, set[int]] = {}
        self.ranges = self.total = 0
        self.healed = False
        self.wants_block = wants_block
        self.waiting_since = NEVER
        self.key: Any = None

    @property
    def open(self) -> int:
        """First sequence number of which something may still be handed out."""
        return self.at >> 16 if self.at & WHOLE != WHOLE else (self.at >> 16) + 1

    @property
    def current(self) -> list[Lane]:
        """Lanes that are attached and in the stream's epoch."""
        return [x for x in self.lanes.values() if x.speaks and x.epoch == self.epoch]


class StreamMerger:
    """All services of several links. Messages to be handed out are appended to `out`.

    `snapshot`: each service is to begin with a snapshot block. Counts: `duplicates`, `late` (came
    after they were announced as lost), `filled` (handed out after waiting behind a gap), `gave_up`
    (gaps for which the time was up).
    """

    def __init__(self, shape: Shape, snapshot: bool = False) -> None:
        self.out: list[Any] = []
        self.duplicates = self.late = self.filled = self.gave_up = 0
        self._shape = shape
        self._snapshot = snapshot
        self._services: dict[int, Service] = {}
        self._resumed: set[int] = set()
        #: Links that are attached, and since when.
        self._links: dict[int, int] = {}
        self._now_ns = 0

    # -- gateways come and go ---------------------------------------------------------------

    def up(self, link: int, now_ns: int, resumed: bool = False) -> None:
        """Register an attached link. `resumed`: it goes on behind the merged stream's last
        positions."""
        self._links[link] = self._now_ns = now_ns
        for service in self._services.values():
            self._lane(service, link).live = True
            for brought in service.aside.values():
                brought.discard(link)  # going on behind a position, it may bring them again
        (self._resumed.add if resumed else self._resumed.discard)(link)

    def down(self, link: int, now_ns: int) -> None:
        """Remove a link that has ended; the messages it brought that wait stay."""
        self._now_ns = now_ns
        self._links.pop(link, None)
        for service in self._services.values():
            lane = self._lane(service, link)
            if not lane.live:
                continue
            lane.live = False
            if lane.held:
                lane.held.append(None)
            else:
                lane.part()
            self._settle(service, now_ns)
            self._report_change(service, GATEWAY)

    def held(self, link: int) -> int:
        """Count a link's messages that wait."""
        return sum(len(x.lanes[link].held) for x in self._services.values() if link in x.lanes)

    def positions(self) -> dict[int, int]:
        """Return the position that the merged stream has reached, by service."""
        return {number: x.at for number, x in self._services.items() if x.at >= 0}

    def _lane(self, service: Service, link: int) -> Lane:
        lane = service.lanes.get(link)
        if lane is None:
            lane = service.lanes[link] = Lane()
            lane.live = link in self._links
        return lane

    def _expected(self, service: Service) -> bool:
        """Return whether an attached gateway may still say what it has: one that attached less than
        `HOLD_NS` ago, or that had received nothing then."""
        silent = [(link, x) for link, x in service.lanes.items() if x.live and not x.speaks]
        return any(
            lane.quality is not None or self._now_ns - self._links[link] < HOLD_NS
            for link, lane in silent
        )

    # -- messages ---------------------------------------------------------------------------

    def receive(self, link: int, message: Any, now_ns: int) -> None:
        """Process a message that a link brought; it is handed out to `out`, kept waiting or
        dropped."""
        service = self._services.get(message.service)
        if service is None:
            service = self._services[message.service] = Service(message.service, self._snapshot)
            for known in self._links:
                self._lane(service, known)
        self._now_ns = now_ns
        lane = self._lane(service, link)
        if lane.held or not self._try(service, lane, link, message):
            lane.held.append(message)
        if service.waiting_since != NEVER or lane.held:
            self._settle(service, now_ns)

    def tick(self, now_ns: int) -> None:
        """Act on what has waited long enough; to be called at `deadline`."""
        self._now_ns = now_ns
        for service in self._services.values():
            if service.waiting_since != NEVER:
                self._settle(service, now_ns)
            else:
                self._report_losses(service)

    @property
    def deadline(self) -> int:
        """Monotonic time in ns at which `tick` is wanted; NEVER where nothing waits."""
        waiting = [x.waiting_since for x in self._services.values() if x.waiting_since != NEVER]
        waiting += [
            since for since in self._links.values() if since + HOLD_NS > self._now_ns > since
        ]
        return min(waiting) + HOLD_NS if waiting else NEVER

    def _try(self, service: Service, lane: Lane, link: int, message: Any) -> bool:
        """Process a lane's next message; return False where it has to wait."""
        if message is None:
            lane.part()
            return True
        if message.content == "quality":
            return self._quality_message(service, lane, link, message)
        if message.sequence >> 62:
            if not message.sequence >> 63:
                self._aside(service, link, message)
            elif lane.block is not None:
                lane.block.append(message)
            return True
        if lane.epoch != service.epoch and not self._same_epoch(service, lane, message):
            return lane.epoch < service.epoch
        if lane.quality is None or lane.quality.get("next") is None:
            self._join_unseen(service, lane, message)
        first, last = self._shape.span(message)
        if service.back and service.back.covers(first >> 16, last >> 16) and last <= service.at:
            return self._hand_out_late(service, message, first, last)
        if last <= service.at or (service.lost and service.lost.covers(first >> 16, last >> 16)):
            self.duplicates += 1
            self.late += service.lost.covers(last >> 16, last >> 16)
            return True
        if first <= service.at:
            message = self._shape.cut(message, service.at >> 16)
            first = self._shape.span(message)[0]
        if lane.lacks and first >> 16 > service.open:
            lane.reach = first >> 16
            self._cover(service, lane)
            if first >> 16 > service.open:
                return False
        self.out.append(message)
        service.at = last
        service.day = max(service.day, message.day)  # it may turn while the numbers go on
        return True

    def _hand_out_late(self, service: Service, message: Any, first: int, last: int) -> bool:
        """Hand out the first copy of a message that was announced as lost in error. Returns
        True."""
        if first > service.back_at:
            service.back_at = last
            self.out.append(message)
        else:
            self.duplicates += 1
        return True

    def _aside(self, service: Service, link: int, message: Any) -> None:
        """Hand out the first copy of a message outside the sequence. A tag that one gateway brings
        twice stands for two messages with the same bytes, long after one another."""
        brought = service.aside.pop(message.tag, None)
        if brought is not None and link not in brought:
            brought.add(link)
            service.aside[message.tag] = brought
            self.duplicates += 1
            return
        service.aside[message.tag] = {link}
        if len(service.aside) > ASIDE_MAX:
            del service.aside[next(iter(service.aside))]
        self.out.append(message)

    def _same_epoch(self, service: Service, lane: Lane, message: Any) -> bool:
        """Take a lane of an older epoch into the stream's, where no other attached gateway
        knows better; return whether it is."""
        if lane.epoch > service.epoch or service.current:
            return False
        lane.epoch = service.epoch
        lane.lacks.clear()
        lane.reach = 0
        first = self._shape.span(message)[0] >> 16
        if first > service.open:
            lane.lacks.add(service.open, first - 1)
        return True

    def _join_unseen(self, service: Service, lane: Lane, message: Any) -> None:
        """Join a lane whose node has not said where it is: it has what it sends, and nothing
        before."""
        quality = {**(lane.quality or {}), "state": "OK", "reason": ""}
        quality["next"] = self._shape.span(message)[0] >> 16
        self._join(service, lane, quality, message.day, False)

    # -- quality messages of gateways -------------------------------------------------------

    def _quality_message(self, service: Service, lane: Lane, link: int, note: Any) -> bool:
        """Process a quality message of one gateway. Returns True."""
        quality = msgspec.json.decode(note.body, type=dict)
        reason = quality["reason"]
        following = quality["next"] = quality.get("next") or None  # 0: nothing was published yet
        lane.note = note
        if lane.block is not None:
            lane.block.append(note)
            if reason == _END:
                lane.quality = quality
                self._end_block(service, lane, quality)
            return True
        if reason == _BEGIN:
            lane.block = [note]
            return True
        leads = reason == "start" and service.at < 0
        fresh = lane.quality is None or lane.quality.get("next") is None
        if fresh and following is not None:
            self._join(service, lane, quality, note.day, link in self._resumed)
        elif reason == "reset":
            leads = self._reset(service, lane, quality, note.day)
        elif reason in _LOSSES:
            lane.lacks.discard_below(service.open)
            for first, last in quality.get("lost", ()):
                lane.lacks.add(first, last)
                self._lose_again(service, lane, first, last)
        elif reason == "withdrawn":
            self._withdraw(service, lane, quality)
        lane.quality = quality
        if lane.epoch == service.epoch and service.at >= 0:
            lane.reach = note.sequence  # a quality message has the number of the packet behind it
            self._cover(service, lane)
        self._report_losses(service)
        self._report_change(service, GATEWAY if reason in _LOSSES else reason, forced=leads)
        return True

    def _join(
        self, service: Service, lane: Lane, quality: dict[str, Any], day: int, resumed: bool
    ) -> None:
        """Process a lane's first quality message: derive its epoch and what it lacks."""
        following = quality["next"]
        lane.quality = quality
        lane.lacks.clear()
        lane.reach = 0
        if service.at < 0:
            service.at = (following << 16) - 1
            service.day = day
            lane.epoch = service.epoch
            return
        lane.epoch = service.epoch
        if resumed and quality["reason"] == "resume":
            for first, last in quality.get("lost", ()):
                lane.lacks.add(first, last)
            return
        behind = (service.at >> 16) - following
        if day < service.day:
            lane.epoch = service.epoch - 1
        elif day > service.day or behind >= LAG_MAX:
            lane.epoch = service.epoch + 1
            if (since := quality.get("since") or following) < following:
                lane.lacks.add(since, following - 1)
        elif following > service.open:
            lane.lacks.add(service.open, following - 1)

    def _reset(self, service: Service, lane: Lane, quality: dict[str, Any], day: int) -> bool:
        """Begin a lane's epoch anew; return whether it is the first gateway to do so."""
        lane.epoch += 1
        lane.lacks.clear()
        lane.reach = 0
        if lane.epoch <= service.epoch:
            return False
        self._renumber(service, lane.epoch, quality["next"], day)
        return True

    def _withdraw(self, service: Service, lane: Lane, quality: dict[str, Any]) -> None:
        """Withdraw losses that a lane has after all, as far as the merged stream has announced
        them."""
        ranges: list[tuple[int, int]] = []
        for first, last in quality["withdrawn"]:
            lane.lacks.discard(first, last)
            if lane.epoch == service.epoch:
                ranges += service.lost.within(first, last)
        if not ranges:
            return
        for first, last in ranges:
            service.lost.discard(first, last)
            service.back.add(first, last)
            service.total -= last - first + 1
        service.ranges -= min(service.ranges, len(ranges))
        service.back_at = (ranges[0][0] << 16) - 1
        body = {**self._composed(service), "reason": "withdrawn", "withdrawn": ranges}
        self.out.append(self._shape.note(lane.note, msgspec.json.encode(body)))
        service.key = self._key(service)

    def _lose_again(self, service: Service, lane: Lane, first: int, last: int) -> None:
        """Announce once more the part of a withdrawn loss that a lane loses before it has come."""
        if lane.epoch == service.epoch and service.back:
            first = max(first, (service.back_at >> 16) + 1)
            for low, high in service.back.within(first, last) if first <= last else ():
                service.back.discard(low, high)
                self._lose(service, lane.note, low, high)

    def _renumber(self, service: Service, epoch: int, following: int, day: int) -> None:
        """Begin the merged stream's epoch anew."""
        service.epoch = epoch
        service.day = max(day, service.day)
        service.at = (following << 16) - 1
        service.lost.clear()
        service.back.clear()
        service.ranges = service.total = 0
        service.healed = False

    def _cover(self, service: Service, lane: Lane) -> None:
        """Advance past what this lane has said it has sent all of, up to what it lacks."""
        if lane.reach <= service.open:
            return
        lacks = lane.lacks.within(service.open, lane.reach - 1)
        service.at = max(service.at, ((lacks[0][0] if lacks else lane.reach) << 16) - 1)

    def _end_block(self, service: Service, lane: Lane, quality: dict[str, Any]) -> None:
        """Hand out a complete snapshot block where the merged stream lacks something or must begin
        with one; else drop it."""
        block, lane.block = lane.block, None
        assert block is not None
        if lane.epoch != service.epoch or not (service.wants_block or self._lacking(service)):
            return
        last, following = quality["last"], quality["next"]
        service.wants_block = False
        good = [(first, min(end, last)) for first, end in service.lost if first <= last]
        body = self._composed(service)
        begin = {**msgspec.json.decode(block[0].body), **body, "reason": _BEGIN}
        self.out.append(self._shape.note(block[0], msgspec.json.encode(begin)))
        self.out.extend(block[1:-1])
        service.lost.discard_below(last + 1)
        service.healed = service.healed or bool(good)
        reached = service.open - 1
        service.at = (following << 16) - 1
        for other in service.lanes.values():
            if other is not lane and following <= reached:
                other.lacks.add(following, reached)
        end = {**quality, **self._composed(service), "reason": _END, "refreshed": good}
        self.out.append(self._shape.note(block[-1], msgspec.json.encode(end)))
        service.key = self._key(service)

    # -- what waits -------------------------------------------------------------------------

    def _settle(self, service: Service, now_ns: int) -> None:
        """Hand out or give up what need not wait any more."""
        while True:
            self._report_losses(service)
            moved = self._advance(service)
            blocked = [lane for lane in service.lanes.values() if lane.held]
            if not blocked:
                service.waiting_since = NEVER
                return
            if moved:
                service.waiting_since = now_ns
                continue
            if service.waiting_since == NEVER:
                service.waiting_since = now_ns
            able = any(not lane.held for lane in service.current) or self._expected(service)
            if able and now_ns - service.waiting_since < HOLD_NS:
                return
            self._give_up(service, blocked, able)
            service.waiting_since = now_ns

    def _advance(self, service: Service) -> bool:
        """Try the messages that wait; return whether any was processed."""
        moved = False
        again = True
        while again:
            again = False
            for link, lane in service.lanes.items():
                while lane.held and self._try(service, lane, link, lane.held[0]):
                    lane.held.popleft()
                    self.filled += 1
                    again = moved = True
        return moved

    def _give_up(self, service: Service, blocked: list[Lane], able: bool) -> None:
        """Go on at the lowest waiting position. `able`: the time is up, so what no gateway brought
        is lost; otherwise all gateways are past the gap, so that there was nothing subscribed to in
        it."""
        same = [lane for lane in blocked if lane.epoch == service.epoch]
        if not same:
            lane = min(blocked, key=lambda x: x.epoch)
            sequence = self._shape.span(lane.held[0])[0] >> 16
            self._renumber(service, lane.epoch, sequence, lane.held[0].day)
            for first, last in lane.lacks.within(0, sequence - 1):
                self._lose(service, lane.note, first, last)
            self._report_change(service, "reset", forced=True)
            return
        lane = min(same, key=lambda x: self._shape.span(x.held[0])[0])
        end = (self._shape.span(lane.held[0])[0] >> 16) - 1
        self.gave_up += able
        if able:
            lost = RangeSet(lane.lacks.within(service.open, end))
            for other in same:
                lost = _both(lost, other.lacks)
            for first, last in lost:
                self._lose(service, lane.note, first, last)
        service.at = max(service.at, (end << 16) | WHOLE)

    def _report_losses(self, service: Service) -> None:
        """Announce as lost what every gateway of the stream lacks."""
        lanes = service.current
        lanes += [
            x for x in service.lanes.values() if not x.live and x.held and x.epoch == service.epoch
        ]
        if not lanes or not all(lane.lacks for lane in lanes) or self._expected(service):
            return
        lost = RangeSet(lanes[0].lacks.within(service.open, NEVER))
        for lane in lanes[1:]:
            lost = _both(lost, lane.lacks)
        for first, last in lost:
            self._lose(service, lanes[0].note, first, last)
            for lane in lanes:
                lane.lacks.discard(first, last)
        for lane in lanes:
            self._cover(service, lane)

    def _lose(self, service: Service, like: Any, first: int, last: int) -> None:
        """Announce that a range is lost on all gateways."""
        service.lost.add(first, last)
        service.ranges += 1
        service.total += last - first + 1
        body = {**self._composed(service), "reason": "gap", "lost": [(first, last)]}
        if like is not None:
            self.out.append(self._shape.note(like, msgspec.json.encode(body)))
        service.key = self._key(service)

    # -- the merged stream's state ----------------------------------------------------------

    def _lacking(self, service: Service) -> bool:
        """Return whether the merged stream is stale."""
        return bool(service.lost) or bool(self._composed(service).get("doubt"))

    def _best(self, service: Service) -> list[dict[str, Any]]:
        """Return the latest quality messages of the gateways with the best state."""
        lanes = [x for x in service.lanes.values() if x.live and x.quality is not None]
        best = min((lane.rank for lane in lanes), default=0)
        return [lane.quality for lane in lanes if lane.rank == best and lane.quality is not None]

    def _composed(self, service: Service) -> dict[str, Any]:
        """Compose the merged stream's state as the body of a quality message."""
        words = self._best(service)
        quality: dict[str, Any] = {"state": "STALE", "service": service.number}
        quality |= words[0] if words else {}
        for key in ("last", "packets", "line", "sequence", "refreshed", "lost"):
            quality.pop(key, None)
        state = quality["state"]
        if state in ("OK", "REFRESHED", "STALE") and not quality.get("doubt"):
            state = "REFRESHED" if service.healed or state == "REFRESHED" else "OK"
        if service.lost and state not in ("SILENT", "WAITING"):
            state = "STALE"
        missing = RangeSet([tuple(pair) for pair in quality.get("missing", ())])
        for other in words[1:]:
            missing = _both(missing, RangeSet([tuple(x) for x in other.get("missing", ())]))
        quality |= {
            "state": state,
            "missing": missing.latest(RANGES_REPORTED_MAX),
            "stale": service.lost.latest(RANGES_REPORTED_MAX),
            "lost_ranges": service.ranges,
            "lost_total": service.total,
        }
        return quality

    def _key(self, service: Service) -> Any:
        quality = self._composed(service)
        return quality["state"], quality["missing"], quality["stale"], quality.get("doubt")

    def _report_change(self, service: Service, reason: str, *, forced: bool = False) -> None:
        """Hand out a quality message where the merged stream's state has changed, or where
        `forced`."""
        notes = [
            x.note for x in service.lanes.values() if x.live and x.quality is not None and x.note
        ]
        if not notes:
            return
        key = self._key(service)
        if forced or key != service.key:
            service.key = key
            body = {**self._composed(service), "reason": reason}
            self.out.append(self._shape.note(notes[0], msgspec.json.encode(body)))


def _both(one: RangeSet, other: RangeSet) -> RangeSet:
    """Return the intersection of two sets."""
    found = RangeSet()
    for first, last in one:
        for begin, end in other.within(first, last):
            found.add(begin, end)
    return found
