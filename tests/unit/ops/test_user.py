"""`feedhandler user`: a hash from a password that is not shown."""

import io
import sys
import tomllib

import pytest

from feedhandler.amqp.users import verify
from feedhandler.codecs.errors import UsageError
from feedhandler.ops import user


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_line_of_standard_input_becomes_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, "correct horse\nmore\n")
    assert user.run("ann") == 0
    output = capsys.readouterr().out
    assert "horse" not in output
    (table,) = tomllib.loads(output)["amqp"]["users"]
    assert table["name"] == "ann"
    assert verify("correct horse", table["password"])


@pytest.mark.parametrize("text", ["", "\n", "x" * 2000, "a\0b"])
def test_what_is_no_password_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    piped(monkeypatch, text)
    with pytest.raises(UsageError):
        user.run("ann")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_that_are_no_text_are_no_password(
    monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), "utf-8", errors)
    monkeypatch.setattr(sys, "stdin", text)
    with pytest.raises(UsageError, match="is no text"):
        user.run("ann")


def test_a_terminal_that_ends_its_input_gives_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr(user.getpass, "getpass", ended)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    with pytest.raises(UsageError, match="no password"):
        user.run("ann")


@pytest.mark.parametrize("name", ["", 'bo"x', "two words", "x" * 65])
def test_a_name_that_the_configuration_refuses_gets_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    piped(monkeypatch, "secret\n")
    with pytest.raises(UsageError, match="is no user's name"):
        user.run(name)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("again", ["secret", "other"])
def test_a_terminal_is_asked_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], again: str
) -> None:
    words = iter(["secret", again])
    monkeypatch.setattr(user.getpass, "getpass", lambda prompt: next(words))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    if again == "secret":
        assert user.run("ann") == 0
        assert "secret" not in capsys.readouterr().out
    else:
        with pytest.raises(UsageError, match="not the same"):
            user.run("ann")
