from feedhandler.codecs.scanner cimport FeedTable, PacketHeader
from feedhandler.ingest.fingerprint cimport CompareWindow
from feedhandler.ingest.hold cimport PacketPool

cdef class Copies:
    cdef readonly FeedTable table
    cdef readonly CompareWindow window
    cdef public bint by_message
    cdef readonly bint is_fix

    cpdef bint are_again(self, PacketHeader header) noexcept nogil
    cpdef int note(
        self, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start
    ) except -1 nogil
    cpdef int note_held(
        self, unsigned long long sequence, unsigned long long span, const unsigned char[::1] data,
        Py_ssize_t at, Py_ssize_t length, unsigned long long print_64) except -1 nogil
    cdef int _note_each(
        self, unsigned long long sequence, unsigned long long span, const unsigned char[::1] data,
        Py_ssize_t at, Py_ssize_t length) except -1 nogil
    cpdef int compare(
        self, unsigned long long sequence, unsigned long long span, const unsigned char[::1] data,
        Py_ssize_t at, Py_ssize_t length, unsigned long long print_64) except -1 nogil
    cdef int _compare_each(
        self, unsigned long long sequence, unsigned long long span, const unsigned char[::1] data,
        Py_ssize_t at, Py_ssize_t length) except -1 nogil
    cpdef int compare_packet(
        self, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start
    ) except -1 nogil
    cpdef unsigned long long known_span(
        self, unsigned long long sequence, const unsigned char[::1] data, Py_ssize_t at,
        Py_ssize_t length) except? 6148914691236517205 nogil
    cdef unsigned long long _known_each(
        self, unsigned long long sequence, const unsigned char *first, Py_ssize_t length
    ) except? 6148914691236517205 nogil
    cpdef int differ(self) noexcept nogil
    cpdef Py_ssize_t trim(
        self, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
        unsigned long long number) except -1 nogil
    cpdef int trim_held(
        self, PacketPool pool, Py_ssize_t slot, unsigned long long number) except -1 nogil
    cpdef int cut(
        self, PacketPool pool, Py_ssize_t slot, unsigned long long until) except -1 nogil
    cpdef int clear(self) except -1 nogil

cdef int _move(
    unsigned char[::1] slab, Py_ssize_t to, Py_ssize_t at, Py_ssize_t size) except -1 nogil
cpdef bint begin_alike(
    const unsigned char[::1] one, Py_ssize_t at, Py_ssize_t length,
    const unsigned char[::1] other, Py_ssize_t other_at, Py_ssize_t other_length
) except -1 nogil
