"""Symbol-level subscriptions: the cost of finding a message's receivers, and of delivery.

A node in this process over 2,000 symbols, 10 to 1,000 of them subscribed to by their exact keys: on
one link, or each on a link of its own over four connections. Half of the messages are of subscribed
symbols, however many those are, so that only the number of subscriptions differs. What is measured
is the processor time of the node's own thread, in nanoseconds a message:

- routing: the links ask for a message type that never comes (`types=`), so every route is found and
  followed and nothing is delivered;
- delivery: the same with the type that comes, less the routing, by delivery.

The bar: from 10 to 1,000 subscriptions each of the two grows by less than 20 %. Then the cache of
routes: how often it has the answer on bursty and on shuffled traffic, with room for all symbols and
for a quarter of them, and what a message costs that it has the answer for or not.
"""

import asyncio
import contextlib
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import uvloop

from bench.local import KEY, LocalClient, LocalNode, clients_beside, order, packet_of

SYMBOLS = 2000
FIRST_SYMBOL = 10_000
SUBSCRIPTIONS = (10, 100, 1000)
#: Growth from the fewest to the most subscriptions.
GROWTH_BAR = 0.2
CONNECTIONS = 4
MESSAGES_A_PACKET = 5
#: One hand-over: as much as comes in some milliseconds of a busy moment.
PACKETS = 200
MESSAGES = PACKETS * MESSAGES_A_PACKET
#: Different hand-overs, so that no branch predictor learns one by heart.
LOADS = 20
#: The share of messages that are of subscribed symbols.
WANTED_SHARE = 0.5
COMES, NEVER_COMES = 230, 140
CREDIT = 8000
PAUSE_SECONDS = 0.002
#: Source paper, section 2.2: the share of a symbol's repeats that follow within a millisecond.
REPEAT_SHARE = 0.7
#: How many messages back a repeat looks.
RECENT = 8
SMOKE: dict[str, object] = {"SUBSCRIPTIONS": (10,)}

Load = list[tuple[bytes, int]]


def packets_of(symbols: list[int]) -> Load:
    """Return packets of five order updates each, of these symbols."""
    return [
        (packet_of(order(FIRST_SYMBOL + each) for each in symbols[at : at + 5]), 5)
        for at in range(0, len(symbols), MESSAGES_A_PACKET)
    ]


def mixed(chance: random.Random, wanted: list[int], others: list[int], count: int) -> list[int]:
    """Return symbols of which `WANTED_SHARE` are of the wanted ones."""
    return [
        chance.choice(wanted if chance.random() < WANTED_SHARE else others) for _ in range(count)
    ]


def shuffled(chance: random.Random, count: int) -> list[int]:
    """Return symbols in no order."""
    return [chance.randrange(SYMBOLS) for _ in range(count)]


def bursty(chance: random.Random, count: int) -> list[int]:
    """Return symbols of which `REPEAT_SHARE` repeat one of the last few."""
    found = shuffled(chance, RECENT)
    while len(found) < count:
        repeats = chance.random() < REPEAT_SHARE
        found.append(chance.choice(found[-RECENT:]) if repeats else chance.randrange(SYMBOLS))
    return found[:count]


def addresses(spread: str, keys: list[str], message_type: int) -> list[list[str]]:
    """Return the addresses that each connection attaches to, so that each key is bound once."""
    options = f"?as=message&quality=0&types={message_type}"
    if spread == "one link":
        return [[",".join(keys) + options]]
    return [
        [key + options for key in keys[number::CONNECTIONS]]
        for number in range(min(CONNECTIONS, len(keys)))
    ]


@dataclass
class Case:
    """One node with its traffic, and what its hand-overs took."""

    loads: list[Load]
    node: LocalNode = field(default_factory=lambda: LocalNode(max_links=2 * SYMBOLS))
    spent_ns: list[float] = field(default_factory=list)

    async def round(self, kept: bool) -> None:
        """Route each load twice: once to have it in the caches, once for the clock."""
        for load in self.loads:
            for timed in (False, True):
                self.node.put(load)
                began = time.thread_time_ns()
                while self.node.node.pump():
                    pass
                spent = time.thread_time_ns() - began
                if timed and kept:
                    self.spent_ns.append(spent / MESSAGES)
            # Time for the clients to receive it all, and to give their credit back.
            await asyncio.sleep(PAUSE_SECONDS)


