"""Market Data Requests by TCP: a server beside a publisher, and a client beside a receiver.

    service = await serve_market_data(histories, "127.0.0.1", 31910)
    ...
    await service.close()

`histories` are made from what a publisher keeps (`history_of`), or from the store of a receiver of
the channels; the server need not be the publisher. `MarketDataConnection` keeps a client connected,
and heals a receiver's books (`follow`). The sockets are `retrans.tcp`'s.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from feedhandler.fixcast.channels import Channels
from feedhandler.fixcast.publisher import Publisher
from feedhandler.fixcast.reception import Deliver, Joined, Lost, NewEpoch, Skipped
from feedhandler.fixcast.reception import Event as StreamEvent
from feedhandler.retrans.fix.market_data import MarketDataFormat
from feedhandler.retrans.fix.market_data_client import (
    Complete,
    Event,
    Failed,
    MarketDataClient,
    MarketDataClientSettings,
    Rejected,
)
from feedhandler.retrans.fix.market_data_requests import MarketDataServer, MarketDataSettings
from feedhandler.retrans.fix.market_follower import Event as BookEvent
from feedhandler.retrans.fix.market_follower import MarketFollower, Unhealed, Wanted
from feedhandler.retrans.fix.market_history import MarketHistory
from feedhandler.retrans.fix.market_state import MarketState
from feedhandler.retrans.fix.request import CHANNEL_TAG
from feedhandler.retrans.fix.server import ServedChannel
from feedhandler.retrans.reconnection import Reconnection
from feedhandler.retrans.tcp import RequestConnection, RequestListener, serve, steady_clock

#: Interval at which the books take what was published, and messages each time: 50,000 a second,
#: with the loop free for others in between.
CATCH_UP_SECONDS = 0.01
CATCH_UP_MESSAGES = 500
#: Wait for another state where the last one was too old, longer by as much each time.
TOO_OLD_WAIT_NS = 50_000_000
#: Wait before a state is requested again after a failure.
UNHEALED_WAIT_NS = 5_000_000_000


def history_of(channel: ServedChannel) -> MarketHistory:
    """Return the server's history of a channel, from now on.

    The channel's messages are stamped by the monotonic clock, as a publisher's are.
    """
    now_ns = time.time_ns()
    return MarketHistory(channel, now_ns - time.monotonic_ns(), now_ns)


def channel_by_definition(channels: Channels) -> Callable[[bytes], str | None]:
    """Return a function that maps a security to its channel by the definitions.

    It tries every content, because a request does not name one.
    """
    named = {
        (carried.content, kind)
        for channel in channels.channels.values()
        for carried in channel.carries
        for kind in carried.kinds or ("",)
    }

    def channel_of(security: bytes) -> str | None:
        symbol = security.decode("utf-8", "replace")
        found = [channels.of(symbol, content, kind) for content, kind in sorted(named)]
        return next((channel.id for channel in found if channel), None)

    return channel_of


class MarketDataService:
    """A listening server, made by `serve_market_data`; `address`: host and port."""

    def __init__(self, server: MarketDataServer, listener: RequestListener) -> None:
        self.server = server
        self.address = listener.address
        self._listener = listener
        self._task = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        while True:
            self.server.catch_up(CATCH_UP_MESSAGES)
            await asyncio.sleep(CATCH_UP_SECONDS)

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._listener.close()


async def serve_market_data(
    histories: Mapping[str, MarketHistory],
    host: str,
    port: int,
    *,
    form: MarketDataFormat | None = None,
    settings: MarketDataSettings | None = None,
    channel_of: Callable[[bytes], str | None] | None = None,
) -> MarketDataService:
    """Answer Market Data Requests at `host`:`port` (0: any free port).

    Raises `ConfigError` where the address cannot be used.
    """
    server = MarketDataServer(form or MarketDataFormat(), histories, settings, channel_of)
    return MarketDataService(server, await serve(server, host, port))


@contextlib.asynccontextmanager
async def requests_answered(
    publisher: Publisher, address: tuple[str, int] | None, channel_tag: int = CHANNEL_TAG
) -> AsyncIterator[MarketDataService | None]:
    """Answer Market Data Requests for what a publisher sends while the context lasts.

    `address` None: no requests are answered.
    """
    if address is None:
        yield None
        return
    service = await serve_market_data(
        {id: history_of(served) for id, served in publisher.served.items()},
        *address,
        form=MarketDataFormat(channel_tag, publisher.settings.begin_string),
        channel_of=channel_by_definition(publisher.channels),
    )
    try:
        yield service
    finally:
        await service.close()


class MarketDataConnection:
    """A client of the server at `host`:`port`, kept connected between `start` and `close`.

    `on_event` is called with outcomes of requests; `on_down` with the reason for a lost connection.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        on_event: Callable[[Event], None],
        on_down: Callable[[str], None] = lambda reason: None,
        form: MarketDataFormat | None = None,
        settings: MarketDataClientSettings | None = None,
        seed: int = 0,
    ) -> None:
        self.clock = steady_clock()
        self.client = MarketDataClient(form or MarketDataFormat(), settings, seed=seed)
        self._on_event = on_event
        self._followers: dict[str, Following] = {}
        self._reconnection = Reconnection(
            self.client,
            self.client.settings,
            on_events=self._hear,
            on_up=lambda now_ns: None,
            on_down=lambda reason, now_ns: on_down(reason),
            seed=seed,
        )
        self._connection = RequestConnection(self._reconnection, host, port, clock=self.clock)

    def start(self) -> None:
        """Connect, and stay connected. Call it within a running event loop."""
        self._connection.start()

    async def close(self) -> None:
        """Write what waits, and close."""
        await self._connection.close()

    def ask(self, channel: str, **asked: Any) -> int:
        """Send a request by `MarketDataClient.ask` now; return its number."""
        return self.ask_later(channel, 0, **asked)

    def ask_later(self, channel: str, wait_ns: int, **asked: Any) -> int:
        """Send a request by `MarketDataClient.ask` after `wait_ns`; return its number."""
        number = self.client.ask(channel, self.clock() + wait_ns, **asked)
        self._reconnection.on_output()
        return number

    def cancel(self, request: int) -> None:
        """Cancel a request, as `MarketDataClient.cancel`."""
        self.client.cancel(request)

    def follow(
        self,
        channel: str,
        on_book: Callable[[BookEvent], None],
        state: MarketState | None = None,
    ) -> "Following":
        """Keep a channel's books in `state`; the stream's events go to the returned object."""
        following = self._followers[channel] = Following(self, channel, on_book, state)
        return following

    def _hear(self, events: list[Any], now_ns: int) -> None:
        for event in events:
            for following in self._followers.values():
                if following.handles(event):
                    break
            else:
                self._on_event(event)


