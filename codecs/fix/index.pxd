# Declarations for other compiled modules; index.py describes each name.

from feedhandler.codecs.fix.framing cimport Frame


cdef class FixTable:
    cdef readonly int slots, scopes, required_count
    cdef public unsigned int user_tags_from
    cdef public bint pass_unknown_tags
    cdef unsigned short[::1] slot_of
    cdef unsigned char[::1] kind_of
    cdef unsigned char[::1] part_of
    cdef unsigned char[::1] listed
    cdef unsigned int[::1] data_of
    cdef unsigned char[:, ::1] allowed
    cdef unsigned short[:, ::1] actions
    cdef unsigned int[::1] delimiters
    cdef int[::1] type_scope
    cdef int[::1] required_head
    cdef int[::1] required_next
    cdef unsigned short[::1] required_slot
    cdef unsigned int[::1] tag_of


cdef class FieldIndex:
    cdef readonly unsigned int[::1] tags
    cdef readonly unsigned int[::1] offsets
    cdef readonly unsigned int[::1] sizes
    cdef readonly unsigned int[::1] entries
    cdef readonly unsigned int[::1] group_tags
    cdef readonly unsigned int[::1] parents
    cdef readonly unsigned int[::1] numbers
    cdef readonly unsigned int[::1] firsts
    cdef readonly unsigned int[::1] ends
    cdef readonly Py_ssize_t capacity, count, entry_count
    cdef readonly Py_ssize_t fault_at
    cdef readonly unsigned int fault_tag, declared, found
    cdef unsigned int[:, ::1] seen
    cdef unsigned int stamp
    cdef int depth, part
    cdef int scope_at[9]
    cdef unsigned int stamp_at[9]
    cdef unsigned int entry_at[9]
    cdef unsigned int tag_at[9]
    cdef unsigned int declared_at[9]
    cdef unsigned int found_at[9]
    cdef Py_ssize_t count_at[9]


cdef int index_message_at(
    FixTable table, const unsigned char *first, Frame frame, FieldIndex out
) except -1 nogil
cpdef int index_message(
    FixTable table, const unsigned char[::1] data, Frame frame, FieldIndex out
) except -1 nogil
cpdef int read_message(
    FixTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
    Frame frame, FieldIndex out
) except -1 nogil
cpdef int list_fields(
    const unsigned char[::1] data, Frame frame, FieldIndex out
) except -1 nogil
cpdef Py_ssize_t count_messages(
    FixTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
    Frame frame, FieldIndex out, unsigned long long[::1] rejects
) except -1 nogil
