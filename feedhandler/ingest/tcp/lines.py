"""Lines of a gateway that come by TCP: their connections, in a thread of their own.

A line's client (`soupbin`, `length`) makes packets of the feed of what its server sends, and they
are handed to the receive thread, which takes them as any line's datagrams. In between is a pair of
local sockets: the kernel stamps what passes, and where it is full the thread waits (`waits`) and
does not read on, so that nothing is lost there: TCP has the server wait in its turn.

One thread with an event loop serves all lines of a gateway; the gateway's own loop empties the ring
that a full pair waits for, so it must not wait itself. Connections are made, and made again with
growing waits, by `retrans.tcp`. A thread that ends by an error reports it (`failed`): a dead line
must not look like a quiet market.
"""

import asyncio
import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from feedhandler.ingest.lines import SO_TIMESTAMPNS, ChannelPlan, Line, TcpServer
from feedhandler.ingest.tcp.clients import client_of
from feedhandler.ingest.tcp.stream import Joined
from feedhandler.operator_log import log_event
from feedhandler.retrans.reconnection import Reconnection
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.tcp import RequestConnection

#: Buffer requested for the pair of sockets: some thousand packets.
PAIR_BYTES = 4 << 20
#: Interval at which a waiting thread checks whether it is to end.
LOOK_MS = 50
#: Least wait before a server is asked again that refused a login, or whose session has ended.
HOPELESS_NS = 5_000_000_000
#: The address of a server whose name is not known yet, for recordings.
UNKNOWN_ADDRESS = "0.0.0.0"


class TcpLine:
    """One line's connection. The receive thread reads and closes the socket `feed`.

    `failed` is called with an error of the hand-over, behind which the line is dead. `seed` draws
    the jitter of reconnections. Raises `UsageError` for credentials that do not fit.
    """

    def __init__(
        self,
        line: Line,
        settings: RecoverySettings,
        packet_bytes_max: int,
        failed: Callable[[BaseException], object],
        seed: int,
    ) -> None:
        assert line.tcp is not None
        self.line, self.server = line, line.tcp
        self.client = client_of(line.tcp, settings, packet_bytes_max)
        self._reconnection = Reconnection(
            self.client,
            settings,
            on_events=self._process,
            on_up=_say_nothing,
            on_down=self._on_down,
            seed=seed,
        )
        self._failed = failed
        self._reported = ""
        self._stopping = False
        self._connection: RequestConnection | None = None
        self._into, self.feed = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for sock in (self._into, self.feed):
            sock.setblocking(False)
        self._into.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES)
        self.feed.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._poller = select.poll()
        self._poller.register(self._into, select.POLLOUT)

    def start(self) -> None:
        """Connect; within the thread's event loop."""
        self._connection = RequestConnection(self._reconnection, self.server.host, self.server.port)
        self._connection.start()

    async def leave(self) -> None:
        """Log out where there is a login, and close the connection."""
        self.client.leave()
        if self._connection is not None:
            await self._connection.close()

    def stop_waiting(self) -> None:
        """End a wait for the receive thread; what comes from now on is dropped."""
        self._stopping = True

    def close(self) -> None:
        """Close this end of the pair."""
        self._into.close()

    def snapshot(self) -> dict[str, Any]:
        """Return the line, its server, whether the stream is here, and the counts."""
        return {
            "line": self.line.name,
            "server": str(self.server),
            "framing": self.server.framing,
            "up": self.client.up,
            **self.client.counts,
        }

    def _process(self, events: list[Any], _now_ns: int) -> None:
        packets: list[bytes] = []
        for event in events:
            if isinstance(event, Joined):
                self._reported = ""
                text = f"line {self.line.name}: {self.server}: {event.text}"
                log_event("line_up", text, logging.INFO, line=self.line.name)
            else:
                packets.append(event)
        try:
            self._hand_on(packets)
        except Exception as error:
            # The loop would take it for the connection's: the packets would be lost unnoticed.
            self.stop_waiting()
            self._failed(error)

    def _on_down(self, reason: str, now_ns: int) -> None:
        """Say why the connection is gone; once until the stream is here again, or for each reason.

        A server that would say the same again is left in peace for a while.
        """
        self.client.counts["disconnects"] += 1
        if self.client.is_hopeless:
            later_ns = now_ns + HOPELESS_NS
            self._reconnection.retry_ns = max(self._reconnection.retry_ns, later_ns)
        if reason != self._reported:
            self._reported = reason
            text = f"line {self.line.name}: {self.server}: {reason}; it is connected to again"
            log_event("line_down", text, line=self.line.name, reason=reason)

    def _hand_on(self, packets: Sequence[bytes]) -> None:
        """Pass packets to the receive thread, whose arbiter judges order and gaps."""
        for packet in packets:
            while not self._stopping:
                try:
                    self._into.send(packet)
                    break
                except BlockingIOError:
                    self.client.counts["waits"] += 1
                    self._poller.poll(LOOK_MS)


