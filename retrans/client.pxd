# Types of attributes and methods; client.py describes each name.

from feedhandler.codecs.scanner cimport FeedTable
from feedhandler.retrans.protocol cimport RecoveryProtocol, StreamFramer
from feedhandler.retrans.refresh_packets cimport RefreshReader
from libc.stdint cimport int64_t


cdef class _Request:
    cdef readonly object request_id, service, first, end
    cdef readonly bint refresh, over
    cdef readonly bytearray due, wanted
    cdef readonly Py_ssize_t due_count, wanted_count

    cdef accept(self)
    cdef bint sent(self, first, end) except -1
    cdef bint given(self, first, end) except -1
    cpdef finish(self)


cdef class RequestClient:
    cdef object _feed
    cdef FeedTable _table
    cdef RecoveryProtocol _protocol
    cdef Py_ssize_t _due_requests
    cdef int64_t _heartbeat_ns, _dead_ns, _heard_ns, _probed_ns
    cdef object _range_max, _number, _first_number
    cdef bint _up
    cdef readonly str source_id
    cdef readonly dict counts
    cdef StreamFramer _framer
    cdef RefreshReader _reader
    cdef dict _requests, _ids, _due, _granted
    cdef set _refreshing
    cdef bytearray _output

    cdef _packet(self, bytes packet, int64_t now_ns, list events)
    cdef _response(self, response, list events)
    cdef _Request _judge(self, response)
    cdef _grant(self, _Request known)
    cdef _finish(self, _Request known)
    cdef _data(self, bytes packet, list events)
    cdef _note_sent(self, service, first, end)
    cdef _check_refresh(self, bytes packet)
    cdef _check(self, bytes packet)
    cdef bint _make_room(self) except -1
    cdef bint _ask(self, request, int64_t now_ns) except -1
