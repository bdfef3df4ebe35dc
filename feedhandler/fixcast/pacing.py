# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Pacing: a token bucket, so that bursts of a publisher do not flood the network.

The bucket holds `burst_bytes` and fills at `rate_bytes_s`. Whatever window of time one looks at,
what was sent in it is at most the bucket and what flowed into it meanwhile. All is integer
arithmetic: tokens are kept in bytes times 10^9, so that nothing is rounded and nothing drifts.

Sending takes time, in which a process may lose its processor. The promise holds for it as well,
where `admits` is asked before a datagram is sent and `take` is told when it has been: the bucket
never holds more than it can, so what flows in while something is being sent is not saved up on top.
"""

import cython

from feedhandler.codecs.errors import UsageError

#: What a datagram costs on the wire beside its payload: Ethernet's preamble, header, check sequence
#: and gap, IPv4's and UDP's headers.
OVERHEAD_BYTES = 8 + 14 + 4 + 12 + 20 + 8
#: A terabyte a second, and a bucket of 2 GiB: tokens then fit 64 bits.
RATE_MAX_BYTES_S = 1 << 40
BURST_MAX_BYTES = 1 << 31
_SECOND_NS = cython.declare(cython.longlong, 1_000_000_000)


@cython.final
@cython.cclass
class TokenBucket:
    """Lets `rate_bytes_s` through, and `burst_bytes` at once; full at the start."""

    def __init__(self, rate_bytes_s: int, burst_bytes: int) -> None:
        if rate_bytes_s < 1 or burst_bytes < 1:
            raise UsageError(
                f"cannot pace at {rate_bytes_s} bytes/s with a bucket of {burst_bytes}",
                "both are 1 or more",
            )
        if rate_bytes_s > RATE_MAX_BYTES_S or burst_bytes > BURST_MAX_BYTES:
            raise UsageError(
                f"cannot pace at {rate_bytes_s} bytes/s with a bucket of {burst_bytes}",
                f"at most {RATE_MAX_BYTES_S:,} bytes/s and {BURST_MAX_BYTES:,} bytes",
            )
        self.rate_bytes_s = rate_bytes_s
        self.burst_bytes = burst_bytes
        self._level = burst_bytes * 1_000_000_000
        self._at_ns = 0
        self._started = False

    @cython.locals(lacking=cython.longlong)
    def ready_ns(self, size, now_ns):
        """When `size` bytes may be sent: `now_ns` where that is now. What is larger than the bucket
        waits until it is full."""
        self._fill(now_ns)
        lacking = min(size, self.burst_bytes) * _SECOND_NS - self._level
        if lacking <= 0:
            return now_ns
        return now_ns + (lacking + self.rate_bytes_s - 1) // self.rate_bytes_s

    def admits(self, before, size, now_ns):
        """Whether `size` bytes may be sent now, behind `before` bytes that are about to be."""
        self._fill(now_ns)
        return min(size, self.burst_bytes) * _SECOND_NS <= self._level - before * _SECOND_NS

    def take(self, size, now_ns):
        """Account for `size` bytes that have been sent by now; the level may become negative by
        them, and later ones wait for it."""
        self._fill(now_ns)
        self._level -= size * _SECOND_NS
        return 0

    @cython.locals(elapsed=cython.longlong, lacking=cython.longlong)
    def _fill(self, now_ns):
        """Let flow in what has come since the last time."""
        elapsed = now_ns - self._at_ns
        if self._started and elapsed > 0:
            lacking = self.burst_bytes * _SECOND_NS - self._level
            # A long time would not fit 64 bits as tokens, but fills the bucket anyway.
            if elapsed > lacking // self.rate_bytes_s:
                self._level += lacking
            else:
                self._level += elapsed * self.rate_bytes_s
        if elapsed > 0 or not self._started:
            self._at_ns = now_ns
        self._started = True
        return 0
