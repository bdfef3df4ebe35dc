# Declarations for other compiled modules; datagram.py describes each name.

from feedhandler.codecs.fix.framing cimport Frame


cdef class Datagram:
    cdef readonly int messages, applications
    cdef readonly unsigned long long sequence, next_sequence
    cdef readonly bint consecutive
    cdef readonly unsigned long long admin_sequence
    cdef readonly unsigned long long new_sequence
    cdef readonly bint gap_fill, reset_numbers
    cdef readonly long long send_time_ns
    cdef readonly Py_ssize_t fault_at


# As in framing.pxd: the datagram is the `size` bytes from `first` on.
cdef int walk_datagram_at(
    const unsigned char *first, Py_ssize_t size, Frame frame, Datagram out
) noexcept nogil
cpdef int walk_datagram(
    const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size, Frame frame, Datagram out
) except -1 nogil
