"""A gateway gets back what both lines lost from a server that answers it alone, over UDP.

Real sockets on loopback: both lines lose the same packets, and the server is the product's own.
"""

import asyncio
import struct

import msgspec
from test_gateway_loopback import running
from test_line_answers import LAST, SERVICE, Publisher, until

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.config import ServerConfig
from feedhandler.retrans.protocols.iex_tp import GapFillServer
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.settings import ServerSettings
from feedhandler.retrans.udp import serve_datagrams
from tests.support.node import PATIENCE_S, Run, gateways_loop


def trade(number: int) -> bytes:
    """A "trade report" of IEX DEEP, whose trade id tells its number."""
    return struct.pack("<HccQ8sIqq", 38, b"T", b"\0", number, b"ZVZZT   ", 100, 5, number)


@gateways_loop
def test_what_both_lines_lose_comes_by_gap_fill_and_nothing_is_missing(run: Run) -> None:
    async def session() -> None:
        publisher = Publisher(load_feed("iex-deep"), trade, seed=19)
        server = GapFillServer(
            ServerSetup(publisher.feed, {SERVICE: publisher.store}, ServerSettings())
        )
        listener = await serve_datagrams(server, "127.0.0.1", 0)
        host, port = listener.address
        config = publisher.configuration(ServerConfig(name="rts", address=f"{host}:{port}"))
        channel = msgspec.structs.replace(config.channels[0], retransmission_lines=())
        config = msgspec.structs.replace(config, channels=(channel,))
        came: list[bytes] = []
        states: list[str] = []
        try:
            async with running(config) as (gateway, _, url):
                client = gateway.core.servers["rts"].client
                await until(lambda: client.up)
                async with feedhandler.subscribe(url, f"{publisher.feed.key}.#") as subscribed:
                    sending = asyncio.create_task(publisher.publish())
                    async with asyncio.timeout(PATIENCE_S):
                        async for told in subscribed:
                            if told.quality is not None:
                                states.append(told.quality["reason"])
                            else:
                                came += publisher.feed.messages_of(bytes(told.body))
                            if len(came) == LAST:
                                break
                    await sending
                snapshot = gateway.snapshot()
        finally:
            listener.close()
            publisher.sock.close()
        assert came == [trade(number) for number in range(1, LAST + 1)]
        assert publisher.lost > 50
        assert sum(channel["lost"] for channel in snapshot["channels"]) == 0
        assert "gap" not in states
        assert snapshot["recovery"]["retransmitted"] > 10
        assert server.counts["packets"] >= client.counts["answered"] > 10

    run(session())
