"""Accumulated time of a condition: the sum of the times between `set(True)` and `set(False)`.

No clock of its own; times are nanoseconds of the caller's monotonic clock.
"""


class Stopwatch:
    """Accumulates the time for which a condition held; it does not hold at first."""

    def __init__(self) -> None:
        self._total_ns = 0
        self._since_ns: int | None = None

    def set(self, running: bool, now_ns: int) -> None:
        """Record that the condition holds from `now_ns` on, or no longer; repeating either has no
        effect."""
        if running and self._since_ns is None:
            self._since_ns = now_ns
        elif not running and self._since_ns is not None:
            self._total_ns += now_ns - self._since_ns
            self._since_ns = None

    def total_ns(self, now_ns: int) -> int:
        """Return the time for which the condition held, in ns, up to `now_ns`."""
        return self._total_ns + (0 if self._since_ns is None else now_ns - self._since_ns)
