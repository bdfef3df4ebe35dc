"""A client of a broker: receives from its queues as fast as the subscriber's engine can.

What it is for: `BrokerSubscriber` has the manner of `feedhandler.subscribe`'s: an asynchronous
context, and `deliver` that calls back with each read's `Batch`. Instead of a pattern it has the
addresses of queues that somebody bound for it (`broker`). Deliveries are settled by the broker as
it sends them, as on the gateway's own node.

What it leaves to others: losses. The numbers in the messages are each key's, not the link's; who
wants to know counts sequence numbers (`tally`). It does not come back after a lost connection.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from feedhandler.amqp.identity import Identity, Login
from feedhandler.amqp.request import CREDIT, parse_endpoint
from feedhandler.amqp.subscribing.attachment import Attachment, Intake
from feedhandler.amqp.subscribing.columns import Batch, Workspace
from feedhandler.amqp.subscribing.inbox import Inbox


class BrokerSubscriber:
    """Receives `grain`s of `feed` from the queues at `sources`. `url`: without virtual host;
    `hostname` is what stands for that in the open frame.

    Raises PeerError where the broker cannot be reached or refuses.
    """

    def __init__(
        self, url: str, sources: Sequence[str], grain: str, feed: Any, hostname: str = ""
    ) -> None:
        # Who measures a broker on another machine without TLS has said so by its URL.
        self._identity = Identity(parse_endpoint(url), Login(plain_over_network=True))
        self._sources = tuple(sources)
        self._grain = grain
        self._feed = feed
        self._hostname = hostname
        self._workspace = Workspace()
        self._callback: Callable[[Batch], object] | None = None
        self._intakes: list[Intake] = []

    async def __aenter__(self) -> Self:
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attachment = Attachment(
            self._identity, self._arrived, self._ended, hostname=self._hostname
        )
        try:
            await self._attachment.connect()
            for number, source in enumerate(self._sources):
                inbox = Inbox(self._feed, self._grain == "batch", False)
                intake = self._attachment.attach(
                    f"client-{number}", source, inbox, CREDIT[self._grain]
                )
                self._intakes.append(intake)
                await self._attachment.answer(intake)
        except BaseException:
            self._attachment.abandon()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._attachment.close()
        if not self._over.done():
            self._over.set_result(None)

    async def deliver(self, callback: Callable[[Batch], object]) -> None:
        """Call `callback` with each batch, straight from the read that brought it. Returns when
        somebody has said goodbye; raises what else ended the stream, or went wrong in the
        callback."""
        self._callback = callback
        for intake in self._intakes:
            self._arrived(intake)
        await asyncio.shield(self._over)

    def _arrived(self, intake: Intake) -> None:
        count = intake.link.count
        if self._callback is None or not count or self._over.done():
            return
        try:
            self._hand_on(intake, count, self._callback)
        except BaseException as error:
            self._end(error)
        finally:
            intake.link.clear()
        intake.grant(count)

    def _hand_on(self, intake: Intake, count: int, callback: Callable[[Batch], object]) -> None:
        """All that the link holds, as batches; almost always one. Quality messages are nothing."""
        inbox, at = intake.inbox, 0
        while at < count:
            batch = Batch(self._feed, self._grain, None, self._workspace)
            taken = batch.fill(inbox, intake.link, at, count)
            if inbox.failure is not None:
                raise inbox.failure
            if taken:
                callback(batch)
            at += taken or 1

    def _ended(self, intake: Intake) -> None:
        self._end(intake.error)

    def _end(self, error: BaseException | None) -> None:
        """The stream is over; without an error where somebody said goodbye."""
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
            self._over.exception()  # whoever delivers gets it; nobody must
