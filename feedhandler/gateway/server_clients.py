"""Clients of servers by feed: which one speaks to a server, and in which form snapshots come.

A feed with a binary protocol (UTP-MD) has retransmission and refresh servers that one client speaks
to. A feed that is framed by FIX has servers of Resend Requests for what is missing and of Market
Data Requests for the books' present state, each with a client of its own.
"""

from typing import Any

from feedhandler.codecs import Feed
from feedhandler.codecs.toml_text import WrongKey
from feedhandler.config import ChannelConfig, Config, ServerConfig
from feedhandler.retrans.client import RequestClient
from feedhandler.retrans.fix.resend_client import ResendClient, Topic
from feedhandler.retrans.fix.snapshots import FixSnapshots
from feedhandler.retrans.fix.state_client import StateClient
from feedhandler.retrans.reconnection import RecoveryClient
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshot_forms import PacketSnapshots, Snapshots


def snapshots_of(feed: Feed, settings: RecoverySettings) -> Snapshots:
    """How a feed's snapshots are had."""
    return FixSnapshots() if is_fix(feed) else PacketSnapshots(feed, settings)


def is_fix(feed: Feed) -> bool:
    """Return whether the feed is framed by FIX."""
    return bool(feed.description.framing == "fix")


def topic_of(channel: ChannelConfig) -> Topic:
    """Return a channel as requests and answers name it."""
    return Topic(channel.topic, (channel.target or channel.topic).encode())


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
    """Two channels of one server that its answers do not tell apart."""
    known: dict[tuple[str, bytes], int] = {}
    for channel_index, channel in enumerate(config.channels):
        if not channel.retransmission:
            continue
        first = known.setdefault((channel.retransmission, topic_of(channel).target), channel_index)
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


def client_of(config: Config, feed: Feed, server: ServerConfig, seed: int) -> RecoveryClient:
    """Make the client of a configured server."""
    settings = config.recovery
    if not is_fix(feed):
        client: Any = RequestClient(feed, server.source_id, settings)
        return client
    refreshed = {c.service: c.topic for c in config.channels if c.refresh == server.name}
    if refreshed:
        return StateClient(refreshed, settings, seed)
    topics = {c.service: topic_of(c) for c in config.channels if c.retransmission == server.name}
    return ResendClient(topics, settings)
