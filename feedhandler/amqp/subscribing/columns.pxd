from feedhandler.amqp.subscribing.inbox cimport Inbox
from feedhandler.amqp.proton cimport ReceiverLink


cdef class Batch:
    cdef public object feed
    cdef readonly str grain
    cdef readonly list notes
    cdef readonly object data
    cdef readonly Py_ssize_t count
    cdef readonly int day
    cdef readonly int service
    cdef readonly bint snapshot
    cdef readonly bytearray parts
    cdef readonly Py_ssize_t width
    cdef object workspace
    cdef object scanned
    cpdef Py_ssize_t fill(self, Inbox inbox, ReceiverLink link, Py_ssize_t first, Py_ssize_t end)
    cpdef long long stamp(self, Py_ssize_t index)
