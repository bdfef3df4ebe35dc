"""The capabilities of feeds: those of every description, and those of some feeds only.

`CAPABILITIES` is the one table of them: `feedhandler feeds` and docs/feeds.md show it, and
`misfit_of` checks a gateway's configuration against it. Nothing here is a list of feeds: each entry
asks the part of the program that does the work whether it supports the feed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from feedhandler.amqp.policies import CONFLATE
from feedhandler.amqp.queueing.book_cache import BookCache
from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.codecs.loader import list_feeds, load_feed
from feedhandler.codecs.toml_text import KeyPath, WrongKey, read_text
from feedhandler.config import Config, load_config
from feedhandler.gateway.server_clients import (
    binary_fault_of,
    fix_fault_of,
    is_fix,
    server_fault_of,
    tcp_fault_of,
)
from feedhandler.market.stream_market import Market


class Capability(msgspec.Struct, frozen=True):
    """One thing that can be done with a feed, or cannot, as `has(feed)` says."""

    name: str
    """as JSON has it: `books`"""
    title: str
    meaning: str
    has: Callable[[Feed], bool]


def _described(_: Feed) -> bool:
    """Return True: a description is all that is needed."""
    return True


def _has_header(feed: Feed) -> bool:
    """Check for a header with fields at fixed offsets, which can be counted and rewritten."""
    return feed.description.framing == "binary"


def _works(part: Callable[[Feed], Any]) -> Callable[[Feed], bool]:
    """Make a check whether a part can be made for a feed, or raises `UsageError`."""

    def has(feed: Feed) -> bool:
        try:
            part(feed)
        except UsageError:
            return False
        return True

    return has


def _conflates(feed: Feed) -> bool:
    return any(layout.conflate == "latest" for ways in feed.layouts.values() for layout in ways)


def _is_simulated(feed: Feed) -> bool:
    from feedhandler.fixcast.exchange_plan import FEED_NAME as FIX_EXCHANGE_FEED
    from feedhandler.replay.exchange.plan import FEED_NAMES as EXCHANGE_FEEDS

    return feed.name in (*EXCHANGE_FEEDS, FIX_EXCHANGE_FEED)


def _refreshes(feed: Feed) -> bool:
    recovery = feed.recovery
    return recovery is not None and (recovery.snapshots is not None or recovery.snapshot_lines)


def _tells_statuses(feed: Feed) -> bool:
    """Check for messages that carry trading states: by rules, or of FIX by the message's type."""
    return feed.book is not None and (is_fix(feed) or feed.book.does("status"))


def _is_generated(feed: Feed) -> bool:
    from feedhandler.replay.generating.order_writers import WRITERS
    from feedhandler.replay.generating.profile import FEED_NAME as GENERATED_FEED

    return feed.name == GENERATED_FEED or feed.name in WRITERS


CAPABILITIES = (
    Capability(
        "decode",
        "decode",
        "records, columns, JSON; `feedhandler decode`; encoding of messages and packets",
        _described,
    ),
    Capability(
        "arbitration",
        "arbitration, announced losses",
        "the lines of a channel made one stream, without doubles and in order; what no line "
        "brought is announced with its exact range",
        _described,
    ),
    Capability(
        "subscriptions",
        "subscriptions, brokers",
        "services, symbols and patterns as packets, batches or messages, from the node or through "
        "a broker; resuming; durable queues",
        _described,
    ),
    Capability(
        "replay",
        "capture, replay, record",
        "captures written, chosen from by number, played, and recorded by the gateway",
        _described,
    ),
    Capability(
        "renumber",
        "loop, new send times",
        "captures played in passes that go on with the numbers, with new send times (`--loop`, "
        "`--stamps`); the latency laboratory from a capture",
        _has_header,
    ),
    Capability(
        "characterise",
        "characterise",
        "tables and figures of captures, on Spark or without",
        _described,
    ),
    Capability(
        "rows",
        "pipeline, rows on Spark",
        "captures as Parquet and as Spark's rows, a column a field; `characterise --exact` and "
        "`--lake`",
        _has_header,
    ),
    Capability(
        "tail_loss",
        "losses behind which nothing comes",
        "heartbeats carry the next number, so that a loss is noticed before the next data",
        lambda feed: feed.description.packet.sequence.heartbeat != "none",
    ),
    Capability(
        "names",
        "symbols by name",
        'subscriptions by a symbol\'s name, and `symbols = "name"`',
        lambda feed: bool(feed.references) or feed.symbols_are_text,
    ),
    Capability(
        "conflation",
        "conflation, latest value",
        "of some messages the newest replaces those that wait for a slow subscriber",
        _conflates,
    ),
    Capability(
        "conflation_of_books",
        "conflation, books",
        "of a slow subscriber's orders of a symbol the whole book is sent, as the feed's messages",
        _works(BookCache),
    ),
    Capability(
        "retransmission",
        "retransmission",
        "what every line lost is fetched from the exchange's server (`[[server]]`, "
        "`retransmission`), by the protocol of the feed's `[recovery]` table",
        lambda feed: feed.recovery is not None and feed.recovery.retransmission is not None,
    ),
    Capability(
        "refresh",
        "refresh",
        "snapshots from the exchange, at request, make good what is lost, and `snapshot=1` starts "
        "a subscription with the state of the moment",
        _refreshes,
    ),
    Capability(
        "refresh_lines",
        "refresh lines",
        "snapshots by multicast lines of their own (`[[channel.refresh_line]]`)",
        lambda feed: feed.recovery is not None and feed.recovery.snapshot_lines,
    ),
    Capability(
        "books",
        "books",
        "`feedhandler.Market` rebuilds books and trades, and keeps the latest of other messages",
        _works(Market),
    ),
    Capability(
        "records",
        "normalised records",
        "order events, levels, trades and definitions in DBN's layout, the same of every feed: "
        "`as=mbo` and the like with `amqp.records`, and `feedhandler decode --as`",
        lambda feed: feed.book is not None,
    ),
    Capability(
        "statuses",
        "trading states",
        "the feed's messages carry trading states: `states` of `feedhandler.Market`, and records "
        "`as=status`",
        _tells_statuses,
    ),
    Capability(
        "exchange",
        "exchange",
        "the simulated exchange, with the servers of the feed's `[recovery]` table, and the "
        "configuration of a gateway of it (`--write-config`); `feedhandler demo` of UTP-MD and FIX",
        _is_simulated,
    ),
    Capability(
        "generate",
        "generate",
        "generated sessions as captures; of UTP-MD also the laboratory without a capture and "
        "`characterise --write-profile`",
        _is_generated,
    ),
)


