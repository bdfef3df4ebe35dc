# The flow's attributes; the meanings stand in flow.py.

from feedhandler.replay.generating.prng cimport Crowd, Prng
from feedhandler.replay.generating.books cimport ShareBooks
from feedhandler.replay.generating.issuers cimport IndexValues, IssuerQuotes
from feedhandler.replay.generating.tape cimport Tape

cdef class Flow:
    cdef readonly Tape tape
    cdef Prng prng
    cdef ShareBooks books
    cdef IssuerQuotes issuers
    cdef IndexValues indices
    cdef Crowd shares, warrants
    cdef object notices, snapshots
    cdef list resets, beats
    cdef unsigned char[::1] delimiters, modes
    cdef readonly bint ended, trading
    cdef readonly dict opened
    cdef readonly long long next_ns
    cdef readonly int phase, rounds
    cdef bint stationary, endless
    cdef int index
    cdef long long origin_ns, start_ns, slot_ns, names_ns, books_ns, prelude_byte_ps
    cdef long long[::1] planned, wanted, weights, base
    cdef unsigned short[::1] bodies
    cdef long long base_repeats, base_near, base_mid
    cdef Py_ssize_t slot
    cdef readonly long long due
    cdef long long horizon, bursts, train, refresh_bytes
    cdef int[::1] means
    cdef int near_ppm, mid_ppm, usual_body
    cdef long long quote_debt, order_debt, warrant_debt, index_debt, body_debt
    cdef long long trade_debt, warrant_trade_debt, notice_debt
    cdef long long beat_ns, beat_every_ns
    cdef int beat_less

    cpdef int run(self, long long until_ns) except -1
    cpdef int close(self) except -1
    cdef int _reset(self) except -1
    cdef int _name(self) except -1
    cdef int _retell(self) except -1
    cdef int _open(self) except -1
    cdef int _pace(self, long long before) except -1
    cdef bint _telling(self) except -1
    cdef int _schedule(self, long long packets) except -1
    cdef long long _time_of(self, long long due) except *
    cdef int _go_round(self) except -1
    cdef int _beat(self, bint everyone) except -1
    cdef int _body(self) except -1
    cdef int _body_at(self, long long at_ns) except -1
    cdef long long _total(self) except *
    cdef long long _bytes(self) except *
    cdef long long _sent(self, int channel) except *
    cdef int _weigh(self) except -1
    cdef int _burst(self) except -1
    cdef int _act(self, int kind, int body) except -1
    cdef int _equities(self, int body) except -1
    cdef long long _quoted(self) except *
    cdef int _visit(self, int share, int left, long long owed, bint silent, int body) except? -1
    cdef bint _trade_due(self, int body) except -1
    cdef int _trade(self, int share) except -1
    cdef int _warrant_trade(self) except -1
    cdef int _warrants(self, int body) except -1
    cdef bint _again(self) except -1
    cdef bint _echo(self) except -1
    cdef int _share(self) except? -1
    cdef int _warrant(self) except -1
    cdef int _count(self, int mean, long long debt, int most) except -1
