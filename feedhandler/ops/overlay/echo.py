"""`feedhandler overlay echo`: answer a receiver's probes, beside an isolated process."""

import socket
from dataclasses import dataclass
from typing import Any

from feedhandler.codecs.errors import ConfigError, reason_of
from feedhandler.overlay.last_hop import PROBE_BYTES
from feedhandler.overlay.port import Port
from feedhandler.overlay.running import SLEEP_NS, pin
from feedhandler.overlay.topology import Address
from feedhandler.overlay.topology_file import ipv4_address_of
from feedhandler.terminal.console import ExitCode, complain, print_json, signal_handlers


@dataclass(frozen=True, slots=True)
class Echoing:
    """The address for probes, their only source ("" for any), and how the process runs."""

    listen: str
    only: str
    processor: int | None
    busy: bool
    as_json: bool


def echo(echoing: Echoing) -> int:
    """Return probes to where they came from until it is stopped. Raises `ConfigError`."""
    listen = ipv4_address_of(echoing.listen)
    only = ipv4_address_of(echoing.only) if echoing.only else None
    pin(echoing.processor)
    stopped: list[int] = []
    with (
        signal_handlers(lambda number, _: stopped.append(number)),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
    ):
        try:
            sock.bind(listen)
        except OSError as error:
            raise ConfigError(
                f"cannot have {echoing.listen}: {reason_of(error)}", "name an address of this host"
            ) from None
        port = Port(sock)
        complain(f"echo is at {listen[0]}:{listen[1]}")
        dropped = _answer(port, only, stopped, 0 if echoing.busy else SLEEP_NS)
    report: dict[str, Any] = {"answered": port.sent, "dropped": dropped + port.oversize}
    if echoing.as_json:
        print_json({"event": "end", **report})
    else:
        print(", ".join(f"{name} {count:,}" for name, count in report.items()))
    return ExitCode.OK


def _answer(port: Port, only: Address | None, stopped: list[int], sleep_ns: int) -> int:
    """Answer until `stopped` is not empty; return how many datagrams got no answer."""
    dropped = 0
    while not stopped:
        for datagram, address, _ in port.receive():
            if len(datagram) == PROBE_BYTES and only in (None, address):
                port.send(datagram, (address,))
            else:
                dropped += 1
        if sleep_ns:
            port.wait(sleep_ns)
    return dropped
