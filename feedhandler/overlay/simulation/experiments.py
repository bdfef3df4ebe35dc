"""The source's tables and figures ("Jasper"), simulated: our values beside the source's.

Each experiment is a table, with curves where the source has a figure. Those on one network share a
trace, so that techniques are compared message by message under the same conditions. A value of the
source that was read off a curve is marked "~"; what is quoted and not simulated (the multicast of
AWS) says so. Times are in us.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy

from feedhandler.overlay.experiment import Experiment, at, median, percent, us
from feedhandler.overlay.fairness import HoldController
from feedhandler.overlay.holding import INTERVAL, Delays, Held, hold_and_release
from feedhandler.overlay.simulation import incast, last_hop, trading, uniform
from feedhandler.overlay.simulation.cloud import GCP, SOURCE, CloudModel, Trace
from feedhandler.overlay.tree import Shape, default_shape

#: Table 1: receivers, depth, fan-out, median overall latency. The source's fan-out of one row is
#: unknown; 4 is the least that suffices.
TABLE_1 = (
    (10, 1, 10, 66), (10, 2, 4, 88),
    (100, 1, 100, 351), (100, 2, 10, 139), (100, 3, 5, 141),
    (1000, 2, 32, 282), (1000, 3, 10, 217), (1000, 4, 6, 226),
)  # fmt: skip
#: Tables 3 and 4: by receivers, probability of perfect fairness and median overall latency.
TABLE_3 = {100: (0.92, 175), 1000: (0.84, 238)}
TABLE_4 = {100: (0.78, 169), 1000: (0.75, 245)}
#: Table 2: shares of the profit.
TABLE_2 = {
    "unicast": (0.4979, 0.5021, 0.0, 0.0),
    "tree": (0.5695, 0.4239, 0.0040, 0.0025),
    "held": (0.25, 0.2497, 0.2466, 0.2536),
}
#: The probability of fairness that the controller is set to.
WANTED = 0.99
#: Intervals that a controller needs to settle, left out of its results.
SETTLING = 4
#: Windows of the last hop's round trips that are drawn.
FIGURE_6_WINDOWS = 60
NONE = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of a simulation: receivers and messages of the experiments with one network.

    `messages` counts from the first interval, in which no deadlines are known.
    """

    receivers: int = 100
    hedging: int = 2
    messages: int = 4 * INTERVAL
    iterations: int = 100_000
    seed: int = 1
    model: CloudModel = SOURCE


