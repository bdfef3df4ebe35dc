# What the compiled generator uses of the random numbers; the meanings stand in prng.py.


cdef class Prng:
    cdef unsigned long long state
    cdef int[::1] waits

    cpdef unsigned int next_u32(self)
    cpdef int below(self, unsigned int number)
    cpdef int wait(self, int mean)


cdef class Crowd:
    cdef Prng prng
    cdef int[::1] table
    cdef int[::1] ring
    cdef long long[::1] ring_ns
    cdef Py_ssize_t noted, near, far

    cpdef int draw(self)
    cpdef int note(self, int who, long long now_ns) except -1
    cpdef int again(self, long long now_ns) except -2
