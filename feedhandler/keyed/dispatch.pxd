from feedhandler.keyed.heap cimport Heap
from feedhandler.keyed.key_table cimport KeyTable


cdef class Dispatch:
    cdef readonly unsigned long long[::1] ids
    cdef readonly unsigned short[::1] tries
    cdef unsigned char[::1] _state, _flying
    cdef int[::1] _left, _right, _key, _after, _before, _first, _at
    cdef readonly int[::1] lengths
    cdef readonly KeyTable keys
    cdef Heap _woken
    cdef dict _following
    cdef readonly set followed
    cdef readonly int key_slots, run, messages_max, key_messages_max, count, flying, parked
    cdef readonly unsigned long long taken
    cdef public unsigned long long visible
    cdef unsigned long long _mask
    cdef int _fresh, _free, _ready, _newest

    cpdef int enqueue(self, unsigned long long message, const unsigned long long[::1] digests) except -2
    cpdef Py_ssize_t enqueue_many(
        self, const unsigned long long[::1] messages, const unsigned long long[::1] digests,
        int[::1] slots) except -1
    cpdef Py_ssize_t take_many(self, int consumer, int[::1] slots) except -1
    cpdef int end_many(self, const int[::1] slots) except -1
    cpdef int take(self, int consumer) except -1
    cpdef bint open_to_all(self) except -1
    cpdef bint follows(self, int consumer) except -1
    cpdef int end(self, int slot) except -1
    cpdef int recall(self, int slot) except -1
    cpdef int give_back(self, int slot, bint failed) except -1
    cpdef int park(self, int slot) except -1
    cpdef int unpark(self, int slot) except -1
    cpdef int name(self, int slot, unsigned long long number) except -1
    cpdef int find(self, unsigned long long number) except -1
    cpdef unsigned long long number(self, int slot) except? 6148914691236517205
    cpdef int failures(self, int slot) except -1
    cpdef int remember(self, int slot, int tries) except -1
    cpdef int state(self, int slot) except -1
    cpdef int consumer(self, int slot) except -1
    cpdef list before(self, int slot)
    cpdef list chain(self, int key, int most)
    cdef bint _append(self, int key, int link) except -1
    cdef int _next_in_chain(self, int key, int link) except -1
    cdef bint _has(self, int slot, int used, int key) except -1
    cdef int _unlink(self, int slot) except -1
    cdef int _forget_keys(self, int slot, bint reconsider) except -1
    cdef int _first_waiting(self, int key) except -1
    cdef int _reconsider_first(self, int key) except -1
    cdef int _reconsider_firsts(self, int slot) except -1
    cdef int _reconsider(self, int slot) except -1
    cdef int _verdict(self, int slot) except? -2
    cdef int _count_flying(self, int slot, int change) except -1
    cdef int _append_ready(self, int slot) except -1
    cdef int _leave(self, int slot) except -1
    cdef int _follow(self, int consumer, int slot) except -1
    cdef int _unfollow(self, int consumer, int slot) except -1
    cdef int _first_following(self, int consumer) except -1
