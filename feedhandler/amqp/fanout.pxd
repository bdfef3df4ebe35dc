from feedhandler.amqp.framing cimport Frame, Template
from feedhandler.amqp.outlet cimport Outlet, Peer
from feedhandler.amqp.symbols cimport SymbolMap
from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader
from feedhandler.histogram cimport Histogram
from feedhandler.ingest.ring cimport Ring


cdef class Route:
    cdef readonly str key
    cdef Template plain
    cdef Template stamped
    cdef list singles
    cdef list thinned


cdef class Stream:
    cdef readonly int index
    cdef readonly unsigned int service
    cdef readonly str key
    cdef readonly bytes prefix
    cdef Template packet_plain
    cdef Template packet_stamped
    cdef Template batch_plain
    cdef Template batch_stamped
    cdef Template quality_template
    cdef readonly list whole
    cdef readonly list fine
    cdef readonly list concerned
    cdef SymbolMap symbols
    cdef list routes
    cdef readonly unsigned long long packets
    cdef readonly unsigned long long messages
    cdef readonly unsigned long long next_sequence
    cdef readonly Histogram latency


cdef class Fanout:
    cdef readonly list streams
    cdef readonly list dirty_peers
    cdef readonly list outlets
    cdef Ring ring
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
    cdef object name_of
    cdef int reference_type
    cdef long long[::1] stamps
    cdef unsigned short[::1] stamp_streams
    cdef Py_ssize_t stamp_count
    cdef readonly unsigned long long route_lookups
    cdef readonly unsigned long long route_hits
    cdef readonly unsigned long long route_resets
    cdef readonly unsigned long long quality_messages
    cpdef bint pump(self, Py_ssize_t bytes_max)
    cdef int _packet(self, Stream stream, Py_ssize_t offset)
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
    cdef int _end(self)
    cpdef list settle(self)
    cpdef int note_latency(self, long long now_ns)
