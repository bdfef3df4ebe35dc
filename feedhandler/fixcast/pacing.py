"""Pacing: a token bucket, so that bursts of a publisher do not flood the network.

The bucket holds `burst_bytes` and fills at `rate_bytes_s`. Whatever window of time one looks at,
what was sent in it is at most the bucket and what flowed into it meanwhile. All is integer
arithmetic: tokens are kept in bytes times 10^9, so that nothing is rounded and nothing drifts.
"""

from feedhandler.codecs.errors import UsageError

_SECOND_NS = 1_000_000_000
#: What a datagram costs on the wire beside its payload: Ethernet's preamble, header, check sequence
#: and gap, IPv4's and UDP's headers.
OVERHEAD_BYTES = 8 + 14 + 4 + 12 + 20 + 8


class TokenBucket:
    """Lets `rate_bytes_s` through, and `burst_bytes` at once; full at the start."""

    def __init__(self, rate_bytes_s: int, burst_bytes: int) -> None:
        if rate_bytes_s < 1 or burst_bytes < 1:
            raise UsageError(
                f"cannot pace at {rate_bytes_s} bytes/s with a bucket of {burst_bytes}",
                "both are 1 or more",
            )
        self.rate_bytes_s = rate_bytes_s
        self.burst_bytes = burst_bytes
        self._level = burst_bytes * _SECOND_NS
        self._at_ns = 0
        self._started = False

    def ready_ns(self, size: int, now_ns: int) -> int:
        """When `size` bytes may be sent: `now_ns` where that is now. What is larger than the bucket
        waits until it is full."""
        self._fill(now_ns)
        lacking = min(size, self.burst_bytes) * _SECOND_NS - self._level
        return now_ns if lacking <= 0 else now_ns - (-lacking // self.rate_bytes_s)

    def take(self, size: int, now_ns: int) -> None:
        """Account for `size` bytes that are sent now; the level may become negative by them, and
        later ones wait for it."""
        self._fill(now_ns)
        self._level -= size * _SECOND_NS

    def _fill(self, now_ns: int) -> None:
        if self._started and now_ns > self._at_ns:
            flow = (now_ns - self._at_ns) * self.rate_bytes_s
            self._level = min(self._level + flow, self.burst_bytes * _SECOND_NS)
        self._at_ns = max(now_ns, self._at_ns) if self._started else now_ns
        self._started = True
