import socket

from feedhandler.overlay.topology import Address

BATCH: int
DATAGRAM_BYTES: int

class Port:
    errors: dict[int, int]
    sent: int
    received: int
    oversize: int
    kernel_drops: int
    def __init__(self, sock: socket.socket) -> None: ...
    def receive(self) -> list[tuple[bytes, Address, int]]: ...
    def send(self, datagram: bytes, addresses: tuple[Address, ...]) -> None: ...
    def wait(self, timeout_ns: int) -> bool: ...

def hand_over(sock: socket.socket, payloads: list[bytes], first: int) -> int: ...
