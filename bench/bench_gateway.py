"""Through the gateway: the highest rate without loss, and the latency at the paper's rates.

The peer in the same run is qpid-proton's own Python way (`MessagingHandler` to `MessagingHandler`
over TCP, 336-byte bodies): what a straightforward gateway in Python would be built on.
"""

import multiprocessing
import statistics
import time
from typing import Any, NamedTuple

from bench.rig import MESSAGES_A_PACKET, Outcome, Rig

SECONDS = 6.0
QUICK_SECONDS = 3.0
PEER_SECONDS = 3.0
#: (name, grain, subscribers, unit, bar in that unit, unit a unique packet)
RATES: list[tuple[str, str, int, str, int]] = [
    ("packet to 1", "packet", 1, "unique packets/s", 150_000),
    ("packet to 4", "packet", 4, "unique packets/s", 100_000),
    ("message to 5", "message", 5, "deliveries/s", 800_000),
    ("batch to 5", "batch", 5, "market messages/s", 4_000_000),
    ("mbo to 5", "mbo", 5, "market messages/s", 2_400_000),
]
#: The least share of what goes out as `as=batch` that goes out as `as=mbo`.
RECORDS_OF_BATCH_MIN = 0.6
#: (unique packets a second, grain, subscribers, p50 bar, p90 bar, p99 bar or 0, runs); bars in ms.
LATENCIES: list[tuple[int, str, int, float, float, float, int]] = [
    (7_100, "packet", 10, 0.25, 0.4, 5.0, 5),
    (7_100, "message", 5, 0.25, 0.4, 5.0, 5),
    (35_500, "packet", 10, 0.4, 1.0, 0.0, 2),
    (35_500, "message", 5, 0.4, 1.0, 0.0, 2),
]
#: Each step while searching for the highest rate.
STEP = 1.25
#: A run that fails once may have met another tenant of the machine: it is tried this often.
TRIES = 2
#: Steps at most while looking for a rate that holds and one that does not, and halvings between
#: the two: the search must end in time.
STEPS_MAX = 3
HALVINGS = 1
SMOKE: dict[str, object] = {
    "QUICK_SECONDS": 0.5,
    "PEER_SECONDS": 0.5,
    "RATES": [
        ("packet to 1", "packet", 1, "unique packets/s", 2_000),
        ("mbo to 5", "mbo", 1, "market messages/s", 10_000),
    ],
    "LATENCIES": [(2_000, "message", 1, 0.25, 0.4, 5.0, 1)],
}


def per_packet(grain: str, subscribers: int) -> int:
    """Return how many of the bar's units one unique packet makes."""
    return 1 if grain == "packet" else MESSAGES_A_PACKET * subscribers


def trial(grain: str, subscribers: int, rate: int, seconds: float, lost_every: int = 0) -> Outcome:
    """Run one load on a fresh rig; the subscribers' counts are part of the verdict.

    With `lost_every` one packet in so many comes from the retransmission server.
    """
    with Rig(grain, subscribers, lost_every=lost_every) as rig:
        outcome = rig.run(rate, seconds)
        outcome.subscribers = rig.finish()
        expected = rig.numbers_sent * MESSAGES_A_PACKET
    for report in outcome.subscribers:
        if report["market"] != expected:
            outcome.problems.append(f"a subscriber got {report['market']} of {expected} messages")
    return outcome


def holds(
    grain: str, subscribers: int, rate: int, seconds: float, lost_every: int = 0
) -> tuple[bool, Outcome]:
    """Return whether the rate is kept in one of `TRIES` runs, and the last run's outcome."""
    outcome = trial(grain, subscribers, rate, seconds, lost_every)
    for _ in range(TRIES - 1):
        if outcome.passed:
            break
        outcome = trial(grain, subscribers, rate, seconds, lost_every)
    return outcome.passed, outcome


class Highest(NamedTuple):
    """The highest rate that held (unique packets/s; 0: none), why the next one failed, and the
    faults of a search in which none held: that it was too slow is no fault, losses are."""

    rate: int
    why: str
    faults: list[str]


def highest(grain: str, subscribers: int, bar_rate: int, seconds: float) -> Highest:
    """Return the highest rate, found by bisection.

    From the bar up by `STEP` until a rate fails (or down until one holds), then between the last
    that held and the first that did not.
    """
    good, bad, why = 0, 0, ""
    rate = bar_rate
    faults: list[str] = []
    for _ in range(STEPS_MAX):
        passed, outcome = holds(grain, subscribers, rate, seconds)
        if passed:
            good = rate
        else:
            bad, why, faults = rate, outcome.why, outcome.problems
        if good and bad:
            break
        rate = int(rate * STEP) if passed else int(rate / STEP)
    if not good or not bad:
        return Highest(good, why or "not searched further", faults)
    for _ in range(HALVINGS):
        middle = (good + bad) // 2
        outcome = trial(grain, subscribers, middle, seconds)
        if outcome.passed:
            good = middle
        else:
            bad, why = middle, outcome.why
    return Highest(good, why, [])


