"""Contradictions in a description are refused as it is loaded, with their line, key and reason:
values that a field cannot have, names that are taken, numbers out of range."""

import re
from pathlib import Path

import pytest

from feedhandler.codecs.toml_text import parse_toml
from tests.support.descriptions import FILE, check_refused, described
from tests.support.refusal import refusal

GOOD = """
name = "base"
title = "What refusals are tried with"
key = "base"
number = 2020
zone = "UTC"
byte_order = "big"

[packet]
header_size = 8
length = { field = "Length" }
sequence = { field = "Seq", counts = "messages" }
heartbeat_when_empty = true
count = "Count"
flags = "Flags"
fields = [
    { type = "u16", name = "Length" },
    { type = "u8", name = "Count" },
    { type = "u8", name = "Flags" },
    { type = "u32", name = "Seq" },
]

[message]
header_size = 2
length = { at = 0, type = "u8" }
type = { at = 1, type = "u8" }
fields = [{ at = 1, type = "u8", name = "Type" }]

[dimensions.sizes]
size = 3
block_length = { at = 0, type = "u16" }
count = { at = 2, type = "u8" }

[clock]
type = 9
field = "Second"
unit = "s"
since = "midnight"

[reference]
type = 9
index = "Id"
name = ["Ticker"]
scale = "Scale"

[[times]]
name = "event_time_ns"
since = "epoch"
nanoseconds = "Time"

[[blocks]]
name = "pair"
fields = [{ type = "u8", name = "A" }, { type = "u8", name = "B" }]

[[messages]]
type = 1
name = "one"
symbol = "Id"
fields = [
    { type = "u32", name = "Id" },
    { type = "u64", name = "Time" },
    { type = "c1", name = "Ind" },
    { type = "c3", name = "Code" },
    { type = "u8", name = "Num", bits = { Low = [0, 4], High = 7 } },
    { type = "i8", name = "Sign", null = -1 },
    { type = "f32", name = "Ratio" },
    { type = "u32", name = "Price", price = 2 },
    { type = "u32", name = "Size" },
]

[[messages.parts]]
block = "extra"
when = { field = "Num", in = [1] }
fields = [{ block = "pair" }]

[[messages.parts]]
group = "rows"
dimensions = "sizes"
fields = [{ type = "u16", name = "X" }, { type = "u8", name = "Y" }]

[[messages.parts]]
text = "note"
length = "u8"

[[messages]]
type = 9
name = "two"
symbol = "Id"
fields = [
    { type = "u32", name = "Id" },
    { type = "c4", name = "Ticker" },
    { type = "u8", name = "Scale" },
    { type = "u32", name = "Second" },
]

[book]
by = "order"

[[book.rules]]
messages = ["one"]
does = "trade"
price = "Price"
size = "Size"
"""
WHEN, BLOCK, NUM = 'field = "Num", in = [1]', '{ block = "pair" }', '{ type = "u8", name = "Num"'
DIMENSIONS, BITS = 'dimensions = "sizes"', "{ Low = [0, 4], High = 7 }"
SIZE, COUNT, TIMES = '{ type = "u32", name = "Size"', 'count = "Count"', 'name = "event_time_ns"'
WHERE = "messages[1].extra.when"
#: What a part's condition asks of its field, and why it is refused.
CONDITIONS = {
    'field = "Num", in = ["1"]': (".in", "'1' is no value of the field: 0 to 255"),
    'field = "Num", in = [300]': (".in", "300 is no value"),
    'field = "Low", in = [16]': (".in", "16 is no value of the field: 0 to 15"),
    'field = "Sign", in = [-129]': (".in", "-129 is no value of the field: -128 to 127"),
    'field = "Sign", in = [-1]': (".in", "-1 is the field's null"),
    'field = "Ind", in = [1]': (".in", "1 is no text of at most 1 character"),
    'field = "Ind", in = ["11"]': (".in", "'11' is no text"),
    'field = "Code", in = ["A "]': (".in", "ends in padding"),
    'field = "Price", in = [100]': ("", "neither an integer without scale nor text"),
    'field = "Price", mask = 1': ("", "neither an integer without scale nor text"),
    'field = "Ratio", in = [1]': ("", "neither an integer without scale nor text"),
    'field = "Num", mask = 256': (".mask", "256 is not within 1..255"),
    'field = "High", mask = 2': (".mask", "2 is not within 1..1"),
    'field = "Ind", mask = 1': (".mask", "is text, which has no bits"),
    'field = "Nun", mask = 1': ("", "did you mean Num?"),
    "left = -3": (".left", "-3 is not within 0.."),
    "left = 2, mask = 1": ("", "needs `field`"),
}
#: What tells a group's elements, in place of its dimensions.
COUNTS = {
    'count = "Ind"': "'Ind' must be an unsigned integer without scale",
    'count = "Price"': "'Price' must be an unsigned integer without scale",
    'count = "Sign"': "'Sign' must be an unsigned integer",
    'count = "Numb"': "did you mean Num?",
    'count = { type = "c1" }': "must be an unsigned integer, not 'c1'",
    'count = { type = "i8" }': "must be an unsigned integer, not 'i8'",
    'count = { type = "f32" }': "must be an unsigned integer, not 'f32'",
    'count = { type = "x1" }': "must be an unsigned integer, not 'x1'",
    'count = { type = "uint8" }': "unknown type 'uint8': u8 to u64, i8 to i64, f32, f64, cN or xN; "
    "did you mean u8?",
}
WRONG = [
    # what is replaced, by what, the key, the reason
    *[(WHEN, new, WHERE + key, reason) for new, (key, reason) in CONDITIONS.items()],
    *[(DIMENSIONS, new, "messages[1].rows.count", reason) for new, reason in COUNTS.items()],
    ('length = { at = 0, type = "u16"', 'length = { at = 0, type = "i16"',
     "dimensions.sizes.block_length", "unsigned integer, not 'i16'"),
    ("size = 3", "size = -3", "dimensions.sizes.size", "not within"),
    ("size = 3", "size = 0", "dimensions.sizes.BlockLength", "ends at 2, outside the 0 bytes"),
    # numbers that no field, table or message has room for
    (f"{NUM},", f"{NUM}, null = 300,", "messages[1].Num.null", "300 is no value of the field"),
    (f"{NUM},", f"{NUM}, constant = -1,", "messages[1].Num.constant", "-1 is no value"),
    ("type = 9\nname", "type = 300\nname", "messages[300]", "type 300 is not within 0..255"),
    (SIZE, '{ at = 99999999999, type = "u32", name = "Size"', "messages[1].Size", "offset"),
    (SIZE, '{ type = "c99999", name = "Size"', "messages[1].Size", "more than 65575 bytes"),
    (SIZE, '{ type = "c999999999999", name = "Size"', "messages[1].Size", "unknown type"),
    (DIMENSIONS, f"{DIMENSIONS}\nsize = 70000", "messages[1].rows.size", "not within"),
    (DIMENSIONS, f'{DIMENSIONS}\nelement_length = {{ field = "Y", add = 100000 }}',
     "messages[1].rows.element_length.add", "100000 is not within"),
    ('{ field = "Length" }', '{ field = "Length", add = 1000000000000 }', "packet.length.add",
     "not within -65575..8"),
    ("[dimensions", "length_add = 16\n[dimensions", "message.length_add", "-65575..15"),
    ("[dimensions", "length_add = -1000000000000\n[dimensions", "message.length_add", "not within"),
    ("header_size = 2", "header_size = 1000000000000", "message.header_size", "not within"),
    ("header_size = 8", "header_size = 1000000000000", "packet.header_size", "not within"),
    (COUNT, f"{COUNT}\nend_of_session = 1000000000000", "packet.end_of_session", "no value"),
    (COUNT, f"{COUNT}\nend_of_session = -1", "packet.end_of_session", "-1 is no value"),
    (COUNT, f"{COUNT}\nconstants = {{ Flags = 256 }}", "packet.constants.Flags", "256 is no value"),
    (COUNT, f"{COUNT}\nconstants = {{ Seq = -1 }}", "packet.constants.Seq", "-1 is no value"),
    (COUNT, f"{COUNT}\nconstants = {{ Flag = 1 }}", "packet.constants.Flag", "did you mean Flags?"),
    (COUNT, f"{COUNT}\ncompressed_flags = [300]", "packet.compressed_flags", "300 is no value"),
    ('flags = "Flags"', "compressed_flags = [1]", "packet.compressed_flags", "is not there"),
    ('name = "Flags" }', 'name = "Flags", values = { 0x0B = "x" } }', "packet.Flags.values.0x0B",
     "no integer of 0 to 255"),
    ('name = "Flags" }', 'name = "Flags", values = { 256 = "x" } }', "packet.Flags.values.256",
     "no integer of 0 to 255"),
    (COUNT, f'{COUNT}\nreset_next = "Next"', "packet.reset_next", "no packet is a reset"),
    ('"messages" }', '"messages", first = -1 }', "packet.sequence.first", "no number"),
    ('"messages" }', '"messages", first = 4294967296 }', "packet.sequence.first", "no number"),
    # what says two things at once
    (BITS, "{ A = [] }", "messages[1].Num.bits.A", "[] is neither a bit nor"),
    (BITS, "{ A = [1, 2, 3] }", "messages[1].Num.bits.A", "neither a bit nor"),
    (BITS, "{ A = [0, 3], B = [1, 2] }", "messages[1].Num.bits.B", "bit 1 belongs to A"),
    (BITS, "{ AB = 0, Ab = 1 }", "messages[1].Num.bits.Ab", "'ab' comes twice"),
    (BITS, "{ type = 0 }", "messages[1].Num.bits.type", "'type' is reserved"),
    ("price = 2", 'price = 2, exponent = "Num"', "messages[1].Price", "a price and an exponent"),
    ("price = 2", "price = 2, bits = { A = 0 }", "messages[1].Price", "has no bits"),
    ('"Scale" }', '"Scale", price = "Scale" }', "messages[9].Scale", "carry its own scale"),
    ('"Scale" }', '"Scale", exponent = "Scale" }', "messages[9].Scale", "carry its own scale"),
    ("{ at = 1, type = \"u8\" }", "{ at = 0, type = \"u8\" }", "message.type", "inside length"),
    (BLOCK, '{ block = "pair", type = "u8" }', "messages[1].extra.pair.type", "beside a block"),
    (BLOCK, '{ block = "pair", null = 0 }', "messages[1].extra.pair.null", "beside a block"),
    ('{ type = "u8", name = "A" }', BLOCK, "messages[1].extra.pair.pair", "contains itself"),
    ("[[messages]]\ntype = 1", '[[blocks]]\nname = "pair"\nfields = []\n[[messages]]\ntype = 1',
     "blocks[1]", "'pair' comes twice"),
    # names
    (SIZE, '{ type = "u32"', "messages[1].u32", "has no name"),
    (SIZE, '{ type = "u32", name = "PriceRaw"', "messages[1].Price", "'price_raw' is its integer"),
    (SIZE, '{ type = "u32", name = "SendTimeNs"', "messages[1].SendTimeNs", "is reserved"),
    (SIZE, '{ type = "u32", name = "Element"', "messages[1].Element", "is reserved"),
    (SIZE, '{ type = "uint32_t", name = "Size"', "messages[1].Size", "did you mean u32?"),
    (SIZE, '{ type = "U32", name = "Size"', "messages[1].Size", "did you mean u32?"),
    (SIZE, '{ type = "double", name = "Size"', "messages[1].Size", "did you mean f64?"),
    (SIZE, '{ name = "Size"', "messages[1].Size", "missing: its type"),
    *[(TIMES, f'name = "{name}"', "times[0].name", reason) for name, reason in [
        ("size", "the name of a field"), ("rows", "the name of a field"),
        ("extra", "the name of a field"), ("note", "the name of a field"),
        ("low", "the name of a field"), ("type", "reserved"), ("layout", "reserved"),
        ("symbol", "reserved"), ("wire", "reserved"), ("seq", "reserved"),
        ("class", "cannot be an attribute"), ("Time", "cannot be an attribute"),
    ]],
    ('group = "rows"', 'group = "low"', "messages[1].low", "is taken"),
    ('group = "rows"', 'group = "symbol"', "messages[1].symbol", "is taken"),
    ('length = "u8"', "", "messages[1].note.length", "missing: the type of the number"),
    # names that nothing has, and the nearest that something has
    ('symbol = "Id"', 'symbol = "ID"', "messages[1].symbol", "did you mean Id?"),
    ('symbol = "Id"', 'symbol = "Ratio"', "messages[1].symbol", "must be an integer, or text"),
    ('name = "one"', 'name = "one"\nconflate = "latest"\nconflate_by = ["Prise"]',
     "messages[1].conflate_by", "did you mean Price?"),
    ('name = "one"', 'name = "one"\nrevokes = ["onne"]', "messages[1].revokes",
     "did you mean one?"),
    (COUNT, 'count = "Cuont"', "packet.count", "did you mean Count?"),
    ('field = "Second"', 'field = "Secnd"', "clock.field", "did you mean Second?"),
    ('index = "Id"', 'index = "ID"', "reference.index", "did you mean Id?"),
    ('"u32", name = "Second"', '"f32", name = "Second"', "clock.field", "no unsigned field"),
    ('["Ticker"]', "[]", "reference.name", "empty"),
    ('by = "order"', 'by = "order"\nevent_time = "event_time"', "book.event_time", "did you mean"),
    ('size = "Size"', 'size = "Code"', "book.rules[0].size", "'Code' is text"),
    ('price = "Price"', 'price = "Ind"', "book.rules[0].price", "'Ind' is text"),
    ('nanoseconds = "Time"', 'nanoseconds = "Tyme"', "times[0]", "'Tyme'; did you mean Time?"),
    ('nanoseconds = "Time"', 'nanoseconds = "Type"', "times[0]", "fields of [message] do not"),
    ('nanoseconds = "Time"', 'nanoseconds = "Sign"', "times[0]", "'Sign' is i8, and must be"),
    ('nanoseconds = "Time"', 'nanoseconds = "Time"\nseconds = "Second"', "times[0]",
     "none has Second and Time as unsigned"),
    # values of another type
    ('symbol = "Id"', 'symbol = ["Id"]', "messages[1].symbol", "wants text in quotes, got a list"),
    ('["one"]', '"one"', "book.rules[0].messages", "wants a list, got text in quotes"),
    ("[[times]]", "[times]", "times", "wants an array of tables, got a table"),
    # What is written, and the nearest of what could have been.
    ('does = "trade"', 'does = "tarde"', "book.rules[0].does",
     "cannot be 'tarde'; did you mean trade? (add, clear,"),
    ('"midnight"', '"midnigth"', "clock.since", "cannot be 'midnigth'; did you mean midnight?"),
    ('byte_order = "big"', 'byte_order = "bigg"', "byte_order", "'bigg'; did you mean big?"),
    ('messages = ["one"]', 'messages = ["one"]\nside = "byu"', "book.rules[0].side",
     "cannot be 'byu'; did you mean buy? (buy or sell)"),
    ('"UTC"', '"Europe/Pairs"', "zone",
     "'Europe/Pairs' is not a time zone of the tz database; did you mean Europe/Paris?"),
    ("[book]", '[recovery]\nprotocol = "moldudp46"\n[book]', "recovery.protocol",
     "did you mean moldudp64?"),
    ("[message]\n", "[packet.pakcet]\n[message]\n", "packet.pakcet",
     "unknown key (keys here: header_size, fields, sequence,"),
    ("[message]\n", "[packet.pakcet]\n[message]\n", "packet.pakcet",
     "did you mean packet of the file's top level?"),
    ("price = 2", 'price = "Nim"', "messages[1].Price",
     "its scale 'Nim' is no one-byte integer; did you mean Num?"),
    ("price = 2", 'exponent = "Sing"', "messages[1].Price",
     "its exponent 'Sing' is no one-byte integer; did you mean Sign?"),
    (BLOCK, '{ block = "pari" }', "messages[1].extra.pari",
     "no block 'pari': pair; did you mean pair?"),
    (DIMENSIONS, 'dimensions = "size"', "messages[1].rows.dimensions", "did you mean sizes?"),
    ('symbol = "Id"', 'symbol = "rows.X"', "messages[1].symbol",
     "'rows.X': only elements of the first part name symbols"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"), WRONG, ids=[f"{i}-{row[2]}" for i, row in enumerate(WRONG)]
)
def test_what_contradicts_itself_is_refused_with_line_key_and_reason(
    tmp_path: Path, old: str, new: str, key: str, reason: str
) -> None:
    assert described(tmp_path, GOOD).name == "base"
    check_refused(tmp_path, GOOD, old, new, key, reason)


def test_a_type_for_each_of_256_messages_is_one_too_many(tmp_path: Path) -> None:
    more = "".join(
        f'[[messages]]\ntype = {n}\nname = "m{n}"\n' for n in range(256) if n not in (1, 9)
    )
    found = refusal(described, tmp_path, GOOD.replace("[book]", more + "[book]"))
    assert "messages[255]: more than 255 message types" in found


def test_more_header_fields_of_one_value_than_a_table_has_room_for_are_refused(
    tmp_path: Path,
) -> None:
    fields = "".join(f'{{ type = "u8", name = "{name}" }},' for name in "ABCDE")
    text = GOOD.replace("header_size = 8", "header_size = 13").replace(
        '{ type = "u32", name = "Seq" },', f'{{ type = "u32", name = "Seq" }}, {fields}'
    )
    constants = ", ".join(f"{name} = 0" for name in "ABCDE")
    new = f"{COUNT}\nconstants = {{ {constants} }}"
    check_refused(tmp_path, text, COUNT, new, "packet.constants.E", "more than 4")


def test_what_is_missing_is_reported_at_the_table_that_lacks_it(tmp_path: Path) -> None:
    text = re.sub(r'fields = \[\n    \{ type = "u16", name = "Length".*?\]\n', "", GOOD, flags=re.S)
    assert f"{FILE}:9: packet.fields: missing" in refusal(described, tmp_path, text)


def test_a_key_that_comes_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    text = GOOD.replace('key = "base"', 'key = "base"\nkey = "other"')
    assert f"{FILE}:5: key comes twice, first at line 4" in refusal(described, tmp_path, text)
    text = GOOD.replace('name = "two"', 'name = "two"\ntype = 10')
    assert "messages[1].type comes twice, first at line 86" in refusal(described, tmp_path, text)
    assert refusal(parse_toml, "[a]\n[b]\n[a]\n", "x.toml", "test").startswith(
        "x.toml:3: [a] comes twice, first at line 1 ("
    )
    assert "x.toml:2: [a] comes twice (" in refusal(parse_toml, "a.b = 1\n[a]\n", "x.toml", "test")


def test_a_conditions_values_may_be_bits_text_or_negative(tmp_path: Path) -> None:
    for condition in (
        'field = "Low", in = [15]', 'field = "Code", in = ["ABC", ""]', 'field = "Sign", in = [-2]',
        'field = "Num", mask = 255', 'field = "Ind", in = [" "]', 'field = "High", mask = 1',
    ):  # fmt: skip
        assert described(tmp_path, GOOD.replace(WHEN, condition)).name == "base"
    assert described(tmp_path, GOOD.replace(DIMENSIONS, 'count = "Low"')).name == "base"
