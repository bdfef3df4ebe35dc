"""The gateway: lines in, AMQP out. Wires the parts together and runs them.

The way of a packet: the receive thread (`ingest.receiver`) reads the lines, arbitrates and writes
to the ring; its eventfd wakes the event loop; `Node.pump` takes the records through the fan-out
to the links and writes once a connection. Everything else here is around that: start, control
events and quality, names, statistics, the orderly end.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy
import zmq

from feedhandler.amqp.durable.queues import DurableQueues
from feedhandler.amqp.policies import CONFLATE
from feedhandler.amqp.publishing.publisher import Publishers
from feedhandler.amqp.serving.login import Gate
from feedhandler.amqp.serving.node import Node
from feedhandler.codecs import ConfigError, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.config import Config
from feedhandler.counters import ChannelCounter, LineCounter, as_dict
from feedhandler.gateway.core import GatewayCore
from feedhandler.gateway.io import CoreRunner
from feedhandler.gateway.watch import Watch
from feedhandler.histogram import percentiles_of
from feedhandler.ingest.lines import ChannelPlan
from feedhandler.ingest.receiver import Receiver
from feedhandler.ingest.ring import Ring
from feedhandler.observe.subscriptions import Subscriptions
from feedhandler.operator_log import log_event
from feedhandler.private_files import private_sockets
from feedhandler.recording.recorder import Recorder
from feedhandler.rpc import ControlSocket, kept

if TYPE_CHECKING:
    from feedhandler.ingest.tcp.lines import TcpLines
    from feedhandler.overlay.lines import OverlayLines

#: How long stopping may take: what waits is sent meanwhile, then connections are closed.
STOP_SECONDS = 5.0
#: Longest rest between two hand-overs, however many connections there are.
REST_NS_MAX = 5_000_000
#: Longest time between two checks whether the trading day has changed: the clock may be set.
DAY_CHECK_SECONDS = 1.0
#: The first word of a statistics message.
STATS_TOPIC = b"stats"


class Gateway:
    """A gateway process: `await Gateway(config).run(ready, stop)`.

    Raises ConfigError for a feed, line or address that cannot be had.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.feed = load_feed(config.gateway.feed)
        self.ring = Ring(config.receive.ring_bytes)
        # A new sequence epoch may be a new trading day's, with its tags from the start.
        self.runner = CoreRunner(
            lambda: self.look_at_day(time.time_ns()),
            lambda *event: self.watch.line_changed(*event),
        )
        self.core = GatewayCore(
            config, self.feed, self.ring, self.runner, time.time_ns(), os.getpid()
        )
        self.streams, self.qualities = self.core.streams, self.core.qualities
        self.fanout = self.core.fanout
        self.subscriptions = Subscriptions()
        self.node = Node(
            self.fanout,
            config.amqp,
            self.qualities,
            self.feed.type_code,
            config.gateway.name,
            snapshots=any(channel.refreshes for channel in config.channels),
            pump=self.runner.pump,
            on_attach=self.runner.attached,
            observer=self.subscriptions,
            gate=Gate(config.amqp, partial(log_event, "tls")),
            conflates=self.feed if config.conflates else None,
        )
        self.queues = self.node.queues = DurableQueues(
            tuple(queue.resolved(self.core.day.trading_day) for queue in config.queues),
            self.node.flush,
            config.amqp.queues_folder,
        )
        self.publishers = self._publishers()
        self.overlay = self._overlay()
        plans = self.core.plans if self.overlay is None else self.overlay.plans
        self.tcp_lines = self._tcp_lines(plans)
        plans = plans if self.tcp_lines is None else self.tcp_lines.plans
        self.recorder = self._recorder(plans)
        self.receiver = self._receiver(plans)
        self._record_published()
        self.watch = Watch(self)
        self.control = ControlSocket(
            config.control.bind,
            {
                "status": kept(partial(self.snapshot, "control")),
                "health": kept(self.watch.health),
                "resume-requests": self._resume_requests,
            },
        )
        self.runner.bind(self.core, self.node, self.receiver)
        self._stop = asyncio.Event()
        self._coalesce_ns = config.gateway.coalesce_us * 1000
        self._loop: asyncio.AbstractEventLoop
        self._failure: BaseException | None = None
        # Each reader of snapshots has its own window for percentiles.
        self._latencies = {
            reader: [stream.latency.counts() for stream in self.streams]
            for reader in ("stats", "control")
        }

    def _overlay(self) -> "OverlayLines | None":
        """Make the receivers of lines that come through the overlay, where there are any."""
        if not self.config.overlay_lines:
            return None
        from feedhandler.overlay.lines import OverlayLines

        _processor("overlay.cpu", self.config.overlay.cpu)
        buffer_bytes = self.config.receive.socket_buffer_bytes
        return OverlayLines(self.core.plans, self.config.overlay, buffer_bytes, self._fail_soon)

    def _tcp_lines(self, plans: list[ChannelPlan]) -> "TcpLines | None":
        """Make the connections of lines that come by TCP, where there are any."""
        if not self.config.tcp_lines:
            return None
        from feedhandler.ingest.tcp.lines import TcpLines

        bytes_max = self.config.arbitration.packet_bytes_max
        try:
            return TcpLines(
                plans, self.config.recovery, bytes_max, self._fail_soon, seed=os.getpid()
            )
        except BaseException:
            if self.overlay is not None:
                self.overlay.close()
            raise

    @property
    def _fed_lines(self) -> "list[OverlayLines | TcpLines]":
        """The lines that this process feeds itself."""
        return [each for each in (self.overlay, self.tcp_lines) if each is not None]

    def _receiver(self, plans: list[ChannelPlan]) -> Receiver:
        receive = self.config.receive
        fed = {line: sock for lines in self._fed_lines for line, sock in lines.feeds.items()}
        try:
            return Receiver(
                self.feed.table,
                self.feed.first_sequence,
                plans,
                self.ring,
                tap=self.recorder.tap("lines"),
                settings=self.config.arbitration,
                receive_buffer_bytes=receive.socket_buffer_bytes,
                cpu=_processor("receive.cpu", receive.cpu),
                fed=fed,
            )
        except BaseException:
            for lines in self._fed_lines:
                lines.close()
            raise

    def _record_published(self) -> None:
        """Connect the recorder to what is published, and to the counts of what was dropped."""
        self.fanout.tap = self.recorder.tap("published")
        self.recorder.count_refused("lines", lambda: self.receiver.tap_drops)
        self.recorder.count_refused("published", lambda: self.fanout.tap_drops)

    def _publishers(self) -> Publishers:
        publishers = Publishers(
            self.config.publish,
            self.fanout,
            self.feed.type_code,
            self.config.gateway.name,
            partial(log_event, "publish"),
        )
        for publisher in publishers.all:
            if publisher.config.when_full == CONFLATE:
                publisher.destination.conflate(self.fanout, self.feed)
        return publishers

    def _recorder(self, plans: list[ChannelPlan]) -> Recorder:
        """Make the recorder; lines are numbered as the receive thread does it."""
        lines = list(dict.fromkeys(line for plan in plans for line in plan.lines))
        published = [plan.lines[0] for plan in plans[: len(self.streams)]]
        return Recorder(
            self.config.record,
            lines,
            published,
            self.core.day.trading_day,
            on_stop=_report_recording_stopped,
        )

    @contextlib.asynccontextmanager
    async def _attended(self) -> AsyncIterator[None]:
        """Run the watch, the recorder and the control socket while the context lasts: from before
        the first packet until after the last."""
        async with contextlib.AsyncExitStack() as ending:
            await ending.enter_async_context(self.watch.run())
            if self.config.record.series:
                self.recorder.start()
                ending.push_async_callback(asyncio.to_thread, self.recorder.stop)
            if self.config.control.bind:
                self.control.open()
                ending.callback(self.control.close)
            yield

    # -- running ----------------------------------------------------------------------------

    async def run(
        self, ready: Callable[[], None] | None = None, stop: asyncio.Event | None = None
    ) -> None:
        """Run until `stop` is set; call `ready` once lines are joined and the node listens."""
        self._stop = stop or self._stop
        self._loop = asyncio.get_running_loop()
        await self.queues.open()
        try:
            self.node.start()
            async with self._attended():
                await self._receive(ready)
        finally:
            await asyncio.gather(self.node.stop(STOP_SECONDS), self.publishers.stop(STOP_SECONDS))
            await self.queues.close()
        if self._failure is not None:
            raise self._failure

    async def _receive(self, ready: Callable[[], None] | None) -> None:
        """Join the lines and serve until `stop`."""
        await self.publishers.open()
        self.runner.start()
        self.publishers.start(self.qualities)
        self.receiver.start()
        for lines in self._fed_lines:
            lines.start()
        for fd in self.receiver.filenos():
            self._loop.add_reader(fd, self._on_handover, fd)
        publisher = asyncio.create_task(self._publish_stats())
        days = asyncio.create_task(self._follow_days())
        try:
            self.watch.serving()
            if ready is not None:
                ready()
            await self._stop.wait()
        finally:
            days.cancel()
            await self._finish(publisher)

    async def _follow_days(self) -> None:
        """Begin the next trading day when its time has come."""
        while True:
            left_s = (self.core.day.turns_ns - time.time_ns()) / 1e9
            await asyncio.sleep(max(0.0, min(left_s, DAY_CHECK_SECONDS)))
            self.look_at_day(time.time_ns())

    async def _finish(self, publisher: asyncio.Task[None]) -> None:
        """Leave the groups, deliver what was received, end the statistics."""
        self.watch.stopping()
        for lines in self._fed_lines:
            await asyncio.to_thread(lines.stop)
        for fd in self.receiver.filenos():
            self._loop.remove_reader(fd)
        self.receiver.stop()
        while self.node.pump():
            await asyncio.sleep(0)
        self.runner.finish()
        self.node.flush()
        await self.runner.close()
        publisher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publisher

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stop.set()

    def _fail_soon(self, error: BaseException) -> None:
        """End because of an error in another thread, of a line's receiver."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._stop.set()

    def _on_handover(self, fd: int) -> None:
        """Deliver a batch that the receive thread has published."""
        try:  # noqa: SIM105 - `suppress` costs more than the read, at every hand-over
            os.read(fd, 8)
        except BlockingIOError:
            pass
        if self.receiver.error is not None:
            self._fail(self.receiver.error)
            return
        self._pump()

    def _pump(self) -> None:
        """Deliver until the ring is empty; between shares the loop serves the sockets.

        With `coalesce_us` it then rests, the longer the more connections it has written to: each
        write wakes a subscriber, and what came meanwhile goes out with one.
        """
        began_ns = time.monotonic_ns() if self._coalesce_ns else 0
        try:
            more = self.node.pump()
        except Exception as error:
            # A stream that stands still must not look like a quiet market: end, and say why.
            self._fail(error)
            return
        if more:
            self._loop.call_soon(self._pump)
            return
        if began_ns:
            self.ring.rest(began_ns + min(self._coalesce_ns * self.node.wrote, REST_NS_MAX))
        if self.ring.arm():
            return
        if began_ns:
            self.receiver.wake()
        else:
            self._loop.call_soon(self._pump)

    # -- reports of the core ----------------------------------------------------------------

    def look_at_day(self, now_ns: int) -> None:
        """Give the core the time, and inform the operator of a trading day that has begun."""
        if self.core.turn_day(now_ns):
            today = self.core.day.today
            log_event("trading_day", f"trading day {today}", day=today.isoformat())

    # -- statistics -------------------------------------------------------------------------

    async def _publish_stats(self) -> None:
        """Send a snapshot on the bus at each interval, from one absolute anchor."""
        if not self.config.stats.bind:
            return
        context = zmq.Context()
        socket = context.socket(zmq.PUB)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            with private_sockets():
                socket.bind(self.config.stats.bind)
        except zmq.ZMQError as error:
            socket.close()
            context.term()
            self._fail(
                ConfigError(
                    f"stats.bind: cannot bind {self.config.stats.bind}: {error.strerror}",
                    "choose a free port, or leave stats.bind empty",
                )
            )
            return
        interval = self.config.stats.interval_ms / 1000
        due = self._loop.time()
        try:
            while True:
                due += interval
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                self._send_stats(socket)
        finally:
            self._send_stats(socket)
            socket.close()
            context.term()

    def _send_stats(self, socket: zmq.Socket[bytes]) -> None:
        body = msgspec.json.encode(self.snapshot())
        with contextlib.suppress(zmq.Again):
            socket.send_multipart([STATS_TOPIC, body], zmq.DONTWAIT)

    def snapshot(self, reader: str = "stats") -> dict[str, Any]:
        """Every counter since the start; latency percentiles since `reader`'s snapshot before."""
        more: dict[str, Any] = {}
        if self.overlay is not None:
            more["overlay"] = self.overlay.snapshot()
        if self.tcp_lines is not None:
            more["tcp_lines"] = self.tcp_lines.snapshot()
        if self.core.record_fanout is not None:
            more["books"] = self.core.record_fanout.snapshot()
        if self.config.record.series:
            more["recorder"] = self.recorder.snapshot()
        return {
            "time_ns": time.time_ns(),
            "name": self.config.gateway.name,
            "feed": self.feed.name,
            "trading_day": self.core.day.snapshot(),
            "channels": [
                self._channel_snapshot(channel_index, reader)
                for channel_index in range(len(self.streams))
            ],
            "recovery": {
                **self.core.recovery_snapshot(self.runner.now_ns()),
                "lines": self._refresh_lines_snapshot(),
            },
            "node": self.node_snapshot(),
            "destinations": self.publishers.snapshot(),
            "queues": self.queues.snapshot(),
            **more,
        }

    def _resume_requests(self, request: Mapping[str, Any]) -> dict[str, list[str]]:
        """Answer the control socket's `resume-requests`: ask servers again today."""
        server = request.get("server", "")
        if not isinstance(server, str):
            raise UsageError("`server` is no text", "a [[server]]'s name, or leave it out: all")
        resumed = self.core.resume_requests(server, self.runner.now_ns())
        if resumed:
            names = ", ".join(resumed)
            text = f"asked again today at the operator's word: {names}"
            log_event("resumed", text, servers=names)
        return {"resumed": resumed}

    def _channel_snapshot(self, channel_index: int, reader: str) -> dict[str, Any]:
        stream = self.streams[channel_index]
        counts = stream.latency.counts()
        before = self._latencies[reader]
        p50, p90, p99 = percentiles_of(counts - before[channel_index], 0.5, 0.9, 0.99)
        before[channel_index] = counts
        quality = self.qualities[channel_index]
        return {
            "service": stream.service,
            "key": stream.key,
            "quality": quality.state.value,
            "packets": stream.packets,
            "messages": stream.messages,
            "next": stream.next_sequence,
            "gaps": quality.lost_ranges,
            "lost": quality.lost_total,
            "latency_ns": {"p50": p50, "p90": p90, "p99": p99, "max": stream.latency.maximum},
            "recovery": self.core.recovery.snapshot(channel_index),
            "arbitration": as_dict(ChannelCounter, self.receiver.channel_counters[channel_index]),
            "lines": self._lines_snapshot(channel_index),
        }

    def _lines_snapshot(self, channel_index: int) -> dict[str, Any]:
        """Return the channel's lines by name; `first`: packets that came first on that line.

        Channels that share a line each show the whole line's counts."""
        receiver = self.receiver
        lines = {}
        for config, line in zip(
            self.config.channels[channel_index].lines,
            receiver.channels[channel_index].lines,
            strict=True,
        ):
            row = receiver.line_counters[receiver.lines.index(line)]
            lines[config.name] = _line_counts(row)
        recovered = receiver.recovered_rows.get(f"{self.streams[channel_index].service}/R")
        if recovered is not None:
            lines["R"] = _line_counts(receiver.line_counters[recovered])
        return lines

    def _refresh_lines_snapshot(self) -> dict[str, Any]:
        """Return the refresh lines by service and name."""
        receiver, live = self.receiver, len(self.streams)
        return {
            line.name: _line_counts(receiver.line_counters[receiver.lines.index(line)])
            for plan in receiver.channels[live:]
            for line in plan.lines
        }

    def receive_buffers(self) -> dict[str, int]:
        """Return the kernel's receive buffer of each line, in bytes, by line name."""
        overlay = {} if self.overlay is None else self.overlay.receive_buffers()
        return self.receiver.receive_buffers() | overlay

    def node_snapshot(self) -> dict[str, Any]:
        """Return the node's counters, and what is open and waits now."""
        return {
            **self.node.counters(),
            "connections": len(self.node.connections),
            "links": self.node.links,
            "queued_bytes": sum(
                sender_queue.queued_bytes for sender_queue in self.node.sender_queues()
            ),
        }


def _processor(key: str, number: int) -> int | None:
    """Return the processor that the setting `key` pins a thread to, None for any.

    Raises `ConfigError` where this process may not use it.
    """
    if number < 0:
        return None
    usable = sorted(os.sched_getaffinity(0))
    if number not in usable:
        there = ", ".join(map(str, usable))
        raise ConfigError(
            f"{key}: no processor {number} for this process", f"it may use {there}; -1 is any"
        )
    return number


def _line_counts(row: numpy.ndarray) -> dict[str, int]:
    """Return a line's counters by name; `first`: packets that came first on it."""
    return {**as_dict(LineCounter, row), "first": int(row[LineCounter.WON])}


def _report_recording_stopped(reason: str) -> None:
    log_event("recording_stopped", f"recording stopped: {reason}", logging.ERROR, reason=reason)
