"""The reference pages of `docs/`, written from the code: `make docs`.

`counters.md` comes from the counter enumerations and explains the statistics snapshot's keys;
`configuration.md` comes from the configuration's own types, `feeds.md` from
`gateway/capabilities.py` and the descriptions (`reference_feeds.py`), `recovery.md` from the state
machine's table (`reference_recovery.py`). A test compares the files with what this module would
write, so that neither can fall behind.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from markdown_table import table
from msgspec import Meta, Struct
from reference_feeds import feeds
from reference_metrics import metrics
from reference_recovery import recovery

from feedhandler.codecs.toml_text import toml_value
from feedhandler.config import file as config
from feedhandler.config import observing as observe
from feedhandler.config.amqp import (
    MAX_USERS,
    AmqpConfig,
    LimitsConfig,
    TlsConfig,
    UserConfig,
)
from feedhandler.config.publishing import MAX_DESTINATIONS, PublishConfig
from feedhandler.config.queues import MAX_QUEUES, DurableQueueConfig
from feedhandler.counters import (
    BOOK_COUNTS,
    BOOK_GAUGES,
    GAUGES,
    HIGH_WATER,
    OVERLAY_COUNTS,
    OVERLAY_GAUGES,
    RECOVERY_IO_COUNTS,
    TCP_LINE_COUNTS,
    ChannelCounter,
    Counter,
    DestinationCounter,
    LineCounter,
    NodeCounter,
    QueueCounter,
    RecorderCounter,
)
from feedhandler.observe.metrics import SCOPES
from feedhandler.operator_log import LogConfig
from feedhandler.retrans import manager, refresh
from feedhandler.retrans import recovery as channel_recovery

_COUNTERS_HEAD = """\
# Counters and statistics

Written by `make docs` from `feedhandler/counters.py`. Each counter counts from the gateway's start
and never goes back; it can be read in every snapshot.

## The snapshot

