cdef class KeyTable:
    cdef unsigned long long[::1] high, low
    cdef int[::1] _slots
    cdef unsigned long long _mask
    cdef readonly Py_ssize_t keys_max, count
    cdef int _fresh, _free

    cpdef int find(self, unsigned long long high, unsigned long long low) except -1 nogil
    cpdef int add(self, unsigned long long high, unsigned long long low) except -1
    cpdef int remove(self, int key) except -1 nogil
    cdef int _put(self, int key) except -1 nogil
    cdef int _grow(self) except -1
