# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""FIX copies known by their bytes: only the first message of such a datagram is parsed.

Where two lines pack messages alike, the second copy of a datagram has the same bytes as the first.
The number of its first message selects the first copy to compare it with, and that one's
fingerprint shows whether all of it is the same: then its messages have been checked, and nothing in
it is new. Anything else is parsed to its end, and received like any packet.

Left to others: what happens to everything else (`arbitration.py`), and the fingerprints
(`packing.py`).
"""

import cython
from cython.cimports.feedhandler.codecs.feed_table import PacketHeader
from cython.cimports.feedhandler.ingest import columns, states
from cython.cimports.feedhandler.ingest.arbitration import Arbiter


@cython.ccall
@cython.nogil
def may_be_copy(arbiter: Arbiter, header: PacketHeader, now_ns: cython.ulonglong) -> cython.bint:
    """Return whether a datagram that begins with this message may be a copy of a published one.

    Then `accept_copy` is worth a call. `header` has only the first message.
    """
    return (
        arbiter.is_old(header, now_ns)
        and not arbiter.stream.blocked
        and not arbiter.epochs.mixed(now_ns)
        and arbiter.stream.copies.window.knows(header.sequence)
    )


@cython.ccall
@cython.nogil
def accept_copy(
    arbiter: Arbiter,
    line: cython.int,
    header: PacketHeader,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    received_ns: cython.ulonglong,
    now_ns: cython.ulonglong,
) -> cython.int:
    """Take `data[start:start + size]` as a copy if each byte of it was published before.

    Returns a `Verdict`, or 0 where that is not known: then parse it to its end and receive it.
    `may_be_copy` must hold. `header` has the first message, and the whole datagram afterwards.
    """
    span: cython.ulonglong = arbiter.stream.copies.known_span(header.sequence, data, start, size)
    end: cython.ulonglong = header.sequence + span
    if span == 0 or end > arbiter.stream.expected:
        return 0
    # A packet that was held and then given up is known too, but was not published.
    if arbiter.stream.lost.touches(header.sequence, end):
        return 0
    header.next_sequence = end
    header.count = cython.cast(cython.int, span)
    header.length = cython.cast(cython.uint, size)
    arbiter.out.received_ns = received_ns
    arbiter.watch.line_alive(line, now_ns, arbiter.stream.expected)
    arbiter.watch.latest[line] = end
    if line < arbiter.line_count and arbiter.state != states.FLOWING:
        arbiter.stream.belief.note_input(line, False)
    arbiter.stream.copy(line, header)
    arbiter.out.count_line(line, columns.LINE_DUPLICATES)
    return states.DUPLICATE
