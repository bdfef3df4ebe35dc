from feedhandler.codecs.scanner cimport PacketHeader
from feedhandler.ingest.fingerprint cimport CompareWindow
from feedhandler.ingest.hold cimport Hold, PacketPool
from feedhandler.ingest.lost cimport LostRanges
from feedhandler.ingest.output cimport Output

cdef class Sequencer:
    cdef readonly Output out
    cdef readonly PacketPool pool
    cdef readonly Hold hold
    cdef readonly CompareWindow window
    cdef readonly LostRanges lost
    cdef public unsigned long long expected
    cdef public bint blocked
    cdef public unsigned long long last_send_time, first_time
    cdef public unsigned long long epoch
    cdef unsigned long long gap_wait, give_up_wait, asked
    cdef bint recovering, hole_told
    cdef unsigned long long known_next, known_since, later_next, later_since
    cdef unsigned long long forced_until
    cdef int cause

    cpdef int publish(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns) except -1 nogil
    cpdef int keep(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cpdef int reveal(self, unsigned long long number, unsigned long long now_ns) noexcept nogil
    cpdef int force(self, unsigned long long until, int cause) noexcept nogil
    cpdef int force_all(self, int cause) except -1 nogil
    cpdef int release(self, unsigned long long now_ns) except -1 nogil
    cpdef int tell(self) except -1 nogil
    cpdef bint waiting(self) except -1 nogil
    cpdef unsigned long long deadline(self) except? 6148914691236517205 nogil
    cpdef unsigned long long lowest(self) except? 6148914691236517205 nogil
    cpdef int begin(self, unsigned long long number, unsigned long long now_ns) except -1 nogil
    cpdef int restart(self, unsigned long long number) except -1 nogil

    cdef Py_ssize_t _next_hole(self) except -2 nogil
    cdef int _report(self, unsigned long long now_ns) except -1 nogil
    cdef int _emit(self, Py_ssize_t slot) except -1 nogil
    cdef unsigned long long _due(
        self, unsigned long long now_ns) except? 6148914691236517205 nogil
    cdef int _give_up(self, unsigned long long end) except -1 nogil
    cdef int _moved(self) noexcept nogil
