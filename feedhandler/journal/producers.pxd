"""C view of commit scheduling in an event loop."""

from feedhandler.journal.commit_waiter cimport CommitWaiter, CommitWaiters
from feedhandler.journal.mutex cimport Mutex
from feedhandler.journal.pending_batch cimport PendingBatch
from feedhandler.journal.writer cimport Writer


cdef class Producers:
    cdef readonly object engine
    cdef public object on_settled
    cdef object _files
    cdef object _add_all
    cdef object _check_sizes
    cdef object _loop
    cdef object _new_future
    cdef Mutex _lock
    cdef object _clock
    cdef CommitWaiters _durable
    cdef CommitWaiters _changed
    cdef readonly object _consumers
    cdef CommitWaiters _grouped
    cdef object _room
    cdef PendingBatch _pending
    cdef Writer _writer
    cdef Py_ssize_t _room_bytes
    cdef Py_ssize_t _journal_bytes
    cdef Py_ssize_t _item_bytes_max
    cdef bint _direct
    cdef bint _ending
    cdef bint _asked
    cdef bint _stalled
    cdef object _growth
    cdef long long _asked_ns
    cdef long long _max_ns
    cdef long long _handed
    cdef long long _done
    cdef long long _first_end
    cdef long long _second_end
    cdef Py_ssize_t _fresh
    cdef Py_ssize_t _first_asks
    cdef Py_ssize_t _second_asks
    cdef Py_ssize_t _peak
    cdef CommitWaiter _put(self, object content)
    cdef bint _ask(self)
    cdef bint _start(self)
    cdef long long _hand_over(self, list steps)
    cdef bint _look_later(self)
    cdef bint _resolve(self)
    cdef bint _collect(self)
