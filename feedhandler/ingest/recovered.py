# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Recovery's inputs to a channel: packets it brings back, and refusals.

The arbiter reports gaps that its lines did not fill (`MISSING` records, see `sequencer.py`), with
the epoch they belong to. Recovery's answers may come at any time, also after a reset has begun a
new epoch: an answer of another epoch changes nothing. It is known by the epoch that was asked
about, by its session, and for a while after a reset by its send time, since lines bring answers to
earlier requests as well.

A packet brought back is judged like one of a line, by its number alone, but it can neither begin an
epoch nor move the window, and it counts on a separate line (index `line_count`).
"""

import cython
from cython.cimports.feedhandler.codecs import kinds
from cython.cimports.feedhandler.codecs.feed_table import PacketHeader
from cython.cimports.feedhandler.ingest import columns, records, states
from cython.cimports.feedhandler.ingest.answers import DIFFERENT
from cython.cimports.feedhandler.ingest.arbitration import Arbiter


@cython.ccall
@cython.nogil
def recover(
    arbiter: Arbiter,
    header: PacketHeader,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    received_ns: cython.ulonglong,
    now_ns: cython.ulonglong,
    epoch: cython.ulonglong,
) -> cython.int:
    """Give `arbiter` the packet `data[start:start + header.length]`; return a `Verdict`.

    `header` is the scanner's, checked and accepted; `received_ns` when it came (CLOCK_REALTIME);
    `epoch` the one that the gap was reported with.
    """
    line: cython.int = arbiter.line_count
    arbiter.out.count_line(line, columns.LINE_PACKETS)
    if (
        epoch != arbiter.stream.epoch
        or not arbiter.joined
        or arbiter.pending_cause != 0
        or (header.kind != kinds.DATA and header.kind != kinds.SKIP)
        or header.session != arbiter.session
        or (arbiter.epochs.mixed(now_ns) and arbiter.epochs.sent_before(header))
    ):
        arbiter.out.count_line(line, columns.LINE_STALE)
        return states.STALE
    input: cython.int = arbiter._input_of(header)
    if input == states.OLD:
        return _drop(arbiter, header, data, start, now_ns)
    if input == states.JUMP:
        arbiter.out.count_line(line, columns.LINE_REFUSED)
        return states.REFUSED
    arbiter.out.received_ns = received_ns
    return arbiter._act(line, header, data, start, received_ns, now_ns)


@cython.cfunc
@cython.nogil
def _drop(
    arbiter: Arbiter,
    header: PacketHeader,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    now_ns: cython.ulonglong,
) -> cython.int:
    """Drop a packet whose number was announced lost, or brought by a line meanwhile."""
    line: cython.int = arbiter.line_count
    if arbiter.stream.lost.touches(header.sequence, header.next_sequence):
        arbiter.out.count_line(line, columns.LINE_LATE)
        return states.LATE
    if arbiter.stream.copies.compare_packet(header, data, start) == DIFFERENT:
        arbiter._alarm(line, header, now_ns)
    arbiter.out.count_line(line, columns.LINE_DUPLICATES)
    return states.DUPLICATE


@cython.ccall
@cython.nogil
def give_up(
    arbiter: Arbiter, until: cython.ulonglong, now_ns: cython.ulonglong, epoch: cython.ulonglong
) -> cython.int:
    """Announce every gap below `until` as lost, because no server has what is missing there."""
    if epoch != arbiter.stream.epoch or not arbiter.joined:
        return 0
    # A gap with no believed evidence behind it is no loss.
    until = min(until, arbiter.stream.believed_end())
    if until > arbiter.stream.expected:
        arbiter.stream.force(until, records.BY_REFUSAL)
        arbiter._advance(now_ns)
    return 0


@cython.ccall
@cython.nogil
def disprove(
    arbiter: Arbiter, number: cython.ulonglong, now_ns: cython.ulonglong, epoch: cython.ulonglong
) -> cython.int:
    """Discard the evidence for `number` and later ones: the server says that it was not sent yet.

    The server has everything that was sent.
    """
    if epoch != arbiter.stream.epoch or not arbiter.joined:
        return 0
    arbiter.stream.disprove(number)
    arbiter._advance(now_ns)
    return 0
