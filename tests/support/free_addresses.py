"""Multicast groups and ports that no other test has, whatever else runs on this machine.

Each process of tests holds one of `SLOTS` slots for as long as it lives: the name of a socket in
the network namespace, which the kernel gives to one process at a time and takes back however that
ends. A slot has groups of its own, 239.(128 + slot).x.y, and ports of its own, which lie below
those that the kernel hands out by itself: what was found free stays free until a test uses it.
"""

import contextlib
import functools
import itertools
import socket
import threading

#: Test processes at a time in one network namespace.
SLOTS = 64
#: The second byte of the first slot's groups; those of defaults and examples lie below.
FIRST_BYTE = 128
#: The first slot's first port, and how many a slot has.
FIRST_PORT, PORTS = 10_000, 250
#: Where the first slot's `feedhandler exchange` counts its ports from: the ports of the next slot
#: are ten further, behind those of its seven services.
FIRST_EXCHANGE_PORT, EXCHANGE_PORTS = 26_000, 10

_prefixes = itertools.count()
_ports = itertools.count()
_asking = threading.Lock()


def slot() -> tuple[int, socket.socket]:
    """Return this process' slot, and the socket that holds it."""
    with _asking:
        return _held_slot()


@functools.cache
def _held_slot() -> tuple[int, socket.socket]:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for number in range(SLOTS):
        with contextlib.suppress(OSError):
            held.bind(f"\0feedhandler tests, place {number}")
            return number, held
    raise AssertionError(f"{SLOTS} processes of tests run already")


def prefix() -> str:
    """Three bytes of groups that no other test uses, such as `239.128.7`."""
    return f"239.{FIRST_BYTE + slot()[0]}.{next(_prefixes) % 256}"


def group() -> str:
    """A multicast group that no other test uses."""
    return f"{prefix()}.1"


def port() -> int:
    """A port that is free on loopback, of TCP and of UDP."""
    first = FIRST_PORT + PORTS * slot()[0]
    for number in itertools.islice(_ports, PORTS):
        found = first + number % PORTS
        if _is_free(found):
            return found
    raise AssertionError(f"none of the ports {first} to {first + PORTS - 1} is free")


def exchange_port(number: int = 0) -> int:
    """A `--port-base` of this process: exchanges that run at a time have numbers of their own."""
    return FIRST_EXCHANGE_PORT + EXCHANGE_PORTS * (slot()[0] + SLOTS * number)


def _is_free(number: int) -> bool:
    with contextlib.ExitStack() as opened:
        try:
            opened.enter_context(socket.create_server(("127.0.0.1", number)))
            datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            opened.enter_context(datagrams).bind(("127.0.0.1", number))
        except OSError:
            return False
    return True
