# Declarations for other compiled modules; values.py describes each name.

cdef long long utc_ns(const unsigned char *first, Py_ssize_t at, Py_ssize_t size) noexcept nogil
cdef bint check_value(
    int kind, const unsigned char *first, Py_ssize_t at, Py_ssize_t size
) noexcept nogil
cdef int small_number(const unsigned char *first, Py_ssize_t at, Py_ssize_t size) noexcept nogil
cdef long long decimal_raw(const unsigned char *first, Py_ssize_t at, Py_ssize_t size) noexcept nogil
cdef int decimal_places(const unsigned char *first, Py_ssize_t at, Py_ssize_t size) noexcept nogil
cdef long long time_of_day_ns(
    const unsigned char *first, Py_ssize_t at, Py_ssize_t size
) noexcept nogil
