"""Framings and messages that only some feeds have, each in a description of its own."""

from pathlib import Path
from types import ModuleType

import numpy
import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.codecs import BadPacket, ReferenceData, UsageError, feed_table
from feedhandler.codecs import columns as compiled_columns
from feedhandler.codecs import message_symbols as compiled_symbols
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.layouts import UnknownMessage
from feedhandler.codecs.prices import Price
from tests.support.descriptions import SEQUENCE_ONLY, check_refused, described, head
from tests.support.refusal import refusal
from tests.support.scanners import SCANNERS, header_and_index, index_of
from tests.support.twins import either

TOP = head("little", 'pad = "space"')
SBE = """
[message]
header_size = 10
length = { at = 0, type = "u16" }
type = { at = 4, type = "u16" }
block_length = { at = 2, type = "u16" }
fields = [
    { type = "u16", name = "Length" },
    { type = "u16", name = "BlockLength" },
    { type = "u16", name = "TemplateId" },
    { type = "u16", name = "SchemaId", constant = 7 },
    { type = "u16", name = "Version", constant = 3 },
]

[dimensions.group]
size = 3
block_length = { at = 0, type = "u16" }
count = { at = 2, type = "u8" }

[[messages]]
type = 1
name = "update"
symbol = "entries.Instrument"
fields = [
    { type = "u64", name = "Time" },
    { type = "i8", name = "Exponent" },
    { type = "u16", name = "Level", null = 0xFFFF },
]

[[messages.parts]]
group = "entries"
dimensions = "group"
fields = [
    { type = "i64", name = "Price", exponent = "Exponent", null = -9223372036854775808 },
    { type = "c12", name = "Instrument" },
]

[[messages.parts]]
group = "legs"
count = { type = "u8" }
fields = [{ type = "u24", name = "Ratio" }]

[[messages.parts.parts]]
text = "note"
length = "u8"

[[messages.parts]]
text = "comment"
length = "u16"
"""
scan = either(SCANNERS)
INTERPRETED_COLUMNS = load_interpreted("feedhandler.codecs.columns")


@pytest.fixture
def sbe(tmp_path: Path):
    return described(tmp_path, TOP + SEQUENCE_ONLY + SBE)


LONG_NAME = "ABCDEFGHIJKL"
UPDATE = {
    "time": 5, "exponent": -2, "level": None,
    "entries": [{"price": 1050, "instrument": "ABC"}, {"price": None, "instrument": LONG_NAME}],
    "legs": [{"ratio": 70_000, "note": "first"}, {"ratio": 1}],
    "comment": "late",
}  # fmt: skip


def test_groups_texts_nulls_and_exponents_are_read_as_they_were_written(sbe) -> None:
    message = sbe.encode_message("update", **UPDATE)
    record = sbe.decode_message(message)
    assert record.level is None
    assert [entry.price for entry in record.entries] == [Price(1050, 2), None]
    assert [(leg.ratio, leg.note) for leg in record.legs] == [(70_000, "first"), (1, "")]
    assert record.comment == "late"
    assert sbe.encode_message(record) == message
    assert record.to_dict()["entries"][0] == {"price": 10.5, "instrument": "ABC"}
    assert [(leaf.name, leaf.value) for leaf in sbe.leaves(sbe.encode_packet(messages=[message]))][
        :6
    ] == [("Sequence", 0), ("Length", len(message)), ("BlockLength", 11), ("TemplateId", 1),
          ("SchemaId", 7), ("Version", 3)]  # fmt: skip


def test_a_longer_block_is_read_as_far_as_it_is_known_and_a_shorter_one_ends_in_nulls(sbe) -> None:
    message = bytearray(sbe.encode_message("update", **UPDATE))
    longer = message[:21] + b"\x01\x02\x03\x04" + message[21:]
    longer[0:4] = (len(longer)).to_bytes(2, "little") + (15).to_bytes(2, "little")
    assert sbe.longer == {}
    assert sbe.decode_message(bytes(longer)) == sbe.decode_message(bytes(message))
    (told,) = sbe.longer.values()
    assert told == (25, 21), "told once, however many come"
    shorter = message[:19] + message[21:]
    shorter[0:4] = (len(shorter)).to_bytes(2, "little") + (9).to_bytes(2, "little")
    record = sbe.decode_message(bytes(shorter))
    assert (record.time, record.level, record.comment) == (5, None, "late")


PLAIN_GROUP = SBE.replace('symbol = "entries.Instrument"\n', "").replace(
    '{ type = "c12", name = "Instrument" },', '{ type = "c12", name = "Remark" },'
)


