# cython: language_level=3, boundscheck=True, wraparound=False
"""Scattered reads of a file: one `bytes` object for each part.

Items that are handed out together lie behind each other in their segment. Read as one piece they
would be copied twice, out of the kernel and out of the piece; so the kernel scatters them.
Compiled; the interpreted twin reads one part after the other.
"""

import os

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.feedhandler.journal.system_calls import iovec, journal_read

#: Upper limit on the parts of one call; Linux allows 1024.
PARTS_MAX = 256


def read_parts(descriptor: cython.int, sizes: list, offset: cython.longlong) -> list | None:
    """Read parts of these sizes from `offset` on; None where the file ends before.

    Raises `ValueError` where there are more than `PARTS_MAX` parts, and `OSError`.
    """
    if len(sizes) > PARTS_MAX:
        raise ValueError(f"more than {PARTS_MAX} parts")
    if not cython.compiled:
        return _read(descriptor, sizes, offset)
    vectors = cython.declare(iovec[256])
    parts: list = []
    count: cython.int = 0
    total: cython.Py_ssize_t = 0
    error: cython.int = 0
    size: cython.Py_ssize_t
    for size in sizes:
        part: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        # Not shared yet: safe to write into.
        vectors[count].iov_base = PyBytes_AS_STRING(part)
        vectors[count].iov_len = size
        parts.append(part)
        count += 1
        total += size
    with cython.nogil:
        error = journal_read(descriptor, vectors, count, total, offset)
    if error > 0:
        raise OSError(error, os.strerror(error))
    return parts if error == 0 else None


def _read(descriptor: int, sizes: list, offset: int) -> list | None:
    """Read part by part, in as many reads as it takes; the twin's `read_parts`."""
    parts = []
    for size in sizes:
        part = b""
        while len(part) < size:
            more = os.pread(descriptor, size - len(part), offset)
            if not more:
                return None
            part += more
            offset += len(more)
        parts.append(part)
    return parts
