# Declarations for other compiled modules; layout_sizes.py describes each name.

cdef class SizeTable:
    cdef public bint big_endian
    cdef public int header_size, block_at, block_size, part_count
    cdef unsigned int fixed[256]
    cdef int first_part[256]
    cdef int part_end[256]
    cdef int parts[1024][8]
    cdef unsigned long long mask[1024]
    cdef unsigned char among[1024][256]


cdef Py_ssize_t layout_size(
    SizeTable sizes, const unsigned char *first, int slot, Py_ssize_t room
) noexcept nogil
