"""`make leaks`: whether memory grows with what has been sent, or with clients that come and go.

    python -m bench.leaks [--sends N] [--connects N] [--reconnects N] [--out FILE]

Three campaigns, each in a process of its own. `sends`: messages through the engine, a pair of
connections within the process, settled and unsettled in turns. `connects`: clients that connect to
a node, attach, receive, and break off. `reconnects`: a publisher whose broker drops
the connection, again and again.

What is measured: resident memory (`/proc/self/statm`), and what malloc has handed out
(`mallinfo2`): everything of the engine, and whatever of Python's has no room in its own arenas.
Growth counts from the end of a warm-up on, in which pools and caches fill.
"""

import argparse
import asyncio
import ctypes
import gc
import json
import multiprocessing
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from bench.local import KEY, LocalClient, LocalNode, order, packet_of
from tests.support.processes import resident_bytes

SENDS, CONNECTS, RECONNECTS = 10_000_000, 10_000, 10_000
#: Memory may grow by so much for a million sends, and for a connect or reconnect.
BYTES_A_MILLION_SENDS_BAR = 1_000_000
BYTES_A_CONNECT_BAR = 512
#: Connects before the clock counts, of a campaign that has three times as many; and of sends.
WARM_UP_CONNECTS = 1000
WARM_UP_SHARE = 10
CREDIT = 2000
#: Messages of 300 bytes, as the sections and body of an ordinary one.
PAYLOAD = b"\x00\x53\x75\xb0\x00\x00\x01\x2c" + bytes(300)


class _Mallinfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


def memory() -> dict[str, int]:
    """Return bytes in use now: resident, and handed out by malloc (0 where it does not say)."""
    gc.collect()
    found = {"resident": resident_bytes(), "malloc": 0}
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is not None:
        mallinfo2.restype = _Mallinfo2
        info = mallinfo2()
        found["malloc"] = info.uordblks + info.hblkhd
    return found


class Growth:
    """Growth of memory since the warm-up, per piece of work."""

    def __init__(self, warm_up: int) -> None:
        self.warm_up = warm_up
        self.first: dict[str, int] | None = None

    def seen(self, done: int) -> None:
        """Count finished pieces."""
        if self.first is None and done >= self.warm_up:
            self.first = memory()

    def per_piece(self, done: int) -> dict[str, float]:
        """Return bytes for each piece after the warm-up, by kind of memory."""
        assert self.first is not None, "nothing was done after the warm-up"
        now, pieces = memory(), done - self.warm_up
        return {kind: (now[kind] - self.first[kind]) / pieces for kind in now}


# -- sends ------------------------------------------------------------------------------------


