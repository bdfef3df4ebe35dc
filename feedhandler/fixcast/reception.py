"""The receiver's side of a channel's session: which message is next, missing, or lost.

A `Reception` takes the messages of a channel from its lines and from retransmission, one by one,
and returns events. Its rules are those of docs/fixcast.md; the gateway has its own arbiter for the
same rules, and this is the model that simulations and `feedhandler fixcast receive` use.

Numbers from `floor` to `top` - 1 are undecided: each is either in a gap, or was delivered (or held,
where later messages wait). The action on a message follows from its kind and its number's position:

              FIRST  BELOW     KNOWN   MISSING  NEXT     AHEAD          FAR
APPLICATION   join   evidence  ignore  fill     deliver  open, deliver  evidence
NEXT_NUMBER   join   evidence                   whole    open           evidence
FILL          join             ignore  skip     skip     open, skip     evidence

NEXT_NUMBER are Heartbeat, Logon and Logout, which carry the next number. A gap goes

    SEEN ──each line has passed it, or `gap_wait_ns` is over──▶ ASKED
    ASKED ──`recovery_wait_ns` is over──▶ lost

and closes at any time when its messages come or are skipped. *Evidence* is a message that fits
nowhere and is no copy: a few of them in ascending order, while nothing fits, make a new sequence
epoch; they are kept until then. A message that states a later epoch than the present one is
believed at once; where the present one is not stated, it may be the same.

Times are integer ns and arguments; bodies are compared by their hashes, and not parsed.
"""

import enum
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from feedhandler.fixcast.session import NEVER
from feedhandler.fixcast.values import NUMBER_FIRST, NUMBER_MAX, Kind, Message

#: The line number that stands for retransmission.
RETRANSMISSION = -1
#: Upper limit on open gaps. Losses come in runs; with more of them it is better to give the oldest
#: up than to search them all for each message.
GAPS_MAX = 1024
#: Messages whose hashes are kept, to distinguish copies from a new epoch: 5 MB a channel.
RECENT_MAX = 1 << 16
#: Messages needed to make a new epoch: a single stray or forged one does not.
EVIDENCE_LEAST = 3
#: Upper limit on the messages kept of an epoch that is not yet recognised.
EVIDENCE_MAX = 4096
#: A new epoch first seen at this number or below is assumed to have begun with number 1.
BEGIN_REACH = 4096


class State(enum.Enum):
    """Activity of a channel."""

    UNHEARD = "unheard"
    ACTIVE = "active"
    SILENT = "silent"
    ENDED = "ended"


class Heard(enum.Enum):
    """Inputs of the activity: a message with nothing new, one with news, a Logout, silence."""

    ANY = "any"
    ADVANCE = "advance"
    LOGOUT = "logout"
    SILENCE = "silence"


#: The next state. Late copies of messages from before a Logout do not undo it.
ACTIVITY = {
    (state, heard): following
    for state, row in {
        #               ANY           ADVANCE       LOGOUT       SILENCE
        State.UNHEARD: (State.ACTIVE, State.ACTIVE, State.ENDED, State.SILENT),
        State.ACTIVE:  (State.ACTIVE, State.ACTIVE, State.ENDED, State.SILENT),
        State.SILENT:  (State.ACTIVE, State.ACTIVE, State.ENDED, State.SILENT),
        State.ENDED:   (State.ENDED,  State.ACTIVE, State.ENDED, State.ENDED),
    }.items()
    for heard, following in zip(Heard, row, strict=True)
}  # fmt: skip


class NumberPosition(enum.Enum):
    """Position of a number relative to what was received."""

    FIRST = "first"  #: nothing was heard before
    BELOW = "below"  #: decided already, and the message is no known copy
    KNOWN = "known"  #: nothing new: a copy
    MISSING = "missing"  #: in a gap
    NEXT = "next"  #: one past everything seen
    AHEAD = "ahead"  #: beyond a new gap
    FAR = "far"  #: further than `jump_max` beyond, or nowhere at all


#: Positions of messages that bring something new.
_ADVANCING = (NumberPosition.FIRST, NumberPosition.NEXT, NumberPosition.AHEAD)


