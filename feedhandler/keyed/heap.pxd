cdef class Heap:
    cdef unsigned long long[::1] _ids
    cdef int[::1] _positions
    cdef int[::1] _slots
    cdef readonly int count

    cpdef int first(self) except -1 nogil
    cpdef int push(self, int slot) except -1
    cpdef int remove(self, int slot) except -1 nogil
    cdef int _rise(self, int slot, int index) except -1 nogil
    cdef int _sink(self, int slot, int index) except -1 nogil
