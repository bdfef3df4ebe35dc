# Declarations for other compiled modules; level_queue.py describes each name.

from feedhandler.amqp.record_fanout cimport RecordFanout
from feedhandler.amqp.sender_queue cimport SenderQueue


cdef class LevelQueue(SenderQueue):
    cdef readonly dict waiting
    cdef RecordFanout fanout
    cdef readonly unsigned long long conflated
