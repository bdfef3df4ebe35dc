"""A simulated exchange: a generated session, sent in real time on lines A and B.

`Exchange.run` draws packets from a `SessionGenerator` (UTP-MD) or an `OrderSession` a step ahead of
time, notes each in the ledger, gives it to both lines with their faults, and hands blocks to a
thread that sends them on schedule without the GIL. Generation runs `AHEAD_BLOCKS` steps ahead, so a
slow step delays nothing; more it never does, so stopping takes no longer than that.

Packets that the lines lose can be requested from the servers, if the plan has any (`servers`, a
thread of its own): the retransmission server has the latest packets that have been due. The refresh
server of UTP-MD has snapshots sent, on refresh lines A and B, of the state that the exchange keeps
(`refresh`); they are sent in turn without being asked for as well. The servers of an order session
are those that the feed's `[recovery]` table names.

A run ends after `seconds`, or by `stop()`, or by SIGTERM or SIGINT where it handles signals:
the step under way and what was generated ahead are sent, then the close of the session (every
service once more, without faults, so that a loss just before the end shows), then heartbeats;
the ledger is complete, and `run` returns as usual. After its full time it still sends heartbeats
and serves for a while, as long as clients ask (`linger_s` at most).

The ledger lists what the exchange published, with packets that the lines lose on the way.
"""

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator

from feedhandler.codecs import Feed, load_feed
from feedhandler.market.stream_market import Market
from feedhandler.replay.exchange.blocks import BlockMaker, LineSet
from feedhandler.replay.exchange.ledger import LedgerWriter
from feedhandler.replay.exchange.plan import (
    FEED_NAME,
    ExchangePlan,
    ExchangeProgress,
    ExchangeResult,
)
from feedhandler.replay.exchange.refresh import RefreshFlow
from feedhandler.replay.exchange.servers import ExchangeServers
from feedhandler.replay.generating.destinations import LINES
from feedhandler.replay.generating.generator import SessionGenerator
from feedhandler.replay.generating.order_session import OrderSession
from feedhandler.replay.generating.packets import SERVICES, Outgoing
from feedhandler.replay.playing.plain_block import PlainBlock
from feedhandler.replay.playing.sender import Progress
from feedhandler.replay.playing.sender_lines import MulticastLine, OpenLines, open_lines
from feedhandler.replay.playing.senders import UdpSender
from feedhandler.retrans.snapshots import SnapshotCutter

__all__ = ["Exchange", "ExchangePlan", "ExchangeProgress", "ExchangeResult"]

#: Simulated time of a step, and how many steps are generated ahead of the sender.
STEP_NS, AHEAD_BLOCKS = 50_000_000, 5
#: From the first block being ready to the first packet, so that it is not late already.
START_LEAD_NS = 20_000_000
#: After the end, servers wait this long for a further question: longer than a gateway on a busy
#: machine may stand still.
QUIET_NS = 3_000_000_000
#: What makes the refresh lines' seed another one than the lines'.
REFRESH_SEED = 0x5EED
#: How often the generating thread looks whether the sender has ended.
POLL_S = 0.05
PROGRESS_INTERVAL_S = 0.25
#: The sending thread waits for the GIL between blocks: so long at most.
SWITCH_INTERVAL_S = 0.0005

OnProgress = Callable[[ExchangeProgress], object]


