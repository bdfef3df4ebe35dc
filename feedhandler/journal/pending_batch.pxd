"""C view of the pending batch."""

cdef class PendingBatch:
    cdef readonly list contents
    cdef readonly list changes
    cdef readonly list groups
    cdef readonly Py_ssize_t bundles
    cdef readonly long long groups_added
    cdef readonly Py_ssize_t content_bytes
    cdef readonly long long next_id
    cdef readonly long long changes_added
    cpdef long long put(self, content)
    cpdef long long put_all(self, list contents)
    cpdef bint record(self, first, long long count, int status)
    cpdef tuple batch(self, Py_ssize_t limit, Py_ssize_t count_max)
    cpdef list pop(self, Py_ssize_t count, Py_ssize_t size)
    cpdef list take_changes(self, Py_ssize_t count)