class Group(enum.Enum):
    """Groups of message kinds with the same treatment."""

    APPLICATION = "application"
    NEXT_NUMBER = "next number"
    FILL = "fill"


class Action(enum.Enum):
    """Actions on a message."""

    JOIN = "join"
    IGNORE = "ignore"
    EVIDENCE = "evidence"
    FILL = "fill"
    DELIVER = "deliver"
    OPEN_DELIVER = "open, deliver"
    WHOLE = "whole"
    OPEN = "open"
    SKIP = "skip"
    OPEN_SKIP = "open, skip"


ACTIONS = {
    (Group.APPLICATION, NumberPosition.FIRST): Action.JOIN,
    (Group.APPLICATION, NumberPosition.BELOW): Action.EVIDENCE,
    (Group.APPLICATION, NumberPosition.KNOWN): Action.IGNORE,
    (Group.APPLICATION, NumberPosition.MISSING): Action.FILL,
    (Group.APPLICATION, NumberPosition.NEXT): Action.DELIVER,
    (Group.APPLICATION, NumberPosition.AHEAD): Action.OPEN_DELIVER,
    (Group.APPLICATION, NumberPosition.FAR): Action.EVIDENCE,
    (Group.NEXT_NUMBER, NumberPosition.FIRST): Action.JOIN,
    (Group.NEXT_NUMBER, NumberPosition.BELOW): Action.EVIDENCE,
    (Group.NEXT_NUMBER, NumberPosition.NEXT): Action.WHOLE,
    (Group.NEXT_NUMBER, NumberPosition.AHEAD): Action.OPEN,
    (Group.NEXT_NUMBER, NumberPosition.FAR): Action.EVIDENCE,
    (Group.FILL, NumberPosition.FIRST): Action.JOIN,
    (Group.FILL, NumberPosition.KNOWN): Action.IGNORE,
    (Group.FILL, NumberPosition.MISSING): Action.SKIP,
    (Group.FILL, NumberPosition.NEXT): Action.SKIP,
    (Group.FILL, NumberPosition.AHEAD): Action.OPEN_SKIP,
    (Group.FILL, NumberPosition.FAR): Action.EVIDENCE,
}

GROUPS = {
    Kind.APPLICATION: Group.APPLICATION,
    Kind.HEARTBEAT: Group.NEXT_NUMBER,
    Kind.LOGON: Group.NEXT_NUMBER,
    Kind.LOGOUT: Group.NEXT_NUMBER,
    Kind.GAP_FILL: Group.FILL,
}


class Deliver(NamedTuple):
    """A message of the stream; `late`: later ones were delivered before it."""

    number: int
    body: bytes
    late: bool = False


class Skipped(NamedTuple):
    """Numbers that the publisher left out: nothing is lost."""

    first: int
    last: int


class Lost(NamedTuple):
    """Numbers that were not recovered, and are not waited for any more."""

    first: int
    last: int


class Missing(NamedTuple):
    """Numbers that neither line has, to be requested."""

    first: int
    last: int


class Joined(NamedTuple):
    """The stream begins with this number."""

    number: int


class NewEpoch(NamedTuple):
    """A new sequence epoch has begun; `ended`: the preceding one was complete up to its Logout."""

    epoch: int
    ended: bool


class Active(NamedTuple):
    """The channel became active (again)."""


class Silent(NamedTuple):
    """Nothing of the present sequence epoch, or of a later one, was received for `silence_ns`."""


class Ended(NamedTuple):
    """The publisher has ended the session; the last number is `next` - 1."""

    next: int


Event = Deliver | Skipped | Lost | Missing | Joined | NewEpoch | Active | Silent | Ended


