"""Messages that do not tell their length: each is as long as the layout of its type, parts
included."""

import random
from pathlib import Path
from types import ModuleType

import pytest

from feedhandler.codecs import Feed, message_walk
from feedhandler.codecs.explain import explain
from feedhandler.codecs.feed import split_packets
from feedhandler.codecs.kinds import Reject
from tests.support.descriptions import check_refused, described, head
from tests.support.feeds import table_of
from tests.support.scanners import COMPILED, INTERPRETED, SCANNERS
from tests.support.seeds import seeds_to_play
from tests.support.twins import either

#: Blocks like those of OPRA: quotes with appendages, texts, no length of a message anywhere.
BLOCKS = (
    head("big", 'pad = "space"')
    + """
[packet]
header_size = 12
length = { field = "BlockSize" }
sequence = { field = "BlockSequence", counts = "packets" }
count = "Messages"
align = 2
heartbeat_when_empty = true
fields = [
    { type = "u8", name = "Version" },
    { type = "u16", name = "BlockSize" },
    { type = "u32", name = "BlockSequence" },
    { type = "u8", name = "Messages" },
    { type = "u32", name = "Seconds" },
]

[message]
header_size = 4
sized_by_type = true
type = { at = 1, type = "c1" }

[[messages]]
type = "C"
name = "text"
fields = [{ at = 0, type = "c1", name = "Participant" }, { at = 3, type = "c1", name = "Kind" }]

[[messages.parts]]
text = "data"
length = "u16"

[[messages]]
type = "d"
name = "open_interest"
symbol = "Underlying"
fields = [
    { at = 0, type = "c1", name = "Participant" },
    { at = 4, type = "c5", name = "Underlying" },
    { type = "u32", name = "Volume" },
]

[[messages]]
type = "k"
name = "quote"
symbol = "Underlying"
fields = [
    { at = 0, type = "c1", name = "Participant" },
    { at = 3, type = "c1", name = "Best" },
    { at = 4, type = "c5", name = "Underlying" },
    { type = "i32", name = "Bid" },
    { type = "u16", name = "Flags", bits = { HasSizes = 9, LegBits = [0, 3] } },
    { type = "u8", name = "LegCount" },
]

[[messages.parts]]
block = "best_bid"
when = { field = "Best", in = ["M", "N", "O"] }
fields = [{ type = "c1", name = "BidOf" }, { type = "i32", name = "BestBid" }]

[[messages.parts]]
block = "best_offer"
when = { field = "Best", in = ["C", "O"] }
fields = [{ type = "c1", name = "OfferOf" }, { type = "i32", name = "BestOffer" }]

[[messages.parts]]
block = "sizes"
when = { field = "HasSizes", mask = 1 }
fields = [{ type = "u32", name = "Size" }]

[[messages.parts]]
group = "legs"
count = "LegCount"
fields = [{ type = "u24", name = "Ratio" }]

[[messages.parts]]
group = "fills"
count = { type = "u8" }
fields = [{ type = "u16", name = "Shares" }, { type = "c1", name = "Side" }]
"""
)
BIDS, OFFERS = "MNO", "CO"


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return described(tmp_path, BLOCKS)


twin = either(SCANNERS)


def quote(feed: Feed, best: str = "A", legs: int = 0, fills: int = 0, size: int | None = None):
    return feed.encode_message(
        "quote", participant="X", best=best, underlying="IBM", bid=-7,
        best_bid={"bid_of": "Z", "best_bid": 5} if best in BIDS else None,
        best_offer={"offer_of": "Y", "best_offer": 6} if best in OFFERS else None,
        sizes=None if size is None else {"size": size},
        legs=[{"ratio": number} for number in range(legs)],
        fills=[{"shares": number, "side": "B"} for number in range(fills)],
    )  # fmt: skip


