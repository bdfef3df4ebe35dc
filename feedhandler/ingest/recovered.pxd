from feedhandler.codecs.scanner cimport PacketHeader
from feedhandler.ingest.arbitration cimport Arbiter

cpdef int recover(
    Arbiter arbiter, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
    unsigned long long received_ns, unsigned long long now_ns,
    unsigned long long epoch) except -1 nogil
cpdef int give_up(
    Arbiter arbiter, unsigned long long until, unsigned long long now_ns,
    unsigned long long epoch) except -1 nogil
cdef int _drop(
    Arbiter arbiter, PacketHeader header, const unsigned char[::1] data, Py_ssize_t start,
    unsigned long long now_ns) except -1 nogil
cpdef int disprove(
    Arbiter arbiter, unsigned long long number, unsigned long long now_ns,
    unsigned long long epoch) except -1 nogil
