"""The stamping role of the paper's measurement: control datagrams in, latencies out.

What it is for: one process with two sockets, one for the gateway's datagrams and one for the
control client's. The kernel stamps each as it arrives, so it does not matter when this process
reads it. At the end of a step the two are matched by service, sequence and message number, and the
differences are the latency between the gateway's publication and the client's receipt.

What it promises: unmatched datagrams are counted, on either side; datagrams of the warm-up are left
out; each side keeps `ROWS_MAX` at most.
"""

import asyncio
import contextlib
import select
import socket
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedhandler.histogram import Histogram
from feedhandler.ingest.lines import SO_TIMESTAMPNS, set_receive_buffer
from feedhandler.lab.control import DATAGRAM, ROW
from feedhandler.lab.results import answer_of
from feedhandler.rpc import Verb

#: Limit of each side: an hour at the paper's rate of messages, some 600 MB.
ROWS_MAX = 30_000_000
#: Receive buffer, for the time while this process is not on a processor.
BUFFER_BYTES = 8 << 20
#: How often the reading thread checks for the end, where nothing comes.
LOOK_MS = 100
#: Datagrams read from one socket before the other is read.
TURN = 256

SIDES = ("gateway", "client")
#: A stamped datagram: what was in it, and the kernel's stamp, ns since 1970.
STAMPED = np.dtype([*((name, ROW[name]) for name in ROW.names or ()), ("stamp_ns", "<i8")])
_STAMP = struct.Struct("=qq")

Array = np.ndarray[Any, Any]


class Side:
    """One socket and the datagrams that it received."""

    def __init__(self) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        set_receive_buffer(self.sock, BUFFER_BYTES)
        self.rows = bytearray()
        self.over = 0

    @property
    def address(self) -> str:
        """The address that datagrams are to be sent to, `host:port`."""
        host, port = self.sock.getsockname()
        return f"{host}:{port}"

    def read(self) -> None:
        """Read the datagrams that wait, `TURN` at most."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(TURN):
                data, ancillary, _, _ = self.sock.recvmsg(DATAGRAM.size + 1, 64)
                if len(data) != DATAGRAM.size or not ancillary:
                    continue
                if len(self.rows) >= ROWS_MAX * STAMPED.itemsize:
                    self.over += 1
                    continue
                seconds, nanoseconds = _STAMP.unpack(ancillary[0][2])
                self.rows += data
                self.rows += (seconds * 10**9 + nanoseconds).to_bytes(8, "little")

    def drain(self) -> Array:
        """Return the datagrams since the last call (`STAMPED` rows), and forget them."""
        rows, self.rows = self.rows, bytearray()
        return np.frombuffer(bytes(rows), STAMPED)


def matched(gateway: Array, client: Array) -> tuple[Array, int, int]:
    """Match the two sides' datagrams: return differences of stamps (int64, ns).

    Returns each side's number of unmatched datagrams, too. Where a datagram came twice, the first
    counts.
    """
    published, received = _keys(gateway, client)
    common, ours, theirs = np.intersect1d(published, received, return_indices=True)
    found = client["stamp_ns"][theirs] - gateway["stamp_ns"][ours]
    lone = [len(np.unique(keys)) - len(common) for keys in (published, received)]
    return found.astype(np.int64), lone[0], lone[1]


def _keys(*sides: Array) -> list[Array]:
    """Return one u64 for each datagram: 16 bits of service, 32 of sequence, 16 of message.

    Sequences have 64 bits. Of both sides there are fewer than 2**32: each has its index among them.
    """
    sequences = np.concatenate([rows["sequence"] for rows in sides])
    ranks = np.unique(sequences, return_inverse=True)[1].astype(np.uint64)
    keys, begin = [], 0
    for rows in sides:
        sequence = ranks[begin : begin + len(rows)] << np.uint64(16)
        service = rows["service"].astype(np.uint64) << np.uint64(48)
        keys.append(service | sequence | rows["number"].astype(np.uint64))
        begin += len(rows)
    return keys


class Stamper:
    """The role: reads on a thread of its own, from the start to the end."""

    def __init__(self) -> None:
        self.sides = {name: Side() for name in SIDES}
        self._timed_from: dict[int, int] = {}
        self._ended = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="stamps", daemon=True)
        self._thread.start()

    @property
    def verbs(self) -> dict[str, Verb]:
        """The verbs that the controller may send."""
        return {"addresses": self.addresses, "expect": self.expect, "latency": self.latency}

    def _read(self) -> None:
        poll = select.poll()
        by_number = {side.sock.fileno(): side for side in self.sides.values()}
        for number in by_number:
            poll.register(number, select.POLLIN)
        while not self._ended:
            for number, _ in poll.poll(LOOK_MS):
                with self._lock:
                    by_number[number].read()

    async def addresses(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the address that each side is to send to."""
        return {name: side.address for name, side in self.sides.items()}

    async def expect(self, request: Mapping[str, Any]) -> None:
        """Begin a step; the file at `path` says which numbers are timed."""
        with np.load(Path(request["path"])) as stored:
            services, first = stored["services"].tolist(), stored["timed_from"].tolist()
        with self._lock:
            self._timed_from = dict(zip(services, first, strict=True))
            for side in self.sides.values():
                side.drain()

    async def latency(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the latencies of the step, and the unmatched counts."""
        with self._lock:
            gateway, client = (self._timed(self.sides[name].drain()) for name in SIDES)
        over = sum(side.over for side in self.sides.values())
        return await asyncio.to_thread(_answer, gateway, client, over)

    def _timed(self, rows: Array) -> Array:
        """Return the rows without those of the warm-up."""
        first = np.zeros(1 << 16, np.uint64)
        for service, number in self._timed_from.items():
            first[service] = number
        return rows[rows["sequence"] >= first[rows["service"]]]

    def progress(self) -> dict[str, Any]:
        """Return how many datagrams of each side wait to be matched."""
        return {name: len(side.rows) // STAMPED.itemsize for name, side in self.sides.items()}

    async def close(self) -> None:
        """End the reading thread and close the sockets, at the end of the role."""
        self._ended = True
        await asyncio.to_thread(self._thread.join)
        for side in self.sides.values():
            side.sock.close()


def _answer(gateway: Array, client: Array, over: int) -> dict[str, Any]:
    """Match the two sides' datagrams, and return the histogram and the counts as an answer."""
    found, published_only, received_only = matched(gateway, client)
    histogram = Histogram()
    for value in found.tolist():
        histogram.record(value)
    return {
        **answer_of(histogram),
        "published_only": published_only,
        "received_only": received_only,
        "over": over,
    }
