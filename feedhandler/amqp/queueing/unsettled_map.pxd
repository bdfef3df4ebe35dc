"""C view of the window for the destination."""

from feedhandler.histogram cimport Histogram


cdef class OutgoingMessage:
    cdef readonly bytes data
    cdef readonly unsigned int service
    cdef public unsigned long long sequence
    cdef public unsigned long long following
    cdef readonly bint block
    cdef readonly str reason
    cdef readonly str key
    cdef readonly long long sent_ns
    cdef public long long tried_ns
    cdef public int tries
    cdef public Py_ssize_t number_at
    cdef public object template
    cdef public long long came_ns
    cdef public unsigned long long item
    cdef public bint ended
    cdef public bint spilled
    cpdef OutgoingMessage cut(self, bytes data)


cdef class UnsettledMap:
    cdef readonly Py_ssize_t messages_max
    cdef readonly Py_ssize_t bytes_max
    cdef readonly Py_ssize_t returned_max
    cdef readonly Py_ssize_t bytes
    cdef object retry_ns
    cdef readonly dict held
    cdef unsigned long long number
    cdef readonly object again
    cdef readonly list waiting
    cdef readonly unsigned long long confirmed
    cdef readonly unsigned long long resent
    cdef readonly dict counts
    cdef readonly Histogram latency
    cpdef bint room(self, Py_ssize_t size)
    cpdef unsigned long long add(self, OutgoingMessage outgoing, long long now_ns)
    cpdef bint confirm(self, unsigned long long number, long long now_ns)
    cpdef unsigned long long next_again(self)
