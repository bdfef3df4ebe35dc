"""C view of a destination whose backlog goes to disk."""

from feedhandler.amqp.publishing.destination cimport Destination


cdef class SpillDestination(Destination):
    cdef readonly object spill
    cdef object wall
    cdef object on_work
    cdef readonly bint lacking
    cdef public bint attended
