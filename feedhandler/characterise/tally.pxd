# Declarations of the compiled Tally; tally.py documents them.

from feedhandler.characterise.interarrival cimport Interarrival
from feedhandler.characterise.skew cimport Skew
from feedhandler.codecs.scanner cimport FeedTable, MessageIndex, PacketHeader


cdef class Tally:
    cdef readonly Interarrival interarrival
    cdef readonly Skew skew
    cdef public Py_ssize_t channels, cells, types, buckets, minutes, runs
    cdef Py_ssize_t _room
    cdef public long long channel_overflow
    cdef public long long[::1] foreign
    cdef FeedTable _table
    cdef PacketHeader _header
    cdef MessageIndex _index
    cdef bint _with_messages
    cdef object _channel_keys
    cdef int[::1] _slots
    cdef unsigned long long[::1] _lines
    cdef unsigned int[::1] _services
    cdef int[::1] _skew_indexes
    cdef long long[::1] _payload, _on_file, _counted
    cdef long long[:, ::1] _totals
    cdef long long[::1] _kinds, _broken, _first_ns, _last_ns
    cdef unsigned long long[::1] _run_first, _run_after
    cdef unsigned long long[::1] _first_session, _session, _reset_to, _reached
    cdef long long[::1] _epochs
    cdef long long _moment_from, _moment_until, _minute_from, _minute_until, _latest_ns
    cdef long long _moment_packets, _moment_payload, _moment_file
    cdef int[::1] _type_indexes
    cdef int[::1] _type_codes
    cdef int[:, ::1] _cell_of
    cdef long long[:, ::1] _cells
    cdef long long[:, ::1] _buckets
    cdef long long[:, ::1] _minutes
    cdef unsigned long long[:, ::1] _runs

    cdef int _count(
        self, const unsigned char[::1] data, const unsigned int[::1] offset,
        const unsigned int[::1] length, const unsigned int[::1] frame_length,
        const long long[::1] time_ns, const unsigned int[::1] destination,
        const unsigned short[::1] port
    ) except? -1
    cdef int _several(
        self, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size, long long on_file,
        long long time_ns, unsigned int group, unsigned short port
    ) except? -1 nogil
    cdef int _channel(
        self, unsigned long long group, unsigned long long port, long long time_ns
    ) except? -2 nogil
    cdef int _new_channel(
        self, Py_ssize_t index, unsigned long long line, long long time_ns
    ) except? -1 nogil
    cdef int _packet(
        self, int channel, long long length, long long on_file, long long time_ns
    ) except? -1 nogil
    cdef int _turn_moment(self, long long time_ns) except? -1 nogil
    cdef int _close_moment(self) except? -1 nogil
    cdef int _close_minute(self) except? -1 nogil
    cdef int _number(self, int channel, int kind, long long time_ns) except? -1 nogil
    cdef int _close_run(self, int channel) except? -1 nogil
    cdef int _messages(
        self, int channel, const unsigned char[::1] data, Py_ssize_t start, long long time_ns
    ) except? -1 nogil
    cdef int _cell(self, int channel, int code) except? -1 nogil
    cdef int _new_type(self, int code) except? -1 nogil
