"""The publisher's side of a channel's session: numbers, Logon, Heartbeats, Time Beacons, Logout.

One `PublisherSession` numbers one channel. Application messages take numbers; administrative ones
carry the next number and take none. All go one way, so the session is the publisher's alone: it
begins with `start`, and `tick` returns what is due.

    IDLE ──start──▶ LIVE ──stop──▶ ENDED ──start──▶ LIVE (a new epoch)

`TABLE` has what is allowed in which state; everything else raises `UsageError`. A sequence
epoch is identified by a number that grows from one to the next, such as the time of its start.

`fixcast.messages` encodes; times are integer ns and arguments.
"""

import enum
from collections import Counter
from dataclasses import dataclass

from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast.values import NUMBER_FIRST, NUMBER_MAX, Kind, Message

#: A deadline that never comes.
NEVER = (1 << 63) - 1


class State(enum.Enum):
    """States of a publisher's session."""

    IDLE = "idle"
    LIVE = "live"
    ENDED = "ended"


class Input(enum.Enum):
    """Inputs of the session."""

    START = "start"
    PUBLISH = "publish"
    SKIP = "skip"
    DUE = "due"
    STOP = "stop"


#: The next state; pairs that are missing are refused.
TABLE = {
    (State.IDLE, Input.START): State.LIVE,
    (State.LIVE, Input.PUBLISH): State.LIVE,
    (State.LIVE, Input.SKIP): State.LIVE,
    (State.LIVE, Input.DUE): State.LIVE,
    (State.LIVE, Input.STOP): State.ENDED,
    (State.ENDED, Input.START): State.LIVE,
    # Late timers and a second stop are harmless.
    (State.IDLE, Input.DUE): State.IDLE,
    (State.ENDED, Input.DUE): State.ENDED,
    (State.IDLE, Input.STOP): State.IDLE,
    (State.ENDED, Input.STOP): State.ENDED,
}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Intervals of a publisher's session, ns; 0: never.

    heartbeat_ns  a Heartbeat when nothing with a number was sent for so long
    logon_ns      the Logon again, which gives late receivers the interval of Heartbeats
    beacon_ns     a Time Beacon, whatever else is sent
    """

    heartbeat_ns: int = 1_000_000_000
    logon_ns: int = 30_000_000_000
    beacon_ns: int = 0


class PublisherSession:
    """The numbers of one channel, and its administrative messages.

    state      state of the session
    epoch      the present sequence epoch
    next       MsgSeqNum of the next application message
    """

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        self.state = State.IDLE
        self.epoch = 0
        self.next = NUMBER_FIRST
        self.counts: Counter[str] = Counter()
        self._heartbeat_ns = self._logon_ns = self._beacon_ns = NEVER

    def start(self, now_ns: int, epoch: int, next_number: int = NUMBER_FIRST) -> Message:
        """Begin `epoch`, or continue it at `next_number`; return the Logon.

        Raises `UsageError` where the epoch is below the preceding one, or a number is taken
        again.
        """
        self._step(Input.START)
        if (epoch, next_number) < (self.epoch, self.next) and self.epoch:
            raise UsageError(
                f"epoch {epoch} from {next_number} comes after {self.epoch}, which"
                f" has reached {self.next}",
                "a new epoch is higher than the one before, such as the time",
            )
        self.epoch, self.next = epoch, next_number
        self._logon_ns = now_ns
        self._heartbeat_ns = _after(now_ns, self.settings.heartbeat_ns)
        self._beacon_ns = _after(now_ns, self.settings.beacon_ns)
        return self._logon(now_ns)

    def check(self) -> None:
        """Check that application messages may be sent now. Raises `UsageError` where not."""
        self._step(Input.PUBLISH)

    def publish(self, now_ns: int, count: int = 1) -> int:
        """Take the numbers of `count` application messages sent now; return the first.

        Raises `UsageError` where so many are not left (`exhausted`): then a new epoch is
        needed.
        """
        self._step(Input.PUBLISH)
        if self.next + count - 1 > NUMBER_MAX:
            raise UsageError("the epoch has no number left", "begin a new epoch")
        number = self.next
        self.next += count
        self._heartbeat_ns = _after(now_ns, self.settings.heartbeat_ns)
        return number

    @property
    def exhausted(self) -> bool:
        """Whether the epoch has given its last number."""
        return self.next > NUMBER_MAX

    def skip(self, next_number: int, now_ns: int) -> Message:
        """Leave out the numbers up to `next_number`; return the GapFill that says so.

        Raises `UsageError` where `next_number` is not ahead.
        """
        self._step(Input.SKIP)
        if not self.next < next_number <= NUMBER_MAX:
            raise UsageError(f"cannot skip from {self.next} to {next_number}", "skip forward")
        skipped = Message(Kind.GAP_FILL, self.next, b"", next_number, self.epoch)
        self.next = next_number
        self._heartbeat_ns = _after(now_ns, self.settings.heartbeat_ns)
        return skipped

    def tick(self, now_ns: int) -> list[Message]:
        """Return the messages that are due by now."""
        self._step(Input.DUE)
        messages = []
        if now_ns >= self._logon_ns:
            messages.append(self._logon(now_ns))
        if now_ns >= self._heartbeat_ns:
            messages.append(self._say(Kind.HEARTBEAT))
            self._heartbeat_ns = _after(now_ns, self.settings.heartbeat_ns)
        if now_ns >= self._beacon_ns:
            messages.append(Message(Kind.BEACON, epoch=self.epoch))
            self._beacon_ns = _after(now_ns, self.settings.beacon_ns)
            self.counts["beacon"] += 1
        return messages

    def stop(self, now_ns: int) -> list[Message]:
        """End the session; return the Logout, or nothing where the session is not live."""
        was = self.state
        self._step(Input.STOP)
        if was is not State.LIVE:
            return []
        self._heartbeat_ns = self._logon_ns = self._beacon_ns = NEVER
        return [self._say(Kind.LOGOUT)]

    @property
    def deadline_ns(self) -> int:
        """When `tick` has something to send next."""
        return min(self._heartbeat_ns, self._logon_ns, self._beacon_ns)

    def _logon(self, now_ns: int) -> Message:
        self._logon_ns = _after(now_ns, self.settings.logon_ns)
        return self._say(Kind.LOGON)

    def _say(self, kind: Kind) -> Message:
        self.counts[kind.name.lower()] += 1
        return Message(kind, self.next, epoch=self.epoch)

    def _step(self, event: Input) -> None:
        state = TABLE.get((self.state, event))
        if state is None:
            raise UsageError(
                f"a session that is {self.state.value} cannot {event.value}",
                "start it first" if self.state is not State.LIVE else "stop it first",
            )
        self.state = state


def _after(now_ns: int, interval_ns: int) -> int:
    return now_ns + interval_ns if interval_ns else NEVER
