"""A client's deliveries, checked against what was sent, and timed.

What it is for: the hot path of a measuring client. One call takes everything that one read brought,
in compiled code: counts it, times it from the gateway's kernel receive stamp to the client's read,
and checks that each packet (or message) comes once and in order. The benches' subscribers use it
for its counts and its histogram, without `expect`.

One array for all services holds what is expected (`Expected`): how many AMQP messages each sequence
number brings, 0 where a feed that numbers messages leaves numbers out. An AMQP message is
identified by its position: sequence number and message number. Within a service, positions must
rise.
Any other delivery is `misplaced`, and `verdict` separates those that came twice from those that
came late.

What it leaves to others: the connection (`client`), what is sent (`workload`). No clock: `record`
is given the time.
"""

from typing import Any

import cython
import numpy
from cython.cimports.feedhandler.amqp.subscribing.columns import Batch
from cython.cimports.feedhandler.histogram import Histogram

from feedhandler.codecs.visibility import Public, Readonly

#: Deliveries that were wrong and are named; the others are counted.
NAMED_MAX = 5
#: Service numbers are 16 bits in a tag.
SERVICES_MAX = 1 << 16
_WHOLE = cython.declare(cython.longlong, 0xFFFF)
_NAMED_MAX = cython.declare(cython.Py_ssize_t, NAMED_MAX)


