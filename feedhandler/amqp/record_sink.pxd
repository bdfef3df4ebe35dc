# Declarations for other compiled modules; record_sink.py describes each name.

from feedhandler.amqp.stream cimport Stream
from feedhandler.codecs.scanner cimport MessageIndex, PacketHeader


cdef class RecordSink:
    cdef readonly list opened
    cpdef int packet(
        self, Stream stream, unsigned long long sequence, long long received_ns,
        const unsigned char[::1] data, Py_ssize_t start, PacketHeader header, MessageIndex index,
        Py_ssize_t skip) except -1
