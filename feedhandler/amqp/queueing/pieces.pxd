"""C view of the pieces of messages for the backlog."""

from feedhandler.amqp.queueing.conflation cimport Waiting
from feedhandler.amqp.framing cimport Template
from feedhandler.amqp.queueing.window cimport Parcel
from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader


cdef class Pieces:
    cdef FeedTable table
    cdef str order
    cdef PacketHeader header
    cdef MessageIndex index
    cdef dict rules
    cpdef list[Waiting] split(self, Parcel parcel)
    cdef Waiting _packet(self, Parcel parcel, Py_ssize_t start, Py_ssize_t end)
    cdef list _batch(self, Parcel parcel, Template template)
    cdef Waiting _single(self, Parcel parcel, Py_ssize_t start)
    cpdef Parcel join(self, Waiting waiting)
