"""`[amqp]`: who may come in, as an operator writes it; and what is wrong with what was written."""

from pathlib import Path

import pytest

from feedhandler.amqp.serving.login import Gate
from feedhandler.codecs.errors import ConfigError
from feedhandler.config import parse_config
from feedhandler.config.amqp import AmqpConfig, UserConfig
from feedhandler.config.show import to_toml
from feedhandler.doctor.examination import check_certificate
from tests.support.commands import CHANNEL
from tests.support.security import SECRET, Certificates, cheap_hash

HASH = cheap_hash(SECRET)
TLS = '[amqp.tls]\nlisten = "0.0.0.0:5671"\ncertificate = "c.pem"\nkey = "k.pem"\n'
ANN = f'[[amqp.users]]\nname = "ann"\npassword = "{HASH}"\nservices = ["*"]\n'


def parsed(text: str) -> AmqpConfig:
    return parse_config(text + CHANNEL, "gw.toml").amqp


@pytest.mark.parametrize(
    ("text", "anonymous"),
    [
        ("", True),
        ('[amqp]\nlisten = "localhost:5672"\n', True),
        ('[amqp]\nlisten = "[::1]:5672"\n', True),
        ('[amqp]\nlisten = "0.0.0.0:5672"\nanonymous = true\n', True),
        ("[amqp]\nplain_without_tls = true\n" + ANN, False),
        ("[amqp]\nanonymous = true\n" + ANN, True),
        (TLS + ANN, False),
        ("[amqp]\nanonymous = false\n" + TLS + ANN, False),
        ("[amqp]\nanonymous = true\n" + TLS, True),
        ('[amqp]\nanonymous = true\n[[amqp.users]]\nname = "anonymous"\nservices = ["*"]\n', True),
    ],
)
def test_who_may_come_in_without_a_name(text: str, anonymous: bool) -> None:
    assert parsed(text).lets_anonymous is anonymous


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[amqp]\nlisten = "0.0.0.0:5672"\n', "amqp.listen: 0.0.0.0:5672 is not loopback"),
        ('[amqp]\nlisten = "gateway1:5672"\n', "gateway1:5672 is not loopback: who may log in?"),
        ('[amqp]\nlisten = ""\n', "amqp.listen: empty"),
        (TLS, "amqp.listen: 127.0.0.1:5672 is not loopback"),
        ("[amqp]\nanonymous = false\n", "who may log in?"),
        (ANN, "amqp.users[0]: no user could log in"),
        ('[amqp.tls]\nlisten = "5671"\n', "amqp.tls.listen: '5671' is not host:port"),
        ('[amqp.tls]\nlisten = "h:5671"\nkey = "k"\n', "amqp.tls.certificate: missing"),
        ('[amqp.tls]\nlisten = "h:5671"\ncertificate = "c"\n', "amqp.tls.key: missing"),
        ('[amqp.tls]\ncertificate = "c"\n', "amqp.tls.listen: missing"),
        (TLS + 'client_certificate = "required"\n' + ANN, "amqp.tls.client_ca: missing"),
        (TLS + ANN + ANN, "amqp.users[1].name: a second user 'ann'"),
        (TLS + ANN.replace("password", "certificate"), "no client certificate is asked for"),
        (TLS + ANN + 'password_file = "f"\n', "amqp.users[0].password: given twice"),
        (TLS + ANN.replace(HASH, SECRET), "amqp.users[0].password: is no hash"),
        (TLS + ANN.replace(f'password = "{HASH}"', ""), "amqp.users[0].password: missing"),
        (TLS + ANN.replace("ann", "anonymous"), "anonymous has no password"),
        (TLS + ANN.replace('"*"', ""), "amqp.users[0].services: empty"),
        (TLS + ANN.replace('"*"', '"iex"'), "amqp.users[0].services: 'iex' is no service"),
        (TLS + ANN + "symbols = []\n", "amqp.users[0].symbols: empty"),
        (TLS + ANN + 'symbols = ["a.b"]\n', "amqp.users[0].symbols: 'a.b' is no symbol"),
        (TLS + ANN.replace("ann", "a n n"), "amqp.users[0].name: wants 1 to 64"),
        (TLS + ANN.replace('services = ["*"]', ""), "amqp.users[0].services: missing"),
        ("[amqp.limits]\nlogin_ms = 5\n", "amqp.limits.login_ms: wants an integer >= 100"),
        ("[amqp.limits]\nlinks = 5\n", "amqp.limits.links: unknown key"),
        ("[amqp.tls]\ncert = 'x'\n", "amqp.tls.cert: unknown key"),
        (
            '[amqp]\nlisten = ""\nplain_without_tls = true\n' + TLS + ANN,
            "amqp.plain_without_tls: there is no listener without TLS",
        ),
        (
            TLS
            + 'client_ca = "ca.pem"\n'
            + ANN.replace("password", "password_file")
            + 'certificate = "x"\n'
            + ANN.replace("ann", "bob")
            + 'certificate = "x"\n',
            "amqp.users[1].certificate: a second user",
        ),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy_and_without_the_secret(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parsed(text)
    assert words in str(error.value)
    assert error.value.message.startswith("gw.toml:")
    for secret in (SECRET, HASH):
        assert secret not in str(error.value)


def test_a_configuration_is_shown_without_hashes_and_otherwise_as_it_is() -> None:
    text = TLS + ANN + ANN.replace("ann", "bob").replace(f'word = "{HASH}"', 'word_file = "f"')
    config = parse_config(text + CHANNEL)
    shown = to_toml(config, comments=True)
    assert HASH not in shown
    assert 'password = "***"' in shown
    assert HASH not in repr(config)
    again = parse_config(shown.replace('"***"', f'"{HASH}"'))
    assert again == config


# -- the files, once the gateway starts -------------------------------------------------------


def listening(*users: UserConfig, **tls: str) -> AmqpConfig:
    from feedhandler.config.amqp import TlsConfig

    return AmqpConfig(listen="127.0.0.1:0", users=users, tls=TlsConfig(**tls))


def ann(path: str) -> UserConfig:
    return UserConfig(name="ann", password_file=path, services=("*",))


def test_a_hash_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "hash").write_text(HASH + "\n")
    door = Gate(listening(ann(str(tmp_path / "hash"))))
    assert door.users.by_password("ann", SECRET) is not None
    assert door.users.by_password("ann", "other") is None


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no such file"), (SECRET.encode(), "holds no hash"), (b"\xff\xfe", "holds no hash")],
)
def test_a_file_without_a_hash_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "hash"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        Gate(listening(ann(str(path))))
    assert words in error.value.message
    assert error.value.hint
    assert SECRET not in str(error.value)


def test_the_doctor_says_how_long_a_certificate_lasts(tmp_path: Path) -> None:
    import datetime

    ours = Certificates(tmp_path)
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)
    cases = (
        (ours.issue("a.example"), "ok", "expires in"),
        (ours.issue("b.example", not_after=soon), "warn", "expires in 3 days"),
        (ours.expired("c.example"), "fail", "has expired"),
        (("/nowhere", "/nowhere"), "fail", "no such file"),
    )
    for (certificate, key), status, words in cases:
        tls = listening(listen="127.0.0.1:0", certificate=certificate, key=key).tls
        check = check_certificate(tls)
        assert check.status == status, check
        assert words in check.found
