# cython: language_level=3, boundscheck=True, wraparound=False
"""Commit waiters: awaitables that wake a task as soon as the disk has what it put.

The task of an `asyncio.Future` is woken by a further turn of the event loop, with an object created
for that, and the future itself is the largest part of the cost of putting an item. A
`CommitWaiter` comes from a free list, is linked into a list of its own, and resumes its task
within the callback that reports the write. To the task it is a future like any other: asyncio
recognises one by `_asyncio_future_blocking`. It is awaited by one task, at once, and does not leave
this package.

Compiled; the interpreted twin does the same.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import cython

from feedhandler.codecs.visibility import Public, Readonly

if cython.compiled:
    from cython.cimports.cpython.contextvars import PyContext_Enter, PyContext_Exit


@cython.freelist(256)
@cython.trashcan(True)
@cython.cclass
class CommitWaiter:
    """An awaitable that completes when everything up to `target` is on the disk."""

    target: Readonly[cython.longlong]
    _asyncio_future_blocking: Public[cython.bint]
    _loop: object
    _over: cython.bint
    _error: object
    _message: object
    _callback: object
    _context: object
    behind: "CommitWaiter"

    def __init__(self, loop: object, target: cython.longlong) -> None:
        self.target = target
        self._loop = loop
        self._asyncio_future_blocking = False
        self._over = False
        self._error = self._message = self._callback = self._context = None
        self.behind = None

    def __await__(self) -> "CommitWaiter":
        return self

    def __iter__(self) -> "CommitWaiter":
        return self

    def __next__(self) -> "CommitWaiter":
        if not self._over:
            self._asyncio_future_blocking = True
            return self
        if self._error is not None:
            raise self._error
        raise StopIteration

    # -- the future's interface to its task -------------------------------------------------

    def get_loop(self) -> object:
        """Return the event loop."""
        return self._loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        """Register the callback that wakes the task; there is only one."""
        self._callback, self._context = callback, context

    def cancel(self, msg: object = None) -> bool:
        """Stop waiting: the event loop wakes the task, with `result` raising. Returns False once it
        was woken."""
        if self._over:
            return False
        self._over = True
        self._message = msg
        if self._callback is not None:
            self._loop.call_soon(self._callback, self, context=self._context)
            self._callback = None
        return True

    def result(self) -> object:
        """Raise `CancelledError`: asyncio asks for the result of a cancelled wait only."""
        raise asyncio.CancelledError(*([] if self._message is None else [self._message]))

    # -- the queue's interface --------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def complete(self, error: object, happened: object, at_once: cython.bint) -> cython.bint:
        """Complete the wait and wake the task; `error`: the target will never be durable.

        `happened` is a future that is done. With `at_once` the task is resumed within this call,
        which is not allowed where the caller itself runs in a task. Raises only what ends event
        loops.
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
class CommitWaiters:
    """Linked list of commit waiters, ordered by target. Create it in the running event
    loop."""

    _loop: object
    _happened: object
    _first: CommitWaiter
    _last: CommitWaiter

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._happened = self._loop.create_future()
        self._happened.set_result(None)
        self._first = self._last = None

    @cython.ccall
    def add(self, target: cython.longlong) -> CommitWaiter:
        """Append a waiter for `target`, which must not be below the last one's.

        It must be awaited at once.
        """
        one: CommitWaiter = CommitWaiter(self._loop, target)
        if self._first is None:
            self._first = one
        else:
            last: CommitWaiter = self._last
            last.behind = one
        self._last = one
        return one

    def complete(
        self, durable: cython.longlong, error: "BaseException | None", at_once: cython.bint
    ) -> cython.bint:
        """Complete the waits up to `durable`; with an `error`, fail all others.

        Their tasks are woken within this call (`at_once`), or by the event loop.
        """
        one: CommitWaiter = self._first
        while one is not None and (one.target <= durable or error is not None):
            self._first = one.behind
            one.behind = None
            one.complete(error if one.target > durable else None, self._happened, at_once)
            one = self._first
        return True
