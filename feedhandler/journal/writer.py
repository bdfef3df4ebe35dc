# cython: language_level=3, boundscheck=True, wraparound=False
"""A writer thread for an event loop, which writes without taking the interpreter lock.

What it is for: a thread that returns from a system call waits for the interpreter lock until the
running thread releases it, and then the event loop waits for the thread; at ten thousand syncs a
second that costs more than the syncs. So segments are handed over as plain memory: the thread
writes and syncs one after the other, and notifies the loop by a descriptor that the loop watches.

    event loop   write(file, data, at)   goes on with other things   `event_fd` readable: done()
    thread                          pwritev2(RWF_DSYNC)

Several operations may be in flight: the next one follows as soon as the one before is on the disk.
With `more`, the loop is notified only when the following one is done too. What is neither a write
nor a sync is a `call`: a Python function, which the thread calls with the interpreter lock.

What it promises: operations are executed in the order in which they were requested. After the first
failure nothing more is executed: `error_number` or `failure` has the cause, and `done` does not
count the failed operation.

Compiled; the interpreted twin does the same with the interpreter.
"""

import errno
import functools
import os
import threading
from typing import TYPE_CHECKING

import cython

if cython.compiled:
    from cython.cimports.feedhandler.journal.system_calls import (
        journal_load,
        journal_notify,
        journal_store,
        journal_sync,
        journal_wait,
        journal_write,
    )

from feedhandler.codecs.visibility import Readonly
from feedhandler.journal.files import NO_FLAG

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from typing_extensions import Buffer

#: Upper limit on operations in flight, including the one that ends the thread.
RING_ENTRIES = 16
_RING_ENTRIES = cython.declare(cython.Py_ssize_t, RING_ENTRIES)
_CALL = cython.declare(cython.int, 0)
_WRITE = cython.declare(cython.int, 1)
_THROUGH = cython.declare(cython.int, 2)
_SYNC = cython.declare(cython.int, 3)
#: An operation that the thread is asked for: `size` bytes from `data` on, to `file` at `at`.
Asked = cython.struct(
    file=cython.int,
    data=cython.p_char,
    size=cython.size_t,
    at=cython.longlong,
    kind=cython.int,
    more=cython.int,
)


