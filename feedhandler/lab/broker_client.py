"""A client of a broker: receives from its queues as fast as the subscriber's engine can.

What it is for: `BrokerSubscriber` has the interface of `feedhandler.subscribe`'s subscriber: an
asynchronous context, and `deliver`, which calls back with each read's `Batch`. Instead of a pattern
it takes the addresses of queues that are already bound for it (`broker`). The broker settles
deliveries as it sends them, as the gateway's own node does.

What it leaves to others: losses. The numbers in the messages count per key, not per link; `tally`
checks the sequence numbers. It does not reconnect after a lost connection.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

from feedhandler.amqp.identity import Identity, Login
from feedhandler.amqp.request import CREDIT, parse_endpoint
from feedhandler.amqp.subscribing.attachment import Attachment, Intake
from feedhandler.amqp.subscribing.columns import Batch, Workspace
from feedhandler.amqp.subscribing.inbox import Inbox


class BrokerSubscriber:
    """A subscriber to `grain`s of `feed` from the queues at `sources` of a broker.

    `url` has no virtual host; `hostname` names it in the open frame. Entering the context raises
    PeerError where the broker cannot be reached or refuses.
    """

    def __init__(
        self, url: str, sources: Sequence[str], grain: str, feed: Any, hostname: str = ""
    ) -> None:
        # The URL of a broker on another machine, without TLS, is the user's consent to that.
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

    async def __aexit__(self, *_: object) -> None:
        await self._attachment.close()
        if not self._over.done():
            self._over.set_result(None)

    async def deliver(self, callback: Callable[[Batch], object]) -> None:
        """Call `callback` with each batch, on the event loop, from the read that brought it.

        Returns when either side has closed the connection in order; raises any other error that
        ended the stream, and what `callback` raises.
        """
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
        """Hand on the link's deliveries as batches, almost always one; skip quality messages."""
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
        """End the stream once; `error` is None where it was closed in order."""
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
            self._over.exception()  # `deliver` raises it; not calling that is no fault
