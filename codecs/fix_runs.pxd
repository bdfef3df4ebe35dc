# Declarations for other compiled modules; runs.py describes each name.

from feedhandler.codecs.fix.datagram cimport Datagram
from feedhandler.codecs.fix.framing cimport Frame


cdef class Run:
    cdef readonly Frame frame
    cdef readonly Datagram datagram
    cdef public int kind, count
    cdef public unsigned long long sequence, next_sequence, send_time
    cdef public Py_ssize_t length
    cdef public unsigned int message_type
    cdef public bint poss_dup
    cdef public Py_ssize_t body, end
    cdef public Py_ssize_t field_at, symbol_at, symbol_size
    cdef public int unknown


# As in framing.pxd: offsets count from `first`.
cdef int begin_run(
    const unsigned char *first, Py_ssize_t size, const unsigned char *slots, Run run
) noexcept nogil
cdef int extend_run(
    const unsigned char *first, Py_ssize_t size, const unsigned char *slots, Run run
) noexcept nogil
cdef Py_ssize_t message_bytes(
    const unsigned char *first, Py_ssize_t at, Py_ssize_t end
) noexcept nogil
cdef int envelope(
    const unsigned char *first, Py_ssize_t at, Py_ssize_t end, Run run
) noexcept nogil
cdef unsigned int type_of(const unsigned char *first, Run run) noexcept nogil
cdef int begin_symbols(Run run) noexcept nogil
cdef int next_symbol(const unsigned char *first, unsigned int tag, Run run) noexcept nogil
cpdef unsigned long long symbol_number(const unsigned char[::1] text)
cdef unsigned long long symbol_value(
    const unsigned char *first, Py_ssize_t at, Py_ssize_t size
) noexcept nogil
