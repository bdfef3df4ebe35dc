"""C view of an envelope for the destination."""

from feedhandler.amqp.proton cimport PublisherLink


cdef class Envelope:
    cdef object address
    cdef unsigned char[::1] lead
    cdef bytes annotations
    cdef dict annotated
    cdef dict known
    cpdef int send(self, PublisherLink link, unsigned long long number, str key, bytes data)
