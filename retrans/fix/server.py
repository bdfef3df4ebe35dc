"""The server of Resend Requests: many receivers' requests for one loss get one answer.

A `ResendServer` has the stores of its channels, which its owner fills with what is published; the
server need not be the publisher. Requests go in, messages to send come out, to all on a
retransmission group or the main one, or to the one who asked in its TCP session. By multicast a
range is answered once within `once_ns`, for all clients.

Wrong requests are ignored, without an answer, and counted by reason. Messages that the store no
longer holds are not answered, or are skipped by a GapFill, as set; numbers that the publisher left
out are always skipped. A GapFill begins with the first number that it skips.

A long answer is given in parts, one at each `tick`, in turns with the others: the server may run
beside a publisher, which must not wait for it. What is for a client that reads slowly waits as a
range, not as messages, until the owner says that it goes on (`resume`).

Times are integer ns and arguments.
"""

from collections import Counter, deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Literal, NamedTuple

from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.fix.request import ResendRequest
from feedhandler.retrans.ranges import RangeSet
from feedhandler.retrans.store import PacketStore

NEVER = (1 << 63) - 1
#: Most ranges that wait to be answered, over all channels and clients.
WAITING_MAX = 10_000
#: Most messages that a request may ask for: more is a matter for a snapshot.
REQUEST_MESSAGES_MAX = 100_000
#: Most answered ranges of a channel that are remembered.
ANSWERED_MAX = 1024
#: Most numbers that are answered at a time: some milliseconds' work.
PART_NUMBERS = 1000
#: Stands for all clients in place of one.
ALL = -1


@dataclass(frozen=True, slots=True)
class ResendSettings:
    """Settings of answers to requests.

    answer    at "once", on a "timer" every `timer_ns`, or "never"
    route     by the retransmission "group", the "main" group, or the "tcp" session
    once_ns   a range is not answered again for so long: less than receivers wait before they repeat
    poss_dup  answers have PossDupFlag
    unheld    what is no longer held is "skip"ped by a GapFill, or "ignore"d
    """

    answer: Literal["once", "timer", "never"] = "once"
    timer_ns: int = 5_000_000
    route: Literal["group", "main", "tcp"] = "group"
    once_ns: int = 20_000_000
    poss_dup: bool = False
    unheld: Literal["skip", "ignore"] = "ignore"
    request_messages_max: int = REQUEST_MESSAGES_MAX


class Answer(NamedTuple):
    """Messages to send, in order; `client` is the client of the session, or `ALL`."""

    channel: str
    client: int
    messages: list[bytes]


class ServedChannel:
    """A channel that is served: its store, and the functions that make its messages.

    gap_fill  (first number skipped, number after the last) as a message
    repeated  a message with PossDupFlag
    skipped   numbers that the publisher left out
    withheld  numbers that are not answered though they are held: a loss on purpose
    """

    def __init__(
        self,
        store: PacketStore,
        gap_fill: Callable[[int, int], bytes],
        repeated: Callable[[bytes], bytes],
    ) -> None:
        self.store = store
        self.gap_fill = gap_fill
        self.repeated = repeated
        self.skipped = RangeSet()
        self.withheld = RangeSet()
        self.answered: deque[tuple[int, int, int, int]] = deque()
        self._store_epoch = store.epoch

    @property
    def end(self) -> int:
        """The number after the last that was sent or left out; 0 where there is none."""
        self.follow()
        return max(self.store.end, self.skipped.highest + 1 if self.skipped else 0)

    def skip(self, first: int, last: int) -> None:
        """Record that the publisher leaves out `first` to `last`."""
        self.follow()
        self.skipped.add(first, last)

    def withhold(self, first: int, last: int) -> None:
        """Leave `first` to `last` unanswered though they are held: a loss on purpose."""
        self.follow()
        self.withheld.add(first, last)

    def follow(self) -> None:
        """Forget what belongs to a sequence epoch before the store's present one."""
        if self._store_epoch != self.store.epoch:
            self._store_epoch = self.store.epoch
            self.answered.clear()
            self.skipped.clear()
            self.withheld.clear()


class _Wanted(NamedTuple):
    channel: str
    client: int
    first: int
    last: int


