from feedhandler.amqp.framing cimport Template
from feedhandler.amqp.symbols cimport SymbolMap
from feedhandler.histogram cimport Histogram
from feedhandler.retrans.store cimport PacketStore


cdef class Route:
    cdef tuple singles
    cdef tuple thinned
    cdef Template plain
    cdef Template stamped
    cdef readonly str key
    cdef bytes prefix
    cdef bint timed
    cpdef Template template(self, bint stamped)


cdef class Stream:
    cdef readonly int index
    cdef readonly unsigned int service
    cdef readonly str key
    cdef readonly bytes prefix
    cdef Template packet_plain
    cdef Template packet_stamped
    cdef Template batch_plain
    cdef Template batch_stamped
    cdef readonly Template records_plain
    cdef readonly Template records_stamped
    cdef Template quality_template
    cdef readonly list whole
    cdef readonly list fine
    cdef readonly list concerned
    cdef readonly list takes_records
    cdef SymbolMap symbols
    cdef list routes
    cdef dict indexes_by_word
    cdef readonly dict naming
    cdef readonly list taking_all
    cdef public PacketStore store
    cdef public object history
    cdef Stream _past
    cdef int symbols_max
    cdef public bint closed
    cdef readonly unsigned long long packets
    cdef readonly unsigned long long messages
    cdef readonly unsigned long long next_sequence
    cdef readonly Histogram latency
