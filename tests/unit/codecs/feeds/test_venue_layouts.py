"""Whole protocols beside their published layouts: every message, with its fields in order.

Real packets show a few of a protocol's messages; its `layout.json` has all. Each message of it must
be described under its type, with the same fields in the same places: names, offsets, sizes, signs
and byte orders. Offsets are held by the order of fields and the bytes between them. What is known
to differ, and why, stands in `KNOWN`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.layouts import Block, Field
from feedhandler.codecs.parts import Group, Part, Text
from tests.support.venues import FILLER, FOLDERS, plain

#: Conditions about whole packets, which the description's `[packet]` answers.
PACKETS = {
    "message_count == 0": "heartbeat",
    "count == 0": "heartbeat",
    "message_count == 65535": "end_of_session",
}
#: What the layout lists among messages and is none, or is described within another.
ELSEWHERE = {
    "ice-impact": {
        **dict.fromkeys(
            (
                "alt_price", "alt_high_price", "alt_low_price", "alt_vwap",
                "alt_last_trade_price", "aon",
            ),
            "a special field: a conditional part of the element that tells its id",
        ),
    },
    "memx-memoir": {"sequenced_message": "the packet around messages: its kind is 2"},
    "miax-onyx-tom": {"application_message": "the packet around a message: its type is 3"},
}  # fmt: skip
#: Fields of another name in the description.
RENAMED = {
    "iex-deep-plus": {"securitydirectoryflags": "flags"},
    "iex-tops": {
        "securitydirectoryflags": "flags",
        "quoteupdateflags": "flags",
        "lowerauctioncollar": "lowerauctioncollarprice",
        "upperauctioncollar": "upperauctioncollarprice",
    },
    "otc-link-ats": {
        "securitydetailsize": "securitydetaillength",
        "securitydetailname": "securitydetail",
        "issuersize": "issuerlength",
        "issuername": "issuer",
    },
}
_EOBI_PRICE = "prices of spreads are below zero, and the null value is the least signed integer"
_NEVER_NEGATIVE = "an id, a time or a count, which is not below zero"
#: Integers whose sign the description has otherwise.
SIGNS = {
    "eurex-eobi": dict.fromkeys(
        ("bidpx", "lastpx", "mdentrypx", "offerpx", "prevprice", "price"), _EOBI_PRICE
    ),
    "ice-impact": dict.fromkeys(
        (
            "auctionendtime", "deliverybegindatetime", "deliveryenddatetime", "extraflags",
            "hedgebodylength", "hedgemarketid", "hubid", "lastmessagesequenceid",
            "lasttradedatetime", "legbodylength", "legmarketid", "legunderlyingmarketid",
            "marketid", "messagedatetime", "messagetimestamp", "modificationtimestamp",
            "notificationdatetime", "numberofhedgedefinitions", "numberoflegdefinitions",
            "numberofspecialfields", "numberofstrategylegdefinitions", "numdecimalsprice",
            "numdecimalspriceingram", "numofbookentries", "orderentrydatetime", "orderid",
            "pricelevelposition", "productid", "publisheddatetime", "rfqsystemid",
            "sequencewithinmillis", "settlepricedatetime", "specialfieldid", "specialfieldlength",
            "stripid", "timestamp", "tradeid", "transactdatetime", "underlyingmarketid",
            "valuationdatetime",
        ),
        _NEVER_NEGATIVE,
    ),
    "iex-deep-plus": {"timestamp": _NEVER_NEGATIVE},
    "iex-tops": {"timestamp": _NEVER_NEGATIVE},
}  # fmt: skip
_PAD = "five reserved bytes follow OrdType: the message's own length leaves room for them"
#: Fields that the layout has otherwise than real packets: (message, field) to size and reason.
MISTAKEN = {
    "eurex-eobi": {
        ("full_order_execution", ""): (5, _PAD),
        ("partial_order_execution", ""): (5, _PAD),
    },
    "nyse-integrated-pillar": {
        ("imbalance_message", "unpairedqty"): (4, "the message's own size leaves it four bytes")
    },
}
#: Fields that are named for having no meaning any more, and are reserved bytes in the description.
UNUSED = {"otc-link-ats": {"deprecated"}}
#: Feeds whose messages end with one of several structures: the layout lists each combination, the
#: description each structure under its condition.
ALTERNATIVES = {"siac-cqs"}
#: Messages whose last fields the layout has among its types: `ELSEWHERE`.
OPEN = {"ice-impact": {"special_field_message"}}


class Span(NamedTuple):
    """A field, or bytes that mean nothing (`name` is empty); `size` 0: told by the field before."""

    name: str
    size: int
    sign: str = ""
    order: str = ""


def joined(spans: Iterator[Span]) -> list[Span]:
    """Return the fields, with the bytes that mean nothing between two as one span."""
    found: list[Span] = []
    for span in spans:
        if span.name or not found or found[-1].name:
            found.append(span)
        else:
            found[-1] = Span("", found[-1].size + span.size)
    return [span for span in found if span.name or span.size]


def theirs(members: dict[str, Any], name: str) -> Iterator[Span]:
    """Yield the fields of a structure of the layout, structures in it resolved."""
    for field in members[name]["fields"]:
        if field["name"] in members:
            yield from theirs(members, field["name"])
        elif FILLER.fullmatch(plain(field["name"])):
            yield Span("", field.get("size", 0))
        else:
            yield their_span(field)


def their_span(field: dict[str, Any]) -> Span:
    """Return a field of the layout; of named bits and texts it says no sign and no byte order."""
    size, kind = field.get("size", 0), field.get("type", "")
    number = bool(size) and kind.startswith(("INT", "UINT", "DOUBLE"))
    sign = ("i" if field.get("signed") else "u") if number else ""
    return Span(plain(field["name"]), size, sign, field["byte_order"] if number else "")


def ours(block: Block, begin: int = 0) -> Iterator[Span]:
    """Yield the fields of a block from offset `begin` on, and those of its parts behind."""
    at = begin
    for field in block.fields:
        if field.at < begin:
            continue
        yield Span("", field.at - at)
        at = field.at + field.size
        yield our_span(field, block.byte_order)
    yield Span("", block.size - at)
    for part in block.parts:
        yield from of_part(part)


def our_span(field: Field, order: str) -> Span:
    if field.kind == "x" or FILLER.fullmatch(plain(field.wire)):
        return Span("", field.size)
    number = field.kind in "iu"
    return Span(
        plain(field.wire),
        field.size,
        field.kind if number else "",
        (field.byte_order or order) if number and field.size > 1 else "",
    )


def of_part(part: Part) -> Iterator[Span]:
    """Yield what stands in front of a part's elements, and the fields of one element."""
    if isinstance(part, Group) and part.dimensions is not None:
        ahead, at = part.dimensions, 0
        fields = sorted(filter(None, (ahead.block_length, ahead.count)), key=lambda each: each.at)
        for field in fields:
            yield Span("", field.at - at)
            yield our_span(field, ahead.byte_order)
            at = field.at + field.size
        yield Span("", ahead.size - at)
    yield from ours(part.elements)
    if isinstance(part, Text):
        yield Span(plain(part.wire), 0)