@pytest.mark.parametrize("columns", [compiled_columns, INTERPRETED_COLUMNS])
@pytest.mark.parametrize(("count", "rows"), [(2, 0), (0, 1), (255, 0)])
def test_elements_that_say_they_have_no_bytes_are_as_those_of_an_earlier_version(
    tmp_path: Path, columns: ModuleType, count: int, rows: int
) -> None:
    """The block length of a group's dimensions, 0 as it comes: nothing is divided by it."""
    feed = described(tmp_path, TOP + SEQUENCE_ONLY + PLAIN_GROUP)
    message = bytearray(feed.encode_message("update", time=5))
    message[21:24] = bytes([0, 0, count])  # behind header and block: block length, count
    packet = feed.encode_packet(sequence=1, messages=[bytes(message)])
    index = index_of(feed, packet)
    assert columns.Columns(feed, "update").decode(packet, index) == rows


@pytest.mark.parametrize(
    ("cut", "part"),
    [(20, "fixed part"), (23, "dimensions of entries"), (30, "element 1 of 2 of entries"),
     (64, "dimensions of legs"), (66, "element 1 of 2 of legs"), (70, "note of 5 bytes"),
     (83, "comment of 4 bytes")],
)  # fmt: skip
def test_a_message_that_ends_inside_a_part_says_which(sbe, cut: int, part: str) -> None:
    message = bytearray(sbe.encode_message("update", **UPDATE))[:cut]
    message[0:2] = cut.to_bytes(2, "little")
    record = sbe.decode_message(bytes(message))
    assert isinstance(record, UnknownMessage)
    assert part in record.reason


def test_elements_name_one_symbol_or_several(sbe, scan: ModuleType) -> None:
    both = sbe.encode_message("update", **UPDATE)
    one = sbe.encode_message("update", entries=UPDATE["entries"][:1])
    none = sbe.encode_message("update")
    packet = sbe.encode_packet(sequence=1, messages=[both, one, none])
    header, index = header_and_index(sbe, packet, scan)
    assert (header.count, header.length, header.next_sequence) == (3, len(packet), 2)
    assert index.symbols[0] == scan.SEVERAL_SYMBOLS
    assert sbe.symbol_name(index.symbols[1]) == "ABC"
    assert index.symbols[2] == scan.NO_SYMBOL


def test_the_symbols_of_a_message_are_walked_one_by_one(sbe) -> None:
    packet = sbe.encode_packet(sequence=1, messages=[sbe.encode_message("update", **UPDATE)])
    header, index = header_and_index(sbe, packet)
    walk = compiled_symbols.SymbolWalk()
    at, end = index.offsets[0], index.offsets[0] + index.sizes[0]
    assert compiled_symbols.begin_symbols(sbe.table, packet, at, end, 1, header, walk)
    texts = []
    while compiled_symbols.next_symbol(sbe.table, packet, header, walk) != (feed_table.NO_SYMBOL):
        texts.append(packet[walk.text_at : walk.text_at + walk.text_size].rstrip().decode())
    assert texts == ["ABC", LONG_NAME]


def test_elements_are_rows_of_columns(sbe) -> None:
    messages = [sbe.encode_message("update", **UPDATE), sbe.encode_message("update", time=6)]
    packet = sbe.encode_packet(sequence=9, messages=messages)
    index = index_of(sbe, packet)
    made = compiled_columns.Columns(sbe, "update")
    assert made.decode(packet, index) == 3
    assert made.arrays["element"].tolist() == [0, 1, -1]
    assert made.arrays["time"].tolist() == [5, 5, 6]
    assert made.arrays["price"][:1].tolist() == [10.5]
    assert numpy.isnan(made.arrays["price"][1])
    assert made.to_arrow()["level"].to_pylist() == [None, None, None]


def test_what_does_not_fit_into_a_group_is_refused(sbe) -> None:
    with pytest.raises(UsageError, match="300 is too much for 1 bytes"):
        sbe.encode_message("update", entries=[{}] * 300)


