# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Pacing: a token bucket, so that bursts of a publisher do not flood the network.

The bucket holds `burst_bytes` and fills at `rate_bytes_s`. In any window of time no more is sent
than the bucket's size plus what flows in meanwhile. All arithmetic is integer: tokens are bytes
times 10^9, so that nothing is rounded and nothing drifts.

Sending takes time, in which a process may lose its processor. The promise holds all the same where
`admits` is called before a datagram is sent and `take` after: the bucket never holds more than its
size, so what flows in during the sending does not add to it.
"""

import cython

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.visibility import Readonly

#: Bytes of a datagram on the wire besides its payload: Ethernet's preamble, header, check sequence
#: and gap, IPv4's and UDP's headers.
OVERHEAD_BYTES = 8 + 14 + 4 + 12 + 20 + 8
#: A terabyte a second, and a bucket of 2 GiB: within these tokens fit 64 bits.
RATE_MAX_BYTES_S = 1 << 40
BURST_MAX_BYTES = 1 << 31
_SECOND_NS = cython.declare(cython.longlong, 1_000_000_000)


@cython.final
@cython.cclass
class TokenBucket:
    """Token bucket of `rate_bytes_s` and `burst_bytes`, full at the start."""

    rate_bytes_s: Readonly[cython.longlong]
    burst_bytes: Readonly[cython.longlong]
    _level: cython.longlong
    _at_ns: cython.longlong
    _started: cython.bint

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

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def ready_ns(self, size: cython.longlong, now_ns: cython.longlong) -> cython.longlong:
        """Return when `size` bytes may be sent: `now_ns` where they may now.

        More than the bucket's size waits until it is full.
        """
        self._fill(now_ns)
        lacking: cython.longlong = min(size, self.burst_bytes) * _SECOND_NS - self._level
        if lacking <= 0:
            return now_ns
        return now_ns + (lacking + self.rate_bytes_s - 1) // self.rate_bytes_s

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def admits(
        self, before: cython.longlong, size: cython.longlong, now_ns: cython.longlong
    ) -> cython.bint:
        """Return whether `size` bytes may be sent now, after `before` bytes not yet charged."""
        self._fill(now_ns)
        return min(size, self.burst_bytes) * _SECOND_NS <= self._level - before * _SECOND_NS

    @cython.ccall
    @cython.nogil
    @cython.exceptval(check=False)
    def charge(self, size: cython.longlong, now_ns: cython.longlong) -> cython.int:
        """Charge `size` bytes that have been sent; the level may become negative.

        Later bytes then wait for it.
        """
        self._fill(now_ns)
        self._level -= size * _SECOND_NS
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _fill(self, now_ns: cython.longlong) -> cython.int:
        """Add the tokens since the last call."""
        elapsed: cython.longlong = now_ns - self._at_ns
        if self._started and elapsed > 0:
            lacking: cython.longlong = self.burst_bytes * _SECOND_NS - self._level
            # A long time would not fit 64 bits as tokens, but fills the bucket anyway.
            if elapsed > lacking // self.rate_bytes_s:
                self._level += lacking
            else:
                self._level += elapsed * self.rate_bytes_s
        if elapsed > 0 or not self._started:
            self._at_ns = now_ns
        self._started = True
        return 0
