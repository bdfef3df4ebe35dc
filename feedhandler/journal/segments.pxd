cdef class BlockIdentity:
    cdef readonly object block
    cdef readonly object incarnation
    cdef readonly unsigned long long seed

cdef class Segment:
    cdef readonly object version
    cdef readonly object incarnation
    cdef readonly object sequence
    cdef readonly object stamp_ns
    cdef readonly object first_id
    cdef readonly Py_ssize_t item_count
    cdef readonly Py_ssize_t status_count
    cdef readonly Py_ssize_t length
    cdef readonly object table_crc
    cdef readonly object previous
    cdef readonly object crc
    cdef readonly Py_ssize_t at
    cdef public bint whole
    cdef public bint repaired
    cdef readonly list statuses
    cdef public Py_ssize_t statuses_lost
    cdef readonly list spans
    cdef readonly list damaged

cpdef unsigned long long item_seed(
    unsigned long long seed, unsigned long long number, unsigned long long size
) noexcept
cpdef unsigned long long item_crc(
    unsigned long long seed, unsigned long long number, bytes content
) except? -1