With `[stats] bind` set, the gateway publishes a snapshot on a ZeroMQ PUB socket every
`interval_ms`, and a last one when it ends: two frames, the topic `stats` and one JSON object.
"""

#: The keys of `Gateway.snapshot`, of each channel in it, of each line, and of the node.
_SNAPSHOT = {
    "": {
        "time_ns": "when it was taken: ns since 1970",
        "name": "the gateway's name",
        "feed": "the feed's name",
        "trading_day": "which one it is, see below",
        "channels": "one object a channel, in the configuration's order",
        "recovery": "what recovery did for all channels",
        "node": "the AMQP node",
        "destinations": "one object a `[[publish]]` table, in the configuration's order",
        "queues": "one object a `[[queue]]` table, in the configuration's order",
        "overlay": "one object a line that comes through the overlay; only where there is one",
        "tcp_lines": "one object a line that comes by TCP; only where there is one",
        "books": "the books of which normalised records are made; only with `records = true` in "
        "`[amqp]`; see below",
        "recorder": "what is recorded; only where `[record] dir` is set",
    },
    "`trading_day`, see [trading-day.md](trading-day.md)": {
        "day": "the date in tags, yyyy-mm-dd",
        "zone": "where it begins and ends",
        "begins_at": "at what time there",
        "turns_ns": "when the next one begins, ns since 1970; null where the date is fixed",
    },
    "Each of `channels`": {
        "service": "its service",
        "key": "its routing key",
        "quality": "the state last announced to subscribers, see [subscribing.md](subscribing.md)",
        "recovery": "the channel's recovery, see below",
        "packets": "packets published to the links",
        "messages": "market messages in them",
        "next": "the sequence number expected next",
        "gaps": "ranges announced lost in this sequence epoch",
        "lost": "sequence numbers in them",
        "latency_ns": "`p50`, `p90`, `p99` from the kernel's receive stamp to the write, of the "
        "packets since the last snapshot, and `max` since the start",
        "arbitration": "the channel's counters",
        "lines": "for each line, by its name, its counters; and `first`, the same as `won`; `R` is "
        "what retransmission brought",
    },
    "`recovery` of a channel": {
        "state": "`IN_SYNC`, `SUSPECTING`, `REQUESTING`, `REFRESHING` or `STALE`, see "
        "[recovery.md](recovery.md)",
        "requested": "ranges of the requests under way: first and last sequence number",
        "lost": "ranges announced lost that no snapshot has made good yet",
        "closed": "whether the stream still waits for its first snapshot",
        "counts": "its counts, see below",
        "refresh": "counts of its snapshots, see below",
    },
    "`recovery`, beside its counts": {
        "servers": "for each server, by its name, its counts; `up`: is there a connection; "
        "`paused`: is it not asked any more today; and `paused_until_ns`: when it is again, in "
        "nanoseconds since 1970, 0 where it is asked",
        "lines": "for each refresh line, `<service>/refresh/<name>`, its counters",
    },
    "`node`, beside its counters": {
        "connections": "connections open now",
        "links": "links attached now",
        "queued_bytes": "bytes that wait in the links' queues now",
    },
    "Each of `destinations`, beside its counters": {
        "name": "its name",
        "to": "the broker's host and port",
        "kind": "the broker's kind, once it is known",
        "broker": "what the broker calls itself, once it was reached",
        "state": "`WAITING` (to try again), `CONNECTING`, `ASKING` (is there a queue), "
        "`ATTACHING`, `UP`, or `CLOSED`",
        "reason": "why the last connection ended; empty while it is up",
        "unconfirmed": "messages sent and not confirmed yet",
        "unconfirmed_bytes": "bytes of those",
        "queued": "messages that wait in memory to be sent",
        "queued_bytes": "bytes of those, with what keeping them costs",
        "journal": 'with `when_full = "journal"`: `MEMORY` (nothing is on the disk only), '
        "`SPILLING` (what comes goes there), `DRAINING` (it is read back), or `FAILED`; else empty",
        "journal_backlog": "messages that wait in the journal only",
        "journal_bytes": "bytes of the journal's files",
        "oldest_seconds": "age of the oldest unconfirmed message, where there is a journal",
        "confirm_ns": "from a message's first being sent to its being confirmed: percentiles "
        "(p50, p90, p99) since the start, and max",
    },
    "Each of `queues`, beside its counters": {
        "name": "its name",
        "state": "`open` or `stopped`",
        "reason": "why it has stopped; empty while it is open",
        **{key: meaning for key, meaning in GAUGES["queue"].items() if key != "up"},
        "durability": "`durable` or `fast`",
    },
    "Each of `overlay`, beside what its receiver counts": {
        "line": "the line, `<service>/<name>`",
        "topology": "the topology's file",
        "member": "which receiver of it the gateway is",
        "tree": "the tree's number",
        **OVERLAY_GAUGES,
    },
    "Each of `tcp_lines`, beside its counts": {
        "line": "the line, `<service>/<name>`",
        "server": "its host and port",
        "framing": "how packets stand in the stream",
        "up": "whether it is connected, and logged in where that is needed",
    },
    "`books`, beside its counts": BOOK_GAUGES,
    "`recorder`": {
        "state": "`ready`, `recording`, `stopped` (by itself, at a bound or a failure), or `ended` "
        "with the gateway",
        "reason": "why recording stopped by itself",
        "directory": "the folder",
        "bytes": "bytes of all recordings in it",
        "recovered": "files of earlier runs that were found unfinished at the start, and kept",
        "series": "`lines` and `published`, each with its counters; and `file`, the name of the "
        "file being written, without its `.part`",
    },
}

_SCOPES: list[tuple[str, str, type[Counter]]] = [
    ("Line", "One line: one socket on one multicast group.", LineCounter),
    ("Channel", "One channel: one space of sequence numbers.", ChannelCounter),
    ("Node", "The AMQP node and its links.", NodeCounter),
    (
        "Destination",
        "One broker that is published to, see [publishing.md](publishing.md).",
        DestinationCounter,
    ),
    ("Queue", "One durable queue of the node, see [queues.md](queues.md).", QueueCounter),
    ("Recorder", "One series of recordings, see [recording.md](recording.md).", RecorderCounter),
]

_COUNTS: list[tuple[str, str, dict[str, str]]] = [
    (
        "Recovery",
        "All channels together: `recovery` of the snapshot.",
        {**manager.COUNTS, **RECOVERY_IO_COUNTS},
    ),
    ("A channel's recovery", "`counts` of each channel's `recovery`.", channel_recovery.COUNTS),
    ("A channel's snapshots", "`refresh` of each channel's `recovery`.", refresh.COUNTS),
    (
        "The books of normalised records",
        "`books` of the snapshot, see [records.md](records.md).",
        BOOK_COUNTS,
    ),
    (
        "A member of the overlay",
        "`overlay` of the snapshot has those of receivers; see [overlay.md](overlay.md).",
        OVERLAY_COUNTS,
    ),
    (
        "A line by TCP",
        "`tcp_lines` of the snapshot, see [tcp-lines.md](tcp-lines.md).",
        TCP_LINE_COUNTS,
    ),
    (
        "A server's connection",
        "`recovery.servers` of the snapshot: each has those of its protocol.",
        SCOPES["server"].counts,
    ),
]

_CONFIGURATION_HEAD = """\
# Configuration

