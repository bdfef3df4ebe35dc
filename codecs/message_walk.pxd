from feedhandler.codecs.scanner cimport FeedTable


cpdef Py_ssize_t message_size(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end
) except -1 nogil
cpdef Py_ssize_t message_end(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end,
    unsigned long long count
) except -2 nogil