@cython.cclass
class Tally:
    """Counts, checks and latencies of one client.

    deliveries    AMQP messages taken, quality messages left out
    body_bytes    bytes of their bodies
    announced     sequence numbers that quality messages declared lost
    misplaced     deliveries whose position was not above the one before of their service
    strangers     deliveries that were not sent
    histogram     latencies of what belongs to the measured part
    clock_from_ns without `expect`: nothing read before this is timed
    """

    histogram: Readonly[Histogram]
    deliveries: Readonly[cython.longlong]
    body_bytes: Readonly[cython.longlong]
    announced: Readonly[cython.longlong]
    misplaced: Readonly[cython.longlong]
    strangers: Readonly[cython.longlong]
    clock_from_ns: Public[cython.longlong]
    named: Readonly[list]
    checking: Readonly[cython.bint]
    thinned: Readonly[cython.bint]
    slots: cython.int[::1]
    bases: cython.longlong[::1]
    sizes: cython.longlong[::1]
    offsets: cython.longlong[::1]
    timed_from: cython.longlong[::1]
    last: cython.longlong[::1]
    seen: cython.ushort[::1]

    def __init__(self) -> None:
        self.histogram = Histogram()
        self.deliveries = self.body_bytes = self.announced = 0
        self.misplaced = self.strangers = self.clock_from_ns = 0
        self.named: list[str] = []
        self.checking = self.thinned = False
        self.slots = memoryview(numpy.full(SERVICES_MAX, -1, numpy.int32))
        self.forget()

    def forget(self) -> None:
        """Expect nothing: deliveries are counted and timed, not checked."""
        self.checking = False
        nothing = numpy.zeros(0, numpy.int64)
        self.bases = self.sizes = self.offsets = self.timed_from = memoryview(nothing)
        self.last = memoryview(nothing.copy())
        self.seen = memoryview(numpy.zeros(0, numpy.uint16))

    def expect(
        self, services: Any, bases: Any, sizes: Any, timed_from: Any, thinned: bool = False
    ) -> None:
        """Set what comes next, and start counts and histogram afresh.

        Of each service (int64 arrays, one element each): the first sequence number, how many
        numbers there are, and the first one whose latency counts. `thinned`: not every message of a
        packet is wanted, so message numbers may be left out.
        """
        numpy.asarray(self.slots)[:] = -1
        numpy.asarray(self.slots)[numpy.asarray(services)] = numpy.arange(len(services))
        sizes = numpy.array(sizes, numpy.int64)
        self.bases = memoryview(numpy.array(bases, numpy.int64))
        self.sizes = memoryview(sizes)
        self.offsets = memoryview(numpy.cumsum(sizes) - sizes)
        self.timed_from = memoryview(numpy.array(timed_from, numpy.int64))
        self.last = memoryview(numpy.full(len(sizes), -1, numpy.int64))
        self.seen = memoryview(numpy.zeros(int(sizes.sum()), numpy.uint16))
        self.histogram.clear()
        self.deliveries = self.body_bytes = self.announced = 0
        self.misplaced = self.strangers = 0
        self.named = []
        self.thinned = thinned
        self.checking = True

    def record(self, batch: Batch, now_ns: cython.longlong) -> cython.int:
        """Count, check and time one read's deliveries.

        `now_ns` is the time of the read, of the clock that the gateway's stamps are of.
        """
        row: cython.Py_ssize_t
        count: cython.Py_ssize_t
        width: cython.Py_ssize_t
        if batch.notes:
            self._note(batch.quality)
        count, width = batch.count, batch.width
        self.deliveries += count
        self.body_bytes += len(batch.data)
        if cython.compiled:
            rows: cython.p_longlong = cython.cast(
                cython.p_longlong, cython.cast(cython.p_char, batch.parts)
            )
        else:
            rows = memoryview(batch.parts).cast("q")
        if self.checking:
            for row in range(count):
                if self._placed(
                    rows[5 * width + row], rows[3 * width + row], rows[4 * width + row]
                ):
                    self.histogram.record(now_ns - rows[2 * width + row])
        elif now_ns >= self.clock_from_ns:
            for row in range(count):
                if rows[2 * width + row]:
                    self.histogram.record(now_ns - rows[2 * width + row])
        return 0

    def _placed(
        self, service: cython.longlong, sequence: cython.longlong, number: cython.longlong
    ) -> cython.bint:
        """Check one delivery; return whether its latency counts."""
        slot: cython.int = self.slots[service & 0xFFFF]
        if slot < 0:
            self._stranger(service, sequence, number)
            return False
        at: cython.longlong = sequence - self.bases[slot]
        if at < 0 or at >= self.sizes[slot]:
            self._stranger(service, sequence, number)
            return False
        position: cython.longlong = sequence << 16 | number
        if position <= self.last[slot]:
            self.misplaced += 1
            self._name("came again or too late", service, sequence, number)
        else:
            self.last[slot] = position
        at += self.offsets[slot]
        if (
            number != _WHOLE
            and number != self.seen[at]
            and position == self.last[slot]
            and not self.thinned
        ):
            self._name("a message before it is missing", service, sequence, number)
        self.seen[at] += 1
        timed: cython.bint = sequence >= self.timed_from[slot]
        return timed

    def _stranger(
        self, service: cython.longlong, sequence: cython.longlong, number: cython.longlong
    ) -> cython.int:
        self.strangers += 1
        return self._name("never sent", service, sequence, number)

    def _name(
        self,
        what: str,
        service: cython.longlong,
        sequence: cython.longlong,
        number: cython.longlong,
    ) -> cython.int:
        """Keep the first few wrong deliveries as text."""
        if len(self.named) < _NAMED_MAX:
            which = "" if number == _WHOLE else f".{number}"
            self.named.append(f"service {service}, {sequence}{which}: {what}")
        return 0

    def _note(self, interval: list) -> None:
        """Count the sequence numbers that quality messages declare lost.

        With an expectation, only numbers that are expected count.
        """
        for quality in interval:
            first_number, end = 0, 1 << 63
            if self.checking:
                slot = self.slots[quality.get("service", 0) & 0xFFFF]
                if slot < 0:
                    continue
                first_number = self.bases[slot]
                end = first_number + self.sizes[slot]
            for first, last in quality.get("lost", ()):
                self.announced += max(0, min(last + 1, end) - max(first, first_number))

    def verdict(self, expected: Any) -> dict[str, int]:
        """Return the counts of lost, duplicated and reordered deliveries, and the totals.

        `expected` u16: AMQP messages of each sequence number, services one behind the other in the
        order given to `expect`. Strangers count as duplicated.
        """
        seen = numpy.asarray(self.seen).astype(numpy.int64)
        wanted = numpy.asarray(expected, numpy.int64)
        duplicated = int(numpy.maximum(seen - wanted, 0).sum())
        return {
            "expected": int(wanted.sum()),
            "received": int(self.deliveries),
            "lost": int(numpy.maximum(wanted - seen, 0).sum()),
            "duplicated": duplicated + int(self.strangers),
            "reordered": max(0, int(self.misplaced) - duplicated),
        }

    def first_lost(self, expected: Any, services: Any) -> list[str]:
        """Return the first few incomplete sequence numbers, as text."""
        missing = numpy.asarray(self.seen) < numpy.asarray(expected)
        found = []
        for at in numpy.flatnonzero(missing)[:NAMED_MAX].tolist():
            slot = int(numpy.searchsorted(numpy.asarray(self.offsets), at, "right")) - 1
            sequence = at - self.offsets[slot] + self.bases[slot]
            found.append(f"service {services[slot]}, {sequence}: missing")
        return found
