# Declarations for other compiled modules; latest_messages.py describes each name.

from feedhandler.codecs.scanner cimport MessageIndex


cdef class KeptLayout:
    cdef readonly Py_ssize_t size
    cdef readonly list parts, revokes
    cdef readonly bint opens, has_rules
    cdef Py_ssize_t first, behind

    cdef bytes part_of(self, bytes data, Py_ssize_t at)


cdef class LatestMessages:
    cdef readonly Py_ssize_t messages_max
    cdef readonly unsigned long long refused, unknown_types, short, clears
    cdef readonly bint opens_snapshots
    cdef readonly dict layouts, services, counts, ranks
    cdef list rules
    cdef unsigned short[::1] slots

    cpdef int apply_packet(
        self, bytes data, Py_ssize_t start, MessageIndex index, Py_ssize_t skip,
        unsigned int service
    ) except -1
    cpdef int apply_message(
        self, bytes data, Py_ssize_t at, Py_ssize_t size, unsigned short code,
        unsigned long long symbol, unsigned int service
    ) except -1
    cpdef int clear(self, unsigned int service) except -1
    cdef list _messages(self, dict kept, object code)
