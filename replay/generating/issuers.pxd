# What the compiled generator uses of issuers and indices; the meanings stand in the .py.

from feedhandler.replay.generating.prng cimport Prng
from feedhandler.replay.generating.books cimport ShareBooks
from feedhandler.replay.generating.tape cimport Tape

cdef class IssuerQuotes:
    cdef Prng prng
    cdef Tape tape
    cdef readonly int warrants, first
    cdef readonly dict tables
    cdef readonly unsigned int number
    cdef unsigned char[::1] quotes, trades, updates, announced, quoted
    cdef int[::1] bid, spread, opening, last, high, low, deals
    cdef long long[::1] traded
    cdef int[::1] at_quote, at_trade, at_update
    cdef int quote_bytes, trade_bytes, update_bytes

    cpdef int act(self, int warrant) except -1
    cpdef int clear(self, int warrant) except -1
    cdef int _show(self, int warrant, int bid, int ask, int volume) except -1
    cpdef int trade(self, int warrant) except -1
    cpdef int update_price(self, int warrant) except -1
    cdef long long _milliseconds(self)
    cdef long long _microseconds(self)


cdef class IndexValues:
    cdef Tape tape
    cdef ShareBooks books
    cdef readonly int indices, first
    cdef readonly dict tables
    cdef int next
    cdef unsigned char[::1] values, announced
    cdef int[::1] members, opening, high, low
    cdef int[::1] at_index
    cdef int index_bytes

    cpdef int show(self, int count) except -1
