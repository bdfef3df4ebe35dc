"""The operator log: one line for each event, on stderr, limited for each kind.

`tell` logs an event from anywhere in a running process: its name, its text, its fields. In text
form a line is the text alone; in JSON it is one object with the time, the level, the event and the
fields. The lines of each event are limited to so many a second; the number of suppressed ones is
logged with the next line, or a second later. What looks like a credential is masked.

`opened` is for a process whose stream must not wait for stderr: a thread of its own writes, and
lines that find its bounded queue full are only counted (a stopped terminal, a pipe without a
reader). Without it the calling thread writes, which suits commands and tests.
"""

import contextlib
import datetime
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

#: What a running gateway's lines begin with in text form.
PREFIX = "gateway: "
#: A text or field longer than this is cut: much of it may come from a client.
CHARS_MAX = 2000
#: Lines that wait in memory while stderr blocks.
WAITING_MAX = 1000
#: How long `close` waits for stderr to take the waiting lines.
CLOSE_SECONDS = 1.0
#: Kinds of lines that are limited apart; later ones share one limit.
KINDS_MAX = 256
SECOND_NS = 1_000_000_000

#: Key of `Notes.counts`: what it counts.
COUNTS: dict[str, str] = {
    "written": "lines written",
    "suppressed": "lines not written because there were too many of their kind",
    "dropped": "lines not written because stderr did not take them",
}

_CREDENTIALS = (
    (re.compile(r"//[^/\s@]*@"), "//***@"),
    (re.compile(r"(?i)\b(password|passwd|secret|token)(\W{1,3})[^\s,&;]+"), r"\1\2***"),
)


class Level(IntEnum):
    """The severity of an event."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[log]`: what is told on stderr, and how."""

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


Field = str | int | float | bool | None


class RateLimit:
    """A limit of so many of each kind in a second; time is an argument (monotonic, ns)."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        #: By kind: when its second began, how many were admitted in it, how many not.
        self._kinds: dict[str, list[int]] = {}

    def admit(self, kind: str, now_ns: int) -> int:
        """Return how many of the kind were suppressed before this one; -1 if this one is, too."""
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            kind = ""
        row = self._kinds.setdefault(kind, [now_ns, 0, 0])
        if now_ns - row[0] >= SECOND_NS:
            held_back = row[2]
            row[:] = [now_ns, 1, 0]
            return held_back
        if row[1] < self._per_s:
            row[1] += 1
            return 0
        row[2] += 1
        return -1

    def due(self, now_ns: int, at_end: bool = False) -> list[tuple[str, int]]:
        """Return the kinds with suppressed lines in a past second and their numbers; reset them."""
        told = []
        for kind, row in self._kinds.items():
            if row[2] and (at_end or now_ns - row[0] >= SECOND_NS):
                told.append((kind, row[2]))
                row[2] = 0
        return told


class _Writer:
    """A writer of lines on a thread of its own, whose callers never block."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING_MAX)
        self._write = write
        self._thread = threading.Thread(target=self._run, name="notes", daemon=True)
        self._thread.start()

    def put(self, line: str) -> bool:
        """Queue the line for writing; return False where too many wait."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line)
            return True
        return False

    def close(self) -> None:
        """Write what waits, as far as stderr takes it in time, and end the thread."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=CLOSE_SECONDS)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)


def _to_stderr(line: str) -> None:
    # The line is lost where stderr has no reader, or was closed.
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


class Notes:
    """The log of one process; any thread may call `tell`.

    `name` is the gateway's; `write` takes finished lines; the clocks are for tests.
    """

    def __init__(
        self,
        settings: LogConfig | None = None,
        name: str = "gateway",
        write: Callable[[str], None] = _to_stderr,
        clock_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.settings = settings or LogConfig()
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._name = name
        self._write = write
        self._writer: _Writer | None = None
        self._clock_ns, self._steady_ns = clock_ns, steady_ns
        self._least = Level[self.settings.level.upper()]
        self._limit = RateLimit(self.settings.lines_per_s)
        self._lock = threading.Lock()

    def tell(
        self,
        event: str,
        text: str,
        level: Level = Level.WARNING,
        prefix: str = PREFIX,
        limited: bool = True,
        **fields: Field,
    ) -> None:
        """Log that `event` happened: `text` for people, `fields` for programs.

        `prefix` is what the line begins with in text form. Without `limited`, for lines that come
        once at the start or the end, no line is suppressed.
        """
        if level < self._least:
            return
        with self._lock:
            held_back = self._limit.admit(event, self._steady_ns()) if limited else 0
            if held_back < 0:
                self.counts["suppressed"] += 1
                return
            if held_back:
                self._tell_held_back(event, held_back)
            self._out(self._line(event, text, level, prefix, fields))

    def tick(self, at_end: bool = False) -> None:
        """Log the numbers of suppressed lines of seconds that are over; called at intervals."""
        with self._lock:
            for event, count in self._limit.due(self._steady_ns(), at_end):
                self._tell_held_back(event, count)

    def start(self) -> None:
        """Start a thread that writes from now on."""
        self._writer = _Writer(self._write)

    def close(self) -> None:
        """Log the last suppressed numbers, and end the thread."""
        self.tick(at_end=True)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _tell_held_back(self, event: str, count: int) -> None:
        text = f"{event or 'other events'}: {count:,} more, not shown"
        fields: dict[str, Field] = {"suppressed_event": event, "suppressed": count}
        self._out(self._line("suppressed", text, Level.WARNING, PREFIX, fields))

    def _line(
        self, event: str, text: str, level: Level, prefix: str, fields: dict[str, Field]
    ) -> str:
        text = clean(text)
        if self.settings.format == "text":
            return prefix + text
        seconds, rest = divmod(self._clock_ns(), SECOND_NS)
        stamp = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        told = {
            "time": f"{stamp:%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z",
            "level": level.name.lower(),
            "gateway": self._name,
            "event": event,
            "message": text,
        }
        shown = {k: clean(v) if isinstance(v, str) else v for k, v in fields.items()}
        return msgspec.json.encode({**shown, **told}).decode()

    def _out(self, line: str) -> None:
        if self._writer is None:
            self._write(line)
        elif not self._writer.put(line):
            self.counts["dropped"] += 1
            return
        self.counts["written"] += 1


def clean(text: str) -> str:
    """Make one line of bounded length, without control characters and credentials."""
    for pattern, instead in _CREDENTIALS:
        text = pattern.sub(instead, text)
    text = "".join(c if c.isprintable() else " " for c in text[: CHARS_MAX + 1])
    return text if len(text) <= CHARS_MAX else text[: CHARS_MAX - 3] + "..."


_current = Notes()


def current() -> Notes:
    """Return the process's log."""
    return _current


@contextlib.contextmanager
def opened(settings: LogConfig, name: str) -> Iterator[Notes]:
    """Configure the process's log while the context lasts; a thread of its own writes it."""
    global _current
    before, _current = _current, Notes(settings, name)
    _current.start()
    try:
        yield _current
    finally:
        _current.close()
        _current = before


def tell(
    event: str,
    text: str,
    level: Level = Level.WARNING,
    prefix: str = PREFIX,
    limited: bool = True,
    **fields: Field,
) -> None:
    """Log in the process's log that `event` happened; see `Notes.tell`."""
    _current.tell(event, text, level, prefix, limited, **fields)


def tell_operator(text: str) -> None:
    """Log a text that has no event of its own."""
    tell("note", text)
