"""The bars that this product sets itself, and the verdicts of a step.

Direct mode through the embedded node, everything on one machine with two processors; steps of at
least a minute. What the source paper measured on seven machines stands beside each as `paper`.
"""

from msgspec import Struct

from feedhandler.lab.results import Scenario, Step, Verdict

#: A shorter step is an indication only.
DURATION_S_MIN = 60.0
_SHARES = {"p50": 0.5, "p90": 0.9}
#: The note of a step whose clients got nothing within the timed part.
NOTHING_TIMED = "no delivery was timed"


class Threshold(Struct, frozen=True, kw_only=True):
    """The bar of a step at `rate_bps` to `clients`: no loss, and bounds in ns by percentile."""

    name: str
    scenario: Scenario
    clients: int
    rate_bps: float
    bounds: dict[str, int] = {}
    paper: str = ""


THRESHOLDS = (
    Threshold(
        name="packets to 10 at 40 Mbps", scenario="packets", clients=10, rate_bps=40e6,
        bounds={"p50": 300_000, "p90": 600_000}, paper="0.975 and 3.119 ms",
    ),
    Threshold(
        name="messages to 5 at 40 Mbps", scenario="messages", clients=5, rate_bps=40e6,
        bounds={"p50": 400_000, "p90": 1_000_000}, paper="53 to 120 and 126 to 147 ms",
    ),
    Threshold(
        name="packets to 10 at 200 Mbps", scenario="packets", clients=10, rate_bps=200e6,
        bounds={"p50": 1_000_000},
    ),
    Threshold(
        name="messages to 5 at 200 Mbps", scenario="messages", clients=5, rate_bps=200e6,
        bounds={"p50": 1_000_000},
    ),
    Threshold(name="packets to 4 at 400 Mbps", scenario="packets", clients=4, rate_bps=400e6),
)  # fmt: skip


def threshold_of(step: Step) -> Threshold | None:
    """Return the bar that applies to a step, whatever its exchange and length, or None."""
    if step.broker != "embedded" or step.mode != "direct" or step.pace or step.symbols:
        return None
    wanted = (step.scenario, step.clients, step.rate_bps)
    return next(
        (bar for bar in THRESHOLDS if wanted == (bar.scenario, bar.clients, bar.rate_bps)), None
    )


def judge(step: Step) -> list[Verdict]:
    """Judge a step by its bar: one verdict each for loss and for every bound.

    Returns an empty list where no bar applies. Where no delivery was timed, no bound is met.
    """
    bar = threshold_of(step)
    if bar is None:
        return []
    wrong = sum(r.lost + r.duplicated + r.reordered for r in step.results)
    verdicts = [
        Verdict(bar=bar.name, quantity="loss", found_ns=wrong, bound_ns=0, met=not step.findings)
    ]
    for quantity, bound_ns in bar.bounds.items():
        (found_ns,) = step.latency.percentiles(_SHARES[quantity])
        verdicts.append(
            Verdict(
                bar=bar.name,
                quantity=quantity,
                found_ns=found_ns,
                bound_ns=bound_ns,
                met=step.latency.count > 0 and found_ns < bound_ns,
            )
        )
    return verdicts


def busy(step: Step) -> str:
    """Return where a step's processor time went: percent of one processor by role, busiest first.

    Of a role of several processes the mean of one; behind the roles all of them together. Empty
    where nothing was sampled.
    """
    shares = []
    total = 0.0
    for loads in step.loads:
        if len(loads.t_s):
            used = 100 * float((loads.user_cpu + loads.system_cpu).mean())
            total += used
            shares.append((used / loads.processes, loads.role, loads.processes))
    if not shares:
        return ""
    reasons = [
        f"{role} {share:.0f}" if processes == 1 else f"{role} {processes} x {share:.0f}"
        for share, role, processes in sorted(shares, reverse=True)
    ]
    return f"{', '.join(reasons)}; all {total:.0f}"


def lines(step: Step) -> list[str]:
    """Return the verdicts of a step for people, a line each."""
    found = []
    short = step.duration_s < DURATION_S_MIN
    for verdict in step.verdicts:
        word = "met" if verdict.met else "missed"
        if verdict.bound_ns and not step.latency.count:
            figures = f"{verdict.quantity}: {NOTHING_TIMED}"
        elif verdict.bound_ns:
            factor = verdict.found_ns / verdict.bound_ns
            figures = (
                f"{verdict.quantity} {verdict.found_ns / 1e6:.3f} ms, "
                f"bar {verdict.bound_ns / 1e6:g} ms, {factor:.2f} of it"
            )
        else:
            figures = (
                f"{verdict.found_ns:,} lost, doubled or out of order"
                if not verdict.met
                else "no loss"
            )
        note = f" (of {step.duration_s:g} s: the bar asks for 60)" if short else ""
        found.append(f"bar {verdict.bar}: {word}: {figures}{note}")
    spent = busy(step)
    if spent and not all(verdict.met for verdict in step.verdicts):
        found.append(f"percent of one processor: {spent}")
    return found
