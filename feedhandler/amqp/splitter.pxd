from feedhandler.amqp.framing cimport Frame
from feedhandler.amqp.sender_queue cimport SenderQueue
from feedhandler.amqp.stream cimport Route, Stream
from feedhandler.codecs.message_symbols cimport SymbolWalk
from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader


cdef class Splitter:
    cdef const unsigned char[::1] source
    cdef FeedTable table
    cdef PacketHeader header
    cdef SymbolWalk walk
    cdef MessageIndex index
    cdef Frame plain
    cdef Frame stamped
    cdef object thin_memory
    cdef unsigned char[::1] thin
    cdef list touched
    cdef list ahead
    cdef int near[8]
    cdef list batching
    cdef object name_of
    cdef object alias_of
    cdef unsigned char[::1] is_reference
    cdef bint has_references
    cdef bint restricted
    cdef bint scanned
    cdef public bint has_send_time
    cdef readonly unsigned long long route_lookups
    cdef readonly unsigned long long route_hits
    cdef readonly unsigned long long route_resets
    cdef Py_ssize_t _load(self, const unsigned char[::1] data)
    cdef bint _scan(self, Py_ssize_t start, Py_ssize_t size)
    cdef list _references(self, Py_ssize_t start, Py_ssize_t size)
    cdef int _whole(
        self, Stream stream, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size)
    cdef int _end_batches(self, Stream stream)
    cdef int _split(
        self, Stream stream, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size, Py_ssize_t skip)
    cdef Py_ssize_t _look_ahead(self, Stream stream, Py_ssize_t start, Py_ssize_t first)
    cdef int _select_for_whole(self, Stream stream, Py_ssize_t first, Py_ssize_t count)
    cdef int _deliver_several(
        self, Stream stream, unsigned long long sequence, Py_ssize_t number,
        long long received_ns, Py_ssize_t start)
    cdef int _read_symbol(self, Py_ssize_t start, Py_ssize_t number)
    cdef int _open_symbols(self, Py_ssize_t at, Py_ssize_t number)
    cdef int _fetch(self, Py_ssize_t first, Py_ssize_t wanted)
    cdef int _forget_ahead(self)
    cdef int _single(
        self, SenderQueue sender_queue, Route route, unsigned long long sequence, Py_ssize_t number,
        long long received_ns, Py_ssize_t start, int built)
    cdef int _body(self, Frame frame, Py_ssize_t start, Py_ssize_t number)
    cdef int _thin(
        self, Stream stream, SenderQueue sender_queue, unsigned long long sequence, long long received_ns,
        Py_ssize_t start, Py_ssize_t size)
    cdef Route _route(self, Stream stream, unsigned long long symbol)