class Experiments:
    """Experiments of one setting; delays are drawn once and shared."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.trace = Trace(setting.model, setting.seed)
        self._found: dict[tuple[str, int], Delays] = {}

    def delays(self, hedging: int) -> Delays:
        """Return the tree's delays with so much hedging."""
        key = ("tree", hedging)
        if key not in self._found:
            shape = default_shape(self.setting.receivers, hedging)
            self._found[key] = self.trace.tree(shape, self.setting.messages, f"H = {hedging}")
        return self._found[key]

    def unicast(self) -> Delays:
        """Return the delays of unicast to all receivers."""
        key = ("unicast", 0)
        if key not in self._found:
            setting = self.setting
            self._found[key] = self.trace.unicast(setting.receivers, setting.messages)
        return self._found[key]

    # -- shapes and hedging -----------------------------------------------------------------

    def table_1(self) -> Experiment:
        """Simulate latency by depth and fan-out."""
        rows, best = [], dict[int, tuple[float, int]]()
        for receivers, depth, fan_out, source in TABLE_1:
            found = self.trace.tree(Shape(receivers, depth, fan_out), self.setting.messages // 10)
            ours = median(found.overall)
            best[receivers] = min(best.get(receivers, (ours, depth)), (ours, depth))
            rows.append(
                (f"{receivers:,}", str(depth), str(fan_out), us(ours), str(source),
                 f"{ours / source:.2f}")
            )  # fmt: skip
        text = ", ".join(f"{n:,}: {depth}" for n, (_, depth) in best.items())
        return Experiment(
            "Table 1", "Median overall latency by depth and fan-out",
            ("receivers", "D", "F", "ours", "source", "ratio"), rows,
            f"best depth by receivers: {text} (source: 10: 1, 100: 2, 1,000: 3)",
        )  # fmt: skip

    def figure_4(self) -> Experiment:
        """Simulate latency by a receiver's position."""
        unicast, tree = self.unicast().delays, self.delays(0).delays
        count = self.setting.receivers
        rows = []
        for share in (0, 0.25, 0.5, 0.75, 1):
            index = round(share * (count - 1))
            rows.append(
                (f"{index + 1:,}", us(median(unicast[:, index])), us(median(tree[:, index])))
            )
        return Experiment(
            "Figure 4", "Median delay by the receiver's place in the order of sending",
            ("receiver", "unicast", "tree"), rows,
        )  # fmt: skip

    def figure_5(self) -> Experiment:
        """Simulate uniform hops: mean and deviation by depth and hedging."""
        rng = numpy.random.default_rng((self.setting.seed, 5))
        rows, curves = [], {}
        for depth, hedging in ((1, 0), (2, 0), (3, 0), (4, 0), (3, 1), (3, 2), (3, 3), (4, 1)):
            found = uniform.latencies(depth, hedging, self.setting.iterations, rng)
            exact = f"{depth / 2:.3f}, {(depth / 12) ** 0.5:.3f}" if hedging == 0 else NONE
            rows.append(
                (str(depth), str(hedging), f"{found.mean():.3f}", f"{found.std():.3f}", exact)
            )
            curves[f"D = {depth}, H = {hedging}"] = found
        return Experiment(
            "Figure 5", f"Uniform hops, {self.setting.iterations:,} iterations",
            ("D", "H", "mean", "deviation", "exact"), rows,
            "without hedging the exact mean is D / 2, the deviation sqrt(D / 12)", curves,
            unit="hops",
        )  # fmt: skip

    def figure_6(self) -> Experiment:
        """Simulate model 3's last hop with low jitter and without, and the window left of it."""
        setting = self.setting
        rows, curves, over_time = [], {}, {}
        late = last_hop.lateness(INTERVAL, setting.receivers, setting.model, setting.seed)
        for name, pinned, source in (("as it comes", False, NONE), ("pinned", True, "5.4")):
            trips = last_hop.enclave_trips(FIGURE_6_WINDOWS, setting.seed, pinned)
            p90 = numpy.quantile(trips, 0.9, axis=1)
            hops = last_hop.enclave_hops(INTERVAL, setting.receivers, setting.seed, pinned)
            half = INTERVAL // 2
            evened = late[half:] + hops[half:] + last_hop.extra_holds(hops[:half])
            rows.append(
                (name, us(p90.min()), us(median(p90)), us(p90.max()),
                 us(at(trips, 0.9) - float(trips.min())), source, us(_window(evened)))
            )  # fmt: skip
            curves[name], over_time[f"{name}, p90"] = trips.reshape(-1), p90
        return Experiment(
            "Figure 6", "Round trip from a receiver to its enclave (model 3), with low jitter and"
            " without",
            ("jitter", "lowest p90", "middle", "highest", "p90 less lowest", "source",
             "window p50, difference held"),
            rows,
            f"p90 by windows of {last_hop.FIGURE_6_WINDOW:,} messages; what the trips are without"
            " pinning is assumed: `overlay measure --last-hop` measures it",
            curves, over_time,
        )  # fmt: skip

    def figure_7(self) -> Experiment:
        """Simulate unicast and the hedged tree."""
        unicast, tree = self.unicast().overall, self.delays(self.setting.hedging).overall
        rows = [
            ("unicast", us(median(unicast)), "254"),
            ("AWS Transit Gateway", "quoted", "228"),
            (f"tree, H = {self.setting.hedging}", us(median(tree)), "129"),
        ]
        return Experiment(
            "Figure 7", "Median overall latency beside unicast", ("technique", "ours", "source"),
            rows, curves={"unicast": unicast, "tree": tree},
        )  # fmt: skip

    def figure_8(self) -> Experiment:
        """Simulate the effect of hedging on latency, its variance and the window."""
        rows, curves = [], {}
        for hedging, source in ((0, "~350"), (1, "~150"), (2, "~120")):
            found = self.delays(hedging)
            medians = [
                median(found.overall[begin : begin + INTERVAL])
                for begin in range(0, len(found.delays), INTERVAL)
            ]
            rows.append(
                (str(hedging), us(median(found.overall)), us(at(found.overall, 0.99)),
                 us(float(numpy.ptp(medians))), us(at(found.windows, 0.99)), source)
            )  # fmt: skip
            curves[f"H = {hedging}"] = found.windows
        return Experiment(
            "Figure 8", "Hedging: overall latency, its variance over time, delivery window",
            ("H", "p50", "p99", "range of medians", "window p99", "source"), rows, curves=curves,
        )  # fmt: skip

    def figure_9(self) -> Experiment:
        """Simulate each receiver's delay with and without hedging, for the same messages."""
        rows = []
        for quantile in (0.5, 0.99):
            cells = [
                us(median(numpy.quantile(self.delays(hedging).delays, quantile, axis=0)))
                for hedging in (0, 1)
            ]
            rows.append((f"p{100 * quantile:.0f}", *cells))
        return Experiment(
            "Figure 9", "Delay of the receivers, the same messages with and without hedging",
            ("quantile", "H = 0", "H = 1"), rows,
            "source: the median hardly moves, the 99th percentile falls",
        )  # fmt: skip

    def figure_10(self) -> Experiment:
        """Simulate growth with the number of receivers."""
        rows, curves = [], {}
        for receivers, source in ((100, "129"), (1_000, "< 350"), (5_000, "< 350")):
            shape = default_shape(receivers, self.setting.hedging)
            found = self.trace.tree(shape, self.setting.messages // 10).overall
            rows.append((f"{receivers:,}", us(median(found)), us(at(found, 0.99)), source))
            curves[f"{receivers:,} receivers"] = found
        return Experiment(
            "Figure 10", "Overall latency by receivers, hedged",
            ("receivers", "p50", "p99", "source's median"), rows, curves=curves,
        )  # fmt: skip

    # -- deadlines --------------------------------------------------------------------------

    def figure_11(self) -> Experiment:
        """Simulate deadlines with and without hedging, and CloudEx's way."""
        hedged = f"tree, H = {self.setting.hedging}"
        held = [
            hold_and_release(self.delays(self.setting.hedging), hedged),
            hold_and_release(self.delays(0), "tree, H = 0"),
            hold_and_release(self.unicast(), "CloudEx's way (unicast)"),
        ]
        rows = [
            (each.name, us(at(each.windows, 0.99)), percent(each.fair), us(median(each.overall)),
             us(float(each.held.mean())))
            for each in held
        ]  # fmt: skip
        return Experiment(
            "Figure 11", "Simultaneous delivery by the rule of the 95th percentile",
            ("technique", "window p99", "fair", "latency p50", "mean hold"), rows,
            "source: a mean hold of about 60 us with hedging",
            {each.name: each.overall for each in held},
        )  # fmt: skip

    def figure_12(self) -> Experiment:
        """Simulate the techniques added one after the other."""
        hedged = self.delays(self.setting.hedging)
        fair = hold_and_release(hedged, "held")
        rows = [
            ("unicast", us(median(self.unicast().overall))),
            ("tree", us(median(self.delays(0).overall))),
            (f"tree, H = {self.setting.hedging}", us(median(hedged.overall))),
            ("with deadlines", us(median(fair.overall))),
        ]  # fmt: skip
        return Experiment(
            "Figure 12", "Median overall latency as each part comes in", ("parts", "p50"), rows
        )

    def table_2(self) -> Experiment:
        """Simulate the shares of the profit."""
        setting = self.setting
        fair = self.controlled(self.delays(setting.hedging))
        rng = numpy.random.default_rng((setting.seed, 23))
        # As the source counts, all in time have it at one instant, so the winner is random.
        delivered = numpy.maximum(fair.delays, fair.holds[:, None])
        delivered = delivered + rng.uniform(0, 1e-3, delivered.shape)
        found = {
            "unicast": self.unicast().delays,
            "tree": self.delays(0).delays,
            "held": delivered,
            "held, as released": last_hop.released(fair, setting.model, setting.seed),
        }
        rows = []
        for name, delivered in found.items():
            ours = trading.shares(delivered, setting.seed)
            source = ", ".join(map(percent, TABLE_2.get(name, ())))
            rows.append((name, *map(percent, ours), source))
        return Experiment(
            "Table 2", "Shares of the profit, first two and last two receivers",
            ("technique", "P1", "P2", "P3", "P4", "source"), rows,
            f"as released: with clocks {setting.model.clock_us} us off, who is early stays early",
        )  # fmt: skip

    def controlled(self, found: Delays) -> Held:
        """Apply deadlines by the controller, and leave out the time until it has settled."""
        controller = HoldController(WANTED)
        interval = max(len(found.delays) // 20, 100)
        held = hold_and_release(found, f"{percent(WANTED)} wanted", 0, controller, interval)
        settled = min(SETTLING * interval, len(held.holds) // 2)
        return Held(held.name, held.delays[settled:], held.holds[settled:])

    # -- what the source does not print -------------------------------------------------------

    def models(self) -> Experiment:
        """Simulate the three deployment models."""
        setting = self.setting
        count, receivers, seed = INTERVAL, setting.receivers, setting.seed
        late = last_hop.lateness(count, receivers, setting.model, seed)
        behind = late + last_hop.gateway_hops(count, receivers, setting.model, seed)
        hops = last_hop.enclave_hops(count, receivers, seed)
        enclave = late + hops
        evened = enclave[count // 2 :] + last_hop.extra_holds(hops[: count // 2])
        rows = [
            ("1: the receiver releases", us(_window(late)), us(median(late))),
            ("2: a gateway before it", us(_window(behind)), us(median(behind))),
            ("3: to an enclave", us(_window(enclave)), us(median(enclave))),
            ("3, the difference held", us(_window(evened)), us(median(evened))),
        ]
        return Experiment(
            "Models", "Deployment models: window and latency that come after the release",
            ("model", "window p50", "latency p50"), rows,
            f"with the difference held {_window(evened) / _window(enclave):.2f} of the window",
        )  # fmt: skip

    def incast(self) -> Experiment:
        """Simulate reports that all come at once, and reports up the tree."""
        rows = []
        for name, senders in (
            ("to the sender", self.setting.receivers),
            ("up the tree", default_shape(self.setting.receivers).fan_out),
        ):
            lost = incast.lost_share(senders, 200, self.setting.seed)
            rows.append((name, str(senders), percent(lost)))
        return Experiment(
            "Incast", "Reports lost where all are sent at one moment",
            ("way", "at once", "lost"), rows, "source: more than 20 % of 100 receivers' reports",
        )  # fmt: skip

    def beyond(self) -> Experiment:
        """Simulate further designs of hedging, which the source does not print."""
        setting = self.setting
        shape = default_shape(setting.receivers, setting.hedging)
        count = setting.messages // 4
        plain = self.trace.tree(shape, count)
        turned = self.trace.tree(shape, count, rotate=True)
        extra = self.trace.extra_nodes(shape, count)
        rows, sent = [], (1 + setting.hedging) * shape.fan_out
        for name, found, load in (
            (f"hedged by neighbours, H = {setting.hedging}", plain, sent),
            ("the same, layer 0 in rotation", turned, sent),
            (f"{setting.hedging} extra nodes (F+H)", extra, shape.fan_out**2),
        ):  # fmt: skip
            spread = numpy.ptp(numpy.median(found.delays, axis=0))
            rows.append(
                (name, us(median(found.overall)), us(at(found.windows, 0.99)), us(float(spread)),
                 str(load))
            )  # fmt: skip
        return Experiment(
            "Designs", "Designs of hedging",
            ("design", "p50", "window p99", "receivers' medians apart", "messages a node sends"),
            rows,
            f"goodput {percent(shape.goodput)}; {setting.hedging} more trees make it whole",
        )  # fmt: skip


def _window(hops: numpy.ndarray) -> float:
    return median(hops.max(axis=1) - hops.min(axis=1))


def fairness_table(name: str, model: CloudModel, setting: Setting) -> Experiment:
    """Simulate Table 3 or 4, and the controller on the same traces."""
    source = TABLE_3 if name == "Table 3" else TABLE_4
    rows = []
    for receivers, (fair, latency) in source.items():
        lab = Experiments(replace(setting, receivers=receivers, model=model, hedging=2))
        found = lab.delays(2)
        rule, wanted = hold_and_release(found, "rule"), lab.controlled(found)
        rows.append(
            (f"{receivers:,}", percent(rule.fair), percent(fair), us(median(rule.overall)),
             str(latency), percent(wanted.fair), us(median(wanted.overall)),
             f"{median(wanted.overall) / median(rule.overall):.2f}")
        )  # fmt: skip
    return Experiment(
        name, f"Perfect fairness, H = 2, {'GCP' if name == 'Table 4' else 'AWS'}",
        ("receivers", "fair", "source", "p50", "source", "controller", "p50", "ratio"), rows,
        "the rule cannot pass 95 %: the receiver with the longest 95th percentile is later than it"
        f" with 5 % of the messages; the controller was asked for {percent(WANTED)}",
    )  # fmt: skip


def experiments(setting: Setting) -> dict[str, Callable[[], Experiment]]:
    """Return all experiments by name, in the source's order."""
    lab = Experiments(setting)
    return {
        "table-1": lab.table_1,
        "table-2": lab.table_2,
        "table-3": lambda: fairness_table("Table 3", SOURCE, setting),
        "table-4": lambda: fairness_table("Table 4", GCP, setting),
        "figure-4": lab.figure_4,
        "figure-5": lab.figure_5,
        "figure-6": lab.figure_6,
        "figure-7": lab.figure_7,
        "figure-8": lab.figure_8,
        "figure-9": lab.figure_9,
        "figure-10": lab.figure_10,
        "figure-11": lab.figure_11,
        "figure-12": lab.figure_12,
        "models": lab.models,
        "incast": lab.incast,
        "designs": lab.beyond,
    }


def run(setting: Setting, names: tuple[str, ...] = ()) -> Iterator[Experiment]:
    """Run the experiments of these names, or all, and yield them."""
    known = experiments(setting)
    for name in names or known:
        yield known[name]()
