"""C view of a backlog."""

from feedhandler.amqp.queueing.conflation cimport Conflation
from feedhandler.amqp.framing cimport Frame
from feedhandler.amqp.sender_queue cimport SenderQueue
from feedhandler.amqp.queueing.message_splitter cimport MessageSplitter
from feedhandler.amqp.queueing.unsettled_map cimport OutgoingMessage


cdef class Backlog(SenderQueue):
    cdef readonly list streams
    cdef dict by_service
    cdef readonly dict loss_trackers
    cdef Frame note
    cdef readonly object clock
    cdef readonly unsigned long long conflated
    cdef readonly unsigned long long conflated_bytes
    cdef readonly unsigned long long books_sent
    cdef readonly object behind_time
    cdef readonly object full_time
    cdef bint numbers_late
    cdef object notices
    cdef readonly bint untold
    cdef unsigned long long following
    cdef readonly unsigned long long dropped
    cdef readonly unsigned long long dropped_bytes
    cdef readonly unsigned long long overflows
    cdef readonly bint overflowing
    cdef readonly bint given_up
    cdef readonly Conflation conflation
    cdef MessageSplitter splitter
    cdef object book_cache
    cdef object fanout
    cdef bint fetching
    cdef long long _number(self, str key)
    cdef int _dispatch(self, OutgoingMessage outgoing)
    cdef bint _first(self)
    cdef bint _room(self, Py_ssize_t size)
    cdef Py_ssize_t _held_elsewhere(self)
    cdef OutgoingMessage _outgoing(self, Frame frame)
    cpdef bint accepts_more(self)
    cdef bint _may_send(self)
    cdef int _send(self, OutgoingMessage outgoing)
    cdef int _wait(self, OutgoingMessage outgoing)
    cdef OutgoingMessage _pop(self)
    cdef int _wait_conflated(self, OutgoingMessage outgoing)
    cdef int _count_conflated(self)
    cdef OutgoingMessage _peek(self)
    cdef Py_ssize_t _next_size(self)
    cdef bint _anything_to_tell(self)
    cdef bint _is_behind(self)