Written by `make docs` from `feedhandler/config/file.py`. The gateway reads one TOML file
(`feedhandler run gateway.toml`) and checks it once, at start: a wrong key or value ends the start
with exit code 2 and one line that names the file, the line, the key, and what is wrong with it.
Unknown keys are refused, so a misspelt setting cannot be ignored in silence.
`feedhandler config check FILE` only checks; `feedhandler config show FILE` prints everything in
force, defaults included. [gateway.toml](gateway.toml) is a whole example.

Names end in their unit: `_us` microseconds, `_ms` milliseconds, `_bytes`, `_packets`.
"""

_TABLES: list[tuple[str, str, type[Struct]]] = [
    ("[gateway]", "", config.GatewaySettings),
    (
        "[trading_day]",
        "Its uses, and when it turns: [trading-day.md](trading-day.md).",
        config.TradingDayConfig,
    ),
    (
        "[arbitration]",
        "Per channel; bounds and the reasons for the defaults stand in "
        "`feedhandler/ingest/settings.py`.",
        config.ArbitrationSettings,
    ),
    (
        "[recovery]",
        "Reasons and bounds: [recovery.md](recovery.md).",
        config.RecoverySettings,
    ),
    ("[receive]", "", config.ReceiveConfig),
    (
        "[overlay]",
        "Lines that have a `topology`: [overlay.md](overlay.md#a-line-of-the-gateway).",
        config.OverlayConfig,
    ),
    ("[amqp]", "Who may come in: [security.md](security.md).", AmqpConfig),
    ("[amqp.tls]", "How to make certificates: [security.md](security.md#certificates).", TlsConfig),
    ("[amqp.limits]", "What meets a limit: [security.md](security.md#limits).", LimitsConfig),
    (
        "[[amqp.users]]",
        f"Who may log in, and what is theirs. {MAX_USERS:,} of them at most.",
        UserConfig,
    ),
    (
        "[stats]",
        "What a snapshot holds: [counters.md](counters.md).",
        config.StatsConfig,
    ),
    (
        "[control]",
        "What can be asked: [recording.md](recording.md#a-gateways-status).",
        config.ControlConfig,
    ),
    (
        "[record]",
        "How recording behaves at its bounds: [recording.md](recording.md).",
        config.RecordConfig,
    ),
    (
        "[metrics]",
        "What is served: [operating.md](operating.md#metrics).",
        observe.MetricsConfig,
    ),
    (
        "[health]",
        "Conditions and their meaning: [operating.md](operating.md#health).",
        observe.HealthConfig,
    ),
    (
        "[log]",
        "Events and their fields: [operating.md](operating.md#the-log).",
        LogConfig,
    ),
    (
        "[[publish]]",
        "A broker that the gateway publishes to, see [publishing.md](publishing.md). "
        f"{MAX_DESTINATIONS} of them at most.",
        PublishConfig,
    ),
    (
        "[[queue]]",
        "A durable queue of the embedded node, see [queues.md](queues.md). "
        f"{MAX_QUEUES} of them at most.",
        DurableQueueConfig,
    ),
    (
        "[[server]]",
        "A retransmission or refresh server; channels name it. "
        f"{config.MAX_SERVERS} of them at most.",
        config.ServerConfig,
    ),
    (
        "[[server.line]]",
        "Groups by which the FIX server above answers; see [fix-feed.md](fix-feed.md).",
        config.ServerLineConfig,
    ),
    (
        "[[channel]]",
        "One table for each sequence-number space; a service appears once. "
        f"1 to {config.MAX_CHANNELS} of them.",
        config.ChannelConfig,
    ),
    (
        "[[channel.line]]",
        f"The lines of the channel above, 1 to {config.MAX_LINES}. Names and addresses are unique "
        "within a channel. A line has a group and a port; or a topology and a member, and comes "
        "[through the overlay](overlay.md#a-line-of-the-gateway); or a table `tcp`.",
        config.LineConfig,
    ),
    (
        "[channel.line.tcp]",
        "The server of the line above, which comes [by TCP](tcp-lines.md).",
        config.TcpConfig,
    ),
    (
        "[[channel.refresh_line]]",
        f"The lines that carry the channel's snapshots, {config.MAX_LINES} at most; keys as above.",
        config.RefreshLineConfig,
    ),
    (
        "[[channel.retransmission_line]]",
        "The lines by which the channel's retransmission server answers, where its protocol has it "
        f"so (nyse-xdp, cboe-grp: feeds.md), {config.MAX_LINES} at most; keys as above, but none "
        "comes through the overlay.",
        config.RetransmissionLineConfig,
    ),
]


def counters() -> str:
    """Return the text of `docs/counters.md`."""
    parts = [_COUNTERS_HEAD]
    for title, keys in _SNAPSHOT.items():
        rows = [(f"`{key}`", meaning) for key, meaning in keys.items()]
        parts.append((f"{title}:\n\n" if title else "") + table(("key", "holds"), rows))
    for title, what, scope in _SCOPES:
        rows = [(f"`{each.name.lower()}`", _meaning(each)) for each in scope]
        parts.append(f"## {title}\n\n{what}\n\n" + table(("counter", "counts"), rows))
    for title, what, counts in _COUNTS:
        rows = [(f"`{name}`", meaning) for name, meaning in counts.items()]
        parts.append(f"## {title}\n\n{what}\n\n" + table(("count", "counts"), rows))
    return "\n".join(parts)


def _meaning(counter: Counter) -> str:
    """Return what a counter counts, with a remark where it is no sum."""
    if counter in HIGH_WATER and isinstance(counter, ChannelCounter):
        return f"{counter.meaning} (the highest value, no sum)"
    return counter.meaning


def configuration() -> str:
    """Return the text of `docs/configuration.md`."""
    parts = [_CONFIGURATION_HEAD]
    for header, what, settings in _TABLES:
        rows = [
            (f"`{item.encode_name}`", _default(item), _bounds(item), described)
            for item, (_, described) in zip(
                msgspec.structs.fields(settings), config.described(settings), strict=True
            )
            if described
        ]
        text = f"## `{header}`\n\n" + (f"{what}\n\n" if what else "")
        parts.append(text + table(("key", "default", "bounds", "meaning"), rows))
    return "\n".join(parts)


def _default(item: msgspec.structs.FieldInfo) -> str:
    if item.default is msgspec.NODEFAULT:
        return "required"
    if isinstance(item.default, Struct):
        return "a table"
    if isinstance(item.default, tuple):
        return f"`{toml_value(item.default)}`"
    return "empty" if item.default == "" else f"`{item.default}`"


def _bounds(item: msgspec.structs.FieldInfo) -> str:
    """Return bounds as `4,096 to 4,294,967,296`, as the type has them; empty where it has none."""
    notes = [note for note in getattr(item.type, "__metadata__", ()) if isinstance(note, Meta)]
    least = next((note.ge for note in notes if note.ge is not None), None)
    most = next((note.le for note in notes if note.le is not None), None)
    if least is None or most is None:
        return ""
    power = ", a power of two" if item.name == "ring_bytes" else ""
    return f"{least:,} to {most:,}{power}"


#: File name in `docs/`: what writes it.
PAGES: dict[str, Callable[[], str]] = {
    "counters.md": counters,
    "metrics.md": metrics,
    "configuration.md": configuration,
    "feeds.md": feeds,
    "recovery.md": recovery,
}


def main(arguments: list[str]) -> int:
    """Write every page into the folder named, by default `docs`."""
    folder = Path(arguments[0] if arguments else "docs")
    for name, page in PAGES.items():
        (folder / name).write_text(page())
        print(f"written: {folder / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
