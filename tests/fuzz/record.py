"""Records what stock clients say to the node, as seeds of the node's fuzzing.

`python -m tests.fuzz.record` runs each client of `tests/interop` through a conversation (SASL,
open, sessions, links, credit, outcomes, drain, refusals, detach, end, close) by way of a relay, and
writes the client's bytes to `tests/fuzz/conversations/`; and of the project's own subscriber what
the node says to it.
"""

import asyncio
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "conversations"

import feedhandler  # noqa: E402
from tests.support.foreign_clients import CLIENTS, client  # noqa: E402
from tests.support.node import running  # noqa: E402


class Relay:
    """Passes bytes between one client and the node, and keeps both ways."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.kept = [bytearray(), bytearray()]

    async def start(self) -> int:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(
            self._pass(reader, upstream[1], self.kept[0]),
            self._pass(upstream[0], writer, self.kept[1]),
        )

    @staticmethod
    async def _pass(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        while data := await reader.read(65536):
            kept += data
            writer.write(data)
        writer.close()


async def converse(kind: str) -> bytearray:
    """One conversation with everything in it that the node may hear."""
    async with running() as rig:
        relay = Relay(rig.port)
        port = await relay.start()
        async with client(kind, port, max_frame=4096, idle_ms=60_000) as stock:
            await stock.attach("a", "euronext.104?as=batch", settled=True)
            await stock.attach("b", "euronext.#?as=message&types=230", settled=False, session="s")
            for link, address in (("c", "euronext.104?as=byte"), ("d", "queue.x")):
                stock.order("attach", link=link, address=address)
                await stock.hear("detached", link=link)
            stock.order("credit", link="a", count=50)
            stock.order("credit", link="b", count=6)
            await stock.settle_down()
            rig.packets(1, 5)
            await rig.deliver()
            await stock.receive("b", 6)
            for index, what in enumerate(["accept", "reject", "release", "modify", "accept"]):
                stock.order("outcome", link="b", place=index, what=what)
            stock.order("drain", link="a")
            await stock.hear("drained", link="a")
            stock.order("sender", link="up", address="euronext.104")
            await stock.hear("detached", link="up")
            stock.order("detach", link="a")
            await stock.hear("detached", link="a")
            stock.order("end", session="s")
            await stock.hear("ended", session="s")
            stock.order("close")
            await stock.hear("closed")
            await rig.until(lambda: not rig.node.connections, "gone")
        return relay.kept[0]


async def subscribe() -> bytearray:
    """Return the bytes that the node sends to the project's own subscriber."""
    async with running() as rig:
        relay = Relay(rig.port)
        url = f"amqp://127.0.0.1:{await relay.start()}"
        async with feedhandler.subscribe(url, "euronext.104") as messages:
            for turn in range(20):
                rig.packets(3 * turn + 1, 3 * turn + 3)
                await rig.deliver()
                for _ in range(3 + (turn == 0)):
                    await anext(messages)
        return relay.kept[1]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "subscriber.node").write_bytes(asyncio.run(subscribe()))
    for kind in CLIENTS:
        said = asyncio.run(converse(kind))
        (FOLDER / f"{kind}.bin").write_bytes(said)
        print(f"{kind}: {len(said):,} bytes")


if __name__ == "__main__":
    main()
