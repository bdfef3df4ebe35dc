"""Resume state after a lost connection: what to ask the node for, and what is lost without it.

What it is for: one `ResumeState` for each gateway that a subscriber is attached to. It records how
far each service was read when the connection was lost, names the tags to resume from, and processes
every quality message. The first one of a service on the new link decides what was lost:

    resumed         the node goes on right behind the tag: nothing is lost; it reports that, with
                    reason `resume`
    too late        the node says that, too: the range, or why it is not known
    not offered     the node begins where it is now: what lies between is lost, as far as the
                    numbers show, and a quality message of our own says so, reason `resume`
    new epoch       the node has begun to count anew: the rest of the old epoch is unknown

A loss of this subscriber alone makes every later quality message of the service worse (state
`STALE`) until a snapshot block has repaired it or a new epoch begins. A snapshot block that the
connection's end has cut in two is asked for again; so is one where the link was behind and
conflated as the connection was lost: which books were still to come is unknown. Where each link
begins with the state as it is, as those of normalised records do that ask for it, that state makes
good what was lost: the loss is announced, and the service is `REFRESHED`.

No I/O, no engine.
"""

from typing import Any

import msgspec

from feedhandler.amqp.queueing.loss_tracker import CAUGHT_UP, CONFLATED
from feedhandler.amqp.routing import ADDRESS_CHARS_MAX
from feedhandler.retrans.quality import RANGES_REPORTED_MAX, State
from feedhandler.retrans.ranges import RangeSet

