"""The operator log: events of a running process through `logging`, one line each, on stderr.

`log_event` logs an event from anywhere: its name, its text, its fields. `opened` gives the logger
`feedhandler.operator` a handler while a process runs. In text form a line is the text alone; in
JSON it is one object with the time, the level, the event and the fields. The lines of each event
are limited to so many a second; the number of suppressed ones is logged with the next line, or a
second later. What looks like a credential is masked.

The stream must not wait for stderr: a thread writes, and lines that find its bounded queue full are
only counted (a stopped terminal, a pipe without a reader). Where nothing is opened, as in a program
that uses a queue of ours, events go where that program's `logging` sends them.
"""

import contextlib
import datetime
import logging
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from logging.handlers import QueueHandler, QueueListener
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

#: What a running gateway's lines begin with in text form.
PREFIX = "gateway: "
#: A text or field longer than this is cut: much of it may come from a client.
CHARS_MAX = 2000
#: Lines that wait in memory while stderr blocks.
WAITING_MAX = 1000
#: How long the end waits for stderr to take the waiting lines: longer than a busy machine lets the
#: thread that writes them wait for a processor.
CLOSE_SECONDS = 5.0
SECOND_NS = 1_000_000_000

#: Key of `OperatorHandler.counts`: what it counts.
COUNTS: dict[str, str] = {
    "written": "lines written",
    "suppressed": "lines not written because there were too many of their kind",
    "dropped": "lines not written because stderr did not take them",
}

_CREDENTIALS = (
    (re.compile(r"//[^/\s@]*@"), "//***@"),
    (re.compile(r"(?i)\b(password|passwd|secret|token)(\W{1,3})[^\s,&;]+"), r"\1\2***"),
)