MOLD = """
[packet]
header_size = 20
sequence = { field = "Sequence", counts = "messages", heartbeat = "next" }
heartbeat_when_empty = true
count = "Count"
end_of_session = 65535
session = "Session"
fields = [
    { type = "c10", name = "Session", as = "session_name" },
    { type = "u64", name = "Sequence" },
    { type = "u16", name = "Count" },
]

[message]
header_size = 4
length = { at = 0, type = "u16" }
length_add = 2
type = { at = 2, type = "c1", second = { at = 3, type = "c1" } }
"""
CLOCKED = """
[clock]
type = "TS"
field = "Seconds"
unit = "s"
since = "epoch"

[[times]]
name = "event_time_ns"
since = "clock"
nanoseconds = "Nanoseconds"

[[blocks]]
name = "Moment"
fields = [{ type = "u32", name = "Nanoseconds" }]

[[messages]]
type = "TS"
name = "seconds"
fields = [{ type = "u32", name = "Seconds" }]

[[messages]]
type = "AB"
name = "order"
symbol = "Stock"
fields = [
    { block = "Moment" },
    { block = "Moment", name = "Placed" },
    { type = "c6", name = "Stock" },
    { type = "u8", name = "Flags", bits = { Display = 0, Kind = [1, 3] } },
]

[[messages.parts]]
block = "peg"
when = { field = "Kind", in = [2] }
fields = [{ type = "i24", name = "Offset" }]

[[messages.parts]]
block = "owner"
when = { field = "Flags", mask = 128 }
fields = [{ type = "c4", name = "Owner" }]

[[messages.parts]]
block = "tail"
when = { left = 2 }
fields = [{ type = "u16", name = "Rank" }]
"""


@pytest.fixture
def mold(tmp_path: Path):
    return described(tmp_path, TOP + MOLD + CLOCKED)


def test_a_text_session_and_the_end_of_one(mold, scan: ModuleType) -> None:
    table = mold.table_of(scan)
    sessions = set()
    for text in ("0000000001", "0000000002", "AAAAAAAAAA"):
        packet = mold.encode_packet(sequence=4, session=text, messages=[])
        header = scan.PacketHeader()
        assert scan.parse_header(table, packet, 0, len(packet), header) == Reject.FINE
        assert (header.kind, header.next_sequence, header.send_time) == (PacketKind.HEARTBEAT, 4, 0)
        sessions.add(header.session)
    assert len(sessions) == 3
    over = mold.encode_packet(sequence=9, count=65535)
    decoded = mold.decode_packet(over)
    assert (decoded.kind, decoded.next_sequence, decoded.send_time_ns) == (
        PacketKind.HEARTBEAT, 9, None,
    )  # fmt: skip


def test_packets_without_a_length_are_cut_by_their_messages(mold, scan: ModuleType) -> None:
    table = mold.table_of(scan)
    packets = [
        mold.encode_packet(sequence=3, messages=[mold.encode_message("seconds", seconds=1)] * 2),
        mold.encode_packet(sequence=5, messages=[mold.encode_message("order", stock="X")]),
    ]
    data = b"".join(packets)
    assert scan.frame_length(table, data, 0, len(data)) == len(packets[0])
    header, index = scan.PacketHeader(), scan.MessageIndex(10)
    assert scan.scan_packets(table, data, 0, len(data), header, index) == Reject.FINE
    assert list(index.sequences[:3]) == [3, 4, 5]
    assert scan.frame_length(table, data, 0, len(packets[0]) - 1) == 0


def test_bits_decide_which_blocks_follow(mold) -> None:
    plain = mold.decode_message(mold.encode_message("order", stock="MAT", display=1))
    assert (plain.flags, plain.display, plain.kind, plain.peg, plain.owner) == (1, 1, 0, None, None)
    message = mold.encode_message(
        "order", stock="MAT", kind=2, peg={"offset": -3}, owner={"owner": "ME"}, tail={"rank": 9}
    )
    record = mold.decode_message(message)
    assert (record.flags, record.kind, record.peg.offset) == (0x84, 2, -3)
    assert (record.owner.owner, record.tail.rank) == ("ME", 9)
    assert mold.encode_message(record) == message
    assert record.to_dict()["kind"] == 2
    with pytest.raises(UsageError, match="kind = 9 has more than 3 bits"):
        mold.encode_message("order", kind=9)


def test_times_count_from_the_last_clock_message(mold) -> None:
    order = mold.encode_message("order", nanoseconds=7, placed_nanoseconds=1)
    known = ReferenceData(mold)
    first = mold.encode_packet(sequence=1, messages=[order])
    assert mold.decode_packet(first, known=known).messages[0].event_time_ns is None
    second = mold.encode_packet(
        sequence=2, messages=[mold.encode_message("seconds", seconds=60), order]
    )
    assert mold.decode_packet(second, known=known).messages[1].event_time_ns == 60_000_000_007
    assert mold.decode_packet(first, known=known).messages[0].event_time_ns == 60_000_000_007
    assert mold.decode_message(order, known=known).event_time_ns == 60_000_000_007
    made = compiled_columns.Columns(mold, "order")
    for packet, wanted in ((first, compiled_columns.UNKNOWN_TIME), (second, 60_000_000_007)):
        index = index_of(mold, packet)
        made.decode(packet, index)
        assert made.arrays["event_time_ns"].tolist() == [wanted]
        assert made.arrays["kind"].tolist() == [0]


