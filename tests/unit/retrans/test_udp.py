"""Recovery over UDP: what the requests of MoldUDP64 and of IEX have in common, a seeded exchange by
datagrams that get lost, doubled and late, and real sockets on loopback."""

import asyncio
import random
from types import ModuleType
from typing import Any

import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.retrans.actions import Ask
from feedhandler.retrans.events import Answered, Packet
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.udp import DatagramConnection, serve_datagrams
from tests.support.line_answers import drawn_packets, exchange, numbers, stored
from tests.support.seeds import drawn
from tests.unit.retrans.protocols import test_iex_tp as iex_tp
from tests.unit.retrans.protocols import test_moldudp64 as moldudp64
from tests.unit.retrans.protocols.test_moldudp64 import SERVICE, client, holding, server

MS = 1_000_000
#: The tests of a protocol alone have what makes its ends, packets and stores.
both = pytest.mark.parametrize("own", [iex_tp, moldudp64], ids=["iex-tp", "moldudp64"])


@both
def test_a_late_answer_is_handed_on_for_the_request_that_waits_for_it(own: ModuleType) -> None:
    asking, late = own.client(), own.packet(7, 3)
    asking.ask(Ask(1, own.SERVICE, 7, 10, 0), 0)
    asking.cancel(1)
    assert asking.feed(late, 0) == []
    asking.ask(Ask(2, own.SERVICE, 7, 10, 0), 0)
    assert numbers(asking.feed(late, 0)) == [7, 8, 9]
    assert asking.feed(late, 0) == []
    unasked = "others_packets" if own is iex_tp else "late_packets"
    assert (asking.counts[unasked], asking.counts["cancelled"]) == (2, 1)


@both
def test_nothing_is_asked_before_the_stream_has_given_its_session(own: ModuleType) -> None:
    asking = own.client([b""])
    assert not asking.ask(Ask(1, own.SERVICE, 7, 10, 0), 0)
    assert asking.counts["no_session"] == 1


@both
def test_a_client_too_many_is_refused_and_one_that_asks_no_more_forgotten(own: ModuleType) -> None:
    serving = own.server(own.holding([(1, 5)]), clients_max=1, heartbeat_us=1_000, dead_us=50_000)
    first = serving.session("a", 0)
    assert serving.session("b", 0).closed
    first.pause(0)
    first.resume(0)
    assert first.tick(49 * MS) == b""
    assert not first.closed
    first.tick(50 * MS)
    assert first.closed
    assert first.deadline_ns > 10**18
    assert not serving.session("b", 50 * MS).closed


@both
@drawn(6)
def test_by_datagrams_that_are_lost_doubled_and_late_all_comes_once_and_unchanged(
    own: ModuleType, seed: int
) -> None:
    draw = random.Random(seed)
    store = stored(own.FEED, drawn_packets(own.packet, 40, draw), 1 << 20)
    session = own.server(store, request_packets_max=draw.choice([5, 50, 1000])).session("c", 0)

    def answers(data: bytes, now_ns: int) -> list[bytes]:
        sent = [session.feed(data, now_ns)]
        while session.waiting:
            sent.append(session.tick(now_ns))
        return [each for each in sent if each]

    exchange(own.client(), answers, own.packet, own.SERVICE, draw)


async def test_a_range_comes_over_sockets_and_a_server_that_is_gone_is_noticed() -> None:
    events: list[Any] = []
    reasons: list[str] = []
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
    assert numbers(events) == list(range(3, 301))
    assert sum(isinstance(each, Packet) for each in events) > 1
    assert reasons[0].startswith("the server is not there")
