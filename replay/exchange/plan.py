"""The plan of a simulated exchange, and its account of what it did."""

import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import NamedTuple, Self

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.times import day_of, day_start_ns
from feedhandler.replay.generating.destinations import REALTIME, RECOVERY, Destinations
from feedhandler.replay.generating.order_writers import WRITERS
from feedhandler.replay.playing.inject import FaultCounts, LineFaults
from feedhandler.retrans.settings import ServerSettings

FEED_NAME = "euronext-utp-md"
#: Feeds whose sessions can be simulated.
FEED_NAMES = (FEED_NAME, *WRITERS)


class Offered(NamedTuple):
    """Recovery offered by the feed's `[recovery]` table: servers, and refresh lines where snapshots
    come by themselves."""

    retransmission: bool = False
    refresh: bool = False
    refresh_lines: bool = False

    @classmethod
    def of(cls, feed: Feed) -> Self:
        """Return what there is of a feed."""
        recovery = feed.recovery
        if recovery is None:
            return cls()
        return cls(
            recovery.retransmission is not None,
            recovery.snapshots is not None,
            recovery.snapshot_lines and not recovery.snapshots_by_lines,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan:
    """Plan of a run: what an exchange sends, where, for how long, and what goes wrong on the way.

    `seconds` 0: until stopped. `day` and `opening_ns` (after midnight, exchange time) date the
    messages; without them it is the present time in the exchange's zone. Line A of service s is
    `group_prefixes[0]`.(s - 100), port `base_ports[0]` + s; the lines of recovery likewise: refresh
    lines of UTP-MD, retransmission lines where the feed's protocol answers by them; where snapshots
    that are asked for come by lines of their own, those have the next service. A server's port
    of None is no server, of 0 any free port.
    """

    feed: str = FEED_NAME
    seed: int = 1
    seconds: float = 0.0
    messages_per_s: float = 20_000.0
    instruments: int = 300
    faults: tuple[LineFaults, LineFaults] = (LineFaults(), LineFaults())
    #: The rate at which both lines lose the same packet.
    together: float = 0.0
    #: Never lose on B what was lost on A; what is lost together is lost all the same.
    spare_shared: bool = False
    #: So long after the start, one packet of orders is lost on both lines, and the
    #: retransmission server does not have it either. None: never.
    gap_s: float | None = None
    ledger: Path | None = None
    interface: str = "127.0.0.1"
    heartbeat_ms: int = 1000
    day: date | None = None
    opening_ns: int | None = None
    group_prefixes: tuple[str, str] = REALTIME.prefixes
    base_ports: tuple[int, int] = REALTIME.base_ports
    #: Time between two unasked snapshots of a service, or of a loop; 0: only at request. None: no
    #: refresh lines.
    refresh_s: float | None = None
    refresh_faults: tuple[LineFaults, LineFaults] = (LineFaults(), LineFaults())
    recovery_prefixes: tuple[str, str] = RECOVERY.prefixes
    recovery_base_ports: tuple[int, int] = RECOVERY.base_ports
    #: Where the servers listen.
    host: str = "127.0.0.1"
    retransmission_port: int | None = None
    refresh_port: int | None = None
    servers: ServerSettings = field(default_factory=ServerSettings)
    #: After the session's end the servers stay this long at most, while clients still ask.
    linger_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("seconds", "linger_s", "gap_s", "refresh_s"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"{name} is {value}", "give 0 or more")
        if self.feed not in FEED_NAMES:
            raise UsageError(f"no simulated {self.feed}", f"known: {', '.join(FEED_NAMES)}")
        has = Offered.of(load_feed(self.feed))
        for offered, asked, what in (
            (has.retransmission, self.retransmission_port, "retransmission server"),
            (has.refresh, self.refresh_port, "refresh server"),
            (has.refresh_lines, self.refresh_s, "refresh lines"),
        ):
            if asked is not None and not offered:
                raise UsageError(f"{self.feed} has no {what}", "leave that out")
        if self.seed < 0:
            raise UsageError(f"a seed of {self.seed}", "seeds are not negative")
        lines_missing = self.feed == FEED_NAME and self.refresh_s is None
        if self.refresh_port is not None and lines_missing:
            raise UsageError("a refresh server without refresh lines", "give refresh_s, 0 or more")

    @property
    def snapshots_cut(self) -> bool:
        """Whether the exchange's own thread cuts snapshots for refresh lines, as of UTP-MD."""
        return self.feed == FEED_NAME and self.refresh_s is not None

    def address(self, line: str, service: int) -> tuple[str, int]:
        """Group and port of a service on line A or B."""
        return Destinations(self.group_prefixes, self.base_ports).of(line, service)

    def recovery_address(self, line: str, service: int) -> tuple[str, int]:
        """Group and port of a service on refresh, or retransmission, line A or B."""
        return Destinations(self.recovery_prefixes, self.recovery_base_ports).of(line, service)

    def refresh_address(self, line: str, service: int) -> tuple[str, int]:
        """Group and port of the line beside, by which snapshots come that were asked for."""
        return self.recovery_address(line, service + 1)

    def moment(self, feed: Feed) -> tuple[date, int]:
        """Return the session's start: trading day, and nanoseconds after midnight."""
        now_ns = time.time_ns()
        opening_ns = self.opening_ns
        if opening_ns is None:
            opening_ns = now_ns - day_start_ns(day_of(now_ns, feed.zone), feed.zone)
        return self.day or feed.trading_day.of(now_ns), opening_ns


@dataclass(frozen=True, slots=True)
class ExchangeProgress:
    """Progress of a run: `packets` and `messages` generated, `sent` datagrams on all lines.

    `closed`: the session's close was sent, and only the servers still work.
    """

    elapsed_ns: int
    packets: int
    messages: int
    sent: int
    lateness_max_ns: int
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeResult:
    """A run's account.

    `packets` and `messages` are by service, control packets among the packets; `lines` is what
    each line's faults did (`A`, `B`, and where there are any `refresh A`, `refresh B`); `behind`
    counts datagrams that left more than a millisecond late; `withheld` is the packet, as (service,
    sequence number), that neither line nor the retransmission server had; `snapshots` counts
    those cut in their turn (`cyclic`) and those that were requested (`asked`); `servers` has
    the TCP servers' own counts; `stopped` says whether the run ended before its time.
    """

    packets: dict[int, int]
    messages: dict[int, int]
    lines: dict[str, FaultCounts]
    next_sequences: dict[int, int]
    sent: int
    duration_ns: int
    lateness_max_ns: int
    behind: int
    withheld: tuple[int, int] | None
    snapshots: dict[str, int]
    servers: dict[str, dict[str, int]]
    stopped: bool
