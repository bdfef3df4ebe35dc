from feedhandler.codecs.scanner cimport PacketHeader
from feedhandler.ingest.belief cimport Belief
from feedhandler.ingest.hold cimport Hold, PacketPool
from feedhandler.ingest.lost cimport Islands, LostRanges, Runs
from feedhandler.ingest.output cimport Output
from feedhandler.ingest.packing cimport Copies

cdef class Sequencer:
    cdef readonly Output out
    cdef readonly PacketPool pool
    cdef readonly Hold hold
    cdef readonly Copies copies
    cdef readonly LostRanges lost
    cdef public unsigned long long expected
    cdef public bint blocked
    cdef public unsigned long long last_send_time, first_time
    cdef public unsigned long long epoch
    cdef unsigned long long gap_wait, give_up_wait, asked
    cdef bint recovering, gap_reported
    cdef unsigned long long known_next, known_since, later_next, later_since
    cdef unsigned long long forced_until
    cdef int cause
    # belief
    cdef readonly Hold aside
    cdef int lines
    cdef readonly Belief belief
    cdef bint by_line
    cdef int known_line, later_line
    cdef unsigned long long known_order, later_order
    # losses announced in error
    cdef Runs runs
    cdef readonly Islands islands
    cdef unsigned long long island_at, island_since, read_up_to

    cpdef int publish(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns) except -1 nogil
    cpdef int keep(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cpdef bint enlist(
        self, Py_ssize_t slot, unsigned long long print_64, bint fresh) except -1 nogil
    cpdef bint is_full(self) noexcept nogil
    cpdef bint make_room(self) except -1 nogil
    cpdef int speaker(self, Py_ssize_t slot) except -1 nogil
    cpdef bint has_next(self) except -1 nogil
    cpdef int progress(self, int line, bint again) except -1 nogil
    cpdef int copy(self, int line, PacketHeader header) except -1 nogil
    cpdef int disprove(self, unsigned long long number) except -1 nogil
    cpdef unsigned long long believed_end(self) except? 6148914691236517205 nogil
    cpdef unsigned long long position_of(
        self, int line, unsigned long long latest) except? 6148914691236517205 nogil
    cpdef int go_back(self, unsigned long long first) except -1 nogil
    cpdef int reveal(
        self, int line, unsigned long long number, unsigned long long now_ns) except -1 nogil
    cpdef int force(self, unsigned long long until, int cause) noexcept nogil
    cpdef int force_all(self, int cause) except -1 nogil
    cpdef int release(self, unsigned long long now_ns) except -1 nogil
    cpdef int report_gaps(self) except -1 nogil
    cpdef bint waiting(self) except -1 nogil
    cpdef unsigned long long deadline(self) except? 6148914691236517205 nogil
    cpdef unsigned long long lowest(self) except? 6148914691236517205 nogil
    cpdef int begin(self, unsigned long long number, unsigned long long now_ns) except -1 nogil
    cpdef int restart(self, unsigned long long number) except -1 nogil

    cpdef bint meets_island(self, unsigned long long next_sequence) noexcept nogil
    cdef int _kept(self, int line) except -1 nogil
    cdef bint _is_alike(
        self, Py_ssize_t slot, PacketHeader header, const unsigned char[::1] data,
        Py_ssize_t start) except -1 nogil
    cdef Py_ssize_t _next_gap(self) except -2 nogil
    cdef int _report(self, unsigned long long now_ns) except -1 nogil
    cdef int _believe_below(self, int line, unsigned long long number) except -1 nogil
    cdef bint _again_aside(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long print_64, unsigned long long now_ns) except -1 nogil
    cdef int _again(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long print_64, unsigned long long now_ns) except -1 nogil
    cdef int _confirm(self, Py_ssize_t slot) except -1 nogil
    cdef int _catch_out(self, Py_ssize_t slot, unsigned long long now_ns) except -1 nogil
    cdef bint _is_good(self, Py_ssize_t slot) except -1 nogil
    cdef int _set_aside(self) except -1 nogil
    cdef int _pass_island(self) except -1 nogil
    cdef bint _pass_aside(self, unsigned long long now_ns) except -1 nogil
    cdef bint _is_doubtful(self, Py_ssize_t slot, unsigned long long now_ns) except -1 nogil
    cdef int _believe_before(self, int line, unsigned long long sequence) except -1 nogil
    cdef bint _drop_copy(self, Hold hold, unsigned long long now_ns) except -1 nogil
    cdef int _drop_forged(
        self, unsigned long long end, unsigned long long now_ns) except -1 nogil
    cdef int _next_known(self) noexcept nogil
    cdef int _emit(self, Hold hold) except -1 nogil
    cdef unsigned long long _due(
        self, unsigned long long now_ns) except? 6148914691236517205 nogil
    cdef int _give_up(self, unsigned long long end) except -1 nogil
    cdef int _moved(self) noexcept nogil
