"""Sealing: a channel's datagrams encrypted and authenticated with a key of the channel.

A `Sealer` makes sealed datagrams of plain ones, an `Opener` the reverse; `docs/fixcast-security.md`
has the layout byte by byte. The 48 bytes of the header are authenticated with the rest:

    0   magic "FS", version 1, kind (0 data, 1 signatures)
    4   key id, u32
    8   channel, the first 8 bytes of the SHA-256 of its id
    16  run, 16 random bytes drawn when the sender starts
    32  counter of the run's datagrams, u64
    40  time of sending, u64, ns since 1970
    48  ciphertext, then 16 bytes of tag

**No nonce is used twice.** AES-GCM is not used with the channel's key itself: each run has its own
key, derived from the channel's by HKDF with the run as salt, and the nonce is the run's counter. A
counter that only grows never repeats within a run; a restarted process, and each of two publishers
with the same key, draws a new run. MsgSeqNum is not part of the nonce, because Heartbeats and
possible duplicates repeat it. Both lines carry the same sealed bytes, which is one datagram sent
twice.

**A faulty datagram is dropped before its content is read**, and counted by its `Reason`. Replays
are recognised by a window of counters for each run, key and line: the copy of one line is not a
replay of the other's. A datagram that was sent long ago is stale, so that a run whose session was
forgotten cannot be replayed.

Times are wall-clock ns and arguments; `random` is injected.
"""

import enum
import os
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast.crypto import AESGCM, InvalidTag, derived
from feedhandler.fixcast.datagrams import DATAGRAM_BYTES, SEALED, UDP_BYTES_MAX
from feedhandler.fixcast.keys import ChannelKey, KeyRing

MAGIC = SEALED
HEADER_BYTES = 48
TAG_BYTES = 16
#: What sealing adds to a datagram.
OVERHEAD_BYTES = HEADER_BYTES + TAG_BYTES
#: `bytes_max` of the packer of a channel that is sealed.
PLAIN_BYTES_MAX = DATAGRAM_BYTES - OVERHEAD_BYTES
RUN_BYTES = 16
CHANNEL_BYTES = 8
#: Datagrams of one run, then the sealer begins another: with 88 blocks each the data under one key
#: stay below 2^39 blocks, where AES-GCM's advantage for an attacker is 2^-51 (2^2s / 2^129).
RUN_DATAGRAMS_MAX = 1 << 32
#: How many counters up to the highest are tracked; older datagrams are dropped.
WINDOW = 2048
#: Upper limit on an opener's sessions: a publisher, its server, and their restarts.
SESSIONS_MAX = 256
#: Line A, line B and retransmissions.
LINES = 3
#: Older datagrams are stale: above the skew of clocks and lines, below what a replay could use.
AGE_NS_MAX = 30_000_000_000
#: A key is accepted this long before its time, because the publisher's clock may be ahead.
LEEWAY_NS = 1_000_000_000
_INFO = b"feedhandler fixcast datagrams 1\0"
_WINDOW_MASK = (1 << WINDOW) - 1
_COUNTED = Struct(">QQ")
_NONCE = Struct(">IQ")
_HEAD = Struct(">3sBI8s16s")


class Kind(enum.IntEnum):
    """Kinds of sealed datagram."""

    DATA = 0
    SIGNATURES = 1


class Reason(enum.Enum):
    """Reason to drop a datagram."""

    TRUNCATED = "truncated"
    NOT_SEALED = "not_sealed"
    KIND_UNKNOWN = "kind_unknown"
    OTHER_CHANNEL = "other_channel"
    KEY_UNKNOWN = "key_unknown"
    KEY_NOT_VALID = "key_not_valid"
    STALE = "stale"
    TOO_EARLY = "too_early"
    REPLAYED = "replayed"
    BEHIND_WINDOW = "behind_window"
    FORGED = "forged"


def channel_hash(channel: str) -> bytes:
    """Return the 8 bytes by which a header names a channel."""
    return sha256(channel.encode()).digest()[:CHANNEL_BYTES]


def run_cipher(key: ChannelKey, run: bytes) -> AESGCM:
    """Return the cipher of one run under one key of a channel."""
    return AESGCM(derived(key.secret, run, _INFO + key.channel.encode()))


