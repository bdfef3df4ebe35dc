"""C view of the mutex."""

from cpython.pythread cimport PyThread_type_lock


cdef class Mutex:
    cdef PyThread_type_lock _lock
    cpdef bint lock(self)
    cpdef bint give(self)
