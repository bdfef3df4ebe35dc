from feedhandler.amqp.record_sink cimport RecordSink
from feedhandler.amqp.sender_queue cimport SenderQueue, Peer
from feedhandler.amqp.splitter cimport Splitter
from feedhandler.amqp.stream cimport Stream
from feedhandler.ingest.ring cimport Ring


cdef class Fanout(Splitter):
    cdef readonly list streams
    cdef readonly list dirty_peers
    cdef readonly list sender_queues
    cdef Ring ring
    cdef readonly object event
    # The share that is being delivered: where it stands, where the ring and it end.
    cdef unsigned long long position
    cdef unsigned long long share_end
    cdef unsigned long long share_limit
    # The last packet whose reference data was an event.
    cdef unsigned long long named
    cdef Py_ssize_t reference_bytes_min
    cdef long long[::1] stamps
    cdef unsigned short[::1] stamp_streams
    cdef Py_ssize_t stamp_count
    cdef public Ring tap
    cdef public object book_cache
    cdef public RecordSink records
    cdef readonly unsigned long long tap_drops
    cdef unsigned long long tap_ns
    cdef readonly unsigned long long quality_messages
    cpdef bint pump(self, Py_ssize_t bytes_max)
    cpdef bint resume(self)
    cdef bint _run(self)
    cdef int _control(self, int kind, Py_ssize_t channel, Py_ssize_t word)
    cdef bint _names(self, Stream stream, Py_ssize_t offset)
    cdef int _refresh(self, Py_ssize_t channel, Py_ssize_t offset)
    cdef int _packet(self, Stream stream, Py_ssize_t offset)
    cdef int _deliver(
        self, Stream stream, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size, Py_ssize_t count, Py_ssize_t skip)
    cdef int _outside(
        self, Stream stream, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size, Py_ssize_t count)
    cdef int _records(
        self, Stream stream, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size, Py_ssize_t skip)
    cdef int _note_opened(self)
    cdef int _note_stamp(self, Stream stream, long long received_ns)
    cdef int _tap(
        self, Stream stream, unsigned long long sequence, unsigned long long received_ns,
        Py_ssize_t start, Py_ssize_t size)
    cdef int _end(self, bint more)
    cpdef list[Peer] flush(self)
    cpdef int note_latency(self, long long now_ns)