def test_types_of_two_characters_are_read_and_written(mold) -> None:
    assert mold.type_label(mold.type_code("AB")) == "AB"
    packet = mold.encode_packet(sequence=1, messages=[mold.encode_message("order")])
    assert mold.decode_packet(packet).types == ["AB"]
    unknown = packet.replace(b"AB", b"ZZ")
    assert mold.to_dicts(unknown)[0]["type"] == "ZZ"


PADDED = """
[packet]
header_size = 3
length = { field = "Length" }
sequence = { field = "" }
heartbeat_when_empty = true
align = 4
fields = [{ type = "u16", name = "Length" }, { type = "u8", name = "Count" }]
count = "Count"

[message]
header_size = 4
length = { at = 0, type = "u8" }
type = { at = 1, type = "u8" }
sequence = { at = 2, type = "u16" }
align = 2

[[messages]]
type = 1
name = "tick"
fields = [{ type = "u8", name = "Value" }]
"""


def test_messages_have_numbers_of_their_own_and_padding(tmp_path: Path, scan: ModuleType) -> None:
    feed = described(tmp_path, TOP + PADDED.replace('{ field = "" }', '{ counts = "messages" }'))
    ticks = [feed.encode_message("tick", value=value) for value in (1, 2)]
    packet = feed.encode_packet(sequence=70, messages=ticks)
    assert len(packet) == 16
    header, index = header_and_index(feed, packet, scan)
    assert (header.sequence, header.next_sequence) == (70, 72)
    assert list(index.sequences[:2]) == [70, 71]
    assert list(index.sizes[:2]) == [6, 6]
    assert [message.value for message in feed.decode_packet(packet).messages] == [1, 2]


SEVERAL = """
[packet]
header_size = 6
length = { field = "Length" }
several = true
sequence = { field = "Sequence", counts = "packets", heartbeat = "none" }
kind = { field = "Kind", data = [3], heartbeat = [0], header_size = 5 }
fields = [
    { type = "u16", name = "Sequence" },
    { type = "u16", name = "Length" },
    { type = "u8", name = "Kind" },
    { type = "u8", name = "Flag" },
]

[message]
header_size = 1
type = { at = 0, type = "u8" }

[[messages]]
type = 1
name = "tick"
fields = [{ type = "u8", name = "Value" }]
"""


def test_a_datagram_may_hold_several_packets(tmp_path: Path, scan: ModuleType) -> None:
    feed = described(tmp_path, TOP + SEVERAL)
    tick = feed.encode_message("tick", value=8)
    data = (
        feed.encode_packet(sequence=4, kind="heartbeat")
        + feed.encode_packet(sequence=5, messages=[tick])
        + feed.encode_packet(sequence=6, messages=[tick])
    )
    table, header, index = feed.table_of(scan), scan.PacketHeader(), scan.MessageIndex(10)
    assert scan.parse_next(table, data, 0, len(data), header) == Reject.FINE
    assert (header.kind, header.length) == (PacketKind.HEARTBEAT, 5)
    assert scan.parse_header(table, data, 0, len(data), header) == Reject.LENGTH_MISMATCH
    starts, sizes = numpy.array([0]), numpy.array([len(data)], numpy.uint32)
    rejects = numpy.zeros(scan.REJECT_COUNT, numpy.uint64)
    scan.scan_datagrams(
        table, data, memoryview(starts), memoryview(sizes), header, index, memoryview(rejects)
    )
    assert list(index.sequences[:2]) == [5, 6]
    packet = feed.decode_packet(data)
    assert (packet.sequence, packet.next_sequence, len(packet.messages)) == (5, 7, 2)
    with pytest.raises(BadPacket):
        feed.decode_packet(data[:-1])


