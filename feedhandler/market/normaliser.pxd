# Declarations for other compiled modules; normaliser.py describes each name.

from feedhandler.codecs.scanner cimport FeedTable
from feedhandler.market.order_table cimport OrderTable


cdef class WireField:
    cdef int at, size, shift, decimals
    cdef double slack
    cdef bint big, is_signed, is_text, is_real, in_element, has_null
    cdef signed char[::1] scale_codes
    cdef unsigned long long mask, null
    cdef WireField scale_field
    cdef str scale_name


cdef class WireTest:
    cdef WireField field
    cdef unsigned long long[::1] values


cdef class WireCodes:
    cdef WireField field
    cdef unsigned char constant
    cdef unsigned char[::1] small
    cdef dict meanings


cdef class WireStep:
    cdef int head, size
    cdef bint count_in_message
    cdef WireField count, length


cdef class WireTerm:
    cdef object term
    cdef list fields, none
    cdef bint is_code, is_price


cdef class WireRule:
    cdef int does, depth
    cdef bint whole, snapshot, also
    cdef list tests, orders, terms
    cdef WireField symbol, new_order, price, size, remaining, of, position, depth_field
    cdef list bid_tests, ask_tests
    cdef WireField bid_price, bid_size, ask_price, ask_size
    cdef WireCodes side, state


cdef class Ladder:
    cdef unsigned int channel
    cdef list prices, sizes


cdef class WireMessage:
    cdef Py_ssize_t size, fixed_size
    cdef list rules, groups
    cdef int since
    cdef list time_fields
    cdef unsigned long long[::1] time_units


cdef class Normaliser:
    cdef readonly object feed, buffer
    cdef readonly OrderTable orders
    cdef readonly Py_ssize_t count
    cdef public unsigned long long unknown_orders, unscaled, clamped, short
    cdef public unsigned long long sideless, unnamed
    cdef readonly unsigned int publisher_id
    cdef public object instruments_of
    cdef public bint maybe_bad
    cdef FeedTable table
    cdef unsigned char[::1] slots, teaches
    cdef list messages, symbols
    cdef readonly list statuses, named
    cdef public bint keeps_terms
    cdef readonly dict terms
    cdef tuple terms_of
    cdef readonly dict texts
    cdef unsigned long long[::1] words
    cdef unsigned char[::1] octets
    cdef Py_ssize_t room
    cdef dict instruments, scales, clocks, snapshots, held
    cdef dict ladders, depths
    cdef dict ranks
    cdef int size_decimals, depth
    cdef bint has_depth, marks_snapshots
    cdef bint names_symbols, numbers_symbols, absent, by_level, keeps_quotes, ids_per_side
    cdef object clock, references, midnights
    cdef unsigned long long begins_ns, early_ns, late_ns
    cdef int clock_code
    cdef const unsigned char[::1] data
    cdef Py_ssize_t at, fixed_end, end, element_at, element_end
    cdef unsigned long long event_ns, send_ns, received_ns
    cdef unsigned int channel, sequence, instrument, scope
    cdef unsigned char flags

    cpdef int message(
        self, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size,
        unsigned short message_type, unsigned long long send_ns, unsigned long long received_ns,
        unsigned long long sequence, unsigned int channel
    ) except -1
    cpdef int clear(self) except -1
    cpdef object guess_day(self)
    cpdef unsigned int number_of(self, unsigned long long symbol) except? 4294967295
    cdef unsigned long long header_value(self, WireField field) except? 6148914691236517205
    cdef int apply_unknown(
        self, WireRule rule, unsigned long long order_id, unsigned char side
    ) except -1
    cdef WireMessage choose(self, unsigned char slot, Py_ssize_t size)
    cdef int learn(self, unsigned short message_type, Py_ssize_t size) except -1
    cdef int run(self, WireMessage message) except -1
    cdef int run_group(self, list rules, list steps) except -1
    cdef int fire(self, list rules) except -1
    cdef bint holds(self, list tests) except -1
    cdef unsigned long long raw(self, WireField field) except? 6148914691236517205
    cdef long long integer(self, WireField field) except? -1
    cdef int decimals_of(self, WireField field) except -100
    cdef double real(self, WireField field) except? -1.0
    cdef long long real_price(self, WireField field) except? -1
    cdef unsigned int real_size(self, WireField field) except? 4294967295
    cdef long long price_of(self, WireField field) except? -1
    cdef unsigned int size_of(self, WireField field) except? 4294967295
    cdef unsigned char side_of(self, WireCodes codes) except 255
    cdef unsigned long long order_of(self, WireRule rule) except? 6148914691236517205
    cdef unsigned long long id_of(
        self, unsigned long long order_id, unsigned char side
    ) except? 6148914691236517205
    cdef unsigned long long time_of(self, WireMessage message) except? 6148914691236517205
    cdef int name_instrument(self, WireRule rule) except -1
    cpdef int clear_named(self) except -1
    cdef int read_terms(self, WireRule rule) except -1
    cdef object term_value(self, WireTerm term, WireField field)
    cdef int open_snapshot(self, WireRule rule) except -1
    cdef int apply(self, WireRule rule) except -1
    cdef int apply_order(self, WireRule rule) except -1
    cdef int add(
        self, unsigned long long order_id, unsigned char side, long long price, unsigned int size
    ) except -1
    cdef int modify(self, WireRule rule, unsigned long long order_id, Py_ssize_t slot) except -1
    cdef int execute(self, WireRule rule, unsigned long long order_id, Py_ssize_t slot) except -1
    cdef int reduce(
        self, unsigned long long order_id, Py_ssize_t slot, unsigned int size
    ) except -1
    cdef int level(self, WireRule rule) except -1
    cdef int set_level(self, unsigned char side, long long price, unsigned int size) except -1
    cdef int drop_level(self, Py_ssize_t slot) except -1
    cdef int keep_depth(self, unsigned char side, long long price) except -1
    cdef int set_depth(self, WireRule rule) except -1
    cdef int trim(self, unsigned char side, Py_ssize_t depth) except -1
    cdef list ranked(self, unsigned char side)
    cdef int delete_range(self, WireRule rule) except -1
    cdef int take_levels(
        self, Ladder ladder, unsigned char side, Py_ssize_t first, Py_ssize_t end
    ) except -1
    cdef int quote(self, WireRule rule) except -1
    cdef int quote_side(
        self, unsigned long long order_id, unsigned char side, WireField price, WireField size
    ) except -1
    cdef int clear_books(self, WireRule rule) except -1
    cpdef int forget(self, unsigned int instrument) except -1
    cdef int forget_orders(self) except -1
    cdef int change_quote(self, WireRule rule) except -1
    cdef int keep_side(
        self, unsigned long long order_id, unsigned char side, long long price,
        unsigned int size, bint shown
    ) except -1
    cdef int hide(self, Py_ssize_t slot, unsigned long long order_id) except -1
    cdef int apply_level_position(self, WireRule rule) except -1
    cdef int change_level(
        self, Ladder ladder, unsigned char side, Py_ssize_t at, long long price, unsigned int size
    ) except -1
    cdef int take_level(self, Ladder ladder, unsigned char side, Py_ssize_t at) except -1
    cdef int put_level(
        self, unsigned char action, unsigned char side, long long price, unsigned int size
    ) except -1
    cdef int put(
        self, unsigned char action, unsigned char side, unsigned long long order_id,
        long long price, unsigned int size
    ) except -1
    cdef int grow(self) except -1
    cdef int mark_last(self, Py_ssize_t first) except -1
