# Declarations for other compiled modules; scanner.py describes each name.

from feedhandler.codecs.fix_runs cimport Run
from feedhandler.codecs.layout_sizes cimport SizeTable

cdef class FeedTable:
    cdef public bint big_endian, counts_messages, heartbeat_when_empty, type_in_packet, sets_aside
    cdef public unsigned long long unsequenced
    cdef public int header_size, heartbeat_adds
    cdef public int length_at, length_size, length_add
    cdef public int kind_at, kind_size
    cdef public int type_at, type_size
    cdef public int sequence_at, sequence_size
    cdef public int session_at, session_size
    cdef public int service_at, service_size
    cdef public int flags_at, flags_size
    cdef public int count_at, count_size
    cdef public int time_at, time_size, time_ns_at
    cdef public int reset_at, reset_size
    cdef public int constant_count
    cdef public int message_header_size
    cdef public int message_length_at, message_length_size, message_length_add
    cdef public int message_type_at, message_type_size
    cdef public int slot_count
    cdef public unsigned long long no_symbol, several_symbols, symbol_pad
    cdef public bint fix
    cdef public unsigned int symbol_tag
    cdef public bint varied, several, alone, long_symbols, odd_messages, strips_symbols
    cdef public int short_header, end_of_session, kind_mask, reset_message
    cdef public int high_at, high_size, high_shift, session_shift
    cdef public unsigned long long high_mask, session_mask
    cdef public int trailing_max, message_align, type_second_at, type_second_size, number_at, number_size
    cdef public int block_at, block_size
    cdef public bint sized
    cdef public SizeTable sizes
    cdef int constant_at[4]
    cdef int constant_size[4]
    cdef unsigned long long constant_value[4]
    cdef unsigned char kinds[65536]
    cdef unsigned char shorts[65536]
    cdef unsigned char slots[65536]
    cdef unsigned short control_sizes[65536]
    cdef unsigned char compressed[256]
    cdef int symbol_at[256]
    cdef int symbol_size[256]
    cdef unsigned char symbol_big[256]
    cdef unsigned int least_size[256]
    cdef unsigned char known_flags[256]
    cdef int group[256][9]


cdef class PacketHeader:
    cdef public unsigned long long sequence
    cdef public unsigned long long next_sequence
    cdef public unsigned long long session
    cdef public unsigned long long send_time
    cdef public unsigned int service
    cdef public unsigned int length
    cdef public unsigned int body
    cdef public int packet_type, kind, flags, count
    cdef public int unknown, short
    cdef public int element_size
    cdef public Py_ssize_t element_at
    cdef readonly Run run


cdef class MessageIndex:
    cdef public unsigned short[::1] types
    cdef public unsigned long long[::1] symbols
    cdef public unsigned int[::1] offsets
    cdef public unsigned int[::1] sizes
    cdef public unsigned long long[::1] sequences
    cdef public unsigned int[::1] firsts
    cdef public unsigned int[::1] services
    cdef public unsigned long long[::1] send_times
    cdef public Py_ssize_t count, packets, capacity, unknown, short


cpdef int frame_length(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size
) except -1 nogil
cpdef int parse_header(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
    PacketHeader out
) except -1 nogil
cpdef int parse_next(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
    PacketHeader out
) except -1 nogil
cdef int parse_header_at(
    FeedTable table, const unsigned char *first, Py_ssize_t room, Py_ssize_t size,
    PacketHeader out
) except -1 nogil
cpdef Py_ssize_t message_size_by_type(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t end
) except -1 nogil
cdef Py_ssize_t padded(FeedTable table, Py_ssize_t size, Py_ssize_t room) noexcept nogil
cpdef unsigned long long symbol_at(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t at, int size, int order
) except? 6148914691236517205 nogil
cpdef unsigned long long element_symbol(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t at, unsigned short message_type,
    unsigned long long otherwise
) except? 6148914691236517205 nogil
cpdef Py_ssize_t fixed_size(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t at
) except -1 nogil
cpdef int open_group(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size,
    unsigned short message_type,
    PacketHeader header
) except -1 nogil
cpdef int check_messages(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, PacketHeader header
) except -1 nogil
cpdef int scan_messages(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, PacketHeader header,
    MessageIndex out
) except -1 nogil
cpdef int scan_packets(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size,
    PacketHeader header, MessageIndex out
) except -1 nogil
cpdef int scan_datagrams(
    FeedTable table, const unsigned char[::1] data, const long long[::1] starts,
    const unsigned int[::1] sizes, PacketHeader header, MessageIndex out,
    unsigned long long[::1] rejects
) except -1 nogil
cpdef int header_bytes(
    FeedTable table, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size
) except -1 nogil
cpdef int patch_header(
    FeedTable table, unsigned char[::1] data, Py_ssize_t start, unsigned int length, int count
) except -1 nogil
cpdef int write_number(
    FeedTable table, unsigned char[::1] data, Py_ssize_t start, unsigned long long number
) except -1 nogil
cpdef unsigned long long symbol_of(
    FeedTable table, const unsigned char[::1] message, unsigned short message_type
) except? 6148914691236517205
