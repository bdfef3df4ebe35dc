"""Loss tracker: what one destination alone lacks of a service, and how that is announced.

What it is for: a destination's queue dropped its oldest messages, or its broker refused some. The
service's own quality does not include that, so every quality message on its way to this
destination passes through here and has these losses merged in: what was dropped is `stale`, and the
state `STALE`, until a snapshot block has arrived whole or a new epoch begins. What was dropped
since the last message is announced by one of our own, reason `overflow`, before any later data.

Packets outside the sequence are part of no range: how many were dropped is announced with the
overflow, and the state is no worse for it.

Nothing that the destination must know is lost with a dropped quality message: the latest content is
repeated with the overflow, which names the gaps whose own messages did not arrive; a new epoch by
its own message again. A snapshot block is dropped whole, its end included: half of it would be
worse than none.

What was conflated is no loss, and announced by messages of our own, too: `conflated` before the
first data that lacks something, `caught-up` with the figures when nothing waits any more. Between
the two the state is `CONFLATED` at best. Books that are sent anew go between two messages
(`books_border`).

One `LossTracker` a service and destination. No I/O, no engine.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from feedhandler.amqp.framing import BLOCK_LAST_MASK, BLOCK_SHIFT, SNAPSHOT_BIT
from feedhandler.amqp.queueing.unsettled_map import OutgoingMessage
from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from feedhandler.retrans.quality import (
    CHANGE_REASONS,
    RANGES_REPORTED_MAX,
    State,
    ranges_reported,
)
from feedhandler.retrans.ranges import RangeSet

#: The reason of our own quality message.
OVERFLOW = "overflow"
#: Reasons of those about conflation, the state between them, and the messages around books.
CONFLATED, CAUGHT_UP = "conflated", "caught-up"
CONFLATED_STATE = "CONFLATED"
BOOKS_BEGIN, BOOKS_END = "books-begin", "books-end"
#: Keys that concern one message only, and are not carried over to the next.
_OWN_KEYS = ("last", "packets", "line", "sequence", "refreshed", "lost", "symbols", "through",
             "unsequenced", "withdrawn", "skipped")  # fmt: skip
#: The doubt of a destination that missed a snapshot which the others got.
BROKEN_BLOCK = "a snapshot did not reach this destination whole"
BLOCK_BEGIN, BLOCK_END = "snapshot-begin", "snapshot-end"
#: Reasons of the messages around snapshots and around books.
BLOCK_REASONS = (BLOCK_BEGIN, BLOCK_END, BOOKS_BEGIN, BOOKS_END)
GAP = "gap"
#: Reasons of messages with which an epoch begins: what was lost before no longer matters.
EPOCH_REASONS = ("start", "reset")


class LossTracker:
    """Loss tracker of one destination and service.

    `skipping`: the rest of a snapshot block is to be dropped, up to and with its end.
    `unannounced`: a drop has not been announced yet; `dropped_to`: the number behind what was
    dropped from the queue since, 0 where nothing was, or no number is known. `healed`: what was
    lost in this epoch, a snapshot has repaired.
    """

    def __init__(self) -> None:
        self.lost = RangeSet(only_grows=True)
        self.fresh = RangeSet(only_grows=True)
        self.doubt: str | None = None
        self.skipping = False
        self.unannounced = False
        self.dropped_to = 0
        self.healed = False
        self.lost_ranges = self.lost_total = 0
        self._quality: dict[str, Any] = {}
        #: The latest losses of the service itself, as of `_quality`, which names fewer; and those
        #: whose announcement the destination did not get.
        self._service_lost = RangeSet()
        self._untold = RangeSet(only_grows=True)
        self._epoch_began: bytes | None = None
        self._broken_last = -1
        self.conflating = self.conflation_unannounced = False
        self.conflated = self.unsequenced = 0
        self._conflated_range: list[int] = []

    # -- what did not reach the destination -------------------------------------------------

    def drop(self, outgoing: OutgoingMessage) -> None:
        """Record that a message was dropped before it was sent."""
        if outgoing.sequence < UNSEQUENCED_BIT:
            begins = outgoing.reason in EPOCH_REASONS
            self.dropped_to = max(outgoing.following, 0 if begins else self.dropped_to)
        self._lose(outgoing)

    def _lose(self, outgoing: OutgoingMessage) -> None:
        """Record what the destination does not get with a message."""
        self.unannounced = True
        if outgoing.block:
            self.skipping = True
            self.doubt = BROKEN_BLOCK
        elif outgoing.reason:
            self._drop_quality(outgoing)
        elif outgoing.following > outgoing.sequence:
            self.fresh.add(outgoing.sequence, outgoing.following - 1)
        elif outgoing.sequence >= UNSEQUENCED_BIT:
            self.unsequenced += 1

    def refuse(self, outgoing: OutgoingMessage) -> None:
        """Record that a message was sent, and refused for good."""
        if outgoing.block:
            self.unannounced = True
            self.doubt = BROKEN_BLOCK
            self._broken_last = (outgoing.sequence & ~SNAPSHOT_BIT) >> BLOCK_SHIFT
        elif not outgoing.reason:
            self._lose(outgoing)
        else:
            # Its content is in `_quality`, and so in the next message.
            self.unannounced = True
            if outgoing.reason in (GAP, OVERFLOW):
                self._leave_untold(self._service_lost)
            if outgoing.reason == OVERFLOW:
                self._leave_untold(self.lost)
            if outgoing.reason in BLOCK_REASONS:
                self.doubt = BROKEN_BLOCK

    def miss(
        self, packets: RangeSet, told: RangeSet, block: bool, epoch_began: bytes
    ) -> list[tuple[str, bytes]]:
        """Record that `packets`, by number, will not come after all, nor the messages that
        announce losses `told`; `block`: nor all of a snapshot, `epoch_began`: nor the message with
        which their sequence epoch began.

        Returns the messages (reason, body) that announce it. What was dropped later stays to be
        announced.
        """
        later = self.unannounced, self.dropped_to, self.unsequenced, self._epoch_began
        fresh, untold = self.fresh, self._untold
        self.fresh = RangeSet(packets, only_grows=True)
        self._untold = RangeSet(told, only_grows=True)
        self.unsequenced, self._epoch_began = 0, epoch_began or None
        if block:
            self.doubt = BROKEN_BLOCK
        notices = self.notices()
        self.unannounced, self.dropped_to, self.unsequenced, self._epoch_began = later
        self.fresh, self._untold = fresh, untold
        return notices

    def miss_book(self) -> None:
        """Record that a book that was to be sent will not be."""
        self.unannounced = True
        self.doubt = BROKEN_BLOCK

    def skips(self, outgoing: OutgoingMessage) -> bool:
        """Return whether a message on its way to the queue, or in it, belongs to a block that is
        being dropped."""
        if not self.skipping:
            return False
        if outgoing.reason in (BLOCK_BEGIN, BOOKS_BEGIN):
            # The end of the block before, too, was lost: on a disk that has failed.
            self.skipping = False
            return False
        if outgoing.reason == BLOCK_END:
            self._miss_block_end(outgoing)
            return True
        if outgoing.reason == BOOKS_END:
            self.skipping = False
            return True
        return outgoing.block

    def _drop_quality(self, outgoing: OutgoingMessage) -> None:
        if outgoing.reason in (BLOCK_BEGIN, BOOKS_BEGIN, BOOKS_END):
            self.skipping = outgoing.reason != BOOKS_END
            self.doubt = BROKEN_BLOCK
            if outgoing.reason == BLOCK_BEGIN and not outgoing.is_whole:
                self._keep(msgspec.json.decode(outgoing.body))
            return
        if outgoing.reason == BLOCK_END:
            self._miss_block_end(outgoing)
            return
        if outgoing.reason == OVERFLOW:  # our own, where it had to wait
            self._leave_untold(msgspec.json.decode(outgoing.body)["lost"])
            return
        if outgoing.reason in EPOCH_REASONS:
            self.fresh = RangeSet(only_grows=True)
            self._untold.clear()
            self._epoch_began = outgoing.body
        if outgoing.is_whole:
            self._drop_whole(outgoing)
            return
        if outgoing.reason in EPOCH_REASONS:
            self._forget()
        self._keep(msgspec.json.decode(outgoing.body))
        for first, last in self._quality.get("withdrawn", ()):
            self._untold.discard(first, last)
        if outgoing.reason == GAP:
            self._leave_untold(self._quality["lost"])

    def _drop_whole(self, outgoing: OutgoingMessage) -> None:
        """Record the drop of a message that has this destination's losses merged in: what it says
        of the service has been kept, and later messages since."""
        quality = msgspec.json.decode(outgoing.body)
        for first, last in quality.get("withdrawn", ()):
            self._untold.discard(first, last)
        if outgoing.reason == GAP:
            self._leave_untold(quality["lost"])

    def _leave_untold(self, lost: Iterable[tuple[int, int]]) -> None:
        """Have losses of the service announced by the next overflow."""
        for first, last in lost:
            self._untold.add(first, last)

    def _keep(self, quality: dict[str, Any]) -> None:
        """Keep a message of the service as the latest, and what the service has lost by it."""
        self._quality = quality
        if quality["reason"] not in CHANGE_REASONS:
            self._service_lost = RangeSet(quality.get("stale", ()))
            return
        for first, last in quality.get("withdrawn", ()):
            self._service_lost.discard(first, last)
        for first, last in quality.get("lost", ()):
            self._service_lost.add(first, last)
        latest = self._service_lost.latest(RANGES_REPORTED_MAX)
        if len(self._service_lost) > len(latest):
            self._service_lost.discard_below(latest[0][0])

    def _miss_block_end(self, outgoing: OutgoingMessage) -> None:
        """End the dropping of a block: other receivers are healed by it, this one keeps its
        losses."""
        self.skipping = False
        self.unannounced = True
        self.doubt = BROKEN_BLOCK
        quality = msgspec.json.decode(outgoing.body)
        if not outgoing.is_whole:
            for first, last in self._service_lost:
                self.lost.add(first, last)
            self._keep({**quality, "last": None, "refreshed": []})
        self.dropped_to = max(self.dropped_to, quality.get("next") or 0)

    # -- notices to the destination ---------------------------------------------------------

    def notices(self) -> list[tuple[str, bytes]]:
        """Return the messages (reason, body) to send before anything later; clears what is
        unannounced."""
        notices = []
        if self._epoch_began is not None:
            notices.append((msgspec.json.decode(self._epoch_began)["reason"], self._epoch_began))
        self._epoch_began = None
        fresh, self.fresh = self.fresh, RangeSet(only_grows=True)
        self.lost_ranges += len(fresh) + fresh.joined
        self.lost_total += fresh.total - fresh.widened
        for first, last in fresh:
            self.lost.add(first, last)
        for first, last in self._untold:
            fresh.add(first, last)
        self._untold.clear()
        self.unannounced, self.dropped_to = False, 0
        outside = {"unsequenced": self.unsequenced} if self.unsequenced else {}
        self.unsequenced = 0
        body = self._body(OVERFLOW, lost=_covering(fresh), **outside)
        return [*notices, (OVERFLOW, self._worse(body))]

    def _body(self, reason: str, **more: object) -> dict[str, Any]:
        """Compose a message with the state last announced, for this reason."""
        last = {key: value for key, value in self._quality.items() if key not in _OWN_KEYS}
        return {**last, "reason": reason, "stale": list(self._service_lost), **more}

    # -- what was conflated -----------------------------------------------------------------

    def conflate(self, count: int, first: int, last: int) -> None:
        """Record that `count` market messages of packets `first` to `last` were replaced by newer
        ones."""
        if not self.conflating:
            self.conflating = self.conflation_unannounced = True
            self._conflated_range = [first, last]
        self.conflated += count
        begin, end = self._conflated_range
        self._conflated_range = [min(begin, first), max(end, last)]

    @property
    def conflated_from(self) -> int:
        """First packet that something was taken out of."""
        return self._conflated_range[0]

    def conflated_notice(self) -> tuple[str, bytes]:
        """Return the message (reason, body) to send before the first data that lacks something."""
        self.conflation_unannounced = False
        return CONFLATED, self._worse(self._conflation_body(CONFLATED))

    def caught_up(self, next_sequence: int) -> tuple[str, bytes]:
        """Return the message (reason, body) after which nothing waits, and the stream is complete
        again."""
        self.conflating = self.conflation_unannounced = False
        body = self._conflation_body(CAUGHT_UP)
        self.conflated = 0
        return CAUGHT_UP, self._worse({**body, "next": next_sequence or body.get("next")})

    def _conflation_body(self, reason: str) -> dict[str, Any]:
        return self._body(
            reason, conflated=self._conflated_range, conflated_messages=self.conflated
        )

    def books_border(self, reason: str, **more: object) -> bytes:
        """Compose a message that begins or ends books that are sent anew."""
        return msgspec.json.encode(self._body(reason, **more))

    def outgoing(self, body: bytes) -> bytes:
        """Return the body of a service's quality message as this destination must see it."""
        quality = msgspec.json.decode(body)
        if quality["reason"] in (BOOKS_BEGIN, BOOKS_END):
            return self._worse(quality)
        if quality["reason"] in EPOCH_REASONS:
            self._forget()
        elif quality["reason"] == BLOCK_END:
            quality["refreshed"] = [*quality.get("refreshed", ()), *self.lost][
                -RANGES_REPORTED_MAX:
            ]
            self.healed = self.healed or self.lacks
            self.lost.clear()
            if (quality.get("last") or 0) & BLOCK_LAST_MASK != self._broken_last:
                self.doubt = None
        self._keep(quality)
        return self._worse(quality) if self.lacks or self.healed or self.conflating else body

    @property
    def lacks(self) -> bool:
        """Whether the destination's state is worse than the service's."""
        return bool(self.lost) or self.doubt is not None

    def _forget(self) -> None:
        self.lost.clear()
        self._untold.clear()
        self.doubt = None
        self.healed = False
        self.lost_ranges = self.lost_total = 0

    def _worse(self, quality: dict[str, Any]) -> bytes:
        """Merge this destination's losses into a message, and encode it."""
        lost = self.lost.latest_with(quality.get("stale", ()), ranges_reported(quality["reason"]))
        state = quality.get("state")
        if self.healed and state == State.OK.value:
            state = State.REFRESHED.value
        if self.conflating and state in (State.OK.value, State.REFRESHED.value, None):
            state = CONFLATED_STATE
        worst = state if state == State.SILENT.value else State.STALE.value
        return msgspec.json.encode(
            {
                **quality,
                "state": worst if lost or self.doubt or quality.get("doubt") else state,
                "stale": lost,
                "doubt": quality.get("doubt") or self.doubt,
                "lost_ranges": quality.get("lost_ranges", 0) + self.lost_ranges,
                "lost_total": quality.get("lost_total", 0) + self.lost_total,
            }
        )


def _covering(ranges: RangeSet) -> list[tuple[int, int]]:
    """Return at most `RANGES_REPORTED_MAX` ranges with all that is in the set: the latest, and one
    from the first on."""
    latest = ranges.latest(RANGES_REPORTED_MAX)
    if len(ranges) > len(latest):
        latest[0] = (next(iter(ranges))[0], latest[0][1])
    return latest