class Sealer:
    """A sealer of one channel's datagrams, with the ring's key that is current at the time.

    run      the current run
    counter  counter of its next datagram
    """

    def __init__(
        self,
        ring: KeyRing,
        random: Callable[[int], bytes] = os.urandom,
        run_datagrams_max: int = RUN_DATAGRAMS_MAX,
    ) -> None:
        if not 0 < run_datagrams_max <= RUN_DATAGRAMS_MAX:
            raise UsageError(
                f"a run cannot have {run_datagrams_max} datagrams", f"1 to {RUN_DATAGRAMS_MAX}"
            )
        self._ring = ring
        self._random = random
        self._max = run_datagrams_max
        self.run = random(RUN_BYTES)
        self.counter = 0
        self._seen_changes = -1
        self._until_ns = 0
        self._heads: tuple[bytes, ...] = ()
        self._cipher: AESGCM | None = None

    @property
    def spent(self) -> bool:
        """Whether the next datagram begins another run."""
        return self.counter >= self._max

    def seal(self, payload: bytes, now_ns: int, kind: Kind = Kind.DATA) -> bytes:
        """Seal a datagram. Raises `UsageError` where no key is valid or it is too long for UDP."""
        if len(payload) > UDP_BYTES_MAX - OVERHEAD_BYTES:
            raise UsageError(
                f"a datagram of {len(payload)} bytes cannot be sealed",
                f"at most {UDP_BYTES_MAX - OVERHEAD_BYTES}",
            )
        if self.counter >= self._max:
            self.run, self.counter = self._random(RUN_BYTES), 0
            self._seen_changes = -1
        if now_ns >= self._until_ns or self._ring.changes != self._seen_changes:
            self._choose(now_ns)
        counter = self.counter
        self.counter += 1
        header = self._heads[kind] + _COUNTED.pack(counter, now_ns)
        assert self._cipher is not None
        return header + self._cipher.encrypt(_NONCE.pack(0, counter), payload, header)

    def _choose(self, now_ns: int) -> None:
        """Choose the key to use now. The counter goes on: a run may outlast a key."""
        key, self._until_ns = self._ring.sending(now_ns)
        self._seen_changes = self._ring.changes
        self._cipher = run_cipher(key, self.run)
        channel = channel_hash(key.channel)
        self._heads = tuple(_HEAD.pack(MAGIC, kind, key.id, channel, self.run) for kind in Kind)


class ReplayWindow:
    """Counters that were received: the highest one, and which of the `WINDOW` up to it."""

    __slots__ = ("_bits", "highest")

    def __init__(self) -> None:
        self.highest = -1
        self._bits = 0

    def fault(self, counter: int) -> Reason | None:
        """Return why a counter is not new; None where it is new."""
        behind = self.highest - counter
        if behind < 0:
            return None
        if behind >= WINDOW:
            return Reason.BEHIND_WINDOW
        return Reason.REPLAYED if self._bits >> behind & 1 else None

    def accept(self, counter: int) -> None:
        """Mark a counter as received."""
        ahead = counter - self.highest
        if ahead > 0:
            self._bits = (self._bits << ahead | 1) & _WINDOW_MASK if ahead < WINDOW else 1
            self.highest = counter
        elif ahead > -WINDOW:
            self._bits |= 1 << -ahead


class Session:
    """One run under one key, at a receiver.

    signed   whether a publisher's signature has named the run
    used_ns  when something authentic of it came last
    """

    __slots__ = ("cipher", "key", "run", "signed", "used_ns", "windows")

    def __init__(self, key: ChannelKey, run: bytes, lines: int) -> None:
        self.key = key
        self.run = run
        self.cipher = run_cipher(key, run)
        self.windows = tuple(ReplayWindow() for _ in range(lines))
        self.signed = False
        self.used_ns = 0


class Opened(NamedTuple):
    """An authentic datagram from some holder of the key; only signatures say which."""

    kind: Kind
    session: Session
    counter: int
    payload: bytes


