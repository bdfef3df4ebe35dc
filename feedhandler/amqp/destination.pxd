"""C view of a destination."""

from feedhandler.amqp.envelope cimport Envelope
from feedhandler.amqp.framing cimport Frame
from feedhandler.amqp.outlet cimport Outlet
from feedhandler.amqp.proton cimport PublisherLink
from feedhandler.amqp.window cimport Parcel, Window


cdef class Destination(Outlet):
    cdef readonly PublisherLink link
    cdef readonly list streams
    cdef dict by_service
    cdef readonly dict shortfalls
    cdef readonly Window window
    cdef dict numbers
    cdef Frame note
    cdef readonly bint untold
    cdef unsigned long long following
    cdef object on_batch
    cdef Envelope envelope
    cdef object clock
    cdef readonly object behind_time
    cdef readonly object full_time
    cdef readonly unsigned long long dropped
    cdef readonly unsigned long long dropped_bytes
    cdef readonly unsigned long long abandoned
    cdef readonly unsigned long long overflows
    cdef readonly bint overflowing
    cdef long long _number(self, str key)
    cdef bint _may_send(self)
    cdef int _send(self, Parcel parcel)
    cdef int _send_now(self, Parcel parcel)
    cdef int _wait(self, Parcel parcel)
    cdef Parcel _pop(self)
    cpdef int settle(self)
    cpdef int flush_batches(self)