@cython.cclass
class Writer:
    """The writer thread; see the module. Only one thread at a time may call its methods.

    `event_fd`: the descriptor that becomes readable when an operation was done or has failed;
    `error_number`: errno of a failed operation, 0: none; `failure`: the exception of a failed call.
    """

    event_fd: Readonly[cython.int]
    error_number: Readonly[cython.int]
    failure: Readonly[object]
    _wake: cython.int
    _flagged: cython.int
    _ring: "Asked[16]"
    _asked: cython.longlong
    _done: cython.longlong
    _kept: list
    _thread: object

    def __init__(self) -> None:
        self.event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.error_number = 0
        self.failure: BaseException | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._flagged = 1
        self._asked = self._done = 0
        #: Objects of the operations in flight, in turn, kept alive while the thread uses them.
        self._kept = [None] * RING_ENTRIES
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    # -- the event loop ---------------------------------------------------------------------

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def write(
        self,
        file: cython.int,
        data: "Buffer",
        at: cython.longlong,
        through: cython.bint,
        more: cython.bint = False,
    ) -> cython.longlong:
        """Request a write of `data` (not empty) to the file; `through` makes it durable.

        `data` must not change until it is done. Returns the count that `done` reaches then, as do
        `sync` and `call`.
        """
        if cython.compiled:
            view: cython.const[cython.uchar][::1] = data
            index: cython.Py_ssize_t = self._asked % _RING_ENTRIES
            self._ring[index].file = file
            self._ring[index].data = cython.cast(cython.p_char, cython.address(view[0]))
            self._ring[index].size = view.shape[0]
            self._ring[index].at = at
            self._ring[index].kind = _THROUGH if through else _WRITE
            self._ring[index].more = more
            return self._hand_over(data)
        return self._hand_over(functools.partial(_write, file, memoryview(data), at, through))

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def sync(self, file: cython.int, more: cython.bint = False) -> cython.longlong:
        """Request a sync of what was written to the file."""
        if cython.compiled:
            index: cython.Py_ssize_t = self._asked % _RING_ENTRIES
            self._ring[index].file = file
            self._ring[index].kind = _SYNC
            self._ring[index].more = more
            return self._hand_over(None)
        return self._hand_over(functools.partial(os.fdatasync, file))

    @cython.ccall
    @cython.exceptval(-1, check=True)
    def call(self, function: "Callable[[], Any] | None") -> cython.longlong:
        """Request a call of `function` in the thread; None ends the thread."""
        if cython.compiled:
            self._ring[self._asked % _RING_ENTRIES].kind = _CALL
            self._ring[self._asked % _RING_ENTRIES].more = False
        return self._hand_over(function)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _hand_over(self, kept: object) -> cython.longlong:
        assert self._asked - self.done() < _RING_ENTRIES
        self._kept[self._asked % _RING_ENTRIES] = kept
        if cython.compiled:
            journal_store(cython.address(self._asked), self._asked + 1)
            journal_notify(self._wake)
        else:
            self._asked += 1
            os.eventfd_write(self._wake, 1)
        return self._asked

    @cython.ccall
    @cython.exceptval(check=False)
    def room(self) -> cython.longlong:
        """Return how many more operations may be requested besides the one that ends the thread."""
        return _RING_ENTRIES - 1 - (self._asked - self.done())

    @cython.ccall
    @cython.exceptval(check=False)
    def done(self) -> cython.longlong:
        """Return how many of the requested operations are done."""
        if cython.compiled:
            return journal_load(cython.address(self._done))
        return self._done

    def clear_wakeup(self) -> None:
        """Reset `event_fd`, so that it becomes readable again only when something more was done."""
        if cython.compiled:
            journal_wait(self.event_fd)  # does not block: the descriptor is non-blocking
            return
        try:
            os.eventfd_read(self.event_fd)
        except BlockingIOError:
            return

    def end(self) -> None:
        """Finish the requested operations and end the thread; waits for that."""
        self.call(None)
        self._thread.join()

    def close(self) -> None:
        """Close the descriptors, after `end`."""
        os.close(self.event_fd)
        os.close(self._wake)

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Execute operations up to and including a call; return False at the end or on failure."""
        if cython.compiled:
            with cython.nogil:
                self._write_on()
        else:
            self._write_on()
        function = self._kept[self._done % _RING_ENTRIES]
        if self.error_number or function is None:
            return False
        try:
            function()
        except OSError as error:
            self.error_number = error.errno or errno.EIO
            os.eventfd_write(self.event_fd, 1)
            return False
        except BaseException as error:
            self.failure = error
            os.eventfd_write(self.event_fd, 1)
            return False
        if cython.compiled:
            journal_store(cython.address(self._done), self._done + 1)
            journal_notify(self.event_fd)
        else:
            self._done += 1
            os.eventfd_write(self.event_fd, 1)
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _write_on(self) -> cython.void:
        """Execute writes and syncs, up to a call or a failure."""
        if cython.compiled:
            while True:
                while journal_load(cython.address(self._asked)) == self._done:
                    journal_wait(self._wake)
                index: cython.Py_ssize_t = self._done % _RING_ENTRIES
                if self._ring[index].kind == _CALL:
                    return
                if self._ring[index].kind == _SYNC:
                    self.error_number = journal_sync(self._ring[index].file)
                else:
                    self.error_number = journal_write(
                        self._ring[index].file,
                        self._ring[index].data,
                        self._ring[index].size,
                        self._ring[index].at,
                        self._ring[index].kind == _THROUGH,
                        cython.address(self._flagged),
                    )
                if self.error_number != 0:
                    journal_notify(self.event_fd)
                    return
                more: cython.bint = self._ring[index].more
                journal_store(cython.address(self._done), self._done + 1)
                if not more:
                    journal_notify(self.event_fd)
        else:
            while self._asked == self._done:
                os.eventfd_read(self._wake)


def _write(file: int, left: memoryview, at: int, through: bool) -> None:
    """Do what the compiled `write` does, for the twin. Raises `OSError`."""
    flag = os.RWF_DSYNC if through else 0
    while left:
        try:
            done = os.pwritev(file, [left], at, flag)
        except OSError as error:
            if error.errno not in NO_FLAG or not flag:
                raise
            flag = 0
            continue
        if through and not flag:
            os.fdatasync(file)
        left = left[done:]
        at += done