def _capability(name: str) -> Capability:
    return next(each for each in CAPABILITIES if each.name == name)


def capabilities_of(feed: Feed) -> dict[str, bool]:
    """Return each capability by its name: whether the feed has it."""
    return {each.name: each.has(feed) for each in CAPABILITIES}


def open_config(path: str | Path) -> tuple[Config, Feed]:
    """Load and check the configuration in file `path`; return it and its feed, which supports it.

    Raises `ConfigError` naming file, line and key.
    """
    config = load_config(path)
    try:
        feed = _feed_of(config)
        if wrong := misfit_of(config, feed):
            raise wrong
        _check_overlay_lines(config)
    except WrongKey as misfit:
        raise misfit.located(read_text(path, "check path and rights"), str(path)) from None
    return config, feed


def _feed_of(config: Config) -> Feed:
    """Load the configured feed.

    Raises `WrongKey` for an unknown name; the `ConfigError` of a wrong description names the
    description's own line.
    """
    name = config.gateway.feed
    if name not in list_feeds() and not name.endswith(".toml"):
        hint = f"known feeds: {', '.join(list_feeds())}; or give the path of a .toml file"
        raise WrongKey(("gateway", "feed"), f"unknown feed {name!r}", hint)
    if name not in list_feeds():
        try:
            read_text(name, "the path of a feed's description, from the folder it is run in")
        except ConfigError as error:
            raise WrongKey(("gateway", "feed"), error.message, error.hint) from None
    return load_feed(name)


def _check_overlay_lines(config: Config) -> None:
    """Raise `WrongKey` where a line's topology cannot be read, or has no such receiver."""
    for path, line in config.overlay_lines:
        from feedhandler.overlay.topology_file import receiving_member

        try:
            receiving_member(line.topologies, line.member)
        except ConfigError as error:
            raise WrongKey((*path, "topology"), error.message, error.hint) from None


def misfit_of(config: Config, feed: Feed) -> WrongKey | None:
    """Return the first thing configured that the feed does not support; None if there is none."""
    here: KeyPath

    def has(name: str) -> bool:
        return _capability(name).has(feed)

    if config.servers and not (has("retransmission") or has("refresh")):
        reason = f"recovery is not known of {feed.name}"
        hint = "leave out [[server]] and the channels' retransmission and refresh"
        return _misfit(("server", 0), reason, hint, "retransmission")
    for channel_index, channel in enumerate(config.channels):
        if channel.retransmission and not has("retransmission"):
            here = ("channel", channel_index, "retransmission")
            reason = f"retransmission is not known of {feed.name}"
            return _misfit(here, reason, "leave it out", "retransmission")
        if channel.refresh and not has("refresh"):
            reason = f"refresh is not known of {feed.name}"
            hint = "leave out the channels' refresh"
            return _misfit(("channel", channel_index, "refresh"), reason, hint, "refresh")
        if channel.refresh_lines and not has("refresh_lines"):
            what = "refresh lines are" if has("refresh") else "refresh is"
            here = ("channel", channel_index, "refresh_line", 0)
            hint = "leave out the channels' refresh_line"
            return _misfit(here, f"{what} not known of {feed.name}", hint, "refresh_lines")
    if wrong := fix_fault_of(config) if is_fix(feed) else binary_fault_of(config):
        return wrong
    if wrong := server_fault_of(config, feed) or tcp_fault_of(config, feed):
        return wrong
    if config.gateway.symbols == "name" and not has("names"):
        reason = f"{feed.name} describes no message that names symbols"
        hint = "index; or describe a [reference] message"
        return WrongKey(("gateway", "symbols"), reason, hint)
    if config.conflates and not (has("conflation") or has("conflation_of_books")):
        return _misfit(
            _conflating_key(config), f"no message of {feed.name} can be conflated",
            "drop_oldest or detach, and conflate = false", "conflation",
        )  # fmt: skip
    if config.amqp.records and not has("records"):
        reason = f"{feed.name} has no [book] table, which normalised records are made by"
        return _misfit(("amqp", "records"), reason, "leave it out", "records")
    return None


def _conflating_key(config: Config) -> KeyPath:
    """Return the first key by which something is conflated."""
    if config.amqp.conflate:
        return ("amqp", "conflate")
    if config.amqp.when_full == CONFLATE:
        return ("amqp", "when_full")
    policies = [each.when_full for each in config.publish]
    return ("publish", policies.index(CONFLATE), "when_full")


def _misfit(path: KeyPath, reason: str, hint: str, name: str) -> WrongKey:
    """Make the refusal, naming the feeds that have what is asked for."""
    able = [each for each in list_feeds() if _capability(name).has(load_feed(each))]
    return WrongKey(path, reason, f"{hint}; known of {', '.join(able)}: docs/feeds.md")
