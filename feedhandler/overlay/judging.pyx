# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""The judge of a proxy, compiled: forward a datagram, drop it, or leave it to Python.

`Judge` makes the checks that `Admission` makes of data, in the same order and with the same
verdicts: the form of the header, the tree, the source, whether it is the first copy, its seal.
First copies take their slot in the ring of ids that `Admission` has, so both may judge in turn.
Rare datagrams are left to Python (`RARE`): heartbeats, notices, reports, probes, answers, and data
of a sender that began anew.

`Admission` is the reference: a test has both judge the same datagrams. Compiled only.
"""

import socket as _socket

from libc.string cimport memset

from feedhandler.overlay.blake2b cimport (
    half_at, seal_key, seal_parts, seal_same, uint64_t, word_at,
)

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.deduplication import Verdict
from feedhandler.overlay.tree import HEDGING_MAX
from feedhandler.overlay.wire import HEAD_BYTES, KEY_BYTES, MAGIC, PAYLOAD_MAX, SEALED_FROM, VERSION
from feedhandler.overlay.wire import Fault as _Fault
from feedhandler.overlay.wire import Kind

cdef unsigned char _MAGIC_0 = MAGIC[0], _MAGIC_1 = MAGIC[1], _VERSION = VERSION
cdef int _KIND_FIRST = Kind.DATA, _KIND_LAST = Kind.NOTICE, _DATA = Kind.DATA
cdef int _HEARTBEAT = Kind.HEARTBEAT, _NOTICE = Kind.NOTICE
cdef size_t _HEAD_BYTES = HEAD_BYTES, _SEALED_FROM = SEALED_FROM, _PAYLOAD_MAX = PAYLOAD_MAX
cdef int _SHORT = _Fault.SHORT, _MAGIC = _Fault.MAGIC, _OTHER_VERSION = _Fault.VERSION
cdef int _KIND = _Fault.KIND, _LENGTH = _Fault.LENGTH, _NUMBER = _Fault.NUMBER, _TREE = _Fault.TREE
cdef int _STRANGER = _Fault.STRANGER, _SEAL = _Fault.SEAL

#: Answers are counters: faults by their numbers, verdicts behind them.
cdef enum:
    _RARE = 0
    _VERDICTS = 24
cdef int _DUPLICATE = _VERDICTS + Verdict.DUPLICATE, _BEHIND = _VERDICTS + Verdict.BEHIND
cdef int _OLD = _VERDICTS + Verdict.OLD
_NAMES = {int(fault): fault.name.lower() for fault in _Fault}
_NAMES |= {_VERDICTS + verdict: verdict.name.lower() for verdict in Verdict}
assert max(map(int, _Fault)) < _VERDICTS and max(_NAMES) < _COUNTERS
assert 1 + HEDGING_MAX <= _SOURCES_MAX  # a parent and its neighbours

RARE = "rare"


def address_number(address):
    """Return an address as one number: the host's four bytes, then the port's two.

    Raises `UsageError` where the host is no IPv4 address.
    """
    host, port = address
    try:
        return int.from_bytes(_socket.inet_aton(host), "big") << 16 | port
    except OSError:
        raise UsageError(f"{host!r} is no IPv4 address", "members are at addresses") from None


cdef class Judge:
    """The compiled judge; see the module.

    `first` is the answer for a first copy; answers are counted until `drain_counts`.
    """

    def __init__(self):
        memset(self._counts, 0, sizeof(self._counts))
        self.first = _VERDICTS + <int>Verdict.FIRST
        self._sources_count = 0

    def direct(self, topology, name, copies):
        """Judge for this member of a topology; `copies`: the `Deduplicator` of its `Admission`.
        Raises `UsageError` where a source's host is no IPv4 address."""
        cdef int index
        member = topology.member(name)
        numbers = [address_number(each.address) for each in topology.sources(member)]
        for index in range(min(len(numbers), _SOURCES_MAX)):
            self._sources[index] = numbers[index]
        self._sources_count = len(numbers)
        self._tree = topology.tree
        seal_key(self._key, topology.key, KEY_BYTES)
        self._copies, self._ids = copies, copies.ids
        self._mask = copies.slots - 1
        self.refresh()

    def refresh(self):
        """Take the epoch anew, after `Admission` has judged something."""
        self._epoch = self._copies.epoch

    cdef int judge(
        self, const unsigned char *datagram, size_t length, uint64_t source
    ) noexcept nogil:
        """Return the answer for a datagram that came from `source` (see `address_number`)."""
        cdef int answer = self._decide(datagram, length, source)
        self._counts[answer] += 1
        return answer

    cdef int _decide(
        self, const unsigned char *datagram, size_t length, uint64_t source
    ) noexcept nogil:
        cdef unsigned char wanted[16]
        cdef uint64_t epoch, number, there
        cdef size_t size
        cdef int fault = self._form(datagram, length)
        if fault:
            return fault
        if half_at(datagram + 4) != self._tree:
            return _TREE
        if datagram[3] != _DATA:
            return _RARE
        if not self._knows(source):
            return _STRANGER
        epoch, number = word_at(datagram + 8), word_at(datagram + 16)
        if epoch != self._epoch:
            return _OLD if epoch < self._epoch else _RARE
        there = self._ids[<Py_ssize_t>(number & self._mask)]
        if there >= number:
            return _DUPLICATE if there == number else _BEHIND
        size = length - _HEAD_BYTES
        seal_parts(self._key, datagram, datagram + _HEAD_BYTES, size, wanted)
        if not seal_same(wanted, datagram + _SEALED_FROM):
            return _SEAL
        self._ids[<Py_ssize_t>(number & self._mask)] = number
        return self.first

    cdef int _form(self, const unsigned char *datagram, size_t length) noexcept nogil:
        """Return the fault of a header as `wire.read` does, or 0."""
        cdef size_t size
        if length < _HEAD_BYTES:
            return _SHORT
        if datagram[0] != _MAGIC_0 or datagram[1] != _MAGIC_1:
            return _MAGIC
        if datagram[2] != _VERSION:
            return _OTHER_VERSION
        if not _KIND_FIRST <= datagram[3] <= _KIND_LAST:
            return _KIND
        size = half_at(datagram + 6)
        if size != length - _HEAD_BYTES or size > _PAYLOAD_MAX:
            return _LENGTH
        if word_at(datagram + 16) == 0 and datagram[3] != _HEARTBEAT and datagram[3] != _NOTICE:
            return _NUMBER
        # The highest bit of a time is the sign.
        if word_at(datagram + 8) == 0 or (word_at(datagram + 24) | word_at(datagram + 32)) >> 63:
            return _NUMBER
        return 0

    cdef bint _knows(self, uint64_t source) noexcept nogil:
        cdef int index
        for index in range(self._sources_count):
            if self._sources[index] == source:
                return True
        return False

    def admit(self, bytes datagram not None, address):
        """Return the answer for one datagram by name: a fault, a verdict or `RARE`."""
        answer = self.judge(datagram, len(datagram), address_number(address))
        return RARE if answer == _RARE else _NAMES[answer]

    def drain_counts(self, counts):
        """Add the counts to a `Counter` and clear them; return the number of first copies.

        Datagrams left to Python are counted there.
        """
        cdef int index
        cdef unsigned long long first = self._counts[self.first]
        for index in range(1, _COUNTERS):
            if self._counts[index]:
                counts[_NAMES[index]] += self._counts[index]
                self._counts[index] = 0
        return first