def code_of(name: str, when: str) -> str:
    """Return the label of the type that a condition of the layout is about."""
    field, _, value = when.partition(" == ")
    category = field.removesuffix("_message_type")
    value = value.strip('"')
    if name.startswith("siac"):
        letters = {"summary": "S", "prior_day": "P", "trade": "T"}
        return letters.get(category, category[0].upper()) + value
    return str(int(value, 0)) if re.fullmatch(r"0x[0-9A-Fa-f]+|\d+", value) else value


def corrected(name: str, message: str, wanted: list[Span]) -> Iterator[Span]:
    """Yield the layout's fields, with what is known to differ as the description has it."""
    signs, mistaken = SIGNS.get(name, {}), MISTAKEN.get(name, {})
    for span in wanted:
        size, _ = mistaken.get((message, span.name), (span.size, ""))
        sign = {"i": "u", "u": "i"}[span.sign] if span.name in signs and span.sign else span.sign
        called = RENAMED.get(name, {}).get(span.name, span.name)
        if span.name in UNUSED.get(name, ()):
            yield Span("", size)
        else:
            yield Span(called, size, sign, span.order)


def agree(wanted: list[Span], made: list[Span]) -> bool:
    """Return whether all fields are the same, as far as the layout says what they are."""
    return len(wanted) == len(made) and all(map(agrees, wanted, made))


