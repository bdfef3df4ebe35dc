# cython: language_level=3, boundscheck=True, wraparound=False
"""A thread that writes for an event loop, and never asks for the interpreter to do so.

What it is for: a thread that comes back from a system call waits for the interpreter until whoever
runs there lets it go, and then the event loop waits for the thread; at ten thousand syncs a second
that costs more than they do. So segments are handed over as plain memory: the thread writes and
syncs one after the other, and tells the loop by a descriptor that it watches.

    event loop   write(file, data, at)   goes on with other things   `told` is readable: done()
    thread                          pwritev2(RWF_DSYNC)

Several may be under way: the next one follows as soon as the one before is on the disk. With
`more`, the loop is told only when what comes next is done too. What is neither a write nor a sync
is a `call`: a function, which the thread calls with the interpreter.

What it promises: things are done in the order in which they were asked for. After the first
failure nothing is done any more: `error_number` or `failure` says what it was, and `done` does not
count it.

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
        journal_store,
        journal_sync,
        journal_tell,
        journal_wait,
        journal_write,
    )

from feedhandler.journal.files import NO_FLAG

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from typing_extensions import Buffer

#: The most that may be under way at a time, the end among it.
PLACES = 16
_PLACES = cython.declare(cython.Py_ssize_t, PLACES)
_CALL = cython.declare(cython.int, 0)
_WRITE = cython.declare(cython.int, 1)
_THROUGH = cython.declare(cython.int, 2)
_SYNC = cython.declare(cython.int, 3)


@cython.cclass
class Writer:
    """See the module. `told`: the descriptor that becomes readable when something was done, or has
    failed; `error_number`: why a write failed, 0: none did; `failure`: what a call raised."""

    def __init__(self) -> None:
        self.told = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.error_number = 0
        self.failure: BaseException | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._flagged = 1
        self._asked = self._done = 0
        #: What is under way, by turns: it is kept here while the thread works on it.
        self._kept = [None] * PLACES
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    # -- the event loop ---------------------------------------------------------------------

    @cython.ccall
    def write(
        self,
        file: cython.int,
        data: "Buffer",
        at: cython.longlong,
        through: cython.bint,
        more: cython.bint = False,
    ) -> cython.longlong:
        """Have `data` (not empty) written to the file; with `through` they are on the disk when it
        is done. How much will be `done` then, as with the next two."""
        if cython.compiled:
            view: cython.const[cython.uchar][::1] = data
            place: cython.Py_ssize_t = self._asked % _PLACES
            self._places[place].file = file
            self._places[place].data = cython.cast(cython.p_char, cython.address(view[0]))
            self._places[place].size = view.shape[0]
            self._places[place].at = at
            self._places[place].kind = _THROUGH if through else _WRITE
            self._places[place].more = more
            return self._hand_over(data)
        return self._hand_over(functools.partial(_write, file, memoryview(data), at, through))

    @cython.ccall
    def sync(self, file: cython.int, more: cython.bint = False) -> cython.longlong:
        """Have on the disk what was written to the file."""
        if cython.compiled:
            place: cython.Py_ssize_t = self._asked % _PLACES
            self._places[place].file = file
            self._places[place].kind = _SYNC
            self._places[place].more = more
            return self._hand_over(None)
        return self._hand_over(functools.partial(os.fdatasync, file))

    @cython.ccall
    def call(self, function: "Callable[[], Any] | None") -> cython.longlong:
        """Have the thread call that."""
        if cython.compiled:
            self._places[self._asked % _PLACES].kind = _CALL
            self._places[self._asked % _PLACES].more = False
        return self._hand_over(function)

    @cython.cfunc
    def _hand_over(self, kept: object) -> cython.longlong:
        assert self._asked - self.done() < _PLACES
        self._kept[self._asked % _PLACES] = kept
        if cython.compiled:
            journal_store(cython.address(self._asked), self._asked + 1)
            journal_tell(self._wake)
        else:
            self._asked += 1
            os.eventfd_write(self._wake, 1)
        return self._asked

    @cython.ccall
    @cython.exceptval(check=False)
    def room(self) -> cython.longlong:
        """How much more may be asked for, besides the end."""
        return _PLACES - 1 - (self._asked - self.done())

    @cython.ccall
    @cython.exceptval(check=False)
    def done(self) -> cython.longlong:
        """How many of the things asked for are done."""
        if cython.compiled:
            return journal_load(cython.address(self._done))
        return self._done

    def hear(self) -> None:
        """Have `told` readable again only when something more was done."""
        if cython.compiled:
            journal_wait(self.told)  # which does not wait: it was made so
            return
        try:
            os.eventfd_read(self.told)
        except BlockingIOError:
            return

    def end(self) -> None:
        """Do what was asked for and end; waits for that."""
        self.call(None)
        self._thread.join()

    def close(self) -> None:
        """Give the descriptors back, after the end."""
        os.close(self.told)
        os.close(self._wake)

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while self._turn():
            pass

    def _turn(self) -> bool:
        """Write what comes, up to a call; make that. False: it was the end."""
        if cython.compiled:
            with cython.nogil:
                self._write_on()
        else:
            self._write_on()
        function = self._kept[self._done % _PLACES]
        if self.error_number or function is None:
            return False
        try:
            function()
        except OSError as error:
            self.error_number = error.errno or errno.EIO
            os.eventfd_write(self.told, 1)
            return False
        except BaseException as error:
            self.failure = error
            os.eventfd_write(self.told, 1)
            return False
        if cython.compiled:
            journal_store(cython.address(self._done), self._done + 1)
            journal_tell(self.told)
        else:
            self._done += 1
            os.eventfd_write(self.told, 1)
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _write_on(self) -> cython.void:
        """Write what comes, up to a call or a failure."""
        if cython.compiled:
            place: cython.Py_ssize_t
            more: cython.bint
            while True:
                while journal_load(cython.address(self._asked)) == self._done:
                    journal_wait(self._wake)
                place = self._done % _PLACES
                if self._places[place].kind == _CALL:
                    return
                if self._places[place].kind == _SYNC:
                    self.error_number = journal_sync(self._places[place].file)
                else:
                    self.error_number = journal_write(
                        self._places[place].file,
                        self._places[place].data,
                        self._places[place].size,
                        self._places[place].at,
                        self._places[place].kind == _THROUGH,
                        cython.address(self._flagged),
                    )
                if self.error_number != 0:
                    journal_tell(self.told)
                    return
                more = self._places[place].more
                journal_store(cython.address(self._done), self._done + 1)
                if not more:
                    journal_tell(self.told)
        else:
            while self._asked == self._done:
                os.eventfd_read(self._wake)


def _write(file: int, left: memoryview, at: int, through: bool) -> None:
    """What the twin does for `write`. Raises `OSError`."""
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
