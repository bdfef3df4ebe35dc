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
import contextlib
import socket
import ssl  # noqa: F401  (imported early: uvloop needs it loaded before the loop runs)
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from feedhandler.amqp import proton
from feedhandler.amqp.columns import Batch, Workspace
from feedhandler.amqp.inbox import Inbox, Message
from feedhandler.amqp.quality import Quality
from feedhandler.codecs import PeerError, UsageError, load_feed

DEFAULT_PORT = 5672
#: Messages granted ahead of consumption, by grain: some hundred KB to a few MB on their way.
CREDIT = {"packet": 4096, "message": 16_384, "batch": 64}
#: How long connecting and attaching may take.
CONNECT_SECONDS = 10.0
#: How long the goodbye may take.
CLOSE_SECONDS = 2.0
#: Silence of the node after which it counts as dead; it sends empty frames at half of that.
IDLE_TIMEOUT_MS = 30_000
#: Largest message taken: twice the largest batch that a gateway can be configured to send. The
#: engine keeps a message until its last frame has come, so without a bound it would be the node
#: that decides how much memory that takes.
MESSAGE_BYTES_MAX = 1 << 25
#: Receive buffer asked of the kernel.
RECEIVE_BUFFER_BYTES = 1 << 20


def parse_url(url: str) -> tuple[str, int]:
    """Host and port of an `amqp://host[:port]` URL."""
    try:
        parts = urlsplit(url if "://" in url else f"amqp://{url}")
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL: {error}", "write amqp://host:port") from None
    if parts.scheme != "amqp" or not host or parts.path not in ("", "/"):
        raise UsageError(f"{url!r} is no AMQP URL", "write amqp://host:port")
    return host, port


