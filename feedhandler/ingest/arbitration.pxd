from feedhandler.codecs.scanner cimport PacketHeader
from feedhandler.ingest.epochs cimport Epochs
from feedhandler.ingest.hold cimport PacketPool
from feedhandler.ingest.output cimport Output, Outside
from feedhandler.ingest.quarantine cimport Quarantine
from feedhandler.ingest.sequencer cimport Sequencer
from feedhandler.ingest.watch cimport LineWatch

cdef class Arbiter:
    cdef readonly Output out
    cdef Sequencer stream
    cdef LineWatch watch
    cdef Quarantine quarantine
    cdef Epochs epochs
    cdef PacketPool pool
    cdef Outside outside
    cdef readonly object settings
    cdef readonly int line_count
    cdef unsigned char[::1] actions

    cdef unsigned long long start_wait, resync_wait
    cdef unsigned long long max_jump, resync_run, first_sequence

    # state of the stream
    cdef readonly int state
    cdef readonly unsigned long long session
    cdef bint joined
    cdef unsigned long long last_accepted
    cdef unsigned long long work_deadline
    cdef unsigned long long next_alarm

    # joining
    cdef bint join_seen
    cdef unsigned long long join_since, join_lowest, join_highest
    cdef int join_line

    # a new numbering that is being announced
    cdef int pending_cause
    cdef Py_ssize_t pending_slot
    cdef bint pending_reported
    cdef unsigned long long pending_next, pending_session

    cpdef bint is_old(self, PacketHeader header, unsigned long long now_ns) noexcept nogil
    cpdef int receive(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cpdef int start(self, unsigned long long now_ns) except -1 nogil
    cpdef int tick(self, unsigned long long now_ns) except -1 nogil
    cpdef int note_read(self, unsigned long long now_ns) noexcept nogil
    cpdef unsigned long long next_deadline(self) noexcept nogil

    cdef int _sort(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cdef int _outside(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cdef int _act(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cdef int _input_of(self, PacketHeader header) noexcept nogil
    cdef int _publish(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cdef int _hold(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cdef int _make_room(self, unsigned long long sequence, unsigned long long now_ns) except -1 nogil
    cdef int _drop_old(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cdef int _alarm(
        self, int line, PacketHeader header, unsigned long long now_ns) except -1 nogil
    cdef bint _is_newer(self, PacketHeader header, unsigned long long now_ns) noexcept nogil
    cdef int _hint(
        self, int line, unsigned long long number, unsigned long long now_ns) except -1 nogil
    cdef int _start_at(self, unsigned long long number, unsigned long long now_ns) except -1 nogil
    cdef int _begin(self, unsigned long long now_ns) except -1 nogil
    cdef int _advance(self, unsigned long long now_ns) except -1 nogil
    cdef int _settle(self, unsigned long long now_ns) except -1 nogil
    cdef bint _is_repeated_reset(self, PacketHeader header) noexcept nogil
    cdef int _reset(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cdef int _judge_reset(
        self, int line, PacketHeader header, unsigned long long now_ns) except -1 nogil
    cdef int _renumber(
        self, int cause, unsigned long long session, unsigned long long number,
        Py_ssize_t slot, unsigned long long now_ns) except -1 nogil
    cdef int _finish_renumbering(self, unsigned long long now_ns) except -1 nogil
    cdef int _enter_epoch(self, unsigned long long now_ns) except -1 nogil
    cdef int _take_session(self, unsigned long long session) noexcept nogil
    cdef int _other_session(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cdef int _quarantine(
        self, int line, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long received_ns, unsigned long long now_ns) except -1 nogil
    cdef int _confirm(
        self, unsigned long long session, bint alone, unsigned long long now_ns) except -1 nogil
    cdef int _adopt(
        self, unsigned long long first, unsigned long long session,
        unsigned long long now_ns) except -1 nogil
