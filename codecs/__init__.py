"""Bytes to meaning and back: feed descriptions, the compiled scanner, records and columns."""

from feedhandler.codecs.errors import ConfigError, FeedhandlerError, PeerError, UsageError
from feedhandler.codecs.feed import BadPacket, Feed, Packet, Reference, key_word, pack_messages
from feedhandler.codecs.kinds import REJECT_TEXT, PacketKind, Reject
from feedhandler.codecs.layouts import Field, Layout, Record, UnknownMessage
from feedhandler.codecs.loader import list_feeds, load_feed
from feedhandler.codecs.prices import Price

__all__ = [
    "REJECT_TEXT",
    "BadPacket",
    "ConfigError",
    "Feed",
    "FeedhandlerError",
    "Field",
    "Layout",
    "Packet",
    "PacketKind",
    "PeerError",
    "Price",
    "Record",
    "Reference",
    "Reject",
    "UnknownMessage",
    "UsageError",
    "key_word",
    "list_feeds",
    "load_feed",
    "pack_messages",
]
