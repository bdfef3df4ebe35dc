# What other compiled modules may use of the scale.

cpdef Py_ssize_t bucket_of(long long value_ns) except? -1 nogil
