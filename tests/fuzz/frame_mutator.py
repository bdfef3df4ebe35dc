"""Conversations with the node that no client would have: valid ones, mutated frame by frame.

The seeds are what stock clients said (`conversations/`, made by `record.py`). A phrase is a few
frames that make sense by themselves, with a link name and handle of its own: an attach, credit,
outcomes, a drain, a detach. Its frames are mutated as structures first: a field gets an edge value
of its type, another type, is dropped or nested; the frame goes to another channel, becomes another
performative, or its header lies. Phrases are then put behind each other, behind a beginning of
open, begin and attach, and single bytes are changed. Most of what comes out passes the frame
header's checks, so that the damage reaches the layers behind.
"""

import random
import struct
from dataclasses import dataclass
from pathlib import Path

from tests.support.amqp_wire import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    LIST32,
    MAP32,
    OPEN,
    SOURCE,
    TARGET,
    TRANSFER,
    Frame,
    Raw,
    Value,
    decode,
    described,
    split,
    ubyte,
    ulong,
    wire,
)

#: How the tags of the node's service begin: day, feed, service (`amqp.prefix_of`).
PREFIX = struct.pack(">IHH", 20261121, 1, 104)
FOLDER = Path(__file__).resolve().parent / "conversations"
#: Phrases kept to be put together, and how many of them are new in each conversation.
POOL_PHRASES = 400
NEW_PHRASES = 1
#: Frames of a phrase, phrases of a conversation, at most.
FRAMES_MAX, PHRASES_MAX = 12, 40
#: Shares of frames that are mutated so that they hardly pass, and that have single bytes changed
#: behind all else: few, for each may end its conversation.
WILD, FLIPPED = 0.006, 0.004
#: Levels of lists in lists: far more than any decoder needs, in a frame that is still small.
NESTED_LEVELS = 3000
EDGES = (0, 1, 2, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63)
ADDRESSES = (
    "euronext.104", "euronext.#?as=message", "#?as=batch&quality=0", "euronext.104.*?types=230",
    "euronext.104?as=byte", "queue.x", "", "*", "euronext.104?snapshot=1", "euronext.104?from=00",
    "#,#,#,euronext.*?as=packet", "x" * 5000,
    "euronext.104?types=" + ",".join(map(str, range(300))),
    "euronext.104?full=drop_oldest", "euronext.#?full=drop_oldest&as=message",
    "euronext.104?full=conflate", "euronext.104?full=drop_oldest&quality=0",
)  # fmt: skip


#: Addresses that go on from a tag, and how old its packet is, in packets.
RESUMING = (
    "euronext.104?from={}", "#?as=batch&from={}", "euronext.*?full=drop_oldest&from={}",
    "euronext.104?quality=0&from={}", "euronext.104?as=message&types=230&from={}",
)  # fmt: skip
AGES = range(-3, 300)
#: Shares of attaches that resume, that have a part in a group; groups, with an address each.
RESUMES, SHARES, GROUPS = 0.1, 0.15, 6
#: The share of conversations that log in by PLAIN, and what they say then: mostly what is right.
PLAIN = 0.15
RESPONSES = (*(b"\0user\0right",) * 8, b"user\0user\0right", b"\0user\0wrong", b"\0\0", b"\xff")
SASL_INIT, SASL_RESPONSE = 0x41, 0x43


@dataclass
class Part:
    """One frame's bytes, and whether it was mutated."""

    data: bytes
    mutated: bool


