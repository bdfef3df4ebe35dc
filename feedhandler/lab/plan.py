"""The plan of a run as the user asked for it, and the steps it consists of.

Text in, values out, no I/O. The words are the source paper's: scenario 1 publishes whole packets,
scenario 2 each market message as an AMQP message of its own; a *direct* exchange is asked for each
service by its key, a *topic* exchange for all of them by a pattern.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from feedhandler.codecs.errors import UsageError
from feedhandler.lab.results import Exchange, Mode, Scenario, load_words
from feedhandler.replay.playing.pace import PaceKind
from feedhandler.replay.playing.pace import parse_rate as read_rate

SCENARIOS: tuple[Scenario, ...] = ("packets", "messages")
EXCHANGES: tuple[Exchange, ...] = ("direct", "topic")
#: What one AMQP message holds in each scenario.
GRAINS: dict[Scenario, str] = {"packets": "packet", "messages": "message"}
#: Clients of a step: each is a process.
CLIENTS_MAX = 64
#: Symbols that one client may want: their keys are one address.
SYMBOLS_MAX = 1_000
#: The word of a client that wants everything, among others that do not.
ALL = "all"
#: A step's duration: a shorter one measures nothing, longer than a day is a wrong unit.
DURATION_S_MIN, DURATION_S_MAX = 0.5, 86_400.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_UNITS_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_QUANTITIES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


class Bound(Struct, frozen=True):
    """A latency that a step may not exceed: `share` of the deliveries within `bound_ns`."""

    quantity: str
    share: float
    bound_ns: int

    def __str__(self) -> str:
        return f"{self.quantity}={self.bound_ns / 1e6:g}ms"


class StepPlan(Struct, frozen=True, kw_only=True):
    """One step to be measured."""

    scenario: Scenario
    exchange: Exchange
    clients: int
    rate_bps: float
    duration_s: float
    warm_up_s: float
    pace: float = 0.0
    symbols: str = ""

    @property
    def grain(self) -> str:
        """Content of one AMQP message: `packet` or `message`."""
        return GRAINS[self.scenario]

    @property
    def title(self) -> str:
        """The step in words, for people."""
        load = load_words(self.rate_bps, self.pace, self.symbols)
        return f"{self.scenario} {self.exchange}, {self.clients} clients, {load}"


class Plan(Struct, frozen=True, kw_only=True):
    """A run as asked for; see `feedhandler lab --help`."""

    out: Path
    scenarios: tuple[Scenario, ...] = ("packets",)
    exchanges: tuple[Exchange, ...] = ("direct",)
    clients: tuple[int, ...] = (1, 2, 4, 6, 8, 10)
    broker: str = "embedded"
    broker_url: str = ""
    mode: Mode = "direct"
    #: The HTTP port of its management; 0: its kind's.
    broker_management: int = 0
    rate_bps: float = 40e6
    #: A multiple of the capture's own pace; 0: a steady rate.
    pace: float = 0.0
    #: What clients want, in turn: a number of symbols, a share of them, or `ALL`; empty: all of
    #: them want everything.
    symbols: tuple[str, ...] = ()
    duration_s: float = 60.0
    warm_up_s: float = 2.0
    captures: tuple[Path, ...] = ()
    feed: str = "euronext-utp-md"
    seed: int = 1
    #: Messages of the generated session; 0: as many as the replayer thinks right.
    generate_messages: int = 0
    interface: str = "127.0.0.1"
    sweep: str = ""
    bound: Bound | None = None
    apart: bool = True
    silent_s: float = 10.0

    def steps(self) -> Iterator[StepPlan]:
        """Yield the steps to be measured, in order."""
        for scenario in self.scenarios:
            for exchange in self.exchanges:
                for count in self.clients:
                    yield self.step(scenario, exchange, count, self.rate_bps)

    def step(
        self, scenario: Scenario, exchange: Exchange, clients: int, rate_bps: float
    ) -> StepPlan:
        """Return one step with this run's durations."""
        return StepPlan(
            scenario=scenario,
            exchange=exchange,
            clients=clients,
            rate_bps=rate_bps,
            duration_s=self.duration_s,
            warm_up_s=self.warm_up_s,
            pace=self.pace,
            symbols=",".join(self.symbols),
        )


def patterns(exchange: Exchange, feed_key: str, services: Iterable[int]) -> str:
    """Return a subscription to everything: each service's key, or a topic exchange's pattern."""
    if exchange == "topic":
        return f"{feed_key}.#"
    return ",".join(f"{feed_key}.{service}" for service in services)


def parse_clients(text: str) -> tuple[int, ...]:
    """Parse `1,2,4` as client counts. Raises `UsageError`."""
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r} are no client counts", "write 1,2,4,6,8,10") from None
    for count in found:
        if not 1 <= count <= CLIENTS_MAX:
            raise UsageError(f"{count} clients", f"give 1 to {CLIENTS_MAX}, each is a process")
    return found


def parse_rate(text: str) -> float:
    """Parse `40mbps` as bits of Ethernet frames a second, all lines. Raises `UsageError`."""
    return read_rate(text, PaceKind.FRAME_BITS, "mbps")


def parse_own_pace(text: str) -> float:
    """Parse `original` or `10x` as a multiple of a capture's own pace. Raises `UsageError`."""
    return read_rate(text, PaceKind.ORIGINAL, "x")


def parse_symbols(text: str) -> tuple[str, ...]:
    """Parse `100`, `5%` or `100,5%,all` as what clients want, in turn.

    Returns an empty tuple where all want everything. Raises `UsageError`.
    """
    words = tuple(word.strip().lower() for word in text.split(","))
    for word in words:
        if word == ALL:
            continue
        match = re.fullmatch(r"(\d+)|(\d+\.?\d*|\.\d+)%", word)
        if match is None or not (
            1 <= int(match[1]) <= SYMBOLS_MAX if match[1] else 0 < float(match[2]) <= 100
        ):
            raise UsageError(
                f"{word!r} is no number of symbols",
                f"write 1 to {SYMBOLS_MAX}, a share such as 5%, or {ALL}",
            )
    return () if set(words) == {ALL} else words


def symbols_wanted(word: str, known: int) -> int:
    """Return how many of `known` symbols such a word means, at least one; 0: everything."""
    if word == ALL:
        return 0
    share = word.endswith("%")
    return max(1, round(float(word[:-1]) / 100 * known) if share else min(int(word), known))


def parse_duration(text: str) -> float:
    """Parse `60s`, `500ms`, `10min` or plain seconds as seconds. Raises `UsageError`."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+) ?(ms|s|min|m|h)?", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no duration", "write 60s, 500ms or 10min")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def check_duration(seconds: float) -> float:
    """Return a step's duration unchanged. Raises `UsageError` where it is out of range."""
    if not DURATION_S_MIN <= seconds <= DURATION_S_MAX:
        raise UsageError(f"a step of {seconds:g} s", f"give {DURATION_S_MIN} s to a day")
    return seconds


def parse_bound(text: str) -> Bound:
    """Parse `p90=1ms` as a bound. Raises `UsageError`."""
    match = re.fullmatch(r"(p50|p90|p99|p99\.9|max)=(\d+\.?\d*|\.\d+) ?(us|ms|s)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no bound", "write p90=1ms; p50, p90, p99, p99.9 or max")
    return Bound(match[1], _QUANTITIES[match[1]], round(float(match[2]) * _UNITS_NS[match[3]]))
