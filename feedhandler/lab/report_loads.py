"""Tables of a run's costs: the roles' loads, the bytes on the wire, and the bars that were met.

What it is for: the tables beside the latencies. Each function returns headings and rows of text,
for `report_tables.aligned` and for the HTML report alike.

What it promises: a processor's share is of one processor (100 %: all of one). Where the paper has a
figure for a role it stands beside ours; the paper's processor shares are of all four of its
broker's, and are marked so. Bytes are megabytes (10^6) a second, memory is MiB.
"""

from msgspec import Struct

from feedhandler.lab.paper import paper
from feedhandler.lab.report_tables import HERE, PAPER, Group, groups
from feedhandler.lab.results import Array, Loads, Run, Step, Traffic
from feedhandler.lab.thresholds import NOTHING_TIMED, busy

#: A megabyte a second in the paper's sense, and a MiB of memory.
MB, MIB = 1e6, 2**20
_DASH = "-"


class Table(Struct, frozen=True):
    """Headings and rows of text; `note` explains them to the reader."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def rates(t_s: Array, amounts: Array) -> Array:
    """Return amounts a second between samples of a running total (arrays of equal length).

    The first sample's rate is since the start. A counter that begins anew (a role's socket was
    closed) counts as 0, never as less.
    """
    if not len(t_s):
        return t_s
    times = [0.0, *t_s[:-1].tolist()]
    before = [0.0, *amounts[:-1].tolist()]
    made = t_s * 0.0
    for index, (since, was) in enumerate(zip(times, before, strict=True)):
        elapsed = float(t_s[index]) - since
        grown = max(0.0, float(amounts[index]) - was)
        made[index] = grown / elapsed if elapsed > 0 else 0.0
    return made


def rate(loads: Loads, amounts: Array) -> float:
    """Return the mean growth of a running total a second; 0 where it was not sampled."""
    if not len(amounts) or not len(loads.t_s) or loads.t_s[-1] <= 0:
        return 0.0
    return float(max(amounts)) / float(loads.t_s[-1])


def step_name(step: Step) -> str:
    """Name a step among others: `packets, direct, 10 clients, embedded, 40 Mbps`."""
    few = "1 client" if step.clients == 1 else f"{step.clients} clients"
    words = [step.scenario, step.exchange, few, step.broker, step.load]
    return ", ".join([*words, "paper's mode"] if step.mode == "paper" else words)


def _percent(values: Array) -> str:
    if not len(values):
        return _DASH
    return f"{100 * float(values.mean()):.1f}"


def _paper_rates(step: Step, role: str) -> tuple[str, str]:
    """Return the paper's megabytes a second into and out of a role, a dash where it gives none.

    The paper's gateway had a broker behind it.
    """
    loads = paper().loads[step.scenario]
    published = _DASH if step.broker == "embedded" else f"{loads.gateway_publish_mb_s:g}"
    known = {
        "replayer": (_DASH, f"{loads.replay_mb_s:g}"),
        "gateway": (f"{loads.replay_mb_s:g}", published),
        "broker": (f"{loads.gateway_publish_mb_s:g}", _DASH),
        "client": (f"{loads.client_mb_s:g}", _DASH),
    }
    return known.get("client" if role.startswith("client") else role, (_DASH, _DASH))


def _paper_percents(step: Step, role: str) -> tuple[str, str]:
    """Return the paper's user and system shares of its broker's four processors."""
    if role != "broker":
        return _DASH, _DASH
    loads = paper().loads[step.scenario]
    user, system = loads.broker_user_pct, loads.broker_system_pct
    return f"{user[0]:g} to {user[1]:g} *", f"{system[0]:g} to {system[1]:g} *"


def loads_table(group: Group) -> Table:
    """Tabulate each role's load in each step of a group, the paper's beside it."""
    rows = []
    for step in group.steps:
        for loads in step.loads:
            users, systems = _paper_percents(step, loads.role)
            ins, outs = _paper_rates(step, loads.role)
            memory = f"{float(loads.rss_bytes.max()) / MIB:.0f}" if len(loads.rss_bytes) else _DASH
            cells = (
                *(str(step.clients), loads.role, str(loads.processes)),
                *(users, _percent(loads.user_cpu), systems, _percent(loads.system_cpu), memory),
                *(ins, f"{rate(loads, loads.net_in_bytes) / MB:.2f}"),
                *(outs, f"{rate(loads, loads.net_out_bytes) / MB:.2f}"),
            )
            rows.append(cells)
    head = (
        *("Clients", "Role", "Processes"),
        *(f"User % {PAPER}", f"User % {HERE}", f"System % {PAPER}", f"System % {HERE}"),
        "Memory MiB",
        *(f"In MB/s {PAPER}", f"In MB/s {HERE}", f"Out MB/s {PAPER}", f"Out MB/s {HERE}"),
    )
    processors = paper().setting.broker_processors
    note = (
        "Means over the measured part, memory its peak. Here a role's share is of one processor, "
        "all its processes together; "
        f"* the paper's is of all {processors} processors of its broker. "
        "The clients' bytes are all clients' together here, one client's in the paper."
    )
    return Table(f"Loads: {group.name} ({group.setting})", head, tuple(rows), note)


def bandwidth_table(run: Run) -> Table:
    """Tabulate bytes in and out by subscription grain: what each client's subscription costs."""
    rows: list[tuple[str, ...]] = []
    for group in groups(run):
        for step in group.steps:
            rows.extend(_bandwidth_row(step, each) for each in step.traffic)
    head = (
        *("Step", "Grain", "Where", "In MB/s", "Out MB/s"),
        *("Out per client MB/s", "Out per byte of feed", f"MB/s {PAPER}"),
    )
    note = (
        "The feed's bytes are those of its packets, each once, without UDP and below. Out per byte "
        "of feed: what one client's subscription, or the gateway's publication to a broker, takes "
        "on the wire for each byte of the feed (1.00: no overhead); in and out have the protocol's "
        "own bytes. The paper's is one client's, or what its gateway published."
    )
    return Table("Bandwidth by subscription grain", head, tuple(rows), note)


