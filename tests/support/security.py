"""Certificates and doors for the tests of security, made anew each time and of no other worth.

`Certificates` makes a CA, a node's certificate and clients' ones in a folder; `gate` a `Gate` of
an `[amqp]` table. Hashes are cheap ones, so that a log-in costs no test any time.
"""

import base64
import datetime
import ssl
from pathlib import Path
from typing import Any

import trustme

from feedhandler.amqp import users
from feedhandler.amqp.serving.login import Gate
from feedhandler.config.amqp import AmqpConfig, LimitsConfig, TlsConfig, UserConfig

#: What no text may hold.
SECRET = "tr0ub4dor&3/?#@"


def cheap_hash(password: str) -> str:
    """As `users.hash_password`, for a test's time."""
    salt = b"sixteen bytes of"
    key = users._scrypt(password, salt, 16, 8, 1, 32)
    words = (base64.b64encode(part).decode() for part in (salt, key))
    return "$".join(("scrypt", "16", "8", "1", *words))


class Certificates:
    """A CA of its own and what it issues, as files in PEM."""

    def __init__(self, folder: Path, name: str = "ours") -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = str(folder / f"{name}-ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str, common: str | None = None, **options: Any) -> tuple[str, str]:
        """A certificate for these names, and its key: two paths."""
        made = self.authority.issue_cert(*names, common_name=common, **options)
        stem = "".join(c if c.isalnum() else "-" for c in (common or names[0]))
        certificate, key = (str(self.folder / f"{stem}.{kind}.pem") for kind in ("cert", "key"))
        made.private_key_pem.write_to_path(key)
        Path(certificate).write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return certificate, key

    def expired(self, *names: str) -> tuple[str, str]:
        """As `issue`, over since yesterday."""
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        return self.issue(
            *names,
            common="expired",
            not_before=yesterday - datetime.timedelta(days=1),
            not_after=yesterday,
        )

    def context(self, certificate: str = "", key: str = "") -> ssl.SSLContext:
        """A stock client's TLS that believes this CA."""
        context = ssl.create_default_context(cafile=self.ca)
        if certificate:
            context.load_cert_chain(certificate, key)
        return context


def user(name: str, *services: str, **options: Any) -> UserConfig:
    """A user who may have these services, all where none is named; the password is `SECRET`
    unless there is a certificate."""
    if "certificate" not in options and name != "anonymous":
        options.setdefault("password", cheap_hash(SECRET))
    return UserConfig(name=name, services=services or ("*",), **options)


def gate(
    *people: UserConfig,
    tls: tuple[str, str] | None = None,
    client_ca: str = "",
    required: bool = False,
    limits: dict[str, int] | None = None,
    report: Any = None,
    **options: Any,
) -> Gate:
    """The door of a node on loopback; with `tls`, its certificate and key, on a second port."""
    settings = TlsConfig()
    if tls is not None:
        settings = TlsConfig(
            listen="127.0.0.1:0",
            certificate=tls[0],
            key=tls[1],
            client_ca=client_ca,
            client_certificate="required" if required else "optional",
        )
    config = AmqpConfig(
        listen="127.0.0.1:0",
        users=people,
        tls=settings,
        limits=LimitsConfig(**(limits or {})),
        **options,
    )
    return Gate(config, report)
