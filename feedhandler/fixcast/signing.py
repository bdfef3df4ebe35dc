"""Signatures: they show who sent a datagram, which a key that all receivers have cannot.

A publisher signs its datagrams in batches. `SigningSealer` seals them and, `batch` datagrams or
`period_ns` later, adds one datagram with signatures: the digests of the batch, one for each
datagram, and one Ed25519 signature over all of them with channel, run and first counter. It is a
list of digests, not their chain or their root, so that a receiver that has lost some of a batch can
check the others.

`SealedReceiver` opens datagrams and checks them by one of three modes:

    off     a datagram is delivered when it is authentic: some holder of the key sent it
    before  it is held until a publisher's signature has its digest, and never delivered without
    after   it is delivered at once; where signatures then have another digest, or do not come, an
            `Alarm` says so

`TABLE` has the step for a datagram in each. A lost signature is, in `before`, the loss of its
batch: the session asks for the messages again, and the server signs what it sends with its own key
or the publisher's.

In `before` a counter is marked as received only once it is signed, so that a holder of the key can
neither push the window ahead nor take the place of a true datagram. Alarms are limited to one of a
kind a second, each with how many there were.

Times are wall-clock ns and arguments.
"""

import enum
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Literal, NamedTuple

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.fixcast.crypto import InvalidSignature, PrivateKey, PublicKey, public_key
from feedhandler.fixcast.keys import KeyRing
from feedhandler.fixcast.sealing import (
    AGE_NS_MAX,
    LINES,
    RUN_BYTES,
    RUN_DATAGRAMS_MAX,
    Kind,
    Opened,
    Opener,
    Sealer,
)
from feedhandler.fixcast.session import NEVER

#: Bytes of a digest: SHA-256 cut to 128 bits. The publisher signs only its own datagrams, so an
#: attacker would need a second preimage: another datagram with the digest of a given one.
DIGEST_BYTES = 16
SIGNATURE_BYTES = 64
#: Upper limit on a batch's datagrams, so that their digests fit in one datagram of 1,400 bytes.
BATCH_MAX = 64
#: Upper limit on publishers that a channel's receivers trust: the main one, its spare, servers.
PUBLISHERS_MAX = 8
#: Upper limit on signed digests kept for copies that come later: half a second of skew between
#: lines at 100,000 datagrams a second, and 10 MB.
SIGNED_MAX = 65_536
#: Upper limit on datagrams that wait for a signature, over all runs and lines: a third of a second
#: of the fastest channel; and on their bytes, for those that are longer than usual.
HELD_MAX = 32_768
HELD_BYTES_MAX = 64 << 20
#: Shortest interval between two alarms of one kind.
ALARM_NS = 1_000_000_000
_CONTEXT = b"feedhandler fixcast batch 1\0"
_BATCH = Struct(f">{RUN_BYTES}sQH")


class Check(enum.Enum):
    """Result of comparing a datagram with the signed digests."""

    SIGNED = "signed"
    UNKNOWN = "unknown"
    OTHER = "other"  #: signatures have another digest at its index


class Step(enum.Enum):
    """Steps for a datagram."""

    DELIVER = "deliver"
    HOLD = "hold"
    WATCH = "watch"  #: deliver, and check when the signature comes
    REFUSE = "refuse"  #: drop, and raise an alarm
    ACCUSE = "accuse"  #: it was delivered: raise an alarm
    NOTHING = "nothing"


Mode = Literal["off", "before", "after"]

#: The step by mode and check, when the datagram comes.
TABLE: dict[tuple[Mode, Check], Step] = {
    ("off", Check.SIGNED): Step.DELIVER,
    ("off", Check.UNKNOWN): Step.DELIVER,
    ("off", Check.OTHER): Step.DELIVER,
    ("before", Check.SIGNED): Step.DELIVER,
    ("before", Check.UNKNOWN): Step.HOLD,
    ("before", Check.OTHER): Step.REFUSE,
    ("after", Check.SIGNED): Step.DELIVER,
    ("after", Check.UNKNOWN): Step.WATCH,
    ("after", Check.OTHER): Step.REFUSE,
}
#: The step by mode and check, when a signature comes later for a datagram that waits for it;
#: `UNKNOWN`: none came in time.
LATER: dict[tuple[Mode, Check], Step] = {
    ("before", Check.SIGNED): Step.DELIVER,
    ("before", Check.UNKNOWN): Step.REFUSE,
    ("before", Check.OTHER): Step.REFUSE,
    ("after", Check.SIGNED): Step.NOTHING,
    ("after", Check.UNKNOWN): Step.ACCUSE,
    ("after", Check.OTHER): Step.ACCUSE,
}


