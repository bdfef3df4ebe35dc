# Records of a capture file, written in place; records.py has the meanings and the interpreted
# twins. Inline: they stand in the innermost loops of those who write captures.


cdef inline int put16(unsigned char[::1] out, Py_ssize_t at, unsigned int value) except -1 nogil:
    out[at] = (value >> 8) & 0xFF
    out[at + 1] = value & 0xFF
    return 0


cdef inline int put32(
    unsigned char[::1] out, Py_ssize_t at, unsigned long long value
) except -1 nogil:
    out[at] = value & 0xFF
    out[at + 1] = (value >> 8) & 0xFF
    out[at + 2] = (value >> 16) & 0xFF
    out[at + 3] = (value >> 24) & 0xFF
    return 0


cdef inline int begin_record(
    unsigned char[::1] out, Py_ssize_t at, unsigned long long time_ns, Py_ssize_t frame_bytes
) except -1 nogil:
    put32(out, at, time_ns // 1_000_000_000)
    put32(out, at + 4, time_ns % 1_000_000_000)
    put32(out, at + 8, frame_bytes)
    return put32(out, at + 12, frame_bytes)


cdef inline int begin_block(
    unsigned char[::1] out, Py_ssize_t at, Py_ssize_t size, Py_ssize_t interface,
    unsigned long long time_ns, Py_ssize_t frame_bytes,
) except -1 nogil:
    put32(out, at, 6)
    put32(out, at + 4, size)
    put32(out, at + 8, interface)
    put32(out, at + 12, time_ns >> 32)
    put32(out, at + 16, time_ns)
    put32(out, at + 20, frame_bytes)
    put32(out, at + 24, frame_bytes)
    return put32(out, at + size - 4, size)


cdef inline int fit_headers(
    unsigned char[::1] out, Py_ssize_t at, Py_ssize_t payload_bytes
) except -1 nogil:
    cdef unsigned int total = 0
    cdef Py_ssize_t word
    put16(out, at + 16, <unsigned int>(28 + payload_bytes))
    put16(out, at + 38, <unsigned int>(8 + payload_bytes))
    put16(out, at + 24, 0)
    for word in range(at + 14, at + 34, 2):
        total += (<unsigned int>out[word] << 8) | out[word + 1]
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return put16(out, at + 24, ~total & 0xFFFF)