def _bandwidth_row(step: Step, traffic: Traffic) -> tuple[str, ...]:
    seconds = step.sent.duration_ns / 1e9
    if seconds <= 0:
        return (step_name(step), traffic.grain, traffic.where, *(_DASH,) * 5)
    publishes = traffic.where == "gateway" and step.broker != "embedded"
    # What a client gets is what it is sent; a broker is sent everything once.
    outwards = traffic.bytes_in if traffic.where == "client" else traffic.bytes_out
    each = outwards / (1 if publishes else step.clients) / seconds
    feed = step.sent.payload_bytes / seconds
    published = paper().loads[step.scenario]
    return (
        *(step_name(step), traffic.grain, traffic.where),
        *(f"{traffic.bytes_in / seconds / MB:.2f}", f"{traffic.bytes_out / seconds / MB:.2f}"),
        *(_DASH if publishes else f"{each / MB:.2f}", f"{each / feed:.2f}" if feed else _DASH),
        f"{published.gateway_publish_mb_s if publishes else published.client_mb_s:g}",
    )


def loss_table(run: Run) -> Table:
    """Tabulate what clients lost, got twice or out of order; and the limits of their queues."""
    rows = []
    for group in groups(run):
        for step in group.steps:
            sums = [
                sum(getattr(result, name) for result in step.results)
                for name in ("expected", "received", "lost", "duplicated", "reordered")
            ]
            limit = step.queue_limit_bytes
            shown = f"{limit / MIB:g} MiB" if limit else "none"
            rows.append((step_name(step), *(f"{each:,}" for each in sums), shown))
    head = (*("Step", "Expected", "Received", "Lost", "Duplicated", "Reordered", "Queue limit"),)
    note = (
        "AMQP messages of all clients together; anything lost, duplicated or reordered fails the "
        f"run. The paper's queues were limited to {paper().setting.broker_queue_limit_mib} MiB."
    )
    return Table("Losses, duplicates, reorderings", head, tuple(rows), note)


