"""Alerts to the operator about servers and services: each once, and never without end.

Whoever is at fault outside can say so as often as he likes: a server that takes every connection
and drops it again would fill a disk with the same line. So of each server (or whatever else a line
is about) the same line is told once, and at most `LINES_MAX` different ones, until it was *well*:
it gave an answer that is of use, or a connection lasted. And one that is well and broken by turns
is told of at most `LINES_MAX` times in `WINDOW_NS`. What is not told is counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from feedhandler.notes import tell_operator

#: Lines about one server, until it was well and `WINDOW_NS` later.
LINES_MAX = 3
#: The time for which that bound holds at least.
WINDOW_NS = 600_000_000_000
#: A connection that stood for so long was well, though nothing was asked.
LASTING_NS = 60_000_000_000
#: Servers and services that are kept apart; further ones are not told of.
SUBJECTS_MAX = 4096


@dataclass(slots=True)
class _Subject:
    """Of one server: what was told since it was well, how often since `since_ns`."""

    since_ns: int
    told: set[str] = field(default_factory=set)
    lines: int = 0
    well: bool = False


class AlertLimiter:
    """Tells `tell` what is worth telling; times are whoever's, in ns, but always of one clock."""

    def __init__(self, tell: Callable[[str], None] = tell_operator) -> None:
        self._tell = tell
        self._subjects: dict[str, _Subject] = {}
        self._up_ns: dict[str, int] = {}
        #: Lines that were not told.
        self.untold = 0

    def tell(self, about: str, text: str, now_ns: int) -> None:
        """Tell the operator, unless that was done, or enough was."""
        subject = self._subjects.get(about)
        if subject is None and len(self._subjects) < SUBJECTS_MAX:
            subject = self._subjects[about] = _Subject(now_ns)
        if subject is not None and subject.well and now_ns - subject.since_ns >= WINDOW_NS:
            subject.since_ns, subject.lines = now_ns, 0
        if subject is None or text in subject.told or subject.lines >= LINES_MAX:
            self.untold += 1
            return
        subject.well = False
        subject.told.add(text)
        subject.lines += 1
        self._tell(text)

    def well(self, about: str) -> None:
        """Note that it has done something useful: its next fault is news again."""
        subject = self._subjects.get(about)
        if subject is not None:
            subject.well = True
            subject.told.clear()

    def connected(self, server: str, now_ns: int) -> None:
        """Note that a connection is up; that alone means nothing."""
        self._up_ns[server] = now_ns

    def disconnected(self, server: str, reason: str, now_ns: int) -> None:
        """Note that a connection is lost or could not be made, for this reason."""
        up_ns = self._up_ns.pop(server, now_ns)
        if now_ns - up_ns >= LASTING_NS:
            self.well(server)
        self.tell(server, f"server {server}: {reason}; connecting again", now_ns)
