# cython: language_level=3, boundscheck=True, wraparound=False
"""Stretches of a file read straight into what they are wanted as: one `bytes` for each part.

Items that are handed out together lie behind each other in their segment. Read in one piece they
would be copied twice, out of the kernel and out of the piece; so they are scattered by the kernel.
Compiled; the interpreted twin reads one part after the other.
"""

import os

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.feedhandler.journal.system_calls import iovec, journal_read

#: Parts that one call reads at most; Linux takes 1024.
PARTS_MAX = 256


def read_parts(descriptor: cython.int, sizes: list, offset: cython.longlong) -> list | None:
    """The file's bytes from `offset` on as parts of these sizes, at most `PARTS_MAX` of them; None
    where the file ends before. Raises `OSError`."""
    if len(sizes) > PARTS_MAX:
        raise ValueError(f"more than {PARTS_MAX} parts")
    if not cython.compiled:
        return _read(descriptor, sizes, offset)
    places = cython.declare(iovec[256])
    parts: list = []
    count: cython.int = 0
    total: cython.Py_ssize_t = 0
    error: cython.int = 0
    size: cython.Py_ssize_t
    for size in sizes:
        part: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        # Nobody else has it yet.
        places[count].iov_base = PyBytes_AS_STRING(part)
        places[count].iov_len = size
        parts.append(part)
        count += 1
        total += size
    with cython.nogil:
        error = journal_read(descriptor, places, count, total, offset)
    if error > 0:
        raise OSError(error, os.strerror(error))
    return parts if error == 0 else None


def _read(descriptor: int, sizes: list, offset: int) -> list | None:
    """What the twin does: a part at a time, in as many reads as it takes."""
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
