"""A client's side of security: our credentials for a node or broker, and whom we trust.

What it is for: `Login` is what a caller gives, `Identity` what it and the URL result in: the user,
the TLS to use, the texts for what went wrong.

What it promises: a password is sent over TLS, or over loopback, or where that was allowed by name;
no text contains it. Files and variables are read once, when the identity is made.

What it leaves to others: TLS itself (`security`), the connection (`attachment`, `publisher`).
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from feedhandler.addresses import is_loopback
from feedhandler.amqp import conditions
from feedhandler.amqp.request import Endpoint
from feedhandler.amqp.security import ClientTls, TlsFault, TlsSession
from feedhandler.codecs.errors import ConfigError, UsageError

#: A password file longer than this is something else.
PASSWORD_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Login:
    """Our credentials and whom we trust, beside what the URL says.

    `password` may be in the environment (`password_env`) or in a file (`password_file`) instead.
    `ca`: a file of trusted CAs in PEM, the system's where empty. `certificate` and `key`: ours, in
    PEM. `plain_over_network`: send the password without TLS to another machine.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    password_env: str = ""
    password_file: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    plain_over_network: bool = False

    def resolved(self) -> "Login":
        """Return a copy with the password read from the environment or its file. Raises
        ConfigError, UsageError."""
        given = [bool(self.password), bool(self.password_env), bool(self.password_file)]
        if sum(given) > 1:
            raise UsageError("more than one password", "in the URL, password_env or password_file")
        if self.password_env:
            found = os.environ.get(self.password_env)
            if found is None:
                raise UsageError(
                    f"there is no environment variable {self.password_env}",
                    "set it to the password, or take password_env out",
                )
            return replace(self, password=found, password_env="")
        if self.password_file:
            found = read_password(self.password_file, "password_file")
            return replace(self, password=found, password_file="")
        return self


def read_password(path: str, where: str) -> str:
    """Read the password in a file; `where`: what names the file, for errors. Raises ConfigError."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(PASSWORD_BYTES_MAX + 1)
        if len(content) <= PASSWORD_BYTES_MAX:
            return content.decode().rstrip("\r\n")
        reason = f"longer than {PASSWORD_BYTES_MAX} bytes"
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    raise ConfigError(f"{where} {path}: {reason}", "a file with the password on its one line")


class Identity:
    """Our credentials for the node at `endpoint`. Raises UsageError for an invalid combination,
    ConfigError for files that cannot be used."""

    def __init__(self, endpoint: Endpoint, login: Login | None = None) -> None:
        login = login or Login()
        if endpoint.user and login.user and endpoint.user != login.user:
            raise UsageError(f"two users: {endpoint.user} and {login.user}", "name one")
        if endpoint.password:
            login = replace(login, password=endpoint.password)
        login = login.resolved()
        self.endpoint = endpoint
        self.user = endpoint.user or login.user
        self.password = login.password
        if self.password and not self.user:
            raise UsageError("a password, but no user", "amqps://user@host")
        files = [login.ca, login.certificate, login.key]
        if any(files) and not endpoint.encrypted:
            raise UsageError(f"{endpoint.shown} is without TLS", "write amqps://")
        trusted = endpoint.encrypted or login.plain_over_network or is_loopback(endpoint.host)
        if self.user and not trusted:
            raise UsageError(
                f"{endpoint.shown}: would send the password unencrypted to another machine",
                "write amqps://, or allow plain_over_network where the network is trusted",
            )
        self.external = bool(login.certificate) and not self.user
        self._tls = (
            ClientTls(login.ca, login.certificate, login.key) if endpoint.encrypted else None
        )

    def session(self) -> TlsSession | None:
        """Make the TLS session of a new connection; None without TLS."""
        return None if self._tls is None else self._tls.session(self.endpoint.host)


def refusal(condition: str, text: str, user: str, encrypted: bool) -> TlsFault | None:
    """Return what a connection's end says of a refused log-in, with a remedy; None where it was
    none."""
    if condition == conditions.UNAUTHORIZED_ACCESS:  # so the engine reports a refused log-in
        if "mech=none" not in text.lower().replace(" ", ""):
            who = f"user {user}" if user else "our certificate" if encrypted else "us"
            return TlsFault(f"it refused {who}", "check user, password and certificate")
        if user:
            hint = "" if encrypted else "it may take passwords over TLS only: write amqps://"
            return TlsFault("it takes no passwords", hint or "ask what it takes")
        return TlsFault("it wants to know who we are", "give a user, or a client certificate")
    if "AMQP TLS layer" in text:  # the engine's word for the header that `security` answers with
        return TlsFault("it wants TLS", "write amqps://")
    return None
