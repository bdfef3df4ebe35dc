"""Recovery over real UDP sockets on loopback."""

import asyncio
from typing import Any

import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Answered, Packet
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.udp import DatagramConnection, serve_datagrams
from tests.support.line_answers import numbers
from tests.unit.test_retrans_moldudp64 import SERVICE, client, holding, server


def test_a_range_comes_over_sockets_and_a_server_that_is_gone_is_noticed() -> None:
    events: list[Any] = []
    reasons: list[str] = []

    async def scenario() -> None:
        up, done, down = asyncio.Event(), asyncio.Event(), asyncio.Event()

        def on_events(some: list[Any], now_ns: int) -> None:
            events.extend(some)
            if isinstance(some[-1], Answered):
                done.set()

        def on_down(reason: str, now_ns: int) -> None:
            reasons.append(reason)
            down.set()

        listener = await serve_datagrams(server(holding([(1, 400)])), "127.0.0.1", 0)
        with pytest.raises(ConfigError, match="cannot listen"):
            await serve_datagrams(server(holding([])), *listener.address)
        kept = ReconnectingClient(
            client(), RecoverySettings(), on_events=on_events, on_up=lambda now_ns: up.set(),
            on_down=on_down, seed=1,
        )  # fmt: skip
        connection = DatagramConnection(kept, *listener.address)
        connection.start()
        await up.wait()
        kept.ask(Ask(1, SERVICE, 3, 301, 0), connection.clock())
        await done.wait()
        listener.close()
        await asyncio.sleep(0)
        kept.ask(Ask(2, SERVICE, 3, 301, 0), connection.clock())
        await down.wait()
        await connection.close()
        assert not connection.up

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert numbers(events) == list(range(3, 301))
    assert sum(isinstance(each, Packet) for each in events) > 1
    assert reasons[0].startswith("the server is not there")
