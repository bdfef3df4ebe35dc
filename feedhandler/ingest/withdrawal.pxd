from feedhandler.codecs.scanner cimport PacketHeader
from feedhandler.ingest.sequencer cimport Sequencer

cpdef bint takes_back(
    Sequencer stream, int line, PacketHeader header, const unsigned char[::1] data,
    Py_ssize_t start, unsigned long long received_ns, unsigned long long now_ns
) except -1 nogil
cdef bint _take_back(Sequencer stream, int line, unsigned long long now_ns) except -1 nogil
cdef int _distrust(
    Sequencer stream, unsigned long long first, unsigned long long now_ns) except -1 nogil