def digest_of(datagram: bytes) -> bytes:
    """Return the digest of a sealed datagram."""
    return sha256(datagram).digest()[:DIGEST_BYTES]


def _signed_text(channel: str, batch: bytes) -> bytes:
    return b"%b%b\0%b" % (_CONTEXT, channel.encode(), batch)


# -- the publisher's side
# ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SigningSettings:
    """Bounds of a batch that is signed: `batch` datagrams, or `period_ns` after its first one.

    Raises `ConfigError` where the values are out of range.
    """

    batch: int = BATCH_MAX
    period_ns: int = 1_000_000

    def __post_init__(self) -> None:
        if not 0 < self.batch <= BATCH_MAX or self.period_ns < 0:
            raise ConfigError(
                f"cannot sign {self.batch} datagrams every {self.period_ns} ns",
                f"1 to {BATCH_MAX} datagrams, 0 ns or more",
            )


class SigningSealer:
    """Sealer of a channel's datagrams that also signs them in batches.

    `signer` None: nothing is signed.

    deadline_ns  when `tick` has a batch to sign
    """

    def __init__(
        self,
        ring: KeyRing,
        signer: PrivateKey | None,
        settings: SigningSettings | None = None,
        random: Callable[[int], bytes] = os.urandom,
        run_datagrams_max: int = RUN_DATAGRAMS_MAX,
    ) -> None:
        self.sealer = Sealer(ring, random, run_datagrams_max)
        self.settings = settings or SigningSettings()
        self.deadline_ns = NEVER
        self.counts: Counter[str] = Counter()
        self._channel = ring.channel
        self._signer = signer
        self._digests: list[bytes] = []
        self._run = b""
        self._first = 0

    def seal(self, payload: bytes, now_ns: int) -> list[bytes]:
        """Seal a datagram, and return it with the signatures that are due by it.

        Raises `UsageError` as `Sealer.seal`.
        """
        if self._signer is None:
            return [self.sealer.seal(payload, now_ns)]
        sealer = self.sealer
        out = self.flush(now_ns) if sealer.spent else []
        sealed = sealer.seal(payload, now_ns)
        if not self._digests:
            self._run, self._first = sealer.run, sealer.counter - 1
            self.deadline_ns = now_ns + self.settings.period_ns
        self._digests.append(digest_of(sealed))
        out.append(sealed)
        if len(self._digests) >= self.settings.batch or now_ns >= self.deadline_ns:
            out += self.flush(now_ns)
        return out

    def tick(self, now_ns: int) -> list[bytes]:
        """Return the signatures of a batch whose period is over."""
        return self.flush(now_ns) if now_ns >= self.deadline_ns else []

    def flush(self, now_ns: int) -> list[bytes]:
        """Sign what is not signed yet, and return the signatures if there are any."""
        if not self._digests or self._signer is None:
            return []
        batch = _BATCH.pack(self._run, self._first, len(self._digests)) + b"".join(self._digests)
        self._digests = []
        self.deadline_ns = NEVER
        self.counts["batches"] += 1
        signature = self._signer.sign(_signed_text(self._channel, batch))
        return [self.sealer.seal(batch + signature, now_ns, Kind.SIGNATURES)]


# -- the receiver's side
# -------------------------------------------------------------------------------


class Plain(NamedTuple):
    """An opened datagram to be read, from the line that brought it."""

    payload: bytes
    line: int


class Alarm(NamedTuple):
    """A sign that someone with the channel's key, but no publisher's, sends; or of lost signatures.

    what     "unsigned": no signature came in time; "mismatch": signatures have another digest;
             "signature": signatures that no publisher has made
    run, counter, line  the first of them
    number   how many there were since the last alarm of this kind
    """

    what: Literal["unsigned", "mismatch", "signature"]
    run: bytes
    counter: int
    line: int
    number: int


Event = Plain | Alarm


@dataclass(frozen=True, slots=True)
class VerificationSettings:
    """Settings of receiving sealed datagrams.

    verify      check signatures: "before" delivery, "after", or "off"
    hold_ns     the longest wait for a signature; above the skew of the lines
    held_max    upper limit on waiting datagrams; beyond it the oldest is given up
    age_ns_max  older datagrams are stale; 0: none are
    """

    verify: Mode = "before"
    hold_ns: int = 500_000_000
    held_max: int = HELD_MAX
    age_ns_max: int = AGE_NS_MAX
    lines: int = LINES

    def __post_init__(self) -> None:
        if self.verify not in ("off", "before", "after"):
            raise ConfigError(f"verify = {self.verify!r}", "off, before or after")
        if self.hold_ns < 1 or not 0 < self.held_max <= HELD_MAX:
            raise ConfigError(
                f"cannot hold {self.held_max} datagrams for {self.hold_ns} ns",
                f"1 ns or more, 1 to {HELD_MAX} datagrams",
            )


