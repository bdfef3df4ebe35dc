# What the compiled generator uses of the dice; the meanings stand in dice.py.


cdef class Dice:
    cdef unsigned long long state
    cdef int[::1] waits

    cpdef unsigned int roll(self)
    cpdef int below(self, unsigned int number)
    cpdef int wait(self, int mean)


cdef class Crowd:
    cdef Dice dice
    cdef int[::1] table
    cdef int[::1] ring
    cdef long long[::1] ring_ns
    cdef Py_ssize_t noted, near, far

    cpdef int draw(self)
    cpdef int note(self, int who, long long now_ns) except -1
    cpdef int again(self, long long now_ns) except -2
