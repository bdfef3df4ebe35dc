"""Decoding and encoding of market data: feed descriptions, the compiled scanner, records and
columns.

The errors are imported at once; the other names on first use, since they import numpy, which takes
a command longer to load than everything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from feedhandler.codecs.errors import ConfigError, FeedhandlerError, PeerError, UsageError

if TYPE_CHECKING:
    from feedhandler.codecs.bad_packet import BadPacket
    from feedhandler.codecs.feed import Feed, Packet, Reference, key_word, pack_messages
    from feedhandler.codecs.kinds import REJECT_TEXT, PacketKind, Reject
    from feedhandler.codecs.layouts import Field, Layout, Record, UnknownMessage
    from feedhandler.codecs.loader import list_feeds, load_feed
    from feedhandler.codecs.prices import Price
    from feedhandler.codecs.reference_data import ReferenceData

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
    "ReferenceData",
    "Reject",
    "UnknownMessage",
    "UsageError",
    "key_word",
    "list_feeds",
    "load_feed",
    "pack_messages",
]

#: The names of each module.
_HOMES = {
    "bad_packet": ("BadPacket",),
    "feed": ("Feed", "Packet", "Reference", "key_word", "pack_messages"),
    "kinds": ("REJECT_TEXT", "PacketKind", "Reject"),
    "layouts": ("Field", "Layout", "Record", "UnknownMessage"),
    "loader": ("list_feeds", "load_feed"),
    "prices": ("Price",),
    "reference_data": ("ReferenceData",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
