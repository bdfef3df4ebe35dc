"""C view of a link with a backlog."""

from feedhandler.amqp.queueing.backlog cimport Backlog


cdef class BackloggedLink(Backlog):
    pass
