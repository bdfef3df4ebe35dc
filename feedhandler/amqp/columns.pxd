cdef class Batch:
    cdef public object feed
    cdef readonly str grain
    cdef readonly list quality
    cdef readonly object data
    cdef readonly Py_ssize_t count
    cdef readonly int day
    cdef readonly int service
    cdef object parts
    cdef Py_ssize_t width
    cdef object workspace
    cdef object scanned
