# What the compiled generator uses of the books; the meanings stand in books.py.

from feedhandler.replay.generating.prng cimport Prng
from feedhandler.replay.generating.tape cimport Tape

cpdef long long quotient(long long number, long long by)


cdef class ShareBooks:
    cdef Prng prng
    cdef Tape tape
    cdef readonly int shares
    cdef readonly dict tables
    cdef readonly unsigned int number
    cdef unsigned char[::1] orders, quotes, trades, updates, announced, quoted
    cdef readonly unsigned char[::1] halted
    cdef signed char[::1] sides
    cdef int[::1] prices, volumes, resting, next_order
    cdef long long[::1] ages
    cdef int[::1] level_price, level_volume, level_count, levels
    cdef int[::1] shown
    cdef int[::1] tick, opening, last, high, low, deals
    cdef long long[::1] traded
    cdef int[::1] at_order, at_quote, at_trade, at_update
    cdef int date, previous_date
    cdef int order_bytes, quote_bytes, trade_bytes, update_bytes

    cpdef int fill(self, int share) except -1
    cpdef int act(self, int share, int want) except -1
    cpdef int cross(self, int share) except -1
    cpdef int update_price(self, int share) except -1
    cpdef int retell(self, int share) except -1
    cpdef int clear(self, int share) except -1
    cpdef int show(self, int share, int low) except -1
    cpdef int retold(self, int share, unsigned char[::1] to, Py_ssize_t at) except -1
    cdef int _enter(self, int share, int side, int want) except -1
    cdef int _rest(self, int share, int side, int level, int price, int age, int carried) except -1
    cdef int _cancel(self, int share, int want) except -2
    cdef int _change(self, int share, int want) except -2
    cdef int _relieve(self, int share) except -1
    cdef int _withdraw(self, int share, int slot) except -1
    cdef int _alone(self, int share) except -2
    cdef int _shrink(self, int share, int want) except -2
    cdef int _slot(self, int share, int want) except -2
    cdef int _free_slot(self, int share) except -2
    cdef int _level_of(self, int side_base, int price) except -2
    cdef int _remove(self, int share, int slot) except -2
    cdef int _open_level(self, int base, int level, int price) except -1
    cdef int _close_level(self, int base, int level) except -1
    cdef int _order(self, int share, int slot, int action, int volume, int aggregate, int count)\
        except -1
    cdef int _prioritise(self, int share, int slot) except -1
    cdef int _deal(self, int share, int price, int volume) except -1
    cdef int _gap(self, int share, int side) except -2
    cdef long long _next_age(self, int share)
    cdef long long _milliseconds(self)
    cdef long long _microseconds(self)
    cdef int _first_at(self, int share, int side, int price) except -2
    cdef int _sorted(self, int share, int[::1] to) except -1
    cdef int[::1] scratch
