"""A client's side of security: URLs, passwords from wherever they are, and what goes wrong."""

from pathlib import Path

import pytest

import feedhandler
from feedhandler.amqp.conditions import UNAUTHORIZED_ACCESS as REFUSED
from feedhandler.amqp.identity import PASSWORD_BYTES_MAX, Identity, Login, refusal
from feedhandler.amqp.request import Endpoint, parse_endpoint
from feedhandler.codecs.errors import ConfigError, FeedhandlerError, UsageError
from tests.support.security import SECRET

QUOTED = "tr0ub4dor%263%2F%3F%23%40"


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("host", Endpoint("host", 5672)),
        ("amqp://host:1234", Endpoint("host", 1234)),
        ("amqps://host", Endpoint("host", 5671, True)),
        ("amqps://[::1]:9/", Endpoint("::1", 9, True)),
        (f"amqps://ann:{QUOTED}@host", Endpoint("host", 5671, True, "ann", SECRET)),
        ("ann%40firm@host:1", Endpoint("host", 1, False, "ann@firm")),
    ],
)
def test_a_url_is_taken_apart(url: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(url) == endpoint
    assert SECRET not in repr(endpoint)
    assert "ann" not in endpoint.shown


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "amqps://",
        "amqp://host/queue",
        "amqp://host:port",
        "amqp://[::1",
        f"amqp://ann:{SECRET}@host",
        f"amqp://ann:{SECRET}@host:port",
        f"amqp://ann:{QUOTED}@host/x",
        f"amqp://ann:{QUOTED}@host?x",
        f"http://ann:{QUOTED}@host",
    ],
)
def test_what_is_no_url_is_refused_without_who_stands_in_it(url: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_endpoint(url)
    assert error.value.hint
    for secret in (SECRET, QUOTED, "ub4dor"):
        assert secret not in str(error.value)


def identity(url: str, login: Login | None = None) -> Identity:
    return Identity(parse_endpoint(url), login)


def test_the_password_comes_from_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "word"
    path.write_text(SECRET + "\r\n")
    monkeypatch.setenv("WORD", SECRET)
    ways = (
        identity(f"amqps://ann:{QUOTED}@host"),
        identity("amqps://ann@host", Login(password=SECRET)),
        identity("amqps://ann@host", Login("ann", password_env="WORD")),
        identity("amqps://host", Login("ann", password_file=str(path))),
        identity(f"amqp://ann:{QUOTED}@127.0.0.1"),
        identity(f"amqp://ann:{QUOTED}@localhost"),
        identity(f"amqp://ann:{QUOTED}@host", Login(plain_over_network=True)),
    )
    for way in ways:
        assert (way.user, way.password) == ("ann", SECRET)
        assert not way.external
    assert identity("amqp://host").user == ""
    assert identity("amqp://host").session() is None
    assert identity("amqps://host").session() is not None


@pytest.mark.parametrize(
    ("url", "login", "words"),
    [
        ("amqps://ann@host", Login("bob"), "two users"),
        (f"amqps://ann:{QUOTED}@host", Login(password_env="X"), "more than one password"),
        ("amqps://host", Login(password=SECRET), "a password, but no user"),
        ("amqps://ann@host", Login(password_env="NOT_THERE"), "no environment variable"),
        ("amqps://ann@host", Login(password_file="/nowhere"), "no such file"),
        (f"amqp://ann:{QUOTED}@host", None, "unencrypted to another machine"),
        ("amqp://10.0.0.1", Login("ann", SECRET), "unencrypted to another machine"),
        ("amqp://host", Login(ca="ca.pem"), "is without TLS"),
        ("amqps://host", Login(ca="/nowhere"), "no such file"),
        ("amqps://host", Login(certificate="/nowhere"), "key: missing"),
    ],
)
def test_what_cannot_be_is_said_with_a_remedy_and_without_the_password(
    url: str, login: Login | None, words: str
) -> None:
    with pytest.raises(FeedhandlerError) as error:
        identity(url, login)
    assert words in str(error.value)
    assert error.value.hint
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"x" * (PASSWORD_BYTES_MAX + 1), "longer than"), (b"\xff", "not UTF-8")],
)
def test_a_file_that_holds_no_password_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "word").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        identity("amqps://ann@host", Login(password_file=str(tmp_path / "word")))


def test_a_password_is_in_no_text() -> None:
    assert SECRET not in repr(Login("ann", SECRET))
    assert SECRET not in repr(feedhandler.subscribe(f"amqps://ann:{QUOTED}@h", "k").urls)


@pytest.mark.parametrize(
    ("condition", "text", "user", "encrypted", "words"),
    [
        (REFUSED, "Authentication failed [mech=PLAIN]", "ann", True, "it refused user ann"),
        (REFUSED, "Authentication failed [mech=EXTERNAL]", "", True, "refused our certificate"),
        (REFUSED, "Authentication failed [mech=ANONYMOUS]", "", False, "it refused us"),
        (REFUSED, "Authentication failed [mech=none]", "ann", False, "it takes no passwords"),
        (REFUSED, "Authentication failed [mech=none]", "ann", True, "it takes no passwords"),
        (REFUSED, "Authentication failed [mech=none]", "", True, "who we are"),
        ("amqp:x", "Expected SASL protocol header got: AMQP TLS layer", "", False, "wants TLS"),
    ],
)
def test_a_refused_log_in_has_words(
    condition: str, text: str, user: str, encrypted: bool, words: str
) -> None:
    found = refusal(condition, text, user, encrypted)
    assert words in found.reason
    assert found.remedy


def test_another_end_is_no_refusal() -> None:
    assert refusal("amqp:connection:framing-error", "connection aborted", "ann", True) is None
    assert refusal("", "", "", False) is None
