# Declarations for other compiled modules; order_table.py describes each name.


cdef class OrderTable:
    cdef public unsigned long long[::1] ids
    cdef public long long[::1] prices
    cdef public unsigned int[::1] scopes, instruments, sizes, born
    cdef public unsigned char[::1] sides
    cdef public Py_ssize_t count, slots, slots_max
    cdef public unsigned long long refused
    cdef unsigned int clock, last_clear
    cdef dict cleared

    cpdef Py_ssize_t find(self, unsigned int scope, unsigned long long order_id) except -2
    cpdef Py_ssize_t put(
        self, unsigned int scope, unsigned long long order_id, unsigned int instrument,
        unsigned char side, long long price, unsigned int size
    ) except -2
    cpdef int remove(self, Py_ssize_t slot) except -1
    cpdef int clear(self, unsigned int instrument) except -1
    cpdef int clear_scope(self, unsigned int scope) except -1
    cpdef int clear_all(self) except -1
    cdef Py_ssize_t slot_of(self, unsigned int scope, unsigned long long order_id) except -2
    cdef Py_ssize_t home(self, unsigned int scope, unsigned long long order_id) noexcept
    cdef bint is_stale(self, Py_ssize_t slot) except -1
    cdef int move(self, Py_ssize_t at, Py_ssize_t to) except -1
    cdef int tick(self) except -1
    cdef int grow(self, Py_ssize_t slots) except -1
    cdef int allocate(self, Py_ssize_t slots) except -1
