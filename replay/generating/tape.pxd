# What the compiled generator uses of the tape; the meanings stand in tape.py.

from feedhandler.replay.generating.prng cimport Prng


cdef class Tape:
    cdef public long long now_ns
    cdef readonly long long free_ns, latest_b_ns
    cdef readonly Py_ssize_t count, used
    cdef readonly Py_ssize_t data_max, packets_max
    cdef readonly long long within_1_ms, within_10_ms, repeats
    cdef readonly dict columns, tables
    cdef long long[::1] last_ns, packets, bytes, messages, edges_ns, gaps, sent_ns
    cdef long long[::1] times_a, times_b
    cdef unsigned char[::1] data, flags, headers
    cdef unsigned char[::1] open_data
    cdef unsigned char[::1] channels
    cdef unsigned short[::1] lengths, entries
    cdef unsigned int[::1] offsets
    cdef unsigned int[::1] sequences
    cdef int[::1] open_bytes, open_count, open_limit, open_symbols
    cdef Py_ssize_t symbols
    cdef Py_ssize_t length_at, sequence_at, time_at, count_at
    cdef Prng prng
    cdef unsigned int loss_a, loss_b
    cdef int skew_ns_min, skew_ns_spread
    cdef long long byte_ps, second_bytes, second, carried

    cpdef bint full(self)
    cpdef int begin(self, data, dict columns) except -1
    cpdef int put(
        self, int channel, unsigned char[::1] source, Py_ssize_t at, int size, int symbol
    ) except -1
    cpdef int cut(self, int channel) except -1
    cpdef int send(
        self, int channel, unsigned char[::1] source, Py_ssize_t at, int size, int count
    ) except -1
    cpdef int control(self, int channel, bytes packet, unsigned int number) except -1
    cdef long long _leaves(self, int size) except *
    cdef int _record(self, int channel, long long time_ns, int size, int count) except -1
    cdef int _gaps_of(self, int channel, long long time_ns) except -1
