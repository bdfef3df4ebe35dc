"""The values of a running gateway, one thing at a time, for `observe/metrics.py`.

Each `next` reads one line, channel, server or subscription; between two the event loop may turn, so
what may change meanwhile is looked up again or copied first.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from feedhandler import operator_log
from feedhandler.amqp.publishing.publisher import Publisher
from feedhandler.amqp.publishing.publisher import State as PublisherState
from feedhandler.counters import (
    GAUGES,
    OVERLAY_COUNTS,
    OVERLAY_GAUGES,
    TCP_LINE_COUNTS,
    ChannelCounter,
    DestinationCounter,
    LineCounter,
    NodeCounter,
    QueueCounter,
    as_dict,
)
from feedhandler.ingest.states import State as ArbitrationState
from feedhandler.observe.metrics import AnyReading, HistogramReading, Reading, StateReading
from feedhandler.retrans.quality import State as QualityStateName
from feedhandler.retrans.states import State as RecoveryState

if TYPE_CHECKING:
    from feedhandler.gateway.process import Gateway

_QUALITIES = tuple(each.value for each in QualityStateName)
_ARBITRATIONS = tuple(each.name for each in ArbitrationState)
_CONNECTIONS = tuple(each.value for each in PublisherState)
_RECOVERIES = tuple(each.name for each in RecoveryState)

_OVERLAY_VALUES = {*OVERLAY_COUNTS, *OVERLAY_GAUGES}
_TCP_LINE_VALUES = {*TCP_LINE_COUNTS, *GAUGES["tcp_line"]}
_QUEUE_VALUES = {each.name.lower() for each in QueueCounter} | {*GAUGES["queue"]}
_DESTINATION_VALUES = {each.name.lower() for each in DestinationCounter} | {*GAUGES["destination"]}


def readings(gateway: "Gateway") -> Iterator[AnyReading]:
    """Yield everything that is counted or measured in `gateway`."""
    yield from _lines(gateway)
    yield from _overlay(gateway)
    yield from _tcp_lines(gateway)
    for channel_index in range(len(gateway.streams)):
        yield from _channel(gateway, channel_index)
    yield from _recovery(gateway)
    yield from _node(gateway)
    yield from _books(gateway)
    for counts in gateway.queues.snapshot():
        values = {key: value for key, value in counts.items() if key in _QUEUE_VALUES}
        yield Reading("queue", {**values, "up": counts["state"] == "open"}, (counts["name"],))
    yield from _process(gateway)


def _lines(gateway: "Gateway") -> Iterator[Reading]:
    """Yield each socket once, refresh lines included, and what recovery brought as a line `R`."""
    receiver = gateway.receiver
    rows = {line.name: row for row, line in enumerate(receiver.lines)} | receiver.recovered_rows
    for name, row in rows.items():
        service, _, line = name.partition("/")
        values = as_dict(LineCounter, receiver.line_counters[row])
        yield Reading("line", values, (service, line))
    ring = receiver.ring
    yield Reading(
        "receiver",
        {
            "ring_waits": receiver.ring_waits,
            "ring_bytes": ring.capacity,
            "ring_used_bytes": ring.published - ring.tail,
            "ring_high_bytes": receiver.ring_high_bytes,
        },
    )


def _overlay(gateway: "Gateway") -> Iterator[Reading]:
    """Yield the receivers of lines that come through the overlay."""
    for counts in gateway.overlay.snapshot() if gateway.overlay is not None else ():
        values = {key: value for key, value in counts.items() if key in _OVERLAY_VALUES}
        yield Reading("overlay_member", values, (str(counts["tree"]), counts["member"]))


def _tcp_lines(gateway: "Gateway") -> Iterator[Reading]:
    """Yield the connections of lines that come by TCP."""
    for counts in gateway.tcp_lines.snapshot() if gateway.tcp_lines is not None else ():
        service, _, line = str(counts["line"]).partition("/")
        values = {key: value for key, value in counts.items() if key in _TCP_LINE_VALUES}
        yield Reading("tcp_line", values, (service, line))


def _channel(gateway: "Gateway", channel_index: int) -> Iterator[AnyReading]:
    stream, quality = gateway.streams[channel_index], gateway.qualities[channel_index]
    labels = (str(stream.service),)
    counts = gateway.core.recovery.snapshot(channel_index)
    yield Reading(
        "channel",
        {
            **as_dict(ChannelCounter, gateway.receiver.channel_counters[channel_index]),
            "next_sequence": stream.next_sequence,
            "lost_ranges": quality.lost_ranges,
            "lost_numbers": quality.lost_total,
            "unhealed_ranges": len(counts["lost"]),
            "requested_ranges": len(counts["requested"]),
            "closed": counts["closed"],
            "latency_max_seconds": stream.latency.maximum / 1e9,
            "links": len({*stream.whole, *stream.fine, *stream.takes_records}),
            "store_bytes": 0 if stream.store is None else stream.store.bytes,
            "history_bytes": 0 if stream.history is None else stream.history.held_bytes,
        },
        labels,
    )
    yield Reading("channel_recovery", counts["counts"], labels)
    yield Reading("channel_refresh", counts["refresh"], labels)
    arbiter = gateway.receiver.arbiters[channel_index]
    yield StateReading("quality", labels, quality.state.value, _QUALITIES)
    yield StateReading("arbitration", labels, arbiter.state_name, _ARBITRATIONS)
    yield StateReading("recovery", labels, counts["state"], _RECOVERIES)
    yield HistogramReading("channel_latency_seconds", labels, stream.latency.counts())


def _recovery(gateway: "Gateway") -> Iterator[Reading]:
    snapshot = dict(gateway.core.recovery_snapshot(gateway.runner.now_ns()))
    servers: Mapping[str, Mapping[str, Any]] = snapshot.pop("servers")
    yield Reading("recovery", snapshot)
    for name, counts in servers.items():
        values = {key: value for key, value in counts.items() if key != "paused_until_ns"}
        yield Reading("server", values, (name,))


def _node(gateway: "Gateway") -> Iterator[AnyReading]:
    node = gateway.node
    counts = gateway.node_snapshot()
    known = {each.name.lower() for each in NodeCounter} | {*GAUGES["node"]}
    yield Reading("node", {name: counts[name] for name in known})
    for labels, values in gateway.subscriptions.rows():
        yield Reading("subscription", values, labels)
    for publisher in gateway.publishers.all:
        yield from _destination(publisher)
    for stage, histogram in {**node.stages, **gateway.watch.stages}.items():
        yield HistogramReading("stage_seconds", (stage,), histogram.counts())


def _books(gateway: "Gateway") -> Iterator[Reading]:
    """Yield the books of which normalised records are made, where they are kept."""
    if gateway.core.record_fanout is not None:
        yield Reading("books", gateway.core.record_fanout.snapshot())


def _destination(publisher: Publisher) -> Iterator[AnyReading]:
    counts, labels = publisher.snapshot(), (publisher.config.name,)
    values = {key: value for key, value in counts.items() if key in _DESTINATION_VALUES}
    values["up"] = counts["state"] == PublisherState.UP.value
    yield Reading("destination", values, labels)
    yield StateReading("connection", labels, counts["state"], _CONNECTIONS)
    latency = publisher.destination.unsettled.latency
    yield HistogramReading("destination_confirm_seconds", labels, latency.counts())


def _process(gateway: "Gateway") -> Iterator[Reading]:
    recorder = gateway.recorder.snapshot()
    yield Reading(
        "recorder",
        {
            "recording": recorder["state"] == "recording",
            "directory_bytes": recorder["bytes"],
            "recovered": recorder["recovered"],
        },
    )
    for name, series in recorder["series"].items():
        counts = {key: value for key, value in series.items() if key != "file"}
        yield Reading("recorder_series", counts, (name,))
    watch = gateway.watch
    yield Reading("control", gateway.control.counts)
    yield Reading("web", watch.web_counts())
    yield Reading("log", operator_log.current().counts)
    yield Reading("gateway", {"live": not watch.not_live(), "ready": not watch.not_ready()})
