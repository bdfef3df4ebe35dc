"""Dispatch by key: one message at a time of each key, in order, and of all keys in parallel.

Every message has the same number of *key slots*: one, or several of which each counts (the
rule `any`: a transfer has two accounts). A message waits in one chain for each of its keys, behind
those that came before it, and goes out when none of these is left: so order holds for each key,
and nothing else delays it. What goes out is always the oldest that may go.

    state       where it is                                  consumer that may have it
    WAITING     behind another in one of its chains          none
    READY       first in all its chains since it came        any; in order of arrival
    WOKEN       first in all its chains since one ended      any; in a heap
    FOLLOWING   behind messages that one consumer has        that consumer (`run` above 1)
    FLYING      with a consumer                              none
    PARKED      given up, its keys stay taken                none

`run` messages of one key in a row may be with one consumer; 1 is strictly one after the other.
Where one of several is given back, it waits until those behind it have ended, for they have been
sent already.

No step depends on how many messages wait: it costs at most the square of the key_slots times `run`,
and the logarithm of the woken. Nothing is looked for by scanning the chains or the queue.
A message is named by its slot, a small number that is another's once it has ended. No I/O, no time,
no contents: those are the queue's.

Source: J. Benden, "FIFO, Exactly-Once, and Other Costs": its table of keys in flight, and skipping
what is blocked.
"""

import cython
import numpy
from cython.cimports.feedhandler.keyed.heap import Heap
from cython.cimports.feedhandler.keyed.key_table import KeyTable
from cython.cimports.feedhandler.keyed.slot_states import (
    FLYING,
    FOLLOWING,
    FREE,
    PARKED,
    READY,
    WAITING,
    WOKEN,
)

from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.keyed.settings import RUN_MAX

#: Keys that one message may have.
KEY_SLOTS_MAX = 8
#: Results of `_verdict` besides the one consumer that may have a message.
_NOBODY = cython.declare(cython.int, 0)
_ANYBODY = cython.declare(cython.int, -1)
_ALL = cython.declare(cython.ulonglong, 0xFFFF_FFFF_FFFF_FFFF)


