"""C view of a destination."""

from feedhandler.amqp.queueing.backlog cimport Backlog
from feedhandler.amqp.publishing.envelope cimport Envelope
from feedhandler.amqp.proton cimport PublisherLink
from feedhandler.amqp.queueing.unsettled_map cimport UnsettledMap


cdef class Destination(Backlog):
    cdef readonly PublisherLink link
    cdef readonly UnsettledMap unsettled
    cdef dict numbers
    cdef object on_batch
    cdef readonly str policy
    cdef Envelope envelope
    cdef readonly unsigned long long abandoned
    cpdef int process_outcomes(self)
    cpdef int flush_batches(self)
