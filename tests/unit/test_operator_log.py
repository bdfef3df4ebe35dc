"""The log: both forms, levels, how many of a kind, and what never gets into it."""

import logging
import threading
from collections.abc import Callable

import msgspec
import pytest

from feedhandler import operator_log
from feedhandler.operator_log import (
    SECOND_NS,
    LogConfig,
    OperatorHandler,
    RateLimit,
    clean,
    log_event,
    log_note,
    opened,
)

LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


class Lines(logging.Handler):
    """An output that keeps its lines; it waits for `gate` before each."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.gate.wait(30)
        self.lines.append(record.getMessage())


class Clock:
    """A time that only the test moves."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def logged(act: Callable[[OperatorHandler], object], **settings: object) -> list[str]:
    """Return the lines of a log in which `act` is done."""
    output = Lines()
    with opened(LogConfig(**settings), "gate", output) as log:  # type: ignore[arg-type]
        act(log)
    return output.lines


def test_in_text_form_a_line_is_the_text() -> None:
    def act(_: OperatorHandler) -> None:
        log_event("line_silent", "line 104/A: silent", line="104/A")
        log_event("ready", "gate: ready 100%s", logging.INFO, prefix="")
        log_note("something")

    assert logged(act) == [
        "gateway: line 104/A: silent", "gate: ready 100%s", "gateway: something",
    ]  # fmt: skip


def test_in_json_form_a_line_is_one_object_with_time_event_and_fields() -> None:
    record = logging.makeLogRecord(
        {
            "msg": "line 104/A: silent",
            "created": 1.5,
            "levelname": "WARNING",
            "event": "line_silent",
            "fields": {"line": "104/A", "service": 104, "level": "forged"},
        }
    )
    line = operator_log.EventFormatter("json", "gate").format(record)
    assert msgspec.json.decode(line) == {
        "time": "1970-01-01T00:00:01.500000Z",
        "level": "warning",
        "gateway": "gate",
        "event": "line_silent",
        "message": "line 104/A: silent",
        "line": "104/A",
        "service": 104,
    }


def test_what_matters_less_than_the_level_is_not_logged() -> None:
    def act(log: OperatorHandler) -> None:
        for level in LEVELS:
            log_event("event", logging.getLevelName(level), level)
        assert log.counts == {"written": 2, "suppressed": 0, "dropped": 0}

    assert logged(act, level="warning") == ["gateway: WARNING", "gateway: ERROR"]


def record_of(event: str) -> logging.LogRecord:
    """Return a record that is limited."""
    return logging.makeLogRecord({"event": event, "limited": True})


@pytest.fixture
def clock() -> Clock:
    return Clock()


def admitted(limit: RateLimit, event: str) -> int:
    """Return how many of the event were held back before this one; -1 if this one is, too."""
    record = record_of(event)
    return getattr(record, "held_back", 0) if limit.filter(record) else -1


def test_of_each_event_only_so_many_a_second_pass(clock: Clock) -> None:
    limit = RateLimit(2, clock)
    assert [admitted(limit, "a") for _ in range(4)] == [0, 0, -1, -1]
    assert admitted(limit, "b") == 0
    clock.ns = SECOND_NS - 1
    assert admitted(limit, "a") == -1
    clock.ns = SECOND_NS
    assert [admitted(limit, "a") for _ in range(3)] == [3, 0, -1]
    assert limit.suppressed == 4


def test_what_was_held_back_is_due_when_its_second_is_over_and_only_once(clock: Clock) -> None:
    limit = RateLimit(1, clock)
    for _ in range(5):
        admitted(limit, "a")
    clock.ns = SECOND_NS - 1
    assert limit.due() == []
    assert limit.due(at_end=True) == [("a", 4)]
    clock.ns = SECOND_NS
    assert limit.due() == []
    assert admitted(limit, "a") == 0


def test_how_many_were_held_back_is_logged_with_the_next_one_or_later(clock: Clock) -> None:
    def act(log: OperatorHandler) -> None:
        log.removeFilter(log.limit)
        log.limit = RateLimit(1, clock)
        log.addFilter(log.limit)
        for _ in range(3):
            log_event("event", "text")
        clock.ns = SECOND_NS
        log_event("event", "next")
        log_event("event", "more")
        log.tick()
        assert log.counts == {"written": 3, "suppressed": 3, "dropped": 0}
        clock.ns = 2 * SECOND_NS
        log.tick()
        log.tick()

    assert logged(act) == [
        "gateway: text",
        "gateway: event: 2 more, not shown",
        "gateway: next",
        "gateway: event: 1 more, not shown",
    ]


def test_what_comes_once_is_not_limited() -> None:
    def act(_: OperatorHandler) -> None:
        for _number in range(5):
            log_event("account", "text", limited=False)

    assert len(logged(act, lines_per_s=1)) == 5


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://user:secret@host/x", "amqp://***@host/x"),
        ("password=hunter2, next", "password=***, next"),
        ('{"token": "abc"}', '{"token": ***'),
        ("one\ntwo\x1b[31m", "one two [31m"),
        ("\ud800", " "),
    ],
)
def test_credentials_and_control_characters_do_not_get_into_a_line(text: str, shown: str) -> None:
    assert clean(text).startswith(shown)
    (line,) = logged(lambda _: log_event("event", text, address=text), format="json")
    assert "secret" not in line
    assert "hunter2" not in line
    assert "\n" not in line


def test_a_line_has_a_bounded_length() -> None:
    assert len(clean("x" * 100_000)) == operator_log.CHARS_MAX


def test_logging_does_not_wait_for_a_stderr_that_takes_no_lines() -> None:
    output = Lines()
    output.gate.clear()
    count = operator_log.WAITING_MAX + 100
    with opened(LogConfig(lines_per_s=10_000), "gate", output) as log:
        for number in range(count):
            log_event("event", str(number))
        assert log.counts["dropped"] > 0
        output.gate.set()
    assert len(output.lines) == log.counts["written"]
    assert log.counts["written"] + log.counts["dropped"] == count
    assert output.lines[0] == "gateway: 0"


def test_the_end_does_not_wait_long_for_such_a_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_log, "CLOSE_SECONDS", 0.01)
    output = Lines()
    output.gate.clear()
    with opened(LogConfig(lines_per_s=10_000), "gate", output):
        for number in range(operator_log.WAITING_MAX + 2):
            log_event("event", str(number))
    output.gate.set()


def test_the_process_log_is_configured_for_a_while(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = operator_log.current()
    with opened(LogConfig(format="json"), "gate"):
        log_event("event", "text", number=5)
    (line,) = capsys.readouterr().err.splitlines()
    assert msgspec.json.decode(line)["number"] == 5
    assert operator_log.current() is before
    assert caplog.messages == []


def test_without_it_events_go_where_the_programs_own_logging_sends_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_event("event", "afterwards", number=5)
    (record,) = caplog.records
    assert (record.name, record.message) == ("feedhandler.operator", "afterwards")
    assert record.fields == {"number": 5}  # type: ignore[attr-defined]


def test_a_stderr_that_is_gone_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, _: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    with opened(LogConfig(), "gate") as log:
        log_event("event", "text")
    assert log.counts["written"] == 1
