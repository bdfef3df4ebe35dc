"""A hostile broker: replies, credit, outcomes and ends, mutated.

The publisher's counterpart of `frame_mutator`: phrases of a few frames that make sense by
themselves, about the one link that the publisher has, mutated by the same means, kept in a pool and
put behind each other behind a broker's beginning (SASL, open, begin, attach, credit). `Hearing`
reads both ways independently of the engine, and says which messages the broker may be taken to have
accepted: nothing else may have left the publisher's window.
"""

import functools
import struct

from tests.fuzz.frame_mutator import EDGES, WILD, Mutator, Part, copy_of
from tests.support.amqp_wire import (
    ACCEPTED,
    AMQP_HEADER,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    ERROR,
    FLOW,
    MAP32,
    OPEN,
    SASL_HEADER,
    SOURCE,
    TARGET,
    TRANSFER,
    Frame,
    Value,
    decode,
    described,
    split,
    ubyte,
    ushort,
    wire,
)

#: Phrases kept to be put together; new ones, frames of one, and phrases in each conversation.
POOL_PHRASES, NEW_PHRASES, FRAMES_MAX, PHRASES_MAX = 400, 1, 14, 24
#: Messages that a phrase's outcomes are about: those that a conversation may have brought.
MESSAGES = 64
#: The share of a beginning's frames that are mutated, and of phrases that end link or connection.
HARMED, ENDS = 0.03, 0.03
#: Constructors of a delivery-id, or null; what the engine makes of others is anybody's guess.
UINTS = (0x40, 0x43, 0x52, 0x70)
#: Frames whose meaning is remembered: phrases come again and again.
FRAMES_KEPT = 20_000
#: Accepted, rejected, released, modified, received, and an unknown one.
STATES = (ACCEPTED, ACCEPTED, ACCEPTED, 0x25, 0x26, 0x27, 0x23, 0x99)
MODIFIED = Value(0x53, 0x27)


