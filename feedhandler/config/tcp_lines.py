"""`[channel.line.tcp]`: the server of a line that comes by TCP."""

import os
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from feedhandler.addresses import split_address
from feedhandler.amqp.identity import read_password
from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.toml_text import WrongKey
from feedhandler.codecs.toml_text import setting as _setting
from feedhandler.ingest.lines import TcpFraming, TcpServer

if TYPE_CHECKING:
    from feedhandler.config.file import LineConfig


def password_of(env: str, file: str, where: str) -> str:
    """Return a password from an environment variable or a file; "" where neither is named.

    `where` names in errors what it is for. Raises `ConfigError` where it is not there.
    """
    if env:
        password = os.environ.get(env)
        if password is None:
            raise ConfigError(
                f"{where}password_env: there is no environment variable {env}",
                "set it to the password, or take password_env out",
            )
        return password
    return read_password(file, f"{where}password_file") if file else ""


class TcpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[channel.line.tcp]`: a server that gives the line's packets by TCP."""

    address: Annotated[str, _setting("host:port to connect to")]
    framing: Annotated[
        TcpFraming,
        _setting(
            "soupbin: messages of a SoupBinTCP session; length, length-little: packets, each "
            "behind its length of 2 bytes, big- or little-endian"
        ),
    ]
    username: Annotated[str, _setting("who logs in (soupbin); 6 characters at most")] = ""
    session: Annotated[
        str, _setting("the session to log in to first (soupbin); empty: the current one")
    ] = ""
    begin: Annotated[
        Literal["latest", "first"],
        Meta(
            description="where the first login begins (soupbin): the latest message, or the first"
        ),
    ] = "latest"
    password_env: Annotated[
        str, _setting("the environment variable that has the password; empty: none")
    ] = ""
    password_file: Annotated[str, _setting("the file that has the password; empty: none")] = ""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Server, user and session, by which two lines differ."""
        return self.address, self.username, self.session

    def server(self) -> TcpServer:
        """Return the server and the login. Raises `ConfigError` where the password is missing."""
        host, port = split_address(self.address)
        where = f"line at {self.address}: "
        return TcpServer(
            host,
            port,
            self.framing,
            self.username,
            password_of(self.password_env, self.password_file, where),
            self.session,
            1 if self.begin == "first" else 0,
        )


def check_tcp(line: "LineConfig") -> None:
    """Check a line by TCP. Raises `WrongKey`, whose path begins within the line."""
    tcp = line.tcp
    assert tcp is not None
    for key in ("group", "port", "interface", "source", "topology", "member"):
        if getattr(line, key):
            reason = "a line comes by a group, through a topology or by TCP, not by two of them"
            raise WrongKey((key,), reason, f"leave out {key}, or [channel.line.tcp]")
    try:
        split_address(tcp.address)
    except ValueError as error:
        raise WrongKey(("tcp", "address"), str(error), "for example 10.0.0.1:7001") from None
    if tcp.password_env and tcp.password_file:
        hint = "password_env, or password_file"
        raise WrongKey(("tcp", "password_env"), "there is password_file as well", hint)
    if tcp.framing == "soupbin":
        _check_credentials(tcp)
        return
    for key in ("username", "session", "password_env", "password_file"):
        if getattr(tcp, key):
            hint = 'leave it out, or framing = "soupbin"'
            raise WrongKey(("tcp", key), f"{tcp.framing} has no login", hint)
    if tcp.begin != "latest":
        reason = f"{tcp.framing} has no numbers to begin at"
        raise WrongKey(("tcp", "begin"), reason, 'leave it out, or framing = "soupbin"')


def _check_credentials(tcp: TcpConfig) -> None:
    if not tcp.username:
        raise WrongKey(
            ("tcp", "username"), "missing, and SoupBinTCP logs in", "as the exchange gave it"
        )
    if not (tcp.password_env or tcp.password_file):
        hint = "password_file, or password_env, as of a [[server]]"
        raise WrongKey(("tcp", "password_file"), "missing, and SoupBinTCP logs in", hint)
