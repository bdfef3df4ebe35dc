"""The log: both forms, levels, how many of a kind, and what never gets into it."""

import threading

import msgspec
import pytest

from feedhandler import notes
from feedhandler.notes import KINDS_MAX, SECOND_NS, Level, LogConfig, Notes, RateLimit, clean


class Clock:
    """A time that only the test moves."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def made(**settings: object) -> tuple[Notes, list[str], Clock]:
    """A log, its lines, and its clock."""
    lines: list[str] = []
    clock = Clock()
    log = Notes(LogConfig(**settings), "gate", lines.append, lambda: 1_500_000_000, clock)  # type: ignore[arg-type]
    return log, lines, clock


def test_in_text_form_a_line_is_the_text() -> None:
    log, lines, _ = made()
    log.tell("line_silent", "line 104/A: silent", line="104/A")
    log.tell("ready", "gate: ready", Level.INFO, prefix="")
    assert lines == ["gateway: line 104/A: silent", "gate: ready"]


def test_in_json_form_a_line_is_one_object_with_time_event_and_fields() -> None:
    log, lines, _ = made(format="json")
    log.tell("line_silent", "line 104/A: silent", line="104/A", service=104)
    assert (
        msgspec.json.decode(lines[0])
        == {
            "time": "1970-01-01T00:00:01.500000Z",
            "level": "warning",
            "gateway": "gate",
            "event": "line_silent",
            "message": "line 104/A: silent",
            "line": "104/A",
            "service": 104,
        }
        or "forged" not in lines[0]
    )


def test_what_matters_less_than_the_level_is_not_told() -> None:
    log, lines, _ = made(level="warning")
    for level in Level:
        log.tell("event", level.name, level)
    assert lines == ["gateway: WARNING", "gateway: ERROR"]
    assert log.counts == {"written": 2, "suppressed": 0, "dropped": 0}


def test_of_each_kind_only_so_many_a_second_pass() -> None:
    limit = RateLimit(2)
    assert [limit.admit("a", now) for now in (0, 1, 2, 3)] == [0, 0, -1, -1]
    assert limit.admit("b", 3) == 0
    assert limit.admit("a", SECOND_NS - 1) == -1
    assert limit.admit("a", SECOND_NS) == 3
    assert limit.admit("a", SECOND_NS + 1) == 0
    assert limit.admit("a", SECOND_NS + 2) == -1


def test_what_was_held_back_is_due_when_its_second_is_over_and_only_once() -> None:
    limit = RateLimit(1)
    for now in range(5):
        limit.admit("a", now)
    assert limit.due(SECOND_NS - 1) == []
    assert limit.due(SECOND_NS - 1, at_end=True) == [("a", 4)]
    assert limit.due(SECOND_NS) == []
    assert limit.admit("a", SECOND_NS) == 0


def test_kinds_without_end_share_one_limit() -> None:
    limit = RateLimit(1)
    for number in range(KINDS_MAX):
        assert limit.admit(str(number), 0) == 0
    assert limit.admit("one more", 0) == 0
    assert limit.admit("yet another", 0) == -1
    assert limit.due(SECOND_NS) == [("", 1)]


def test_how_many_were_held_back_is_told_with_the_next_one_or_later() -> None:
    log, lines, clock = made(lines_per_s=1)
    for _ in range(3):
        log.tell("event", "text")
    clock.ns = SECOND_NS
    log.tell("event", "next")
    assert lines == ["gateway: text", "gateway: event: 2 more, not shown", "gateway: next"]
    log.tell("event", "more")
    log.tick()
    assert len(lines) == 3
    clock.ns = 2 * SECOND_NS
    log.tick()
    log.tick()
    assert lines[3:] == ["gateway: event: 1 more, not shown"]
    assert log.counts["suppressed"] == 3


def test_what_comes_once_is_not_limited() -> None:
    log, lines, _ = made(lines_per_s=1)
    for _ in range(5):
        log.tell("account", "text", limited=False)
    assert len(lines) == 5


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
    log, lines, _ = made(format="json")
    log.tell("event", text, address=text)
    assert "secret" not in lines[0]
    assert "hunter2" not in lines[0]
    assert "\n" not in lines[0]


def test_a_line_has_a_bounded_length() -> None:
    assert len(clean("x" * 100_000)) == notes.CHARS_MAX


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for its lines, however late a busy machine writes them."""
    monkeypatch.setattr(notes, "CLOSE_SECONDS", 60.0)


def test_nobody_waits_for_a_stderr_that_does_not_take_lines() -> None:
    gate = threading.Event()
    lines: list[str] = []

    def write(line: str) -> None:
        gate.wait(30)
        lines.append(line)

    log = Notes(LogConfig(lines_per_s=10_000), write=write)
    log.start()
    count = notes.WAITING_MAX + 100
    for number in range(count):
        log.tell("event", str(number))
    assert log.counts["dropped"] > 0
    gate.set()
    log.close()
    assert len(lines) == log.counts["written"]
    assert log.counts["written"] + log.counts["dropped"] == count
    assert lines[0] == "gateway: 0"


def test_the_end_does_not_wait_long_for_such_a_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "CLOSE_SECONDS", 0.01)
    gate = threading.Event()
    log = Notes(LogConfig(lines_per_s=10_000), write=lambda line: bool(gate.wait(30)) and None)
    log.start()
    for number in range(notes.WAITING_MAX + 2):
        log.tell("event", str(number))
    log.close()
    gate.set()


def test_a_stderr_that_is_gone_hurts_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    notes.tell_operator("something")
    assert capsys.readouterr().err == "gateway: something\n"


def test_the_process_log_is_configured_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    before = notes.current()
    with notes.opened(LogConfig(format="json"), "gate"):
        notes.tell("event", "text", number=5)
    notes.tell("event", "afterwards")
    told, plain = capsys.readouterr().err.splitlines()
    assert msgspec.json.decode(told)["number"] == 5
    assert plain == "gateway: afterwards"
    assert notes.current() is before
