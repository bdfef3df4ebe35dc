"""Dispatch by key alone, without queue, disk or clients: what a message costs, and what it takes.

A cycle is a message's whole way through `feedhandler.keyed.dispatch`: taken in, handed to one of
the workers, ended. Messages have one of 10,000 keys, uniform or by Zipf's law, and come and go in
hand-overs, as the node has them. Beside the rate with hardly anything waiting stands that with a
million messages waiting, since no step may depend on how many wait. Memory is what a fresh
process grows by while messages of so many keys wait.

The peer is the obvious program in Python: a `deque` of messages for each key, a `deque` of
keys that are ready, the same hand-overs.
"""

import gc
import multiprocessing
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy

from feedhandler.keyed.dispatch import Dispatch
from tests.support.processes import resident_bytes

KEYS = 10_000
#: Messages of a hand-over, and how many are with workers at a time.
BATCH = 256
FLIGHT = 1024
WORKERS = 8
CYCLES = 2_000_000
WAITING = 1_000_000
PEER_CYCLES = 200_000
TURNS = 3
BAR_A_SECOND = 1_000_000
GOAL_A_SECOND = 3_000_000
BAR_BYTES = 64
SMOKE: dict[str, object] = {
    "CYCLES": 20_000, "WAITING": 10_000, "PEER_CYCLES": 5_000, "TURNS": 1
}  # fmt: skip


def keys_of(count: int, zipf: float, seed: int = 1) -> Any:
    """Return numbers of keys: uniform where `zipf` is 0."""
    draw = numpy.random.default_rng(seed)
    if not zipf:
        return draw.integers(0, KEYS, count)
    weights = 1 / numpy.arange(1, KEYS + 1) ** zipf
    return draw.choice(KEYS, count, p=weights / weights.sum())


def digests_of(keys: Any) -> Any:
    """Return two words for each key, as a hash would make them."""
    words = numpy.random.default_rng(7).integers(0, 1 << 63, (KEYS, 2), dtype=numpy.uint64)
    return numpy.ascontiguousarray(words[keys]).reshape(-1)


def cycles_a_second(waiting: int, zipf: float, cycles: int) -> float:
    """Return how many messages a second go their whole way while `waiting` others wait."""
    dispatch = Dispatch(waiting + FLIGHT + BATCH)
    total = waiting + FLIGHT + cycles
    numbers = numpy.arange(1, total + 1, dtype=numpy.uint64)
    digests = digests_of(keys_of(total, zipf))
    slots = numpy.zeros(total, numpy.int32)
    first = waiting + FLIGHT
    assert dispatch.enqueue_many(numbers[:first], digests[: 2 * first], slots) == first
    room = numpy.zeros(BATCH, numpy.int32)
    flights: deque[Any] = deque()
    done, worker = 0, 0
    at = first
    began = time.perf_counter()
    while at < total:
        worker = worker % WORKERS + 1
        while len(flights) * BATCH < FLIGHT:
            taken = dispatch.take_many(worker, room)
            if not taken:
                break
            flights.append(room[:taken].copy())
        ended = flights.popleft()
        dispatch.end_many(ended)
        done += len(ended)
        size = min(len(ended), total - at)
        end = at + size
        dispatch.enqueue_many(numbers[at:end], digests[2 * at : 2 * end], room[:size])
        at = end
    return done / (time.perf_counter() - began)


def peer_cycles_a_second(zipf: float, cycles: int) -> float:
    """Return the same rate in plain Python, with only those waiting that are with workers."""
    total = FLIGHT + cycles
    keys = keys_of(total, zipf).tolist()
    queues: dict[int, deque[int]] = {}
    ready: deque[int] = deque()
    flying: deque[tuple[int, int]] = deque()

    def enqueue(number: int) -> None:
        queue = queues.setdefault(keys[number], deque())
        queue.append(number)
        if len(queue) == 1:
            ready.append(keys[number])

    for number in range(FLIGHT):
        enqueue(number)
    done, began = 0, time.perf_counter()
    for number in range(FLIGHT, total):
        while ready and len(flying) < FLIGHT:
            key = ready.popleft()
            flying.append((key, queues[key][0]))
        key, _ = flying.popleft()
        queue = queues[key]
        queue.popleft()
        if queue:
            ready.append(key)
        else:
            del queues[key]
        done += 1
        enqueue(number)
    return done / (time.perf_counter() - began)


def bytes_a_message(count: int, keys: int) -> float:
    """Return by how much the process grows for each waiting message, of so many keys."""
    numbers = numpy.arange(1, count + 1, dtype=numpy.uint64)
    draw = numpy.random.default_rng(3)
    words = draw.integers(0, 1 << 63, (keys, 2), dtype=numpy.uint64)
    # Nothing is freed before the end, or its pages would be taken for the messages'.
    which = numpy.arange(count)
    remainders = which % keys
    digests = words[remainders].reshape(-1)
    slots = numpy.ones(count, numpy.int32)
    gc.collect()
    before = resident_bytes()
    dispatch = Dispatch(count)
    assert dispatch.enqueue_many(numbers, digests, slots) == count
    grown = resident_bytes() - before
    assert dispatch.count == len(which)
    return grown / count


def best_of(measure: Callable[[], float]) -> float:
    """Return the best of some turns: slower ones were disturbed by other processes."""
    return max(measure() for _ in range(TURNS))


def run(quick: bool = False) -> dict[str, Any]:
    """Measure, printing as it goes."""
    cycles = CYCLES // 4 if quick else CYCLES
    found: dict[str, Any] = {"name": "dispatch by key", "bar": BAR_A_SECOND, "problems": []}
    for name, waiting, zipf in (
        ("uniform", 0, 0.0), ("zipf_1", 0, 1.0), ("uniform_waiting", WAITING, 0.0),
    ):  # fmt: skip
        rate = best_of(lambda waiting=waiting, zipf=zipf: cycles_a_second(waiting, zipf, cycles))
        found[f"{name}_per_s"] = round(rate)
        print(
            f"  {name.replace('_', ' '):16} {rate:12,.0f} cycles/s"
            f" (bar {BAR_A_SECOND:,}, goal {GOAL_A_SECOND:,})", flush=True,
        )  # fmt: skip
    peer = best_of(lambda: peer_cycles_a_second(0.0, PEER_CYCLES))
    found["times_peer"] = round(found["uniform_per_s"] / peer, 2)
    print(f"  deques in Python {peer:12,.0f} cycles/s: {found['times_peer']:.1f} times that")
    for keys in (KEYS, WAITING):
        with multiprocessing.get_context("spawn").Pool(1) as fresh:
            size = fresh.apply(bytes_a_message, (WAITING, min(keys, WAITING)))
        found[f"message_of_{keys}_keys_bytes"] = round(size, 1)
        print(f"  {WAITING:,} waiting of {keys:,} keys: {size:.1f} bytes each (bar {BAR_BYTES})")
    found["ok"] = found["uniform_per_s"] >= BAR_A_SECOND
    return found
