"""The metrics: everything that is counted is there, with its meaning, as Prometheus reads it."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from prometheus_client.parser import text_string_to_metric_families

from feedhandler import counters, operator_log, rpc
from feedhandler.config import AmqpConfig, Config, loopback_config
from feedhandler.config.observing import MetricsConfig
from feedhandler.config.publishing import PublishConfig
from feedhandler.config.recording import RecordConfig
from feedhandler.counters import HIGH_WATER, ChannelCounter, Counter, LineCounter
from feedhandler.gateway import Gateway
from feedhandler.gateway.readings import readings
from feedhandler.histogram import Histogram
from feedhandler.observe import metrics
from feedhandler.observe.metrics import (
    BOUNDS_NS,
    SCOPES,
    Gathering,
    HistogramReading,
    Reading,
    StateReading,
    buckets_of,
)
from feedhandler.retrans import client, failover, manager, recovery, refresh
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

SERVICES = (101, 104)


def config(**sections: Any) -> Config:
    """A gateway with everything that it can have."""
    return loopback_config(
        services=SERVICES,
        with_servers=True,
        metrics=MetricsConfig(listen="127.0.0.1:0"),
        publish=(PublishConfig(name="rabbit", to="amqp://127.0.0.1:5673", exchange="feed"),),
        **sections,
    )


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    """A gateway that was never started."""
    folder = tmp_path_factory.mktemp("recordings")
    return Gateway(
        config(record=RecordConfig(dir=str(folder), what="both"), amqp=AmqpConfig(records=True))
    )


def parsed(given: Iterator[Any]) -> dict[str, Any]:
    """The families by name, out of the text and back."""
    gathering = Gathering()
    for reading in given:
        gathering.add(reading)
    whole = b"".join(metrics.text(gathering.families())).decode()
    return {family.name: family for family in text_string_to_metric_families(whole)}


@pytest.fixture(scope="module")
def families(gateway: Gateway) -> dict[str, Any]:
    """Return the gateway's metric families, by name."""
    return parsed(readings(gateway))


#: Every enumeration and table of counters there is: the scope it is exported under, and its names.
ENUMERATIONS = {
    "line": counters.LineCounter,
    "channel": counters.ChannelCounter,
    "node": counters.NodeCounter,
    "queue": counters.QueueCounter,
    "recorder_series": counters.RecorderCounter,
    "subscription": counters.SubscriptionCounter,
    "destination": counters.DestinationCounter,
    "web": counters.WebCounter,
    "receiver": counters.ReceiverCounter,
}
TABLES = {
    "channel_recovery": recovery.COUNTS,
    "channel_refresh": refresh.COUNTS,
    "recovery": {**manager.COUNTS, **counters.RECOVERY_IO_COUNTS},
    "server": client.COUNTS,
    "books": counters.BOOK_COUNTS,
    "control": rpc.COUNTS,
    "log": operator_log.COUNTS,
}


@pytest.mark.parametrize("scope", ENUMERATIONS)
def test_every_counter_of_every_enumeration_is_exported_with_its_meaning(
    families: dict[str, Any], scope: str
) -> None:
    for each in ENUMERATIONS[scope]:
        family = families[f"feedhandler_{scope}_{each.name.lower()}"]
        is_high = any(each is high for high in HIGH_WATER)
        assert family.type == ("gauge" if is_high else "counter"), each
        assert family.documentation == each.meaning


def test_no_enumeration_of_counters_is_forgotten() -> None:
    known = {scope for scope in Counter.__subclasses__() if scope.__module__ == counters.__name__}
    assert known <= set(ENUMERATIONS.values())


@pytest.mark.parametrize("scope", TABLES)
def test_every_count_of_every_table_is_exported_with_its_meaning(
    families: dict[str, Any], scope: str
) -> None:
    for name, meaning in TABLES[scope].items():
        family = families[f"feedhandler_{scope}_{name}"]
        assert family.type == "counter"
        assert family.documentation == meaning


def test_what_the_client_of_any_protocol_counts_is_exported() -> None:
    known = SCOPES["server"].counts.keys()
    protocols = (moldudp64, iex_tp, nyse_xdp, cboe_grp, cboe_spin, glimpse, cme_replay)
    for module in (client, resend_client, state_client, failover, *protocols):
        assert module.COUNTS.keys() <= known, module.__name__


def test_every_gauge_and_state_is_exported(families: dict[str, Any]) -> None:
    for scope, gauges in counters.GAUGES.items():
        for name, meaning in gauges.items():
            assert families[f"feedhandler_{scope}_{name}"].documentation == meaning
    for machine in counters.STATES:
        samples = families[f"feedhandler_channel_{machine}_state"].samples
        holding = [(s.labels["service"], s.labels["state"]) for s in samples if s.value == 1]
        assert [service for service, _ in holding] == ["101", "104"]


def test_no_two_metrics_have_one_name() -> None:
    names = [family.name for family in Gathering().families()]
    assert len(names) == len(set(names))