def some_message(feed: Feed, draw: random.Random) -> bytes:
    kind = draw.choice(["text", "open_interest", "quote"])
    if kind == "text":
        return feed.encode_message(kind, data="x" * draw.randrange(40))
    if kind == "open_interest":
        return feed.encode_message(kind, underlying="SPX", volume=draw.randrange(1000))
    size = draw.choice([None, 9])
    return quote(feed, draw.choice("ABCMNOP "), draw.randrange(4), draw.randrange(4), size)


def packet_of(feed: Feed, messages: list[bytes]) -> bytes:
    packet = feed.encode_packet(sequence=7, messages=messages)
    return packet + bytes(len(packet) % 2)


def scanned(feed: Feed, twin: ModuleType, data: bytes) -> tuple[Reject, list[tuple[int, int]]]:
    """The verdict of one twin, and offset and size of each message."""
    table, header, index = table_of(feed, twin), twin.PacketHeader(), twin.MessageIndex(255)
    verdict = twin.parse_header(table, memoryview(data), 0, len(data), header)
    if verdict == Reject.FINE:
        checked = twin.check_messages(table, memoryview(data), 0, header)
        verdict = twin.scan_messages(table, memoryview(data), 0, header, index)
        assert checked == verdict
        assert (header.unknown, header.short) == (index.unknown, index.short) or verdict
    arrays = index.arrays()
    return Reject(verdict), list(
        zip(arrays["offsets"].tolist(), arrays["sizes"].tolist(), strict=True)
    )


def test_each_message_is_found_behind_the_parts_of_the_one_before(feed: Feed, twin) -> None:
    for seed in seeds_to_play(range(1, 21)):
        draw = random.Random(seed)
        messages = [some_message(feed, draw) for _ in range(draw.randrange(1, 9))]
        packet = packet_of(feed, messages)
        verdict, found = scanned(feed, twin, packet)
        assert verdict == Reject.FINE
        assert [packet[at : at + size] for at, size in found] == messages


def test_what_is_decoded_is_what_was_encoded(feed: Feed) -> None:
    messages = [quote(feed, "O", 2, 1, 9), feed.encode_message("text", kind="b", data="halted")]
    record, text = feed.decode_packet(packet_of(feed, messages)).messages
    assert (record.best, record.best_bid.best_bid, record.best_offer.best_offer) == ("O", 5, 6)
    assert (record.sizes.size, len(record.legs), record.fills[0].side) == (9, 2, "B")
    assert (text.data, text.kind, record.bid) == ("halted", "b", -7)
    assert [feed.encode_message(each) for each in (record, text)] == messages
    (batch,) = split_packets(feed, packet_of(feed, messages))
    assert list(feed.messages_of(batch)) == messages


def test_nothing_tells_where_an_unknown_message_ends(feed: Feed, twin) -> None:
    known, unknown = quote(feed), b"XzAA and more"
    verdict, found = scanned(feed, twin, packet_of(feed, [known, unknown]))
    assert verdict == Reject.FINE
    assert [size for _, size in found] == [len(known), len(unknown)]
    assert scanned(feed, twin, packet_of(feed, [unknown, known]))[0] == Reject.COUNT_MISMATCH


@pytest.mark.parametrize(
    ("cut", "least"),
    [("bid", 19), ("legs", 20), ("fills", 26), ("text", 6)],
)
def test_a_message_that_ends_in_one_of_its_parts_is_an_overrun(
    feed: Feed, twin, cut: str, least: int
) -> None:
    whole = feed.encode_message("text", data="x") if cut == "text" else quote(feed, "A", 2, 2)
    packet = packet_of(feed, [whole[: least - 1]])
    packet = packet[: feed.table.header_size + least - 1]
    packet = packet[:1] + len(packet).to_bytes(2, "big") + packet[3:]
    assert scanned(feed, twin, packet)[0] == Reject.MESSAGE_OVERRUN
    fault = explain(feed, packet)
    assert (fault.reason, fault.message) == (Reject.MESSAGE_OVERRUN, 1)


