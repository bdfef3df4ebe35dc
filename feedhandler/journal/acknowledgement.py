# cython: language_level=3, boundscheck=True, wraparound=False
"""What a task awaits until the disk has what it put: futures that wake it at once.

An `asyncio.Future` has its task woken by a further turn of the event loop, with an object made for
that, and is itself the largest part of what putting an item costs. An `Acknowledgement` is made
from a free list, kept in a chain of its own, and wakes its task from within the callback that hears
of the disk. To the task it is a future like any other (`_asyncio_future_blocking` is how tasks know
one). It is awaited by one task, at once, and does not leave this package.

Compiled; the interpreted twin does the same.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import cython

if cython.compiled:
    from cython.cimports.cpython.contextvars import PyContext_Enter, PyContext_Exit


@cython.freelist(256)
@cython.trashcan(True)
@cython.cclass
class Acknowledgement:
    """What somebody waits for: that the disk has everything up to `target`."""

    def __init__(self, loop: object, target: cython.longlong) -> None:
        self.target = target
        self._loop = loop
        self._asyncio_future_blocking = False
        self._over = False
        self._error = self._message = self._callback = self._context = None
        self.behind = None

    def __await__(self) -> "Acknowledgement":
        return self

    def __iter__(self) -> "Acknowledgement":
        return self

    def __next__(self) -> "Acknowledgement":
        if not self._over:
            self._asyncio_future_blocking = True
            return self
        if self._error is not None:
            raise self._error
        raise StopIteration

    # -- as a task wants it -----------------------------------------------------------------

    def get_loop(self) -> object:
        """The event loop."""
        return self._loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        """Have the task woken, once."""
        self._callback, self._context = callback, context

    def cancel(self, msg: object = None) -> bool:
        """The task waits no more: it is told so by the event loop. Not once it was woken."""
        if self._over:
            return False
        self._over = True
        self._message = msg
        if self._callback is not None:
            self._loop.call_soon(self._callback, self, context=self._context)
            self._callback = None
        return True

    def result(self) -> object:
        """Asked for by a task that was cancelled, and by no other."""
        raise asyncio.CancelledError(*([] if self._message is None else [self._message]))

    # -- as the queue wants it --------------------------------------------------------------

    @cython.cfunc
    def tell(self, error: object, happened: object, at_once: cython.bint) -> cython.bint:
        """It is on the disk, or never will be: `error`. Wake the task, where it waits still.

        `happened` is a future that is done. The task is resumed in here where `at_once`, which
        nobody may ask for who runs in a task. Raises what ends event loops, nothing else.
        """
        if self._over:
            return False
        self._over = True
        self._error = error
        callback, self._callback = self._callback, None
        if callback is None:
            return False
        if not at_once:
            self._loop.call_soon(callback, happened, context=self._context)
        elif cython.compiled:
            PyContext_Enter(self._context)
            try:
                callback(happened)
            finally:
                PyContext_Exit(self._context)
        else:
            self._context.run(callback, happened)
        return True


@cython.cclass
class Acknowledgements:
    """Those who wait, in the order of what they wait for. To be made in the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._happened = self._loop.create_future()
        self._happened.set_result(None)
        self._first = self._last = None

    @cython.ccall
    def add(self, target: cython.longlong) -> Acknowledgement:
        """One more, who waits for no less than those before: to be awaited at once."""
        one: Acknowledgement = Acknowledgement(self._loop, target)
        if self._first is None:
            self._first = one
        else:
            last: Acknowledgement = self._last
            last.behind = one
        self._last = one
        return one

    @cython.ccall
    def tell(
        self, durable: cython.longlong, error: "BaseException | None", at_once: cython.bint
    ) -> cython.bint:
        """Everything up to `durable` is on the disk; where there is an `error`, nothing else will
        ever be. Whom it concerns is woken: at once, or by the event loop."""
        one: Acknowledgement = self._first
        while one is not None and (one.target <= durable or error is not None):
            self._first = one.behind
            one.behind = None
            one.tell(error if one.target > durable else None, self._happened, at_once)
            one = self._first
        return True
