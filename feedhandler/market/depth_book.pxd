# Declarations for other compiled modules; depth_book.py describes each name.


cdef class DepthBook:
    cdef readonly Py_ssize_t orders_max, levels_max, books_max
    cdef readonly Py_ssize_t order_count, level_count, book_count
    cdef public unsigned long long refused, unknown, duplicate, overdrawn, odd

    cdef unsigned long long[::1] order_ids
    cdef unsigned int[::1] order_sizes, order_levels, order_before, order_behind, order_slots
    cdef Py_ssize_t orders_made, order_mask
    cdef unsigned int order_free

    cdef long long[::1] level_prices
    cdef unsigned long long[::1] level_sizes
    cdef unsigned int[::1] level_counts, level_first, level_last, level_ladders
    cdef Py_ssize_t levels_made
    cdef unsigned int level_free

    cdef unsigned int[::1] book_ids, book_slots
    cdef unsigned int[::1] book_channels
    cdef Py_ssize_t book_mask

    cdef Py_ssize_t[::1] ladder_begins
    cdef unsigned int[::1] ladder_rooms, ladder_lengths
    cdef long long[::1] rung_keys
    cdef unsigned int[::1] rung_levels
    cdef Py_ssize_t rungs_made
    cdef list free_rungs

    cpdef Py_ssize_t apply(self, object records) except -1
    cpdef int apply_record(
        self, unsigned int instrument, unsigned long long order_id, long long price,
        unsigned int size, unsigned char action, unsigned char side, unsigned int channel
    ) except -1
    cpdef int write_levels(
        self, unsigned int instrument, int depth, unsigned long long[::1] words, Py_ssize_t at
    ) except -1

    cdef Py_ssize_t book_of(self, unsigned int instrument, bint make, unsigned int channel) except -2
    cdef Py_ssize_t slot_of(self, Py_ssize_t book, unsigned long long order_id) except -1
    cdef Py_ssize_t order_home(self, Py_ssize_t book, unsigned long long order_id) noexcept
    cdef Py_ssize_t find_order(self, Py_ssize_t book, unsigned long long order_id) except -2
    cdef int add(
        self, Py_ssize_t ladder, unsigned long long order_id, long long price, unsigned int size
    ) except -1
    cdef int modify(
        self, Py_ssize_t order, Py_ssize_t ladder, long long price, unsigned int size
    ) except -1
    cdef int reduce(self, Py_ssize_t order, unsigned int size) except -1
    cdef int set_level(
        self, Py_ssize_t ladder, long long price, unsigned int size
    ) except -1
    cdef int clear_one(self, unsigned int instrument) except -1
    cdef int unlink_first(self, Py_ssize_t level) except -1
    cdef int clear_all(self, unsigned int channel) except -1
    cdef int clear_book(self, Py_ssize_t book) except -1
    cdef int drop_order(self, Py_ssize_t order) except -1
    cdef int forget_order(self, Py_ssize_t order) except -1
    cdef Py_ssize_t make_order(self, Py_ssize_t book, unsigned long long order_id) except -2
    cdef int append(self, Py_ssize_t level, Py_ssize_t order, unsigned int size) except -1
    cdef int unlink(self, Py_ssize_t order) except -1
    cdef Py_ssize_t rung_of(self, Py_ssize_t ladder, long long key) except -1
    cdef int depth_of(self, Py_ssize_t level) except -1
    cdef Py_ssize_t level_at(self, Py_ssize_t ladder, long long price) except -2
    cdef Py_ssize_t make_level(self, Py_ssize_t ladder, long long price) except -2
    cdef int close_level(self, Py_ssize_t level) except -1
    cdef int widen(self, Py_ssize_t ladder) except -1
    cdef int grow_orders(self) except -1
    cdef int grow_levels(self) except -1
    cdef int grow_rungs(self, Py_ssize_t least) except -1
    cdef int grow_books(self) except -1
