"""C view of the pieces of messages for the backlog."""

from feedhandler.amqp.queueing.conflation cimport Waiting
from feedhandler.amqp.framing cimport Template
from feedhandler.amqp.queueing.unsettled_map cimport OutgoingMessage
from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader


cdef class MessageSplitter:
    cdef FeedTable table
    cdef str order
    cdef object known
    cdef PacketHeader header
    cdef MessageIndex index
    cdef dict rules
    cpdef list[Waiting] split(self, OutgoingMessage outgoing)
    cdef Waiting _packet(self, OutgoingMessage outgoing, Py_ssize_t start, Py_ssize_t end)
    cdef list _batch(self, OutgoingMessage outgoing, Template template)
    cdef Waiting _single(self, OutgoingMessage outgoing, Py_ssize_t start)
    cpdef OutgoingMessage join(self, Waiting waiting)
