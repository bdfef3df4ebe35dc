"""A simulated exchange: a generated UTP-MD session, sent in real time on lines A and B.

`Exchange.run` draws packets from a `SessionGenerator` a step ahead of time, notes each in the
ledger, gives it to both lines with their faults, and hands blocks to a thread that sends them on
schedule without the GIL. Generation runs `AHEAD_BLOCKS` steps ahead, so a slow step delays
nothing; more it never does, so stopping takes no longer than that.

A run ends after `seconds`, or by `stop()`, or by SIGTERM or SIGINT where it handles signals:
the step under way and what was generated ahead are sent, then the close of the session (every
service once more, without faults, so that a loss just before the end shows), then heartbeats;
the ledger is complete, and `run` returns as usual.

The ledger lists what the exchange published: what the lines lose on the way is in it.
"""

import contextlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.replay.exchange_blocks import Block, BlockMaker, LineSet
from feedhandler.replay.generator import SessionGenerator
from feedhandler.replay.generator_packets import SERVICES, Outgoing
from feedhandler.replay.inject import FaultCounts, LineFaults
from feedhandler.replay.ledger import LedgerWriter
from feedhandler.replay.sender import Progress, Sender
from feedhandler.replay.sender_lines import MulticastLine, open_lines

FEED_NAME = "euronext-utp-md"
LINES = ("A", "B")
#: Simulated time of a step, and how many steps are generated ahead of the sender.
STEP_NS, AHEAD_BLOCKS = 50_000_000, 5
#: From the first block being ready to the first packet, so that it is not late already.
START_LEAD_NS = 20_000_000
#: How often the generating thread looks whether the sender has ended.
POLL_S = 0.05
PROGRESS_INTERVAL_S = 0.25
#: The sending thread waits for the GIL between blocks: so long at most.
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan:
    """What an exchange sends, where, for how long, and what goes wrong on the way.

    `seconds` 0: until stopped. `day` and `opening_ns` (after midnight, exchange time) date the
    messages; without them it is the present time in the exchange's zone. Line A of service s is
    `group_prefixes[0]`.(s - 100), port `base_ports[0]` + s.
    """

    seed: int = 1
    seconds: float = 0.0
    messages_per_s: float = 20_000.0
    instruments: int = 300
    faults: tuple[LineFaults, LineFaults] = (LineFaults(), LineFaults())
    #: The rate at which both lines lose the same packet.
    together: float = 0.0
    #: Never lose on B what was lost on A; what is lost together is lost all the same.
    spare_shared: bool = False
    ledger: Path | None = None
    interface: str = "127.0.0.1"
    heartbeat_ms: int = 1000
    day: date | None = None
    opening_ns: int | None = None
    group_prefixes: tuple[str, str] = ("239.101.1", "239.101.2")
    base_ports: tuple[int, int] = (30_000, 31_000)

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise UsageError(f"{self.seconds} seconds", "give 0 (until stopped) or more")
        if self.seed < 0:
            raise UsageError(f"a seed of {self.seed}", "seeds are not negative")

    def address(self, line: str, service: int) -> tuple[str, int]:
        """Group and port of a service on line A or B."""
        number = LINES.index(line)
        group = f"{self.group_prefixes[number]}.{service - 100}"
        return group, self.base_ports[number] + service


@dataclass(frozen=True, slots=True)
class ExchangeProgress:
    """How far a run is: `packets` and `messages` generated, `sent` datagrams on all lines."""

    elapsed_ns: int
    packets: int
    messages: int
    sent: int
    lateness_max_ns: int


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """A run's account.

    `packets` and `messages` are by service, control packets among the packets; `lines` is what
    each line's faults did; `behind` counts datagrams that left more than a millisecond late;
    `stopped` tells whether the run ended before its time.
    """

    packets: dict[int, int]
    messages: dict[int, int]
    lines: dict[str, FaultCounts]
    next_sequences: dict[int, int]
    sent: int
    duration_ns: int
    lateness_max_ns: int
    behind: int
    stopped: bool