class Opener:
    """An opener of one channel's datagrams; `age_ns_max` 0: datagrams of any age are accepted.

    counts  datagrams that were dropped, by reason, and `opened`
    """

    def __init__(self, ring: KeyRing, lines: int = LINES, age_ns_max: int = AGE_NS_MAX) -> None:
        self._ring = ring
        self._lines = lines
        self._age_ns_max = age_ns_max
        self._channel = channel_hash(ring.channel)
        self._sessions: dict[bytes, Session] = {}
        self.counts: Counter[str] = Counter()

    def open(self, datagram: bytes, line: int, now_ns: int) -> Opened | None:
        """Open a datagram from a line; return None where it was dropped.

        Its counter is not marked as received: the caller that accepts the datagram calls `accept`.
        """
        if len(datagram) < OVERHEAD_BYTES:
            return self._drop(Reason.TRUNCATED)
        name = datagram[4:32]
        session = self._sessions.get(name)
        if session is not None and self._is_replaced(session.key):
            session = None
        fresh = session is None
        found = session or self._find(datagram)
        if isinstance(found, Reason):
            return self._drop(found)
        counter, sent_ns = _COUNTED.unpack_from(datagram, 32)
        fault = self._fault(datagram, found, sent_ns, now_ns) or found.windows[line].fault(counter)
        if fault is not None:
            return self._drop(fault)
        try:
            payload = found.cipher.decrypt(
                _NONCE.pack(0, counter), datagram[HEADER_BYTES:], datagram[:HEADER_BYTES]
            )
        except InvalidTag:
            return self._drop(Reason.FORGED)
        found.used_ns = now_ns
        if fresh:
            self._remember(name, found)
        return Opened(Kind(datagram[3]), found, counter, payload)

    def accept(self, opened: Opened, line: int) -> None:
        """Mark a datagram as received from this line: a second copy is a replay."""
        opened.session.windows[line].accept(opened.counter)
        self.counts["opened"] += 1

    @property
    def sessions(self) -> int:
        """Number of known sessions: runs under keys."""
        return len(self._sessions)

    def _is_replaced(self, known: ChannelKey) -> bool:
        """Return whether the ring has another key of this id now.

        Where all keys of a channel had ended, the next one may have an id that was used before.
        """
        key = self._ring.get(known.id)
        return key is not None and key.secret != known.secret

    def _find(self, datagram: bytes) -> Session | Reason:
        """Return a session for an unknown run, kept only once its datagram is authentic."""
        _, _, key_id, channel, run = _HEAD.unpack_from(datagram)
        if datagram[:3] != MAGIC:
            return Reason.NOT_SEALED
        if channel != self._channel:
            return Reason.OTHER_CHANNEL
        key = self._ring.get(key_id)
        return Session(key, run, self._lines) if key else Reason.KEY_UNKNOWN

    def _fault(self, datagram: bytes, session: Session, sent_ns: int, now_ns: int) -> Reason | None:
        """Return the fault of a header, as far as it can be known without the tag."""
        if datagram[:3] != MAGIC:
            return Reason.NOT_SEALED
        if datagram[3] > Kind.SIGNATURES:
            return Reason.KIND_UNKNOWN
        key = self._ring.get(session.key.id)
        if key is None or not key.from_ns - LEEWAY_NS <= now_ns < key.until_ns:
            return Reason.KEY_NOT_VALID
        if self._age_ns_max and now_ns - sent_ns > self._age_ns_max:
            return Reason.STALE
        if self._age_ns_max and sent_ns - now_ns > self._age_ns_max:
            return Reason.TOO_EARLY
        return None

    def _remember(self, name: bytes, session: Session) -> None:
        """Keep a session; where there are too many, drop one.

        Sessions that no signature has named go first, of these the one that was silent longest.
        """
        if len(self._sessions) >= SESSIONS_MAX:
            oldest = min(
                self._sessions,
                key=lambda each: (self._sessions[each].signed, self._sessions[each].used_ns),
            )
            del self._sessions[oldest]
            self.counts["sessions_forgotten"] += 1
        self._sessions[name] = session

    def _drop(self, reason: Reason) -> Opened | None:
        self.counts[reason.value] += 1
        return None
