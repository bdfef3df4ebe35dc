# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Withdrawal of an announced loss: a line's packets of that range show that nothing was lost.

A forged packet can make the stream announce as lost what was not sent yet. When the lines then go
on in the announced range themselves, the announcement is withdrawn and the stream goes on there;
what was published behind the range stays published, and the stream passes it (`lost.Islands`).
"""

import cython
from cython.cimports.feedhandler.codecs.feed_table import PacketHeader
from cython.cimports.feedhandler.ingest import columns, records, slots
from cython.cimports.feedhandler.ingest.sequencer import Sequencer


@cython.ccall
@cython.nogil
def withdraws(
    stream: Sequencer,
    line: cython.int,
    header: PacketHeader,
    data: cython.const_uchar[::1],
    start: cython.Py_ssize_t,
    received_ns: cython.ulonglong,
    now_ns: cython.ulonglong,
) -> cython.bint:
    """Withdraw an announcement where this packet of the range is enough evidence; return 1 then.

    The stream then goes on at this packet, or at those that came just before it. It is enough where
    the lines that brought what was published behind the range now go on in it themselves; or where
    as many packets in a row have come of it on one line as others have published behind it
    (`slots.RUN_MAX` at most), and none of theirs meanwhile. Then nothing was lost, and the evidence
    for the loss was forged. In the middle of a range it takes two in a row.
    """
    others: cython.ulonglong = stream.out.won_by_others(line)
    if stream.gap_wait == 0 or not stream.lost.is_doubtful(header.sequence):
        return 0
    count: cython.Py_ssize_t = stream.runs.follow(
        line, header, data, start, received_ns, now_ns, others
    )
    if count == 0:
        return 0
    first: cython.ulonglong = stream.runs.first[line]
    need: cython.ulonglong = others - stream.lost.published_before(first, line)
    if need < 2 and stream.lost.first_of(first) < first:
        need = 2
    if count < slots.RUN_MAX and cython.cast(cython.ulonglong, count) < need:
        return 0
    return _withdraw(stream, line, now_ns)


@cython.cfunc
@cython.nogil
def _withdraw(stream: Sequencer, line: cython.int, now_ns: cython.ulonglong) -> cython.bint:
    """Continue where the line's run began; return 0 where the ring has no room for the record."""
    at: cython.Py_ssize_t
    first: cython.ulonglong = stream.runs.first[line]
    if not stream.out.control_event(records.WITHDRAWN, line, stream.expected, first, stream.epoch):
        return 0
    _distrust(stream, first, now_ns)
    stream.out.count(
        columns.CHANNEL_WITHDRAWN, stream.islands.rise(stream.lost, first, stream.expected)
    )
    stream.go_back(first)
    for at in range(stream.runs.count[line]):
        slot: cython.Py_ssize_t = stream.runs.slots[line * slots.RUN_MAX + at]
        if stream.is_full() or not stream.enlist(
            slot, stream.pool.word(slot, slots.FINGERPRINT), False
        ):
            stream.pool.give_back(slot)
    stream.runs.let_go(line)
    stream.runs.forget_all()
    return 1


@cython.cfunc
@cython.nogil
def _distrust(stream: Sequencer, first: cython.ulonglong, now_ns: cython.ulonglong) -> cython.int:
    """Distrust the lines that published what lies behind `first`: it had not been sent."""
    line: cython.int
    others: cython.ulonglong = 0
    for line in range(stream.lines):
        others += stream.out.won_by_others(line) - stream.lost.published_before(first, line)
    for line in range(stream.lines):
        # Whether this line published some: in `others` each packet counts for all lines but one.
        if stream.lines == 1 or others > (stream.lines - 1) * (
            stream.out.won_by_others(line) - stream.lost.published_before(first, line)
        ):
            stream.belief.distrust(line, now_ns)
    return 0