class TcpLines:
    """A gateway's lines by TCP.

    `plans` are its channels; the attribute `plans` has them as the receive thread is to receive
    them. `failed` is called, in the thread, with the error that ended it.
    """

    def __init__(
        self,
        plans: Iterable[ChannelPlan],
        settings: RecoverySettings,
        packet_bytes_max: int,
        failed: Callable[[BaseException], object],
        seed: int,
    ) -> None:
        self._lines: list[TcpLine] = []
        self._failed = failed
        self._fault: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tcp lines", daemon=True)
        plans = list(plans)
        #: Socket of each line, by the `Line` of the receive thread and the recorder.
        self.feeds: dict[Line, socket.socket] = {}
        addressed: dict[Line, Line] = {}
        try:
            for line in dict.fromkeys(each for plan in plans for each in plan.lines):
                if line.tcp is not None:
                    each_seed = seed + len(self._lines)
                    made = TcpLine(line, settings, packet_bytes_max, self._end_by, each_seed)
                    self._lines.append(made)
                    address = _address_of(line.tcp)
                    addressed[line] = replace(line, group=address, port=line.tcp.port)
                    self.feeds[addressed[line]] = made.feed
        except BaseException:
            self.close()
            raise
        self.plans = [
            replace(plan, lines=tuple(addressed.get(line, line) for line in plan.lines))
            for plan in plans
        ]

    def start(self) -> None:
        """Start the thread, which connects."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Close the connections and end the thread; `feeds` are closed by the receive thread."""
        for line in self._lines:
            line.stop_waiting()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # its thread has ended already
                self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
        for line in self._lines:
            line.close()

    def close(self) -> None:
        """Close everything, if the thread was never started."""
        self.stop()
        for line in self._lines:
            line.feed.close()

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the snapshot of each line."""
        return [line.snapshot() for line in self._lines]

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            # The loop that takes what sockets have before timers: a wait makes no server silent.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # a thread has no caller to raise to
            self._failed(error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        """Serve the lines until `stop`, or until one of them fails."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(
            lambda _, context: self._end_by(
                context.get("exception") or RuntimeError(context["message"])
            )
        )
        for line in self._lines:
            line.start()
        self._ready.set()
        await self._over.wait()
        for line in self._lines:
            await line.leave()
        if self._fault is not None:
            raise self._fault

    def _end_by(self, error: BaseException) -> None:
        """End the thread because of an error of a line."""
        self._fault = self._fault or error
        self._over.set()


def _address_of(server: TcpServer) -> str:
    """Return the server's IPv4 address, by which recordings name the line."""
    try:
        return socket.gethostbyname(server.host)
    except OSError:
        return UNKNOWN_ADDRESS


def _say_nothing(_now_ns: int) -> None:
    """Say nothing of a connection: the stream has still to come."""
