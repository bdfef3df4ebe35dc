"""How long something has been so, in all: a sum of the times between `set(True)` and `set(False)`.

No clock of its own; times are nanoseconds of whatever clock the caller has, and never go back.
"""


class Stopwatch:
    """Off at first."""

    def __init__(self) -> None:
        self._total_ns = 0
        self._since_ns: int | None = None

    def set(self, running: bool, now_ns: int) -> None:
        """It is so from now on, or no longer; either twice is once."""
        if running and self._since_ns is None:
            self._since_ns = now_ns
        elif not running and self._since_ns is not None:
            self._total_ns += now_ns - self._since_ns
            self._since_ns = None

    def total_ns(self, now_ns: int) -> int:
        """The sum, what runs now included."""
        return self._total_ns + (0 if self._since_ns is None else now_ns - self._since_ns)
