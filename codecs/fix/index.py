# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The full index of a FIX message: every field, its entry and group, checked.

`index_message` walks the fields of a message that the framing has found whole and right, checks
each against a dictionary (`FixTable`, made by `feedhandler.codecs.fix.dictionary`) and writes where
its value lies into the arrays of a `FieldIndex`, which are reused for every message. Checked are:
the tag is known and belongs to the message or to the group that it stands in; header, body and
trailer are in order; no tag comes twice in one message or one entry; a group has the entries it
names, each beginning with the delimiter; data fields follow their lengths; values are of their
types, and among those that are listed; fields that the message must have are there.

Promises: exactly one `FixReject` a message, never an exception for what a peer sent; nothing read
outside the message; nothing allocated; each field examined once, but for the groups it ends. The
compiled module and this very file, interpreted, agree on every input.
"""

from typing import Any

import cython
import numpy
from cython.cimports.feedhandler.codecs.fix.framing import (
    Frame,
    frame_at,
    next_field,
    read_data_size,
)
from cython.cimports.feedhandler.codecs.fix.kinds import STRING
from cython.cimports.feedhandler.codecs.fix.reasons import (
    DELIMITER_MISSING,
    FIELD_ORDER,
    FINE,
    GROUP_COUNT_WRONG,
    INDEX_FULL,
    NESTING_TOO_DEEP,
    NO_MESSAGES,
    REPEATED_TAG,
    REQUIRED_MISSING,
    TAG_NOT_OF_MESSAGE,
    UNKNOWN_TAG,
    UNKNOWN_TYPE,
    VALUE_NOT_LISTED,
    VALUE_TYPE_WRONG,
)
from cython.cimports.feedhandler.codecs.fix.values import check_value, small_number

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.visibility import Public, Readonly

#: Tags below this have a slot in a table; the specification's are far below.
TAGS_MAX = 65_536
#: Default of the most fields and entries of one message: a book of a thousand levels.
INDEX_CAPACITY = 16_384
#: Most required fields of all messages together.
REQUIRED_MAX = 16_384
#: Values of `FixTable.set_part`; fields of neither part are of the body.
HEADER = 1
TRAILER = 2

#: Most levels of groups within groups; FIX 5.0 SP2 nests four deep.
_NESTING_MAX = cython.declare(cython.int, 8)
_STAMP_MAX = cython.declare(cython.uint, 0xFFFF_0000)


@cython.cclass
class FixTable:
    """A dictionary in the form that the index walks.

    `slots` is the number of its fields plus one, `scopes` that of its different lists of members.
    Tags of `user_tags_from` and above that it does not have pass, those below where
    `pass_unknown_tags` is set.
    """

    slots: Readonly[cython.int]
    scopes: Readonly[cython.int]
    required_count: Readonly[cython.int]
    user_tags_from: Public[cython.uint]
    pass_unknown_tags: Public[cython.bint]
    slot_of: cython.ushort[::1]
    kind_of: cython.uchar[::1]
    part_of: cython.uchar[::1]
    listed: cython.uchar[::1]
    data_of: cython.uint[::1]
    allowed: cython.uchar[:, ::1]
    actions: cython.ushort[:, ::1]
    delimiters: cython.uint[::1]
    type_scope: cython.int[::1]
    required_head: cython.int[::1]
    required_next: cython.int[::1]
    required_slot: cython.ushort[::1]
    tag_of: cython.uint[::1]

    def __init__(self, slots: cython.int, scopes: cython.int) -> None:
        self.slots = slots
        self.scopes = scopes
        self.required_count = 0
        self.user_tags_from = 5_000
        self.pass_unknown_tags = False
        # memoryviews, not arrays: their items are Python integers in the interpreted twin too.
        self.slot_of = memoryview(numpy.zeros(65_536, numpy.uint16))
        self.type_scope = memoryview(numpy.full(65_536, -1, numpy.int32))
        self.kind_of = memoryview(numpy.zeros(slots, numpy.uint8))
        self.part_of = memoryview(numpy.ones(slots, numpy.uint8))
        self.listed = memoryview(numpy.zeros(slots, numpy.uint8))
        self.data_of = memoryview(numpy.zeros(slots, numpy.uint32))
        self.tag_of = memoryview(numpy.zeros(slots, numpy.uint32))
        self.allowed = memoryview(numpy.zeros((slots, 256), numpy.uint8))
        self.actions = memoryview(numpy.zeros((scopes, slots), numpy.uint16))
        self.delimiters = memoryview(numpy.zeros(scopes, numpy.uint32))
        self.required_head = memoryview(numpy.full(scopes, -1, numpy.int32))
        self.required_next = memoryview(numpy.full(REQUIRED_MAX, -1, numpy.int32))
        self.required_slot = memoryview(numpy.zeros(REQUIRED_MAX, numpy.uint16))

    def set_field(
        self, tag: cython.uint, slot: cython.int, kind: cython.uchar, data: cython.uint
    ) -> None:
        """Give field `tag` the slot `slot` (1 and above) and values of `kind`.

        Kinds are those of `feedhandler.codecs.fix.kinds`; the data field `data` has to follow it,
        where not 0.
        """
        self.slot_of[tag] = slot
        self.tag_of[slot] = tag
        self.kind_of[slot] = kind
        self.data_of[slot] = data

    def set_values(self, slot: cython.int, values: list[str], only: cython.bint) -> None:
        """Restrict one-character values of the field to these; `only`: forbid longer ones."""
        for value in values:
            self.allowed[slot, ord(value)] = 1
        self.listed[slot] = 1 if only else 2

    def set_part(self, tag: cython.uint, part: cython.int) -> None:
        """Assign the field to the HEADER or to the TRAILER."""
        self.part_of[self.slot_of[tag]] = 0 if part == 1 else 2

    def set_scope(self, scope: cython.int, delimiter: cython.uint) -> None:
        """Set the field that entries of the group `scope` begin with."""
        self.delimiters[scope] = delimiter

    def add_member(self, scope: cython.int, tag: cython.uint, group: cython.int) -> None:
        """Add field `tag` to `scope`; it counts entries of the scope `group`, unless -1.

        Raises ValueError for a group above 65,000.
        """
        if group > 65_000:
            raise ValueError(f"more than 65,000 scopes: {group}")
        self.actions[scope, self.slot_of[tag]] = 1 if group < 0 else group + 2

    def set_type(self, text: bytes, scope: cython.int) -> None:
        """Give messages of type `text` (one or two bytes) the members of `scope`."""
        self.type_scope[int.from_bytes(text, "big")] = scope

    def add_required(self, scope: cython.int, tag: cython.uint) -> None:
        """Require field `tag` of messages of `scope`. Raises ValueError for one too many."""
        if self.required_count >= REQUIRED_MAX:
            raise ValueError(f"more than {REQUIRED_MAX} required fields")
        self.required_slot[self.required_count] = self.slot_of[tag]
        self.required_next[self.required_count] = self.required_head[scope]
        self.required_head[scope] = self.required_count
        self.required_count += 1


@cython.cclass
class FieldIndex:
    """The positions of the fields of one message: preallocated arrays, entries 0..count-1.

    In the order of the message, from BeginString (8) to CheckSum (10):

    tags       u32  the field's tag
    offsets    u32  first byte of its value, from the beginning of the buffer
    sizes      u32  bytes of its value
    entries    u32  the entry that the field belongs to; 0 is the message itself

    Of the entries of repeating groups, 1..entry_count-1 (0 is the message):

    group_tags u32  tag of the field that counts the group (268)
    parents    u32  the entry that the group is in
    numbers    u32  number of the entry in its group, from 0
    firsts, ends u32  its fields in the arrays above, those of groups within it included

    Of a rejected message `fault_at` and `fault_tag` say where it is wrong, and `declared` and
    `found` how many entries a group has, where their number is wrong. An index is for messages of
    one table. Raises `UsageError` for a `capacity` of no fields.
    """

    tags: Readonly[cython.uint[::1]]
    offsets: Readonly[cython.uint[::1]]
    sizes: Readonly[cython.uint[::1]]
    entries: Readonly[cython.uint[::1]]
    group_tags: Readonly[cython.uint[::1]]
    parents: Readonly[cython.uint[::1]]
    numbers: Readonly[cython.uint[::1]]
    firsts: Readonly[cython.uint[::1]]
    ends: Readonly[cython.uint[::1]]
    capacity: Readonly[cython.Py_ssize_t]
    count: Readonly[cython.Py_ssize_t]
    entry_count: Readonly[cython.Py_ssize_t]
    fault_at: Readonly[cython.Py_ssize_t]
    fault_tag: Readonly[cython.uint]
    declared: Readonly[cython.uint]
    found: Readonly[cython.uint]
    seen: cython.uint[:, ::1]
    stamp: cython.uint
    depth: cython.int
    part: cython.int
    scope_at: cython.int[9]
    stamp_at: cython.uint[9]
    entry_at: cython.uint[9]
    tag_at: cython.uint[9]
    declared_at: cython.uint[9]
    found_at: cython.uint[9]
    count_at: cython.Py_ssize_t[9]

    def __init__(self, table: FixTable, capacity: cython.Py_ssize_t = 16_384) -> None:
        if capacity < 1:
            raise UsageError(f"an index with room for {capacity} fields", "1 or more")
        self.capacity = capacity
        self.count = self.entry_count = 0
        self.fault_at = self.fault_tag = self.declared = self.found = 0
        self.stamp = self.depth = self.part = 0
        self.tags = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.offsets = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.sizes = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.entries = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.group_tags = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.parents = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.numbers = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.firsts = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.ends = memoryview(numpy.zeros(capacity, numpy.uint32))
        self.seen = memoryview(numpy.zeros((9, table.slots), numpy.uint32))
        if not cython.compiled:
            self.scope_at = [0] * 9
            self.stamp_at = [0] * 9
            self.entry_at = [0] * 9
            self.tag_at = [0] * 9
            self.declared_at = [0] * 9
            self.found_at = [0] * 9
            self.count_at = [0] * 9

    def arrays(self) -> dict[str, numpy.ndarray]:
        """Return numpy views (no copies) of the fields, by name."""
        names = ("tags", "offsets", "sizes", "entries")
        return {name: numpy.asarray(getattr(self, name))[: self.count] for name in names}

    def groups(self) -> dict[str, numpy.ndarray]:
        """Return numpy views (no copies) of the entries, the message itself first, by name."""
        names = ("group_tags", "parents", "numbers", "firsts", "ends")
        return {name: numpy.asarray(getattr(self, name))[: self.entry_count] for name in names}

    def fields(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (tag, value) of each field of the message that was read from `data`."""
        spans = zip(self.tags[: self.count], self.offsets, self.sizes, strict=False)
        return [(tag, bytes(data[at : at + size])) for tag, at, size in spans]

    def tree(self, data: bytes) -> list[tuple[int, Any]]:
        """Return the message read from `data` as `feedhandler.codecs.fix.encode.encode` takes it.

        A field that counts entries has, in place of its value, the list of these, each a list of
        fields.
        """
        lists: list[list[tuple[int, Any]]] = [[]]
        for index, (tag, value) in enumerate(self.fields(data)):
            entry = len(lists)
            if entry < self.entry_count and self.firsts[entry] == index:
                around = lists[self.parents[entry]]
                # Users' tags may stand between the count and the first entry.
                count_at = len(around) - 1
                while around[count_at][0] != self.group_tags[entry]:
                    count_at -= 1
                if self.numbers[entry] == 0:
                    around[count_at] = (self.group_tags[entry], [])
                lists.append([])
                around[count_at][1].append(lists[entry])
            lists[self.entries[index]].append((tag, value))
        return lists[0]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _put(
    out: FieldIndex, tag: cython.uint, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.int:
    """Append a field to the arrays; return INDEX_FULL where they have no room."""
    index: cython.Py_ssize_t = out.count
    if index >= out.capacity:
        return INDEX_FULL
    out.tags[index] = tag
    out.offsets[index] = cython.cast(cython.uint, at)
    out.sizes[index] = cython.cast(cython.uint, size)
    out.entries[index] = out.entry_at[out.depth]
    out.count = index + 1
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _begin(frame: Frame, scope: cython.int, out: FieldIndex) -> cython.int:
    """Empty the index and append the first two fields; return a `FixReject`."""
    depth: cython.int
    slot: cython.Py_ssize_t
    if out.stamp > _STAMP_MAX:
        # Once in 4 billion messages and entries: clear what was seen, and start the stamps again.
        for depth in range(9):
            for slot in range(out.seen.shape[1]):
                out.seen[depth, slot] = 0
        out.stamp = 0
    out.stamp += 1
    out.depth = out.part = 0
    out.scope_at[0] = scope
    out.stamp_at[0] = out.stamp
    out.entry_at[0] = 0
    out.count = 0
    out.entry_count = 1
    out.group_tags[0] = out.parents[0] = out.numbers[0] = out.firsts[0] = 0
    out.declared = out.found = 0
    _put(out, 8, frame.begin + 2, frame.length_at - frame.begin - 5)  # there is room for one
    return _put(out, 9, frame.length_at, frame.body - frame.length_at - 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _leave_group(out: FieldIndex) -> cython.int:
    """End the innermost group; return GROUP_COUNT_WRONG unless it had the entries it named."""
    depth: cython.int = out.depth
    if out.found_at[depth] != out.declared_at[depth]:
        return _wrong_count(out)
    out.ends[out.entry_at[depth]] = cython.cast(cython.uint, out.count)
    out.depth = depth - 1
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _wrong_count(out: FieldIndex) -> cython.int:
    out.fault_tag = out.tag_at[out.depth]
    out.fault_at = out.count_at[out.depth]
    out.declared = out.declared_at[out.depth]
    out.found = out.found_at[out.depth]
    return GROUP_COUNT_WRONG


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _enter_entry(out: FieldIndex) -> cython.int:
    """Begin the next entry of the innermost group; return GROUP_COUNT_WRONG for one too many."""
    depth: cython.int = out.depth
    entry: cython.Py_ssize_t = out.entry_count
    found: cython.uint = out.found_at[depth]
    if found:
        out.ends[out.entry_at[depth]] = cython.cast(cython.uint, out.count)
    out.found_at[depth] = found + 1
    if found == out.declared_at[depth]:
        return _wrong_count(out)
    # Each entry has a field, and the message has three before it: where the fields have room, the
    # entries have.
    out.stamp += 1
    out.stamp_at[depth] = out.stamp
    out.entry_at[depth] = cython.cast(cython.uint, entry)
    out.entry_count = entry + 1
    out.group_tags[entry] = out.tag_at[depth]
    out.parents[entry] = out.entry_at[depth - 1]
    out.numbers[entry] = found
    out.firsts[entry] = cython.cast(cython.uint, out.count)
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _enter_group(
    first: cython.p_const_uchar, frame: Frame, scope: cython.int, out: FieldIndex
) -> cython.int:
    """Begin the group that the field just appended counts, if any; return a `FixReject`."""
    declared: cython.int = small_number(first, frame.value_at, frame.value_end - frame.value_at)
    depth: cython.int = out.depth + 1
    if declared < 0:
        return VALUE_TYPE_WRONG
    if declared == 0:
        return FINE
    if depth > _NESTING_MAX:
        return NESTING_TOO_DEEP
    out.depth = depth
    # A user's tag may stand before the first entry: it is of what the group is in.
    out.entry_at[depth] = out.entry_at[depth - 1]
    out.scope_at[depth] = scope
    out.tag_at[depth] = frame.tag
    out.count_at[depth] = frame.fault_at
    out.declared_at[depth] = cython.cast(cython.uint, declared)
    out.found_at[depth] = 0
    return FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _check(
    table: FixTable, first: cython.p_const_uchar, frame: Frame, slot: cython.int
) -> cython.int:
    """Check a value against its field's type and listed values; return a `FixReject`."""
    at: cython.Py_ssize_t = frame.value_at
    size: cython.Py_ssize_t = frame.value_end - at
    kind: cython.int = table.kind_of[slot]
    listed: cython.int = table.listed[slot]
    index: cython.Py_ssize_t
    if kind != STRING and not check_value(kind, first, at, size):
        return VALUE_TYPE_WRONG
    if listed == 0:
        return FINE
    if size == 1:
        return FINE if table.allowed[slot, first[at]] else VALUE_NOT_LISTED
    if kind == 2:  # characters with spaces between
        for index in range(at, at + size, 2):
            if table.allowed[slot, first[index]] == 0:
                return VALUE_NOT_LISTED
        return FINE
    return VALUE_NOT_LISTED if listed == 1 else FINE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _find_action(table: FixTable, slot: cython.int, out: FieldIndex) -> cython.int:
    """Find the scope that the field belongs to, and end the groups that it ends.

    Returns the field's action there (1 and above, as `FixTable.actions` has it), or -1 less the
    reason.
    """
    depth: cython.int = out.depth
    action: cython.int = table.actions[out.scope_at[depth], slot]
    while action == 0:
        if depth == 0:
            return -TAG_NOT_OF_MESSAGE - 1
        if _leave_group(out) != FINE:
            return -GROUP_COUNT_WRONG - 1
        depth = out.depth
        action = table.actions[out.scope_at[depth], slot]
    return action


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1, check=True)
def _check_order(table: FixTable, frame: Frame, slot: cython.int, out: FieldIndex) -> cython.int:
    """Check the field against those before it: entries, repeated tags, header and trailer."""
    depth: cython.int = out.depth
    if depth:
        if frame.tag == table.delimiters[out.scope_at[depth]]:
            verdict: cython.int = _enter_entry(out)
            if verdict != FINE:
                return verdict
        elif out.found_at[depth] == 0:
            return DELIMITER_MISSING
    if out.seen[depth, slot] == out.stamp_at[depth]:
        if depth and out.found_at[depth] < out.declared_at[depth]:
            return DELIMITER_MISSING
        return REPEATED_TAG
    out.seen[depth, slot] = out.stamp_at[depth]
    if table.part_of[slot] != out.part:
        if table.part_of[slot] < out.part:
            return FIELD_ORDER
        out.part = table.part_of[slot]
    return FINE


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _append_field(
    table: FixTable, first: cython.p_const_uchar, frame: Frame, out: FieldIndex
) -> cython.int:
    """Check the field that was read last, and append it to the index; return a `FixReject`."""
    slot: cython.int = table.slot_of[frame.tag] if frame.tag < 65_536 else 0
    out.fault_at = frame.fault_at
    out.fault_tag = frame.tag
    if frame.tag == 10:
        return REPEATED_TAG  # the frame ends with its own CheckSum: readers would end here
    if slot == 0:
        if frame.tag < table.user_tags_from and not table.pass_unknown_tags:
            return UNKNOWN_TAG
        return _put(out, frame.tag, frame.value_at, frame.value_end - frame.value_at)
    action: cython.int = _find_action(table, slot, out)
    if action < 0:
        return -1 - action
    verdict: cython.int = _check_order(table, frame, slot, out)
    if verdict != FINE:
        return verdict
    verdict = _check(table, first, frame, slot)
    if verdict != FINE:
        return verdict
    if table.data_of[slot] and frame.data_tag == 0:
        frame.data_tag = table.data_of[slot]
        verdict = read_data_size(first, frame)
        if verdict != FINE:
            return verdict
    verdict = _put(out, frame.tag, frame.value_at, frame.value_end - frame.value_at)
    if verdict == FINE and action > 1:
        verdict = _enter_group(first, frame, action - 2, out)
    return verdict


@cython.cfunc
@cython.nogil
@cython.exceptval(-1, check=True)
def _finish(table: FixTable, frame: Frame, out: FieldIndex) -> cython.int:
    """End all groups, append CheckSum, and check that the required fields are there."""
    index: cython.int = table.required_head[out.scope_at[0]]
    while out.depth:
        if _leave_group(out) != FINE:
            return GROUP_COUNT_WRONG
    verdict: cython.int = _put(out, 10, frame.body_end + 3, 3)
    out.ends[0] = cython.cast(cython.uint, out.count)
    while index >= 0:
        if out.seen[0, table.required_slot[index]] != out.stamp_at[0]:
            out.fault_at = frame.body_end
            out.fault_tag = table.tag_of[table.required_slot[index]]
            return REQUIRED_MISSING
        index = table.required_next[index]
    return verdict


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_framed(first: cython.p_const_uchar, size: cython.Py_ssize_t, frame: Frame) -> cython.bint:
    """Return whether these bytes can be those that the frame was read from.

    The SOH at which the reading of every field ends must be where the frame says, and CheckSum's
    bytes behind it.
    """
    return (
        0 <= frame.begin < frame.body < frame.body_end
        and frame.body_end + 7 == frame.end <= size
        and first[frame.body_end - 1] == 1
    )


@cython.cfunc
@cython.nogil
def index_message_at(
    table: FixTable, first: cython.p_const_uchar, frame: Frame, out: FieldIndex
) -> cython.int:
    """Index a message for compiled callers: the offsets of `frame` count from `first`.

    See `index_message`; the caller has checked that `frame` is of these bytes.
    """
    at: cython.Py_ssize_t = frame.body
    scope: cython.int = table.type_scope[frame.message_type]
    out.count = out.entry_count = 0
    out.declared = out.found = 0
    out.fault_at = frame.type_at
    out.fault_tag = 35
    if scope < 0:
        return UNKNOWN_TYPE
    verdict: cython.int = _begin(frame, scope, out)
    frame.data_tag = 0
    while verdict == FINE and at < frame.body_end:
        verdict = next_field(first, at, frame)
        if verdict != FINE:
            out.fault_at = frame.fault_at
            out.fault_tag = frame.tag
            return verdict
        verdict = _append_field(table, first, frame, out)
        at = frame.value_end + 1
    return verdict if verdict != FINE else _finish(table, frame, out)


@cython.boundscheck(False)  # the first line checks the message against the bounds
@cython.ccall
@cython.nogil
def index_message(
    table: FixTable, data: cython.const_uchar[::1], frame: Frame, out: FieldIndex
) -> cython.int:
    """Index the message in `data` that `frame` was read from, and check it against the dictionary.

    Returns a `FixReject`: `NO_MESSAGES` where the frame is not of these bytes. Offsets count from
    the beginning of `data`.
    """
    if len(data) < 1:
        return NO_MESSAGES
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    if not _is_framed(first, len(data), frame):
        return NO_MESSAGES
    return index_message_at(table, first, frame, out)


@cython.boundscheck(False)  # the first line checks the bytes against the bounds
@cython.ccall
@cython.nogil
def read_message(
    table: FixTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    frame: Frame,
    out: FieldIndex,
) -> cython.int:
    """Frame and index the message that begins at `data[start]`; return a `FixReject`."""
    if start < 0 or size < 1 or start + size > len(data):
        return NO_MESSAGES
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    verdict: cython.int = frame_at(first, start + size, start, frame)
    if verdict != FINE:
        out.count = out.entry_count = 0
        out.declared = out.found = 0
        out.fault_at = frame.fault_at
        out.fault_tag = frame.tag
        return verdict
    return index_message_at(table, first, frame, out)


@cython.boundscheck(False)  # the first line checks the message against the bounds
@cython.ccall
@cython.nogil
def list_fields(data: cython.const_uchar[::1], frame: Frame, out: FieldIndex) -> cython.int:
    """Index a message without a dictionary: every field, in no group, no value checked.

    Data fields are those of the specification's header and trailer and of its encoded texts.
    Returns a `FixReject`.
    """
    at: cython.Py_ssize_t = frame.body
    if len(data) < 1:
        return NO_MESSAGES
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    if not _is_framed(first, len(data), frame):
        return NO_MESSAGES
    verdict: cython.int = _begin(frame, 0, out)
    frame.data_tag = 0
    while verdict == FINE and at < frame.body_end:
        verdict = next_field(first, at, frame)
        out.fault_at = frame.fault_at
        out.fault_tag = frame.tag
        if verdict == FINE:
            verdict = _put(out, frame.tag, frame.value_at, frame.value_end - frame.value_at)
        at = frame.value_end + 1
    if verdict == FINE:
        verdict = _put(out, 10, frame.body_end + 3, 3)
    return verdict


@cython.boundscheck(False)  # the first line checks the bytes against the bounds
@cython.ccall
@cython.nogil
def count_messages(
    table: FixTable,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    frame: Frame,
    out: FieldIndex,
    rejects: cython.ulonglong[::1],
) -> cython.Py_ssize_t:
    """Frame and index the consecutive messages in `data[start:start + size]`, and count them.

    Each is counted in `rejects`, by its `FixReject`. Returns the number of bytes read: all of them,
    or those up to a message whose framing is wrong, after which no other can be found.
    """
    at: cython.Py_ssize_t = start
    end: cython.Py_ssize_t = start + size
    if start < 0 or size < 1 or end > len(data):
        return 0
    first = cython.address(data[0]) if cython.compiled else memoryview(data)
    while at < end:
        verdict: cython.int = frame_at(first, end, at, frame)
        if verdict != FINE:
            rejects[verdict] += 1
            break
        verdict = index_message_at(table, first, frame, out)
        rejects[verdict] += 1
        at = frame.end
    return at - start
