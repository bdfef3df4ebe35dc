"""Addresses as operators write them: `host:port`, and ZeroMQ endpoints. No I/O."""

import ipaddress
import re


def split_address(text: str, port_min: int = 0) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port` into host and port. Raises `ValueError` for anything else,
    and for names that no host can have.

    `port_min` 1: port 0, which picks a free one to listen at, is nothing to connect to.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    plain_colons = ":" in host and not bracketed
    if not colon or not host or plain_colons or not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError(f"{text!r} is not host:port")
    try:
        host.encode("idna")
    except UnicodeError:  # no resolver takes it
        raise ValueError(f"{host!r} is no name of a host") from None
    if not port_min <= int(port) <= 65535:
        limit = "above 65535" if int(port) else "none to connect to"
        raise ValueError(f"port {port} is {limit}")
    return host, int(port)


def is_endpoint(text: str) -> bool:
    """Check whether `text` is a ZeroMQ endpoint: `tcp://host:port` or `ipc://path`."""
    return bool(re.fullmatch(r"tcp://[^:/]+:\d{1,5}|tcp://\[[^\]]+\]:\d{1,5}|ipc://.+", text))


def is_loopback(host: str) -> bool:
    """Check whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
