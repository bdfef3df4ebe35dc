"""Links on their way through the history: what they missed first, then the live stream.

What it is for: a link that resumes (`from=<tag>`) reads its service's `History` from its position
on and takes part in the live stream once it has come to the end. Nothing of the history is queued
for it: as much is read as its credit allows, so a history larger than the link's queue costs
nothing, and a link that does not read keeps only its position.

What it promises: what a link gets here is what it would have got live, thinned and framed the same
way, each message once and in its order; between this and the live stream there is neither gap nor
overlap, since a link changes over between two packets. A turn ends after a bounded number of bytes
of history, so that the live stream is not kept waiting; the links take turns. Where a link is
overtaken (the history it was to read next has been discarded), `on_overtaken` announces that to it
or gives it up.

For the fan-out a service's past is a stream of its own (`Stream.past`), with the links that are
still in it, and routes of theirs.

What it leaves to others: when to take a turn, and writing to sockets (`node`); what is kept, and
where a tag stands (`history`).
"""

from collections import deque
from collections.abc import Callable

import cython
from cython.cimports.feedhandler.amqp.fanout import Fanout
from cython.cimports.feedhandler.amqp.framing import Frame
from cython.cimports.feedhandler.amqp.sender_queue import SenderQueue
from cython.cimports.feedhandler.amqp.stream import Stream
from cython.cimports.feedhandler.retrans.entries import (
    COUNT,
    NEXT,
    OFFSET,
    SEQUENCE,
    SIZE,
    SKIP,
    STAMP,
)
from cython.cimports.feedhandler.retrans.store import PacketStore

from feedhandler.amqp import framing
from feedhandler.amqp.framing import BLOCK_LAST_MASK, BLOCK_SHIFT, SNAPSHOT_BIT
from feedhandler.amqp.history import History, HistoryPosition, Note
from feedhandler.amqp.sender_queue import PACKET_BYTES_MAX, SECTIONS_BYTES_MAX
from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from feedhandler.codecs.visibility import Readonly

_UNSEQUENCED = cython.declare(cython.ulonglong, UNSEQUENCED_BIT)
_QUALITY = cython.declare(cython.uint, framing.QUALITY_NOTE)
#: What a packet or note costs of a turn beside its bytes: reading much that a link does not want
#: has to end as well.
_STEP_BYTES = cython.declare(cython.Py_ssize_t, 64)


@cython.cclass
class Cursor:
    """One link's position in one service's history, in terms of `history.HistoryPosition`.

    `following` is the number after the last packet that it has read.
    """

    sender_queue: Readonly[SenderQueue]
    stream: Readonly[Stream]
    past: Stream
    history: Readonly[object]
    store: PacketStore
    following: Readonly[cython.ulonglong]
    serial: cython.Py_ssize_t
    note: cython.Py_ssize_t
    skip: cython.Py_ssize_t
    block: cython.Py_ssize_t

    def __init__(
        self, sender_queue: SenderQueue, stream: Stream, position: HistoryPosition, following: int
    ) -> None:
        self.sender_queue = sender_queue
        self.stream = stream
        self.past = stream.past
        self.history: History = stream.history
        self.store = stream.history.store
        self.move(position, following)

    def move(self, position: HistoryPosition, following: int) -> None:
        """Go on from this position, where the packet with number `following` is."""
        self.following = following
        self.serial = position.serial
        self.note = position.note
        self.skip = position.skip
        self.block = position.block

    @property
    def position(self) -> HistoryPosition:
        """Position of the next packet or note to read."""
        return HistoryPosition(self.serial, self.note, self.skip, self.block)