def played_table(run: Run) -> Table:
    """Tabulate what was played at a capture's own pace, and what clients of some symbols got."""
    rows = []
    for group in groups(run):
        for step in group.steps:
            if not (step.pace or step.symbols):
                continue
            sent, wanted = step.sent, [result.symbols for result in step.results]
            feed = (sent.messages if step.grain == "message" else sent.packets) * len(wanted)
            share = f"{100 * step.latency.count / feed:.1f}" if feed else _DASH
            cells = (
                *(f"{sent.rate_bps / 1e6:.1f}", f"{sent.peak_bps / 1e6:.1f}", f"{sent.behind:,}"),
                ", ".join(str(each) if each else "all" for each in wanted),
                share,
            )
            rows.append((step_name(step), *cells))
    head = ("Step", "Mbps", "Peak Mbps", "Late sends", "Symbols wanted", "Taken %")
    note = (
        "Both lines together, as Ethernet frames; the peak is the busiest 10 ms of the schedule. "
        "Late sends left more than a millisecond after their time. Taken: the deliveries, of those "
        "that clients would get that want everything."
    )
    return Table("Own pace, and symbols", head, tuple(rows), note)


def bars_table(run: Run) -> Table:
    """Tabulate which bars were met, and by how much the others were missed."""
    rows = []
    for group in groups(run):
        for step in group.steps:
            for verdict in step.verdicts:
                bound = f"{verdict.bound_ns / 1e6:.3f} ms" if verdict.bound_ns else "no loss"
                found = f"{verdict.found_ns / 1e6:.3f} ms" if verdict.bound_ns else _DASH
                missed = "met" if verdict.met else "missed"
                if verdict.bound_ns and not step.latency.count:
                    found, missed = _DASH, f"missed: {NOTHING_TIMED}"
                elif not verdict.met and verdict.bound_ns:
                    by = (verdict.found_ns - verdict.bound_ns) / 1e6
                    share = 100 * verdict.found_ns / verdict.bound_ns - 100
                    missed = f"missed by {by:.3f} ms ({share:+.0f} %)"
                why = "" if verdict.met else busy(step) or _DASH
                about = (verdict.bar, step_name(step), verdict.quantity)
                rows.append((*about, bound, found, missed, why))
    head = ("Bar", "Step", "Quantity", "Bound", "Found", "Result", "Busy meanwhile")
    return Table("Against the bars", head, tuple(rows), _BUSY_NOTE if rows else "")


_BUSY_NOTE = (
    "Busy meanwhile, where a bar is missed: what each role took, in percent of one processor, of a "
    "role of several processes the mean of one; and all of them together. A role near 100, or all "
    "of them near the machine's processors, is the limit."
)


def sweeps_table(run: Run) -> Table:
    """Tabulate each search: the last value that kept the bound, the first that did not."""
    rows = []
    for sweep in run.sweeps:
        shown = [
            _DASH if value is None else _quantity(sweep.quantity, value)
            for value in (sweep.held, sweep.failed)
        ]
        about = (sweep.scenario, sweep.exchange, sweep.quantity, sweep.bound)
        why = next((trial.why for trial in reversed(sweep.trials) if trial.why), "")
        rows.append((*about, *shown, str(len(sweep.trials)), why))
    head = (
        *("Scenario", "Exchange", "Quantity", "Bound"),
        *("Highest that kept it", "Lowest that did not", "Trials", "Why the last one left it"),
    )
    return Table("Sweeps", head, tuple(rows))


def _quantity(quantity: str, value: float) -> str:
    return f"{value / 1e6:g} Mbps" if quantity == "rate" else f"{value:g} clients"


def tables(run: Run) -> list[Table]:
    """Return all tables that have rows."""
    found = [bars_table(run), loss_table(run), played_table(run), bandwidth_table(run)]
    found += [loads_table(group) for group in groups(run)]
    found.append(sweeps_table(run))
    return [table for table in found if table.rows]
