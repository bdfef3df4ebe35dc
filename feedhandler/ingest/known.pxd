from feedhandler.codecs.scanner cimport PacketHeader
from feedhandler.ingest.arbitration cimport Arbiter

cpdef bint may_be_copy(
    Arbiter arbiter, PacketHeader header, unsigned long long now_ns) except -1 nogil
cpdef int accept_copy(
    Arbiter arbiter, int line, PacketHeader header, const unsigned char[::1] data,
    Py_ssize_t start, Py_ssize_t size, unsigned long long received_ns,
    unsigned long long now_ns) except -1 nogil