@cython.cclass
class CatchUps:
    """All links that are reading the history of some service.

    `on_overtaken(cursor)` is called where a cursor's next packet or note has been discarded; it
    moves the cursor on and returns True, or removes it and returns False. `arrived` lists links
    that have reached the live stream of some service; the caller that reads it empties it.
    """

    fanout: Fanout
    on_overtaken: object
    cursors: Readonly[object]
    arrived: Readonly[list]
    frame: Frame
    bytes_read: Readonly[cython.ulonglong]
    overtaken: Readonly[cython.ulonglong]

    def __init__(self, fanout: Fanout, on_overtaken: Callable[[Cursor], bool]) -> None:
        self.fanout = fanout
        self.on_overtaken = on_overtaken
        self.cursors = deque()
        self.arrived: list[SenderQueue] = []
        self.frame = Frame(PACKET_BYTES_MAX + SECTIONS_BYTES_MAX)
        self.bytes_read = self.overtaken = 0

    def add(
        self, sender_queue: SenderQueue, stream: Stream, position: HistoryPosition, following: int
    ) -> None:
        """Let a link read the stream's history from `position` on, where the packet with number
        `following` is, and then the stream."""
        cursor = Cursor(sender_queue, stream, position, following)
        cursor.past.admit(sender_queue)
        self.cursors.append(cursor)
        sender_queue.catching += 1
        sender_queue._note_backlog()

    def remove(self, sender_queue: SenderQueue, stream: Stream | None = None) -> None:
        """Stop a link's reading of this stream's history, or of all histories."""
        cursor: Cursor
        for cursor in list(self.cursors):
            if cursor.sender_queue is sender_queue and (stream is None or cursor.stream is stream):
                self._leave(cursor)

    def _leave(self, cursor: Cursor) -> None:
        self.cursors.remove(cursor)
        cursor.past.withhold(cursor.sender_queue)
        cursor.sender_queue.catching -= 1
        cursor.sender_queue._note_backlog()

    def turn(self, bytes_max: cython.Py_ssize_t) -> cython.bint:
        """Deliver about `bytes_max` bytes of history at most; return whether any link could go on
        at once.

        The links take turns: the one that was served last comes last the next time.
        """
        left: cython.Py_ssize_t = bytes_max
        _each: cython.Py_ssize_t
        for _each in range(len(self.cursors)):
            if left <= 0 or not self.cursors:
                break
            cursor: Cursor = self.cursors[0]
            self.cursors.rotate(-1)
            left -= self._read(cursor, left)
        self.fanout._end(False)
        for cursor in self.cursors:  # noqa: SIM110 - a compiled method has no closures
            if cursor.sender_queue.accepts_more():
                return True
        return False

    def _read(self, cursor: Cursor, bytes_max: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Let one link read on, about `bytes_max` bytes at most; return how many it was."""
        used: cython.Py_ssize_t = 0
        while used < bytes_max and cursor.sender_queue.accepts_more():
            if cursor.note < cursor.history.gone and not self._overtaken(cursor):
                break
            cursor.serial = cursor.history.published_from(cursor.serial)
            note: object = cursor.history.pending(cursor.note)
            stop: cython.Py_ssize_t = cursor.history.published_until(cursor.serial, note)
            if cursor.serial < stop:
                used += self._packets(cursor, stop, bytes_max - used)
                gone: cython.bint = cursor.serial < stop and cursor.store.entry(cursor.serial) < 0
                if gone and not self._overtaken(cursor):
                    break
            elif note is not None:
                used += self._note(cursor, note)
            else:
                self._leave(cursor)
                cursor.stream.admit(cursor.sender_queue)
                self.arrived.append(cursor.sender_queue)
                break
        return used

    def _overtaken(self, cursor: Cursor) -> cython.bint:
        """Count and report that a link's next packet is gone; return whether the link goes on."""
        self.overtaken += 1
        return self.on_overtaken(cursor)

    def _packets(
        self, cursor: Cursor, stop: cython.Py_ssize_t, bytes_max: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Deliver stored packets up to the serial `stop`; return the bytes used of the turn."""
        store: PacketStore = cursor.store
        used: cython.Py_ssize_t = 0
        prefix: object = cursor.history.prefix_at(cursor.serial)
        if cursor.past.prefix != prefix:
            cursor.past.set_prefix(prefix)
        while cursor.serial < stop and used < bytes_max and cursor.sender_queue.accepts_more():
            word: cython.Py_ssize_t = store.entry(cursor.serial)
            if word < 0:
                break
            size: cython.Py_ssize_t = store.table[word + SIZE]
            skip: cython.Py_ssize_t = store.table[word + SKIP]
            number: cython.ulonglong = store.table[word + SEQUENCE]
            outside: cython.bint = store.table[word + SKIP] >= _UNSEQUENCED
            if outside:
                number = store.table[word + SKIP]
                skip = 0
                cursor.sender_queue.close_batch(cursor.past.index)
            skip = max(cursor.skip, skip)
            cursor.past.next_sequence = store.table[word + NEXT]
            self._deliver(
                cursor,
                number,
                cython.cast(cython.longlong, store.table[word + STAMP]),
                store.slab,
                cython.cast(cython.Py_ssize_t, store.table[word + OFFSET]),
                size,
                cython.cast(cython.Py_ssize_t, store.table[word + COUNT]),
                skip,
            )
            if outside:
                cursor.sender_queue.close_batch(cursor.past.index)
            cursor.skip = 0
            cursor.serial += 1
            cursor.following = store.table[word + NEXT]
            self.bytes_read += size
            used += size + _STEP_BYTES
        return used

    def _deliver(
        self,
        cursor: Cursor,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        source: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        skip: cython.Py_ssize_t,
    ) -> cython.int:
        """Deliver one packet of the past to this link alone."""
        fanout: Fanout = self.fanout
        past: Stream = cursor.past
        fanout.source = source
        fanout.restricted = cursor.sender_queue.chosen = True
        try:
            if skip == 0 and past.whole:
                fanout._whole(past, sequence, received_ns, start, size)
            if count > 0 and (past.fine or skip > 0):
                fanout._split(past, sequence, received_ns, start, size, skip)
        finally:
            fanout.restricted = cursor.sender_queue.chosen = False
            fanout.source = fanout.ring.data
        return 0

    def _note(self, cursor: Cursor, note: Note) -> cython.Py_ssize_t:
        """Deliver a quality message, or the next packet of a snapshot block; return the bytes
        used."""
        if not cursor.sender_queue.subscription.quality:
            cursor.note += 1  # a block without its markers would be taken for live packets
            return _STEP_BYTES
        if cursor.past.prefix != note.prefix:
            cursor.past.set_prefix(note.prefix)
        if not note.packets:
            self.report(cursor.sender_queue, cursor.past, note.sequence, note.body)
            cursor.note += 1
            return len(note.body) + _STEP_BYTES
        if cursor.block < 0:
            self.report(cursor.sender_queue, cursor.past, note.sequence, note.body)
            cursor.block = 0
            return len(note.body) + _STEP_BYTES
        if cursor.block == len(note.packets):
            self.report(cursor.sender_queue, cursor.past, note.sequence, note.end)
            cursor.block = -1
            cursor.note += 1
            return len(note.end) + _STEP_BYTES
        return self._block_packet(cursor, note)

    def _block_packet(self, cursor: Cursor, note: Note) -> cython.Py_ssize_t:
        data: bytes = note.packets[cursor.block]
        last = note.last & BLOCK_LAST_MASK
        tag: cython.ulonglong = SNAPSHOT_BIT | last << BLOCK_SHIFT | cursor.block
        count = self.fanout._load(data)
        self._deliver(cursor, tag, 0, data, 0, len(data), count, cursor.skip)
        cursor.skip = 0
        cursor.block += 1
        return len(data) + _STEP_BYTES

    def report(
        self, sender_queue: SenderQueue, stream: Stream, sequence: cython.ulonglong, body: object
    ) -> cython.int:
        """Send a quality message of the stream to one link."""
        self.frame.begin(stream.quality_template, sequence, _QUALITY, 0)
        self.frame.append(body, 0, len(body))
        self.frame.finish(0)
        sender_queue.close_batch(stream.index)
        sender_queue.deliver(self.frame)
        self.fanout.quality_messages += 1
        return 0
