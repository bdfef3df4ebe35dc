"""TLS between a socket and the engine, without I/O of its own.

What it is for: `ServerTls` and `ClientTls` are what one side needs to speak TLS (certificate, key,
whom to trust); each makes a `TlsSession` a connection, which `proton.Connection` feeds with what
the socket brought and empties into it. It is Python's `ssl` over memory: the AMQP library has TLS
of its own only where OpenSSL's headers were present when it was built, which a plain `pip install`
does not ensure, and it reports neither addresses in certificates nor why one was not accepted.

What it promises: TLS 1.2 or later; certificate and name of a server are verified, always; no
renegotiation, no compression; every failure becomes one line and a remedy (`TlsFault`), and no
secret is in either; a key with a passphrase never makes the process ask for it.

What it leaves to others: the sockets, and which user a certificate is (`users`).
"""

import contextlib
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from feedhandler.codecs.errors import ConfigError

#: First byte of a TLS handshake record (RFC 8446, 5.1).
HANDSHAKE = 0x16
#: Plaintext taken at a time; a record has at most 16 KiB.
RECORD_BYTES_MAX = 1 << 14
#: Turns of a handshake with ourselves.
HANDSHAKE_TURNS = 4
#: Answer of a TLS-only server to a client that begins with AMQP (AMQP 1.0, 5.2).
TLS_HEADER = b"AMQP\x02\x01\x00\x00"

