# What the walks over capture formats use of frames; the meanings stand in frames.py.


cdef class DatagramColumns:
    cdef readonly dict arrays
    cdef public Py_ssize_t count, limit
    cdef readonly Py_ssize_t capacity
    cdef long long[::1] _time_ns
    cdef unsigned int[::1] _source, _destination, _offset, _length, _frame_offset, _frame_length
    cdef unsigned short[::1] _source_port, _destination_port, _interface, _link_type


cdef class FrameReader:
    cdef readonly long long cut_payloads
    cdef long long[::1] skips

    cpdef int add(
        self, int link_type, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t end,
        long long time_ns, int interface, DatagramColumns columns) except? -1 nogil


cpdef int read_u16(const unsigned char[::1] data, Py_ssize_t at, bint big_endian) except? -1 nogil
cpdef long long read_u32(
    const unsigned char[::1] data, Py_ssize_t at, bint big_endian) except? -1 nogil
