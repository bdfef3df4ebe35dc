"""Runs that did not take place: results from a seed, for what makes reports of them."""

import random

import numpy

from feedhandler.histogram import Histogram
from feedhandler.lab.results import (
    ClientResult,
    Latency,
    Loads,
    Mode,
    Run,
    Sent,
    Step,
    Sweep,
    Traffic,
    Trial,
    Verdict,
    merged,
)

STARTED = "2026-03-02T08:00:00Z"
SECONDS = 60.0
BAR = "lab at 40 Mbps"
#: The paper's numbers of clients.
CLIENTS = {"packets": (1, 2, 4, 6, 8, 10), "messages": (1, 2, 3, 4, 5)}


def latency_of(histogram: Histogram) -> Latency:
    """Return the latencies that a histogram has counted so far."""
    return Latency(
        count=int(histogram.count),
        sum_ns=int(histogram.total),
        min_ns=int(histogram.minimum),
        max_ns=int(histogram.maximum),
        buckets=histogram.counts(),
    )


def latency(chance: random.Random, median_us: float, count: int = 4000) -> Latency:
    """A distribution with a tail."""
    histogram = Histogram()
    for _ in range(count):
        histogram.record(int(median_us * 1000 * chance.lognormvariate(0, 0.5)))
    for _ in range(count // 200):
        histogram.record(int(median_us * 1000 * chance.uniform(5, 60)))
    return latency_of(histogram)


def loads(chance: random.Random, role: str, processes: int, busy: float, mb_s: float) -> Loads:
    """A role's load, twice a second."""
    t_s = numpy.arange(1, 2 * SECONDS + 1) / 2
    noise = numpy.array([chance.gauss(1, 0.06) for _ in t_s])
    return Loads(
        role=role,
        processes=processes,
        t_s=t_s,
        user_cpu=0.7 * busy * noise,
        system_cpu=0.3 * busy * noise,
        rss_bytes=(60 + 10 * noise) * processes * 2**20,
        net_in_bytes=mb_s * 1e6 * t_s,
        net_out_bytes=mb_s * 1.1e6 * t_s,
    )


def step(
    seed: int,
    clients: int,
    scenario: str = "packets",
    exchange: str = "direct",
    broker: str = "embedded",
    mode: Mode = "direct",
    lost: int = 0,
) -> Step:
    """One measurement; `lost`: what the first client lacks."""
    chance = random.Random(f"{seed}/{clients}/{scenario}/{exchange}/{broker}")
    median_us = (60 + 8 * clients) * (2 if broker != "embedded" else 1)
    grain = "packet" if scenario == "packets" else "message"
    expected = 426_000 if scenario == "packets" else 2_151_000
    results = [
        ClientResult(
            number=number,
            expected=expected,
            received=expected - (lost if number == 1 else 0),
            lost=lost if number == 1 else 0,
            body_bytes=expected * 288,
            latency=latency(chance, median_us),
        )
        for number in range(1, clients + 1)
    ]
    whole = merged(each.latency for each in results)
    (p50,) = whole.percentiles(0.5)
    verdicts = [
        Verdict(
            bar="lab at 40 Mbps", quantity="p50", found_ns=p50, bound_ns=90_000, met=p50 < 90_000
        ),
        Verdict(bar="lab at 40 Mbps", quantity="lost", found_ns=0, bound_ns=0, met=not lost),
    ]
    feed_bytes = 122_500_000
    sent = Sent(packets=426_000, messages=2_151_000, payload_bytes=feed_bytes)
    sent.duration_ns = int(SECONDS * 1e9)
    taken = clients * int(1.3 * feed_bytes)
    return Step(
        scenario=scenario,  # type: ignore[arg-type]
        exchange=exchange,  # type: ignore[arg-type]
        clients=clients,
        broker=broker,
        mode=mode,
        grain=grain,
        rate_bps=40e6,
        duration_s=SECONDS,
        started=STARTED,
        sent=sent,
        results=results,
        latency=whole,
        loads=[
            loads(chance, "replayer", 1, 0.12, 4.9),
            loads(chance, "gateway", 1, 0.2 + 0.02 * clients, 2.2),
            *([loads(chance, "broker", 1, 0.6, 2.2)] if broker != "embedded" else []),
            loads(chance, "clients", clients, 0.08 * clients, 2.2 * clients),
        ],
        traffic=[
            Traffic(where="gateway", grain=grain, bytes_in=2 * feed_bytes, bytes_out=taken),
            Traffic(where="client", grain=grain, bytes_in=taken),
        ],
        queue_limit_bytes=500 * 2**20,
        verdicts=verdicts,
        findings=[f"client 1 lost {lost} packets"] if lost else [],
    )


def run(seed: int, *steps: Step, sweep: bool = False) -> Run:
    """A run of these steps."""
    trials = [
        Trial(value=40e6, found_ns=300_000, held=True),
        Trial(value=80e6, found_ns=500_000, held=True),
        Trial(value=160e6, found_ns=2_000_000, held=False, why="p90 is 2 ms"),
    ]
    found = Sweep(quantity="rate", bound="p90=1ms", trials=trials, held=80e6, failed=160e6)
    return Run(
        started=STARTED,
        configuration={"duration_s": SECONDS, "clients": [1, 2, 4], "gateway": {"hold_packets": 8}},
        machine={"processor": "a <fast> one", "processors": 2},
        versions={"feedhandler": "0.1", "python": "3.11"},
        seeds={"generator": seed},
        steps=list(steps),
        sweeps=[found] if sweep else [],
    )


def paper_like(seed: int) -> Run:
    """All four of the paper's experiments, with its numbers of clients, one of them before a
    broker as well."""
    steps = [
        step(seed, clients, scenario, exchange)
        for scenario, numbers in CLIENTS.items()
        for exchange in ("direct", "topic")
        for clients in numbers
    ]
    steps += [step(seed, clients, broker="rabbitmq-3") for clients in (1, 10)]
    steps.append(step(seed, 4, broker="rabbitmq-3", mode="paper"))
    return run(seed, *steps, sweep=True)
