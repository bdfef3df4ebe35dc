"""Going on after a lost connection: what to ask for, and what is lacking if that is not to be had.

What it is for: one `Aftermath` a gateway that a subscriber is attached to. It is told how far each
service was read when the connection was lost, names the tags to go on from, and hears every
quality message. The first one of a service on the new link settles what became of it:

    resumed         the node goes on right behind the tag: nothing is lacking; it says so itself,
                    with reason `resume`
    too late        the node says that, too: the range, or why it cannot tell one
    not offered     the node begins where it is now: what lies between is lacking, as far as the
                    numbers tell, and a quality message of our own says so, reason `resume`
    new numbering   the node has begun to count anew: the rest of the old numbering is unknown

What is lacking makes every later quality message of the service worse (state `STALE`), as nobody
else lacks it, until a snapshot block has made it good or a new numbering begins. A snapshot block
that the connection's end has cut in two is asked for again; so is one where the link was behind
and conflated as the connection was lost: books that were to come are known to nobody.

No I/O, no engine.
"""

from typing import Any

import msgspec

from feedhandler.amqp.quality import RANGES_TOLD_MAX, State
from feedhandler.amqp.queueing.shortfall import CAUGHT_UP, CONFLATED
from feedhandler.amqp.routing import ADDRESS_CHARS_MAX
from feedhandler.retrans.ranges import RangeSet