@dataclass(frozen=True, slots=True)
class ReceptionSettings:
    """Settings of one channel's reception.

    lines              number of lines that carry it
    ordered            later messages wait for missing ones
    reorder_wait_ns    wait until a gap that all lines have passed is requested
    gap_wait_ns        wait until any gap is, because a line may be dead or late
    recovery_wait_ns   wait until a requested gap is given up; 0: nothing is requested
    silence_ns         time without messages that counts as silence: several Heartbeat intervals
    epoch_wait_ns      wait, since the last message of the old epoch, until one that no message
                       states is recognised: more than the lines' skew
    held_max           upper limit on held messages; beyond it the oldest gap is given up
    jump_max           how many numbers a message may be ahead
    """

    lines: int = 2
    ordered: bool = True
    reorder_wait_ns: int = 1_000_000
    gap_wait_ns: int = 20_000_000
    recovery_wait_ns: int = 2_000_000_000
    silence_ns: int = 5_000_000_000
    epoch_wait_ns: int = 1_000_000_000
    held_max: int = 65_536
    jump_max: int = 1 << 20


@dataclass(slots=True)
class _Gap:
    first: int
    last: int
    seen_ns: int
    asked_ns: int = NEVER


_first_of = attrgetter("first")


class Reception:
    """The receiver's state of one channel.

    floor      lowest undecided number
    top        one past the highest number received or announced; None: nothing was received
    epoch      what the publisher calls the present sequence epoch; 0: it does not say
    state      whether the channel is active
    settled    ranges reported as `Missing` earlier that the latest call closed
    """

    def __init__(self, settings: ReceptionSettings, now_ns: int) -> None:
        self.settings = settings
        self.state = State.UNHEARD
        self.epoch = 0
        self.floor = 0
        self.top: int | None = None
        self.settled: list[tuple[int, int]] = []
        self.counts: Counter[str] = Counter()
        self._passed = [0] * settings.lines
        self._gaps: list[_Gap] = []
        self._held: dict[int, tuple[Event, int]] = {}
        #: Hashes of messages by number, and the numbers in the order of their coming: a dictionary
        #: that loses its first entry again and again takes ever longer to find it.
        self._recent: dict[int, int] = {}
        self._recent_numbers: deque[int] = deque()
        self._evidence: list[Message] = []
        self._evidence_ns = self._fitted_ns = self._heard_ns = now_ns
        self._whole_end = False
        self._events: list[Event] = []
        self._verbs: dict[Action, Callable[[Message, int], None]] = {
            Action.JOIN: self._join,
            Action.IGNORE: self._ignore,
            Action.EVIDENCE: self._weigh,
            Action.FILL: self._fill,
            Action.DELIVER: self._deliver,
            Action.OPEN_DELIVER: self._open_deliver,
            Action.WHOLE: self._ignore,  # it confirms that nothing is missing
            Action.OPEN: self._open,
            Action.SKIP: self._skip,
            Action.OPEN_SKIP: self._open_skip,
        }

    # -- messages ------------------------------------------------------------------------------

    def receive(self, message: Message, line: int, now_ns: int) -> list[Event]:
        """Take a message from a line, or from `RETRANSMISSION`; return the resulting events."""
        self._events = []
        self.settled = []
        if message.kind is Kind.BEACON:
            self.counts["beacons"] += 1
            self._heard_ns = now_ns
            self._note(Heard.ANY)
        elif self._is_wrong(message):
            self.counts["wrong"] += 1
        elif not self._is_of_older_epoch(message):
            self._process(message, line, now_ns)
        return self._events

    def _is_wrong(self, message: Message) -> bool:
        if message.kind is Kind.GAP_FILL and message.new_number <= message.number:
            return True
        return not NUMBER_FIRST <= message.number <= NUMBER_MAX + 1

    def _is_of_older_epoch(self, message: Message) -> bool:
        epoch, own = message.epoch, self.epoch
        if epoch and own and epoch < own:
            self.counts["older_epoch"] += 1
            return True
        if own and epoch > own:
            self.epoch = epoch
            if self.top is not None:
                self._renumber(message.number)
        return False

    def _process(self, message: Message, line: int, now_ns: int) -> None:
        position = self._position_of(message)
        action = ACTIONS[GROUPS[message.kind], position]
        retransmitted = line == RETRANSMISSION
        if retransmitted and (position is NumberPosition.FIRST or action is Action.EVIDENCE):
            # A retransmission that others asked for is no reason to join, and its numbers are old.
            self.counts["unused_retransmissions"] += 1
            return
        if action not in (Action.EVIDENCE, Action.IGNORE):
            self.epoch = self.epoch or message.epoch
        if action is not Action.EVIDENCE and not message.poss_dup:
            self._fitted_ns = now_ns
            self._evidence.clear()
        self._verbs[action](message, now_ns)
        if not retransmitted and action is not Action.EVIDENCE:
            self._pass(message, line)
        if not retransmitted:
            self._heard_ns = now_ns
            self._note(self._bearing(message, position))
        self._ask_and_give_up(now_ns)

    def _position_of(self, message: Message) -> NumberPosition:
        top, number = self.top, message.number
        if top is None:
            return NumberPosition.FIRST
        reach = number
        # What states this epoch is believed: its publisher may leave out as much as it likes.
        if message.kind is Kind.GAP_FILL and not (message.epoch and message.epoch == self.epoch):
            reach = message.new_number
        if reach > top + self.settings.jump_max:
            return NumberPosition.FAR
        if number >= top:
            return NumberPosition.NEXT if number == top else NumberPosition.AHEAD
        if message.kind is Kind.GAP_FILL:
            return (
                NumberPosition.MISSING if message.new_number > self.floor else NumberPosition.KNOWN
            )
        if message.kind is not Kind.APPLICATION:
            return NumberPosition.BELOW
        if self._gap_at(number) is not None:
            return NumberPosition.MISSING
        return NumberPosition.KNOWN if self._is_copy(message) else NumberPosition.BELOW

    def _bearing(self, message: Message, position: NumberPosition) -> Heard:
        """Return what a message means for the channel's activity."""
        advances = position in _ADVANCING
        if message.kind is Kind.LOGOUT and advances:
            if self.state is not State.ENDED:
                self._events.append(Ended(message.number))
            self._whole_end = True
            return Heard.LOGOUT
        if advances and message.kind is not Kind.HEARTBEAT:
            self._whole_end = False
            return Heard.ADVANCE
        return Heard.ANY

    def _note(self, heard: Heard) -> None:
        state = ACTIVITY[self.state, heard]
        if state is self.state:
            return
        if state is State.ACTIVE:
            self._events.append(Active())
        elif state is State.SILENT:
            self._events.append(Silent())
        self.state = state

    def _pass(self, message: Message, line: int) -> None:
        """Record how far a line has come."""
        reached = message.number
        if message.kind is Kind.APPLICATION:
            reached += 1
        elif message.kind is Kind.GAP_FILL:
            reached = message.new_number
        self._passed[line] = max(self._passed[line], reached)

    # -- verbs of the table --------------------------------------------------------------------

    def _join(self, message: Message, now_ns: int) -> None:
        number = message.new_number if message.kind is Kind.GAP_FILL else message.number
        self.floor = self.top = number
        self._events.append(Joined(number))
        if message.kind is Kind.APPLICATION:
            self._deliver(message, now_ns)

    def _ignore(self, message: Message, now_ns: int) -> None:
        self.counts["duplicates"] += message.kind is Kind.APPLICATION

    def _deliver(self, message: Message, now_ns: int) -> None:
        number = message.number
        self.top = number + 1
        self._remember(message)
        self._put(Deliver(number, message.body), number, number + 1)

    def _open(self, message: Message, now_ns: int) -> None:
        assert self.top is not None
        self._gaps.append(_Gap(self.top, message.number - 1, now_ns))
        self.top = message.number
        self.counts["gaps"] += 1

    def _open_deliver(self, message: Message, now_ns: int) -> None:
        self._open(message, now_ns)
        self._deliver(message, now_ns)

    def _fill(self, message: Message, now_ns: int) -> None:
        number = message.number
        self._cut(number, number)
        self._remember(message)
        self.counts["filled"] += 1
        self._put(Deliver(number, message.body, not self.settings.ordered), number, number + 1)

    def _skip(self, message: Message, now_ns: int) -> None:
        assert self.top is not None
        first, last = message.number, message.new_number - 1
        cut = self._cut(first, last)
        if last >= self.top:
            cut.append((self.top, last))
            self.top = last + 1
        for begin, end in cut:
            self.counts["skipped"] += end - begin + 1
            self._put(Skipped(begin, end), begin, end + 1)

    def _open_skip(self, message: Message, now_ns: int) -> None:
        self._open(message, now_ns)
        self._skip(message, now_ns)

    # -- order -----------------------------------------------------------------------------------

    def _put(self, event: Event, first: int, end: int) -> None:
        """Emit the event of the numbers `first` to `end` - 1: at once, or in order."""
        if not self.settings.ordered:
            self._events.append(event)
            self.floor = self._gaps[0].first if self._gaps else self.top or 0
            return
        self._held[first] = (event, end)
        while (found := self._held.pop(self.floor, None)) is not None:
            self._events.append(found[0])
            self.floor = found[1]

    def _remember(self, message: Message) -> None:
        if message.poss_dup:
            return
        self._recent[message.number] = hash(message.body)
        self._recent_numbers.append(message.number)
        if len(self._recent_numbers) > RECENT_MAX:
            self._recent.pop(self._recent_numbers.popleft(), None)

    # -- gaps ------------------------------------------------------------------------------------

    def _gap_at(self, number: int) -> int | None:
        """Return the position of the gap that holds this number; None: no gap does."""
        at = bisect_left(self._gaps, number + 1, key=_first_of) - 1
        return at if at >= 0 and number <= self._gaps[at].last else None

    def _cut(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove these numbers from the gaps; return the ranges that were in any."""
        cut, at = [], max(bisect_left(self._gaps, first + 1, key=_first_of) - 1, 0)
        while at < len(self._gaps) and self._gaps[at].first <= last:
            gap = self._gaps[at]
            begin, end = max(gap.first, first), min(gap.last, last)
            if begin > end:
                at += 1
                continue
            cut.append((begin, end))
            if gap.asked_ns != NEVER:
                self.settled.append((begin, end))
            rest = []
            if gap.first < begin:
                rest.append(_Gap(gap.first, begin - 1, gap.seen_ns, gap.asked_ns))
            if end < gap.last:
                rest.append(_Gap(end + 1, gap.last, gap.seen_ns, gap.asked_ns))
            self._gaps[at : at + 1] = rest
            at += len(rest)
        return cut

    def _asked_from_ns(self, gap: _Gap) -> int:
        """Return when a gap is to be requested."""
        if min(self._passed) > gap.last:
            return gap.seen_ns + min(self.settings.reorder_wait_ns, self.settings.gap_wait_ns)
        return gap.seen_ns + self.settings.gap_wait_ns

    def _given_up_ns(self, gap: _Gap) -> int:
        return NEVER if gap.asked_ns == NEVER else gap.asked_ns + self.settings.recovery_wait_ns

    def _ask_and_give_up(self, now_ns: int) -> None:
        while len(self._gaps) > GAPS_MAX or (
            self._gaps and len(self._held) > self.settings.held_max
        ):
            self.counts["given_up_for_room"] += 1
            self._lose(self._gaps[0])
        for gap in list(self._gaps):
            if gap.asked_ns == NEVER and now_ns >= self._asked_from_ns(gap):
                gap.asked_ns = now_ns
                if self.settings.recovery_wait_ns:
                    self.counts["asked"] += 1
                    self._events.append(Missing(gap.first, gap.last))
            if now_ns >= self._given_up_ns(gap):
                self._lose(gap)

    def _lose(self, gap: _Gap) -> None:
        self._gaps.remove(gap)
        if gap.asked_ns != NEVER:
            self.settled.append((gap.first, gap.last))
        self.counts["lost"] += gap.last - gap.first + 1
        self._put(Lost(gap.first, gap.last), gap.first, gap.last + 1)

    # -- epochs ----------------------------------------------------------------------------------

    def _weigh(self, message: Message, now_ns: int) -> None:
        """Consider a message that does not fit as the beginning of another epoch."""
        self.counts["unfitting"] += 1
        if message.epoch and message.epoch == self.epoch and message.number < (self.top or 0):
            return  # late, or a repetition
        known = self._evidence
        # A publisher says something within `silence_ns`, be it Heartbeats alone.
        stale = now_ns > self._evidence_ns + self.settings.silence_ns
        lower = len(known) < EVIDENCE_LEAST and known and message.number < known[0].number
        if stale or lower:
            known.clear()
        ahead = not known or 0 <= message.number - _end(known[-1]) <= self.settings.jump_max
        if ahead and len(known) < EVIDENCE_MAX:
            known.append(message)
            self._evidence_ns = now_ns
        self._weigh_epoch(now_ns)

    def _is_copy(self, message: Message) -> bool:
        if message.poss_dup:
            return True
        known = self._recent.get(message.number)
        if known is None:
            return False
        if known != hash(message.body):
            self.counts["differing"] += 1
        return known == hash(message.body)

    def _epoch_ns(self) -> int:
        """Return when the evidence suffices for a new epoch."""
        if len(self._evidence) < EVIDENCE_LEAST:
            return NEVER
        return self._fitted_ns + self.settings.epoch_wait_ns

    def _weigh_epoch(self, now_ns: int) -> None:
        if now_ns >= self._epoch_ns():
            self._recognise(now_ns)

    def _recognise(self, now_ns: int) -> None:
        """Take the evidence for another epoch, or for this one far ahead."""
        known, self._evidence = self._evidence, []
        first = known[0].number
        assert self.top is not None
        self.counts["recognised_epochs"] += 1
        self.epoch = max(self.epoch, *(message.epoch for message in known))
        if first > self.top:  # the same epoch, but far ahead
            self._lose_all()
            self.counts["lost"] += first - self.top
            jump, self.top = Lost(self.top, first - 1), first
            self._put(jump, jump.first, first)
        else:
            self._renumber(first)
        for message in known:
            position = self._position_of(message)
            self._verbs[ACTIONS[GROUPS[message.kind], position]](message, now_ns)
            heard = self._bearing(message, position)
            # The epoch is news, whatever its first message is.
            self._note(Heard.ADVANCE if message is known[0] else heard)
        self._fitted_ns = now_ns

    def _renumber(self, number: int) -> None:
        """Drop the old epoch; the new one is first seen at `number`."""
        self._lose_all()
        ended, self._whole_end = self._whole_end, False
        self._events.append(NewEpoch(self.epoch, ended))
        self._recent.clear()
        self._recent_numbers.clear()
        self._evidence.clear()
        self._passed = [0] * self.settings.lines
        self.counts["epochs"] += 1
        self.floor = self.top = NUMBER_FIRST if number <= BEGIN_REACH else number
        if self.top > NUMBER_FIRST:
            self._events.append(Joined(self.top))

    def _lose_all(self) -> None:
        for gap in list(self._gaps):
            self._lose(gap)

    # -- time ------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[Event]:
        """Do what is due by the time; return the resulting events."""
        self._events = []
        self.settled = []
        self._ask_and_give_up(now_ns)
        self._weigh_epoch(now_ns)
        if now_ns >= self._silent_ns():
            self._note(Heard.SILENCE)
        return self._events

    def _silent_ns(self) -> int:
        if self.state in (State.SILENT, State.ENDED):
            return NEVER
        return self._heard_ns + self.settings.silence_ns

    @property
    def deadline_ns(self) -> int:
        """When `tick` has something to do next."""
        deadline = min(self._silent_ns(), self._epoch_ns())
        for gap in self._gaps:
            due = self._asked_from_ns(gap) if gap.asked_ns == NEVER else self._given_up_ns(gap)
            deadline = min(deadline, due)
        return deadline

    @property
    def missing(self) -> Sequence[tuple[int, int]]:
        """Ranges of missing numbers, both ends included."""
        return [(gap.first, gap.last) for gap in self._gaps]

    def finish(self) -> list[Event]:
        """Give up what is missing; return the last events of a receiver that stops.

        An epoch for which there is evidence, and for long enough that it is not the other line's
        lateness, is recognised: nothing will come that speaks against it.
        """
        self._events = []
        self._lose_all()
        apart_ns = self._evidence_ns - self._fitted_ns
        if len(self._evidence) >= EVIDENCE_LEAST and apart_ns >= self.settings.gap_wait_ns:
            self._recognise(self._evidence_ns)
            self._lose_all()
        return self._events


def _end(message: Message) -> int:
    """Return the number expected after a message."""
    return message.number + (message.kind is Kind.APPLICATION)
