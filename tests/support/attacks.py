"""What hostile clients do to the node, and a process that does it when told.

Each attack is a coroutine of a `Site`: one round of bounded work, which leaves nothing open that the
site does not close. Its first line says what it does; `moves` are counters of the node which show
that it did. All frames are `amqp_wire`'s. To one address and the next the attacks come from different
loopback addresses, so that what the node holds against one does not hide the next.

    python -m tests.support.attacks

reads orders from stdin, a JSON object a line: `name`, `ports`, and how many `rounds` or `seconds`;
and answers each with a line: `rounds` done and an `error`, where a round could not be done at all.
"""

import asyncio
import contextlib
import inspect
import json
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvloop

from tests.support import amqp_wire as wire
from tests.support.raw_peer import ADDRESS, BREACHES, Raw

#: No round takes longer: what the node does not take by then it is not going to take.
ROUND_S = 20.0
#: How long a peer tries to say something to a node that does not read.
PUSH_S = 1.0


class Peer(Raw):
    """A raw peer that gives up where the node has closed, or takes nothing more."""

    async def push(self, *data: bytes) -> bool:
        """Say this, and wait until the socket has it; whether that came about."""
        self.say(*data)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PUSH_S):
                await self.writer.drain()
            return not self.writer.is_closing()
        return False


class Site:
    """Where a round takes place: `ports` by name, the address that it comes from, its peers."""

    def __init__(self, ports: dict[str, int], host: str, long: bool) -> None:
        self.ports = ports
        self.host = host
        #: A campaign: as much as it takes, where a round in the ordinary gate does with less.
        self.long = long
        self.peers: list[Peer] = []

    async def peer(
        self, port: str = "amqp", *, reads: bool = True, tls: bool = False, host: str = ""
    ) -> Peer:
        """A new connection; who does not read has small buffers, too."""
        sock = socket.socket()
        sock.setblocking(False)
        if not reads:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.bind((host or self.host, 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.ports[port]))
        context = None
        if tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=context, server_hostname="127.0.0.1" if tls else None
        )
        if not reads:
            writer.transport.pause_reading()
        self.peers.append(Peer(reader, writer))
        return self.peers[-1]

    async def client(self, *data: bytes, **how: bool) -> Peer:
        """A peer that has opened the connection, begun a session, and said this."""
        peer = await self.peer(**how)
        await peer.push(wire.opening(), wire.begin(), *data)
        return peer

    def close(self) -> None:
        """All peers are gone at once, without a word."""
        for each in self.peers:
            each.writer.transport.abort()
        self.peers.clear()


@dataclass(frozen=True)
class Attack:
    """See the module."""

    what: str
    run: Callable[[Site], Awaitable[None]]
    moves: tuple[str, ...]


ATTACKS: dict[str, Attack] = {}


def attack(*moves: str) -> Callable[[Callable[[Site], Awaitable[None]]], None]:
    """Put a coroutine into the table."""

    def put(run: Callable[[Site], Awaitable[None]]) -> None:
        what = (inspect.getdoc(run) or "").splitlines()[0].rstrip(".")
        ATTACKS[run.__name__.replace("_", " ")] = Attack(what, run, moves)

    return put


# -- sessions and frames ------------------------------------------------------------------------


@attack("connections_failed")
async def answered_sessions(site: Site) -> None:
    """Begins that claim to answer a session of the node's, ended under another name."""
    answer = wire.frame(wire.BEGIN, wire.ushort(0), 0, 2048, 2048, channel=1)
    for _ in range(20):
        peer = await site.client(wire.attach("a", 0, ADDRESS), answer)
        await peer.push(wire.frame(wire.END, channel=1), wire.frame(wire.END))


@attack("connections_failed")
async def breaches_of_the_protocol(site: Site) -> None:
    """Each breach of the protocol that ends a connection, on one of its own."""
    for breach in BREACHES.values():
        await site.client(wire.attach("a", 0, ADDRESS), wire.flow(0, 100), breach)


@attack("links_refused")
async def refusals_not_read(site: Site) -> None:
    """Links that are refused, asked for by clients that read nothing."""
    for _ in range(5):
        peer = await site.client(reads=False)
        for first in range(0, 5000, 250):
            names = range(first, first + 250)
            if not await peer.push(*(wire.attach(f"n{n}", n % 256, "no..such") for n in names)):
                break


@attack("links_opened")
async def slow_readers_closed_at_once(site: Site) -> None:
    """A hundred readers with credit and a window that they do not read, gone at one instant."""
    asked = wire.attach("a", 0, ADDRESS), wire.flow(0, 10_000)
    for _ in range(100):
        await site.client(*asked, reads=False)
    await asyncio.sleep(0.2)


@attack("links_opened")
async def credit_churn(site: Site) -> None:
    """Credit of one and of none in turns, on ten links, thousands of times."""
    links = range(10)
    peer = await site.client(*(wire.attach(f"n{n}", n, ADDRESS) for n in links))
    churn = b"".join(wire.flow(n, credit) for credit in (1, 0, 1, 0) for n in links)
    for _ in range(100):
        await peer.push(churn)


# -- the process --------------------------------------------------------------------------------


async def rounds(name: str, ports: dict[str, int], count: int, seconds: float) -> dict[str, object]:
    """Do so many rounds, or as many as there is time for; at least one."""
    run = ATTACKS[name].run
    until, done, error = time.monotonic() + seconds, 0, ""
    while not error and (done < count or time.monotonic() < until):
        place = list(ATTACKS).index(name)
        site = Site(ports, f"127.0.{1 + done % 250}.{1 + place}", seconds > 0)
        try:
            async with asyncio.timeout(ROUND_S):
                await run(site)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the node has had enough of it
        except Exception as wrong:
            error = f"the attack itself failed: {type(wrong).__name__}: {wrong}"
        finally:
            site.close()
        done += 1
        await asyncio.sleep(0)
    return {"rounds": done, "error": error}


def main() -> None:
    """Carry out orders until there are no more."""
    for line in sys.stdin:
        order = json.loads(line)
        work = rounds(order["name"], order["ports"], order["rounds"], order["seconds"])
        print(json.dumps(uvloop.run(work)), flush=True)


if __name__ == "__main__":
    main()
