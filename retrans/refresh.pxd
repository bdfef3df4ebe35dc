# Types of attributes and methods; refresh.py describes each name.

from feedhandler.retrans.refresh_packets cimport RefreshReader
from feedhandler.retrans.snapshots cimport PacketFramer
from libc.stdint cimport int64_t


cdef class _Gathering:
    cdef readonly object last, send_time
    cdef readonly Py_ssize_t bytes, messages
    cdef readonly list packets
    cdef PacketFramer _framer
    cdef bytearray _body
    cdef bytes _data
    cdef Py_ssize_t _room, _used, _from, _to
    cdef int _count

    cdef bint add(self, bytes data, Py_ssize_t at, Py_ssize_t size) except -1
    cdef close(self)
    cdef _copy(self)


cdef class RefreshAssembler:
    cdef readonly object service
    cdef readonly dict counts
    cdef readonly int64_t deadline_ns
    cdef object _feed, _order, _settings, _types, _expected
    cdef RefreshReader _reader
    cdef _Gathering _gathering
    cdef list _events
    cdef int _start_code, _end_code
    cdef Py_ssize_t _room
    cdef int64_t _bytes_max

    cpdef list pop_events(self)
    cpdef packet(self, data, sequence, int64_t now_ns)
    cpdef gap(self, int64_t now_ns)
    cpdef reset(self, int64_t now_ns)
    cpdef tick(self, int64_t now_ns)
    cdef bytes _read(self, bytes data)
    cdef _broken(self, name)
    cdef _walk(self, bytes data, int64_t now_ns)
    cdef _start(self, bytes data, Py_ssize_t at, Py_ssize_t size, int64_t now_ns)
    cdef _gather(self, bytes data, Py_ssize_t at, Py_ssize_t size)
    cdef _end(self, bytes data, Py_ssize_t at, Py_ssize_t size)
    cdef _complete(self)
    cdef _fail(self, reason)
    cdef _stop(self)