class Exchange:
    """One run of a plan.

    Raises `ConfigError` for an interface, a server's port or a ledger that cannot be used.
    """

    def __init__(self, plan: ExchangePlan, feed: Feed | None = None) -> None:
        self.plan = plan
        self._feed = feed = feed or load_feed(plan.feed)
        day, self._opening_ns = plan.moment(feed)
        generator = SessionGenerator if feed.name == FEED_NAME else OrderSession
        self.generator = generator(
            feed,
            plan.seed,
            instruments=plan.instruments,
            messages_per_s=plan.messages_per_s,
            heartbeat_ns=plan.heartbeat_ms * 1_000_000,
            day=day,
            opening_ns=self._opening_ns,
        )
        self._stop = threading.Event()
        self._packets = dict.fromkeys(self.generator.services, 0)
        self._messages = dict.fromkeys(self.generator.services, 0)
        self._withheld: tuple[int, int] | None = None
        self._blocks: queue.Queue[PlainBlock | None] = queue.Queue(AHEAD_BLOCKS)
        self._thread = threading.Thread(target=self._send, name="exchange-send", daemon=True)
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._anchor_ns = 0
        with contextlib.ExitStack() as opened:
            self._open(opened)
            self._opened = opened.pop_all()

    def _open(self, opened: contextlib.ExitStack) -> None:
        """Open sockets, servers and ledger; `opened` closes them."""
        plan = self.plan
        lines = open_lines(list(self._lines()))
        opened.callback(lines.close)
        self._ledger = LedgerWriter(plan.ledger, self._feed) if plan.ledger else None
        if self._ledger is not None:
            opened.callback(self._ledger.close)
        self._sender = UdpSender(lines.destinations)
        self._sets = list(_line_sets(plan, lines, self.generator.services))
        self._maker = BlockMaker(self._sets)
        self._servers: ExchangeServers | None = None
        self._refresh = self._refresh_flow() if plan.snapshots_cut else None
        looping = plan.refresh_s is not None and not plan.snapshots_cut
        ports = (plan.retransmission_port, plan.refresh_port)
        if looping or any(port is not None for port in ports):
            self._servers = ExchangeServers(self._feed, plan, self._refresh, self._elapsed_ns)
            opened.callback(self._servers.close)

    def _lines(self) -> Iterator[MulticastLine]:
        plan = self.plan
        for number, name in enumerate(LINES):
            live = {service: plan.address(name, service) for service in self.generator.services}
            yield MulticastLine(name, live, plan.interface, plan.faults[number])
        for number, name in enumerate(LINES if plan.snapshots_cut else ()):
            refresh = {service: plan.recovery_address(name, service) for service in SERVICES}
            faults = plan.refresh_faults[number]
            yield MulticastLine(f"refresh {name}", refresh, plan.interface, faults)

    def _refresh_flow(self) -> RefreshFlow:
        return RefreshFlow(
            self._feed,
            Market(self._feed, keeps_messages=True),
            SnapshotCutter(self._feed),
            cycle_ns=int((self.plan.refresh_s or 0) * 1e9),
            heartbeat_ns=self.plan.heartbeat_ms * 1_000_000,
            start_ns=self._opening_ns,
        )

    @property
    def ports(self) -> dict[str, int]:
        """The ports on which the servers listen, by `servers.RETRANSMISSION` and `REFRESH`."""
        return dict(self._servers.ports) if self._servers else {}

    def stop(self) -> None:
        """End the run in good order; from any thread or a signal handler."""
        self._stop.set()

    def run(self, on_progress: OnProgress | None = None) -> ExchangeResult:
        """Send the session to its end. An exchange runs once.

        Raises `OSError` where the network refuses a packet.
        """
        with _quick_switches(), self._opened:
            try:
                self._generate(on_progress)
                self._put(None)
                self._finish()
            finally:
                # After an orderly end the sender is gone already; after an error it must go.
                self._sender.stop()
                self._finish()
        if self._error is not None:
            raise self._error
        return self._result()

    def progress(self, closed: bool = False) -> ExchangeProgress:
        """Return the progress of the run, for any thread."""
        counts = self._sender.progress
        return ExchangeProgress(
            elapsed_ns=max(0, self._elapsed_ns()),
            packets=sum(self._packets.values()),
            messages=sum(self._messages.values()),
            sent=int(counts[Progress.SENT]),
            lateness_max_ns=int(counts[Progress.LATENESS_MAX_NS]),
            closed=closed,
        )

    def _elapsed_ns(self) -> int:
        """Return the time since the session's start, by the sender's clock."""
        return time.monotonic_ns() - self._anchor_ns if self._anchor_ns else 0

    # Generating, in the caller's thread

    def _generate(self, on_progress: OnProgress | None) -> None:
        end_ns = int(self.plan.seconds * 1e9) or None
        until_ns, reported_s = 0, time.monotonic()
        while not self._stop.is_set() and (end_ns is None or until_ns < end_ns):
            until_ns = min(until_ns + STEP_NS, end_ns or until_ns + STEP_NS)
            if not self._hand_over(self.generator.step(until_ns), until_ns):
                return
            if on_progress is not None and time.monotonic() - reported_s >= PROGRESS_INTERVAL_S:
                reported_s = time.monotonic()
                on_progress(self.progress())
        closing = self.generator.close(until_ns)
        until_ns = closing[-1].due_ns
        self._maker.finish(0)
        if self._hand_over(closing, until_ns):
            self._linger(until_ns, on_progress)
            self._put(self._maker.last_block())

    def _linger(self, until_ns: int, on_progress: OnProgress | None) -> None:
        """Send heartbeats and refreshes after the close, while requests may still come."""
        closed_ns, deadline_ns = until_ns, until_ns + int(self.plan.linger_s * 1e9)
        while until_ns < deadline_ns and self._wanted(closed_ns) and not self._stop.is_set():
            if on_progress is not None and self._elapsed_ns() > closed_ns:
                on_progress(self.progress(closed=True))
                on_progress = None
            until_ns += STEP_NS
            if not self._hand_over(self.generator.step(until_ns), until_ns):
                return

    def _wanted(self, closed_ns: int) -> bool:
        """Return whether clients may still ask for what was sent until the close."""
        servers, refresh = self._servers, self._refresh
        if servers is None:
            return False
        over_ns, quiet_ns = self._elapsed_ns() - closed_ns, servers.quiet_ns()
        if over_ns <= 0:
            return True
        busy = refresh is not None and refresh.busy
        return servers.in_use and (busy or min(over_ns, quiet_ns) < QUIET_NS)

    def _hand_over(self, packets: list[Outgoing], until_ns: int) -> bool:
        """Pass a step's packets to ledger, refresh, servers and sender.

        Returns False where the sender has ended."""
        self._note(packets)
        offered = self._without_hole(packets)
        streams = [offered]
        if self._refresh is not None:
            self._refresh.apply(packets)
            streams.append(self._refresh.step(until_ns, self.generator.next_sequences()))
        if self._servers is not None:
            self._servers.publish(offered, packets)
        return self._put(self._maker.block(streams, until_ns))

    def _note(self, packets: list[Outgoing]) -> None:
        for packet in packets:
            self._packets[packet.service] += 1
            self._messages[packet.service] += packet.messages
            if self._ledger is not None and packet.messages:
                self._ledger.sent(packet.packet)

    def _without_hole(self, packets: list[Outgoing]) -> list[Outgoing]:
        """Return the packets without the one that is withheld from all lines and servers."""
        gap_s = self.plan.gap_s
        if gap_s is None or self._withheld is not None:
            return packets
        for index, packet in enumerate(packets):
            is_sent = packet.service == self.generator.orders and packet.messages
            if is_sent and packet.due_ns >= gap_s * 1e9:
                number = self._feed.decode_packet(packet.packet).sequence
                self._withheld = (packet.service, number)
                return packets[:index] + packets[index + 1 :]
        return packets

    def _put(self, block: PlainBlock | None) -> bool:
        """Hand a block over, waiting for room; False where the sender has ended.

        Sending begins when the session is as far ahead as it may be, or has ended.
        """
        while not self._ended.is_set():
            if not self._thread.is_alive() and (self._blocks.full() or block is None):
                self._thread.start()
            try:
                self._blocks.put(block, timeout=POLL_S)
                return True
            except queue.Full:
                continue
        return False

    def _finish(self) -> None:
        """Wait until the sender has sent what it was handed."""
        while self._thread.is_alive():
            self._put(None)
            self._thread.join(POLL_S)

    # Sending, in a thread of its own

    def _send(self) -> None:
        try:
            while (block := self._blocks.get()) is not None:
                self._anchor_ns = self._anchor_ns or time.monotonic_ns() + START_LEAD_NS
                self._sender.send(block, self._anchor_ns)
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def _result(self) -> ExchangeResult:
        counts, refresh, seconds = self._sender.progress, self._refresh, self.plan.seconds
        duration_ns = self._elapsed_ns()
        names = [f"{kind}{name}" for kind in ("", "refresh ") for name in LINES]
        faults = [counts for lines in self._sets for counts in lines.counts]
        return ExchangeResult(
            packets=dict(self._packets),
            messages=dict(self._messages),
            lines=dict(zip(names, faults, strict=False)),
            next_sequences=self.generator.next_sequences(),
            sent=int(counts[Progress.SENT]),
            duration_ns=duration_ns,
            lateness_max_ns=int(counts[Progress.LATENESS_MAX_NS]),
            behind=int(counts[Progress.BEHIND]),
            withheld=self._withheld,
            snapshots={"cyclic": refresh.cyclic, "asked": refresh.asked} if refresh else {},
            servers=self._servers.counts() if self._servers else {},
            stopped=self._stop.is_set() and (not seconds or duration_ns < seconds * 1e9),
        )


def _line_sets(
    plan: ExchangePlan, lines: OpenLines, services: tuple[int, ...]
) -> Iterator[LineSet]:
    """Yield the lines of the market data, then those of the refreshes where there are any."""

    def numbers(line: int) -> dict[int, int]:
        """Return the sender's destination number of each service."""
        return {
            service: int(lines.table[line, lines.channels.index(service)]) for service in services
        }

    yield LineSet(
        [numbers(0), numbers(1)], plan.faults, plan.seed, plan.spare_shared, plan.together
    )
    if plan.snapshots_cut:
        # A seed of its own, so that the two kinds of lines do not lose in step.
        yield LineSet([numbers(2), numbers(3)], plan.refresh_faults, plan.seed ^ REFRESH_SEED)


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
