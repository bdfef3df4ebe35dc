# cython: language_level=3, boundscheck=True, wraparound=False
"""The policy `conflate`: which waiting message a newer one replaces, and what is left.

What it is for: `conflate`. A `Waiting` is one AMQP message that waits, split into the market
messages that it holds. Each of them has a mode:

    NEVER   it waits at its position and is not replaced
    LATEST  a newer one with the same key replaces it: the older one is taken out, and the newer
            waits at its own position, the end. So what is sent is in the order of the stream
    BOOK    one order's change. Few wait as they are; when more wait for one symbol than its book
            would cost, they are taken out and the book is `dirty`: it is sent whole instead
    FENCE   it concerns all books of its service: it waits at its position; no book is sent past it

What is sent, and when. All that waits as a receiver begins to take again is one *turn*: what comes
later does not replace anything in it, or a key that changes often would never be sent.
At the end of a turn come the books that are dirty by then, each as it is at that moment; the
caller makes them (`due`, `clean`) and puts them in front (`put_front`). Then comes the next turn.

What it promises: `bytes` is what is held, overhead included, and never less than that;
within one turn each key waits once; messages that are never conflated keep their order. Where
`bytes` is too much the caller calls `squeeze`, which makes a book dirty that orders wait for, or
takes out what the turn kept twice; it returns False where nothing more can be given up without
loss.

No I/O, no clock, no engine.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

import cython
from cython.cimports.feedhandler.amqp.queueing.unsettled_map import OutgoingMessage

from feedhandler.codecs.visibility import Readonly

#: Modes of a market message that waits; see the module.
NEVER, LATEST, BOOK, FENCE = range(4)
_LATEST = cython.declare(cython.int, LATEST)
_BOOK = cython.declare(cython.int, BOOK)
_FENCE = cython.declare(cython.int, FENCE)

#: Overhead in bytes, rounded up: of an AMQP message, of a market message in it with its key, and of
#: a dirty book.
ENTRY_BYTES = 512
PIECE_BYTES = 320
DIRTY_BYTES = 256
_ENTRY_BYTES = cython.declare(cython.Py_ssize_t, ENTRY_BYTES)
_PIECE_BYTES = cython.declare(cython.Py_ssize_t, PIECE_BYTES)
_DIRTY_BYTES = cython.declare(cython.Py_ssize_t, DIRTY_BYTES)
#: How many orders of one symbol may wait as they are, however small its book is.
ORDERS_MIN = 16
_ORDERS_MIN = cython.declare(cython.Py_ssize_t, ORDERS_MIN)
#: What a turn keeps twice is taken out when it is one part in so many of the bound.
SUPERSEDED_SHARE = 8


@cython.cclass
class Waiting:
    """One AMQP message that waits, split into its market messages.

    `outgoing` has all but the market messages, which are the `pieces` (None: taken out), each with
    its mode (`modes`) and its key where it has one. `lead` is the size of the packet header at the
    end of the message's bytes; -1: the message is whole, and `pieces` only carries its mode.
    """

    outgoing: Readonly[OutgoingMessage]
    pieces: Readonly[list]
    modes: Readonly[list]
    keys: Readonly[list]
    lead: Readonly[cython.Py_ssize_t]
    live: Readonly[cython.Py_ssize_t]
    position: Readonly[cython.ulonglong]
    size: Readonly[cython.Py_ssize_t]

    def __init__(
        self, outgoing: OutgoingMessage, pieces: list, modes: list[int], keys: list, lead: int = -1
    ) -> None:
        self.outgoing = outgoing
        self.pieces: list[bytes | None] = pieces
        self.modes: list[int] = modes
        self.keys = keys
        self.lead = lead
        self.live = len(pieces)
        self.position = 0
        self.size = len(outgoing.data)
        for piece in pieces:
            self.size += len(piece)


@cython.cclass
class Conflation:
    """Everything that waits for one receiver.

    `orders_max(service, symbol)`: how many orders the symbol's book has; `bytes_max` is the
    caller's bound. `conflated`, `conflated_bytes`: market messages taken out so far. `gone`: those
    of each service since `drain_gone`, as [how many, first sequence number, last].
    """

    bytes_max: Readonly[cython.Py_ssize_t]
    orders_max: object
    bytes: Readonly[cython.Py_ssize_t]
    entries: Readonly[object]
    front: Readonly[object]
    index: Readonly[dict]
    orders: Readonly[dict]
    dirty: Readonly[dict]
    turn: Readonly[object]
    fences: Readonly[dict]
    last: Readonly[cython.ulonglong]
    sealed: Readonly[cython.ulonglong]
    superseded: Readonly[cython.Py_ssize_t]
    conflated: Readonly[cython.ulonglong]
    conflated_bytes: Readonly[cython.ulonglong]
    gone: Readonly[dict]

    def __init__(self, bytes_max: int, orders_max: Callable[[int, int], int]) -> None:
        self.bytes_max = bytes_max
        self.orders_max = orders_max
        self.bytes = 0
        self.entries: OrderedDict[int, Waiting] = OrderedDict()
        self.front: deque[OutgoingMessage] = deque()
        self.index: dict[object, tuple[Waiting, int]] = {}
        self.orders: dict[tuple[int, int], deque[tuple[Waiting, int]]] = {}
        self.dirty: dict[tuple[int, int], bool] = {}
        self.turn: deque[tuple[int, int]] | None = None
        self.fences: dict[int, int] = {}
        self.last = self.sealed = 0
        self.superseded = 0
        self.conflated = self.conflated_bytes = 0
        self.gone: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Count the messages and books that are to be sent."""
        return len(self.entries) + len(self.front) + len(self.dirty)

    # -- what comes -------------------------------------------------------------------------

    def put(self, waiting: Waiting) -> cython.int:
        """Queue a message behind all others; what it replaces is taken out."""
        index: cython.int
        self.last += 1
        waiting.position = self.last
        self.entries[waiting.position] = waiting
        self.bytes += _ENTRY_BYTES + waiting.size + waiting.live * _PIECE_BYTES
        for index in range(len(waiting.pieces)):
            mode: cython.int = waiting.modes[index]
            if mode == _LATEST:
                self._replace(waiting, index)
            elif mode == _BOOK:
                self._put_order(waiting, index)
            elif mode == _FENCE:
                service = waiting.outgoing.service
                self.fences[service] = self.fences.get(service, 0) + 1
        return 0

    def put_front(self, outgoing: OutgoingMessage) -> None:
        """Queue a message of a book's block: before all others, behind those put so before."""
        self.front.append(outgoing)
        self.bytes += _ENTRY_BYTES + len(outgoing.data)

    def _replace(self, waiting: Waiting, index: cython.int) -> cython.int:
        """Replace the older message with the same key; one that is part of the turn stays."""
        key: object = waiting.keys[index]
        before: tuple = self.index.get(key)
        if before is not None:
            old: Waiting = before[0]
            if old.position > self.sealed:
                self._remove_message(old, before[1])
            else:
                self.superseded += len(old.pieces[before[1]]) + _PIECE_BYTES
        self.index[key] = (waiting, index)
        return 0

    def _put_order(self, waiting: Waiting, index: cython.int) -> cython.int:
        """Queue an order's change; drop it where its book is dirty, and make the book dirty at one
        too many."""
        key: tuple = waiting.keys[index]
        if key in self.dirty:
            self._remove_message(waiting, index)
            return 0
        waits: object = self.orders.get(key)
        if waits is None:
            waits = self.orders[key] = deque()
        waits.append((waiting, index))
        if len(waits) > _ORDERS_MIN and len(waits) > self.orders_max(key[0], key[1]):
            self._soil(key)
        return 0

    def _soil(self, key: tuple) -> cython.int:
        """Mark a book to be sent whole, and take out the changes of it that wait."""
        for waiting, index in self.orders.pop(key):
            self._remove_message(waiting, index)
        self.dirty[key] = True
        self.bytes += _DIRTY_BYTES
        return 0

    def _remove_message(self, waiting: Waiting, index: cython.int) -> cython.int:
        """Take out a market message, which is not to be sent."""
        size: cython.Py_ssize_t = len(waiting.pieces[index])
        outgoing: OutgoingMessage = waiting.outgoing
        waiting.pieces[index] = None
        waiting.live -= 1
        waiting.size -= size
        self.bytes -= size + _PIECE_BYTES
        self.conflated += 1
        self.conflated_bytes += size
        gone: list = self.gone.get(outgoing.service)
        if gone is None:
            self.gone[outgoing.service] = [1, outgoing.sequence, outgoing.sequence]
        else:
            gone[0] += 1
            gone[1] = min(gone[1], outgoing.sequence)
            gone[2] = max(gone[2], outgoing.sequence)
        if waiting.live == 0:
            del self.entries[waiting.position]
            self.bytes -= _ENTRY_BYTES + waiting.size
        return 0

    def drain_gone(self) -> dict[int, list[int]]:
        """Return what was taken out of each service since the last call (see `gone`)."""
        gone, self.gone = self.gone, {}
        return gone

    # -- what goes --------------------------------------------------------------------------

    def next_size(self) -> cython.Py_ssize_t:
        """Return the bytes of the message that `pop` would return; -1 where there is none."""
        if self.front:
            outgoing: OutgoingMessage = self.front[0]
            return len(outgoing.data)
        if not self.entries:
            return -1
        waiting: Waiting = next(iter(self.entries.values()))
        return waiting.size

    def peek(self) -> OutgoingMessage | None:
        """Return the message that `pop` would return, without its pieces; None where there is
        none."""
        if self.front:
            return self.front[0]
        if not self.entries:
            return None
        waiting: Waiting = next(iter(self.entries.values()))
        return waiting.outgoing

    @cython.ccall
    def pop(self) -> Waiting:
        """Remove and return the next message; the caller has checked `next_size`."""
        index: cython.int
        waiting: Waiting
        if self.front:
            outgoing: OutgoingMessage = self.front.popleft()
            self.bytes -= _ENTRY_BYTES + len(outgoing.data)
            return Waiting(outgoing, [], [], [])
        _, waiting = self.entries.popitem(last=False)
        if waiting.position > self.sealed:  # a new turn begins
            self.sealed = self.last
            self.superseded = 0
            self.turn = None
        self.bytes -= _ENTRY_BYTES + waiting.size + waiting.live * _PIECE_BYTES
        for index in range(len(waiting.pieces)):
            if waiting.pieces[index] is not None:
                mode: cython.int = waiting.modes[index]
                if mode == _LATEST:
                    self._forget(waiting, index)
                elif mode == _BOOK:
                    self._pop_order(waiting.keys[index])
                elif mode == _FENCE:
                    self._pass_fence(waiting.outgoing.service)
        return waiting

    def _forget(self, waiting: Waiting, index: cython.int) -> cython.int:
        key: object = waiting.keys[index]
        found: tuple = self.index[key]
        if found[0] is waiting and found[1] == index:
            del self.index[key]
        return 0

    def _pop_order(self, key: tuple) -> cython.int:
        waits: object = self.orders[key]
        waits.popleft()
        if not waits:
            del self.orders[key]
        return 0

    def _pass_fence(self, service: object) -> cython.int:
        self.fences[service] -= 1
        if self.fences[service] == 0:
            del self.fences[service]
        return 0

    # -- books ------------------------------------------------------------------------------

    def at_end_of_turn(self) -> cython.bint:
        """Return whether books may be sent now."""
        if self.front:
            return False
        if not self.entries:
            return True
        waiting: Waiting = next(iter(self.entries.values()))
        return waiting.position > self.sealed

    def due(self) -> tuple[int, int] | None:
        """Return (service, symbol) of a book that is to be sent now; None where there is none."""
        if not self.dirty or not self.at_end_of_turn():
            return None
        if self.turn is None or (not self.turn and not self.entries):
            self.turn = deque(self.dirty)
        while self.turn:
            key = self.turn[0]
            if key in self.dirty and key[0] not in self.fences:
                return key
            self.turn.popleft()
        return None

    def clean(self, key: tuple[int, int]) -> None:
        """Record that a dirty book is sent now, or given up: later changes wait as they are."""
        del self.dirty[key]
        self.bytes -= _DIRTY_BYTES
        if self.turn and self.turn[0] == key:
            self.turn.popleft()

    # -- too much ---------------------------------------------------------------------------

    def squeeze(self) -> bool:
        """Drop an entry that can be dropped without loss; return whether there was
        anything."""
        for key in self.orders:
            self._soil(key)
            return True  # one at a time: the feed waits meanwhile
        if self.superseded * SUPERSEDED_SHARE < self.bytes_max:
            return False
        self._end_turn()
        return True

    def clear(self) -> None:
        """Drop all that waits."""
        for held in (self.entries, self.front, self.index, self.orders, self.dirty, self.fences):
            held.clear()
        self.turn = None
        self.bytes = self.superseded = 0

    def _end_turn(self) -> None:
        """Take out what the turn kept although newer ones wait."""
        index: cython.int
        waiting: Waiting
        for waiting in [each for each in self.entries.values() if each.position <= self.sealed]:
            for index in range(len(waiting.pieces)):
                if waiting.pieces[index] is not None and waiting.modes[index] == _LATEST:
                    found = self.index[waiting.keys[index]]
                    if found[0] is not waiting or found[1] != index:
                        self._remove_message(waiting, index)
        self.sealed = 0
        self.superseded = 0
