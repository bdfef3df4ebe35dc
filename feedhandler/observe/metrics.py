"""Metrics in the text format of Prometheus, from the counter tables and nothing else.

`SCOPES` lists for each scope (a line, a channel, a server ...) its labels and its names, with their
meaning from `counters.py` and the `COUNTS` tables. `Reading`s bring the values, which
`gateway/readings.py` collects. A counter is `feedhandler_<scope>_<name>_total`; a value that may
fall, or a highest value, is a gauge without `_total`.

A gateway with many channels has tens of thousands of samples, and gathering them takes a good part
of a second: far too long for an event loop that serves a stream. So everything goes by slices:
`Gathering` takes one reading at a time, `text` yields the result in pieces of `SLICE_SAMPLES`
samples, about half a millisecond each, and the caller serves the stream in between. The values are
therefore not of one instant, but each is correct, and no counter goes back.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from feedhandler import counters, operator_log, rpc
from feedhandler.counters import HIGH_WATER, Counter
from feedhandler.histogram import UPPER_BOUNDS, lower_bounds
from feedhandler.retrans import client, failover, manager, refresh
from feedhandler.retrans import recovery as channel_recovery
from feedhandler.retrans.fix import resend_client, state_client
from feedhandler.retrans.protocols import (
    cboe_grp,
    cboe_spin,
    cme_replay,
    glimpse,
    iex_tp,
    moldudp64,
    nyse_xdp,
)

#: The plain text format, which every version of Prometheus reads.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAMESPACE = "feedhandler"
#: Samples that are formatted at a time.
SLICE_SAMPLES = 50

#: Upper bounds of the histograms' buckets, in nanoseconds: 10 us to 10 s.
BOUNDS_NS = (
    *(round(step * 10**power) for power in range(4, 10) for step in (1, 2.5, 5)),
    10**10,
)


@dataclass(frozen=True)
class Scope:
    """One kind of thing that has counters: its name, its labels, its counters' meaning."""

    name: str
    labels: tuple[str, ...] = ()
    counts: Mapping[str, str] = field(default_factory=dict)
    gauges: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """The values of one thing, by the names of its scope."""

    scope: str
    values: Mapping[str, float]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateReading:
    """The state of one thing: `state` is one of `states`.

    `machine` is a key of `counters.STATES` or of `counters.DESTINATION_STATES`.
    """

    machine: str
    labels: tuple[str, ...]
    state: str
    states: tuple[str, ...]


@dataclass(frozen=True)
class HistogramReading:
    """The counts of a `Histogram`'s buckets; `name` is a key of `HISTOGRAMS`."""

    name: str
    labels: tuple[str, ...]
    counts: numpy.ndarray


AnyReading = Reading | StateReading | HistogramReading


def _scope(
    name: str, labels: tuple[str, ...], counts: type[Counter] | Mapping[str, str] | None
) -> Scope:
    gauges = dict(counters.GAUGES.get(name, {}))
    table = counts or {}
    if isinstance(table, type):
        members = list(table)
        gauges |= {each.name.lower(): each.meaning for each in members if each in _high(table)}
        table = {each.name.lower(): each.meaning for each in members if each not in _high(table)}
    return Scope(name, labels, table, gauges)


def _high(scope: type[Counter]) -> set[Counter]:
    """Return the counters that hold a highest value, which as enum members may equal others."""
    return {each for each in HIGH_WATER if isinstance(each, scope)}


SCOPES: dict[str, Scope] = {
    scope.name: scope
    for scope in (
        _scope("gateway", (), None),
        _scope("line", ("service", "line"), counters.LineCounter),
        _scope("channel", ("service",), counters.ChannelCounter),
        _scope("channel_recovery", ("service",), channel_recovery.COUNTS),
        _scope("channel_refresh", ("service",), refresh.COUNTS),
        _scope("recovery", (), {**manager.COUNTS, **counters.RECOVERY_IO_COUNTS}),
        _scope(
            "server",
            ("server",),
            {
                **moldudp64.COUNTS,
                **iex_tp.COUNTS,
                **cme_replay.COUNTS,
                **nyse_xdp.COUNTS,
                **cboe_grp.COUNTS,
                **cboe_spin.COUNTS,
                **glimpse.COUNTS,
                **client.COUNTS,
                **resend_client.COUNTS,
                **state_client.COUNTS,
                **failover.COUNTS,
            },
        ),
        _scope("receiver", (), counters.ReceiverCounter),
        Scope(
            "overlay_member", ("tree", "member"), counters.OVERLAY_COUNTS, counters.OVERLAY_GAUGES
        ),
        _scope("tcp_line", ("service", "line"), counters.TCP_LINE_COUNTS),
        _scope("node", (), counters.NodeCounter),
        Scope("books", (), counters.BOOK_COUNTS, counters.BOOK_GAUGES),
        _scope("subscription", ("peer", "address"), counters.SubscriptionCounter),
        _scope("destination", ("destination",), counters.DestinationCounter),
        _scope("queue", ("queue",), counters.QueueCounter),
        _scope("recorder_series", ("series",), counters.RecorderCounter),
        _scope("recorder", (), None),
        _scope("control", (), rpc.COUNTS),
        _scope("web", (), counters.WebCounter),
        _scope("log", (), operator_log.COUNTS),
    )
}