LEGS = """
[packet]
header_size = 4
sequence = { field = "Sequence", counts = "packets" }
heartbeat_when_empty = true
count = "Count"
fields = [{ type = "u16", name = "Sequence" }, { type = "u16", name = "Count" }]

[message]
header_size = 2
length = { at = 0, type = "u8" }
type = { at = 1, type = "u8" }

[[messages]]
type = 1
name = "strategy"
fields = [
    { type = "u8", name = "Legs" },
    { type = "c1", name = "Decimals" },
    { type = "u32", name = "Price", price = "Decimals" },
]

[[messages.parts]]
group = "leg_list"
count = "Legs"
element_length = { field = "Size", add = 0 }
fields = [{ type = "u8", name = "Size" }, { type = "u16", name = "Ratio" }]

[[messages.parts]]
block = "summary"
fields = [{ type = "u8", name = "Total" }]
"""


def test_elements_that_tell_their_size_may_grow(tmp_path: Path) -> None:
    feed = described(tmp_path, TOP + LEGS)
    message = feed.encode_message(
        "strategy", decimals="3", price=1500, leg_list=[{"ratio": 5}], summary={"total": 1}
    )
    assert message[8:11] == b"\x03\x05\x00"
    longer = bytearray(message[:8] + b"\x05\x05\x00\xee\xee" + message[11:])
    longer[0] += 2
    for data in (message, bytes(longer)):
        record = feed.decode_message(data)
        assert (record.legs, record.leg_list[0].ratio, record.summary.total) == (1, 5, 1)
        assert record.price == Price(1500, 3)


WRONG = [
    (SBE, 'length = "u8"', 'length = "i8"', "legs.note.length", "unsigned integer"),
    (SBE, 'text = "comment"', 'text = "comment"\ngroup = "other"', "parts[2]", "one of group,"),
    (SBE, "entries.Instrument", "entries.Instrumnt", "messages[1].symbol", "mean Instrument?"),
    (SBE, 'exponent = "Exponent"', 'exponent = "Level"', "Price", "no one-byte integer"),
    (SBE, "null = 0xFFFF", "null = 1, bits = { A = 16 }", "Level.bits.A", "not within 16"),
    (MOLD + CLOCKED, 'block = "Moment", name', 'block = "Momen", name', "Placed", "no block"),
    (MOLD + CLOCKED, "in = [2]", "in = []", "messages[AB].peg.when", "one of `in` and `mask`"),
    (MOLD + CLOCKED, "left = 2", "left = 0", "messages[AB].tail.when", "needs `field`"),
    (MOLD + CLOCKED, 'type = "AB"', 'type = "A"', "messages[A]", "2 characters"),
    (MOLD + CLOCKED, 'count = "Count"\n', "", "packet.end_of_session", "not there"),
    (SEVERAL, 'length = { field = "Length" }\n', "", "packet.several", "need a length"),
    (LEGS, 'field = "Size"', 'field = "Sice"', "leg_list.element_length", "names no field"),
    (PADDED, 'counts = "messages" }', 'counts = "messages", unsequenced = 0 }',
     "packet.sequence.unsequenced", "not there"),
    (PADDED, "align = 4", "align = 99", "packet.align", "1..16"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "old", "new", "key", "reason"), WRONG, ids=[f"{row[3]}-{row[2]}" for row in WRONG]
)
def test_a_wrong_part_is_refused_with_file_line_and_key(
    tmp_path: Path, text: str, old: str, new: str, key: str, reason: str
) -> None:
    text = text.replace('{ field = "" }', '{ counts = "messages" }')
    whole = TOP + (SEQUENCE_ONLY if SBE in text else "") + text
    check_refused(tmp_path, whole, old, new, key, reason)


def test_a_description_takes_over_what_it_includes(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "base.toml").write_text(MOLD + CLOCKED)
    own = """
include = "shared/base.toml"

[[messages]]
type = "AB"
name = "order_two"
fields = [{ type = "u32", name = "Nanoseconds" }, { type = "u8", name = "Extra" }]
"""
    feed = described(tmp_path, TOP + own)
    assert sorted(layout.name for ways in feed.layouts.values() for layout in ways) == [
        "order_two", "seconds",
    ]  # fmt: skip
    assert feed.decode_message(feed.encode_message("order_two", extra=3)).extra == 3


@pytest.mark.parametrize(
    ("shared", "reason"),
    [
        (None, "include: ", ), ('include = "base.toml"', "includes itself"),
        (CLOCKED.replace('"u32", name = "Seconds"', '"u31", name = "Seconds"'), "base.toml:"),
    ],
)  # fmt: skip
def test_a_fault_in_what_is_included_is_found_there(
    tmp_path: Path, shared: str | None, reason: str
) -> None:
    if shared is not None:
        (tmp_path / "base.toml").write_text(MOLD + shared if "[clock]" in shared else shared)
    assert reason in refusal(described, tmp_path, TOP + 'include = "base.toml"')
