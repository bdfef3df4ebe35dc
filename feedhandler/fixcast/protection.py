"""Sealers for a publisher's channels and openers for a receiver's, with the keys of a folder.

Sealing and signing use wall-clock time, the sessions monotonic time. Here one is converted to the
other by an offset that the owner of the clocks sets (`offset_ns`, wall clock less monotonic), so
that senders and receivers work with one clock. New and ended keys in the folder are taken by
`refresh`, which is called between datagrams: it checks the folder's time, and reads files only
where that has changed. Where the folder cannot be read the known keys stay.

Importing this needs the library `cryptography` (`fixcast.crypto`).
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from feedhandler.codecs.errors import ConfigError, FeedhandlerError, UsageError
from feedhandler.fixcast.key_files import KeyFolder
from feedhandler.fixcast.keys import KeyRing
from feedhandler.fixcast.reception import RETRANSMISSION
from feedhandler.fixcast.sealing import LINES, OVERHEAD_BYTES
from feedhandler.fixcast.session import NEVER
from feedhandler.fixcast.signing import (
    Alarm,
    Event,
    Mode,
    Plain,
    SealedReceiver,
    SigningSealer,
    VerificationSettings,
)

#: A folder that changed less than this ago is read again: clocks of file systems have steps of some
#: milliseconds, and a second change within the same step does not change the time.
SETTLED_NS = 2_000_000_000
#: A datagram to be read, or an alarm as a JSON object.
Opened = Plain | dict[str, object]


class ChannelSealer:
    """Sealer of a channel's datagrams at monotonic times.

    Where no key is valid a datagram is dropped and counted as `no_key`, never sent in clear.
    """

    overhead_bytes = OVERHEAD_BYTES

    def __init__(self, sealer: SigningSealer, offset_ns: int) -> None:
        self.offset_ns = offset_ns
        self.counts: Counter[str] = Counter()
        self._sealer = sealer

    @property
    def deadline_ns(self) -> int:
        """When `tick` has a batch to sign."""
        due_ns = self._sealer.deadline_ns
        return NEVER if due_ns == NEVER else due_ns - self.offset_ns

    def seal(self, datagram: bytes, now_ns: int) -> list[bytes]:
        """Seal a datagram, and return it with the signatures that are due by it."""
        try:
            return self._sealer.seal(datagram, now_ns + self.offset_ns)
        except UsageError:
            self.counts["no_key"] += 1
            return []

    def tick(self, now_ns: int) -> list[bytes]:
        """Return the signatures of a batch whose period is over."""
        return self.flush(now_ns) if now_ns >= self.deadline_ns else []

    def flush(self, now_ns: int) -> list[bytes]:
        """Sign what is not signed yet, and return the signatures."""
        try:
            return self._sealer.flush(now_ns + self.offset_ns)
        except UsageError:
            self.counts["no_key"] += 1
            return []


class ChannelOpener:
    """Opener of a channel's datagrams at monotonic times."""

    def __init__(self, receiver: SealedReceiver, offset_ns: int) -> None:
        self.offset_ns = offset_ns
        self._receiver = receiver

    @property
    def deadline_ns(self) -> int:
        """When `tick` has something to do next."""
        due_ns = self._receiver.deadline_ns
        return NEVER if due_ns == NEVER else due_ns - self.offset_ns

    def datagram(self, data: bytes, line: int, now_ns: int) -> list[Opened]:
        """Take a datagram of a line or `RETRANSMISSION`; return what may be read, and alarms."""
        index = LINES - 1 if line == RETRANSMISSION else line
        return _from(self._receiver.datagram(data, index, now_ns + self.offset_ns))

    def tick(self, now_ns: int) -> list[Opened]:
        """Give up waiting for signatures that did not come in time; return alarms."""
        return _from(self._receiver.tick(now_ns + self.offset_ns))

    @property
    def opened(self) -> int:
        """Number of datagrams that were accepted."""
        return self._receiver.opener.counts["opened"]

    @property
    def drops(self) -> Counter[str]:
        """Datagrams that were not read, by reason.

        Those of other channels are left out: a shared retransmission group brings them.
        """
        counts = self._receiver.opener.counts + self._receiver.counts
        for name in _NO_DROPS:
            counts.pop(name, None)
        return counts


#: Counts of the opener and of the checks that are no drops.
_NO_DROPS = (
    "opened", "other_channel", "sessions_forgotten",
    "signed", "signatures", "signatures_known", "unsigned",
)  # fmt: skip


def _from(events: Iterable[Event]) -> list[Opened]:
    """Convert events: the line of retransmissions to the session's, alarms to JSON objects."""
    named = (
        each._replace(line=RETRANSMISSION) if each.line == LINES - 1 else each for each in events
    )
    return [described(each) if isinstance(each, Alarm) else each for each in named]


class Protection:
    """The keys of a folder for some channels. Raises `ConfigError` where one has none.

    counts  readings of the folder, and channels whose keys could not be read by one
    """

    def __init__(self, path: Path, offset_ns: int) -> None:
        self.folder = KeyFolder(path)
        self.counts: Counter[str] = Counter()
        self._read_ns = 0
        self._offset_ns = offset_ns
        self._rings: dict[str, KeyRing] = {}
        self._made: list[ChannelSealer | ChannelOpener] = []
        self.folder.channels()

    def sealer(self, channel: str) -> ChannelSealer:
        """Return a sealer with its own run; it signs where the folder has the private key."""
        sealer = SigningSealer(self._ring(channel), self.folder.signer(channel))
        made = ChannelSealer(sealer, self._offset_ns)
        self._made.append(made)
        return made

    def opener(self, channel: str, verify: Mode) -> ChannelOpener:
        """Return an opener of a channel's datagrams."""
        publishers = self.folder.publishers(channel)
        receiver = SealedReceiver(self._ring(channel), publishers, VerificationSettings(verify))
        made = ChannelOpener(receiver, self._offset_ns)
        self._made.append(made)
        return made

    def refresh(self, offset_ns: int, wall_ns: int) -> None:
        """Set the clocks' offset, and take the keys that have come or ended."""
        for made in self._made:
            made.offset_ns = offset_ns
        for ring in self._rings.values():
            ring.expire(wall_ns)
        touched_ns = self.folder.touched_ns()
        if not touched_ns or touched_ns != self._read_ns:
            whole = self._read(wall_ns)
            settled = touched_ns + SETTLED_NS < wall_ns
            self._read_ns = touched_ns if whole and settled else 0

    def _read(self, wall_ns: int) -> bool:
        """Read the folder's keys; return whether those of all channels could be read."""
        self.counts["readings"] += 1
        whole = True
        for channel, ring in self._rings.items():
            try:
                for key in self.folder.ring(channel).listed():
                    if key.until_ns > wall_ns:
                        ring.add(key)
            except FeedhandlerError:
                self.counts["keys_unreadable"] += 1
                whole = False
        return whole

    def _ring(self, channel: str) -> KeyRing:
        if channel not in self._rings:
            ring = self.folder.ring(channel)
            if not len(ring):
                raise ConfigError(
                    f"{self.folder.path}: no key of channel {channel}",
                    "make one: feedhandler fixcast keys new, or have it given: keys fetch",
                )
            self._rings[channel] = ring
        return self._rings[channel]


def described(alarm: Alarm) -> dict[str, object]:
    """Return an alarm as a JSON object."""
    return {"event": "alarm", **alarm._asdict(), "run": alarm.run.hex()}
