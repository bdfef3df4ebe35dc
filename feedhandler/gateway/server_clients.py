"""Clients of servers by feed: which one speaks to a server, and what servers cannot do.

A feed's `[recovery]` table names the protocols of retransmission and of snapshots. A server speaks
the one that its channels ask it for; where both are one protocol (UTP-MD), one client asks for
both.
"""

from collections.abc import Callable

import msgspec

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.recovery import ProtocolFacts, Setting
from feedhandler.codecs.toml_text import KeyPath, WrongKey
from feedhandler.config import ChannelConfig, Config, ServerConfig
from feedhandler.ingest.tcp.clients import client_of as tcp_client_of
from feedhandler.retrans.protocols.fix import topic_of
from feedhandler.retrans.protocols.moldudp64 import check_feed as check_moldudp64
from feedhandler.retrans.protocols.registry import protocol_of
from feedhandler.retrans.protocols.setup import ChannelNames, ClientSetup, settled
from feedhandler.retrans.reconnection import RecoveryClient


def is_fix(feed: Feed) -> bool:
    """Return whether the feed is framed by FIX."""
    return bool(feed.description.framing == "fix")


def names_session(feed: Feed) -> bool:
    """Return whether requests for lost packets name the session."""
    facts = None if feed.recovery is None else feed.recovery.retransmission
    return facts is not None and facts.names_session


def names_of(channel: ChannelConfig) -> ChannelNames:
    """Return the names by which servers know a channel."""
    return ChannelNames(channel.service, channel.topic, channel.target)


def fix_fault_of(config: Config) -> WrongKey | None:
    """Return what of a configuration servers of FIX requests cannot do; None: they can do all."""
    asked = {channel.retransmission for channel in config.channels}
    states = {channel.refresh for channel in config.channels}
    for channel_index, channel in enumerate(config.channels):
        if (channel.retransmission or channel.refresh) and not channel.topic:
            hint = 'its id in the definition of channels: topic = "equities-1"'
            return WrongKey(
                ("channel", channel_index), "topic is missing, by which it is asked for", hint
            )
    for channel_index, server in enumerate(config.servers):
        if server.name in asked & states:
            reason = f"{server.name} is asked for messages and for the state of books"
            hint = "these are two servers: give each a [[server]]"
            return WrongKey(("server", channel_index), reason, hint)
        if server.lines and server.name not in asked:
            reason = f"no channel has {server.name} for its retransmission"
            return WrongKey(("server", channel_index, "line", 0), reason, "leave the line out")
    return _same_targets(config)


def _same_targets(config: Config) -> WrongKey | None:
    """Two channels of one server that its answers do not distinguish."""
    known: dict[tuple[str, bytes], int] = {}
    for channel_index, channel in enumerate(config.channels):
        if not channel.retransmission:
            continue
        first = known.setdefault(
            (channel.retransmission, topic_of(names_of(channel)).target), channel_index
        )
        if first != channel_index:
            reason = f"answers of {channel.retransmission} are those of channel[{first}] as well"
            hint = "channels of one server have topics, or targets, that differ"
            return WrongKey(("channel", channel_index, "topic"), reason, hint)
    return None


def binary_fault_of(config: Config) -> WrongKey | None:
    """Return what the configuration asks for that only FIX has; None where there is nothing."""
    for channel_index, server in enumerate(config.servers):
        if server.lines:
            reason = "retransmission groups are known of FIX feeds alone"
            return WrongKey(("server", channel_index, "line", 0), reason, "leave the line out")
    for channel_index, channel in enumerate(config.channels):
        for key in ("topic", "target"):
            if getattr(channel, key):
                reason = "channels of FIX feeds alone have one"
                return WrongKey(("channel", channel_index, key), reason, f"leave {key} out")
    return None


def facts_of(config: Config, feed: Feed, server: ServerConfig) -> ProtocolFacts:
    """Return the protocol that a server speaks, by what its channels ask it for.

    Raises `UsageError` where the feed has none for that, or two.
    """
    recovery = feed.recovery
    asked: list[ProtocolFacts | None] = []
    if any(channel.retransmission == server.name for channel in config.channels):
        asked.append(recovery.retransmission if recovery else None)
    if any(channel.refresh == server.name for channel in config.channels):
        asked.append(recovery.snapshots if recovery else None)
    known = [facts for facts in asked if facts is not None]
    if len(known) < len(asked) or recovery is None:
        raise UsageError(f"recovery is not known of {feed.name}", "leave the server out")
    if len({facts.name for facts in known}) > 1:
        raise UsageError(
            f"{server.name} is asked for packets and for snapshots, by two protocols",
            "these are two servers: give each a [[server]]",
        )
    usual = recovery.retransmission or recovery.snapshots
    assert usual is not None
    return known[0] if known else usual