def test_each_line_server_channel_and_series_has_its_own_samples(
    families: dict[str, Any],
) -> None:
    lines = families["feedhandler_line_packets"].samples
    assert {(s.labels["service"], s.labels["line"]) for s in lines} == {
        (str(service), line)
        for service in SERVICES
        for line in ("A", "B", "refresh/A", "refresh/B", "R")
    }
    assert {s.labels["service"] for s in families["feedhandler_channel_gaps"].samples} == {
        "101",
        "104",
    }
    brokers = families["feedhandler_destination_confirmed"].samples
    assert {s.labels["destination"] for s in brokers} == {"rabbit"}
    connections = families["feedhandler_destination_connection_state"].samples
    assert [s.labels["state"] for s in connections if s.value == 1] == ["CLOSED"]
    confirm = families["feedhandler_destination_confirm_seconds"].samples
    assert {s.labels["destination"] for s in confirm} == {"rabbit"}
    series = families["feedhandler_recorder_series_files"].samples
    assert {s.labels["series"] for s in series} == {"lines", "published"}


def test_the_values_are_the_counters(gateway: Gateway) -> None:
    receiver = gateway.receiver
    receiver.channel_counters[1][ChannelCounter.LOST] = 17
    receiver.line_counters[1][LineCounter.KERNEL_DROPS] = 5
    found = parsed(readings(gateway))
    values = {s.labels["service"]: s.value for s in found["feedhandler_channel_lost"].samples}
    assert values == {"101": 0, "104": 17}
    drops = found["feedhandler_line_kernel_drops"].samples
    assert [(s.labels["service"], s.labels["line"]) for s in drops if s.value == 5] == [
        ("101", "B")
    ]
    assert all(s.name.endswith("_total") for s in drops)


def test_how_long_a_broker_takes_to_confirm_is_a_histogram_in_seconds(gateway: Gateway) -> None:
    (publisher,) = gateway.publishers.all
    publisher.destination.unsettled.latency.record(3_000_000)
    publisher.destination.unsettled.latency.record(4_000_000_000)
    family = parsed(readings(gateway))["feedhandler_destination_confirm_seconds"]
    assert family.type == "histogram"
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert buckets["+Inf"] == 2
    within_a_second = [count for bound, count in buckets.items() if 0.01 < float(bound) < 1]
    assert {*within_a_second} == {1}
    confirm_ns = publisher.snapshot()["confirm_ns"]
    assert confirm_ns["max"] == 4_000_000_000
    assert confirm_ns["p50"] < confirm_ns["p99"]


def test_a_name_that_no_table_has_is_an_error() -> None:
    with pytest.raises(KeyError):
        Gathering().add(Reading("node", {"unheard_of": 1}))


def test_labels_are_escaped() -> None:
    hostile = 'euronext."104"\\\n#?as=message'
    found = parsed(iter([Reading("subscription", {"sent": 1}, ("10.0.0.1", hostile))]))
    (sample,) = found["feedhandler_subscription_sent"].samples
    assert sample.labels == {"peer": "10.0.0.1", "address": hostile}


def test_the_text_in_slices_is_the_text_at_once() -> None:
    def given() -> Iterator[Any]:
        for number in range(300):
            yield Reading("line", {"packets": number, "bytes": 2 * number}, (str(number), "A"))
            yield HistogramReading("channel_latency_seconds", (str(number),), Histogram().counts())

    gathering = Gathering()
    for reading in given():
        gathering.add(reading)
    pieces = list(metrics.text(gathering.families()))
    assert max(piece.count(b"\n") for piece in pieces) <= metrics.SLICE_SAMPLES + 2
    assert b"".join(pieces).count(b"# TYPE feedhandler_line_packets_total counter") == 1
    found = parsed(given())
    assert [s.value for s in found["feedhandler_line_packets"].samples] == list(range(300))


def test_states_are_one_for_the_one_that_holds() -> None:
    found = parsed(iter([StateReading("quality", ("104",), "OK", ("OK", "STALE"))]))
    samples = found["feedhandler_channel_quality_state"].samples
    assert {s.labels["state"]: s.value for s in samples} == {"OK": 1, "STALE": 0}


def test_histograms_are_cumulative_and_put_no_value_below_its_bound() -> None:
    histogram = Histogram()
    rng = numpy.random.default_rng(7)
    values = [*(10 ** rng.uniform(2, 11, 2000)).astype(int).tolist(), 0, 10_000, 10**10, 2**50]
    for value in values:
        histogram.record(value)
    buckets, total = buckets_of(histogram.counts())
    assert [float(bound) for bound, _ in buckets[:-1]] == [bound / 1e9 for bound in BOUNDS_NS]
    found = [count for _, count in buckets]
    assert found == sorted(found)
    assert buckets[-1] == ("+Inf", len(values))
    for (_, count), bound in zip(buckets, BOUNDS_NS, strict=False):
        assert sum(value <= bound * 0.96 for value in values) <= count
        assert count <= sum(value <= bound for value in values)
    within = [value for value in values if value < 2**42]
    exact = (sum(within) + 2**42) / 1e9
    assert total == pytest.approx(exact, rel=0.03)


def test_an_empty_histogram_is_all_zeros() -> None:
    buckets, total = buckets_of(Histogram().counts())
    assert {count for _, count in buckets} == {0}
    assert total == 0


def test_every_scope_has_labels_and_meanings() -> None:
    for scope in SCOPES.values():
        assert scope.counts or scope.gauges
        assert all(scope.counts.values())
        assert all(scope.gauges.values())
