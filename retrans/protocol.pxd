# Declarations for other compiled modules; protocol.py describes each name.

from feedhandler.codecs.scanner cimport FeedTable, PacketHeader


cdef class StreamFramer:
    cdef FeedTable _table
    cdef Py_ssize_t _header_size, _packet_bytes_max, _type_at, _type_end
    cdef object _types, _order
    cdef bint _type_is_masked
    cdef bytes _buffer
    cdef public object failure

    cpdef list feed(self, data)
    cdef _judge(self, bytes data, Py_ssize_t length, Py_ssize_t at, Py_ssize_t head)


cdef class SendClock:
    cdef object _zone, _start, _end, _unit_ns
    cdef bint _from_midnight

    cdef _midnight_ns(self, now_ns)
    cpdef send_time(self, now_ns)


cdef class _Form:
    cdef object _order
    cdef bytes _blank
    cdef dict _fields
    cdef readonly Py_ssize_t size

    cpdef number(self, bytes packet, name)
    cpdef text(self, bytes packet, name)


cdef class RecoveryProtocol:
    cdef SendClock _clock
    cdef readonly PacketHeader header
    cdef object _feed, _heartbeat_reply
    cdef tuple _requests, _responses
    cdef FeedTable _table
    cdef dict _forms

    cpdef read(self, packet)
    cpdef int open(self, packet) except -1
    cpdef meaning(self, packet)
    cdef _control(self, packet, _Form form, PacketHeader header)
