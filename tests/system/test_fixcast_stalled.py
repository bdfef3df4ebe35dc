"""A publisher's line whose interface takes nothing, in a network namespace."""

import array
import contextlib
import errno
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest

from feedhandler.fixcast.system_calls import LineSender
from tests.support.fixcast import SECONDS
from tests.support.veth import NEAR, NoNamespace, ip, namespace

FAR_ADDRESS = ("10.77.0.2", 9)
#: The wait for a line that takes nothing; so long for each datagram the test would not end.
WAIT = struct.pack("ll", 1, 0)
BATCHES, DATAGRAMS = 20, 64


def tc(words: str) -> bool:
    """Run `tc qdisc` in the calling thread's namespace; return whether it could."""
    done = subprocess.run(["tc", "qdisc", *words.split()], check=False, capture_output=True)
    return done.returncode == 0


@pytest.fixture
def stalled() -> Iterator[None]:
    """An interface that keeps what it is given, but for a byte a second."""
    if shutil.which("tc") is None:
        pytest.skip("there is no `tc` (package iproute2)")
    with contextlib.ExitStack() as opened:
        try:
            opened.enter_context(namespace())
        except NoNamespace as reason:
            pytest.skip(str(reason))
        ip("address", "add", "10.77.0.1/24", "dev", NEAR)
        ip("neighbour", "add", FAR_ADDRESS[0], "lladdr", "02:00:00:00:00:02", "dev", NEAR)
        if not tc(f"add dev {NEAR} root tbf rate 8bit burst 1540 limit 1000000"):
            pytest.skip("this kernel has no token bucket filter")
        yield


def test_a_line_whose_interface_takes_nothing_holds_up_no_other(stalled: None) -> None:
    with contextlib.ExitStack() as opened:
        lost, good, to = (
            opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(3)
        )
        lost.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        lost.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, WAIT)
        to.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        to.settimeout(SECONDS)
        to.bind(("127.0.0.1", 0))
        lines = LineSender([(lost, FAR_ADDRESS), (good, to.getsockname())])
        offsets = array.array("q", [10 * each for each in range(DATAGRAMS)])
        sizes = array.array("q", [10] * DATAGRAMS)
        slab = bytes(10 * DATAGRAMS)
        for _ in range(BATCHES):
            lines.send(slab, offsets, sizes, 0, DATAGRAMS)
        for _ in range(BATCHES * DATAGRAMS):
            to.recv(100)
        taken = lines.sent - BATCHES * DATAGRAMS
        assert lines.errors == {errno.EAGAIN: BATCHES * DATAGRAMS - taken}
        assert 0 < taken < DATAGRAMS
        # It takes something again, and is used.
        assert tc(f"del dev {NEAR} root")
        before = lines.errors.copy()
        lines.send(slab, offsets, sizes, 0, 1)
        assert lines.errors == before
