cpdef Py_ssize_t skip(bytes data, Py_ssize_t at, int depth=*) except -1
cpdef list sections(bytes data)
cpdef list fields_of(bytes data, Py_ssize_t at, Py_ssize_t end)
cpdef tuple decode(bytes data, Py_ssize_t at, int depth=*)
