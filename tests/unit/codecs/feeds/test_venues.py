"""Feeds of other venues beside an independent dissector: every field of every real packet.

Names, offsets, sizes and bytes must be the same, in the feed's byte order. Where the dissector
misreads the bytes, `MISREAD` names the single field and where it stands; what it derives is named
in `DERIVED`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest

from feedhandler.codecs import BadPacket, Record, load_feed
from feedhandler.codecs.layouts import Leaf
from tests.support.venues import FILLER, FOLDERS, Shown, packets, plain

#: A field as the dissector shows it: its name and offset.
Place = tuple[str, int]


def moved(by: int, *places: Place) -> dict[Place, tuple[int, int]]:
    """Return for each place where the field really begins, `by` bytes behind; its size is right."""
    return {place: (place[1] + by, 0) for place in places}


#: An execution summary of an earlier version, which has 48 bytes: without RequestTime, and without
#: RestingCxlQty. The dissector knows the later one alone, and reads into the next message.
_SHORT_SUMMARY = {
    ("execid", 64): None,
    **moved(-8, ("lastqty", 72), ("aggressorside", 76), ("tradecondition", 77), ("lastpx", 80)),
    **moved(-8, ("restinghiddenqty", 88)),
    ("restingcxlqty", 92): None,
}
#: Of a full or partial execution the dissector takes the five reserved bytes behind OrdType and
#: AlgorithmicTradeIndicator for one; the message's own length leaves room for five.
_EXECUTION = ("price", "trdregtstimepriority", "securityid", "trdmatchid", "lastqty", "lastpx")


def execution(at: int) -> dict[Place, tuple[int, int]]:
    """Return the fields of an execution whose price the dissector shows at offset `at`."""
    offsets = (0, 8, 16, 24, 28, 32)
    shown = [(name, at + offset) for name, offset in zip(_EXECUTION, offsets, strict=True)]
    return moved(4, *shown)


#: Fields that the dissector misreads, by feed and packet (0: of all): where each really begins, and
#: its size where that differs; None: it is not there.
MISREAD: dict[str, dict[int, Mapping[Place, tuple[int, int] | None]]] = {
    "eurex-eobi": {
        # ApplSeqNum has four bytes: the fields behind it stand four bytes earlier than shown.
        0: {
            ("applseqnum", 8): (8, 4),
            **moved(
                -4,
                ("marketsegmentid", 16), ("partitionid", 20), ("completionindicator", 21),
                ("applseqresetindicator", 22),
            ),
        },
        1: {**_SHORT_SUMMARY, **execution(100)},
        2: execution(44),
        7: {**_SHORT_SUMMARY, **execution(100)},
    },
    "nyse-integrated-pillar": {
        # The message's own size leaves UnpairedQty four bytes, where the dissector takes one.
        4: {
            ("unpairedqty", 83): (83, 4),
            **moved(3, ("unpairedside", 84), ("significantimbalance", 85)),
        },
    },
}  # fmt: skip
#: Packets of another feed among a feed's.
FOREIGN = {"memx-memoir": {9: "of MoldUDP64: its first byte is no packet type of MEMOIR"}}
#: Bits that the dissector counts from the highest one of their byte down: Cboe counts from the
#: lowest, as the dissector does of its other feeds.
TURNED = {"cboe-c1-options-pitch": {"display": 0, "maintainpriority": 1}}
#: Leaves that the dissector remembers from an earlier message and shows at another field's offset.
DERIVED = {"asx-ntp-itch": "second", "cboe-byx-pitch": "time", "cboe-c1-options-pitch": "time"}
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


def reread(name: str, number: int, payload: bytes, shown: Iterable[Shown]) -> Iterator[Shown]:
    """Yield the fields that the dissector shows, those that it misreads as they stand."""
    misread = {**MISREAD.get(name, {}).get(0, {}), **MISREAD.get(name, {}).get(number, {})}
    for each in shown:
        called = plain(each.name)
        if called in TURNED.get(name, {}):
            bit = payload[each.at] >> TURNED[name][called] & 1
            yield each._replace(value=str(bit))
            continue
        place = misread.pop((called, each.at), (each.at, each.size))
        if place is not None:
            at, size = place[0], place[1] or each.size
            data = payload[at : at + size] if each.data else b""
            yield each._replace(at=at, size=size, data=data)
    assert not misread, f"packet {number}: the dissector does not show {misread}"


def same(leaf: Leaf, shown: Shown, byte_order: Literal["big", "little"]) -> bool:
    """Return whether leaf and dissector agree on a field: offset, size, name and value."""
    named = _CATEGORY.sub("messagetype", plain(shown.name))
    if (plain(leaf.name), leaf.at, leaf.size) != (named, shown.at, shown.size):
        return False
    value = leaf.value
    if isinstance(value, str):
        text = shown.data.split(b"\0", 1)[0].rstrip(b" ") if leaf.size > 1 else shown.data
        return value == text.decode("latin-1").rstrip("\0")
    if not shown.data:  # bits
        return str(value) == shown.value
    return value == int.from_bytes(shown.data, byte_order, signed=value < 0)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_field_of_real_packets_is_what_an_independent_dissector_shows(
    name: str, venues: Path
) -> None:
    feed = load_feed(name)
    for number, (payload, shown) in enumerate(packets(venues / FOLDERS[name]), 1):
        if number in FOREIGN.get(name, {}):
            with pytest.raises(BadPacket):
                feed.decode_packet(payload)
            continue
        theirs = list(reread(name, number, payload, shown_of(name, shown)))
        ours = leaves_of(feed, payload)
        for leaf, each in zip(ours, theirs, strict=False):
            assert same(leaf, each, feed.byte_order), f"packet {number}: {leaf}, shown {each}"
        assert len(ours) == len(theirs), f"packet {number}"


def test_a_value_in_the_other_byte_order_is_not_the_same() -> None:
    shown = Shown("proto.price", 4, 2, b"\1\2", "258")
    assert same(Leaf("Price", 4, 2, 258), shown, "big")
    assert not same(Leaf("Price", 4, 2, 258), shown, "little")
    assert not same(Leaf("Price", 4, 2, 513), shown, "big")
    assert not same(Leaf("Price", 5, 2, 258), shown, "big")
    bit = Shown("proto.display", 4, 1, b"", "0")
    assert not same(Leaf("Display", 4, 1, 1), bit, "big")


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
