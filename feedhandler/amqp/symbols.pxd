cdef class SymbolMap:
    cdef unsigned long long[::1] keys
    cdef int[::1] values
    cdef Py_ssize_t mask
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t count_max
    cpdef int get(self, unsigned long long key)
    cpdef bint put(self, unsigned long long key, int value)
    cdef Py_ssize_t _slot(self, unsigned long long key)
