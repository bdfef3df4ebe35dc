"""What every sender's loop shares: its clock, its waits, and how it is paused and ended.

A sender's schedule is absolute: moments of CLOCK_MONOTONIC, put off by the pauses. `shift_ns` is
the sum of their lengths, so `time.monotonic_ns() - shift_ns` is the sender's clock: it stands
still in a pause and is never late because of one. An anchor is a moment of that clock.

Three requests, from any thread, take effect within `POLL_NS`:

    pause, resume        nothing leaves in between, and everything after it later by just as much
    drop, stop_dropping  the running call returns early, and later ones send nothing until
                         `stop_dropping`
    stop                 the running call returns early, and later ones send nothing, for good

Also here: the counts that any thread may read meanwhile, and what a refused system call means.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, ENOBUFS
from libc.string cimport strerror

import threading

import numpy as np

from feedhandler.replay.playing.progress cimport (
    BEHIND, COLUMNS, LATENESS_MAX_NS, LATENESS_SUM_NS, NO_BUFFERS, WOULD_BLOCK
)

cdef extern from "<poll.h>":
    cdef struct pollfd:
        int fd
        short events
        short revents
    int POLLOUT
    int poll(pollfd *fds, unsigned long count, int timeout_ms) nogil
cdef extern from "<sys/prctl.h>":
    int PR_SET_TIMERSLACK, PR_GET_TIMERSLACK
    int prctl(int option, unsigned long value, ...) nogil

#: The last stretch before a datagram is due is spun, not slept, because waking up takes its time
#: (the thread's timer slack is set to 1 ns). This is the longest such stretch.
SPIN_NS = 10_000
#: How long it is within that is learnt. A sleep that lasts longer than it, but would not have with
#: the longest, makes it longer by the first, any other sleep shorter by the second: so one in a
#: thousand lasts longer, as the ratio says. On a busy machine spinning is no good: the scheduler
#: wakes a thread that sleeps at once, but takes its turn from one that spins. So where the clock
#: leaps by the third while spinning (more than any interrupt takes), the stretch is halved.
SPIN_MORE_NS, SPIN_LESS_NS, SPIN_LEAP_NS = 4_995, 5, 500_000
#: The longest single sleep, and so the longest time until a request is noticed.
POLL_NS = 5_000_000
#: A datagram sent later than this after its time counts as behind schedule.
BEHIND_NS = 1_000_000
#: How long to wait when the kernel has no buffer for a datagram.
NO_BUFFER_WAIT_NS = 50_000
#: For how long at most: then whatever is behind the interface does not move, and the call fails.
NO_BUFFER_MAX_NS = 5_000_000_000

cdef int64_t _POLL_NS = POLL_NS
cdef int64_t _BEHIND_NS = BEHIND_NS
cdef int64_t _SPIN_MORE_NS = SPIN_MORE_NS
cdef int64_t _SPIN_LESS_NS = SPIN_LESS_NS
cdef int64_t _SPIN_LEAP_NS = SPIN_LEAP_NS
cdef int64_t _NO_BUFFER_WAIT_NS = NO_BUFFER_WAIT_NS
cdef int64_t _NO_BUFFER_MAX_NS = NO_BUFFER_MAX_NS

# Values of `_halt`.
cdef enum:
    _NOT_HALTED = 0
    _DROPPING = 1
    _STOPPED = 2


cdef class SendLoop:
    """The part of a sender that is not about what is sent; see the module's text.

    `spin_ns` is the longest stretch that is spun instead of slept: 0 leaves the processor to others
    and costs accuracy. `progress` int64 has the columns of `Progress`.
    """

    def __cinit__(self, *_arguments, int64_t spin_ns=SPIN_NS, **_others):
        self._spin_ns = self._spin_ns_max = spin_ns
        self.progress = np.zeros(COLUMNS, np.int64)
        self._counts = self.progress

    def stop(self):
        """Make the running call, and all later ones, return early; from any thread."""
        fh_store(self._halt, _STOPPED)
        fh_wake(&self._pausing)

    @property
    def stopped(self):
        """Whether `stop` was called."""
        return fh_load(self._halt) == _STOPPED

    def drop(self):
        """Make the running call, and all later ones until `stop_dropping`, return early."""
        if not self.stopped:
            fh_store(self._halt, _DROPPING)
            fh_wake(&self._pausing)

    def stop_dropping(self):
        """Send again what is given, after a `drop`."""
        if not self.stopped:
            fh_store(self._halt, _NOT_HALTED)

    def pause(self):
        """Send nothing until `resume`; from any thread."""
        if not fh_load(self._pausing):
            fh_store_ns(self._pause_began_ns, fh_monotonic_ns())
            fh_store(self._pausing, 1)

    def resume(self):
        """End a pause: the schedule goes on where it stood."""
        if fh_load(self._pausing):
            fh_store_ns(
                self._pauses_ns, self._pauses_ns + fh_monotonic_ns() - self._pause_began_ns
            )
            fh_store(self._pausing, 0)
            fh_wake(&self._pausing)

    @property
    def paused(self):
        """Whether a pause is on."""
        return fh_load(self._pausing) != 0

    @property
    def holding(self):
        """Whether the running call has noticed the pause that is on, and sends nothing."""
        return fh_load(self._holding) != 0

    @property
    def shift_ns(self):
        """By how much pauses have put the schedule off, the one that is on included."""
        running_ns = fh_monotonic_ns() - self._pause_began_ns if self.paused else 0
        return self._pauses_ns + running_ns

    cdef unsigned long _begin(self):
        """Prepare the calling thread; returns its timer slack, to be put back by `_end`."""
        cdef unsigned long slack = prctl(PR_GET_TIMERSLACK, 0)
        prctl(PR_SET_TIMERSLACK, 1)
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        self._no_buffers_since_ns = 0
        return slack

    cdef int _end(self, unsigned long slack) except -1:
        """Undo `_begin`, and raise what made the call end early, where that was no request."""
        prctl(PR_SET_TIMERSLACK, slack)
        if self._failed_errno:
            number, self._failed_errno = self._failed_errno, 0
            raise OSError(number, strerror(number).decode())
        return 0

    cdef int64_t _now(self) noexcept nogil:
        """The sender's clock; only the loop, which never runs in a pause, may read it here."""
        return fh_monotonic_ns() - fh_load_ns(self._pauses_ns)

    cdef void _note_lateness(self, int64_t behind) noexcept nogil:
        self._counts[LATENESS_SUM_NS] += behind
        if behind > self._counts[LATENESS_MAX_NS]:
            self._counts[LATENESS_MAX_NS] = behind
        if behind > _BEHIND_NS:
            self._counts[BEHIND] += 1

    cdef int _wait_until(self, int64_t when_ns) except -1 nogil:
        """Sleep, then spin, until the sender's clock shows `when_ns`; return HALTED on a halt."""
        cdef int64_t now
        cdef int64_t left_ns
        cdef int64_t spun_ns = 0
        while True:
            now = fh_monotonic_ns()
            if spun_ns and now - spun_ns > _SPIN_LEAP_NS:
                self._spin_ns //= 2
            if self._interrupted(now) == HALTED:
                return HALTED
            left_ns = when_ns - self._now()
            if left_ns <= 0:
                return RUN_ON
            if left_ns > self._spin_ns:
                spun_ns = 0
                self._sleep_until(now + min(left_ns - self._spin_ns, _POLL_NS))
            else:
                spun_ns = now
                fh_relax()

    cdef void _sleep_until(self, int64_t when_ns) noexcept nogil:
        """Sleep, and learn from it how long before its time the next sleep should end."""
        cdef int64_t over_ns
        fh_sleep_until(when_ns)
        over_ns = fh_monotonic_ns() - when_ns
        if self._spin_ns < over_ns <= self._spin_ns_max:
            self._spin_ns = min(self._spin_ns + _SPIN_MORE_NS, self._spin_ns_max)
        else:
            self._spin_ns = max(self._spin_ns - _SPIN_LESS_NS, 0)

    cdef int _interrupted(self, int64_t now) except -1 nogil:
        """Whether to halt, after the pause that may be on. In the main thread signals are looked
        at every `POLL_NS`."""
        if self._in_main_thread and now - self._signals_seen_ns > _POLL_NS:
            self._signals_seen_ns = now
            with gil:
                PyErr_CheckSignals()
        if fh_load(self._pausing):
            self._hold()
        return HALTED if fh_load(self._halt) else RUN_ON

    cdef int _hold(self) except -1 nogil:
        """Sleep until the pause is over, or the sender halted."""
        fh_store(self._holding, 1)
        while fh_load(self._pausing) and not fh_load(self._halt):
            fh_wait_while(&self._pausing, 1, _POLL_NS)
            if self._in_main_thread:
                with gil:
                    PyErr_CheckSignals()
        fh_store(self._holding, 0)
        return RUN_ON

    cdef int _wait_for_room(self, int fd, int reason) except -1 nogil:
        """After a refused send: wait where waiting helps, else note the failure and halt."""
        cdef pollfd waiting
        cdef int64_t now = fh_monotonic_ns()
        if reason == EAGAIN:
            self._counts[WOULD_BLOCK] += 1
            waiting.fd = fd
            waiting.events = <short>POLLOUT
            poll(&waiting, 1, <int>(_POLL_NS // 1_000_000))
        elif reason == ENOBUFS:
            self._counts[NO_BUFFERS] += 1
            if not self._no_buffers_since_ns:
                self._no_buffers_since_ns = now
            if now - self._no_buffers_since_ns > _NO_BUFFER_MAX_NS:
                self._failed_errno = reason
                return HALTED
            fh_sleep_until(now + _NO_BUFFER_WAIT_NS)
        elif reason != EINTR:
            self._failed_errno = reason
            return HALTED
        return self._interrupted(fh_monotonic_ns())