def test_both_twins_say_the_same_of_whatever_comes(feed: Feed) -> None:
    interpreted = INTERPRETED
    reasons = set()
    for seed in seeds_to_play(range(1, 301)):
        draw = random.Random(seed)
        packet = bytearray(packet_of(feed, [some_message(feed, draw) for _ in range(4)]))
        for _ in range(draw.randrange(3)):
            packet[draw.randrange(3, len(packet))] = draw.choice([0, 1, 67, 107, 255])
        said = scanned(feed, COMPILED, bytes(packet))
        assert said == scanned(feed, interpreted, bytes(packet)), f"SEED={seed}"
        reasons.add(said[0])
    assert reasons >= {Reject.FINE, Reject.MESSAGE_OVERRUN, Reject.COUNT_MISMATCH}


def test_without_a_count_messages_follow_one_another_to_the_end(tmp_path: Path, twin) -> None:
    feed = described(tmp_path, BLOCKS.replace('count = "Messages"\n', ""))
    messages = [quote(feed, "O", 1), feed.encode_message("text", data="abc"), quote(feed, "C")]
    packet = feed.encode_packet(sequence=1, messages=messages)
    _, found = scanned(feed, twin, packet)
    assert [packet[at : at + size] for at, size in found] == messages


def test_a_block_tells_its_length_and_parts_follow_it(tmp_path: Path, twin) -> None:
    text = BLOCKS.replace("header_size = 4\n", "header_size = 6\n").replace(
        "sized_by_type = true\n",
        'sized_by_type = true\nblock_length = { at = 4, type = "u16" }\n',
    )
    text = text.replace('{ at = 4, type = "c5"', '{ at = 6, type = "c5"')
    feed = described(tmp_path, text)
    known = quote(feed, "O", 1, 1)
    longer = known[:4] + b"\0\x0f" + known[6:18] + b"new" + known[18:]
    packet = packet_of(feed, [longer, known])
    _, found = scanned(feed, twin, packet)
    assert [packet[at : at + size] for at, size in found] == [longer, known]


def test_a_walk_by_sizes_alone_finds_the_same_ends(feed: Feed) -> None:
    messages = [quote(feed, "M", 3), feed.encode_message("text", data="x"), quote(feed)]
    data = b"".join(messages)
    ends = [len(b"".join(messages[: number + 1])) for number in range(3)]
    for number, end in enumerate(ends):
        assert message_walk.message_end(feed.table, data, 0, len(data), number + 1) == end
    assert message_walk.message_size(feed.table, data[:-1], ends[1], len(data) - 1) == 0


REFUSED = {
    "a length too": (
        "sized_by_type = true",
        'sized_by_type = true\nlength = { at = 2, type = "u8" }',
        "message.sized_by_type",
        "leave one of both out",
    ),
    "two layouts of a type": ('type = "d"', 'type = "k"', "sized_by_type", "have one type"),
    "an end that nothing tells": ('count = { type = "u8" }\n', "", "fills", "no count of them"),
    "a condition on what is left": (
        'when = { field = "Best", in = ["C", "O"] }', "when = { left = 5 }",
        "best_offer", "depends on no fixed field",
    ),
    "a wide field by its values": (
        'when = { field = "HasSizes", mask = 1 }', 'when = { field = "Flags", in = [512] }',
        "quote.sizes", "more than one byte",
    ),
    "a count of bits": (
        'count = { type = "u8" }', 'count = "LegBits"', "quote.fills", "'leg_bits', its count"
    ),
    "what is left beside a field": (
        'when = { field = "HasSizes", mask = 1 }',
        'when = { field = "HasSizes", mask = 1, left = 2 }', "sizes", "`left` cannot decide",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_no_size_can_be_told_of_is_refused(
    tmp_path: Path, old: str, new: str, key: str, reason: str
) -> None:
    check_refused(tmp_path, BLOCKS, old, new, key, reason)