#: Histograms: their labels and their meaning; values are seconds.
HISTOGRAMS: dict[str, tuple[tuple[str, ...], str]] = {
    "destination_confirm_seconds": (("destination",), counters.CONFIRM),
    "channel_latency_seconds": (("service",), counters.LATENCY),
    "stage_seconds": (
        ("stage",),
        "time in the event loop, by stage: "
        + "; ".join(f"{stage}: {meaning}" for stage, meaning in counters.STAGES.items()),
    ),
}

#: How many buckets of a `Histogram` lie wholly below each bound.
_BELOW = numpy.searchsorted(UPPER_BOUNDS, BOUNDS_NS, side="right")
_MIDDLES_S = (lower_bounds() + UPPER_BOUNDS) / 2e9
_LABELS_LE = [f"{bound / 1e9:g}" for bound in BOUNDS_NS]


def buckets_of(counts: numpy.ndarray) -> tuple[list[tuple[str, float]], float]:
    """Convert a `Histogram`'s counts to cumulative buckets and the sum of values in seconds.

    A bucket is (upper bound in seconds, count). A value within 3 percent below a bound may count as
    above it; the sum is good to 2 percent.
    """
    running = numpy.concatenate(([0], numpy.cumsum(counts)))
    buckets = [
        (label, float(count)) for label, count in zip(_LABELS_LE, running[_BELOW], strict=True)
    ]
    return [*buckets, ("+Inf", float(running[-1]))], float(counts @ _MIDDLES_S)


def metric_name(scope: str, name: str) -> str:
    """Return the name of a metric, without the `_total` that a counter gets."""
    return f"{NAMESPACE}_{scope}_{name}"


class Gathering:
    """Metric families, empty at first: `add` readings, then take `families`.

    With `only`, families of these scopes alone, without states and histograms.
    """

    def __init__(self, only: Collection[str] = ()) -> None:
        self._values: dict[tuple[str, str], CounterMetricFamily | GaugeMetricFamily] = {}
        self._order: list[Metric] = []
        for scope in SCOPES.values():
            if only and scope.name not in only:
                continue
            for family, names in (
                (CounterMetricFamily, scope.counts),
                (GaugeMetricFamily, scope.gauges),
            ):
                for name, meaning in names.items():
                    full = metric_name(scope.name, name)
                    made = family(full, meaning, labels=scope.labels)
                    self._values[scope.name, name] = made
                    self._order.append(made)
        self._states = {
            machine: GaugeMetricFamily(
                metric_name(scope, f"{machine}_state"), meaning, labels=(label, "state")
            )
            for scope, label, states in (
                ("channel", "service", counters.STATES),
                ("destination", "destination", counters.DESTINATION_STATES),
            )
            for machine, meaning in states.items()
        }
        self._histograms = {
            name: HistogramMetricFamily(f"{NAMESPACE}_{name}", meaning, labels=labels)
            for name, (labels, meaning) in HISTOGRAMS.items()
        }
        if not only:
            self._order += [*self._states.values(), *self._histograms.values()]

    def add(self, reading: AnyReading) -> None:
        """Add one reading. Raises `KeyError` for names that its scope does not have."""
        if isinstance(reading, StateReading):
            family = self._states[reading.machine]
            for state in reading.states:
                family.add_metric((*reading.labels, state), float(state == reading.state))
        elif isinstance(reading, HistogramReading):
            buckets, total = buckets_of(reading.counts)
            self._histograms[reading.name].add_metric(reading.labels, buckets, total)
        else:
            for name, value in reading.values.items():
                self._values[reading.scope, name].add_metric(reading.labels, float(value))

    def families(self) -> list[Metric]:
        """Return all families in the order of the tables, those without values included."""
        return self._order


class _Registry(Collector):
    """A registry of one family, as `generate_latest` takes it."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self.metric]


def text(families: Iterable[Metric]) -> Iterator[bytes]:
    """Format the families, in pieces of at most `SLICE_SAMPLES` samples."""
    for family in families:
        samples = family.samples
        for start in range(0, max(1, len(samples)), SLICE_SAMPLES):
            part = Metric(family.name, family.documentation, family.type)
            part.samples = samples[start : start + SLICE_SAMPLES]
            made = generate_latest(_Registry(part))
            # Help and type come once, before the first piece.
            yield made if start == 0 else made.split(b"\n", 2)[2]
