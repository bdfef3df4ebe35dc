# The part of the scale that other compiled modules may use.

cpdef Py_ssize_t bucket_of(long long value_ns) except? -1 nogil