class Exchange:
    """One run of a plan. Raises `ConfigError` for an interface or a ledger that cannot be used."""

    def __init__(self, plan: ExchangePlan, feed: Feed | None = None) -> None:
        self.plan = plan
        feed = feed or load_feed(FEED_NAME)
        day, opening_ns = _moment(plan, feed)
        self.generator = SessionGenerator(
            feed,
            plan.seed,
            instruments=plan.instruments,
            messages_per_s=plan.messages_per_s,
            heartbeat_ns=plan.heartbeat_ms * 1_000_000,
            day=day,
            opening_ns=opening_ns,
        )
        self._stop = threading.Event()
        self._packets = dict.fromkeys(SERVICES, 0)
        self._messages = dict.fromkeys(SERVICES, 0)
        self._lines = open_lines([self._line(name) for name in LINES])
        try:
            self._ledger = LedgerWriter(plan.ledger, feed) if plan.ledger else None
        except ConfigError:
            self._lines.close()
            raise
        self._sender = Sender(self._lines.destinations)
        self._live = LineSet(
            [self._numbers(line) for line in range(len(LINES))],
            plan.faults,
            plan.seed,
            plan.spare_shared,
            plan.together,
        )
        self._maker = BlockMaker([self._live])
        self._blocks: queue.Queue[Block | None] = queue.Queue(AHEAD_BLOCKS)
        self._thread = threading.Thread(target=self._send, name="exchange-send", daemon=True)
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._anchor_ns = 0

    def stop(self) -> None:
        """End the run in good order; from any thread or a signal handler."""
        self._stop.set()

    def run(
        self,
        on_progress: Callable[[ExchangeProgress], object] | None = None,
        *,
        handle_signals: bool = False,
    ) -> ExchangeResult:
        """Send the session to its end. An exchange runs once.

        `handle_signals` (in the main thread only): SIGTERM and SIGINT end the run in good order.
        Raises `OSError` where the network refuses a packet.
        """
        with _signals(self._stop if handle_signals else None), _quick_switches():
            try:
                self._generate(on_progress)
                self._put(None)
                self._finish()
            finally:
                # After an orderly end the sender is gone already; after an error it must go.
                self._sender.stop()
                self._finish()
                self._close()
        if self._error is not None:
            raise self._error
        return self._result()

    def progress(self) -> ExchangeProgress:
        """How far the run is, from any thread."""
        counts = self._sender.progress
        elapsed_ns = time.monotonic_ns() - self._anchor_ns if self._anchor_ns else 0
        return ExchangeProgress(
            elapsed_ns=max(0, elapsed_ns),
            packets=sum(self._packets.values()),
            messages=sum(self._messages.values()),
            sent=int(counts[Progress.SENT]),
            lateness_max_ns=int(counts[Progress.LATENESS_MAX_NS]),
        )

    # Generating, in the caller's thread

    def _generate(self, on_progress: Callable[[ExchangeProgress], object] | None) -> None:
        end_ns = int(self.plan.seconds * 1e9) or None
        until_ns, reported_s = 0, time.monotonic()
        while not self._stop.is_set() and (end_ns is None or until_ns < end_ns):
            until_ns = min(until_ns + STEP_NS, end_ns or until_ns + STEP_NS)
            packets = self.generator.step(until_ns)
            self._note(packets)
            if not self._put(self._maker.block([packets], until_ns)):
                return
            if on_progress is not None and time.monotonic() - reported_s >= PROGRESS_INTERVAL_S:
                reported_s = time.monotonic()
                on_progress(self.progress())
        closing = self.generator.close(until_ns)
        self._note(closing)
        self._maker.finish(0)
        self._put(self._maker.block([closing], until_ns))
        self._put(self._maker.last_block())

    def _note(self, packets: list[Outgoing]) -> None:
        for packet in packets:
            self._packets[packet.service] += 1
            self._messages[packet.service] += packet.messages
            if self._ledger is not None and packet.messages:
                self._ledger.sent(packet.packet)

    def _put(self, block: Block | None) -> bool:
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
                which = block.offsets * 0
                self._sender.send_block(
                    [block.data],
                    which,
                    block.offsets,
                    block.lengths,
                    block.destinations,
                    block.due_ns,
                    self._anchor_ns,
                )
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    # Setting up and closing

    def _line(self, name: str) -> MulticastLine:
        plan = self.plan
        return MulticastLine(
            name,
            {service: plan.address(name, service) for service in SERVICES},
            plan.interface,
            plan.faults[LINES.index(name)],
        )

    def _numbers(self, line: int) -> dict[int, int]:
        """The sender's destination number of each service on a line."""
        channels = self._lines.channels
        return {
            service: int(self._lines.table[line, channels.index(service)]) for service in SERVICES
        }

    def _close(self) -> None:
        self._lines.close()
        if self._ledger is not None:
            self._ledger.close()

    def _result(self) -> ExchangeResult:
        counts = self._sender.progress
        seconds = self.plan.seconds
        duration_ns = time.monotonic_ns() - self._anchor_ns if self._anchor_ns else 0
        return ExchangeResult(
            packets=dict(self._packets),
            messages=dict(self._messages),
            lines=dict(zip(LINES, self._live.counts, strict=True)),
            next_sequences=self.generator.next_sequences(),
            sent=int(counts[Progress.SENT]),
            duration_ns=duration_ns,
            lateness_max_ns=int(counts[Progress.LATENESS_MAX_NS]),
            behind=int(counts[Progress.BEHIND]),
            stopped=self._stop.is_set() and (not seconds or duration_ns < seconds * 1e9),
        )


def _moment(plan: ExchangePlan, feed: Feed) -> tuple[date, int]:
    """Trading day and nanoseconds after midnight at which the session starts."""
    now_ns = time.time_ns()
    now = datetime.fromtimestamp(now_ns // 1_000_000_000, ZoneInfo(feed.zone))
    since_midnight_s = now.hour * 3600 + now.minute * 60 + now.second
    opening_ns = since_midnight_s * 1_000_000_000 + now_ns % 1_000_000_000
    return plan.day or now.date(), opening_ns if plan.opening_ns is None else plan.opening_ns


@contextlib.contextmanager
def _signals(stop: threading.Event | None) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop` while this lasts."""
    if stop is None:
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