@dataclass(slots=True, eq=False)
class _Held:
    """A datagram that waits for its signature; without payload it was delivered."""

    opened: Opened
    digest: bytes
    line: int
    until_ns: int


class SealedReceiver:
    """Receiver of one channel's sealed datagrams from its lines.

    `publishers`: public keys of those who may sign, `PUBLISHERS_MAX` at most. `counts`: what
    happened to datagrams; the opener's are in `opener.counts`. Raises `UsageError` for too many
    publishers, `ConfigError` where signatures are to be checked and there are none.
    """

    def __init__(
        self,
        ring: KeyRing,
        publishers: Iterable[bytes],
        settings: VerificationSettings | None = None,
    ) -> None:
        self.settings = settings or VerificationSettings()
        self.opener = Opener(ring, self.settings.lines, self.settings.age_ns_max)
        self.counts: Counter[str] = Counter()
        self._channel = ring.channel
        self._publishers: list[PublicKey] = [public_key(publisher) for publisher in publishers]
        if len(self._publishers) > PUBLISHERS_MAX:
            raise UsageError(
                f"{len(self._publishers)} publishers of channel {ring.channel}",
                f"at most {PUBLISHERS_MAX}",
            )
        if self.settings.verify != "off" and not self._publishers:
            raise ConfigError(
                f"channel {ring.channel} is to be verified, but no publisher's key is known",
                'give public keys, or verify = "off"',
            )
        # Waiting datagrams, by run and counter, and all of them in order of time.
        self._waiting: dict[tuple[bytes, int], list[_Held]] = {}
        self._held: OrderedDict[int, _Held] = OrderedDict()
        # Signed digests by run and counter, and the batches that they came with.
        self._signed: dict[bytes, dict[int, bytes]] = {}
        self._batches: deque[tuple[bytes, bytes, int, int]] = deque()
        self._known: set[bytes] = set()
        self._signed_count = 0
        self._held_bytes = 0
        self._alarm_ns: dict[str, int] = {}
        self._unsaid: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Number of datagrams that wait for a signature."""
        return len(self._held)

    @property
    def deadline_ns(self) -> int:
        """Return when `tick` has something to do next."""
        return next(iter(self._held.values())).until_ns if self._held else NEVER

    def datagram(self, data: bytes, line: int, now_ns: int) -> list[Event]:
        """Take a datagram from a line; return what may be read because of it, and alarms."""
        opened = self.opener.open(data, line, now_ns)
        if opened is None:
            return []
        mode = self.settings.verify
        if opened.kind is Kind.SIGNATURES:
            return self._signatures(opened, line, now_ns)
        if mode == "off":
            self.opener.accept(opened, line)
            return [Plain(opened.payload, line)]
        digest = digest_of(data)
        signed = self._signed.get(opened.session.run, {}).get(opened.counter)
        return self._accept(opened, digest, _check(signed, digest), line, now_ns)

    def tick(self, now_ns: int) -> list[Event]:
        """Give up waiting for signatures that did not come in time; return alarms."""
        events: list[Event] = []
        while self._held and self.deadline_ns <= now_ns:
            events += self._give_up("unsigned", now_ns)
        return events

    def _accept(
        self, opened: Opened, digest: bytes, known: Check, line: int, now_ns: int
    ) -> list[Event]:
        step = TABLE[self.settings.verify, known]
        if step is Step.REFUSE:
            return self._alarm("mismatch", opened, line, now_ns)
        if step is Step.HOLD:
            return self._hold(opened, digest, line, now_ns)
        self.opener.accept(opened, line)
        if step is Step.WATCH:
            watched = opened._replace(payload=b"")
            return [Plain(opened.payload, line), *self._hold(watched, digest, line, now_ns)]
        self.counts["signed"] += 1
        return [Plain(opened.payload, line)]

    def _hold(self, opened: Opened, digest: bytes, line: int, now_ns: int) -> list[Event]:
        """Hold a datagram; where too many are held, give up the oldest."""
        number = opened.session.run, opened.counter
        others = self._waiting.get(number, ())
        if any(other.line == line and other.digest == digest for other in others):
            self.counts["held_twice"] += 1
            return []
        events: list[Event] = []
        self._held_bytes += len(opened.payload)
        while self._held and (
            len(self._held) >= self.settings.held_max or self._held_bytes > HELD_BYTES_MAX
        ):
            events += self._give_up("held_full", now_ns)
        held = _Held(opened, digest, line, now_ns + self.settings.hold_ns)
        self._waiting.setdefault(number, []).append(held)
        self._held[id(held)] = held
        return events

    def _give_up(self, why: str, now_ns: int) -> list[Event]:
        """Give up the oldest held datagram."""
        _, held = self._held.popitem(last=False)
        self._held_bytes -= len(held.opened.payload)
        index = held.opened.session.run, held.opened.counter
        others = self._waiting[index]
        others.remove(held)
        if not others:
            del self._waiting[index]
        self.counts[why] += 1
        return self._alarm("unsigned", held.opened, held.line, now_ns)

    # -- signatures

    def _signatures(self, opened: Opened, line: int, now_ns: int) -> list[Event]:
        """Read a datagram with signatures, and release the datagrams that it names."""
        said = opened.payload
        batch = said[:-SIGNATURE_BYTES]
        if self.settings.verify == "off" or said in self._known:
            self.opener.accept(opened, line)
            self.counts["signatures_known"] += 1
            return []
        if not self._made_by_publisher(batch, said[-SIGNATURE_BYTES:]):
            return self._alarm("signature", opened, line, now_ns)
        self.opener.accept(opened, line)
        self.counts["signatures"] += 1
        opened.session.signed = True
        run, first, count = _BATCH.unpack_from(batch)
        self._remember(said, run, first, batch[_BATCH.size :], count)
        events: list[Event] = []
        for counter in range(first, first + count):
            if (run, counter) in self._waiting:
                events += self._release(run, counter, now_ns)
        return events

    def _made_by_publisher(self, batch: bytes, signature: bytes) -> bool:
        """Return whether a batch is complete and signed by a publisher.

        The publisher that signed last is tried first.
        """
        if len(batch) < _BATCH.size:
            return False
        if len(batch) != _BATCH.size + DIGEST_BYTES * _BATCH.unpack_from(batch)[2]:
            return False
        text = _signed_text(self._channel, batch)
        for at, publisher in enumerate(self._publishers):
            try:
                publisher.verify(signature, text)
            except InvalidSignature:
                continue
            self._publishers.insert(0, self._publishers.pop(at))
            return True
        return False

    def _remember(self, said: bytes, run: bytes, first: int, digests: bytes, count: int) -> None:
        """Keep a batch's digests, without replacing any of the run; drop the oldest batches."""
        table = self._signed.setdefault(run, {})
        for index in range(count):
            at = index * DIGEST_BYTES
            table.setdefault(first + index, digests[at : at + DIGEST_BYTES])
        self._known.add(said)
        self._batches.append((said, run, first, count))
        self._signed_count += count
        while self._signed_count > SIGNED_MAX:
            gone, run, first, count = self._batches.popleft()
            self._known.discard(gone)
            self._signed_count -= count
            table = self._signed[run]
            for counter in range(first, first + count):
                table.pop(counter, None)
            if not table:
                del self._signed[run]

    def _release(self, run: bytes, counter: int, now_ns: int) -> list[Event]:
        """Deliver or refuse the held datagrams of a counter that is signed now."""
        signed = self._signed[run][counter]
        events: list[Event] = []
        for held in self._waiting.pop((run, counter)):
            del self._held[id(held)]
            self._held_bytes -= len(held.opened.payload)
            step = LATER[self.settings.verify, _check(signed, held.digest)]
            if step in (Step.REFUSE, Step.ACCUSE):
                events += self._alarm("mismatch", held.opened, held.line, now_ns)
                continue
            held.opened.session.signed = True
            self.counts["signed"] += 1
            if step is Step.DELIVER:
                self.opener.accept(held.opened, held.line)
                events.append(Plain(held.opened.payload, held.line))
        return events

    def _alarm(
        self,
        what: Literal["unsigned", "mismatch", "signature"],
        opened: Opened,
        line: int,
        now_ns: int,
    ) -> list[Event]:
        """Count a fault; return an alarm unless there was one of this kind recently."""
        self.counts[f"alarm_{what}"] += 1
        self._unsaid[what] += 1
        if now_ns < self._alarm_ns.get(what, 0):
            return []
        self._alarm_ns[what] = now_ns + ALARM_NS
        count = self._unsaid.pop(what)
        return [Alarm(what, opened.session.run, opened.counter, line, count)]


def _check(signed: bytes | None, digest: bytes) -> Check:
    if signed is None:
        return Check.UNKNOWN
    return Check.SIGNED if signed == digest else Check.OTHER