def build_address(
    pattern: str,
    *,
    grain: str = "packet",
    types: Iterable[int | str] | None = None,
    quality: bool = True,
    stamp: bool = False,
    snapshot: bool = False,
) -> str:
    """The source address that asks for all this."""
    options = []
    if grain != "packet":
        options.append(f"as={grain}")
    if types is not None:
        options.append("types=" + ",".join(str(word) for word in types))
    if not quality:
        options.append("quality=0")
    if stamp:
        options.append("stamp=1")
    if snapshot:
        options.append("snapshot=1")
    if not options:
        return pattern
    return pattern + ("&" if "?" in pattern else "?") + "&".join(options)


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
        self.host, self.port = parse_url(url)
        self.address = address
        self.grain = grain
        self.feed = load_feed(feed) if isinstance(feed, str) else feed
        self.credit = credit or CREDIT[grain]
        self.quality: dict[int, Quality] = {}
        self.on_quality = on_quality
        self.inbox = Inbox(self.feed)
        self._ready: deque[Message] = deque()
        self._workspace = Workspace()
        self._consumed = 0
        self._error: Exception | None = None
        self._ended = False
        self._waiting: list[asyncio.Future[None]] = []
        self._callback: Callable[[Batch], object] | None = None
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._attached: asyncio.Future[None] | None = None
        self._engine: proton.Connection
        self._link: proton.ReceiverLink
        self._writing = False
        self._closing = False

    # -- connecting and leaving -------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect()
        except TimeoutError:
            self._abandon()
            raise PeerError(
                f"{self.url} did not answer within {CONNECT_SECONDS:.0f} s",
                "is it an AMQP 1.0 node?",
            ) from None
        except BaseException:
            self._abandon()
            raise
        return self

    async def _connect(self) -> None:
        try:
            sock = await self._open_socket()
        except OSError as error:
            reason = error.strerror or str(error)
            raise PeerError(
                f"cannot connect to {self.host}:{self.port}: {reason}", "is the gateway running?"
            ) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._engine = proton.Connection(
            sock.fileno(),
            server=False,
            container=f"feedhandler-{uuid.uuid4().hex[:12]}",
            hostname=self.host,
            idle_timeout_ms=IDLE_TIMEOUT_MS,
        )
        self._link = self._engine.receiver(
            "feed",
            self.address,
            settled=True,
            credit=self.credit,
            message_bytes_max=MESSAGE_BYTES_MAX,
        )
        self._attached = self._loop.create_future()
        self._loop.add_reader(sock.fileno(), self._on_readable)
        self._tick()
        self._work()
        await self._attached

    async def _open_socket(self) -> socket.socket:
        """Connect to the first of the host's addresses that answers; OSError where none does."""
        found = await self._loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for place, (family, kind, protocol, _, where) in enumerate(found):
            self._sock = socket.socket(family, kind, protocol)
            self._sock.setblocking(False)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            try:
                await self._loop.sock_connect(self._sock, where)
                break
            except OSError:
                self._sock.close()
                if place == len(found) - 1:
                    self._sock = None
                    raise
        assert self._sock is not None
        return self._sock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Detach and disconnect; messages not consumed yet are dropped."""
        if self._sock is not None and not self._ended:
            self._closing = True
            self._engine.close()
            self._work()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    while not self._ended:
                        await self._wait()
        self._abandon()

    def _abandon(self) -> None:
        """Close the socket, whatever state things are in."""
        self._ended = True
        if self._sock is None:
            return
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._sock = None
        if self._timer is not None:
            self._timer.cancel()

    # -- from the event loop ----------------------------------------------------------------

    def _on_readable(self) -> None:
        said = self._engine.turn()
        # Almost always there are messages and nothing else to do.
        if said != 0 or self._writing or self._ended:
            self._work(self._engine.news)
            if said < 0:
                self._finish(PeerError(f"{self.url} closed the connection"))
        elif self._link.count:
            self._arrived()

    def _tick(self) -> None:
        """Let the engine see the time: a dead node is noticed, our own empty frames go out."""
        self._engine.tick(time.monotonic_ns() // 1_000_000)
        self._timer = self._loop.call_later(1.0, self._tick)
        self._work()

    def _work(self, news: Sequence[tuple[int, Any]] = ()) -> None:
        """Act upon the engine's events, then write: on every read, or settlements pile up."""
        if self._ended:
            return
        for kind, link in (*news, *self._engine.events()):
            self._handle(kind, link)
        if self._ended:
            return
        state = self._engine.flush()
        assert self._sock is not None
        if state == 1 and not self._writing:
            self._writing = True
            self._loop.add_writer(self._sock.fileno(), self._work)
        elif state == 0 and self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())
        elif state < 0:
            self._finish(self._why())
        if self._link.count:
            self._arrived()

    def _handle(self, kind: int, link: proton.Link | None) -> None:
        assert self._attached is not None
        if kind == proton.LINK_REMOTE_OPEN:
            # A refusal is an attach without a source, followed by a detach that says why.
            if self._link.source_address and not self._attached.done():
                self._attached.set_result(None)
        elif kind in (proton.LINK_REMOTE_CLOSE, proton.LINK_REMOTE_DETACH):
            name, text = self._link.remote_condition
            self._link.close()
            self._finish(PeerError(f"the node ended the link: {text or 'no reason given'}", name))
        elif kind == proton.CONNECTION_REMOTE_CLOSE:
            name, text = self._engine.remote_condition
            self._engine.close()
            self._finish(
                PeerError(f"the node closed the connection: {text}", name) if name else None
            )
        elif kind == proton.TRANSPORT_ERROR:
            self._finish(self._why())
        elif kind == proton.MESSAGE_TOO_LARGE:
            self._link.close("amqp:link:message-size-exceeded", f"at most {MESSAGE_BYTES_MAX}")
            self._finish(PeerError(f"a message of more than {MESSAGE_BYTES_MAX} bytes"))

    def _why(self) -> PeerError | None:
        """Why the transport is over; None where we ourselves said goodbye."""
        name, text = self._engine.transport_condition
        if name:
            return PeerError(f"connection to {self.url} failed: {text}", name)
        return None if self._closing else PeerError(f"{self.url} closed the connection")

    def _finish(self, error: Exception | None) -> None:
        """The stream is over; what was received may still be consumed."""
        if self._ended:
            return
        if self._sock is not None:
            self._engine.flush()
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
        self._ended = True
        self._error = error
        if self._attached is not None and not self._attached.done():
            self._attached.set_exception(error or PeerError(f"{self.url} closed the connection"))
        self._notify()

    def _fail(self, error: Exception) -> None:
        """What was received is at fault: that is why the stream is over, whatever else is."""
        self._finish(error)
        self._error = error

    # -- consuming --------------------------------------------------------------------------

    def _arrived(self) -> None:
        """Messages wait on the link: hand them to the callback, or wake who waits for them."""
        if self._callback is None:
            self._notify()
            return
        count = self._link.count
        try:
            for batch in self._gather():
                self._note_all(batch.notes)
                self._callback(batch)
            self._grant(count)
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

    def _grant(self, consumed: int) -> None:
        """Give credit back for what was consumed, in halves of the window."""
        self._consumed += consumed
        if self._consumed * 2 >= self.credit and not self._ended:
            self._link.flow(self._consumed)
            self._consumed = 0
            self._work()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        ready = self._ready
        while not ready:
            if self._link.count:
                ready.extend(self._take())
                self._grant(len(ready))
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
                self._grant(count)
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
                self._arrived()
            while not self._ended:
                await self._wait()
            if self._link.count:
                self._arrived()
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
