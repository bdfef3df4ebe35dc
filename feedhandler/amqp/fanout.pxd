from feedhandler.amqp.framing cimport Frame
from feedhandler.amqp.outlet cimport Outlet, Peer
from feedhandler.amqp.stream cimport Route, Stream
from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader
from feedhandler.ingest.ring cimport Ring


cdef class Fanout:
    cdef readonly list streams
    cdef readonly list dirty_peers
    cdef readonly list outlets
    cdef Ring ring
    cdef const unsigned char[::1] source
    cdef FeedTable table
    cdef PacketHeader header
    cdef MessageIndex index
    cdef Frame plain
    cdef Frame stamped
    cdef object thin_memory
    cdef unsigned char[::1] thin
    cdef list touched
    cdef list batching
    cdef object on_mark
    cdef object on_reference
    cdef object on_refresh
    cdef object name_of
    cdef object alias_of
    cdef int reference_type
    cdef Py_ssize_t reference_bytes_min
    cdef bint restricted
    cdef long long[::1] stamps
    cdef unsigned short[::1] stamp_streams
    cdef Py_ssize_t stamp_count
    cdef public Ring tap
    cdef public object keeper
    cdef readonly unsigned long long tap_drops
    cdef unsigned long long tap_ns
    cdef readonly unsigned long long route_lookups
    cdef readonly unsigned long long route_hits
    cdef readonly unsigned long long route_resets
    cdef readonly unsigned long long quality_messages
    cpdef bint pump(self, Py_ssize_t bytes_max)
    cdef int _mark(self, int kind, Py_ssize_t place, Py_ssize_t word)
    cdef int _refresh(self, Py_ssize_t place, Py_ssize_t offset)
    cdef int _packet(self, Stream stream, Py_ssize_t offset)
    cdef int _deliver(
        self, Stream stream, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size, Py_ssize_t count, Py_ssize_t skip)
    cdef Py_ssize_t _take(self, const unsigned char[::1] data)
    cdef int _learn(self, Stream stream, Py_ssize_t start, Py_ssize_t size)
    cdef int _whole(
        self, Stream stream, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size)
    cdef int _split(
        self, Stream stream, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size, Py_ssize_t skip)
    cdef int _single(
        self, Outlet outlet, Route route, unsigned long long sequence, Py_ssize_t number,
        long long received_ns, Py_ssize_t start, int built)
    cdef int _body(self, Frame frame, Py_ssize_t start, Py_ssize_t number)
    cdef int _thin(
        self, Stream stream, Outlet outlet, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size)
    cdef Route _route(self, Stream stream, unsigned long long symbol)
    cdef int _tap(
        self, Stream stream, unsigned long long sequence, unsigned long long received_ns,
        Py_ssize_t start, Py_ssize_t size)
    cdef int _end(self, bint more)
    cpdef list settle(self)
    cpdef int note_latency(self, long long now_ns)
