"""The scanner and what it works with (`feed_table`) as one module: compiled, and interpreted."""

from types import ModuleType
from typing import Any

from feedhandler._compiled import load_interpreted
from feedhandler.codecs import Feed, feed_table, scanner
from feedhandler.codecs.kinds import Reject


def _together(*modules: ModuleType) -> ModuleType:
    made = ModuleType(modules[-1].__name__)
    for module in modules:
        vars(made).update(vars(module))
    return made


COMPILED = _together(feed_table, scanner)
INTERPRETED = _together(
    *(load_interpreted(f"feedhandler.codecs.{name}") for name in ("feed_table", "scanner"))
)
#: Both, by the names that they have in the ids of tests.
SCANNERS = {"compiled": COMPILED, "interpreted": INTERPRETED}


def header_and_index(feed: Feed, packet: bytes, twin: Any = COMPILED) -> tuple[Any, Any]:
    """Scan a packet, which must be right: its header, and the index of its messages."""
    table, header, index = feed.table_of(twin), twin.PacketHeader(), twin.MessageIndex(100)
    assert twin.parse_header(table, packet, 0, len(packet), header) == Reject.FINE
    assert twin.scan_messages(table, packet, 0, header, index) == Reject.FINE
    return header, index


def index_of(feed: Feed, packet: bytes) -> Any:
    """The index of a packet's messages."""
    return header_and_index(feed, packet)[1]