#: OpenSSL's verification errors (x509_vfy.h): our text, and the remedy.
_VERIFY: dict[int, tuple[str, str]] = {
    9: ("its certificate is not valid yet", "set the clocks, or wait"),
    10: ("its certificate has expired", "have it renewed"),
    18: ("its certificate is signed by itself", "name that certificate as the CA, if it is theirs"),
    19: ("its certificate's CA is not trusted", "name that CA's certificate as the CA"),
    20: ("its certificate's CA is not trusted", "name that CA's certificate as the CA"),
    21: ("its certificate's CA is not trusted", "name that CA's certificate as the CA"),
    23: ("its certificate has been revoked", "have a new one issued"),
    62: ("its certificate is for another name", "connect to a name that the certificate has"),
    64: ("its certificate is for another address", "connect to a name that the certificate has"),
}
#: OpenSSL's reasons of other failures, as a client meets them.
_CLIENT: dict[str, tuple[str, str]] = {
    "WRONG_VERSION_NUMBER": ("the other side speaks no TLS", "is it the port for amqps?"),
    "HTTP_REQUEST": ("the other side speaks HTTP", "is it the port for amqps?"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ("it wants a client certificate", "give one and its key"),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        "it refused the handshake",
        "it may want a client certificate, or other ciphers",
    ),
    "TLSV1_ALERT_UNKNOWN_CA": ("it does not trust our certificate's CA", "ask for one of its CA"),
    "SSLV3_ALERT_BAD_CERTIFICATE": ("it does not accept our certificate", "is it a client's?"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": ("our certificate has expired", "have it renewed"),
    "TLSV1_ALERT_PROTOCOL_VERSION": ("it speaks an old TLS only", "TLS 1.2 is the least we take"),
    "UNSUPPORTED_PROTOCOL": ("it speaks an old TLS only", "TLS 1.2 is the least we take"),
}


@dataclass(frozen=True, slots=True)
class TlsFault:
    """Why there is no TLS: a line, and what to do about it."""

    reason: str
    remedy: str = ""


def fault_of(error: ssl.SSLError) -> TlsFault:
    """Translate an error of OpenSSL for an operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        verdict = error.verify_message or "not accepted"
        reason, remedy = _VERIFY.get(error.verify_code, (f"its certificate: {verdict}", ""))
        return TlsFault(reason, remedy)
    name = getattr(error, "reason", None) or ""
    if name in _CLIENT:
        return TlsFault(*_CLIENT[name])
    if isinstance(error, ssl.SSLEOFError):
        return TlsFault("it broke off the handshake", "is it the port for amqps?")
    words = re.sub(r"[^a-z0-9 ]", "", name.replace("_", " ").lower())
    return TlsFault(words or "TLS failed")


class TlsSession:
    """One connection's TLS. `ready`: the handshake is done. `fault`: it has failed for that reason.
    `ended`: the peer has closed it."""

    def __init__(self, context: ssl.SSLContext, server: bool, hostname: str = "") -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._in, self._out, server_side=server, server_hostname=hostname or None
        )
        self._server = server
        self._begun = False
        self._closed = self._heard = False
        self._raw = b""
        self.ready = False
        self.ended = False
        self.fault: TlsFault | None = None
        if not server:
            self._shake()

    def receive(self, data: bytes) -> None:
        """Process bytes that the socket brought."""
        if self.fault is not None:
            return
        if self._server and not self._begun and data[0] != HANDSHAKE:
            if data.startswith(TLS_HEADER[:4]):
                self._raw = TLS_HEADER
            self.fault = TlsFault("the client does not begin with TLS", "amqps:// wants it")
            return
        self._begun = True
        self._in.write(data)
        if not self.ready:
            self._shake()

    def eof(self) -> None:
        """Record that the socket brings nothing more."""
        if self.fault is not None:
            return
        if not self.ready:
            self.fault = TlsFault("it broke off the handshake", "is it the port for amqps?")
        elif not self._server and not self._heard:
            # In TLS 1.3 a client is done before the server has seen its certificate, or none.
            reason = "it closed right after the handshake"
            self.fault = TlsFault(reason, "it may want a client certificate")

    def _shake(self) -> None:
        try:
            self._object.do_handshake()
            self.ready = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.fault = fault_of(error)

    def read_into(self, room: memoryview) -> int:
        """Put plaintext into `room`; return how many bytes, 0 for none."""
        if not self.ready or self.ended or self.fault is not None:
            return 0
        try:
            size = cast(int, self._object.read(min(len(room), RECORD_BYTES_MAX), room))
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLError as error:
            self.fault = fault_of(error)
            return 0
        self.ended = size == 0
        self._heard = self._heard or size > 0
        return size

    def write(self, data: memoryview) -> None:
        """Encrypt plaintext; `data_to_send` returns the result."""
        self._object.write(data)

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and clear them."""
        raw, self._raw = self._raw, b""
        return raw + self._out.read()

    def close(self) -> None:
        """Close our side; `data_to_send` returns the bytes."""
        if self.ready and not self._closed and self.fault is None:
            self._closed = True
            with contextlib.suppress(ssl.SSLError):
                self._object.unwrap()

    @property
    def held_bytes(self) -> int:
        """Bytes that wait to be sent, or for the rest of their record."""
        return self._in.pending + self._out.pending

    @property
    def peer_names(self) -> list[str]:
        """Names in the peer's verified certificate: its subject's common name, then DNS names, mail
        addresses and URIs; none where it showed no certificate."""
        found: dict[str, Any] = self._object.getpeercert() or {} if self.ready else {}
        names = [
            value for part in found.get("subject", ()) for key, value in part if key == "commonName"
        ]
        alternatives = found.get("subjectAltName", ())
        names += [value for kind, value in alternatives if kind in ("DNS", "email", "URI")]
        return list(dict.fromkeys(names))


def _bounded(context: ssl.SSLContext) -> ssl.SSLContext:
    """Set the options that hold for both sides."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _load_pair(context: ssl.SSLContext, certificate: str, key: str, where: str) -> None:
    """Load our certificate (with its chain) and its key. Raises ConfigError."""
    for what, path in (("certificate", certificate), ("key", key)):
        _readable(path, f"{where}{what}")
    try:
        context.load_cert_chain(certificate, key, _no_passphrase)
    except ValueError:
        raise ConfigError(
            f"{where}key: {key} has a passphrase",
            "write it without one, readable by this user only: openssl pkey -in KEY -out NEW",
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{where}key: {key} is not the key of {certificate}", "take the pair"
            ) from None
        raise ConfigError(
            f"{where}certificate: {certificate} and {key} are no certificate and key in PEM",
            "files that begin with -----BEGIN",
        ) from None


def _load_ca(context: ssl.SSLContext, path: str, where: str) -> None:
    _readable(path, where)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise ConfigError(
            f"{where}: {path} holds no certificate in PEM", "a file that begins with -----BEGIN"
        ) from None


def _readable(path: str, where: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{where}: {path}: {reason}", "a file that this user may read") from None


class ClientTls:
    """The client's side of TLS, by files in PEM; `ca` empty: the system's CAs. Raises ConfigError
    for files that cannot be used."""

    def __init__(self, ca: str = "", certificate: str = "", key: str = "", where: str = "") -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context = _bounded(context)
        if bool(certificate) != bool(key):
            missing = "key" if certificate else "certificate"
            raise ConfigError(f"{where}{missing}: missing", "a certificate and its key")
        if ca:
            _load_ca(context, ca, f"{where}ca")
        else:
            context.load_default_certs()
        if certificate:
            _load_pair(context, certificate, key, where)

    def session(self, hostname: str) -> TlsSession:
        """Make the TLS session of one connection to a server of this name or address."""
        return TlsSession(self.context, False, hostname)


class ServerTls:
    """The server's side of TLS; files that have changed are read again.

    `client_ca`: the CAs of clients' certificates; empty: none are asked for. `required`: clients
    without one are refused. Raises ConfigError for files that cannot be used; later, the ones read
    last stay in use and `report` gets a line.
    """

    def __init__(
        self,
        certificate: str,
        key: str,
        client_ca: str = "",
        required: bool = False,
        where: str = "",
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._files = (certificate, key, client_ca)
        self._required = required
        self._where = where
        self._report = report or (lambda text: None)
        self._seen = self._stamps()
        self.context = self._load()
        self.loads = 1

    def _load(self) -> ssl.SSLContext:
        certificate, key, client_ca = self._files
        context = _bounded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        _load_pair(context, certificate, key, self._where)
        if client_ca:
            _load_ca(context, client_ca, f"{self._where}client_ca")
            context.verify_mode = ssl.CERT_REQUIRED if self._required else ssl.CERT_OPTIONAL
        return context

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        """Return modification time, inode and size of each file, by which a change is detected."""
        found = []
        for path in filter(None, self._files):
            try:
                state = os.stat(path)
                found.append((state.st_mtime_ns, state.st_ino, state.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)

    def refresh(self) -> None:
        """Read the files again if they have changed; existing connections keep theirs."""
        now = self._stamps()
        if now == self._seen:
            return
        self._seen = now
        try:
            self.context = self._load()
        except ConfigError as error:
            self._report(f"TLS files have changed and cannot be used: {error}; the old ones serve")
            return
        self.loads += 1
        self._report("TLS files have changed and were read again")

    def expires_s(self) -> float | None:
        """Return when the certificate expires, in seconds since 1970: 0 where it has, or is not
        valid yet; None where that is unknown. Found by a handshake with ourselves."""
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname = False
        trusting.load_verify_locations(self._files[0])
        trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        own = _bounded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        _load_pair(own, *self._files[:2], self._where)
        client, server = TlsSession(trusting, False), TlsSession(own, True)
        for _ in range(HANDSHAKE_TURNS):
            if data := client.data_to_send():
                server.receive(data)
            if data := server.data_to_send():
                client.receive(data)
        if client.fault is not None:
            return 0.0
        until = (client._object.getpeercert() or {}).get("notAfter")
        return ssl.cert_time_to_seconds(until) if isinstance(until, str) else None

    def session(self) -> TlsSession:
        """Make the TLS session of a client that has just connected."""
        self.refresh()
        return TlsSession(self.context, True)