def sends(count: int) -> dict[str, float]:
    """Return bytes a send: through the engine, over a socket pair, half of them unsettled."""
    pairs = [_Pair(settled) for settled in (True, False)]
    growth, done = Growth(count // WARM_UP_SHARE), 0
    while done < count:
        for pair in pairs:
            done += pair.round()
        growth.seen(done)
    return growth.per_piece(done)


class _Pair:
    """A sending and a receiving connection within this process."""

    def __init__(self, settled: bool) -> None:
        from feedhandler.amqp import proton

        self.proton = proton
        self.sockets = socket.socketpair()
        for end in self.sockets:
            end.setblocking(False)
        serving, receiving = (end.fileno() for end in self.sockets)
        self.server = proton.Connection(serving, server=True, container="server")
        self.client = proton.Connection(receiving, server=False, container="client")
        self.receiver = self.client.receiver("n", "e.1", settled=settled, credit=CREDIT)
        self.sender: Any = None
        while self.sender is None or not self.sender.ready():
            self.turn()

    def turn(self) -> None:
        self.client.flush()
        self.server.receive()
        for kind, link in self.server.events():
            if kind == self.proton.CONNECTION_REMOTE_OPEN:
                self.server.open()
            elif kind == self.proton.LINK_REMOTE_OPEN:
                self.sender = link
                link.open()
        self.server.flush()
        self.client.receive()
        self.client.events()

    def round(self) -> int:
        """Send as many as may be sent, and have them received."""
        count = 0
        while self.sender.ready() and count < CREDIT // 2:
            self.sender.send(PAYLOAD, 0, len(PAYLOAD))
            count += 1
        got = 0
        while got < count:
            self.turn()
            got += self.receiver.count
            self.receiver.clear()
        self.receiver.flow(count)
        self.turn()
        self.turn()
        return count


# -- connects ---------------------------------------------------------------------------------


def connects(count: int) -> dict[str, float]:
    """Return bytes a client that connects, attaches, receives, and breaks off."""
    return uvloop.run(_connects(count))


async def _connects(count: int) -> dict[str, float]:
    rig = LocalNode()
    growth = Growth(min(WARM_UP_CONNECTS, count // 3))
    load = [(packet_of([order(1), order(2)]), 2)]
    keys = [KEY, f"{KEY}.1?as=message", f"{KEY}.#?as=batch&types=230"]
    for done in range(count):
        growth.seen(done)
        client = LocalClient(rig.node.address[1])
        await client.attach([keys[done % len(keys)]], CREDIT, settled=done % 2 == 0)
        rig.put(load)
        rig.node.pump()
        client.close()
        while rig.node.connections:
            await asyncio.sleep(0)
    found = growth.per_piece(count)
    await rig.node.stop(0.1)
    return found


# -- reconnects -------------------------------------------------------------------------------


def reconnects(count: int) -> dict[str, float]:
    """Return bytes a reconnect of a publisher, whose broker is another node that drops it."""
    return uvloop.run(_reconnects(count))


async def _reconnects(count: int) -> dict[str, float]:
    from feedhandler.amqp import proton
    from feedhandler.amqp.publishing.publisher import Publishers
    from feedhandler.config.publishing import PublishConfig

    rig = LocalNode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        config = PublishConfig(
            name="leaks", to=f"amqp://127.0.0.1:{port}", kind="qpid", exchange="any",
            quality=False, reconnect_us=1000, reconnect_max_us=1000,
        )  # fmt: skip
        code = rig.node.message_type
        publishers = Publishers((config,), rig.fanout, code, "bench", lambda text: None)
        publishers.start(rig.qualities)
        growth, load = Growth(min(WARM_UP_CONNECTS, count // 3)), [(packet_of([order(1)]), 1)]
        loop = asyncio.get_running_loop()
        for done in range(count):
            growth.seen(done)
            sock, _ = await loop.sock_accept(listener)
            sock.setblocking(False)
            engine = proton.Connection(sock.fileno(), server=True, container="broker")
            rig.put(load)
            rig.node.pump()
            link, got = None, False
            while not got:
                await asyncio.sleep(0)
                engine.receive()
                for kind, news in engine.events():
                    if kind == proton.CONNECTION_REMOTE_OPEN:
                        engine.open()
                    elif kind == proton.LINK_REMOTE_OPEN:
                        link = news
                        link.open()
                        link.flow(CREDIT)
                engine.flush()
                got = link is not None and link.count > 0
            for each in list(engine.links.values()):
                each.release()
            sock.close()
        found = growth.per_piece(count)
        await publishers.stop(0.0)
        await rig.node.stop(0.1)
    return found


#: prctl(2): no huge pages for this process.
_PR_SET_THP_DISABLE = 41


def _campaign(name: str, count: int) -> dict[str, float]:
    # A huge page that the kernel puts together makes megabytes resident that were never used.
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    return CAMPAIGNS[name][0](count)


# -- all of them ------------------------------------------------------------------------------

CAMPAIGNS: dict[str, tuple[Callable[[int], dict[str, float]], float]] = {
    "sends": (sends, BYTES_A_MILLION_SENDS_BAR / 1e6),
    "connects": (connects, BYTES_A_CONNECT_BAR),
    "reconnects": (reconnects, BYTES_A_CONNECT_BAR),
}


def alone(name: str, count: int) -> dict[str, float]:
    """Run one campaign in a process of its own; return bytes for each piece of work."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_campaign, (name, count))


def main() -> int:
    """Run all campaigns; return 0 where each is within its bar."""
    parser = argparse.ArgumentParser(prog="python -m bench.leaks")
    for name, count in zip(CAMPAIGNS, (SENDS, CONNECTS, RECONNECTS), strict=True):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--out", type=Path, default=Path("out/leaks.json"))
    arguments = vars(parser.parse_args())
    found, good = {}, True
    for name, (_, bar) in CAMPAIGNS.items():
        grown = alone(name, arguments[name])
        good = good and grown["resident"] < bar
        found[name] = {"count": arguments[name], "bytes_each": grown, "bar": bar}
        print(
            f"{name}: {arguments[name]:,}, growth {grown['resident']:.2f} bytes each resident, "
            f"{grown['malloc']:.2f} in malloc (bar {bar:g})",
            flush=True,
        )
    arguments["out"].parent.mkdir(parents=True, exist_ok=True)
    arguments["out"].write_text(json.dumps(found, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