async def subscriptions(spread: str, rounds: int) -> dict[int, dict[str, float]]:
    """Return routing and delivery in nanoseconds, by the number of subscriptions."""
    chance = random.Random(20261121)
    cases: dict[tuple[int, int], Case] = {}
    stack = contextlib.AsyncExitStack()
    for count in SUBSCRIPTIONS:
        symbols = chance.sample(range(SYMBOLS), SYMBOLS)
        wanted, others = symbols[:count], symbols[count:]
        loads = [packets_of(mixed(chance, wanted, others, MESSAGES)) for _ in range(LOADS)]
        keys = [f"{KEY}.{FIRST_SYMBOL + symbol}" for symbol in wanted]
        for message_type in (NEVER_COMES, COMES):
            case = cases[count, message_type] = Case(loads)
            stack.push_async_callback(case.node.node.stop, 0.1)
            asked = addresses(spread, keys, message_type)
            port = case.node.node.address[1]
            await stack.enter_async_context(clients_beside(port, asked, CREDIT))
    async with stack:
        for number in range(rounds + 1):
            for case in cases.values():
                await case.round(kept=number > 0)
    found = {}
    for count in SUBSCRIPTIONS:
        routing = statistics.median(cases[count, NEVER_COMES].spent_ns)
        whole = statistics.median(cases[count, COMES].spent_ns)
        found[count] = {"routing_ns": routing, "delivery_ns": (whole - routing) / WANTED_SHARE}
    return found


async def cache(pattern: str, symbols_max: int, rounds: int) -> dict[str, float]:
    """Return the route cache's hits, and the cost of a message, on one kind of traffic."""
    chance = random.Random(20261121)
    draw = bursty if pattern == "bursty" else shuffled
    node = LocalNode(max_symbols=symbols_max, max_links=2 * SYMBOLS)
    client = LocalClient(node.node.address[1])
    keys = [f"{KEY}.{FIRST_SYMBOL + symbol}" for symbol in range(0, SYMBOLS, 2)]
    await client.attach(addresses("one link", keys, NEVER_COMES)[0], CREDIT)
    spent = []
    loads = [packets_of(draw(chance, MESSAGES)) for _ in range(LOADS)]
    for load in loads * rounds:
        node.put(load)
        began = time.thread_time_ns()
        while node.node.pump():
            pass
        spent.append((time.thread_time_ns() - began) / MESSAGES)
    hits = node.fanout.route_hits / node.fanout.route_lookups
    # The first hand-overs of a cache with room for all fill it: what follows is what it costs.
    kept = spent[LOADS:] if rounds > 1 else spent
    client.close()
    await node.node.stop(0.1)
    return {"hits": hits, "ns": statistics.median(kept)}


async def _without(rounds: int) -> float:
    """Return a message's cost in ns with its route not cached: each symbol once, then forgotten."""
    node = LocalNode(max_links=2 * SYMBOLS)
    client = LocalClient(node.node.address[1])
    keys = [f"{KEY}.{FIRST_SYMBOL + symbol}" for symbol in range(0, SYMBOLS, 2)]
    await client.attach(addresses("one link", keys, NEVER_COMES)[0], CREDIT)
    load, spent = packets_of(list(range(SYMBOLS))), []
    for _ in range(rounds):
        node.put(load)
        began = time.thread_time_ns()
        while node.node.pump():
            pass
        spent.append((time.thread_time_ns() - began) / SYMBOLS)
        node.stream.forget_routes()
    client.close()
    await node.node.stop(0.1)
    return statistics.median(spent)


def growth(found: dict[int, dict[str, float]], what: str) -> float:
    """Return the growth from the fewest to the most subscriptions."""
    return found[max(found)][what] / found[min(found)][what] - 1


def run(quick: bool = False) -> dict[str, Any]:
    """Measure routing and delivery by the number of subscriptions; then the cache."""
    rounds = 2 if quick else 6
    found: dict[str, Any] = {"growth_bar": GROWTH_BAR}
    for spread in ("one link", "a link each"):
        by_count = uvloop.run(subscriptions(spread, rounds))
        grown = {what: growth(by_count, what) for what in ("routing_ns", "delivery_ns")}
        found[spread] = {"by_subscriptions": by_count, "growth": grown}
        for count, costs in by_count.items():
            print(
                f"  {count} symbols on {spread}: routing {costs['routing_ns']:.0f} ns a message, "
                f"delivery {costs['delivery_ns']:.0f} ns"
            )
        print(
            f"  growth on {spread}: routing {grown['routing_ns']:+.0%}, delivery "
            f"{grown['delivery_ns']:+.0%} (bar {GROWTH_BAR:+.0%})"
        )
    found["cache"] = {"without_ns": uvloop.run(_without(4 * rounds))}
    print(f"  a route that has to be found: {found['cache']['without_ns']:.0f} ns a message")
    for pattern in ("bursty", "shuffled"):
        for room in (SYMBOLS, SYMBOLS // 4):
            seen = found["cache"][f"{pattern}, room for {room}"] = uvloop.run(
                cache(pattern, room, rounds)
            )
            print(
                f"  cache with room for {room} of {SYMBOLS} symbols, {pattern}: "
                f"{seen['hits']:.1%} hits, {seen['ns']:.0f} ns a message"
            )
    return found
