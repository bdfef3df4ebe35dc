from feedhandler.amqp.fanout cimport Fanout
from feedhandler.amqp.framing cimport Frame
from feedhandler.amqp.sender_queue cimport SenderQueue
from feedhandler.amqp.stream cimport Stream
from feedhandler.retrans.store cimport PacketStore


cdef class Cursor:
    cdef readonly SenderQueue sender_queue
    cdef readonly Stream stream
    cdef Stream past
    cdef readonly object history
    cdef PacketStore store
    cdef readonly unsigned long long following
    cdef Py_ssize_t serial
    cdef Py_ssize_t note
    cdef Py_ssize_t skip
    cdef Py_ssize_t block


cdef class CatchUps:
    cdef Fanout fanout
    cdef object on_overtaken
    cdef readonly object cursors
    cdef readonly list arrived
    cdef Frame frame
    cdef readonly unsigned long long bytes_read
    cdef readonly unsigned long long overtaken
    cpdef bint turn(self, Py_ssize_t bytes_max)
    cpdef int report(self, SenderQueue sender_queue, Stream stream, unsigned long long sequence, object body)
    cdef Py_ssize_t _read(self, Cursor cursor, Py_ssize_t bytes_max)
    cdef bint _overtaken(self, Cursor cursor)
    cdef Py_ssize_t _packets(self, Cursor cursor, Py_ssize_t stop, Py_ssize_t bytes_max)
    cdef int _deliver(
        self, Cursor cursor, unsigned long long sequence, long long received_ns,
        const unsigned char[::1] source, Py_ssize_t start, Py_ssize_t size,
        Py_ssize_t count, Py_ssize_t skip)
