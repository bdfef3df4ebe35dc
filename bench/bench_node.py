"""Messages of 300 bytes one by one to five subscribers: the embedded node beside the brokers.

One process feeds, five receive; between them is the node, which is in the feeding process as it is
in a gateway, or a broker with a topic exchange and a queue for each. Both ends are the project's
own engine every time, and RabbitMQ's queues need not outlive it. Everything shares two processors,
however many the machine has, and what each part uses of them is reported.
"""

import contextlib
import statistics
from typing import Any

from bench.peers import (
    EXCHANGE,
    MESSAGE_KEY,
    Absent,
    Rate,
    broker,
    child,
    feed,
    login_of,
    processors,
    publish_options,
    receive,
    transient_queue,
    watch,
)

SUBSCRIBERS = 5
MESSAGE_BYTES = 300
RATE_BAR = 600_000
#: How many times a broker's deliveries the node's must be.
TIMES_BARS = {"rabbitmq3": 10.0, "rabbitmq4": 10.0, "artemis": 5.0}
SECONDS, QUICK_SECONDS = 4.0, 2.0
WARM_UP_SECONDS = 1.0
PROCESSORS = 2
SMOKE: dict[str, object] = {
    "QUICK_SECONDS": 0.3,
    "WARM_UP_SECONDS": 0.2,
    "TIMES_BARS": {"rabbitmq3": 10.0},
}


def node_rate(seconds: float) -> Rate:
    """Return deliveries a second of the embedded node."""
    address = f"{MESSAGE_KEY}?as=message&quality=0"
    with contextlib.ExitStack() as stack:
        feeding = stack.enter_context(child(feed, MESSAGE_BYTES, None, SUBSCRIBERS))
        receiving = [
            stack.enter_context(child(receive, feeding.ready, {}, address))
            for _ in range(SUBSCRIBERS)
        ]
        return _watched(seconds, receiving, {"node": [feeding.process.pid]})


def broker_rate(name: str, seconds: float) -> Rate:
    """Return deliveries a second of a broker, fed by the gateway's publisher."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(broker(name))
        made.exchange(EXCHANGE)
        addresses = [transient_queue(made, f"bench.{number}") for number in range(SUBSCRIBERS)]
        receiving = [
            stack.enter_context(child(receive, made.port, login_of(made), address))
            for address in addresses
        ]
        feeding = stack.enter_context(child(feed, MESSAGE_BYTES, publish_options(made), 0))
        parts = {"gateway": [feeding.process.pid], "broker": [made.pid]}
        return _watched(seconds, receiving, parts)


def _watched(seconds: float, receiving: list[Any], parts: dict[str, list[int]]) -> Rate:
    watch(WARM_UP_SECONDS, receiving, {})
    return watch(
        seconds, receiving, {**parts, "subscribers": [each.process.pid for each in receiving]}
    )


def _shown(rate: Rate) -> str:
    used = ", ".join(f"{who} {share:.2f}" for who, share in rate.processors.items())
    return f"{rate.a_second:,.0f} deliveries/s; processors used: {used}"


def run(quick: bool = False) -> dict[str, Any]:
    """Measure the node and every broker that is installed; the node in turns with them."""
    with processors(PROCESSORS) as count:
        return {"processors": count, **_compare(QUICK_SECONDS if quick else SECONDS, count)}


def _compare(seconds: float, count: int) -> dict[str, Any]:
    rates = [node_rate(seconds)]
    problems: list[str] = []
    found: dict[str, Any] = {"rate_bar": RATE_BAR, "times_bars": TIMES_BARS, "problems": problems}
    print(f"  node: {_shown(rates[0])} (bar {RATE_BAR:,}); all on {count} processors")
    for name, bar in TIMES_BARS.items():
        try:
            rate = broker_rate(name, seconds)
        except Absent as reason:
            found[name] = {"left_out": str(reason)}
            print(f"  {name}: left out, {reason}")
            continue
        if not rate.a_second:
            problems.append(f"{name} delivered nothing")
        rates.append(node_rate(seconds))
        times = statistics.median(each.a_second for each in rates) / max(rate.a_second, 1.0)
        found[name] = {
            "a_second": rate.a_second, "processors": rate.processors, "node_times": times,
        }  # fmt: skip
        print(f"  {name}: {_shown(rate)}; the node has {times:.1f} times that (bar {bar:g})")
    found["node"] = {
        "a_second": statistics.median(each.a_second for each in rates),
        "runs": [vars(each) for each in rates],
    }
    if not all(each.a_second for each in rates):
        problems.append("the node delivered nothing")
    print(f"  node, median of {len(rates)}: {found['node']['a_second']:,.0f} deliveries/s")
    return found
