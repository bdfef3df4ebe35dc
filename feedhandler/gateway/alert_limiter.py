"""Alerts to the operator about servers and services: each once, and never without end.

A server that accepts every connection and drops it again would fill a disk with the same line. So
for each subject (a server, or a service) the same line is written once, and at most `LINES_MAX`
different ones, until the subject was *well*: it gave a useful answer, or a connection lasted. All
is written again once the trading day has turned, and once the operator has had a server asked again
(`renew`). A subject that is alternately well and broken gets at most `LINES_MAX` lines in
`WINDOW_NS`. Lines that are not written are counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from feedhandler.operator_log import log_note

#: Lines about one server, until it was well and `WINDOW_NS` later.
LINES_MAX = 3
#: The time for which that bound holds at least.
WINDOW_NS = 600_000_000_000
#: A connection that stood for so long was well, though nothing was asked.
LASTING_NS = 60_000_000_000
#: Servers and services that are kept apart; further ones are not reported.
SUBJECTS_MAX = 4096


@dataclass(slots=True)
class _Subject:
    """A server or service: the lines reported since it was well; their number since `since_ns`."""

    since_ns: int
    reported: set[str] = field(default_factory=set)
    lines: int = 0
    well: bool = False


class AlertLimiter:
    """Passes to `report` the lines that are within the limits; times are in ns, of one clock."""

    def __init__(self, report: Callable[[str], None] = log_note) -> None:
        self._report = report
        self._subjects: dict[str, _Subject] = {}
        self._up_ns: dict[str, int] = {}
        #: Lines that were not reported.
        self.suppressed = 0

    def report(self, about: str, text: str, now_ns: int) -> None:
        """Report a line, unless it was reported already or its subject has reached a limit."""
        subject = self._subjects.get(about)
        if subject is None and len(self._subjects) < SUBJECTS_MAX:
            subject = self._subjects[about] = _Subject(now_ns)
        if subject is not None and subject.well and now_ns - subject.since_ns >= WINDOW_NS:
            subject.since_ns, subject.lines = now_ns, 0
        if subject is None or text in subject.reported or subject.lines >= LINES_MAX:
            self.suppressed += 1
            return
        subject.well = False
        subject.reported.add(text)
        subject.lines += 1
        self._report(text)

    def well(self, about: str) -> None:
        """Note that the subject works: its next fault is reported again."""
        subject = self._subjects.get(about)
        if subject is not None:
            subject.well = True
            subject.reported.clear()

    def renew(self) -> None:
        """Report again whatever is reported from now on, as if nothing had been."""
        self._subjects.clear()

    def connected(self, server: str, now_ns: int) -> None:
        """Note that a connection is up; that alone does not make the server well."""
        self._up_ns[server] = now_ns

    def disconnected(self, server: str, reason: str, now_ns: int) -> None:
        """Note that a connection is lost or could not be made, for this reason."""
        up_ns = self._up_ns.pop(server, now_ns)
        if now_ns - up_ns >= LASTING_NS:
            self.well(server)
        self.report(server, f"server {server}: {reason}; connecting again", now_ns)
