# Big-endian numbers and whole stretches of bytes, written in place; wirebytes.py is the
# interpreted twin. Inline: they stand in the innermost loops of the generator.

from libc.string cimport memcpy


cdef inline int put2(unsigned char[::1] data, Py_ssize_t at, unsigned long long value) except -1:
    data[at] = (value >> 8) & 0xFF
    data[at + 1] = value & 0xFF
    return 0


cdef inline int put4(unsigned char[::1] data, Py_ssize_t at, unsigned long long value) except -1:
    data[at] = (value >> 24) & 0xFF
    data[at + 1] = (value >> 16) & 0xFF
    data[at + 2] = (value >> 8) & 0xFF
    data[at + 3] = value & 0xFF
    return 0


cdef inline int copy(
    unsigned char[::1] to, Py_ssize_t at, unsigned char[::1] source, Py_ssize_t start,
    Py_ssize_t size,
) except -1:
    if size < 0 or at < 0 or start < 0 or at + size > len(to) or start + size > len(source):
        raise IndexError("bytes outside the buffer")
    if size > 0:
        memcpy(&to[at], &source[start], size)
    return 0