#: The reason of quality messages that announce what a resumed stream has lost.
RESUME = "resume"
BLOCK_BEGIN, BLOCK_END = "snapshot-begin", "snapshot-end"
#: The reason that says that a link gets no snapshot.
NO_SNAPSHOT = "no snapshot"
#: Why the stream is in doubt where no range of losses is known.
NEW_EPOCH = "a new sequence epoch began while the subscriber was not connected"
BROKEN_BLOCK = "the connection was lost in the middle of a snapshot"
BEHIND = "the connection was lost while the link was behind and conflated"
#: Characters that one tag takes in an address, and how many tags fit. Services beyond that are not
#: resumed, which is announced like any other loss.
TAG_CHARS = 37
TAGS_MAX = (ADDRESS_CHARS_MAX * 3 // 4) // TAG_CHARS

QualityBody = dict[str, Any]


class OwnLosses:
    """Losses of one service that this subscriber alone has."""

    def __init__(self) -> None:
        self.lost = RangeSet(only_grows=True)
        self.doubt: str | None = None
        self.healed = False
        self.ranges = self.total = 0

    def lose(self, first: int, last: int) -> None:
        """Record that the numbers `first`..`last` were not received, and will not be."""
        self.lost.add(first, last)
        self.ranges += 1
        self.total += last - first + 1

    def process_quality(self, quality: QualityBody) -> QualityBody:
        """Apply a quality message of the node to the losses; return it as this subscriber must see
        it."""
        if quality["reason"] == "reset":
            self.__init__()  # type: ignore[misc]  # what was lost before no longer matters
        elif quality["reason"] == BLOCK_END and (last := quality.get("last")) is not None:
            good = [(first, min(end, last)) for first, end in self.lost if first <= last]
            self.healed = self.healed or bool(good) or self.doubt is not None
            self.lost.discard_below(last + 1)
            self.doubt = None
            quality = {
                **quality,
                "refreshed": [*quality.get("refreshed", ()), *good][-RANGES_REPORTED_MAX:],
            }
        return self.worse(quality)

    def renew(self, quality: QualityBody) -> QualityBody:
        """Forget the losses, as the present state follows; return the message with what is good
        again."""
        good = list(self.lost)
        self.lost, self.doubt, self.healed = RangeSet(only_grows=True), None, True
        return {
            **quality,
            "refreshed": [*quality.get("refreshed", ()), *good][-RANGES_REPORTED_MAX:],
        }

    def worse(self, quality: QualityBody) -> QualityBody:
        """Return the message with this subscriber's losses merged in."""
        state = quality["state"]
        if self.lost or self.doubt is not None:
            state = state if state == State.SILENT.value else State.STALE.value
        elif self.healed and state == State.OK.value:
            state = State.REFRESHED.value
        return {
            **quality,
            "state": state,
            "stale": self.lost.latest_with(quality.get("stale", ()), RANGES_REPORTED_MAX),
            "doubt": quality.get("doubt") or self.doubt,
            "lost_ranges": quality.get("lost_ranges", 0) + self.ranges,
            "lost_total": quality.get("lost_total", 0) + self.total,
        }


class ResumeState:
    """Resume state of one gateway's stream, kept over the ends of its connections."""

    def __init__(self) -> None:
        self._own_losses: dict[int, OwnLosses] = {}
        self._open_blocks: set[int] = set()
        self._behind: set[int] = set()
        #: Services that were lost in the midst of a block, or behind, and have had none since.
        self._owed: set[int] = set()
        self._renews = False
        #: Services whose first quality message on this link is still to come: their last number.
        self._pending: dict[int, int] = {}
        self._asked: frozenset[int] = frozenset()
        self._begins_with_state = False

    # -- between two connections ------------------------------------------------------------

    def lose(self, tags: dict[int, bytes]) -> None:
        """Record that the connection is lost; `tags` are the last ones read, by service."""
        for service, tag in tags.items():
            self._pending.setdefault(service, int.from_bytes(tag[8:16]))
        for service in self._open_blocks:
            losses = self._own_losses.setdefault(service, OwnLosses())
            losses.doubt = losses.doubt or BROKEN_BLOCK
        for service in self._behind:
            losses = self._own_losses.setdefault(service, OwnLosses())
            losses.doubt = losses.doubt or BEHIND
        self._owed |= self._open_blocks | self._behind
        self._open_blocks.clear()
        self._behind.clear()

    def ask(self, tags: dict[int, bytes]) -> list[bytes]:
        """Return the tags to resume from: of services whose state is whole, `TAGS_MAX` at most."""
        chosen = [service for service in tags if service not in self._owed][:TAGS_MAX]
        return [tags[service] for service in chosen]

    @property
    def wants_snapshot(self) -> bool:
        """Whether a snapshot block was cut in two, or one is needed for what was conflated."""
        return bool(self._owed)

    def attached(
        self, tags: list[bytes], begins_with_state: bool = False, snapshot: bool = False
    ) -> None:
        """Record that a link is attached again with these `tags`, from which the node resumes or
        says that it cannot; or that it begins with the state as it is. `snapshot`: it has asked for
        snapshots; it may end, or be refused, before they have come."""
        self._begins_with_state = begins_with_state
        self._renews = snapshot and not begins_with_state
        self._asked = frozenset(int.from_bytes(tag[6:8]) for tag in tags)

    # -- what the node says -----------------------------------------------------------------

    def process_quality(self, body: bytes, service: int) -> list[bytes] | None:
        """Process a quality message of the node; return what to hand out in its place, None for the
        message itself.

        Raises msgspec.DecodeError or KeyError where `body` is no quality message.
        """
        quality = msgspec.json.decode(body, type=dict)
        reason = quality["reason"]
        if not self._renews or reason in (BLOCK_END, NO_SNAPSHOT):
            self._owed.discard(service)
        if reason == BLOCK_BEGIN:
            self._open_blocks.add(service)
        elif reason == BLOCK_END:
            self._open_blocks.discard(service)
        elif reason == CONFLATED:
            self._behind.add(service)
        elif reason == CAUGHT_UP:
            self._behind.discard(service)
        first: list[QualityBody] = []
        if service in self._pending:
            first = self._process_first_quality(service, quality)
            if first and self._begins_with_state:
                quality = self._own_losses[service].renew(quality)
        elif reason == RESUME:  # it was overtaken in what it had to send again
            self._record_losses(service, quality)
        losses = self._own_losses.get(service)
        if losses is None:
            return None
        return [msgspec.json.encode(each) for each in (*first, losses.process_quality(quality))]

    def _process_first_quality(self, service: int, quality: QualityBody) -> list[QualityBody]:
        """Process the first quality message of a service after a lost connection: record what is
        lost, and return a message that announces it, if any."""
        if quality["reason"] == RESUME and quality.get("next") == 0:  # nothing yet: `start` follows
            self._asked -= {service}
            return self._report_doubt(service, quality)
        if quality["reason"] == RESUME:
            del self._pending[service]
            self._record_losses(service, quality)
            return self._report_doubt(service, quality)
        if service in self._asked:
            del self._pending[service]
            return self._report_doubt(service, quality)
        following = quality.get("next")
        if following is None:  # a gateway that has received nothing yet; it will say `start`
            return self._report_doubt(service, quality)
        last = self._pending.pop(service)
        if following > last + 1:
            self._losses_of(service).lose(last + 1, following - 1)
            return [self._notice(service, quality, [(last + 1, following - 1)])]
        if following <= last:
            losses = self._losses_of(service)
            losses.doubt = NEW_EPOCH
            return [self._notice(service, quality, [])]
        return self._report_doubt(service, quality)

    def _record_losses(self, service: int, quality: QualityBody) -> None:
        """Record the losses that the node itself announces."""
        for first, last in quality.get("lost", ()):
            self._losses_of(service).lose(first, last)
        if quality.get("doubt") and not quality.get("lost"):
            self._losses_of(service).doubt = quality["doubt"]

    def _report_doubt(self, service: int, quality: QualityBody) -> list[QualityBody]:
        """Return a message that announces a broken snapshot block or conflated books, where there
        was one."""
        losses = self._own_losses.get(service)
        if losses is None or losses.doubt not in (BROKEN_BLOCK, BEHIND):
            return []
        return [self._notice(service, quality, [])]

    def _notice(
        self, service: int, quality: QualityBody, lost: list[tuple[int, int]]
    ) -> QualityBody:
        body = {**quality, "reason": RESUME, "lost": lost}
        for key in ("last", "packets", "line", "sequence", "refreshed"):
            body.pop(key, None)
        return self._own_losses[service].worse(body)

    def _losses_of(self, service: int) -> OwnLosses:
        return self._own_losses.setdefault(service, OwnLosses())
