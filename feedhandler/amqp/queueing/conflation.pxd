"""C view of conflation for the backlog."""

from feedhandler.amqp.queueing.unsettled_map cimport OutgoingMessage


cdef class Waiting:
    cdef readonly OutgoingMessage outgoing
    cdef readonly list pieces
    cdef readonly list modes
    cdef readonly list keys
    cdef readonly Py_ssize_t lead
    cdef readonly Py_ssize_t live
    cdef readonly unsigned long long position
    cdef readonly Py_ssize_t size


cdef class Conflation:
    cdef readonly Py_ssize_t bytes_max
    cdef object orders_max
    cdef readonly Py_ssize_t bytes
    cdef readonly object entries
    cdef readonly object front
    cdef readonly dict index
    cdef readonly dict orders
    cdef readonly dict dirty
    cdef readonly object turn
    cdef readonly dict fences
    cdef readonly unsigned long long last
    cdef readonly unsigned long long sealed
    cdef readonly Py_ssize_t superseded
    cdef readonly unsigned long long conflated
    cdef readonly unsigned long long conflated_bytes
    cdef readonly dict gone
    cpdef int put(self, Waiting waiting)
    cdef int _replace(self, Waiting waiting, int index)
    cdef int _put_order(self, Waiting waiting, int index)
    cdef int _soil(self, tuple key)
    cdef int _take_out(self, Waiting waiting, int index)
    cpdef Py_ssize_t next_size(self)
    cpdef Waiting pop(self)
    cdef int _forget(self, Waiting waiting, int index)
    cdef int _pop_order(self, tuple key)
    cdef int _pass_fence(self, object service)
    cpdef bint at_end_of_turn(self)
