# Declarations for other compiled modules; record_fanout.py describes each name.

from feedhandler.amqp.record_sink cimport RecordSink
from feedhandler.amqp.sender_queue cimport SenderQueue
from feedhandler.amqp.stream cimport Stream
from feedhandler.market.records cimport Records


cdef class Selection:
    cdef readonly SenderQueue link
    cdef readonly str schema
    cdef Stream stream
    cdef object levels
    cdef bint defines
    cdef RecordFanout fanout
    cdef unsigned char[::1] marks

    cdef int add(
        self, const unsigned char[::1] octets, const unsigned int[::1] ordinals,
        Py_ssize_t record_bytes, Py_ssize_t count, unsigned long long sequence,
        long long received_ns
    ) except -1
    cdef int send(
        self, const unsigned char[::1] octets, Py_ssize_t record_bytes, Py_ssize_t first,
        Py_ssize_t end, unsigned long long sequence, long long received_ns
    ) except -1
    cdef int widen(self) except -1


cdef class Instruments:
    cdef readonly Stream stream
    cdef readonly list ids
    cdef readonly dict ordinals
    cdef public bint suspect

    cdef unsigned int ordinal_of(self, unsigned int instrument) except? 4294967295


cdef class RecordFanout(RecordSink):
    cdef readonly Records records
    cdef object feed, name_of, alias_of, names, midnights
    cdef bint has_send_time
    cdef list instruments
    cdef dict selections
    cdef unsigned int[::1] ordinals
    cdef dict last_statuses, terms
    cdef long long received_ns

    cdef int give_statuses(
        self, Stream stream, unsigned long long sequence, long long received_ns) except -1
    cdef int give(self, Stream stream, unsigned long long sequence, long long received_ns) except -1
    cdef Py_ssize_t locate(
        self, Instruments instruments, const unsigned long long[::1] words, Py_ssize_t stride,
        Py_ssize_t count
    ) except -1