def latency(rate: int, grain: str, subscribers: int, seconds: float) -> dict[str, Any]:
    """Return percentiles over all subscribers of one run, in ms (the worst subscriber's)."""
    with Rig(grain, subscribers, stamp=True, apart=True) as rig:
        outcome = rig.run(rate, seconds)
        reports = rig.finish()
    return {
        "problems": outcome.problems,
        "slow": outcome.slow,
        **{
            name: max(report[f"{name}_ns"] for report in reports) / 1e6
            for name in ("p50", "p90", "p99", "max")
        },
    }


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all figures; `quick` shortens the loads and skips the search."""
    seconds = QUICK_SECONDS if quick else SECONDS
    problems: list[str] = []
    found: dict[str, Any] = {
        "peer_deliveries_a_second": peer_rate(PEER_SECONDS),
        "problems": problems,
    }
    print(
        f"  peer: MessagingHandler to MessagingHandler {found['peer_deliveries_a_second']:,.0f}/s"
    )
    for name, grain, subscribers, unit, bar in RATES:
        scale = per_packet(grain, subscribers)
        bar_rate = bar // scale
        if quick:
            passed, outcome = holds(grain, subscribers, bar_rate, seconds)
            rate, why = (bar_rate, "") if passed else (0, outcome.why)
        else:
            rate, why, faults = highest(grain, subscribers, bar_rate, seconds)
            problems += [f"{name}: no rate held: {fault}" for fault in faults]
        found[name] = {
            "rate": rate * scale, "unit": unit, "bar": bar, "to_bar": rate * scale / bar,
            "unique_packets_a_second": rate, "next_failed": why,
        }  # fmt: skip
        print(
            f"  {name}: {rate * scale:,} {unit} (bar {bar:,}, {rate * scale / bar:.2f} of it) {why}"
        )
    if found.get("batch to 5", {}).get("rate") and "mbo to 5" in found:
        share = found["mbo to 5"]["rate"] / found["batch to 5"]["rate"]
        found["mbo_of_batch"] = share
        print(f"  as=mbo has {share:.0%} of as=batch (bar {RECORDS_OF_BATCH_MIN:.0%})")
    for rate, grain, subscribers, bar50, bar90, bar99, runs in LATENCIES:
        results = [latency(rate, grain, subscribers, seconds) for _ in range(1 if quick else runs)]
        name = f"latency {grain} to {subscribers} at {rate}"
        middle = {p: statistics.median(r[p] for r in results) for p in ("p50", "p90", "p99")}
        found[name] = {
            **{f"{p}_ms": middle[p] for p in middle},
            "bars_ms": [bar50, bar90, bar99],
            "runs": results,
        }
        problems += [f"{name}: {problem}" for r in results for problem in r["problems"]]
        print(
            f"  {name}: p50 {middle['p50']:.3f} ms (bar {bar50}), p90 {middle['p90']:.3f} "
            f"(bar {bar90}), p99 {middle['p99']:.3f} (bar {bar99 or '-'}) "
            + "; ".join(text for r in results for text in r["slow"] + r["problems"])
        )
    return found


# -- the peer ---------------------------------------------------------------------------------


def _serve(port_queue: Any, body_bytes: int) -> None:
    """Run a MessagingHandler that sends to each client that attaches, as fast as credit allows."""
    from proton import Message
    from proton.handlers import MessagingHandler
    from proton.reactor import AtMostOnce, Container

    class Serve(MessagingHandler):
        def on_start(self, event: Any) -> None:
            self.acceptor = event.container.listen("127.0.0.1:0")
            port_queue.put(self.acceptor._selectable._delegate.getsockname()[1])
            self.message = Message(body=bytes(body_bytes), inferred=True)

        def on_sendable(self, event: Any) -> None:
            while event.sender.credit:
                event.sender.send(self.message)

        def on_link_opening(self, event: Any) -> None:
            if event.link.is_sender:
                AtMostOnce().apply(event.link)
                event.link.source.address = event.link.remote_source.address

    Container(Serve()).run()


def peer_rate(seconds: float) -> float:
    """Return deliveries a second between two of proton's MessagingHandlers, bodies of 336 bytes."""
    from proton.handlers import MessagingHandler
    from proton.reactor import AtMostOnce, Container

    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    server = context.Process(target=_serve, args=(ports, 336), daemon=True)
    server.start()

    class Receive(MessagingHandler):
        def __init__(self) -> None:
            super().__init__(prefetch=1000)
            self.count = 0
            self.began = 0.0

        def on_start(self, event: Any) -> None:
            connection = event.container.connect(f"amqp://127.0.0.1:{ports.get(timeout=20)}")
            event.container.create_receiver(connection, "peer", options=AtMostOnce())

        def on_message(self, event: Any) -> None:
            now = time.monotonic()
            self.began = self.began or now
            self.count += 1
            if now - self.began > seconds:
                event.connection.close()

    receiver = Receive()
    Container(receiver).run()
    server.terminate()
    server.join()
    return receiver.count / seconds
