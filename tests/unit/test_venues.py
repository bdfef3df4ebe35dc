"""Feeds of other venues beside an independent dissector: every field of every real packet.

Names, offsets, sizes and bytes must be the same. What the dissector derives or misreads is named in
`ODD`, packet by packet, with the reason.
"""

import re
from pathlib import Path

import pytest

from feedhandler.codecs import Record, load_feed
from feedhandler.codecs.layouts import Leaf
from tests.support.venues import Shown, packets, plain

#: Feed to the folder with its packets.
FOLDERS = {
    "nasdaq-totalview-itch": "nasdaq-totalview-itch-5.0",
}
#: Packets that the dissector reads otherwise than the protocol's own lengths say, and why.
ODD: dict[str, dict[int, str]] = {}
#: Bytes that mean nothing, which descriptions may leave without a name.
_FILLER = re.compile(
    r"(first|second|third)?(padding|pad|reserved|filler|unused|offset\d+padding).*"
)


def leaves_of(feed, payload: bytes) -> list[Leaf]:
    return [leaf for leaf in feed.leaves(payload) if not _FILLER.fullmatch(plain(leaf.name))]


def same(leaf: Leaf, shown: Shown) -> bool:
    """Whether both say the same of a field: place, name and value."""
    if (plain(leaf.name), leaf.at, leaf.size) != (plain(shown.name), shown.at, shown.size):
        return False
    value = leaf.value
    if isinstance(value, str):
        text = shown.data.split(b"\0", 1)[0].rstrip(b" ") if leaf.size > 1 else shown.data
        return value == text.decode("latin-1").rstrip("\0")
    if not shown.data:  # bits
        return str(value) == shown.value
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
        theirs = [each for each in shown if not _FILLER.fullmatch(plain(each.name))]
        ours = leaves_of(feed, payload)
        for leaf, each in zip(ours, theirs, strict=False):
            assert same(leaf, each), f"packet {number}: {leaf}, shown {each}"
        assert len(ours) == len(theirs), f"packet {number}"


@pytest.mark.parametrize("name", FOLDERS)
def test_real_packets_decode_to_records_and_encode_to_the_same_bytes(
    name: str, venues: Path
) -> None:
    feed = load_feed(name)
    for number, (payload, _) in enumerate(packets(venues / FOLDERS[name]), 1):
        packet = feed.decode_packet(payload)
        spans = [bytes(message) for message in feed.messages_of(payload)]
        assert len(spans) == len(packet.messages)
        for message, record in zip(spans, packet.messages, strict=True):
            if number in ODD.get(name, {}):
                continue
            assert isinstance(record, Record), f"packet {number}: {record}"
            again = feed.encode_message(record)
            assert feed.decode_message(again, type=record.layout.label) == feed.decode_message(
                message, type=record.layout.label
            ), f"packet {number}"