#: The reason of quality messages that tell what a resumed stream lacks.
RESUME = "resume"
BLOCK_BEGIN, BLOCK_END = "snapshot-begin", "snapshot-end"
#: Why the stream is in doubt where no range can be told.
NEW_NUMBERING = "a new numbering began while the subscriber was not connected"
BROKEN_BLOCK = "the connection was lost in the middle of a snapshot"
BEHIND = "the connection was lost while the link was behind and conflated"
#: Characters of an address that tags may take, and what one takes there. Services beyond that are
#: not resumed, which is told like any other hole.
TAG_CHARS = 37
TAGS_MAX = (ADDRESS_CHARS_MAX * 3 // 4) // TAG_CHARS

Told = dict[str, Any]


class Lack:
    """What this subscriber lacks of one service, and nobody else."""

    def __init__(self) -> None:
        self.lost = RangeSet()
        self.doubt: str | None = None
        self.healed = False
        self.ranges = self.total = 0

    def lose(self, first: int, last: int) -> None:
        """These numbers were not received, and will not be."""
        self.lost.add(first, last)
        self.ranges += 1
        self.total += last - first + 1

    def hear(self, told: Told) -> Told:
        """A quality message of the node as this subscriber must take it."""
        if told["reason"] == "reset":
            self.__init__()  # type: ignore[misc]  # what was lost before no longer matters
        elif told["reason"] == BLOCK_END and (last := told.get("last")) is not None:
            good = [(first, min(end, last)) for first, end in self.lost if first <= last]
            self.healed = self.healed or bool(good) or self.doubt is not None
            self.lost.discard_below(last + 1)
            self.doubt = None
            told = {**told, "refreshed": [*told.get("refreshed", ()), *good][-RANGES_TOLD_MAX:]}
        return self.worse(told)

    def worse(self, told: Told) -> Told:
        """The message with what is lacking beside."""
        state = told["state"]
        if self.lost or self.doubt is not None:
            state = state if state == State.SILENT.value else State.STALE.value
        elif self.healed and state == State.OK.value:
            state = State.REFRESHED.value
        stale = RangeSet([(first, last) for first, last in told.get("stale", ())])
        for first, last in self.lost:
            stale.add(first, last)
        return {
            **told,
            "state": state,
            "stale": stale.latest(RANGES_TOLD_MAX),
            "doubt": told.get("doubt") or self.doubt,
            "lost_ranges": told.get("lost_ranges", 0) + self.ranges,
            "lost_total": told.get("lost_total", 0) + self.total,
        }


class Aftermath:
    """Where one gateway's stream stands, over the ends of its connections.

    `lacking` counts the services that went on with something lacking.
    """

    def __init__(self) -> None:
        self.lacking = 0
        self._lacks: dict[int, Lack] = {}
        self._open_blocks: set[int] = set()
        self._behind: set[int] = set()
        #: Services whose first quality message on this link is still to come: their last number.
        self._pending: dict[int, int] = {}
        self._asked: frozenset[int] = frozenset()

    # -- between two connections ------------------------------------------------------------

    def lose(self, tags: dict[int, bytes]) -> None:
        """The connection is lost; `tags` are the last ones read, by service."""
        for service, tag in tags.items():
            self._pending.setdefault(service, int.from_bytes(tag[8:16]))
        for service in self._open_blocks:
            lack = self._lacks.setdefault(service, Lack())
            lack.doubt = lack.doubt or BROKEN_BLOCK
        for service in self._behind:
            lack = self._lacks.setdefault(service, Lack())
            lack.doubt = lack.doubt or BEHIND

    def ask(self, tags: dict[int, bytes]) -> list[bytes]:
        """The tags to go on from: of services whose state is whole."""
        broken = self._open_blocks | self._behind
        chosen = [service for service in tags if service not in broken][:TAGS_MAX]
        return [tags[service] for service in chosen]

    @property
    def wants_snapshot(self) -> bool:
        """Whether a snapshot block was cut in two, or one is needed for what was conflated."""
        return bool(self._open_blocks or self._behind)

    def attached(self, tags: list[bytes]) -> None:
        """A link is attached again; the node goes on from these `tags`, or says that it cannot."""
        self._asked = frozenset(int.from_bytes(tag[6:8]) for tag in tags)
        self._open_blocks.clear()
        self._behind.clear()

    # -- what the node says -----------------------------------------------------------------

    def hear(self, body: bytes, service: int) -> list[bytes] | None:
        """A quality message of the node: what to hand out in its place, None where that is it.

        Raises msgspec.DecodeError or KeyError for what is no quality message.
        """
        told = msgspec.json.decode(body, type=dict)
        reason = told["reason"]
        if reason == BLOCK_BEGIN:
            self._open_blocks.add(service)
        elif reason == BLOCK_END:
            self._open_blocks.discard(service)
        elif reason == CONFLATED:
            self._behind.add(service)
        elif reason == CAUGHT_UP:
            self._behind.discard(service)
        first: list[Told] = []
        if service in self._pending:
            first = self._settle(service, told)
        elif reason == RESUME:  # it was overtaken in what it had to send again
            self._take(service, told)
        lack = self._lacks.get(service)
        if lack is None:
            return None
        return [msgspec.json.encode(each) for each in (*first, lack.hear(told))]

    def _settle(self, service: int, told: Told) -> list[Told]:
        """The first word on a service that was lost: what is lacking; a message that says so."""
        if told["reason"] == RESUME and told.get("next") == 0:  # nothing yet; `start` will tell
            self._asked -= {service}
            return self._tell_doubt(service, told)
        if told["reason"] == RESUME:
            del self._pending[service]
            self._take(service, told)
            return self._tell_doubt(service, told)
        if service in self._asked:
            del self._pending[service]
            return self._tell_doubt(service, told)
        following = told.get("next")
        if following is None:  # a gateway that has received nothing yet; it will say `start`
            return self._tell_doubt(service, told)
        last = self._pending.pop(service)
        if following > last + 1:
            self._lack(service).lose(last + 1, following - 1)
            return [self._notice(service, told, [(last + 1, following - 1)])]
        if following <= last:
            lack = self._lack(service)
            lack.doubt = NEW_NUMBERING
            return [self._notice(service, told, [])]
        return self._tell_doubt(service, told)

    def _take(self, service: int, told: Told) -> None:
        """The node says itself what it no longer has."""
        for first, last in told.get("lost", ()):
            self._lack(service).lose(first, last)
        if told.get("doubt") and not told.get("lost"):
            self._lack(service).doubt = told["doubt"]

    def _tell_doubt(self, service: int, told: Told) -> list[Told]:
        """Where a snapshot broke off, that has to be told whatever else is well."""
        lack = self._lacks.get(service)
        if lack is None or lack.doubt not in (BROKEN_BLOCK, BEHIND):
            return []
        return [self._notice(service, told, [])]

    def _notice(self, service: int, told: Told, lost: list[tuple[int, int]]) -> Told:
        body = {**told, "reason": RESUME, "lost": lost}
        for key in ("last", "packets", "line", "sequence", "refreshed"):
            body.pop(key, None)
        return self._lacks[service].worse(body)

    def _lack(self, service: int) -> Lack:
        self.lacking += 1
        return self._lacks.setdefault(service, Lack())
