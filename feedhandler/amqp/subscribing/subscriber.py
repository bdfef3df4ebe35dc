"""`feedhandler.subscribe`: an AMQP 1.0 subscriber for asyncio and uvloop.

    async with feedhandler.subscribe("amqp://127.0.0.1:5672", "euronext.104") as messages:
        async for message in messages:
            print(message.key, message.seq, message.records())

What it is for: it hands out the stream as `Message` objects, or with `batches()` whole reads at a
time, decoded into columns by compiled code. Credit is granted as messages are consumed, so a slow
consumer slows down only itself. A gap in a link's numbers always raises an error; what came
before it is handed out first. A connection that is lost comes back, and the stream goes on behind
the last message (`upstream`, `resume_state`).

Quality messages stand in the stream where they belong. As each is handed out, `quality` is set to
it for its service, and `on_quality` is called with it. With `snapshot=True` the stream begins
with a snapshot block of each service.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import EllipsisType
from typing import Any, Self

import msgspec

from feedhandler.amqp.identity import Identity, Login
from feedhandler.amqp.request import CREDIT, Request, parse_endpoint
from feedhandler.amqp.subscribing.attachment import Intake
from feedhandler.amqp.subscribing.columns import Batch, Workspace, pack
from feedhandler.amqp.subscribing.fast_dispatch import FastDispatch
from feedhandler.amqp.subscribing.inbox import Message
from feedhandler.amqp.subscribing.multi_source import MultiSource
from feedhandler.amqp.subscribing.resume_state import RESUME
from feedhandler.amqp.subscribing.upstream import ConnectionEvent, Reconnection, State, Upstream
from feedhandler.codecs import PeerError, UsageError, load_feed
from feedhandler.retrans.quality import Quality

#: States, the best first.
_STATES = (State.UP, State.CONNECTING, State.WAITING, State.CLOSED)


_ANEW = "subscribe anew, and leave the former one when that has begun"


class Subscriber:
    """One subscription's messages; an asynchronous context manager and iterator.

    Raises UsageError for invalid arguments, PeerError where the node cannot be reached at the
    start, refuses the address, or sends something invalid; without `reconnect` also where the
    connection or the link ends.

    `quality` has, by service, the latest quality message handed out; `state` is that of the
    connection. To be used on the event loop's thread.
    """

    def __init__(
        self,
        urls: Sequence[str],
        request: Request,
        *,
        feed: Any = None,
        credit: int | None = None,
        on_quality: Callable[[Quality], object] | None = None,
        on_connection: Callable[[ConnectionEvent], object] | None = None,
        how: Reconnection,
        login: Login | None = None,
    ) -> None:
        request.check()
        self._identities = [Identity(parse_endpoint(url), login) for url in urls]
        self.urls = tuple(identity.endpoint.shown for identity in self._identities)
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise UsageError("subscribe to one gateway, or to several different ones")
        self.request = request.of_several() if len(self.urls) > 1 else request
        self.grain = request.grain
        self.feed = load_feed(feed) if isinstance(feed, str) else feed
        self.credit = credit or CREDIT[request.grain]
        self.quality: dict[int, Quality] = {}
        self.on_quality = on_quality
        self.on_connection = on_connection
        self.how = how
        self._ready: deque[Message] = deque()
        #: By feed number, what decoded messages have said of symbols: names and price scales.
        #: Of normalised records the symbols of instruments, by feed number and service.
        self.references: dict[Any, Any] = {}
        self._workspace = Workspace(self.references)
        self._error: Exception | None = None
        self._ended = False
        self._waiting: list[asyncio.Future[None]] = []
        #: Whether an upstream waits for the consumer to take what is unread.
        self._crowded = False
        self._callback: Callable[[Batch], object] | None = None
        self._fast_dispatch: FastDispatch | None = None
        self._upstreams: list[Upstream] = []
        #: The only one; of several, any.
        self._upstream: Upstream
        self._multi_source: MultiSource | None = None
        self._changing = 0
        self._loop: asyncio.AbstractEventLoop

    @property
    def state(self) -> State:
        """State of the connection: UP: attached; WAITING, CONNECTING: coming back; CLOSED: ended.
        Of several gateways, the best one's."""
        return min((x.state for x in self._upstreams), key=_STATES.index, default=State.CLOSED)

    @property
    def states(self) -> dict[str, State]:
        """State of each gateway's connection, by URL."""
        return {x.url: x.state for x in self._upstreams}

    @property
    def reconnects(self) -> int:
        """Return how often a connection was lost and came back."""
        return sum(max(0, x.connects - 1) for x in self._upstreams)

    # -- connecting and leaving -------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        merged = len(self.urls) > 1
        if merged:
            self._multi_source = MultiSource(self.grain, self.request.snapshot, self._woken)
        self._upstreams = [
            Upstream(
                identity,
                self.request,
                feed=self.feed,
                references=self.references,
                credit=self.credit,
                how=self.how,
                owner=self,
                merged=merged,
            )
            for identity in self._identities
        ]
        self._upstream = self._upstreams[0]
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def _start(self) -> None:
        """Attach to all gateways; of several, one is enough. Raises PeerError where none can be
        reached."""
        if self._multi_source is None:
            await self._upstream.start()
            return
        wait = self.how.reconnect
        starts = (x.start(wait=wait) for x in self._upstreams)
        for failure in await asyncio.gather(*starts, return_exceptions=True):
            if failure is not None:
                raise failure
        if not any(x.connects for x in self._upstreams):
            reasons = "; ".join(f"{x.url}: {x.reason}" for x in self._upstreams)
            raise PeerError(f"none of the gateways can be had: {reasons}", "is one running?")

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Detach and disconnect; messages not consumed yet are dropped."""
        await asyncio.gather(*(x.close() for x in self._upstreams))
        if self._multi_source is not None:
            self._multi_source.close()
        self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        """End the stream; what was received may still be consumed."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._notify()

    def _fail(self, error: Exception) -> None:
        """End the stream with this error, in place of any other, and stop reconnecting."""
        self._finish(error)
        self._error = error
        for upstream in self._upstreams:
            self._loop.create_task(upstream.stop_trying())

    # -- as the upstream's owner ------------------------------------------------------------

    def arrived(self, intake: Intake) -> None:
        """Hand messages that wait on the link to the callback, or wake the consumer."""
        if self._callback is None:
            self._notify()
        elif self._multi_source is not None or self._upstream.overlap is not None:
            self._woken()
        elif intake is self._upstream.intake:
            self._call_back(intake)

    def _woken(self) -> None:
        """Hand what several links have brought to the callback, or wake the consumer."""
        if self._callback is None:
            self._notify()
            return
        try:
            self._fill()
            self._deliver_ready(self._callback)
        except Exception as error:  # raised where `deliver` waits
            self._fail(error)

    def lost(self, upstream: Upstream, intake: Intake) -> None:
        """Take what a link holds that has ended."""
        if self._multi_source is not None:
            link = self._upstreams.index(upstream)
            self._multi_source.down(link, self._read_messages(intake) if intake.link.count else [])
            self._woken()
        elif upstream.overlap is not None:
            self._fill()
            self._woken()
        elif self._callback is not None:
            self._call_back(intake)
        elif intake.link.count and not self._ended:
            self._ready.extend(self._read_messages(intake))
            self._notify()

    def changed(self, upstream: Upstream, event: ConnectionEvent) -> None:
        """Record that a gateway was attached or lost, and call `on_connection`."""
        if event.connected and self._multi_source is not None:
            link = self._upstreams.index(upstream)
            self._multi_source.up(link, upstream.intake, bool(event.resumed))
            self._woken()
        self._notify()
        if self.on_connection is not None:
            try:
                self.on_connection(event)
            except Exception as error:  # raised where the stream is consumed
                self._fail(error)

    def ended(self, upstream: Upstream, error: Exception | None) -> None:
        """End the stream where this was the last gateway that could come back."""
        if all(x.state is State.CLOSED for x in self._upstreams):
            self._finish(error)

    async def ready_to_attach(self) -> None:
        """Wait while more is unread than one connection may bring."""
        while len(self._ready) > self.credit and not (self._ended or self._changing):
            self._crowded = True
            await self._wait()

    def _make_way(self) -> None:
        """Wake the upstreams that wait to attach, once no more is unread than they wait for."""
        if len(self._ready) <= self.credit:
            self._crowded = False
            self._notify()

    def tags(self, upstream: Upstream) -> dict[int, bytes]:
        """Return the last tag read of each service; none where another gateway goes on with the
        stream."""
        if self._multi_source is None:
            return upstream.tags
        others = (x for x in self._upstreams if x is not upstream)
        return {} if any(x.state is State.UP for x in others) else self._multi_source.tags()

    # -- another subscription ---------------------------------------------------------------

    async def change(
        self, *patterns: str, types: Iterable[int | str] | EllipsisType | None = ...
    ) -> None:
        """Change to other patterns and message types; `patterns` or `types` left out stay as they
        are, and `types=None` are all. Returns once the gateway has accepted it.

        What is in both subscriptions goes on without a gap and comes once; what is new begins at
        one position of each service, a round trip later at most if the consumer keeps up, and what
        is no longer wanted ends there.

        Raises PeerError where the gateway refuses, or is gone for good: then the stream goes on as
        it was, or has ended. Raises UsageError where the subscription is to several gateways.
        """
        if self._multi_source is not None:
            raise UsageError(
                "a subscription to several gateways cannot be changed",
                _ANEW,
            )
        if self.request.holds_records:
            raise UsageError("a subscription to normalised records cannot be changed", _ANEW)
        if any("?" in pattern for pattern in patterns[1:]) or "?" in "".join(patterns[:-1]):
            raise UsageError("a pattern with options stands alone")
        asked: dict[str, Any] = {}
        if patterns:
            asked["pattern"] = ",".join(patterns)
        if not isinstance(types, EllipsisType):
            asked["types"] = None if types is None else tuple(types)
        if not asked:
            raise UsageError("change to what?", "name patterns, or types=")
        self._changing += 1
        self._notify()
        try:
            async with self._turn:
                await self._finish_change()
                request = msgspec.structs.replace(self.request, **asked)
                await self._upstream.change(request)
                self.request = request
        finally:
            self._changing -= 1

    async def _finish_change(self) -> None:
        """Wait until the change before this one is complete, even where no task consumes."""
        while self._upstream.overlap is not None and not self._ended:
            if self._callback is None and self._fill():
                continue
            await self._wait()

    # -- consuming --------------------------------------------------------------------------

    def _call_back(self, intake: Intake) -> None:
        """Hand what an intake holds to the callback."""
        fast = self._fast_dispatch
        if fast is None or fast.link is not intake.link or fast.callback is not self._callback:
            fast = self._new_fast_dispatch(intake)
        try:
            if not fast.dispatch():
                self._call_back_parts(intake, fast)
        except Exception as error:  # raised where `deliver` waits
            self._fail(error)

    def _new_fast_dispatch(self, intake: Intake) -> FastDispatch:
        """Make a `FastDispatch` for another link than before, or another callback."""
        assert self._callback is not None
        self._fast_dispatch = FastDispatch(
            intake, self._callback, self.feed, self.grain, self._workspace
        )
        return self._fast_dispatch

    def _call_back_parts(self, intake: Intake, fast: FastDispatch) -> None:
        """Hand an intake's messages to the callback where quality messages, or the border of a
        snapshot block, are among them."""
        assert fast.batch is not None
        count = intake.link.count
        for batch in self._parts(intake, fast.batch, fast.filled):
            self._note_all(batch.notes)
            fast.callback(batch)
        fast.return_credit()
        intake.grant(count)

    def _pull(self) -> bool:
        """Take what several gateways have brought; return whether there was anything."""
        assert self._multi_source is not None
        if not self._multi_source.waiting:
            return False
        self._ready.extend(self._multi_source.read_links(self._read_messages))
        return True

    def _fill(self) -> bool:
        """Move what has arrived to `_ready`; return whether there was anything."""
        if self._multi_source is not None:
            return self._pull()
        overlap = self._upstream.overlap
        if overlap is not None:
            if not overlap.waiting:
                return False
            self._ready.extend(self._heard(overlap.read_links(self._read)))
            self._upstream.go_on()
            self._notify()
            return True
        intake = self._upstream.intake
        if not (count := intake.link.count):
            return False
        self._ready.extend(self._read_messages(intake))
        intake.grant(count)
        return True

    def _deliver_ready(self, callback: Callable[[Batch], object]) -> None:
        while self._ready:
            batch = self._pack_ready()
            if batch.count or batch.notes:
                callback(batch)

    def _pack_ready(self) -> Batch:
        """Take the next batch of what is unread."""
        batch = pack(self._ready, self.feed, self.grain, self._workspace)
        if self._crowded:
            self._make_way()
        self._note_all(batch.notes)
        return batch

    def _notify(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def _wait(self) -> None:
        """Wait until something was received or the stream has ended."""
        news = self._loop.create_future()
        self._waiting.append(news)
        await news

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        ready = self._ready
        while True:
            while not ready:
                if self._fill():
                    continue
                if self._ended:
                    if self._error is not None:
                        raise self._error
                    raise StopAsyncIteration
                await self._wait()
            message = ready.popleft()
            if self._crowded:
                self._make_way()
            if message.content != "quality" or self._note(message):
                return message

    def _read_messages(self, intake: Intake) -> list[Message]:
        """Read the messages that a link gathered, as they are to be handed out."""
        before = intake.inbox.notes
        found = self._read(intake)
        return self._heard(found) if intake.inbox.notes != before else found

    def _read(self, intake: Intake, first: int = 0) -> list[Message]:
        """Read the messages that a link gathered from the `first` on and empty it; stop at the
        first bad one, which ends the stream."""
        link, inbox = intake.link, intake.inbox
        messages: list[Message] = []
        bounds = memoryview(link.bounds).cast("q")
        try:
            if inbox.failure is None:
                messages = inbox.read(link.arena, bounds[first:], link.count - first)
        finally:
            bounds.release()
            link.clear()
        if inbox.failure is not None:
            self._fail(inbox.failure)
        return messages

    def _heard(self, messages: Iterable[Message]) -> list[Message]:
        """Replace the quality messages among these by the upstream's own."""
        found: list[Message] = []
        for message in messages:
            if message.content == "quality":
                found.extend(self._upstream.process_quality(message))
            else:
                found.append(message)
        return found

    def _note(self, note: Message) -> bool:
        """Record a quality message and call `on_quality`; return whether it is to be handed out.
        Raises PeerError where it cannot be read."""
        try:
            quality = msgspec.json.decode(note.body, type=Quality)
        except msgspec.DecodeError as error:
            wrong = PeerError(f"a quality message cannot be read: {error}")
            self._ready.clear()
            self._fail(wrong)
            raise wrong from None
        self.quality[quality.service] = quality
        if self.on_quality is not None and (self.request.quality or quality.reason == RESUME):
            self.on_quality(quality)
        return self.request.quality

    def _note_all(self, notes: list[Message]) -> None:
        """Record the quality messages of a batch; leaves in `notes` those to be handed out."""
        notes[:] = [note for note in notes if self._note(note)]

    def _check_packets(self) -> None:
        if self.request.holds_records:
            raise UsageError(
                "normalised records are not read into columns",
                "iterate over the messages: each one's records() is an array",
            )

    async def batches(self) -> AsyncIterator[Batch]:
        """Yield all that arrives, a `Batch` a read: packets one behind the other, ready for
        columns.

        A quality message ends a batch early and comes with the following one, whose data it
        precedes. So no batch has packets of a snapshot block and live ones. Leaving the loop loses
        nothing: the next loop, or `deliver`, or single messages, begin with what is left. Raises
        what ended the stream, and UsageError for normalised records, which are arrays already.
        """
        self._check_packets()
        while True:
            while self._ready:
                batch = self._pack_ready()
                if batch.count or batch.notes:
                    yield batch
            if self._multi_source is not None or self._upstream.overlap is not None:
                if self._fill():
                    continue
            elif count := self._upstream.intake.link.count:
                intake = self._upstream.intake
                batch = self._gather(intake)
                intake.grant(count)
                if batch.count:
                    yield batch
                continue
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            else:
                await self._wait()

    async def deliver(self, callback: Callable[[Batch], object]) -> None:
        """Call `callback` with each batch, straight from the read that brought it.

        The shortest way from the socket to the caller: no task has to be woken in between. Returns
        when the stream has ended; raises what ended it, the callback's own exception included. The
        callback runs on the event loop's thread and must be quick. Raises UsageError for normalised
        records, which are arrays already.
        """
        self._check_packets()
        self._deliver_ready(callback)
        self._callback = callback
        try:
            self._call_back_all()
            while not self._ended:
                await self._wait()
            self._call_back_all()
            if self._error is not None:
                raise self._error
        finally:
            self._callback = self._fast_dispatch = None

    def _call_back_all(self) -> None:
        """Hand what waits on the links to the callback."""
        if self._multi_source is not None or self._upstream.overlap is not None:
            self._woken()
        elif self._upstream.intake.link.count:
            self._call_back(self._upstream.intake)

    def _gather(self, intake: Intake) -> Batch:
        """Take what a link holds as a batch, almost always all of it; the rest goes to `_ready`."""
        batch = Batch(self.feed, self.grain, None, self._workspace)
        taken = batch.fill(intake.inbox, intake.link, 0, intake.link.count)
        if taken == intake.link.count:
            intake.link.clear()
        else:
            self._ready.extend(self._heard(self._read(intake, taken)))
        return batch

    def _parts(self, intake: Intake, batch: Batch, taken: int) -> list[Batch]:
        """Take what a link holds as batches; `batch` has the first `taken` of its messages."""
        try:
            if taken == intake.link.count:
                return [batch]
            parts = self._gather_the_rest(intake, [batch] if taken else [], taken)
        finally:
            intake.link.clear()
        if intake.inbox.failure is not None:
            self._fail(intake.inbox.failure)
        return parts

    def _gather_the_rest(self, intake: Intake, found: list[Batch], at: int) -> list[Batch]:
        """Take the rest of what the link holds, from message `at` on, until the inbox fails: a
        quality message goes with what follows it."""
        link, inbox = intake.link, intake.inbox
        end = link.count
        bounds = memoryview(link.bounds).cast("q")
        try:
            while at < end and inbox.failure is None:
                quality: list[Message] = []
                while at < end and (note := inbox.quality_at(link.arena, bounds, at)):
                    quality.append(note)
                    at += 1
                batch = Batch(self.feed, self.grain, self._heard(quality), self._workspace)
                if at < end and inbox.failure is None:
                    at += batch.fill(inbox, link, at, end)
                if quality or batch.count:
                    found.append(batch)
            return found
        finally:
            bounds.release()


def subscribe(
    url: str | Sequence[str],
    pattern: str,
    *,
    as_: str = "packet",
    types: Iterable[int | str] | None = None,
    quality: bool = True,
    stamp: bool = False,
    snapshot: bool = False,
    full: str | None = None,
    feed: Any = None,
    credit: int | None = None,
    reconnect: bool = True,
    resume: bool = True,
    give_up_seconds: float | None = None,
    on_quality: Callable[[Quality], object] | None = None,
    on_connection: Callable[[ConnectionEvent], object] | None = None,
    login: Login | None = None,
) -> Subscriber:
    """Subscribe to a routing key or pattern of a gateway's embedded node, or of several gateways.

    Several `url`s must serve the same: the subscriber attaches to all of them at once, hands out
    the first copy of everything, and any of them may fail.

    `as_`: `packet`, `batch` or `message`; or normalised records, batches of which the messages'
    `records()` gives as numpy arrays: `mbo`, `bbo`, `mbp10` or `trades`. `types`: market message
    types wanted, all where None. `quality`: with quality messages. `stamp`: with the gateway's
    receive stamps. `snapshot`: with a snapshot of each service soon after the start. `full`: the
    policy where too much waits at the gateway: `detach`, `drop_oldest` or `conflate` (of one
    gateway only); where None one gateway's own, of several `detach`. `feed`: the description (a
    `Feed`, or a name) where it is no built-in one. `credit`: messages in flight at most. `login`:
    our credentials and whom we trust, beside what the URL says; amqps:// uses TLS.

    `reconnect`: come back after a lost connection, for `give_up_seconds` at most (None: for ever).
    `resume`: go on behind the last message, where the gateway still has what came since; where it
    has not, a quality message with reason `resume` says what is lost.

    `on_quality`: called with each quality message, at its position in the stream. `on_connection`:
    called with each `ConnectionEvent`, when it happens.
    """
    request = Request(
        pattern=pattern,
        grain=as_,
        types=None if types is None else tuple(types),
        quality=quality,
        stamp=stamp,
        snapshot=snapshot,
        full=full,
    )
    return Subscriber(
        (url,) if isinstance(url, str) else tuple(url),
        request,
        feed=feed,
        credit=credit,
        on_quality=on_quality,
        on_connection=on_connection,
        how=Reconnection(reconnect=reconnect, resume=resume, give_up_seconds=give_up_seconds),
        login=login,
    )
