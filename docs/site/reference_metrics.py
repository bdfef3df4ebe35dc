"""`docs/metrics.md`: every metric of the HTTP endpoint, from the tables that it is made from."""

from markdown_table import table

from feedhandler import counters
from feedhandler.observe.metrics import BOUNDS_NS, HISTOGRAMS, NAMESPACE, SCOPES, metric_name

_HEAD = """\
# Metrics

Written by `make docs` from `feedhandler/observe/metrics.py` and the counter tables. What
`GET /metrics` at `[metrics] listen` answers, see [operating.md](operating.md#metrics). A name that
ends in `_total` counts from the gateway's start and never goes back; every other one may.
"""

#: The meaning of each scope.
_TITLES = {
    "gateway": "the gateway as a whole",
    "line": "one line: one socket on one multicast group; refresh lines are `refresh/<name>`, and "
    "`R` is what retransmission brought. A line that several channels share is listed once",
    "channel": "one channel: one space of sequence numbers",
    "channel_recovery": "a channel's recovery",
    "channel_refresh": "a channel's snapshots",
    "recovery": "recovery of all channels together",
    "server": "the connection to a retransmission or refresh server",
    "receiver": "the receive thread and its ring",
    "overlay_member": "one member of the overlay in one of its trees: the receiver of a gateway's "
    "line, or a command with `--metrics`, which reports its own and those of its endpoints alone",
    "tcp_line": "the connection of a line that comes by TCP",
    "node": "the AMQP node and its links",
    "books": "the books of which normalised records are made, with `records = true` in `[amqp]`",
    "subscription": "the links of one client host with one source address, those that have ended "
    "included",
    "destination": "one broker that is published to, by the name of its `[[publish]]` table",
    "queue": "one durable queue of the node, by the name of its `[[queue]]` table",
    "recorder_series": "one series of recordings",
    "recorder": "the recorder",
    "control": "the control socket",
    "web": "the HTTP endpoint itself",
    "log": "the log",
}


def metrics() -> str:
    """Return the text of `docs/metrics.md`."""
    parts = [_HEAD]
    for scope in SCOPES.values():
        labels = ", ".join(f"`{label}`" for label in scope.labels) or "none"
        rows = [
            (f"`{metric_name(scope.name, name)}_total`", meaning)
            for name, meaning in scope.counts.items()
        ]
        rows += [
            (f"`{metric_name(scope.name, name)}`", meaning)
            for name, meaning in scope.gauges.items()
        ]
        title = _TITLES.get(scope.name, scope.name)
        head = f"## `{NAMESPACE}_{scope.name}`\n\n{title[0].upper()}{title[1:]}. Labels: {labels}."
        parts.append(f"{head}\n\n" + table(("metric", "holds"), rows))
    parts.append(_states())
    parts.append(_histograms())
    return "\n".join(parts)


def _states() -> str:
    rows = [
        (f"`{metric_name('channel', machine)}_state`", meaning)
        for machine, meaning in counters.STATES.items()
    ]
    rows += [
        (f"`{metric_name('destination', machine)}_state`", meaning)
        for machine, meaning in counters.DESTINATION_STATES.items()
    ]
    head = (
        "## States\n\nLabels: `service` or `destination`, and `state`; 1 for the state that holds, "
        "0 for the others."
    )
    return f"{head}\n\n" + table(("metric", "holds"), rows)


def _histograms() -> str:
    rows = [
        (f"`{NAMESPACE}_{name}`", ", ".join(f"`{label}`" for label in labels), meaning)
        for name, (labels, meaning) in HISTOGRAMS.items()
    ]
    bounds = ", ".join(f"{bound / 1e9:g}" for bound in BOUNDS_NS)
    return (
        f"## Histograms\n\nSeconds; buckets up to {bounds}. A value less than 4 percent below a "
        "bound may be counted above it, and sums are good to 2 percent.\n\n"
        + table(("metric", "labels", "holds"), rows)
    )
