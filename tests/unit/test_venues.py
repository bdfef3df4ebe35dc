"""Feeds of other venues beside an independent dissector: every field of every real packet.

Names, offsets, sizes and bytes must be the same. What the dissector derives or misreads is named in
`ODD`, packet by packet, with the reason.
"""

import re
from pathlib import Path

import pytest

from feedhandler.codecs import BadPacket, Record, load_feed
from feedhandler.codecs.layouts import Leaf
from tests.support.venues import FILLER, FOLDERS, Shown, packets, plain

#: Packets of which the dissector shows something else than the bytes say, and why.
ODD: dict[str, dict[int, str]] = {
    "eurex-eobi": {
        1: "takes the five bytes behind OrdType for fewer, and an execution summary without an id",
        2: "as packet 1",
        7: "as packet 1",
    },
    "nyse-integrated-pillar": {
        4: "takes UnpairedQty for one byte, where the message's own size leaves it four"
    },
}
#: Packets of another feed among a feed's.
FOREIGN = {"memx-memoir": {9: "of MoldUDP64: its first byte is no packet type of MEMOIR"}}
#: Feeds whose flags the dissector shows from the highest bit down.
BITS_TURNED = {"cboe-c1-options-pitch"}
#: Leaves that the dissector remembers from an earlier message and shows at another field's offset.
DERIVED = {"asx-ntp-itch": "second", "cboe-byx-pitch": "time", "cboe-c1-options-pitch": "time"}
#: Bytes of the packet header that the dissector reads otherwise than all its packets fit together:
#: of Eurex it takes a number of four bytes for one of eight.
HEADER_TURNED = {"eurex-eobi": 24}
#: The dissector's names of a type's second letter, by category.
_CATEGORY = re.compile(
    "(administrative|control|indices|marketstatus|priorday|quote|summary|trade)messagetype"
)


def leaves_of(feed, payload: bytes) -> list[Leaf]:
    return [leaf for leaf in feed.leaves(payload) if not FILLER.fullmatch(plain(leaf.name))]


def shown_of(name: str, shown: list[Shown]) -> list[Shown]:
    """Return the fields that the dissector shows of a packet's own bytes, without fillers."""
    found = [each for each in shown if not FILLER.fullmatch(plain(each.name))]
    behind = [*found[1:], None]
    return [
        each
        for each, after in zip(found, behind, strict=True)
        if not (after and plain(each.name) == DERIVED.get(name) and each.at == after.at)
    ]


def same(leaf: Leaf, shown: Shown, bits_turned: bool) -> bool:
    """Return whether leaf and dissector agree on a field: offset, size, name and value."""
    named = _CATEGORY.sub("messagetype", plain(shown.name))
    if (plain(leaf.name), leaf.at, leaf.size) != (named, shown.at, shown.size):
        return False
    value = leaf.value
    if isinstance(value, str):
        text = shown.data.split(b"\0", 1)[0].rstrip(b" ") if leaf.size > 1 else shown.data
        return value == text.decode("latin-1").rstrip("\0")
    if not shown.data:  # bits
        return bits_turned or str(value) == shown.value
    orders = ("big", "little")
    signed = value < 0
    return value in {int.from_bytes(shown.data, order, signed=signed) for order in orders}


@pytest.mark.parametrize("name", FOLDERS)
def test_every_field_of_real_packets_is_what_an_independent_dissector_shows(
    name: str, venues: Path
) -> None:
    feed = load_feed(name)
    for number, (payload, shown) in enumerate(packets(venues / FOLDERS[name]), 1):
        if number in ODD.get(name, {}):
            continue
        if number in FOREIGN.get(name, {}):
            with pytest.raises(BadPacket):
                feed.decode_packet(payload)
            continue
        behind = HEADER_TURNED.get(name, 0)
        theirs = [each for each in shown_of(name, shown) if each.at >= behind]
        ours = [leaf for leaf in leaves_of(feed, payload) if leaf.at >= behind]
        for leaf, each in zip(ours, theirs, strict=False):
            assert same(leaf, each, name in BITS_TURNED), f"packet {number}: {leaf}, shown {each}"
        assert len(ours) == len(theirs), f"packet {number}"


@pytest.mark.parametrize("name", FOLDERS)
def test_real_packets_decode_to_records_and_encode_to_the_same_bytes(
    name: str, venues: Path
) -> None:
    feed = load_feed(name)
    for number, (payload, _) in enumerate(packets(venues / FOLDERS[name]), 1):
        if number in FOREIGN.get(name, {}):
            continue
        packet = feed.decode_packet(payload)
        spans = [bytes(message) for message in feed.messages_of(payload)]
        assert len(spans) == len(packet.messages)
        for message, record in zip(spans, packet.messages, strict=True):
            assert isinstance(record, Record), f"packet {number}: {record}"
            again = feed.encode_message(record)
            assert feed.decode_message(again, type=record.layout.label) == feed.decode_message(
                message, type=record.layout.label
            ), f"packet {number}"
