# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""FIX copies that are known by their bytes: of those only the first message is read.

Where two lines pack messages alike, the second copy of a datagram is the first one's bytes again.
The number of its first message says with which first copy to compare it, and that one's fingerprint
says whether all of it is the same: then its messages have been checked, and nothing in it is new.
What is not known in that way is read to its end, and received like any packet.

Left to others: what becomes of everything else (`arbitration.py`), and whose fingerprints there are
(`packing.py`).
"""

import cython
from cython.cimports.feedhandler.ingest import columns, states


def may_be_copy(arbiter, header, now_ns):
    """May what begins with this message be a copy of what was published, so that it is worth asking
    `take_copy`? `header` has the first message alone."""
    return (
        arbiter.is_old(header, now_ns)
        and not arbiter.stream.blocked
        and not arbiter.epochs.mixed(now_ns)
        and arbiter.stream.copies.window.knows(header.sequence)
    )


def take_copy(arbiter, line, header, data, start, size, received_ns, now_ns):
    """Take `data[start:start + size]` where each byte of it was published before, and `may_be_copy`
    holds; returns a `Verdict`, or 0 where that is not known: it is then to be read to its end, and
    received.

    `header` has its first message, and has all of it afterwards.
    """
    end: cython.ulonglong
    span: cython.ulonglong = arbiter.stream.copies.known_span(header.sequence, data, start, size)
    end = header.sequence + span
    if span == 0 or end > arbiter.stream.expected:
        return 0
    # What was held and then given up is known, too, but was not published.
    if arbiter.stream.lost.touches(header.sequence, end):
        return 0
    header.next_sequence = end
    header.count = cython.cast(cython.int, span)
    header.length = cython.cast(cython.uint, size)
    arbiter.out.received_ns = received_ns
    arbiter.watch.hear(line, now_ns, arbiter.stream.expected)
    arbiter.watch.latest[line] = end
    if line < arbiter.line_count and arbiter.state != states.FLOWING:
        arbiter.stream.belief.hear(line, False)
    arbiter.stream.copy(line, header)
    arbiter.out.count_line(line, columns.LINE_DUPLICATES)
    return states.DUPLICATE
