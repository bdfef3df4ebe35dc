from feedhandler.amqp.framing cimport Frame, Template
from feedhandler.amqp.proton cimport Connection, SenderLink


cdef class Peer:
    cdef public bint dirty
    cdef public bint writing
    cdef public bint leaving
    cdef public bint gone
    cdef public Connection engine
    cdef public Py_ssize_t backlog
    cdef public list dirty_peers
    cdef readonly list overruns
    cdef void mark_dirty(self)
    cpdef bint flush(self)


cdef class Batch:
    cdef Frame frame
    cdef bint is_open
    cdef unsigned long long following
    cdef unsigned long long sequence
    cdef unsigned int part


cdef class SenderQueue:
    # What each delivery reads or writes comes first: it then lies together in memory, which is
    # what many links on one connection cost.
    cdef readonly Peer peer
    cdef readonly SenderLink sender
    cdef readonly int grain
    cdef readonly bint stamp
    cdef readonly bint any_type
    cdef readonly bint overrun
    cdef readonly bint behind
    cdef public bint chosen
    cdef public bint more
    cdef public int catching
    cdef readonly unsigned int group_sequence
    cdef readonly Py_ssize_t queued_bytes
    cdef readonly unsigned long long sent
    cdef readonly unsigned long long sent_bytes
    cdef unsigned char[::1] types
    cdef Py_ssize_t selected_count
    cdef readonly object subscription
    cdef readonly object queue
    cdef readonly Py_ssize_t queue_bytes_max
    cdef readonly Py_ssize_t batch_bytes_max
    cdef readonly unsigned long long waited
    cdef readonly Py_ssize_t queued_bytes_high
    cdef dict batches
    cdef list open_batches
    cdef unsigned short[::1] selected
    cpdef bint accepts_more(self)
    cpdef bint wants_type(self, int message_type)
    cpdef int select(self, Py_ssize_t number)
    cpdef int deliver(self, Frame frame)
    cpdef int batch(
        self, int stream, Template template, unsigned long long sequence, long long received_ns,
        const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size)
    cpdef int close_batch(self, int stream)
    cpdef bint has_open_batch(self)
    cpdef int flush_due_batches(self)
    cpdef int drain(self)
    cdef int _close(self, Batch batch)
    cpdef int give_up(self)
    cdef bint _is_behind(self)
    cdef int _note_backlog(self)
    cdef int _enqueue(self, Frame frame)
