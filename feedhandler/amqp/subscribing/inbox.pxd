from feedhandler.amqp.framing cimport Reader
from feedhandler.amqp.proton cimport ReceiverLink
from feedhandler.codecs.scanner cimport FeedTable, PacketHeader


cdef class Message:
    cdef readonly str key
    cdef readonly bytes body
    cdef readonly bytes tag
    cdef readonly str content
    cdef readonly unsigned int day
    cdef readonly unsigned int feed_number
    cdef readonly unsigned int service
    cdef readonly unsigned long long sequence
    cdef readonly int number
    cdef readonly long long received_ns
    cdef readonly unsigned long long send_time
    cdef readonly long long group_sequence
    cdef readonly object feed
    cdef readonly dict references


cdef class Inbox:
    cdef readonly dict references
    cdef Reader reader
    cdef readonly object feed
    cdef readonly long long expected
    cdef readonly unsigned long long messages
    cdef readonly unsigned long long malformed
    cdef readonly bytearray bodies
    cdef readonly bytearray parts
    cdef readonly unsigned int day
    cdef readonly unsigned int feed_number
    cdef readonly unsigned int service
    cdef readonly bint snapshot
    cdef readonly object failure
    cdef bytes last_content
    cdef str last_content_text
    cdef readonly Py_ssize_t notes
    cdef bint whole_batches
    cdef Py_ssize_t record_bytes
    cdef Py_ssize_t record_sequence_at
    cdef bint numbered
    cdef FeedTable table
    cdef PacketHeader header
    cdef unsigned long long[::1] prefixes
    cdef unsigned long long[::1] sequences
    cdef unsigned int[::1] numbers
    cdef dict moved
    cpdef Py_ssize_t collect(self, ReceiverLink link, Py_ssize_t first, Py_ssize_t end)
    cdef Message _message(self, const unsigned char[::1] data)
    cdef bint _in_sequence(self)
    cdef int _remember(self, const unsigned char[::1] data)
    cdef int _assign_slot(self, Py_ssize_t slot, unsigned long long prefix)
    cdef unsigned long long _last_in_batch(self, const unsigned char[::1] data)
    cdef unsigned long long _last_of_records(self, const unsigned char[::1] data, unsigned long long first)
    cdef bint _in_block(self, const unsigned char[::1] data)
    cdef int _identify(self, const unsigned char[::1] data)
    cdef bint _parse(self, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end)
    cdef bint _fail(self, str why)
    cdef bint _is_quality(self, const unsigned char[::1] data)
    cdef str _content(self, const unsigned char[::1] data)