@cython.final
@cython.cclass
class Dispatch:
    """At most `messages_max` messages and `keys_max` keys, each message with `key_slots` of these.

    count    messages held, in whatever state
    flying   messages with consumers
    parked   messages that hold their keys for good
    fresh    slots from this one on have never been used
    taken    messages ever handed out: rises with each, so it serves as a fence of the last one
    visible  messages with numbers above this are not handed out yet
    keys     the keys that have messages; each at most `key_messages_max` (0: any)
    lengths  how many messages each key has
    followed consumers for which a message came that only they may have; the caller clears it
    """

    ids: Readonly[cython.ulonglong[::1]]
    tries: Readonly[cython.ushort[::1]]
    _state: cython.uchar[::1]
    _flying: cython.uchar[::1]
    _left: cython.int[::1]
    _right: cython.int[::1]
    _key: cython.int[::1]
    _after: cython.int[::1]
    _before: cython.int[::1]
    _first: cython.int[::1]
    _at: cython.int[::1]
    _same: cython.int[::1]
    lengths: Readonly[cython.int[::1]]
    keys: Readonly[KeyTable]
    _woken: Heap
    _following: dict
    followed: Readonly[set]
    key_slots: Readonly[cython.int]
    run: Readonly[cython.int]
    messages_max: Readonly[cython.int]
    key_messages_max: Readonly[cython.int]
    count: Readonly[cython.int]
    flying: Readonly[cython.int]
    parked: Readonly[cython.int]
    taken: Readonly[cython.ulonglong]
    fresh: Readonly[cython.int]
    visible: Public[cython.ulonglong]
    _mask: cython.ulonglong
    _free: cython.int
    _ready: cython.int
    _newest: cython.int

    def __init__(
        self,
        messages_max: int,
        keys_max: int = 0,
        key_slots: int = 1,
        run: int = 1,
        key_messages_max: int = 0,
    ) -> None:
        if not 1 <= key_slots <= KEY_SLOTS_MAX:
            raise ValueError(f"a message has 1 to {KEY_SLOTS_MAX} keys")
        if not 1 <= run <= RUN_MAX:
            raise ValueError(f"a consumer may have 1 to {RUN_MAX} messages of a key")
        if messages_max < 1:
            raise ValueError("a queue needs room")
        # zeros() maps pages lazily: room that was never needed costs address space, not memory.
        slots = messages_max + 1
        self.ids = memoryview(numpy.zeros(slots, numpy.uint64))
        self.tries = memoryview(numpy.zeros(slots, numpy.uint16))
        self._state = memoryview(numpy.zeros(slots, numpy.uint8))
        # Neighbours in the list of the free or the ready; of the woken and following the index in
        # their heap (`_left`), of the flying and the following the consumer (`_right`).
        self._left = memoryview(numpy.zeros(slots, numpy.int32))
        self._right = memoryview(numpy.zeros(slots, numpy.int32))
        # A message's key_slots are links of chains, each a ring: before the first comes the last.
        self._key = memoryview(numpy.zeros(slots * key_slots, numpy.int32))
        self._after = memoryview(numpy.zeros(slots * key_slots, numpy.int32))
        self._before = memoryview(numpy.zeros(slots * key_slots, numpy.int32))
        self.keys = KeyTable(keys_max or messages_max * key_slots)
        self._first = memoryview(numpy.zeros(self.keys.keys_max + 1, numpy.int32))
        self.lengths = memoryview(numpy.zeros(self.keys.keys_max + 1, numpy.int32))
        self._flying = memoryview(
            numpy.zeros(self.keys.keys_max + 1 if run > 1 else 1, numpy.uint8)
        )
        # Where messages are: by the low bits of its number the one that came last, and from each
        # the one with the same low bits that came before it. Mostly there is none: this is written
        # only where there is one, so that its pages cost nothing.
        self._mask = (1 << messages_max.bit_length()) - 1
        self._at = memoryview(numpy.zeros(self._mask + 1, numpy.int32))
        self._same = memoryview(numpy.zeros(slots, numpy.int32))
        self._woken = Heap(self.ids, self._left)
        self._following: dict[int, Heap] = {}
        self.followed: set[int] = set()
        self.key_slots = key_slots
        self.run = run
        self.messages_max = messages_max
        self.key_messages_max = key_messages_max or messages_max
        self.count = self.flying = self.parked = 0
        self.taken = 0
        self.visible = _ALL
        self.fresh = 1
        self._free = self._ready = self._newest = 0

    # -- what happens -----------------------------------------------------------------------

    @cython.ccall
    @cython.exceptval(-2, check=False)
    def enqueue(
        self, message: cython.ulonglong, digests: cython.const_ulonglong[::1]
    ) -> cython.int:
        """Add a message behind all others; return its slot, 0 where there is no room for it or for
        one of its keys, -1 where one of them has as many messages as it may.

        `message` is its number, above that of every message before it; `digests` (uint64) has two
        words for each of its keys, high and low, for at most `key_slots` keys. A key that it has
        twice counts once; a message without keys waits for no other.
        """
        index: cython.int
        words: cython.Py_ssize_t = digests.shape[0]
        if words & 1 or words > 2 * self.key_slots:
            raise ValueError(f"digests of 0 to {self.key_slots} keys are two words each")
        if self.count == self.messages_max:
            return 0
        slot: cython.int = self._free if self._free else self.fresh
        blocked: cython.bint = False
        used: cython.int = 0
        for index in range(words >> 1):
            key: cython.int = self.keys.find(digests[2 * index], digests[2 * index + 1])
            if key and self._has(slot, used, key):
                continue
            if key and self.lengths[key] >= self.key_messages_max:
                self._unlink(slot)
                self._forget_keys(slot, False)
                return -1
            if not key:
                key = self.keys.add(digests[2 * index], digests[2 * index + 1])
                if not key:
                    self._unlink(slot)
                    self._forget_keys(slot, False)
                    return 0
            link: cython.int = slot * self.key_slots + used
            blocked |= self._append(key, link)
            used += 1
        if slot == self.fresh:
            self.fresh += 1
        else:
            self._free = self._right[slot]
        self.ids[slot] = message
        self._index(slot)
        self.tries[slot] = 0
        self.count += 1
        self._state[slot] = WAITING
        if not blocked:
            self._append_ready(slot)
        elif self.run > 1:
            self._reconsider(slot)
        return slot

    def enqueue_many(
        self,
        messages: cython.const_ulonglong[::1],
        digests: cython.const_ulonglong[::1],
        slots: cython.int[::1],
    ) -> cython.Py_ssize_t:
        """Add messages in order, until there is no room for one; return how many. `slots` (int32)
        gets their slots.

        `digests` has `key_slots` keys for each, two words each.
        """
        at: cython.Py_ssize_t
        words: cython.Py_ssize_t = 2 * self.key_slots
        if digests.shape[0] != messages.shape[0] * words or slots.shape[0] < messages.shape[0]:
            raise ValueError("each message has as many keys as there are key_slots, and a slot")
        for at in range(messages.shape[0]):
            slot: cython.int = self.enqueue(messages[at], digests[at * words : (at + 1) * words])
            if slot <= 0:
                return at
            slots[at] = slot
        return messages.shape[0]

    def take_many(self, consumer: cython.int, slots: cython.int[::1]) -> cython.Py_ssize_t:
        """Take as many messages as this consumer may have, and `slots` (int32) has room for; return
        how many."""
        at: cython.Py_ssize_t
        for at in range(slots.shape[0]):
            slot: cython.int = self.take(consumer)
            if not slot:
                return at
            slots[at] = slot
        return slots.shape[0]

    def end_many(self, slots: cython.const_int[::1]) -> cython.int:
        """End these messages, in this order."""
        at: cython.Py_ssize_t
        for at in range(slots.shape[0]):
            self.end(slots[at])
        return 0

    def take(self, consumer: cython.int) -> cython.int:
        """Take the oldest message that this consumer (above 0) may have; return its slot, 0 for
        none."""
        slot: cython.int = self._ready
        if slot and self.ids[slot] > self.visible:
            slot = 0
        woken: cython.int = self._woken.first()
        if woken and (not slot or self.ids[woken] < self.ids[slot]):
            slot = woken
        if self.run > 1:
            own: cython.int = self._first_following(consumer)
            if own and (not slot or self.ids[own] < self.ids[slot]):
                slot = own
        if not slot or self.ids[slot] > self.visible:
            return 0
        self._leave(slot)
        self._state[slot] = FLYING
        self._right[slot] = consumer
        self.flying += 1
        self.taken += 1
        if self.run > 1:
            self._count_flying(slot, 1)
            self._reconsider_firsts(slot)
        return slot

    def open_to_all(self) -> cython.bint:
        """Return whether there is a message that any consumer may have: `take` has one for each."""
        if self._ready and self.ids[self._ready] <= self.visible:
            return True
        woken: cython.int = self._woken.first()
        return woken != 0 and self.ids[woken] <= self.visible

    def follows(self, consumer: cython.int) -> cython.bint:
        """Return whether there is a message that only this consumer may have, as it has those
        before it (`run` above 1)."""
        return consumer in self._following

    def end(self, slot: cython.int) -> cython.int:
        """End a message (acknowledged, cancelled, expired, dead), and free what it held up. Raises
        ValueError for a free slot."""
        state: cython.int = self._state[slot]
        if state == FREE:
            raise ValueError("no such message")
        if state == FLYING:
            self.flying -= 1
            if self.run > 1:
                self._count_flying(slot, -1)
        elif state == PARKED:
            self.parked -= 1
        else:
            self._leave(slot)
        self._state[slot] = FREE
        self._unlink(slot)
        self._forget_keys(slot, True)
        self._unindex(slot)
        self.ids[slot] = 0
        self._right[slot] = self._free
        self._free = slot
        self.count -= 1
        return 0

    def recall(self, slot: cython.int) -> cython.int:
        """Block what is behind a message at which a consumer has failed, until it is given back or
        parked: no consumer gets that, not even this one. Raises ValueError where no consumer has
        it."""
        if self._state[slot] != FLYING:
            raise ValueError("nobody has this message")
        self._right[slot] = 0
        if self.run > 1:
            self._reconsider_firsts(slot)
        return 0

    def give_back(self, slot: cython.int, failed: cython.bint) -> cython.int:
        """Return a message to its position. `failed` counts another try. Raises ValueError where no
        consumer has it."""
        index: cython.int
        if self._state[slot] != FLYING:
            raise ValueError("nobody has this message")
        before: list = []
        if self.run > 1:
            for index in range(self.key_slots):
                link: cython.int = slot * self.key_slots + index
                if self._key[link]:
                    before.append(self._first_waiting(self._key[link]))
            self._count_flying(slot, -1)
        self.flying -= 1
        if failed and self.tries[slot] < 0xFFFF:
            self.tries[slot] += 1
        self._state[slot] = WAITING
        for other in before:
            if other:
                self._reconsider(other)
        self._reconsider_firsts(slot)
        self._reconsider(slot)
        return 0

    def park(self, slot: cython.int) -> cython.int:
        """Park a message that a consumer has, or that waits: no consumer gets it, and all behind it
        waits, until it is ended (`end`) or tried again (`unpark`). Raises ValueError for a slot
        that is free or parked."""
        if self._state[slot] == FREE or self._state[slot] == PARKED:
            raise ValueError("nobody may have this message")
        if self._state[slot] == FLYING:
            self.give_back(slot, False)
        self._leave(slot)
        self._state[slot] = PARKED
        self.parked += 1
        return 0

    def unpark(self, slot: cython.int) -> cython.int:
        """Have a parked message tried again, with its tries at 0. Raises ValueError where it is not
        parked."""
        if self._state[slot] != PARKED:
            raise ValueError("this message is not parked")
        self.parked -= 1
        self.tries[slot] = 0
        self._state[slot] = WAITING
        self._reconsider(slot)
        return 0

    def name(self, slot: cython.int, number: cython.ulonglong) -> cython.int:
        """Set the number of a message that came last; it must be above all before it."""
        self._unindex(slot)
        self.ids[slot] = number
        self._index(slot)
        return 0

    # -- looking ----------------------------------------------------------------------------

    def find(self, number: cython.ulonglong) -> cython.int:
        """Return the slot of the message with this number; 0 for none.

        Any `messages_max` numbers in a row have different low bits: only messages that have stayed
        while as many came are found behind others.
        """
        slot: cython.int = self._at[number & self._mask]
        while slot and self.ids[slot] != number:
            slot = self._same[slot]
        return slot

    @cython.ccall
    @cython.exceptval(6148914691236517205, check=True)
    def number(self, slot: cython.int) -> cython.ulonglong:
        """Return a message's number."""
        return self.ids[slot]

    def failures(self, slot: cython.int) -> cython.int:
        """Return how often a message has been given back as failed."""
        return self.tries[slot]

    def remember(self, slot: cython.int, tries: cython.int) -> cython.int:
        """Set how often a restored message was tried."""
        self.tries[slot] = tries
        return 0

    def state(self, slot: cython.int) -> cython.int:
        """Return a slot's state; see the module's table."""
        return self._state[slot]

    def consumer(self, slot: cython.int) -> cython.int:
        """Return the consumer that has a message; 0 for none."""
        return self._right[slot] if self._state[slot] == FLYING else 0

    @cython.ccall
    def before(self, slot: cython.int) -> list:
        """Return the numbers of the messages right before this one in its keys' chains."""
        index: cython.int
        found: list = []
        for index in range(self.key_slots):
            link: cython.int = slot * self.key_slots + index
            key: cython.int = self._key[link]
            if not key:
                break
            if self._first[key] != link:
                found.append(self.ids[self._before[link] // self.key_slots])
        return found

    @cython.ccall
    def chain(self, key: cython.int, most: cython.int) -> list:
        """Return the slots of a key's messages, in order, at most `most`; for inspection."""
        slots: list = []
        link: cython.int = self._first[key]
        while link and len(slots) < most:
            slots.append(link // self.key_slots)
            link = self._next_in_chain(key, link)
        return slots

    # -- numbers ----------------------------------------------------------------------------

    def _index(self, slot: cython.int) -> cython.int:
        """Make a message known by its number."""
        before: cython.int = self._at[self.ids[slot] & self._mask]
        if before:
            self._same[slot] = before
        self._at[self.ids[slot] & self._mask] = slot
        return 0

    def _unindex(self, slot: cython.int) -> cython.int:
        """Have a message known by its number no longer."""
        before: cython.int = self._same[slot]
        other: cython.int = self._at[self.ids[slot] & self._mask]
        if other == slot:
            self._at[self.ids[slot] & self._mask] = before
        else:
            while self._same[other] != slot:
                other = self._same[other]
            self._same[other] = before
        if before:
            self._same[slot] = 0
        return 0

    # -- chains -----------------------------------------------------------------------------

    def _append(self, key: cython.int, link: cython.int) -> cython.bint:
        """Append a link to its key's chain; return whether there is another before it."""
        first: cython.int = self._first[key]
        self._key[link] = key
        self.lengths[key] += 1
        if not first:
            self._first[key] = self._before[link] = self._after[link] = link
            return False
        last: cython.int = self._before[first]
        self._after[last] = link
        self._before[link] = last
        self._after[link] = first
        self._before[first] = link
        return True

    def _next_in_chain(self, key: cython.int, link: cython.int) -> cython.int:
        after: cython.int = self._after[link]
        return 0 if after == self._first[key] else after

    def _has(self, slot: cython.int, used: cython.int, key: cython.int) -> cython.bint:
        index: cython.int
        for index in range(used):  # noqa: SIM110 (C, not a generator)
            if self._key[slot * self.key_slots + index] == key:
                return True
        return False

    def _unlink(self, slot: cython.int) -> cython.int:
        """Remove a message from its chains; keys without a message are removed. The message keeps
        its other keys, for `_forget_keys`."""
        index: cython.int
        for index in range(self.key_slots):
            link: cython.int = slot * self.key_slots + index
            key: cython.int = self._key[link]
            if not key:
                break
            self.lengths[key] -= 1
            if self._after[link] == link:
                self._first[key] = 0
                self._key[link] = -1
                self.keys.remove(key)
                continue
            self._after[self._before[link]] = self._after[link]
            self._before[self._after[link]] = self._before[link]
            if self._first[key] == link:
                self._first[key] = self._after[link]
        return 0

    def _forget_keys(self, slot: cython.int, reconsider: cython.bint) -> cython.int:
        """Clear the keys of a message that is out of its chains; with `reconsider`, see who is
        first there now."""
        index: cython.int
        for index in range(self.key_slots):
            link: cython.int = slot * self.key_slots + index
            key: cython.int = self._key[link]
            if not key:
                break
            self._key[link] = 0
            if reconsider and key > 0:
                self._reconsider_first(key)
        return 0

    def _first_waiting(self, key: cython.int) -> cython.int:
        """Return the first message of a key that is not with a consumer; 0 for none, or none within
        `run`."""
        link: cython.int = self._first[key]
        left: cython.int = self.run
        while link and left >= 0:
            if self._state[link // self.key_slots] != FLYING:
                return link // self.key_slots
            link = self._next_in_chain(key, link)
            left -= 1
        return 0

    # -- who may go -------------------------------------------------------------------------

    def _reconsider_first(self, key: cython.int) -> cython.int:
        slot: cython.int = self._first_waiting(key)
        if slot:
            self._reconsider(slot)
        return 0

    def _reconsider_firsts(self, slot: cython.int) -> cython.int:
        """Decide anew which message may go first of each key of a message."""
        index: cython.int
        for index in range(self.key_slots):
            key: cython.int = self._key[slot * self.key_slots + index]
            if not key:
                break
            self._reconsider_first(key)
        return 0

    def _reconsider(self, slot: cython.int) -> cython.int:
        """Decide anew whether a message that waits may go, and to which consumer."""
        state: cython.int = self._state[slot]
        if state in (FLYING, PARKED, FREE):
            return 0
        verdict: cython.int = self._verdict(slot)
        if state == FOLLOWING and verdict != self._right[slot]:
            self._leave(slot)
            self._state[slot] = state = WAITING
        if verdict == _ANYBODY:
            if state == WAITING:
                self._state[slot] = WOKEN
                self._woken.push(slot)
        elif verdict != _NOBODY and state == WAITING:
            self._state[slot] = FOLLOWING
            self._right[slot] = verdict
            self._follow(verdict, slot)
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _verdict(self, slot: cython.int) -> cython.int:
        """Return who may have a message: _NOBODY, _ANYBODY, or the one consumer that has all before
        it."""
        index: cython.int
        alone: cython.int = _ANYBODY
        for index in range(self.key_slots):
            link: cython.int = slot * self.key_slots + index
            key: cython.int = self._key[link]
            if not key:
                break
            if self.run == 1:
                if self._first[key] != link:
                    return _NOBODY
                continue
            count: cython.int = 0
            before: cython.int = self._first[key]
            while before != link:
                if self._state[before // self.key_slots] != FLYING or count == self.run:
                    return _NOBODY
                holder: cython.int = self._right[before // self.key_slots]
                if alone != _ANYBODY and alone != holder:
                    return _NOBODY
                alone = holder
                count += 1
                before = self._after[before]
            if count == self.run or count < self._flying[key]:
                return _NOBODY
        return alone

    def _count_flying(self, slot: cython.int, change: cython.int) -> cython.int:
        index: cython.int
        for index in range(self.key_slots):
            key: cython.int = self._key[slot * self.key_slots + index]
            if not key:
                break
            self._flying[key] += change
        return 0

    # -- those who may go -------------------------------------------------------------------

    def _append_ready(self, slot: cython.int) -> cython.int:
        """Append a message that came last and waits for no other to the ready list."""
        self._state[slot] = READY
        if self._ready:
            self._right[self._newest] = slot
        else:
            self._ready = slot
        self._left[slot] = self._newest
        self._right[slot] = 0
        self._newest = slot
        return 0

    def _leave(self, slot: cython.int) -> cython.int:
        """Remove a message from those that may go, if it is among them."""
        state: cython.int = self._state[slot]
        if state == READY:
            left: cython.int = self._left[slot]
            right: cython.int = self._right[slot]
            if left:
                self._right[left] = right
            else:
                self._ready = right
            if right:
                self._left[right] = left
            else:
                self._newest = left
        elif state == WOKEN:
            self._woken.remove(slot)
        elif state == FOLLOWING:
            self._unfollow(self._right[slot], slot)
        return 0

    def _follow(self, consumer: cython.int, slot: cython.int) -> cython.int:
        heap: Heap = self._following.get(consumer)
        if heap is None:
            heap = self._following[consumer] = Heap(self.ids, self._left)
        heap.push(slot)
        self.followed.add(consumer)
        return 0

    def _unfollow(self, consumer: cython.int, slot: cython.int) -> cython.int:
        heap: Heap = self._following[consumer]
        heap.remove(slot)
        if heap.count == 0:
            del self._following[consumer]
        return 0

    def _first_following(self, consumer: cython.int) -> cython.int:
        heap: Heap = self._following.get(consumer)
        return 0 if heap is None else heap.first()