class ResendServer:
    """Answers requests for the channels that were added."""

    def __init__(self, settings: ResendSettings) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self.deadline_ns = NEVER
        self._channels: dict[str, ServedChannel] = {}
        self._waiting: deque[_Wanted] = deque()

    def add(self, name: str, channel: ServedChannel) -> None:
        """Serve a channel under this name. Raises `UsageError` where the name is taken."""
        if name in self._channels:
            raise UsageError(f"channel {name} is served already", "add it once")
        self._channels[name] = channel

    def request(self, request: ResendRequest | None, client: int, now_ns: int) -> None:
        """Take a client's request (None: an unreadable one); `tick` returns its answers."""
        self.counts["requests"] += 1
        if (fault := self._fault(request)) or request is None:
            self.counts[fault] += 1
            return
        channel = self._channels[request.channel]
        last = request.end or channel.end - 1
        whose = client if self.settings.route == "tcp" else ALL
        fresh = self._fresh(channel, whose, request.begin, last, now_ns)
        if not fresh:
            self.counts["repeated"] += 1
        if self.settings.answer == "never":
            self.counts["unanswered"] += 1
            return
        for first, end in fresh:
            if len(self._waiting) >= WAITING_MAX:
                self.counts["refused_for_room"] += 1
                return
            self._waiting.append(_Wanted(request.channel, whose, first, end))
            channel.answered.append((now_ns + self._memory_ns(), whose, first, end))
            if len(channel.answered) > ANSWERED_MAX:
                channel.answered.popleft()
        if self._waiting and self.deadline_ns == NEVER:
            timed = self.settings.answer == "timer"
            self.deadline_ns = now_ns + self.settings.timer_ns if timed else now_ns

    def tick(self, now_ns: int, behind: Container[int] = ()) -> list[Answer]:
        """Return the answers that are due, as far as `PART_NUMBERS`; the rest is due at once.

        None is for a client that is `behind`: its answers wait until `resume`.
        """
        if now_ns < self.deadline_ns:
            return []
        answers, left, kept = [], PART_NUMBERS, []
        while self._waiting and left:
            wanted = self._waiting.popleft()
            if wanted.client in behind:
                kept.append(wanted)
                continue
            last = min(wanted.last, wanted.first + left - 1)
            left -= last - wanted.first + 1
            if last < wanted.last:
                self._waiting.append(wanted._replace(first=last + 1))
            messages = self._messages(self._channels[wanted.channel], wanted._replace(last=last))
            if messages:
                self.counts["answers"] += 1
                self.counts["messages"] += len(messages)
                answers.append(Answer(wanted.channel, wanted.client, messages))
            else:
                self.counts["not_held"] += 1
        self.deadline_ns = now_ns if self._waiting else NEVER
        self._waiting.extendleft(reversed(kept))
        return answers

    def resume(self, now_ns: int) -> None:
        """Let `tick` look again at what waits: a client is no longer behind."""
        if self._waiting:
            self.deadline_ns = min(self.deadline_ns, now_ns)

    def forget(self, client: int) -> None:
        """Drop the answers that wait for a client that is gone."""
        self._waiting = deque(each for each in self._waiting if each.client != client)

    def _fault(self, request: ResendRequest | None) -> str:
        """Return the fault of a request, as its counter's name, or ""."""
        if request is None:
            return "unreadable"
        channel = self._channels.get(request.channel)
        if channel is None:
            return "unknown_channel"
        # A GapFill may be the last that was sent, and be lost.
        last = request.end or channel.end - 1
        if request.begin < 1 or last < request.begin:
            return "empty" if request.end else "too_high"
        if last >= channel.end:
            return "too_high"
        return "too_long" if last - request.begin >= self.settings.request_messages_max else ""

    def _memory_ns(self) -> int:
        waits = self.settings.timer_ns if self.settings.answer == "timer" else 0
        return self.settings.once_ns + waits

    def _fresh(
        self, channel: ServedChannel, whose: int, first: int, last: int, now_ns: int
    ) -> list[tuple[int, int]]:
        """Return the parts of a range that were not answered to the same receivers of late."""
        channel.follow()
        while channel.answered and channel.answered[0][0] <= now_ns:
            channel.answered.popleft()
        done = RangeSet((begin, end) for _, to, begin, end in channel.answered if to == whose)
        return done.missing_in(first, last)

    def _messages(self, channel: ServedChannel, wanted: _Wanted) -> list[bytes]:
        """Return the messages of a range, with GapFills for skipped ones."""
        messages: list[bytes] = []
        at = wanted.first
        for first, end, data in channel.store.packets(wanted.first, wanted.last + 1):
            messages += self._skips(channel, at, first - 1)
            at = end
            if not channel.withheld.within(first, end - 1):
                messages.append(channel.repeated(data) if self.settings.poss_dup else data)
        return messages + self._skips(channel, at, wanted.last)

    def _skips(self, channel: ServedChannel, first: int, last: int) -> list[bytes]:
        if first > last:
            return []
        if self.settings.unheld == "skip":
            ranges = [(first, last)]
        else:
            ranges = channel.skipped.within(first, last)
        self.counts["gap_fills"] += len(ranges)
        return [channel.gap_fill(begin, end + 1) for begin, end in ranges]
