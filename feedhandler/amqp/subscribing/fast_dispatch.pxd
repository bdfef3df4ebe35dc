from feedhandler.amqp.proton cimport ReceiverLink
from feedhandler.amqp.subscribing.columns cimport Batch
from feedhandler.amqp.subscribing.inbox cimport Inbox


cdef class FastDispatch:
    cdef readonly ReceiverLink link
    cdef readonly object callback
    cdef readonly Batch batch
    cdef readonly Py_ssize_t taken
    cdef Inbox inbox
    cdef object intake
    cdef object feed
    cdef str grain
    cdef object workspace
    cdef Py_ssize_t consumed
    cdef Py_ssize_t granted_at
    cpdef bint dispatch(self)
    cpdef int return_credit(self)
