"""A broker that the gateway publishes to: the connection around a `Destination`.

What it is for: one `Publisher` for each `[[publish]]` table. It connects, finds out the kind of
broker, checks that the exchange has bindings where the broker would accept and drop what it cannot
route, attaches a link, and keeps all that up: after a lost connection it waits (doubling,
jittered), connects again, and everything unconfirmed is sent again in order, with the same
message-ids. The outcome of each message goes to the window, and a failure to the operator.

    WAITING     between two tries
    CONNECTING  the socket, then TLS, log-in and open
    ASKING      the management API is asked whether the exchange has bindings
    ATTACHING   the link is offered
    UP          publishing
    CLOSED      stopped, or not started yet

What it promises: no call blocks, and nothing that the broker does or fails to do slows the feed;
the destination is part of the fan-out from the start, so that what is published meanwhile waits
within its bound; no text contains a password.

What it leaves to others: what waits and what is unconfirmed (`destination`, `unsettled_map`), what
kinds of brokers there are (`brokers`).
"""

import asyncio
import contextlib
import os
import socket
import time
import zlib
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from feedhandler.amqp import brokers, conditions, proton
from feedhandler.amqp.fanout import Fanout
from feedhandler.amqp.identity import refusal
from feedhandler.amqp.policies import JOURNAL
from feedhandler.amqp.publishing.destination import Destination
from feedhandler.amqp.publishing.envelope import Envelope
from feedhandler.amqp.publishing.rabbitmq_management import Management
from feedhandler.amqp.publishing.snapshot import snapshot_of
from feedhandler.amqp.publishing.spill_destination import SpillDestination
from feedhandler.amqp.queueing.stopwatch import Stopwatch
from feedhandler.amqp.queueing.unsettled_map import Outcome
from feedhandler.amqp.routing import AddressError, parse_address
from feedhandler.amqp.security import ClientTls, TlsSession
from feedhandler.amqp.sender_queue import Peer
from feedhandler.amqp.serving.listener import SEND_BUFFER_BYTES
from feedhandler.amqp.serving.node import TICK_SECONDS
from feedhandler.codecs.errors import ConfigError
from feedhandler.config.publishing import PublishConfig
from feedhandler.retrans.backoff import Backoff
from feedhandler.retrans.quality import QualityState

if TYPE_CHECKING:
    from feedhandler.amqp.publishing.spill_runner import SpillRunner

#: First and longest wait of a message that the broker gave back.
RETRY_US = 50_000
RETRY_MOST_US = 2_000_000
#: A connection that lasted this long was a good one: the next wait is the first again.
GOOD_SECONDS = 5.0
#: Interval at which `stop` checks the backlog.
STOP_LOOK_SECONDS = 0.005
#: With a journal, what waits need not be sent now: it is there at the next start.
JOURNAL_STOP_SECONDS = 1.0
#: Characters of a broker's text in a line to the operator.
WORDS_CHARS_MAX = 200

OUTCOMES = {
    proton.RELEASED: Outcome.RELEASED,
    proton.REJECTED: Outcome.REJECTED,
    proton.MODIFIED: Outcome.MODIFIED,
    proton.UNDELIVERABLE: Outcome.UNDELIVERABLE,
}


class State(Enum):
    """State of the connection to a broker; the module says what each means."""

    WAITING = "WAITING"
    CONNECTING = "CONNECTING"
    ASKING = "ASKING"
    ATTACHING = "ATTACHING"
    UP = "UP"
    CLOSED = "CLOSED"


