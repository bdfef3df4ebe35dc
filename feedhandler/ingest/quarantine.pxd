from feedhandler.codecs.scanner cimport PacketHeader
from feedhandler.ingest.hold cimport PacketPool

cdef class Quarantine:
    cdef PacketPool pool
    cdef int[::1] ring
    cdef readonly Py_ssize_t capacity
    cdef Py_ssize_t next_index
    cdef readonly unsigned long long anchor
    cdef unsigned long long[::1] run_next
    cdef unsigned long long[::1] run_session
    cdef unsigned long long[::1] run_length

    cpdef int weigh(
        self, int line, PacketHeader header, unsigned long long fingerprint, bint new_session,
        unsigned long long max_jump) except -1 nogil
    cdef int _evidence(
        self, Py_ssize_t slot, int line, PacketHeader header, unsigned long long fingerprint,
        bint new_session, unsigned long long max_jump) except -1 nogil
    cpdef unsigned long long follow_run(
        self, int line, PacketHeader header) except? 6148914691236517205 nogil
    cpdef bint lines_agree(
        self, int line, unsigned long long run, unsigned long long max_jump) except -1 nogil
    cpdef int add(self, Py_ssize_t slot) except -1 nogil
    cpdef unsigned long long lowest(
        self, unsigned long long session, unsigned long long least,
        unsigned long long max_jump) except? 6148914691236517205 nogil
    cpdef Py_ssize_t remove(self, Py_ssize_t index) except -2 nogil
    cpdef int clear(self) except -1 nogil
    cpdef int forget_runs(self) except -1 nogil
