"""Shared by tests of replays: a receiver of multicast on loopback that counts what it gets."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from feedhandler.ingest.lines import set_receive_buffer

#: How long a test waits for a datagram before it gives up.
PATIENCE_S = 60.0


def joined(group: str, port: int = 0, timeout_s: float = PATIENCE_S) -> socket.socket:
    """A socket of a group on loopback, which others may share, with room for all that comes."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    set_receive_buffer(sock, 64 << 20)
    sock.bind((group, port))
    member = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    sock.settimeout(timeout_s)
    return sock


def arrived(socks: Iterable[socket.socket], wait_s: float) -> list[tuple[socket.socket, bytes]]:
    """What has come to sockets that do not block; none where nothing comes in time."""
    found = []
    for sock in select.select(list(socks), [], [], wait_s)[0]:
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append((sock, sock.recv(2048)))
    return found


class Receiver:
    """A plain socket on a group of its own, emptied by a thread as fast as it can; of each datagram
    it keeps what `keep` makes of it."""

    def __init__(self, group: str, keep: Callable[[bytes], Any] = bytes) -> None:
        self.keep = keep
        self._socket = joined(group, timeout_s=0.05)
        self.endpoint: tuple[str, int] = (group, self._socket.getsockname()[1])
        self.got: list[Any] = []
        self._arrived = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while not self._closing:
            try:
                payload = self._socket.recv(65_535)
            except TimeoutError:
                continue
            kept = self.keep(payload)
            with self._arrived:
                self.got.append(kept)
                self._arrived.notify_all()

    def wait_for(self, count: int) -> list[Any]:
        """What is kept, once so many have come; fails the test where they do not."""
        return self.wait_until(lambda got: len(got) >= count)

    def wait_until(self, what: Callable[[list[Any]], bool]) -> list[Any]:
        """What is kept, once something is true of it; fails the test where it never is."""
        with self._arrived:
            so = self._arrived.wait_for(lambda: what(self.got), PATIENCE_S)
            assert so, f"{len(self.got)} datagrams arrived, at last {self.got[-5:]}"
            return self.got[:]

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._socket.close()