class Mutator:
    """Endless conversations, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.beginnings = [self._beginning(path) for path in sorted(FOLDER.glob("*.bin"))]
        self.said = [
            part
            for path in sorted(FOLDER.glob("*.bin"))
            for part in split(path.read_bytes())
            if isinstance(part, Frame) and part.kind == 0 and part.code > BEGIN
        ]
        self.handles = 10
        #: Which packet the market has come to, for tags.
        self.sequence = 0
        self.pool = [self.phrase() for _ in range(POOL_PHRASES)]

    @staticmethod
    def _beginning(path: Path) -> list[bytes | Frame]:
        """A client's words up to its first link."""
        parts = split(path.read_bytes())
        codes = [part.code if isinstance(part, Frame) else 0 for part in parts]
        return parts[: codes.index(ATTACH) + 1]

    # -- phrases ----------------------------------------------------------------------------

    def phrase(self) -> list[Part]:
        """A few frames about one link, most of them mutated."""
        rng = self.rng
        self.handles = 10 + (self.handles + 1) % 2**20
        handle = self.handles
        frames = [self._attach(handle)]
        for _ in range(rng.randrange(2, FRAMES_MAX)):
            make = rng.choice(
                (self._flow, self._flow, self._flow, self._outcome, self._outcome, self._word)
            )
            frames.append(make(handle))
        if rng.random() < 0.7:
            frames.append(Frame(0, described(DETACH, handle, rng.random() < 0.8)))
        if rng.random() < 0.02:
            frames.append(Frame(0, described(rng.choice((END, CLOSE, BEGIN, OPEN)))))
        return [self.mutated(each, rng.random() < WILD) for each in frames]

    def _attach(self, handle: int) -> Frame:
        rng = self.rng
        name, shared = f"link {handle}", rng.random() < SHARES
        source = described(SOURCE, self._address())
        if shared:
            group = rng.randrange(GROUPS)
            name = f"group {group}|{handle}"
            source = described(SOURCE, ADDRESSES[group % 3])
        if shared or rng.random() < 0.2:
            source.value += [
                wire(rng.choice(EDGES) % 2**32), Value(0xA3, b"never"), wire(0),
                wire(rng.random() < 0.1), self._map(), Value(0xA3, b"copy"), self._map(),
                described(0x24), wire([b"amqp:accepted:list"]),
                Value(0xA3, b"shared" if shared else b"queue"),
            ]  # fmt: skip
        role = shared or rng.random() < 0.9
        fields = [name, handle, role, ubyte(rng.randrange(4)), ubyte(rng.randrange(3))]
        rest = [
            self._map(),
            False,
            0,
            ulong(rng.choice(EDGES)),
            Value(0xA3, b"x"),
            None,
            self._map(),
        ]
        return Frame(0, described(ATTACH, *fields, source, described(TARGET), *rest))

    def _address(self) -> str:
        """Return the address that a link asks for, now and then from a recent message on."""
        rng = self.rng
        if rng.random() >= RESUMES:
            return rng.choice(ADDRESSES)
        sequence = max(0, self.sequence - rng.choice(AGES))
        tag = bytearray(PREFIX + struct.pack(">QH", sequence, rng.choice((0, 3, 0xFFFE, 0xFFFF))))
        if rng.random() < 0.1:
            tag[rng.randrange(len(tag))] = rng.randrange(256)
        return rng.choice(RESUMING).format(tag.hex())

    def _map(self) -> Value:
        """A map of symbols, now and then one that is none or very deep."""
        rng = self.rng
        value = wire([b"selector", rng.choice(EDGES) % 2**32, b"x", "y" * rng.randrange(300)])
        value.code = MAP32
        if rng.random() < 0.3:
            return wire(None)
        if rng.random() < 0.05:
            value.value.append(self._nested(rng.randrange(1, 60)))
        return value

    @staticmethod
    def _nested(levels: int) -> Value:
        """Lists in lists, encoded from within."""
        data = b"\x45"
        for _ in range(levels):
            data = bytes([0xD0]) + (len(data) + 4).to_bytes(4, "big") + b"\0\0\0\x01" + data
        return Raw(data)

    def _flow(self, handle: int) -> Frame:
        rng = self.rng
        credit = rng.choice((0, 1, 3, 10, 1000, rng.choice(EDGES) % 2**32))
        window = rng.choice((0, 1, 2048, 2**31 - 1, rng.choice(EDGES) % 2**32))
        count = rng.choice((0, 0, 1, rng.choice(EDGES) % 2**32))
        return Frame(
            0,
            described(FLOW, 0, window, 0, 2048, handle, count, credit, None, rng.random() < 0.3,
                      rng.random() < 0.3),
        )  # fmt: skip

    def _outcome(self, handle: int) -> Frame:
        rng = self.rng
        first = rng.choice((0, 1, 5, 50, rng.choice(EDGES) % 2**32))
        state = described(rng.choice((0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x99)))
        if rng.random() < 0.3:
            state.value = [self._map() for _ in range(rng.randrange(4))]
        last = first + rng.choice((0, 1, 100))
        if rng.random() < 0.01:
            last = rng.choice(EDGES)
        return Frame(
            0, described(DISPOSITION, rng.random() < 0.9, first, last % 2**32, True, state)
        )

    def _word(self, handle: int) -> Frame:
        """A frame as a stock client said it, on this link; now and then a transfer or none."""
        rng = self.rng
        which = rng.randrange(40)
        if which < 5:
            return Frame(0, None)
        if which == 5:
            performative = described(TRANSFER, handle, rng.randrange(9), Value(0xA0, b"t"), 0, True)
            return Frame(0, performative, rng.randbytes(rng.randrange(200)))
        said = rng.choice(self.said)
        if said.code in (ATTACH, DETACH, END, CLOSE):
            return self._flow(handle)
        again, _ = decode_again(said)
        if said.code == FLOW:
            again.value[0], again.value[4] = wire(0), wire(handle)
        return Frame(0, again)

    # -- mutations --------------------------------------------------------------------------

    def mutated(self, frame: Frame, wild: bool) -> Part:
        """One frame's bytes: mutated in four of five cases, wildly or so that it may pass."""
        rng = self.rng
        if not wild and rng.random() < 0.2:
            return Part(frame.encode(), False)
        if frame.performative is not None and isinstance(frame.performative.value, list):
            if wild:
                self._harm(frame)
            else:
                self._touch(frame.performative)
        data = bytearray(frame.encode())
        if wild and rng.random() < 0.5:
            self._lie(data)
        return Part(bytes(data), True)

    def _touch(self, performative: Value) -> None:
        """Change what is optional: fields behind the first ones, by values of their own type."""
        rng, fields = self.rng, performative.value
        code = performative.descriptor.value if performative.descriptor else 0
        behind = {ATTACH: 3, FLOW: 5, DISPOSITION: 3, DETACH: 1, TRANSFER: 1}.get(code, 1)
        if len(fields) <= behind:
            fields.append(wire(rng.choice(EDGES) % 2**32))
            return
        index = rng.randrange(behind, len(fields))
        field = fields[index]
        if isinstance(field.value, int) and field.code not in (0x41, 0x42):
            field.value = rng.choice((*EDGES, rng.randrange(2**32)))
        elif isinstance(field.value, bytes) and field.value:
            field.value = rng.choice((b"", rng.randbytes(rng.randrange(255)), field.value * 2))[
                :250
            ]
        elif isinstance(field.value, list) and field.value and rng.random() < 0.7:
            inner = rng.randrange(len(field.value))
            field.value[inner] = rng.choice((wire(None), self._map(), wire("x" * 100)))
        else:
            fields[index] = rng.choice((wire(None), wire(True)))
        if rng.random() < 0.1:
            del fields[rng.randrange(behind, len(fields)) :]

    def _harm(self, frame: Frame) -> None:
        """Change anything: types, descriptors, channels, the number of fields, depth."""
        rng, performative = self.rng, frame.performative
        assert performative is not None
        fields = performative.value
        way = rng.randrange(6)
        if way == 0:
            frame.channel = rng.choice((1, 2, 255, 65535))
        elif way == 1:
            performative.descriptor = wire(rng.choice((0, 0x10, 0x17, 0x40, 0x53, 2**32 - 1)))
        elif way == 2 and fields:
            index = rng.randrange(len(fields))
            fields[index] = rng.choice((wire("text"), wire(5), self._map(), wire([1, [2]])))
        elif way == 3:
            del fields[rng.randrange(len(fields) + 1) :]
        elif way == 4:
            fields.extend(wire(rng.choice(EDGES) % 2**32) for _ in range(rng.randrange(300)))
            performative.code = LIST32
        elif way == 5 and fields:
            fields[rng.randrange(len(fields))] = self._nested(rng.choice((9, 99, NESTED_LEVELS)))

    def _lie(self, data: bytearray) -> None:
        """Damage the frame's header (size, data offset, type, channel), or its body's."""
        rng = self.rng
        way = rng.randrange(5)
        if way == 4 and len(data) > 11:  # what the performative is made of: list, map, array, ...
            data[11] = rng.choice((0x45, 0xC0, 0xC1, 0xD1, 0xE0, 0xF0, 0xA0, 0xB1))
        elif way == 0:
            size = rng.choice(
                (0, 7, 8, len(data) - 1, len(data) + 1, 65535, 65537, 2**31, 2**32 - 1)
            )
            data[0:4] = size.to_bytes(4, "big")
        elif way == 1:
            data[4] = rng.choice((0, 1, 3, 127, 255))
        elif way == 2:
            data[5] = rng.choice((1, 2, 255))
        else:
            data[6:8] = rng.randbytes(2)

    # -- conversations ----------------------------------------------------------------------

    def conversation(self) -> list[Part]:
        """A beginning, and phrases behind it."""
        rng = self.rng
        parts = []
        for each in self._begun():
            if isinstance(each, Frame):
                harmed = rng.random() < WILD
                parts.append(
                    self.mutated(copy_of(each), True) if harmed else Part(each.encode(), False)
                )
            else:
                harmed = rng.random() < 0.01
                parts.append(Part(rng.randbytes(8) if harmed else each, harmed))
        for _ in range(NEW_PHRASES):
            self.pool[rng.randrange(POOL_PHRASES)] = self.phrase()
        for index in rng.sample(range(POOL_PHRASES), rng.randrange(1, PHRASES_MAX)):
            parts.extend(self.pool[index])
        return [self._flip(part) for part in parts]

    def _begun(self) -> list[bytes | Frame]:
        """A client's beginning; now and then with a name and a password."""
        rng = self.rng
        found: list[bytes | Frame] = rng.choice(self.beginnings)
        if rng.random() >= PLAIN:
            return found
        response = Value(0xA0, rng.choice(RESPONSES))
        mechanism = Value(0xA3, b"PLAIN")
        said = [Frame(0, described(SASL_INIT, mechanism, response), kind=1)]
        if rng.random() < 0.3:  # the response is waited for
            said = [
                Frame(0, described(SASL_INIT, mechanism), kind=1),
                Frame(0, described(SASL_RESPONSE, response), kind=1),
            ]
        rest = [each for each in found[1:] if not isinstance(each, Frame) or not each.kind]
        return [found[0], *said, *rest]

    def words_before(self, parts: list[Part]) -> int:
        """Return how many parts come before the first attach; a client waits for their answer."""
        return next(
            (at for at, part in enumerate(parts) if part.data[10:11] == bytes([ATTACH])), len(parts)
        )

    def _flip(self, part: Part) -> Part:
        """Change a byte behind the frame's header now and then."""
        rng = self.rng
        if rng.random() > FLIPPED or len(part.data) < 12:
            return part
        data = bytearray(part.data)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(8, len(data))] = rng.randrange(256)
        return Part(bytes(data), True)


def copy_of(frame: Frame) -> Frame:
    """A frame that may be changed."""
    performative, _ = decode_again(frame)
    return Frame(frame.channel, performative, frame.payload, frame.kind)


def decode_again(frame: Frame) -> tuple[Value, int]:
    """The performative anew."""
    assert frame.performative is not None
    return decode(frame.performative.encode())