_LOGGER = logging.getLogger("feedhandler.operator")


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[log]`: what is logged to stderr, and how."""

    format: Annotated[
        Literal["text", "json"], Meta(description="text, or json: one object a line, with fields")
    ] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="the least level that is logged: debug, info, warning or error"),
    ] = "info"
    lines_per_s: Annotated[
        int, Meta(description="lines of one kind in a second at most", ge=1, le=10_000)
    ] = 10


def log_event(
    event: str,
    text: str,
    level: int = logging.WARNING,
    prefix: str = PREFIX,
    limited: bool = True,
    **fields: str | int | float | bool | None,
) -> None:
    """Log that `event` happened: `text` for people, `fields` for programs.

    `prefix` is what the line begins with in text form. Without `limited`, for lines that come once
    at the start or the end, no line is suppressed.
    """
    extra = {"event": event, "prefix": prefix, "limited": limited, "fields": fields}
    _LOGGER.log(level, text, extra=extra)


def log_note(text: str) -> None:
    """Log a text that has no event of its own."""
    log_event("note", text)


class RateLimit(logging.Filter):
    """A limit of so many records of each event in a second; the clock is monotonic, in ns.

    A record that passes after suppressed ones of its event has their number as `held_back`.
    """

    def __init__(self, per_s: int, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__()
        self.suppressed = 0
        self._per_s = per_s
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        #: By event (names in the code, so of bounded number): when its second began, how many
        #: were admitted in it, how many not.
        self._events: dict[str, list[int]] = {}

    def filter(self, record: Any) -> bool:
        """Return whether the record passes."""
        if not record.limited:
            return True
        with self._lock:
            now_ns = self._clock_ns()
            row = self._events.setdefault(record.event, [now_ns, 0, 0])
            if now_ns - row[0] >= SECOND_NS:
                record.held_back = row[2]
                row[:] = [now_ns, 0, 0]
            is_admitted = row[1] < self._per_s
            row[1 if is_admitted else 2] += 1
            self.suppressed += not is_admitted
            return is_admitted

    def due(self, at_end: bool = False) -> list[tuple[str, int]]:
        """Return the events suppressed in a past second and their numbers; reset them."""
        found = []
        with self._lock:
            now_ns = self._clock_ns()
            for event, row in self._events.items():
                if row[2] and (at_end or now_ns - row[0] >= SECOND_NS):
                    found.append((event, row[2]))
                    row[2] = 0
        return found


class EventFormatter(logging.Formatter):
    """Formats a record as one line; `name` is the gateway's."""

    def __init__(self, form: str, name: str) -> None:
        super().__init__()
        self._is_json = form == "json"
        self._name = name

    def format(self, record: Any) -> str:
        """Return the record's line, without credentials and control characters."""
        text = clean(record.getMessage())
        if not self._is_json:
            return record.prefix + text
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        shown = {k: clean(v) if isinstance(v, str) else v for k, v in record.fields.items()}
        fields = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S.%f}Z",
            "level": record.levelname.lower(),
            "gateway": self._name,
            "event": record.event,
            "message": text,
        }
        return msgspec.json.encode({**shown, **fields}).decode()


class OperatorHandler(QueueHandler):
    """Formats records, limits them, and queues their lines for a thread that writes them."""

    def __init__(self, settings: LogConfig, name: str) -> None:
        super().__init__(queue.Queue(WAITING_MAX))
        self.limit = RateLimit(settings.lines_per_s)
        self._written = self._dropped = 0
        self.addFilter(self.limit)
        self.setFormatter(EventFormatter(settings.format, name))

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of lines by what became of them."""
        return {
            "written": self._written,
            "suppressed": self.limit.suppressed,
            "dropped": self._dropped,
        }

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line, behind one about suppressed records of its event."""
        if held_back := getattr(record, "held_back", 0):
            super().emit(_suppressed(record.event, held_back))  # type: ignore[attr-defined]
        super().emit(record)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue the record for writing; count it as dropped where too many wait."""
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1
        else:
            self._written += 1

    def tick(self, at_end: bool = False) -> None:
        """Log the numbers of suppressed records of seconds that are over; called at intervals."""
        for event, count in self.limit.due(at_end):
            self.handle(_suppressed(event, count))


def _suppressed(event: str, count: int) -> logging.LogRecord:
    fields = {
        "msg": f"{event}: {count:,} more, not shown",
        "levelname": "WARNING",
        "event": "suppressed",
        "prefix": PREFIX,
        "limited": False,
        "fields": {"suppressed_event": event, "suppressed": count},
    }
    return logging.makeLogRecord(fields)


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # The line is lost where stderr has no reader, or was closed.
        with contextlib.suppress(OSError, ValueError):
            print(record.getMessage(), file=sys.stderr, flush=True)


class _Writer(QueueListener):
    """Writes queued lines on a daemon thread, for which its end does not wait long."""

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        with contextlib.suppress(queue.Full):
            self.queue.put(None, timeout=CLOSE_SECONDS)  # type: ignore[attr-defined]
        if thread is not None:
            thread.join(CLOSE_SECONDS)


def clean(text: str) -> str:
    """Make one line of bounded length, without control characters and credentials."""
    for pattern, instead in _CREDENTIALS:
        text = pattern.sub(instead, text)
    text = "".join(c if c.isprintable() else " " for c in text[: CHARS_MAX + 1])
    return text if len(text) <= CHARS_MAX else text[: CHARS_MAX - 3] + "..."


_current = OperatorHandler(LogConfig(), "gateway")


def current() -> OperatorHandler:
    """Return the handler of the process; one without records where none is opened."""
    return _current


@contextlib.contextmanager
def opened(
    settings: LogConfig, name: str, output: logging.Handler | None = None
) -> Iterator[OperatorHandler]:
    """Log to stderr, or to `output`, while the context lasts; a thread writes the lines."""
    global _current
    before, handler = _current, OperatorHandler(settings, name)
    _current = handler
    writer = _Writer(handler.queue, output or _Stderr())
    writer.start()
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(settings.level.upper())
    _LOGGER.propagate = False
    try:
        yield handler
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(logging.NOTSET)
        _LOGGER.propagate = True
        handler.tick(at_end=True)
        writer.stop()
        _current = before
