# Declarations for other compiled modules; ranges.py describes each name.

cdef class RangeSet:
    cdef list _firsts, _lasts
    cdef public object limit, widened

    cpdef add(self, first, last)
    cpdef discard(self, first, last)
    cpdef discard_below(self, number)
    cpdef clear(self)
    cpdef list missing_in(self, first, last)
    cpdef list within(self, first, last)
    cpdef bint touches(self, first, last) except -1
    cpdef bint covers(self, first, last) except -1