def agrees(wanted: Span, made: Span) -> bool:
    """Compare one field."""
    order = wanted.order if wanted.size > 1 else ""
    return (
        (wanted.name, wanted.size) == (made.name, made.size)
        and wanted.sign in ("", made.sign)
        and order in ("", made.order)
    )


def agree_in_any_order(wanted: list[Span], made: list[Span], ordered: int) -> bool:
    """As `agree` for the first `ordered` fields; of the rest each has its like."""
    return agree(wanted[:ordered], made[:ordered]) and {
        span[:2] for span in wanted[ordered:]
    } == {span[:2] for span in made[ordered:]}  # fmt: skip


def fault_of(feed: Feed, members: dict[str, Any], when: str, message: str) -> str:
    """Return in what a message is described otherwise than the layout has it; "" for nothing."""
    packet = feed.description.packet
    if said := PACKETS.get(when):
        known = packet.heartbeat_when_empty if said == "heartbeat" else packet.end_of_session
        return "" if known in (True, 65535) else f"[packet] does not know {said}"
    label = code_of(feed.name, when)
    ways = [
        (way, 0 if way in feed.controls.values() else feed.description.message.header_size)
        for way in (*(way for each in feed.layouts.values() for way in each),
                    *feed.controls.values())
        if str(way.label) == label
    ]  # fmt: skip
    if not ways:
        return f"type {label} is not described"
    # A message that is no member has no fields.
    spans = joined(theirs(members, message)) if message in members else []
    wanted = list(corrected(feed.name, message, spans))
    for way, begin in ways:
        made = joined(ours(way, begin))
        if message in OPEN.get(feed.name, ()):
            made = made[: len(wanted)]
        ordered = len([field for field in way.fields if field.at >= begin])
        if agree(wanted, made) or (
            feed.name in ALTERNATIVES and agree_in_any_order(wanted, made, ordered)
        ):
            return ""
    apart = [
        (one, other) for one, other in zip(wanted, made, strict=False) if not agrees(one, other)
    ]
    return f"of {len(wanted)} and {len(made)} fields, {apart[:1]} are not the same"


@pytest.mark.parametrize("name", FOLDERS)
def test_every_message_of_a_protocol_is_described_as_its_layout_says(
    name: str, venues: Path
) -> None:
    feed = load_feed(name)
    layout = json.loads((venues / FOLDERS[name] / "layout.json").read_text())
    members, elsewhere = layout["members"], ELSEWHERE.get(name, {})
    asked = [
        (each["when"], each["message"])
        for each in layout["types"]
        if not each["when"].startswith("message_category") and each["message"] not in elsewhere
    ]
    assert len(asked) >= 7
    found = {message: fault_of(feed, members, when, message) for when, message in asked}
    assert not {message: fault for message, fault in found.items() if fault}


@pytest.mark.parametrize("name", FOLDERS)
def test_no_known_difference_is_listed_that_is_none(name: str, venues: Path) -> None:
    layout = json.loads((venues / FOLDERS[name] / "layout.json").read_text())
    members = layout["members"]
    names = {span.name for each in members for span in theirs(members, each)}
    listed = {*RENAMED.get(name, {}), *SIGNS.get(name, {}), *UNUSED.get(name, ())}
    assert listed <= names
    assert set(ELSEWHERE.get(name, {})) <= {each["message"] for each in layout["types"]}
    assert {message for message, _ in MISTAKEN.get(name, {})} <= set(members)


def test_a_field_of_another_place_size_sign_or_order_is_found() -> None:
    wanted = [Span("price", 8, "i", "big"), Span("", 4), Span("side", 1)]
    made = [Span("price", 8, "i", "big"), Span("", 4), Span("side", 1, "u")]
    assert agree(wanted, made)
    for wrong in (Span("price", 8, "u", "big"), Span("price", 8, "i", "little"),
                  Span("price", 4, "i", "big"), Span("prices", 8, "i", "big")):  # fmt: skip
        assert not agree(wanted, [wrong, *made[1:]])
    assert not agree(wanted, [made[0], made[2]])
