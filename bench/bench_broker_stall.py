"""RabbitMQ 3.10 stops reading for two minutes at full feed rate (`make bench-long`).

Its process is stopped with its connections open, at 7,100 packets a second; then it goes on. The
bars: no step of the feed's hand-over takes 10 ms or more meanwhile; nothing is lost on the feed's
way to the gateway's own subscriber; what waits for the broker comes to its bound and no further;
what is dropped there is counted, and is exactly what a stock client does not find later; within a
minute from going on everything that waited is confirmed, with the feed still running.
"""

import re
import threading
import time
import urllib.request
from typing import Any

from bench.broker_rig import EXCHANGE, BrokerRig, broker_rig, key, missing, read, seal

RATE = 7_100
BEFORE_SECONDS, STOPPED_SECONDS, AFTER_SECONDS = 5.0, 120.0, 60.0
QUICK_STOPPED_SECONDS = 30.0
#: Full after some 10 s of this feed.
QUEUE_BYTES = 32 * 2**20
#: Bars. The broker goes without word for longer than it is normally allowed.
STEP_NS, DRAINED_SECONDS = 10_000_000, 60.0
#: How near to its bound the queue must come.
FULL_SHARE = 0.98
STAGES = ("route", "write")
SMOKE: dict[str, object] = {
    "QUICK_STOPPED_SECONDS": 4.0,
    "BEFORE_SECONDS": 1.0,
    "AFTER_SECONDS": 2.0,
    "QUEUE_BYTES": 1 << 20,
    "FULL_SHARE": 0.5,
    "broker_rig.READER_NICENESS": 0,  # other benches run beside it
}


def slow_steps(rig: BrokerRig) -> dict[str, int]:
    """Return, by stage, how many steps took longer than the bar since the gateway's start."""
    with urllib.request.urlopen(rig.metrics, timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for stage in (*STAGES, "lag"):
        counts = {
            bound: float(count)
            for bound, count in re.findall(
                rf'^feedhandler_stage_seconds_bucket{{le="([^"]+)",stage="{stage}"}} (\S+)$',
                text,
                re.MULTILINE,
            )
        }
        within = next(n for bound, n in counts.items() if float(bound) == STEP_NS / 1e9)
        found[stage] = int(counts["+Inf"] - within)
    return found


def run(quick: bool = False) -> dict[str, Any]:
    """Stall the broker; measure the effect on the feed, drops, and the recovery."""
    stopped = QUICK_STOPPED_SECONDS if quick else STOPPED_SECONDS
    with broker_rig(QUEUE_BYTES, subscribers=1, idle_timeout_ms=0) as rig:
        rig.broker.queue("ledger", EXCHANGE, key())
        rig.until(lambda sample: sample.destination["state"] == "UP", "connected")
        seconds = BEFORE_SECONDS + stopped + AFTER_SECONDS
        load = threading.Thread(target=rig.rig.load.run, args=(RATE, seconds, 1000))
        load.start()
        time.sleep(BEFORE_SECONDS)
        before = slow_steps(rig)
        rig.broker.freeze()
        time.sleep(stopped)
        stalled = rig.samples[-1]
        slow = {stage: count - before[stage] for stage, count in slow_steps(rig).items()}
        rig.broker.thaw()
        went_on = rig.now_seconds
        drained = rig.until(
            lambda sample: sample.held_bytes < QUEUE_BYTES / 20, "drained", 2 * DRAINED_SECONDS
        )
        drained_seconds = drained.seconds - went_on
        load.join()
        done = rig.settled().destination
        sent = rig.rig.numbers_sent
        channel = rig.rig.snapshot(5.0)["channels"][0]
        (subscriber,) = rig.rig.finish()
        seal(rig.broker, "ledger")
        found = read(rig.broker, "ledger")
        assert found is not None, "the broker broke off"
        lost = missing([found], sent)
        held = max(sample.held_bytes for sample in rig.samples)
    problems = [
        text
        for wrong, text in (
            (channel["lost"] or subscriber["amqp"] < sent, "the feed or its subscriber lost some"),
            (held > QUEUE_BYTES, "more held than the bound"),
            (stalled.held_bytes < FULL_SHARE * QUEUE_BYTES, "the queue did not fill"),
            (not done["overflows"], "no overflow counted"),
            (lost != done["dropped"], f"{lost} not found, {done['dropped']} dropped"),
            (found.doubled, f"{found.doubled} twice without a lost connection"),
        )
        if wrong
    ]
    missed = [f"slow steps: {slow}"] if sum(slow[stage] for stage in STAGES) else []
    if drained_seconds > DRAINED_SECONDS:
        missed.append("drained too late")
    print(
        f"  RabbitMQ 3.10 stopped for {stopped:.0f} s at {RATE:,} packets a second:"
        f" {slow['route']} and {slow['write']} steps of the feed above 10 ms (the event loop late"
        f" {slow['lag']} times); {held / 1e6:.1f} MB held (bound {QUEUE_BYTES / 1e6:.1f}),"
        f" {done['dropped']:,} dropped and counted, {lost:,} not found; drained"
        f" {drained_seconds:.1f} s after (bar {DRAINED_SECONDS:.0f}): "
        + ("; ".join(missed + problems) or "as it should be")
    )
    return {
        "stopped_seconds": stopped, "packets": sent, "slow_steps": slow, "held_bytes": held,
        "dropped": done["dropped"], "not_found": lost, "overflows": done["overflows"],
        "drained_seconds": drained_seconds, "missed": missed, "problems": problems,
    }  # fmt: skip
