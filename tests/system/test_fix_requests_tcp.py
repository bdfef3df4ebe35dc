"""Market Data Requests over real sockets (`feedhandler/fixcast/market_data_service.py`)."""

import asyncio
import time
from typing import Any

from feedhandler.fixcast.channels import parse_channels
from feedhandler.fixcast.market_data_service import (
    Following,
    MarketDataConnection,
    MarketDataService,
    channel_by_definition,
    history_of,
    requests_answered,
    serve_market_data,
)
from feedhandler.fixcast.publisher import Publisher
from feedhandler.fixcast.reception import Deliver, Joined, Lost, NewEpoch, Skipped
from feedhandler.retrans.fix.market_data_client import (
    Complete,
    Event,
    Failed,
    MarketDataClientSettings,
    Rejected,
)
from feedhandler.retrans.fix.market_follower import Healed, Standing
from tests.support.fix_market import PublishedChannel, refresh, state_of
from tests.support.fixcast import channels

HOST = "127.0.0.1"
QUICK = MarketDataClientSettings(reconnect_us=1_000, reconnect_max_us=4_000, retry_us=1_000)
DEFINITION = """
[[channel]]
id = "c"
a = { group = "239.1.1.1", port = 31001 }
carries = [{ content = "equities", symbols = ["A"] }]
"""


def order(channel: PublishedChannel) -> bytes:
    return refresh(f"279=0|269=0|278=o{channel.next}|55=A|270=10|271=5")


class Site:
    """A channel that is published, a server of it, and a client."""

    def __init__(self) -> None:
        self.channel = PublishedChannel()
        self.history = history_of(self.channel.served)
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.books: asyncio.Queue[Any] = asyncio.Queue()
        self.downs: list[str] = []

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.channel.now_ns = time.monotonic_ns()
            self.channel.publish(order(self.channel))

    async def __aenter__(self) -> "Site":
        self.service = await serve_market_data({"c": self.history}, HOST, 0)
        self.connection = MarketDataConnection(
            *self.service.address,
            on_event=self.events.put_nowait,
            on_down=self.downs.append,
            settings=QUICK,
        )
        self.connection.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.connection.close()
        await self.service.close()

    def delivered(self, first: int, last: int) -> list[Any]:
        return [Deliver(number, self.channel.bodies[number]) for number in range(first, last + 1)]

    def follow(self) -> Following:
        return self.connection.follow("c", self.books.put_nowait)


async def test_a_time_range_comes_back_whole_over_sockets() -> None:
    async with Site() as site:
        begin_ns = site.history.since_ns
        site.publish(1000)
        site.connection.ask("c", begin_ns=begin_ns)
        event = await site.events.get()
        assert isinstance(event, Complete)
        assert event.messages == list(site.channel.bodies.values())
        site.connection.ask("c", begin_ns=begin_ns - 10**9)
        rejected = await site.events.get()
        assert isinstance(rejected, Rejected)
        assert rejected.code == "TIME_NOT_HELD"
        assert rejected.held_from_ns == begin_ns


async def test_a_late_joiner_and_a_loss_that_no_server_has_are_healed_by_the_present_state() -> (
    None
):
    async with Site() as site:
        site.publish(200)
        following = site.follow()
        following.receive([Joined(200), *site.delivered(200, 200)], site.channel.epoch)
        assert await site.books.get() == Healed(200, 200)
        site.publish(10)
        following.receive([Lost(201, 205), *site.delivered(206, 210)], site.channel.epoch)
        healed = await site.books.get()
        assert healed == Healed(210, 210)
        follower = following.follower
        assert follower.standing is Standing.WHOLE
        assert follower.state.contents() == state_of(site.channel.bodies).contents()
        site.channel.restart()
        following.receive([Skipped(211, 212), NewEpoch(8, True)], site.channel.epoch)
        assert not follower.state.contents()


async def test_a_server_that_is_behind_is_asked_until_it_is_not() -> None:
    async with Site() as site:
        site.publish(3)
        following = site.follow()
        following.receive([Joined(1), *site.delivered(1, 3), Lost(4, 5)], 7)
        while not following.follower.counts["too_old"]:
            await asyncio.sleep(0.001)
        site.publish(2)
        assert await site.books.get() == Healed(5, 5)


async def test_a_server_that_comes_back_answers_what_was_asked_before() -> None:
    async with Site() as site:
        begin_ns = site.history.since_ns
        site.publish(5)
        host, port = site.service.address
        await site.service.close()
        while not site.downs:
            await asyncio.sleep(0.001)
        site.connection.ask("c", begin_ns=begin_ns)
        site.service = await serve_market_data({"c": site.history}, host, port)
        assert isinstance(await site.events.get(), Complete)


async def test_a_server_that_says_nothing_is_reported_as_failed() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        writer.close()

    events: asyncio.Queue[Event] = asyncio.Queue()
    server = await asyncio.start_server(silent, HOST, 0)
    settings = MarketDataClientSettings(answer_wait_us=5_000, retry_us=1_000, tries_max=2)
    connection = MarketDataConnection(
        *server.sockets[0].getsockname(), on_event=events.put_nowait, settings=settings
    )
    connection.start()
    connection.ask("c")
    assert isinstance(await events.get(), Failed)
    await connection.close()
    server.close()
    await server.wait_closed()


async def raw(service: MarketDataService, data: bytes) -> bytes:
    """Send bytes and return what comes back until the server ends the connection."""
    reader, writer = await asyncio.open_connection(*service.address)
    writer.write(data)
    found = await reader.read()
    writer.close()
    return found


async def test_what_is_not_fix_is_cut_off_and_others_go_on() -> None:
    async with Site() as site:
        site.publish(3)
        form = site.connection.client.form
        assert await raw(site.service, b"GET / HTTP/1.1\r\n\r\n" * 4) == b""
        assert b"\x0135=5\x01" in await raw(site.service, form.message(b"5"))
        site.connection.ask("c")
        event = await site.events.get()
        assert isinstance(event, Complete)
        assert event.last == 3
        assert site.service.server.counts["clients_wrong"] == 1


async def test_a_publisher_answers_for_what_it_publishes() -> None:
    given = channels()
    async with (
        Publisher(given) as publisher,
        requests_answered(publisher, (HOST, 0)) as service,
    ):
        assert service is not None
        for number in range(1, 4):
            await publisher.publish("c1", refresh(f"279=0|269=0|278=o{number}|55=S1|270=9"))
        events: asyncio.Queue[Event] = asyncio.Queue()
        connection = MarketDataConnection(*service.address, on_event=events.put_nowait)
        connection.start()
        connection.ask("", securities=[b"S1"])
        connection.ask("c1", securities=[b"T1"])
        answers = [await events.get(), await events.get()]
        assert [each.last for each in answers if isinstance(each, Complete)] == [3, 3]
        await connection.close()
    async with Publisher(given) as publisher, requests_answered(publisher, None) as service:
        assert service is None


def test_definitions_say_which_channel_carries_a_security() -> None:
    channel_of = channel_by_definition(parse_channels(DEFINITION, "text"))
    assert channel_of(b"A") == "c"
    assert channel_of(b"B") is None
