"""The recent past of one service: its packets, and the quality messages between them.

What it is for: a link that names the last message it has (`from=<tag>`) gets everything after it.
The packets are in a `PacketStore`, the same one that recovery reads for its catch-up, so that no
packet is kept twice. Here are the quality messages and snapshot blocks between them (`Note`), each
at the serial of the packet that followed it, and the search for a tag's position (`find`).

What it promises: from a `HistoryPosition` that `find` returns, everything that was published after
the tag can be read in its order, or the result says which numbers are gone and why. What is kept is
bounded: packets by the store, notes by `notes_bytes_max`; where notes are dropped, what was
published before them is not served either, for without them a gap would go unannounced.

Numbers begin anew with each epoch (a reset, a new day), and a tag has the day alone. Where a
number occurs in several epochs of the day, the oldest that still holds it is meant: nothing is
left out then, though something may come twice.

Packets outside the sequence stand where they were published. A tag of one names its
position as long as it is held.

While the stream is closed, packets are stored and not published. Once it opens, those that its
snapshot contains are hidden, and quality messages of that time stand before the first of the
others.

No I/O. Reading a position's packets, and how fast: `catchup`.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

from feedhandler.amqp.framing import (
    BLOCK_LAST_MASK,
    BLOCK_SHIFT,
    QUALITY_NOTE,
    SNAPSHOT_BIT,
    WHOLE_PACKET,
)
from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from feedhandler.retrans.store import PacketStore

#: Overhead in bytes of a note: the objects around its bytes.
NOTE_BYTES = 256
#: Epochs remembered; a day has one or two. Older ones cannot be resumed.
EPOCHS_MAX = 64
#: Bytes of notes kept, as a share of the bytes of packets: quality messages are few and short, and
#: a snapshot block is what the largest services need room for.
NOTES_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Note:
    """A quality message (`body`), or a snapshot block: `packets` between `body` and `end`.

    It stands before the packet with serial `position`. `prefix` and `sequence`: of its tag; `last`:
    the snapshot's LastSeqNum.
    """

    position: int
    prefix: bytes
    sequence: int
    body: bytes
    packets: tuple[bytes, ...] = ()
    last: int = 0
    end: bytes = b""

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return NOTE_BYTES + len(self.body) + len(self.end) + sum(map(len, self.packets))


@dataclass(slots=True)
class SequenceEpoch:
    """A run of numbers: tags begin with `prefix`, packets with serial `serial`, numbers with
    `first`; `end` is one past its last number, 0 while it goes on. `goes_on`: the day has turned,
    and the numbers of the run before go on."""

    prefix: bytes
    serial: int
    first: int
    end: int = 0
    goes_on: bool = False


@dataclass(slots=True)
class HistoryPosition:
    """A reader's position: before the packet with `serial`, without its first `skip` messages; and
    before note `note`, of which `block` packets have been read (-1: not begun)."""

    serial: int
    note: int
    skip: int = 0
    block: int = -1


@dataclass(frozen=True, slots=True)
class Found:
    """The position where a link with a tag goes on, and what it cannot have.

    `why` is "" where it gets everything; otherwise a reason for the user, and `lost` are the
    numbers [first, last] that are gone, as far as they are known. `next`: the number of the packet
    at `position`.
    """

    position: HistoryPosition
    next: int
    why: str = ""
    lost: tuple[tuple[int, int], ...] = ()


class History:
    """The recent past of one service: the packets of `store`, and the notes between them.

    `prefix`: the first eight bytes of the tags of the day. `gone`: number of notes that were
    dropped; note numbers count from the first ever. `floor`: the serial beyond which notes are
    complete.
    """

    def __init__(self, store: PacketStore, notes_bytes_max: int, prefix: bytes) -> None:
        self.store = store
        store.keeping = True
        self.notes_bytes_max = notes_bytes_max
        self.notes: deque[Note] = deque()
        self.notes_bytes = 0
        self.gone = 0
        self.floor = -1
        #: The quality message before the oldest note that is left; b"" where there was none.
        self.before = b""
        self.epochs = deque([SequenceEpoch(prefix, 0, 0)])
        self._hidden: dict[int, int] = {}
        self._closed_at = -1

    # -- what is published ------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes kept, of packets and of notes."""
        return self.store.held_bytes + self.notes_bytes

    @property
    def end(self) -> int:
        """Serial of the packet that is published next."""
        return self.store.next_serial if self._closed_at < 0 else self._closed_at

    @property
    def oldest(self) -> int:
        """Serial of the oldest packet that can be had with all notes after it."""
        return max(self.store.next_serial - self.store.held, self.floor)

    def begin(self, prefix: bytes, first: int, end: int, goes_on: bool = False) -> None:
        """Begin an epoch whose next number is `first`; the one before ended before `end`, or
        with the newest packet where the store has been cleared already (0). `goes_on`: the numbers
        of the one before go on, on another day."""
        last, packet = self.epochs[-1], self.store.packet(self.store.next_serial - 1)
        last.end = end or (packet[1] if packet is not None else 0)
        if last.serial == self.store.next_serial:  # nothing was published in it
            self.epochs.pop()
        self.epochs.append(SequenceEpoch(prefix, self.store.next_serial, first, goes_on=goes_on))
        if len(self.epochs) > EPOCHS_MAX:
            self.epochs.popleft()
            self.floor = max(self.floor, self.epochs[0].serial)

    def note(
        self,
        prefix: bytes,
        sequence: int,
        body: bytes,
        packets: tuple[bytes, ...] = (),
        last: int = 0,
        end: bytes = b"",
    ) -> None:
        """Add a quality message, or a snapshot block, that was published to all links."""
        note = Note(self.end, prefix, sequence, body, packets, last, end)
        self.notes.append(note)
        self.notes_bytes += note.size
        while self.notes_bytes > self.notes_bytes_max:
            self.floor = max(self.floor, self._drop().position)
        oldest = min(self.oldest, self.end)
        while self.notes and self.notes[0].position < oldest:
            self._drop()
        for start in [start for start, to in self._hidden.items() if to <= oldest]:
            del self._hidden[start]

    def _drop(self) -> Note:
        """Drop the oldest note, and return it."""
        note = self.notes.popleft()
        self.notes_bytes -= note.size
        self.gone += 1
        self.before = note.end or note.body
        return note

    def close(self) -> None:
        """Store packets from here on without publishing them."""
        if self._closed_at < 0:
            self._closed_at = self.store.next_serial

    def open(self, first: int) -> None:
        """Publish what is stored from number `first` on, and what follows."""
        if self._closed_at < 0:
            return
        closed_at, self._closed_at = self._closed_at, -1
        to = self.store.find(closed_at, self.store.next_serial, first)
        if to == closed_at:
            return
        self._hidden[closed_at] = to
        for index, note in enumerate(self.notes):
            if note.position == closed_at:
                self.notes[index] = Note(
                    to, note.prefix, note.sequence, note.body, note.packets, note.last, note.end
                )

    # -- where a tag stands -----------------------------------------------------------------

    def find(self, tag: bytes, next_sequence: int) -> Found:
        """Find where a link goes on that has the message with this `tag` and all before it;
        `next_sequence`: the number that the stream goes on with."""
        prefix = tag[:8]
        sequence = int.from_bytes(tag[8:16], "big")
        number = int.from_bytes(tag[16:18], "big")
        if sequence & SNAPSHOT_BIT:
            return self._find_in_block(prefix, sequence, number, next_sequence)
        if sequence & UNSEQUENCED_BIT:
            return self._find_unsequenced(prefix, sequence, number, next_sequence)
        if number == QUALITY_NOTE:  # it came before the packet whose number it has
            sequence, number = max(sequence, 1) - 1, WHOLE_PACKET
        if next_sequence == 0:
            return Found(self.find_end(), 0, "nothing was published yet")
        late = None
        same_day = [each for each in self.epochs if each.prefix == prefix]
        for epoch in self._before_the_turn(same_day, sequence) + same_day:
            if sequence + 1 < epoch.first:
                late = late or epoch
            elif sequence < (epoch.end or max(self.store.end, next_sequence)):
                position = self._after(epoch, sequence, number)
                if position is not None:
                    why = "" if position.note >= self.gone else "too late"
                    position.note = max(position.note, self.gone)
                    return Found(position, self._number_at(position, next_sequence), why)
                late = epoch
        if late is not None:
            return self._from_the_oldest("too late", late, sequence, number, next_sequence)
        if same_day:
            return self._ahead(same_day, sequence, number, next_sequence)
        return self._from_the_oldest("another day", None, 0, WHOLE_PACKET, next_sequence)

    def _before_the_turn(self, same_day: list[SequenceEpoch], sequence: int) -> list[SequenceEpoch]:
        """Return the epoch of the day before, where another gateway's day had turned a little
        earlier: it has the number to which that gateway gave today's tag."""
        if not same_day or not same_day[0].goes_on or sequence >= same_day[0].first:
            return []
        at = self.epochs.index(same_day[0])
        return [self.epochs[at - 1]] if at else []

    def _ahead(
        self, same_day: list[SequenceEpoch], sequence: int, number: int, next_sequence: int
    ) -> Found:
        """Find, as `find` does, a number that we have not come to: another gateway's, unless the
        day has had several epochs. Where the day is over, what follows it follows the tag."""
        last, single = same_day[-1], len(same_day) == 1
        if last is self.epochs[-1]:
            why = "" if single else "another epoch"
            return Found(self.find_end(), next_sequence, why)
        position = self._after(last, sequence, number) if single else None
        if position is not None and position.note >= self.gone:
            return Found(position, self._number_at(position, next_sequence))
        return self._from_the_oldest("another epoch", None, 0, WHOLE_PACKET, next_sequence)

    def _after(self, epoch: SequenceEpoch, sequence: int, number: int) -> HistoryPosition | None:
        """Return the position behind message `number` of the packet, in this epoch; None where not
        all that follows it is held. Where only notes at that very position are gone, its note is
        one of those."""
        oldest = self.store.next_serial - self.store.held
        if oldest > self._end_of(epoch):
            return None
        if epoch.serial < oldest:  # its first packets are gone
            gone = self.store.gone_next
            whole = number == WHOLE_PACKET
            last = whole and sequence in (gone - 1, self.store.gone_first)
            if sequence < gone and not last:
                return None
        serial, skip = self._behind(epoch, sequence, number)
        begun = serial + (skip > 0)
        if begun < self.floor:
            return None
        note = self.gone - 1 if begun == self.floor else self._first_note(begun)
        published = self.published_from(serial)
        return HistoryPosition(published, note, skip if published == serial else 0)

    def _behind(self, epoch: SequenceEpoch, sequence: int, number: int) -> tuple[int, int]:
        """Return the serial of the packet with the next message after this one, and how many
        messages come before that message in it.

        Where numbers count messages, the packet of the next one may begin before `sequence`.
        """
        end = self._end_of(epoch)
        serial = self.store.find(epoch.serial, end, sequence)
        skip = 0
        while serial < end:
            packet = self.store.packet(serial)
            assert packet is not None
            first, following, *_, count = packet
            if first > sequence:
                break
            if first == sequence:
                return (serial, number + 1) if number + 1 < count else (serial + 1, 0)
            skip = sequence + 1 - first if sequence + 1 < following else 0
            serial += 1
        return (serial - 1, skip) if skip else (serial, 0)

    def _end_of(self, epoch: SequenceEpoch) -> int:
        """Return the serial one past the last packet that is published of an epoch."""
        for each in self.epochs:
            if each.serial >= epoch.serial and each is not epoch:
                return min(each.serial, self.end)
        return self.end

    def _from_the_oldest(
        self, why: str, late: SequenceEpoch | None, sequence: int, number: int, next_sequence: int
    ) -> Found:
        """Go on with the oldest packet there is, and report what is missing before it. `late`: the
        epoch of the tag, if known."""
        serial = self.published_from(self.oldest)
        position = HistoryPosition(serial, max(self._first_note(serial), self.gone))
        following = self._number_at(position, next_sequence)
        epoch = self._epoch_of(serial)
        first = epoch.first
        if epoch is late:
            first = sequence + (number == WHOLE_PACKET)
        elif late is not None:
            why = "another epoch"
        return Found(
            position, following, why, ((first, following - 1),) if first < following else ()
        )

    def _find_unsequenced(
        self, prefix: bytes, sequence: int, number: int, next_sequence: int
    ) -> Found:
        """Find, as `find` does, a packet outside the sequence: known only as long as it is held."""
        serial = self.store.find_unsequenced(sequence)
        packet = self.store.packet(serial)
        if packet is None or self.prefix_at(serial) != prefix or serial < self.floor:
            late = "a packet outside the sequence that is not kept"
            return self._from_the_oldest(late, None, 0, WHOLE_PACKET, next_sequence)
        skip = 0 if number + 1 >= packet[5] else number + 1
        serial += not skip
        note = self._first_note(serial + bool(skip))
        position = HistoryPosition(self.published_from(serial), max(note, self.gone), skip)
        return Found(position, self._number_at(position, next_sequence))

    def _find_in_block(
        self, prefix: bytes, sequence: int, number: int, next_sequence: int
    ) -> Found:
        """Find, as `find` does, a packet of a snapshot block: blocks of single links are not
        kept."""
        last = (sequence ^ SNAPSHOT_BIT) >> BLOCK_SHIFT
        block = sequence & ((1 << BLOCK_SHIFT) - 1)
        for index, note in enumerate(self.notes):
            known = note.prefix, note.last & BLOCK_LAST_MASK
            if known == (prefix, last) and block < len(note.packets):
                whole = number == WHOLE_PACKET
                found = HistoryPosition(
                    note.position,
                    self.gone + index,
                    skip=0 if whole else number + 1,
                    block=block + whole,
                )
                return Found(found, self._number_at(found, next_sequence))
        # Half a block is worthless: go on live.
        epoch = self.epochs[-1]
        # The bits that a tag has no room for are those of the stream.
        last |= next_sequence & ~BLOCK_LAST_MASK
        if last >= next_sequence > BLOCK_LAST_MASK:
            last -= BLOCK_LAST_MASK + 1
        first = last + 1 if epoch.prefix == prefix else epoch.first
        lost = ((first, next_sequence - 1),) if first < next_sequence else ()
        return Found(self.find_end(), next_sequence, "a snapshot that is not kept", lost)

    # -- reading ----------------------------------------------------------------------------

    def pending(self, note: int) -> Note | None:
        """Return the note with this number; None where there is none yet."""
        return self.notes[note - self.gone] if note - self.gone < len(self.notes) else None

    def quality_before(self, position: HistoryPosition) -> bytes:
        """Return the last quality message before a position; b"" where it is not known."""
        if position.note <= self.gone:
            return self.before
        note = self.notes[position.note - self.gone - 1]
        return note.end or note.body

    def prefix_at(self, serial: int) -> bytes:
        """Return the first eight bytes of the tag of the packet with this serial."""
        return self._epoch_of(serial).prefix

    def published_until(self, serial: int, note: Note | None) -> int:
        """Return the serial up to which packets can be read on from this one: to the next note, to
        the end, or to packets that were never published."""
        stop = self.end if note is None else note.position
        return min([stop, *(start for start in self._hidden if start > serial)])

    def overtaken(self, position: HistoryPosition, following: int, next_sequence: int) -> Found:
        """Find where a reader whose position is gone, and that was to read `following`, goes on:
        in the middle of what is held, for at the oldest it would soon be overtaken again."""
        serial = self.published_from((self.oldest + self.end + 1) // 2)
        found = HistoryPosition(serial, max(self._first_note(serial), self.gone))
        epoch = self._epoch_of(serial)
        begun = position.serial > epoch.serial
        first = following if begun else epoch.first
        then = self._number_at(found, next_sequence)
        return Found(found, then, "too slow", ((first, then - 1),) if first < then else ())

    def published_from(self, serial: int) -> int:
        """Return the serial to go on with at this one: packets that were never published are
        skipped."""
        for start, to in self._hidden.items():
            if start <= serial < to:
                serial = to
        return serial

    def _first_note(self, serial: int) -> int:
        """Return the number of the first note that stands before the packet with this serial, or
        later."""
        return self.gone + bisect_left(self.notes, serial, key=lambda note: note.position)

    def _number_at(self, position: HistoryPosition, next_sequence: int) -> int:
        packet = self.store.packet(position.serial) if position.serial < self.end else None
        return next_sequence if packet is None else packet[0]

    def _epoch_of(self, serial: int) -> SequenceEpoch:
        return next(epoch for epoch in reversed(self.epochs) if epoch.serial <= serial)

    def find_end(self) -> HistoryPosition:
        """Return the position behind everything that was published."""
        return HistoryPosition(self.end, self.gone + len(self.notes))