def client_of(
    config: Config,
    feed: Feed,
    server: ServerConfig,
    seed: int,
    latest: Callable[[int], bytes],
) -> RecoveryClient:
    """Make the client of a configured server; `latest` as `ClientSetup` says.

    Raises `UsageError` where server and protocol do not go together.
    """
    channels = config.channels
    setup = ClientSetup(
        feed,
        settled(config.recovery, feed),
        server.source_id,
        retransmission=tuple(names_of(c) for c in channels if c.retransmission == server.name),
        refresh=tuple(names_of(c) for c in channels if c.refresh == server.name),
        latest=latest,
        seed=seed,
        product=server.product,
        session=server.session,
        password=server.password(),
    )
    make = protocol_of(facts_of(config, feed, server)).client
    assert make is not None, "what is asked for has a client"
    return make(setup)


def retransmission_line_fault_of(config: Config, feed: Feed) -> WrongKey | None:
    """Return what is wrong with the retransmission lines of channels; None: nothing is."""
    by_lines = feed.recovery is not None and feed.recovery.retransmission_lines
    for channel_index, channel in enumerate(config.channels):
        here: KeyPath = ("channel", channel_index)
        if channel.retransmission_lines and not by_lines:
            reason = f"servers of {feed.name} answer in the connection, not by lines"
            return WrongKey((*here, "retransmission_line", 0), reason, "leave the line out")
        if channel.retransmission and by_lines and not channel.retransmission_lines:
            reason = f"servers of {feed.name} answer by multicast lines, of which none is named"
            hint = "add [[channel.retransmission_line]] tables, as the exchange lists them"
            return WrongKey((*here, "retransmission"), reason, hint)
    return None


def refresh_line_fault_of(config: Config, feed: Feed) -> WrongKey | None:
    """Return what refresh lines that are each read by itself cannot do; None: they can do all."""
    recovery = feed.recovery
    if recovery is None or not recovery.apart:
        return None
    for channel_index, channel in enumerate(config.channels):
        here: KeyPath = ("channel", channel_index)
        if channel.refresh and recovery.loops:
            reason = f"snapshots of {feed.name} come by lines, and are not asked for"
            hint = "name [[channel.refresh_line]] tables instead"
            return WrongKey((*here, "refresh"), reason, hint)
        if channel.refresh and not channel.refresh_lines:
            reason = f"snapshots of {feed.name} come by multicast lines, of which none is named"
            hint = "add [[channel.refresh_line]] tables, as the exchange lists them"
            return WrongKey((*here, "refresh"), reason, hint)
        for index, line in enumerate(channel.refresh_lines):
            if line.topology:
                reason = "these lines are read one by one, not through the overlay"
                return WrongKey(
                    (*here, "refresh_line", index, "topology"), reason, "give group and port"
                )
    return None


def tcp_fault_of(config: Config, feed: Feed) -> WrongKey | None:
    """Return what is wrong with lines that come by TCP; None: nothing is."""
    for path, _, tcp in config.tcp_lines:
        try:
            if tcp.framing == "soupbin":
                check_moldudp64(feed)
            bytes_max = config.arbitration.packet_bytes_max
            tcp_client_of(tcp.server(), config.recovery, bytes_max)
        except (UsageError, ConfigError) as error:
            return WrongKey((*path, "tcp"), error.message, error.hint)
    return None


def _meaningless_key(facts: ProtocolFacts, server: ServerConfig) -> str:
    """Return the first key of a server that its protocol has no use for; "" where there is none."""
    usual = {field.name: field.default for field in msgspec.structs.fields(ServerConfig)}
    keys: dict[str, Setting] = {
        "source_id": "source_id",
        "product": "product",
        "session": "session",
        "password_env": "password",
        "password_file": "password",
    }
    for key, setting in keys.items():
        if getattr(server, key) != usual[key] and setting not in facts.takes:
            return key
    return ""


def server_fault_of(config: Config, feed: Feed) -> WrongKey | None:
    """Return what of a configuration's servers their protocols cannot do; None: they can do all."""
    wrong = retransmission_line_fault_of(config, feed) or refresh_line_fault_of(config, feed)
    if wrong is not None:
        return wrong
    for server_index, server in enumerate(config.servers):
        try:
            facts = facts_of(config, feed, server)
            if key := _meaningless_key(facts, server):
                reason = f"the protocol {facts.name} has no use for it"
                return WrongKey(("server", server_index, key), reason, "leave it out")
            client_of(config, feed, server, 0, lambda service: b"")
        except (UsageError, ConfigError) as error:
            return WrongKey(("server", server_index), error.message, error.hint)
    return None