class Publisher(Peer):
    """One destination and its connection; used on the event loop's thread. `report` gets lines for
    the operator.

    Raises ConfigError for a password that is not there, or types that the feed does not have.
    """

    def __init__(
        self,
        config: PublishConfig,
        fanout: Fanout,
        message_type: Callable[[str], int],
        container: str,
        report: Callable[[str], None],
    ) -> None:
        super().__init__(fanout.dirty_peers)
        self.config = config
        self.broker_address = config.resolved()
        self._tls: ClientTls | None = None
        if self.broker_address.encrypted:
            where = f"publish {config.name!r}: "
            self._tls = ClientTls(config.ca, config.certificate, config.key, where)
        self._session: TlsSession | None = None
        self.state = State.CLOSED
        self.reason = ""
        self.broker = ""
        self.connects = self.failures = self.detached = 0
        self.spill_runner: "SpillRunner | None" = None
        self.destination = self._destination(fanout, message_type)
        self._fanout = fanout
        self._container = container
        self._report = report
        self._sock: socket.socket | None = None
        self._offered: proton.PublisherLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[str] | None = None
        self._batch_timer: asyncio.TimerHandle | None = None
        self._probe: Any = None
        self._up_ns = self._confirmed_before = 0
        self._reported_down = self._reported_overflow = self._reported_abandoned = False
        self._tries = 0
        self.kind: str = "" if config.kind == "auto" else config.kind
        self._way = brokers.Way()
        self.down_time = Stopwatch()
        self._moved = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        seed = zlib.crc32(f"{container}/{config.name}".encode())
        self._backoff = Backoff(config.reconnect_us, config.reconnect_max_us, seed)

    def _destination(self, fanout: Fanout, message_type: Callable[[str], int]) -> Destination:
        config = self.config
        try:
            subscription = parse_address(config.address, message_type, records=True)
        except AddressError as error:
            raise ConfigError(
                f"publish {config.name!r}: {error.message}", "see docs/addresses.md, Patterns"
            ) from None
        given = (
            self,
            subscription,
            fanout.streams,
            config.window,
            config.queue_bytes,
            config.batch_max_bytes,
            Backoff(RETRY_US, RETRY_MOST_US, zlib.crc32(config.name.encode())).delay_ns,
            time.monotonic_ns,
            self._on_batch if config.batch_max_us else None,
        )
        if config.when_full != JOURNAL:
            return Destination(*given, config.when_full)
        # Imported here: a gateway without a journal does not load its modules.
        from feedhandler.amqp.publishing.spill_runner import SpillRunner

        runner = self.spill_runner = SpillRunner(config, self._say, self.work)
        runner.destination = SpillDestination(
            *given, runner.spill, time.time_ns, runner.schedule_job
        )
        return runner.destination

    # -- beginning and end ------------------------------------------------------------------

    def start(self, qualities: list[QualityState]) -> None:
        """Join the fan-out, and connect; to be called within a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._fanout.add(self.destination)
        self.down_time.set(True, time.monotonic_ns())
        for stream in self._fanout.streams:
            if self.destination in stream.concerned:
                body = qualities[stream.index].attached(stream.next_sequence or None)
                self._fanout.quality(stream, body, [self.destination])
        self._task = self._loop.create_task(self._run())

    async def stop(self, seconds: float) -> None:
        """Send what waits and await its confirmation, for at most `seconds`; then close.

        A connection that is down is waited for, too, unless there never was one.
        """
        task, self._task = self._task, None
        if task is None:
            if self.spill_runner is not None:
                await self.spill_runner.close()
            return
        if self.spill_runner is not None:
            seconds = min(seconds, JOURNAL_STOP_SECONDS)
        deadline = self._loop.time() + seconds
        self.destination.flush_batches()
        while self.connects and self._unfinished() and self._loop.time() < deadline:
            self.work()
            await asyncio.sleep(STOP_LOOK_SECONDS)
        if self._unfinished() and self.spill_runner is None:
            self._say(f"{self._unfinished()} messages were not confirmed when the gateway ended")
        if self._sock is not None and self.engine is not None:
            self.engine.close()
            self.engine.flush()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._disconnect()
        self._fanout.remove(self.destination)
        if self.spill_runner is not None:
            await self.spill_runner.close()
        self.state = State.CLOSED
        self.down_time.set(False, time.monotonic_ns())
        if self._batch_timer is not None:
            self._batch_timer.cancel()

    def _unfinished(self) -> int:
        """Count the messages that wait or are not confirmed."""
        destination = self.destination
        return len(destination.unsettled.held) + len(destination.queue)

    # -- keeping it up ----------------------------------------------------------------------

    async def _run(self) -> None:
        """Connect, serve, wait, for ever; ended by `stop`."""
        while True:
            began = self._loop.time()
            hostname = self._hostname()
            try:
                reason = await self._serve_once()
            except Exception as error:  # whatever it is: messages go on to wait for the broker
                reason = f"internal error: {type(error).__name__}: {error}"
            self._disconnect()
            if self.state is State.CONNECTING and self._hostname() != hostname:
                continue  # its kind is known now: connect again with the hostname that it wants
            self.failures += 1
            self.state, self.reason = State.WAITING, reason
            if not self._reported_down:
                self._reported_down = True
                self._say(f"not connected to {self.broker_address.shown}: {reason}; trying again")
            self._tries = 1 if self._loop.time() - began > GOOD_SECONDS else self._tries + 1
            await asyncio.sleep(self._backoff.delay_ns(self._tries) / 1e9)

    async def _serve_once(self) -> str:
        """Serve one connection from its first packet to its end; return why it ended."""
        self._ended = self._loop.create_future()
        self._moved.clear()
        self.state = State.CONNECTING
        try:
            async with asyncio.timeout(self.config.connect_timeout_us / 1e6):
                await self._connect()
                while self.state is not State.UP and not self._ended.done():
                    await self._next_step()
        except TimeoutError:
            if self._session is not None and not self._session.ready:
                return "no answer to TLS in time (is it the port for amqps?)"
            return "no answer in time"
        except OSError as error:
            if error.errno is None or isinstance(error, socket.gaierror):
                return error.strerror or str(error)
            return os.strerror(error.errno).lower()  # asyncio's own text repeats the address
        if not self._ended.done():
            self.connects += 1
            self._up_ns = time.monotonic_ns()
            self._confirmed_before = self.destination.unsettled.confirmed
            if not self._reported_down:
                self._report_up()
        return await self._ended

    async def _connect(self) -> None:
        """Connect the socket and begin the AMQP connection. Raises OSError."""
        address = self.broker_address
        sock = self._sock = await self._open_socket()
        self.gone = False
        self._session = None if self._tls is None else self._tls.session(address.host)
        self.engine = proton.Connection(
            sock.fileno(),
            server=False,
            container=self._container,
            hostname=self._hostname(),
            max_frame_bytes=self.config.max_frame_bytes,
            idle_timeout_ms=self.config.idle_timeout_ms,
            user=address.user,
            password=address.password,
            external=bool(self.config.certificate) and not address.user,
            tls=self._session,
        )
        self._loop.add_reader(sock.fileno(), self._on_readable)
        self.work()

    async def _open_socket(self) -> socket.socket:
        """Connect to the first of the host's addresses that answers, each within its share of the
        time. Raises OSError where none does."""
        host, port = self.broker_address.host, self.broker_address.port
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        share_s = self.config.connect_timeout_us / 1e6 / len(found)
        failure: OSError = TimeoutError()
        for family, kind, protocol, _, socket_address in found:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                async with asyncio.timeout(share_s):
                    await self._loop.sock_connect(sock, socket_address)
                return sock
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure

    def _hostname(self) -> str:
        """Return the hostname to open the connection with, as far as the kind of broker is
        known."""
        return brokers.hostname_of(self.kind, self.broker_address.host, self.broker_address.vhost)

    async def _next_step(self) -> None:
        """Wait for the broker's answer; check the route and attach once its kind is known."""
        await self._moved.wait()
        self._moved.clear()
        if self.state is State.ASKING:
            reason = await self._route_problem()
            if reason is not None:
                self._end(reason)
            elif not self.gone:
                self._attach()

    def _on_open(self) -> None:
        """Process the broker's open: find out its kind, and whether it has what is configured."""
        assert self.engine is not None
        properties = self.engine.remote_properties
        self.broker = brokers.product_of(properties)
        config = self.config
        kind: str | None = config.kind
        if kind == "auto":
            kind = brokers.kind_of(properties)
        if kind is None:
            self._end(f"{self.broker} is of no kind that is known; set `kind`")
            return
        if wrong := brokers.unlike(kind, config.form):
            self._end(f"{self.broker}: {wrong[0]}; write {wrong[1]}")
            return
        hostname, self.kind = self._hostname(), kind
        if self._hostname() != hostname:
            self._end("its virtual hosts are asked for in another way")
            return
        self._way = brokers.way_to(kind, config.form, config.goal, config.declare)
        self.state = State.ASKING
        self._moved.set()

    async def _route_problem(self) -> str | None:
        """Return why messages may be dropped unrouted; None where they cannot be, or it does not
        matter by configuration."""
        config, address = self.config, self.broker_address
        made = config.form == "queue" and config.declare
        if made or not config.require_route or not brokers.hides_unroutable(self.kind):
            return None
        if not config.management:
            return (
                f"{self.broker} confirms what there is no queue for: set `management`, "
                "or require_route = false"
            )
        tls = None if self._tls is None else self._tls.context
        plugin = Management(config.management, address.vhost, address.user, address.password, tls)
        return await asyncio.to_thread(plugin.problem, config.form, config.goal)

    def _attach(self) -> None:
        """Offer the link; before it, where the broker needs that, one that probes the exchange."""
        assert self.engine is not None
        self.state = State.ATTACHING
        way = self._way
        name = f"{self._container}/{self.config.name}"
        if way.probe and self._probe is None:
            self._probe = self._offered = self.engine.publisher(f"{name}/probe", way.probe)
        else:
            self._offered = self.engine.publisher(
                name, way.address, way.capability, way.durable, way.outcomes
            )
        self.work()

    def _on_attached(self, link: Any) -> None:
        """Process the answer to an attach; one without a target is about to be refused."""
        wants = link is self._probe or self._way.address
        if not link.target_given or (wants and not link.target_address):
            return
        config = self.config
        if link is self._probe:
            link.close()
            self._attach()
        elif config.require_route and brokers.drops_unroutable(link.target_capabilities):
            self._end(
                f"exchange {config.goal!r} confirms what no queue is bound for: set its "
                "unroutableMessageBehaviour to REJECT, or require_route = false"
            )
        else:
            self.state = State.UP
            self.down_time.set(False, time.monotonic_ns())
            self._moved.set()
            self.destination.connect(link, Envelope(self._way.annotations, self._way.to))

    def _end(self, reason: str) -> None:
        """End the connection for this reason."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(reason)
            self._moved.set()
        self._release()

    def _release(self) -> None:
        """Close the socket at once: nothing may be read or written on it any more."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        self.gone = True
        self._loop.remove_reader(sock.fileno())
        if self.writing:
            self.writing = False
            self._loop.remove_writer(sock.fileno())
        sock.close()

    def _disconnect(self) -> None:
        """Clean up after a connection's end: settle what was confirmed, keep the rest to be sent
        again."""
        self._release()
        self._settle()
        self._probe = None
        self.destination.disconnect()
        self.down_time.set(True, time.monotonic_ns())
        if self.engine is not None:
            for link in list(self.engine.links.values()):
                link.release()
        self._offered = None
        self.engine = None  # type: ignore[assignment]

    # -- from the event loop ----------------------------------------------------------------

    def _on_readable(self) -> None:
        assert self.engine is not None
        ended = self.engine.receive() < 0
        self.work()
        if ended:
            self._end(self._why())

    def attend(self) -> None:
        """Do what a turn of the fan-out left to do, besides writing while the socket is full."""
        if self.overruns:
            self._detach()
        if self.writing:
            self.dirty = False
        else:
            self.work()

    def _detach(self) -> None:
        """Close the link after an overflow by `when_full = "detach"`; it is tried again as after
        any end. What comes until then is dropped, and announced."""
        self.overruns.clear()
        self.detached += 1
        reason = f"more than {self.config.queue_bytes} bytes waited"
        if self.state is not State.UP or self.engine is None or self.gone:
            self._say(f"detached: {reason}")
            return
        self.destination.link.close(conditions.RESOURCE_LIMIT_EXCEEDED, reason)
        self.engine.flush()
        self._end(f"detached: {reason}")

    def work(self) -> None:
        """Act upon the engine's events, send what may be sent, and write, until nothing is new."""
        while True:
            self.dirty = False
            if self.gone or self.engine is None:
                return
            for kind, link in self.engine.events():
                self._handle(kind, link)
            if self.gone:
                return
            self._settle()
            self.destination.drain()
            if self.overruns:
                self._detach()
                return
            state = self.engine.flush()
            if state < 0:
                self._end(self._why())
                return
            if state > 0:
                if not self.writing and self._sock is not None:
                    self.writing = True
                    self._loop.add_writer(self._sock.fileno(), self.work)
                return
            if self.writing and self._sock is not None:
                self.writing = False
                self._loop.remove_writer(self._sock.fileno())
            if not self.dirty:
                return

    def tick(self, now_ms: int) -> None:
        """Let the engine see the time, in ms, and send again what has waited after it came back."""
        if self.engine is not None and not self.gone:
            self.engine.tick(now_ms)
            self.destination.unsettled.due(time.monotonic_ns())
            self.work()
            self._watch_confirmations()
        if self.overruns:
            self._detach()
        self._report_overflow()

    def _watch_confirmations(self) -> None:
        """End a connection whose oldest message has waited too long for an outcome, so that it is
        sent again over a new one; report a connection that confirms."""
        if self.state is not State.UP:
            return
        now_ns, unsettled = time.monotonic_ns(), self.destination.unsettled
        oldest_ns, timeout_us = unsettled.oldest_ns, self.config.confirm_timeout_us
        if timeout_us and oldest_ns is not None and now_ns - oldest_ns > 1000 * timeout_us:
            self._end(f"nothing was said of a message for {timeout_us / 1e6:g} s")
        elif self._reported_down and (
            unsettled.confirmed > self._confirmed_before
            or now_ns - self._up_ns > 1e9 * GOOD_SECONDS
        ):
            self._report_up()

    def _handle(self, kind: int, link: Any) -> None:
        """Act upon one event. Ignores repeated events and those of other links; refuses links of
        the broker's own."""
        assert self.engine is not None
        ours = link is not None and link is self._offered
        if kind == proton.CONNECTION_REMOTE_OPEN:
            if self.state is State.CONNECTING:
                self._on_open()
        elif kind == proton.CONNECTION_REMOTE_CLOSE:
            self._end(_words(self.engine.remote_condition) or "closed by the broker")
        elif not ours:
            if kind == proton.LINK_REMOTE_OPEN and link is not None:
                link.refuse(conditions.NOT_ALLOWED, "the gateway takes no links")
        elif kind == proton.LINK_REMOTE_OPEN:
            if self.state is State.ATTACHING:
                self._on_attached(link)
        elif kind in (proton.LINK_REMOTE_CLOSE, proton.LINK_REMOTE_DETACH):
            words = link.remote_condition
            self._settle()
            self._end(_words(words) or _words(self.engine.session_condition) or "link closed")

    def _why(self) -> str:
        """Return why the connection broke."""
        assert self.engine is not None
        if self._session is not None and self._session.fault is not None:
            fault = self._session.fault
            return f"no TLS: {fault.reason}" + (f" ({fault.remedy})" if fault.remedy else "")
        condition = self.engine.transport_condition
        refused = refusal(*condition, self.broker_address.user, self.broker_address.encrypted)
        if refused is not None:
            return f"{refused.reason} ({refused.remedy})"
        return (
            _words(self.engine.remote_condition)
            or _words(self.engine.transport_condition)
            or "the connection broke off"
        )

    # -- what the broker says of messages ---------------------------------------------------

    def _settle(self) -> None:
        """Process outcomes: confirmed, to be sent again, or abandoned."""
        destination = self.destination
        destination.process_outcomes()
        link = destination.link
        if not link.returned:
            return
        now_ns = time.monotonic_ns()
        for number, answer, words in link.returned:
            outcome = OUTCOMES.get(answer, Outcome.UNTOLD)
            outgoing = destination.unsettled.come_back(number, outcome, now_ns)
            if outgoing is not None:
                destination.abandon(outgoing)
                self._report_abandoned(outcome, words)
        link.returned.clear()

    def _report_abandoned(self, outcome: Outcome, words: str) -> None:
        """Report the first message that is given up; `abandoned` counts them all."""
        if self._reported_abandoned:
            return
        self._reported_abandoned = True
        said = f", {words[:WORDS_CHARS_MAX]}" if words else ""
        self._say(
            f"a message is given up, the broker did not take it ({outcome.name.lower()}{said}); "
            "`abandoned` counts the others"
        )

    def _report_overflow(self) -> None:
        """Report an overflow once for each time that the queue is full."""
        full = self.destination.overflowing
        if full and not self._reported_overflow:
            what = "all" if self.destination.given_up else "the oldest"
            if self.spill_runner is not None and not self.spill_runner.spill.failed:
                self._say("the journal is full, or its disk too slow: new messages are dropped")
            else:
                self._say(f"the broker does not keep up: {what} messages are dropped")
        self._reported_overflow = full

    def _report_up(self) -> None:
        """Report that the broker is being published to."""
        self._reported_down = False
        self._say(f"publishing to {self.broker_address.shown}, {self.broker}")

    def _say(self, text: str) -> None:
        self._report(f"publish {self.config.name}: {text}")

    # -- batches and statistics -------------------------------------------------------------

    def _on_batch(self) -> None:
        """Limit the time for which open batches gather."""
        if self._batch_timer is None:
            delay_s = self.config.batch_max_us / 1e6
            self._batch_timer = self._loop.call_later(delay_s, self._flush)

    def _flush(self) -> None:
        self._batch_timer = None
        self.destination.flush_batches()
        self.work()

    def snapshot(self) -> dict[str, Any]:
        """Return state and counters, for statistics."""
        return snapshot_of(self)


