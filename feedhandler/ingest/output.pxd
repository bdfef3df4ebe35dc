from feedhandler.codecs.scanner cimport PacketHeader
from feedhandler.ingest.fingerprint cimport UnsequencedWindow
from feedhandler.ingest.hold cimport PacketPool
from feedhandler.ingest.ring cimport Ring

cdef class Output:
    cdef readonly Ring ring
    cdef readonly int channel
    cdef readonly object line_array, channel_array
    cdef unsigned long long[::1] line_counters
    cdef long long[::1] rows
    cdef unsigned long long[::1] counters
    cdef public unsigned long long received_ns, session
    cdef unsigned long long outside_all
    cdef unsigned long long[::1] outside_won

    cpdef int packet(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long skip) except -1 nogil
    cpdef int held(self, PacketPool pool, Py_ssize_t slot, unsigned long long skip) except -1 nogil
    cpdef int control_event(
        self, int kind, int line, unsigned long long sequence, unsigned long long next_sequence,
        unsigned long long auxiliary) except -1 nogil
    cpdef unsigned long long won_by_others(
        self, int line) except? 6148914691236517205 nogil
    cpdef int count_outside(self, int line) except -1 nogil
    cpdef int count_line(self, int line, int column) except -1 nogil
    cpdef int count(self, int column, unsigned long long amount) except -1 nogil
    cpdef int highest(self, int column, unsigned long long value) except -1 nogil
    cdef int _skipped(
        self, int line, unsigned long long sequence,
        unsigned long long next_sequence) except -1 nogil
    cdef int _published(
        self, int line, unsigned long long messages, unsigned long long skip,
        unsigned long long length) except -1 nogil

cdef class Outside:
    cdef Output out
    cdef PacketPool pool
    cdef UnsequencedWindow window
    cdef int[::1] slots
    cdef readonly Py_ssize_t waiting

    cpdef int publish(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long expected,
        unsigned long long now_ns) except -1 nogil
    cpdef int flush(self) except -1 nogil
    cdef int _keep(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
