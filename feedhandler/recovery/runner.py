"""Recovery at work in the gateway: the desk, with real servers, a real arbiter, real subscribers.

`RecoveryRunner` gives the `Desk` its hands: connections to the servers (`retrans.tcp`), the receive
thread's inlet, the fan-out and the node; and it gives it the time: one timer of the event loop for
the next deadline. What the desk puts into links outside a hand-over is written soon after.

The desk's time runs like the monotonic clock, so that a step of the host's clock neither hangs nor
hurries anything, but counts from 1970, since servers' daily quotas begin anew with the trading day.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from feedhandler.amqp.fanout import Fanout
from feedhandler.amqp.outlet import Outlet
from feedhandler.amqp.quality import QualityState
from feedhandler.amqp.serving.node import Node
from feedhandler.amqp.stream import Stream
from feedhandler.codecs import Feed
from feedhandler.config import Config
from feedhandler.ingest.receiver import Receiver
from feedhandler.recovery.complaints import Complaints
from feedhandler.recovery.desk import Desk
from feedhandler.recovery.ports import DeskChannel
from feedhandler.retrans.actions import Ask, AskRefresh
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Event,
    Packet,
    RefreshAccepted,
    RefreshPacket,
)
from feedhandler.retrans.protocol import NEVER_NS as NEVER
from feedhandler.retrans.reconnection import ReconnectingClient
from feedhandler.retrans.tcp import RequestConnection, steady_clock

#: Answers that tell that a server is well, whatever it did before.
_USEFUL = (Accepted, Answered, Packet, RefreshAccepted, RefreshPacket)

#: Key of `RecoveryRunner.counts`: what it counts.
COUNTS: dict[str, str] = {
    "disconnects": "connections to servers that were lost or could not be made",
    "untold": "lines for the operator that were not written: told already, or too many",
    "inlet_full": "packets and words for the receive thread that found no room; asked for again",
}


class RecoveryRunner:
    """Runs the recovery of a gateway's channels; `start` in the event loop, `close` at the end.

    The refresh lines' channels follow the live ones in the receiver, in the order of the channels
    that have some. `renumbered` hears of each stream that begins a new numbering, before anything
    of it is sent.
    """

    def __init__(
        self,
        config: Config,
        feed: Feed,
        streams: list[Stream],
        qualities: list[QualityState],
        renumbered: Callable[[Stream], None],
        seed: int,
    ) -> None:
        self._renumbered = renumbered
        self._config = config
        self._feed = feed
        self._seed = seed
        self._streams = streams
        #: Of each refresh channel, in order: the live channel that it serves.
        self.refresh_places = [
            place for place, channel in enumerate(config.channels) if channel.refresh_lines
        ]
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._complaints = Complaints()
        channels = [
            DeskChannel(
                channel.service,
                retransmission=channel.retransmission,
                refresh=channel.refreshes,
                refresh_server=channel.refresh,
                reference=channel.reference,
            )
            for channel in config.channels
        ]
        history_bytes = config.amqp.history_bytes
        self.desk = Desk(
            feed,
            channels,
            qualities,
            self,
            config.recovery,
            seed,
            history_bytes,
            config.trading_day.of(feed),
        )
        for place, stream in enumerate(streams):
            stream.store = self.desk.store(place)
            if history_bytes:
                stream.remember(history_bytes)
        #: The desk's time: now.
        self.now_ns = steady_clock()
        self._connections: dict[str, RequestConnection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER
        self._flushing = False
        self._loop: asyncio.AbstractEventLoop
        self._fanout: Fanout
        self._node: Node
        self._receiver: Receiver

    # -- running ----------------------------------------------------------------------------

    def bind(self, fanout: Fanout, node: Node, receiver: Receiver) -> None:
        """Whom to work with; before `start`."""
        self._fanout, self._node, self._receiver = fanout, node, receiver

    def start(self) -> None:
        """Connect to the servers."""
        self._loop = asyncio.get_running_loop()
        for number, config in enumerate(self._config.servers):
            name = config.name
            server = ReconnectingClient(
                RequestClient(self._feed, config.source_id, self._config.recovery),
                self._config.recovery,
                on_events=partial(self._on_events, name),
                on_up=partial(self._on_up, name),
                on_down=partial(self._on_down, name),
                seed=self._seed + number,
            )
            connection = RequestConnection(server, *config.place, clock=self.now_ns)
            self._connections[name] = connection
            connection.start()

    def finish(self) -> None:
        """The end is near: what closed streams hold back is published, honestly stale."""
        self.desk.open_all("stopping", self.now_ns())

    async def close(self) -> None:
        """Leave the servers."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._connections.values():
            await connection.close()

    # -- what the gateway hears ---------------------------------------------------------------

    def mark(
        self, kind: int, place: int, line: int, sequence: int, next_sequence: int, auxiliary: int
    ) -> None:
        """A mark of the ring: of a live channel, or behind those of a refresh channel."""
        live = len(self._streams)
        now_ns = self.now_ns()
        if place < live:
            self.desk.mark(kind, place, line, sequence, next_sequence, auxiliary, now_ns)
        else:
            self.desk.refresh_mark(self.refresh_places[place - live], kind, now_ns)
        self._set_timer(now_ns)

    def refresh_packet(self, place: int, sequence: int, data: bytes) -> None:
        """A packet of a refresh channel."""
        now_ns = self.now_ns()
        live = self.refresh_places[place - len(self._streams)]
        self.desk.refresh_packet(live, sequence, data, now_ns)
        self._set_timer(now_ns)

    def attached(self, outlet: Outlet, streams: list[Stream]) -> None:
        """A link with snapshot=1."""
        self.desk.attached(outlet, [stream.index for stream in streams], self.now_ns())
        self._after(self.now_ns())

    def _on_events(self, server: str, events: list[Event], now_ns: int) -> None:
        if any(isinstance(event, _USEFUL) for event in events):
            self._complaints.well(server)
        self.desk.client_events(server, events, now_ns)
        self._after(now_ns)

    def _on_up(self, server: str, now_ns: int) -> None:
        self._complaints.connected(server, now_ns)
        self.desk.server_up(server, now_ns)
        self._after(now_ns)

    def _on_down(self, server: str, reason: str, now_ns: int) -> None:
        self.counts["disconnects"] += 1
        self._complaints.disconnected(server, reason, now_ns)
        self.desk.server_down(server, now_ns)
        self._after(now_ns)

    def _tick(self) -> None:
        self._timer, self._timer_ns = None, NEVER
        now_ns = self.now_ns()
        self.desk.tick(now_ns)
        self._after(now_ns)

    def _after(self, now_ns: int) -> None:
        """The desk may have filled links outside a hand-over, and its deadline may have moved."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        self._set_timer(now_ns)

    def _flush(self) -> None:
        self._flushing = False
        self._node.flush()

    def _set_timer(self, now_ns: int) -> None:
        """Wake at the desk's deadline; a timer that is too early is left to ring for nothing."""
        deadline = self.desk.deadline_ns
        if deadline >= self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline
        self._timer = self._loop.call_later(max(0, deadline - now_ns) / 1e9, self._tick)

    # -- what the desk has done by us (`desk.Ports`) ------------------------------------------

    def ask(self, server: str, request: Ask, now_ns: int) -> None:
        """Send a retransmission request."""
        self._connections[server].server.ask(request, now_ns)

    def cancel(self, server: str, request_id: int) -> None:
        """Forget a request."""
        self._connections[server].server.cancel(request_id)

    def ask_refresh(self, server: str, request: AskRefresh, now_ns: int) -> None:
        """Send a refresh request."""
        self._connections[server].server.ask_refresh(request, now_ns)

    def fill(self, place: int, data: bytes, epoch: int) -> None:
        """Give the arbiter a packet that was missing; without room it will be asked for again."""
        if not self._receiver.fill(place, data, epoch, time.time_ns()):
            self.counts["inlet_full"] += 1

    def give_up(self, place: int, until: int, epoch: int) -> None:
        """Have the arbiter announce what is missing; without room its own deadline does."""
        if not self._receiver.give_up(place, until, epoch):
            self.counts["inlet_full"] += 1

    def quality(self, place: int, body: bytes, links: Any = None) -> None:
        """Tell the service's subscribers, or only these."""
        self._fanout.quality(self._streams[place], body, links)

    def withhold(self, place: int, link: Any) -> None:
        """The link gets nothing of the service until it is admitted."""
        self._streams[place].withhold(link)

    def admit(self, place: int, link: Any) -> None:
        """The link takes part in the service from here on."""
        if self.is_here(link):
            self._streams[place].admit(link)

    def block(
        self, place: int, begin: bytes, packets: list[bytes], last: int, end: bytes, links: Any
    ) -> None:
        """Send a snapshot block."""
        self._fanout.block(self._streams[place], begin, packets, last, end, links)

    def close_stream(self, place: int) -> None:
        """Packets go to the store only."""
        self._streams[place].close()

    def open_stream(
        self, place: int, packets: list[tuple[int, int, bytes]], following: int
    ) -> None:
        """Publish stored packets, then live ones again."""
        self._fanout.replay(self._streams[place], packets, following)

    def renumber(self, place: int) -> None:
        """A new numbering begins."""
        self._renumbered(self._streams[place])

    def next_sequence(self, place: int) -> int:
        """The number after the last packet published."""
        return self._streams[place].next_sequence

    def is_here(self, link: Any) -> bool:
        """Is the link still attached?"""
        return link in self._fanout.outlets

    def alert(self, text: str) -> None:
        """Tell the operator."""
        self._complaints.tell(text, text, self.now_ns())

    # -- statistics ---------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """What recovery did for all channels, and each server's own counts."""
        self.counts["untold"] = self._complaints.untold
        return {
            **self.desk.counts,
            **self.counts,
            "servers": {
                name: {"up": connection.up, **connection.server.client.counts}
                for name, connection in self._connections.items()
            },
        }