class Publishers:
    """All destinations of one gateway."""

    def __init__(
        self,
        configs: tuple[PublishConfig, ...],
        fanout: Fanout,
        message_type: Callable[[str], int],
        container: str,
        report: Callable[[str], None],
    ) -> None:
        self.all = [
            Publisher(config, fanout, message_type, container, report) for config in configs
        ]
        self._ticker: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Open the journals that there are; before `start`, and before the first packet. Raises
        `FeedhandlerError`."""
        for publisher in self.all:
            if publisher.spill_runner is not None:
                await publisher.spill_runner.open()

    def start(self, qualities: list[QualityState]) -> None:
        """Connect each; to be called within a running event loop."""
        for publisher in self.all:
            publisher.start(qualities)
        if self.all:
            self._tick()

    def _tick(self) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        for publisher in self.all:
            publisher.tick(now_ms)
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    async def stop(self, seconds: float) -> None:
        """Wait for all confirmations, for at most `seconds`; then close."""
        await asyncio.gather(*(publisher.stop(seconds) for publisher in self.all))
        if self._ticker is not None:
            self._ticker.cancel()

    def snapshot(self) -> list[dict[str, Any]]:
        """Return each destination's state and counters."""
        return [publisher.snapshot() for publisher in self.all]


def _words(condition: tuple[str, ...] | None) -> str:
    """Join a condition's name and description on one line."""
    return ": ".join(filter(None, condition or ()))[:WORDS_CHARS_MAX]