class Following:
    """A channel's books, which take the stream's events and send requests."""

    def __init__(
        self,
        owner: MarketDataConnection,
        channel: str,
        on_book: Callable[[BookEvent], None],
        state: MarketState | None = None,
    ) -> None:
        self.follower = MarketFollower(state)
        self._owner = owner
        self._channel = channel
        self._on_book = on_book
        self._asked = 0

    def receive(self, events: list[StreamEvent], epoch: int) -> None:
        """Take the stream's events, in order; `epoch` as `Reception.epoch` has it."""
        follower = self.follower
        for event in events:
            if isinstance(event, Deliver):
                self._follow(follower.deliver(event.number, event.body))
            elif isinstance(event, Joined):
                self._follow(follower.joined(event.number, epoch))
            elif isinstance(event, NewEpoch):
                self._follow(follower.renumbered(event.epoch))
            elif isinstance(event, Skipped):
                follower.skipped(event.last)
            elif isinstance(event, Lost):
                self._follow(follower.lost(event.last))

    def handles(self, event: Event) -> bool:
        """Take a client's event if it answers the current request; return whether it does."""
        if not isinstance(event, Complete | Rejected | Failed) or event.request != self._asked:
            return False
        follower = self.follower
        if isinstance(event, Complete):
            self._follow(follower.snapshot(event.messages, event.last, event.epoch))
        else:
            reason = event.text if isinstance(event, Rejected) else event.reason
            self._follow(follower.failed(reason))
        return True

    def _follow(self, events: list[BookEvent], wait_ns: int = 0) -> None:
        for event in events:
            if isinstance(event, Wanted):
                self._owner.cancel(self._asked)
                wait_ns += event.olds * TOO_OLD_WAIT_NS
                self._asked = self._owner.ask_later(self._channel, wait_ns)
                continue
            self._on_book(event)
            if isinstance(event, Unhealed):
                self._follow(self.follower.want(), UNHEALED_WAIT_NS)