class Script(Mutator):
    """Endless conversations of a broker, the same for the same seed."""

    def __init__(self, seed: int, link: str) -> None:
        self.link = link
        super().__init__(seed)

    # -- what any broker says ---------------------------------------------------------------

    @staticmethod
    def opening() -> list[bytes | Frame]:
        """All that a broker says before it has heard of a session."""
        properties = wire([b"product", "RabbitMQ", b"version", "3.10.8"])
        properties.code = MAP32
        rest = (None, None, None, None, None, properties)  # idle time-out ... capabilities
        return [
            SASL_HEADER,
            Frame(0, described(0x40, Value(0xA3, b"ANONYMOUS")), kind=1),
            Frame(0, described(0x44, ubyte(0)), kind=1),
            AMQP_HEADER,
            Frame(0, described(OPEN, "broker", None, 65_536, ushort(255), *rest)),
        ]

    def answer(self, credit: int = 50) -> list[bytes | Frame]:
        """Return the broker's answer to the session and the link, with this credit."""
        target = described(TARGET, "/exchange/x")
        fields = (self.link, 0, True, ubyte(0), ubyte(0), described(SOURCE), target)
        return [
            Frame(0, described(BEGIN, ushort(0), 0, 2**31 - 1, 2048, 255)),
            Frame(0, described(ATTACH, *fields)),
            self.grant(credit),
        ]

    @staticmethod
    def grant(credit: int) -> Frame:
        return Frame(0, described(FLOW, 0, 2**31 - 1, 0, 2048, 0, 0, credit))

    @staticmethod
    def accept(first: int, last: int) -> Frame:
        return Frame(0, described(DISPOSITION, True, first, last, True, described(ACCEPTED)))

    # -- what is mutated --------------------------------------------------------------------

    def phrase(self, handle: int = 0) -> list[Part]:
        """A few frames about the link, most of them mutated."""
        rng = self.rng
        makes = (self._outcome, self._outcome, self._outcome, self._grant, self._oddity)
        frames = [rng.choice(makes)(handle) for _ in range(rng.randrange(2, FRAMES_MAX))]
        if rng.random() < ENDS:
            frames.append(self._end(handle))
        return [self.mutated(frame, rng.random() < WILD) for frame in frames]

    def _outcome(self, handle: int) -> Frame:
        rng = self.rng
        first = rng.randrange(MESSAGES) if rng.random() < 0.9 else rng.choice(EDGES) % 2**32
        last = first + rng.choice((0, 0, 1, 7, MESSAGES))
        if rng.random() < 0.01:
            last = rng.choice(EDGES)
        state = described(rng.choice(STATES))
        if rng.random() < 0.3:
            state.value = [self._map() for _ in range(rng.randrange(4))]
        elif state.descriptor == MODIFIED and rng.random() < 0.2:
            state.value = [wire(True), wire(True)]  # undeliverable here
        elif rng.random() < 0.2:
            state.value = [described(ERROR, Value(0xA3, b"test:refused"), "no \u20ac" * 20)]
        role, settled = rng.random() < 0.95, rng.random() < 0.8
        shown = None if rng.random() < 0.05 else state
        return Frame(0, described(DISPOSITION, role, first, last % 2**32, settled, shown))

    def _grant(self, handle: int) -> Frame:
        rng = self.rng
        credit = rng.choice((0, 1, 20, 100, 1000, rng.choice(EDGES) % 2**32))
        window = rng.choice((0, 1, 2048, 2**31 - 1, rng.choice(EDGES) % 2**32))
        count = rng.choice((0, 0, 0, 10, rng.choice(EDGES) % 2**32))
        whose = None if rng.random() < 0.1 else handle
        drain, echo = rng.random() < 0.2, rng.random() < 0.2
        return Frame(
            0, described(FLOW, 0, window, 0, 2048, whose, count, credit, None, drain, echo)
        )

    def _oddity(self, handle: int) -> Frame:
        """A silence, a message for the publisher, a link or session that was not asked for."""
        rng = self.rng
        which = rng.randrange(12)
        if which == 0:
            performative = described(TRANSFER, handle, rng.randrange(9), Value(0xA0, b"t"), 0, True)
            return Frame(0, performative, rng.randbytes(rng.randrange(200)))
        if which == 1:
            name = rng.choice((self.link, f"link {rng.randrange(99)}"))
            fields = (name, rng.randrange(1, 99), rng.random() < 0.5, ubyte(0), ubyte(0))
            return Frame(0, described(ATTACH, *fields, described(SOURCE), described(TARGET)))
        if which == 2:
            return Frame(rng.randrange(1, 9), described(BEGIN, None, 0, 2048, 2048, 255))
        return Frame(0, None)

    def _end(self, handle: int) -> Frame:
        rng = self.rng
        error = described(ERROR, Value(0xA3, b"test:over"), "it is over")
        shown = error if rng.random() < 0.5 else None
        which = rng.choice((DETACH, DETACH, DETACH, END, CLOSE, OPEN))
        if which == DETACH:
            return Frame(0, described(DETACH, handle, rng.random() < 0.7, shown))
        return Frame(0, described(which, shown))

    def _parts(self, said: list[bytes | Frame]) -> list[Part]:
        rng = self.rng
        return [
            Part(each, False)
            if isinstance(each, bytes)
            else self.mutated(copy_of(each), True)
            if rng.random() < HARMED
            else Part(each.encode(), False)
            for each in said
        ]

    def lines(self, shares: int) -> list[list[Part]]:
        """A conversation: the opening, the answer to the link, then so many shares of phrases."""
        rng = self.rng
        for _ in range(NEW_PHRASES):
            self.pool[rng.randrange(POOL_PHRASES)] = self.phrase()
        indexes = rng.sample(range(POOL_PHRASES), rng.randrange(shares, PHRASES_MAX))
        parts = [self._flip(part) for index in indexes for part in self.pool[index]]
        size = -(-len(parts) // shares)
        rest = [parts[at : at + size] for at in range(0, len(parts), size)]
        return [self._parts(self.opening()), self._parts(self.answer()), *rest]


class Hearing:
    """One connection's transfers, by delivery-id, and what was said of them."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.payloads: dict[int, bytes] = {}
        self._held = self._said = b""

    def hear(self, data: bytes) -> None:
        """Record which message has which delivery-id, by the bytes that the publisher sent."""
        self._held += data
        for part in split(self._held):
            if isinstance(part, Frame) and part.code == TRANSFER:
                index, tag = part.field(1), part.field(2)
                if isinstance(tag, bytes) and index not in self.numbers:
                    self.numbers[index] = int.from_bytes(tag, "little")
                    self.payloads[index] = part.payload
        self._held = self._held[_whole(self._held) :]

    def accepted(self, data: bytes) -> set[int]:
        """Of the messages heard so far, those that these bytes of the broker's may accept.

        Where a field is not what it should be, what the engine may read instead counts too; where
        a frame cannot be read here at all, everything does.
        """
        found: set[int] = set()
        data, at = self._said + data, 0
        while at + 8 <= len(data):
            if data[at : at + 4] == b"AMQP":
                at += 8
                continue
            size, offset = struct.unpack_from(">IB", data, at)
            if size < 8 or at + size > len(data):
                break
            named = accepted_by(data[at + 4 * offset : at + size])
            if named is None:
                named = [(0, 2**32 - 1)]
            for first, last in named:
                span = (last - first) % 2**32
                found |= {n for id, n in self.numbers.items() if (id - first) % 2**32 <= span}
            at += size
        self._said = data[at:]  # a frame counts once it is whole
        return found


@functools.lru_cache(FRAMES_KEPT)
def accepted_by(body: bytes) -> list[tuple[int, int]] | None:
    """The delivery-ids, first and last, that a frame's body accepts; None: it cannot be read.

    Where a list's size and count disagree, as the one has it and as the other: the engine goes by
    the size alone.
    """
    try:
        return _accepted(body, counted=True) + _accepted(body, counted=False)
    except (LookupError, struct.error, RecursionError, AttributeError, TypeError):
        return None


def _accepted(body: bytes, counted: bool) -> list[tuple[int, int]]:
    """As `accepted_by`, with its lists read as `decode` says. Raises many things on nonsense."""
    performative = decode(body, 0, counted)[0] if body else None
    if performative is None or performative.descriptor is None:
        return []
    fields = performative.value
    if performative.descriptor.value != DISPOSITION or len(fields) < 5:
        return []
    state = fields[4].descriptor
    if state is None or state.value != ACCEPTED:
        return []
    firsts, lasts = (
        {each.value}
        if each.code in UINTS
        else {None, each.value if isinstance(each.value, int) else 0}
        for each in fields[1:3]
    )
    return [
        (first or 0, (first or 0) if last is None else last) for first in firsts for last in lasts
    ]


def _whole(data: bytes) -> int:
    """Return how many bytes of these are whole headers and frames."""
    at = 0
    while at + 8 <= len(data):
        size = 8 if data[at : at + 4] == b"AMQP" else int.from_bytes(data[at : at + 4], "big")
        if at + size > len(data):
            break
        at += size
    return at
