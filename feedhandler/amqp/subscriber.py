"""`feedhandler.subscribe`: an AMQP 1.0 subscriber for asyncio and uvloop.

    async with feedhandler.subscribe("amqp://127.0.0.1:5672", "euronext.104") as messages:
        async for message in messages:
            print(message.key, message.seq, message.records())

It connects, attaches one receiving link, grants credit as messages are consumed (so a slow
consumer slows down nobody but itself), and hands out `Message` objects, or with `batches()`
whole reads at a time, decoded into columns by compiled code. A hole in the link's numbering is an
error, never silence; what came before it is handed out first.

Quality messages stand in the stream where they belong. As each is handed out, `quality` has what
it says of its service, and `on_quality` is called with it. With `snapshot=True` the stream begins
with a snapshot block of each service.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, Self

import msgspec

from feedhandler.amqp.attachment import Attachment, Intake
from feedhandler.amqp.columns import Batch, Workspace
from feedhandler.amqp.inbox import Inbox, Message
from feedhandler.amqp.quality import Quality
from feedhandler.amqp.request import build_address
from feedhandler.codecs import PeerError, UsageError, load_feed

#: Messages granted ahead of consumption, by grain: some hundred KB to a few MB on their way.
CREDIT = {"packet": 4096, "message": 16_384, "batch": 64}


class Subscriber:
    """One link's messages; an asynchronous context manager and iterator.

    Raises UsageError for what the caller asked wrong, PeerError where the node cannot be reached,
    refuses the address, or ends the link.

    `quality` has, by service, what the latest quality message handed out says.
    """

    def __init__(
        self,
        url: str,
        address: str,
        grain: str,
        feed: Any,
        credit: int | None,
        on_quality: Callable[[Quality], object] | None = None,
    ) -> None:
        if grain not in CREDIT:
            raise UsageError(f"as_={grain!r}: it is packet, batch or message")
        self.url = url
        self.address = address
        self.grain = grain
        self.feed = load_feed(feed) if isinstance(feed, str) else feed
        self.credit = credit or CREDIT[grain]
        self.quality: dict[int, Quality] = {}
        self.on_quality = on_quality
        self.inbox = Inbox(self.feed)
        self._ready: deque[Message] = deque()
        self._workspace = Workspace()
        self._error: Exception | None = None
        self._ended = False
        self._waiting: list[asyncio.Future[None]] = []
        self._callback: Callable[[Batch], object] | None = None
        self._attachment: Attachment
        self._intake: Intake

    # -- connecting and leaving -------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._attachment = Attachment(self.url, self._arrived, self._over)
        self._intake = await self._attachment.open(self.address, self.inbox, self.credit)
        self._link = self._intake.link
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Detach and disconnect; messages not consumed yet are dropped."""
        await self._attachment.close()
        self._finish(None)

    def _over(self, intake: Intake) -> None:
        """The link has ended; what was received may still be consumed."""
        self._finish(intake.error)

    def _finish(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            self._notify()

    def _fail(self, error: Exception) -> None:
        """What was received is at fault: that is why the stream is over, whatever else is."""
        self._finish(error)
        self._error = error

    # -- consuming --------------------------------------------------------------------------

    def _arrived(self, intake: Intake) -> None:
        """Messages wait on the link: hand them to the callback, or wake who waits for them."""
        if self._callback is None:
            self._notify()
            return
        count = intake.link.count
        try:
            for batch in self._gather():
                self._note_all(batch.notes)
                self._callback(batch)
            intake.grant(count)
        except Exception as error:  # raised where `deliver` waits
            self._fail(error)

    def _notify(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def _wait(self) -> None:
        """Until something was received or the stream is over."""
        news = self._loop.create_future()
        self._waiting.append(news)
        await news

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        ready = self._ready
        while not ready:
            if self._link.count:
                ready.extend(self._take())
                self._intake.grant(len(ready))
                continue
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._wait()
        message = ready.popleft()
        if message.content == "quality":
            self._note_all((message,))
        return message

    def _take(self) -> list[Message]:
        """The messages that the link gathered, as objects; those before the first bad one."""
        link = self._link
        bounds = memoryview(link.bounds).cast("q")
        try:
            found = self.inbox.read(link.arena, bounds, link.count)
        finally:
            bounds.release()
            link.clear()
        if self.inbox.failure is not None:
            self._fail(self.inbox.failure)
        return found

    def _note_all(self, notes: Iterable[Message]) -> None:
        """Keep what quality messages say, and tell who wants to hear of it."""
        for note in notes:
            try:
                told = msgspec.json.decode(note.body, type=Quality)
            except msgspec.DecodeError as error:
                wrong = PeerError(f"a quality message cannot be read: {error}")
                self._ready.clear()
                self._fail(wrong)
                raise wrong from None
            self.quality[told.service] = told
            if self.on_quality is not None:
                self.on_quality(told)

    async def batches(self) -> AsyncIterator[Batch]:
        """All that arrives, a `Batch` a read: packets one behind the other, ready for columns.

        A quality message ends a batch early and comes with the following one, whose data it
        precedes. So no batch has packets of a snapshot block and live ones.
        """
        while True:
            if self._link.count:
                count = self._link.count
                for batch in self._gather():
                    self._note_all(batch.notes)
                    yield batch
                self._intake.grant(count)
            elif self._ended:
                if self._error is not None:
                    raise self._error
                return
            else:
                await self._wait()

    async def deliver(self, callback: Callable[[Batch], object]) -> None:
        """Call `callback` with each batch, straight from the read that brought it.

        The shortest way from the socket to the caller: no task has to be woken in between. Returns
        when the stream has ended; raises what ended it, the callback's own exception included. The
        callback must be quick: while it runs, nothing else of the event loop does.
        """
        self._callback = callback
        try:
            if self._link.count:
                self._arrived(self._intake)
            while not self._ended:
                await self._wait()
            if self._link.count:
                self._arrived(self._intake)
            if self._error is not None:
                raise self._error
        finally:
            self._callback = None

    def _gather(self) -> list[Batch]:
        """What the link holds, as batches; almost always one."""
        link = self._link
        end = link.count
        try:
            batch = Batch(self.feed, self.grain, None, self._workspace)
            taken = batch.fill(self.inbox, link, 0, end)
            if taken == end:
                return [batch]
            found = self._gather_the_rest([batch] if taken else [], taken)
        finally:
            link.clear()
        if self.inbox.failure is not None:
            self._fail(self.inbox.failure)
        return found

    def _gather_the_rest(self, found: list[Batch], at: int) -> list[Batch]:
        """The rest of what the link holds, from a quality message or a block's border on, until
        the inbox fails: a quality message goes with what follows it."""
        link = self._link
        end = link.count
        bounds = memoryview(link.bounds).cast("q")
        try:
            while at < end and self.inbox.failure is None:
                quality: list[Message] = []
                while at < end and (note := self.inbox.quality_at(link.arena, bounds, at)):
                    quality.append(note)
                    at += 1
                batch = Batch(self.feed, self.grain, quality, self._workspace)
                if at < end and self.inbox.failure is None:
                    at += batch.fill(self.inbox, link, at, end)
                if quality or batch.count:
                    found.append(batch)
            return found
        finally:
            bounds.release()


def subscribe(
    url: str,
    pattern: str,
    *,
    as_: str = "packet",
    types: Iterable[int | str] | None = None,
    quality: bool = True,
    stamp: bool = False,
    snapshot: bool = False,
    feed: Any = None,
    credit: int | None = None,
    on_quality: Callable[[Quality], object] | None = None,
) -> Subscriber:
    """Subscribe to a routing key or pattern of a gateway's embedded node.

    `as_`: `packet`, `batch` or `message`. `types`: market message types wanted, all where None.
    `quality`: with quality messages. `stamp`: with the gateway's receive stamps. `snapshot`: with
    a snapshot of each service soon after the start. `feed`: the description (a `Feed`, or a name)
    where it is no built-in one. `credit`: messages on their way at most. `on_quality`: called
    with each quality message, in its place in the stream.
    """
    if snapshot and not quality:
        raise UsageError("snapshots come between quality messages", "leave quality=False out")
    address = build_address(
        pattern, grain=as_, types=types, quality=quality, stamp=stamp, snapshot=snapshot
    )
    return Subscriber(url, address, as_, feed, credit, on_quality)
