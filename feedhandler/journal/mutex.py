# cython: language_level=3
"""A mutex for locks held for microseconds, cheap to take from compiled code.

It does what `threading.Lock` does, whose `acquire` parses its arguments on every call. A queue
takes one for each item, and a handful for each segment. Waiting for it cannot be interrupted.
Compiled; the interpreted twin has a `threading.Lock` inside.
"""

import threading

import cython

if cython.compiled:
    from cython.cimports.cpython.pythread import (
        NOWAIT_LOCK,
        WAIT_LOCK,
        PyThread_acquire_lock,
        PyThread_allocate_lock,
        PyThread_free_lock,
        PyThread_release_lock,
        PyThread_type_lock,
    )


@cython.cclass
class Mutex:
    """A non-recursive mutex; see the module. The thread that took it releases it, once."""

    _lock: "PyThread_type_lock"

    def __cinit__(self) -> None:
        if cython.compiled:
            self._lock = PyThread_allocate_lock()
            if self._lock == cython.NULL:
                raise MemoryError

    def __init__(self) -> None:
        if not cython.compiled:
            self._lock = threading.Lock()

    def __dealloc__(self) -> None:
        if cython.compiled and self._lock != cython.NULL:
            PyThread_free_lock(self._lock)

    def lock(self) -> cython.bint:
        """Acquire; blocks, not interruptible."""
        if cython.compiled:
            if PyThread_acquire_lock(self._lock, NOWAIT_LOCK) == 0:
                with cython.nogil:
                    PyThread_acquire_lock(self._lock, WAIT_LOCK)
            return True
        return self._lock.acquire()

    def give(self) -> cython.bint:
        """Release."""
        if cython.compiled:
            PyThread_release_lock(self._lock)
        else:
            self._lock.release()
        return True

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire as `lock`, or without waiting unless `blocking`; return whether it was acquired.

        Raises `ValueError` where a time-out is given.
        """
        if blocking and timeout < 0:
            return self.lock()
        if blocking:
            raise ValueError("a mutex is waited for without a time-out")
        if cython.compiled:
            return PyThread_acquire_lock(self._lock, NOWAIT_LOCK) != 0
        return self._lock.acquire(False)

    def release(self) -> None:
        """Release, as `give`."""
        self.give()

    def __enter__(self) -> "Mutex":
        self.lock()
        return self

    def __exit__(self, *error: object) -> None:
        self.give()
