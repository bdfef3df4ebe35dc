# What other compiled modules may use of it. The meaning of each name stands in values.py.

cdef long long utc_ns(const unsigned char *first, Py_ssize_t at, Py_ssize_t size) noexcept nogil
