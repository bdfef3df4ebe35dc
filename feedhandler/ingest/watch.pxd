from feedhandler.ingest.output cimport Output

cdef class LineWatch:
    cdef Output out
    cdef unsigned long long wait
    cdef unsigned long long[::1] heard, latest
    cdef unsigned char[::1] silent
    cdef readonly unsigned long long next_check

    cpdef int start(self, unsigned long long now_ns) except -1 nogil
    cpdef int line_alive(
        self, int line, unsigned long long now_ns, unsigned long long expected) except -1 nogil
    cpdef int check(
        self, unsigned long long now_ns, unsigned long long expected) except -1 nogil
