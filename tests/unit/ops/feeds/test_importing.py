"""`feedhandler feeds import`: SBE schemas as descriptions, and bytes that they read and write."""

import gc
import random
import re
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedhandler.codecs import Feed, Price, Record, load_feed
from feedhandler.replay.captures.reading import Capture
from tests.support.commands import Done, run_here

#: A venue of levels: decimals of constant exponent, an enum, a set, groups with dimensions of two
#: kinds, an earlier version, a constant field.
LEVELS = """\
<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="mill.levels" id="7"
    version="3" semanticVersion="1.2" description="Mill levels" byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/>
      <type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/>
      <type name="version" primitiveType="uint16"/>
    </composite>
    <composite name="groupSizeEncoding">
      <type name="blockLength" primitiveType="uint16"/>
      <type name="numInGroup" primitiveType="uint8"/>
    </composite>
    <composite name="wideGroupSize">
      <type name="blockLength" primitiveType="uint16"/>
      <type name="numInGroup" primitiveType="uint8" offset="7"/>
    </composite>
    <composite name="Price9">
      <type name="mantissa" primitiveType="int64" presence="optional"/>
      <type name="exponent" primitiveType="int8" presence="constant">-9</type>
    </composite>
    <type name="Ticker" primitiveType="char" length="6"/>
    <type name="Flag8" primitiveType="uint8" presence="optional" nullValue="254"/>
    <enum name="Side" encodingType="char">
      <validValue name="Buy">1</validValue>
      <validValue name="Sell">2</validValue>
    </enum>
    <enum name="Aggressor" encodingType="Flag8">
      <validValue name="None">0</validValue>
      <validValue name="Taker">1</validValue>
    </enum>
    <set name="EventBits" encodingType="uint8">
      <choice name="LastTrade">0</choice>
      <choice name="EndOfEvent">7</choice>
    </set>
  </types>
  <sbe:message name="LevelUpdate" id="46" blockLength="12" description="Changed levels">
    <field name="TransactTime" id="60" type="uint64"/>
    <field name="MatchEvent" id="5799" type="EventBits"/>
    <field name="EntryKind" id="269" type="Side" presence="constant" valueRef="Side.Buy"/>
    <group name="NoLevels" id="268" dimensionType="groupSizeEncoding" blockLength="24">
      <field name="LevelPx" id="270" type="Price9"/>
      <field name="SecurityID" id="48" type="int32"/>
      <field name="Quantity" id="271" type="int32" presence="optional" offset="12"/>
      <field name="Side" id="54" type="Side"/>
      <field name="Taker" id="9" type="Aggressor" sinceVersion="2" deprecated="3"/>
    </group>
    <group name="NoOrders" id="37" dimensionType="wideGroupSize">
      <field name="OrderID" id="37" type="uint64"/>
    </group>
  </sbe:message>
  <sbe:message name="Status" id="2">
    <field name="Symbol" id="55" type="Ticker"/>
    <field name="class" id="1" type="uint8"/>
    <field name="Added" id="2" type="uint16" sinceVersion="3" offset="8"/>
  </sbe:message>
</sbe:messageSchema>
"""

#: A venue of news, big-endian: a header of small fields, texts, nested groups, an exponent on the
#: wire, composites in composites, arrays.
NEWS = """\
<messageSchema package="mill.news" id="9" version="1" byteOrder="bigEndian" headerType="head">
  <types>
    <composite name="head">
      <type name="blockLength" primitiveType="uint16"/>
      <type name="templateId" primitiveType="uint8"/>
      <type name="schemaId" primitiveType="uint8"/>
      <type name="version" primitiveType="uint16"/>
    </composite>
    <composite name="groupSizeEncoding">
      <type name="blockLength" primitiveType="uint8"/>
      <type name="numInGroup" primitiveType="uint8"/>
    </composite>
    <composite name="text16">
      <type name="length" primitiveType="uint16"/>
      <type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/>
    </composite>
    <composite name="Decimal">
      <type name="mantissa" primitiveType="int32"/>
      <type name="exponent" primitiveType="int8"/>
    </composite>
    <composite name="Stamp">
      <type name="time" primitiveType="uint64"/>
      <type name="unit" primitiveType="uint8" presence="constant">6</type>
    </composite>
    <composite name="Month">
      <type name="year" primitiveType="uint16" presence="optional"/>
      <enum name="half" encodingType="uint8"><validValue name="first">1</validValue></enum>
      <ref name="from" type="Decimal"/>
    </composite>
    <type name="Trio" primitiveType="uint16" length="3"/>
  </types>
  <message name="News" id="5">
    <field name="At" id="60" type="Stamp"/>
    <field name="Expiry" id="2" type="Month"/>
    <field name="Yield" id="3" type="Decimal" presence="optional" />
    <field name="Trio" id="4" type="Trio"/>
    <group name="legs" id="6">
      <field name="Ratio" id="7" type="int8"/>
      <group name="fills" id="8">
        <field name="Qty" id="9" type="uint32"/>
      </group>
      <data name="note" id="10" type="text16"/>
    </group>
    <data name="Headline" id="11" type="text16"/>
    <data name="type" id="12" type="text16"/>
  </message>
</messageSchema>
"""


def imported(folder: Path, text: str, *options: str, code: int = 0) -> SimpleNamespace:
    """The feed of a schema, the lines on stderr and the description's text."""
    gc.collect()  # feeds of tests before, which have the same number
    schema = folder / "mill.xml"
    schema.write_text(text)
    done = run_here("feeds", "import", str(schema), "--out", str(folder / "mill.toml"), *options)
    assert done.returncode == code, done
    text = (folder / "mill.toml").read_text()
    return SimpleNamespace(feed=load_feed(folder / "mill.toml"), said=done.stderr, text=text)


def message(feed: Feed, number: int, body: bytes, prefix: str, header: str, *head: int) -> bytes:
    size = struct.calcsize(prefix) + struct.calcsize(header) + len(body)
    return struct.pack(prefix, size) + struct.pack(header, *head) + body


def test_levels_are_read_and_written_as_the_schema_says(tmp_path: Path) -> None:
    feed = imported(tmp_path, LEVELS).feed
    entry = struct.pack("<qiicBxx", 1_500_000_000, 42, 7, b"2", 254) + b"\0\0\0\0"
    nothing = struct.pack("<qiicBxx", -(1 << 63), 43, -(1 << 31), b"1", 1) + b"\0\0\0\0"
    body = struct.pack("<QB3x", 1_600_000_000_000_000_001, 0x81)
    body += struct.pack("<HB", 24, 2) + entry + nothing
    body += struct.pack("<H5xB", 8, 1) + struct.pack("<Q", 99)
    whole = message(feed, 46, body, "<H", "<HHHH", 12, 46, 7, 3)
    record = feed.decode_message(whole)
    assert record.transact_time == record.event_time_ns == 1_600_000_000_000_000_001
    assert (record.last_trade, record.end_of_event) == (1, 1)
    first, second = record.no_levels
    assert first.level_px == Price(1_500_000_000, 9)
    assert (first.security_id, first.quantity, first.side, first.taker) == (42, 7, "2", None)
    assert (second.level_px, second.quantity, second.taker) == (None, None, 1)
    assert record.no_orders[0].order_id == 99
    assert feed.encode_message(record) == whole
    packet = struct.pack("<IQ", 5, 1_600_000_000_000_000_002) + whole
    assert feed.decode_packet(packet).messages == [record]


def test_levels_have_their_symbols_names_and_earlier_versions(tmp_path: Path) -> None:
    result = imported(tmp_path, LEVELS)
    feed = result.feed
    assert result.said.count("\n") == 1
    update = feed.layouts[46][0]
    assert update.symbols is not None
    assert update.symbols[1].name == "security_id"
    assert update.parts[0].elements.by_name["side"].values == {"1": "Buy", "2": "Sell"}
    assert update.parts[0].elements.by_name["taker"].doc == (
        "since version 2; deprecated from version 3"
    )
    assert "# not on the wire: EntryKind = 1" in result.text
    old = message(feed, 2, b"MILL\0\0\x03", "<H", "<HHHH", 7, 2, 7, 2)
    record = feed.decode_message(old)
    assert (record.symbol, record.class_, record.added) == ("MILL", 3, None)
    assert feed.layouts[2][0].symbol == "symbol"


@pytest.mark.parametrize("framing", ["memx", "moldudp64"])
def test_news_is_read_and_written_as_the_schema_says(tmp_path: Path, framing: str) -> None:
    feed = imported(tmp_path, NEWS, "--framing", framing).feed
    text = struct.pack(">H", 2) + b"hi"
    leg = struct.pack(">b", -2) + struct.pack(">BBI", 4, 1, 77) + text
    body = struct.pack(">QHBibib3H", 5_000_000, 65_535, 1, 12_345, -2, -(1 << 31), 0, 1, 2, 3)
    block = len(body)
    body += struct.pack(">BB", 1, 1) + leg + text + struct.pack(">H", 0)
    head = struct.pack(">HBBH", block, 5, 9, 1)
    whole = struct.pack(">H", len(head) + len(body)) + head + body
    record = feed.decode_message(whole)
    assert record.event_time_ns == 5_000_000_000
    assert (record.expiry_year, record.expiry_half) == (None, 1)
    assert record.expiry_from == Price(12_345, 2)
    assert record.expiry_from_exponent == -2
    assert record.yield_ is None
    assert (record.trio_1, record.trio_2, record.trio_3) == (1, 2, 3)
    assert record.legs[0].fills[0].qty == 77
    assert (record.legs[0].note, record.headline, record.type_) == ("hi", "hi", "")
    assert feed.encode_message(record) == whole


def test_b3_frames_messages_with_the_code_of_their_encoding(tmp_path: Path) -> None:
    feed = imported(tmp_path, LEVELS, "--framing", "b3").feed
    body = b"MILL\0\0\x03\0\x01\0"  # a byte that no field covers
    whole = struct.pack("<HH", 12 + len(body), 0xEB50) + struct.pack("<HHHH", 10, 2, 7, 3) + body
    packet = struct.pack("<BxHIQ", 50, 1, 6, 1_600_000_000_000_000_000) + whole
    decoded = feed.decode_packet(packet)
    assert decoded.messages[0].added == 1
    assert feed.encode_message(decoded.messages[0]) == whole


SMALL = LEVELS[: LEVELS.index("  <sbe:message ")]
END = "</sbe:messageSchema>"


def with_field(field: str, types: str = "") -> str:
    return (
        SMALL.replace("</types>", f"{types}</types>")
        + f'<sbe:message name="M" id="1"><field name="A" id="1" type="uint8"/>{field}</sbe:message>'
        + END
    )


@pytest.mark.parametrize("said", ['sinceVersion="2"', 'presence="optional"'])
def test_a_set_has_no_null_value(tmp_path: Path, said: str) -> None:
    feed = imported(tmp_path, with_field(f'<field name="Events" type="EventBits" {said}/>')).feed
    head = struct.pack("<HHHH", 2, 1, 7, 3)
    record = feed.decode_message(message(feed, 1, b"\x05\xff", "<H", "<HHHH", 2, 1, 7, 3))
    assert (record.events, record.last_trade, record.end_of_event) == (255, 1, 1)
    assert feed.encode_message(record)[2:] == head + b"\x05\xff"
    earlier = feed.decode_message(message(feed, 1, b"\x05", "<H", "<HHHH", 1, 1, 7, 1))
    assert (earlier.events, earlier.last_trade) == (0, 0)


def test_floating_point_stays_floating_point(tmp_path: Path) -> None:
    fields = '<field name="X" type="double"/><field name="Y" type="float"/>'
    feed = imported(tmp_path, with_field(fields)).feed
    (layout,) = next(iter(feed.layouts.values()))
    message = feed.encode_message(layout.name, a=1, x=0.1, y=None)
    assert feed.decode_message(message).to_dict() == {"a": 1, "x": 0.1, "y": None}
    assert struct.pack("<d", 0.1) in message


def of(name: str, kind: str, rest: str = "/>") -> str:
    return f'<type name="{name}" primitiveType="{kind}"{rest}'


def typed(field: str, *types: str) -> str:
    """A field of a composite of these types."""
    made = f'<composite name="Made">{"".join(types)}</composite>'
    return with_field(f'<field {field} type="Made"/>', made)


MANTISSA, CONSTANT = of("mantissa", "int32"), ' presence="constant">3</type>'
LONG = '<type name="Long" primitiveType="uint16" length="40"/>'
SIGNED = '<composite name="text"><type name="length" primitiveType="int16"/></composite>'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (with_field('<field name="X" type="Long"/>', LONG),
         "X: an array of 40 uint16 is read past"),
        (typed('name="X"', MANTISSA, of("exponent", "int16")),
         "X: an exponent of more than one byte"),
        (typed('name="X"', MANTISSA, of("exponent", "int8", CONSTANT)),
         "X: a decimal of exponent 3 stays an integer"),
        (with_field('<group name="G" dimensionType="groupSizeEncoding"></group>'),
         "is a group without fields of its own: nothing from here on is read"),
        (with_field('<data name="D" type="text"/>', SIGNED),
         "has no unsigned length: nothing from here on is read"),
        (with_field("").replace("</types>", "</types><include href='x.xml'/>"),
         "an include is not followed"),
        (with_field("").replace(END, f'<sbe:message name="N" id="70000"/>{END}'),
         "N: number 70000 is beyond 65,535, and left out"),
        (with_field('<field name="T" id="60" type="int32"/>'),
         "T: a time of i32 is no event's time: u32, u64 or i64 is"),
        (with_field('<field name="T" id="60" type="uint64" timeUnit="minute"/>'),
         "T: a time in units of minute is no event's time"),
        (typed('name="T" id="60"', of("a", "uint32"), of("b", "uint32")),
         "T: a time of 2 fields is no event's time"),
        (with_field('<field name="X" type="double" presence="optional" nullValue="-1"/>'),
         "X: nullValue -1 of double is read as it is"),
    ],
)  # fmt: skip
def test_what_a_description_cannot_say_is_one_line_with_its_location(
    tmp_path: Path, text: str, reason: str
) -> None:
    done = imported(tmp_path, text, code=1)
    lines = [line for line in done.said.splitlines() if "mill.xml:" in line]
    assert len(lines) == 1
    assert reason in lines[0]
    assert "m" in [layout.name for ways in done.feed.layouts.values() for layout in ways]


def refused(tmp_path: Path, text: str | bytes, *options: str) -> str:
    """The one line with which a schema is refused; no file is written then."""
    schema, out = tmp_path / "mill.xml", tmp_path / "out.toml"
    schema.write_bytes(text if isinstance(text, bytes) else text.encode())
    done: Done = run_here("feeds", "import", str(schema), "--out", str(out), *options)
    assert done.returncode == 2, done
    assert done.stderr.startswith("feedhandler: ")
    assert done.stderr.count("\n") == 1
    assert not out.exists()
    return done.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "mill.xml:1: no XML: no element found"),
        ("<a>\n<b></a>", "mill.xml:2: no XML: mismatched tag"),
        ("<a/>", "mill.xml:1: <a> is no messageSchema of SBE"),
        (b"\xff\xfe\x00", "no XML"),
        ('<?xml version="1.0" encoding="nope"?><a/>', "no XML: "),
        ("<x>" * 60, "more than 50 elements in each other"),
        (
            '<!DOCTYPE a [<!ENTITY e "x">]>\n<messageSchema>&e;</messageSchema>',
            "mill.xml:1: has a DOCTYPE, which is not read",
        ),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "has a DOCTYPE"),
        ("<messageSchema/>", "mill.xml:1: no composite 'messageHeader'"),
        (SMALL + END, "has no message"),
        (with_field('<field name="X" type="nope"/>'), "no type 'nope'"),
        (with_field('<field name="X" type="uint8" offset="0"/>'), "X begins at 0, inside what"),
        (with_field('<field name="X" type="uint8" offset="z"/>'), "offset 'z' is no number"),
        (with_field("").replace('id="1">', 'id="1" blockLength="0">'), "M: blockLength 0, fields"),
        (with_field("").replace('name="templateId"', 'name="x"'), "has no unsigned templateId"),
        (
            with_field("").replace('Id" primitiveType="uint16', 'Id" primitiveType="uint32'),
            "a templateId of more than two bytes",
        ),
        (with_field('<group name="G" dimensionType="no"/>'), "no composite 'no'"),
        (with_field('<group name="G" dimensionType="Price9"/>'), "has no unsigned blockLength"),
        (with_field("").replace('>7</choice>', '>8</choice>').replace(
            '"A" id="1" type="uint8"', '"A" id="1" type="EventBits"'), "bit 8 is not within 8"),
        (with_field("").replace(END, f'<sbe:message name="N" id="1"/>{END}'),
         "N: number 1 comes twice"),
        (with_field('<field name="X" type="uint8" presence="optional" nullValue="256"/>'),
         "nullValue 256 does not fit into u8"),
        (with_field('<field name="X" type="Price9" sinceVersion="2" nullValue="z9"/>'),
         "'z9' is no integer"),
        (with_field('<field name="X" type="Odd"/>', '<type name="Odd" primitiveType="int7"/>'),
         "'int7' is no primitive type"),
        (with_field('<field name="X" type="E"/>', '<enum name="E" encodingType="uint8">'
                    '<validValue name="a">z9</validValue></enum>'), "'z9' is no integer"),
        (with_field('<field name="X" type="C"/>', '<composite name="C"><ref name="c" type="C"/>'
                    "</composite>"), "more than 10 composites in each other"),
    ],
)  # fmt: skip
def test_a_wrong_schema_is_one_line_with_its_location(
    tmp_path: Path, text: str | bytes, reason: str
) -> None:
    assert reason in refused(tmp_path, text)


def test_a_description_that_does_not_load_is_written_and_reported(tmp_path: Path) -> None:
    schema, out = tmp_path / "mill.xml", tmp_path / "mill.toml"
    schema.write_text(with_field('<field name="EventTimeNs" id="60" type="uint64"/>'))
    done = run_here("feeds", "import", str(schema), "--out", str(out))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "the description does not load yet: " in last
    assert f"{out}:" in last
    assert "'event_time_ns' is the name of a field (mend it there)" in last
    assert out.exists()


def test_a_little_endian_schema_is_refused_in_a_big_endian_framing(tmp_path: Path) -> None:
    assert "choose another --framing" in refused(tmp_path, LEVELS, "--framing", "moldudp64")
    assert "'nope' is not one of" in refused(tmp_path, LEVELS, "--framing", "nope")


def test_a_description_is_never_overwritten(tmp_path: Path) -> None:
    imported(tmp_path, LEVELS)
    before = (tmp_path / "mill.toml").read_text()
    schema = tmp_path / "mill.xml"
    done = run_here("feeds", "import", str(schema), "--out", str(tmp_path / "mill.toml"))
    assert done.returncode == 2
    assert "is there already (name another file with --out)" in done.stderr
    assert (tmp_path / "mill.toml").read_text() == before
    gc.collect()
    assert run_here("feeds", "import", str(schema), "--out", "-").stdout == before
    missing = run_here("feeds", "import", str(tmp_path / "no.xml"))
    assert missing.returncode == 2
    assert "cannot read" in missing.stderr
    assert missing.stderr.count("\n") == 1


#: The one message of MDP 3.0 that its packets have most, in a schema of our own.
BOOK = (
    SMALL.replace('id="7"', 'id="1"').replace('version="3"', 'version="9"')
    + """
  <sbe:message name="Book" id="46" blockLength="11">
    <field name="TransactTime" id="60" type="uint64"/>
    <field name="MatchEvent" id="5799" type="EventBits"/>
    <group name="NoMDEntries" id="268" blockLength="32">
      <field name="MDEntryPx" id="270" type="Price9"/>
      <field name="MDEntrySize" id="271" type="int32"/>
      <field name="SecurityID" id="48" type="int32"/>
      <field name="RptSeq" id="83" type="uint32"/>
      <field name="NumberOfOrders" id="346" type="int32" presence="optional"
          nullValue="2147483647"/>
      <field name="PriceLevel" id="1023" type="uint8"/>
      <field name="UpdateAction" id="279" type="uint8"/>
      <field name="MDEntryType" id="269" type="char"/>
    </group>
    <group name="NoOrderIDEntries" id="37705" dimensionType="wideGroupSize" blockLength="24">
      <field name="OrderID" id="37" type="uint64"/>
      <field name="Priority" id="37707" type="uint64"/>
      <field name="DisplayQty" id="37706" type="int32"/>
      <field name="ReferenceID" id="9633" type="uint8"/>
    </group>
  </sbe:message>
"""
    + END
)


def test_real_packets_are_read_by_an_imported_schema(tmp_path: Path, venues: Path) -> None:
    feed, model = imported(tmp_path, BOOK).feed, load_feed("cme-mdp3")
    path = venues / "cme-mdp3-sbe-1.9" / "packets.pcap"
    books = 0
    for datagram in Capture(path):
        ours, theirs = (each.decode_packet(datagram.payload) for each in (feed, model))
        assert ours.sequence == theirs.sequence
        for mine, other in zip(ours.messages, theirs.messages, strict=True):
            if isinstance(mine, Record):
                books += 1
                assert mine.event_time_ns == other.transact_time
                values = [list(entry.wire().values()) for entry in mine.no_md_entries]
                groups = [part.name for part in other.layout.parts]
                wanted = [list(entry.wire().values()) for entry in getattr(other, groups[0])]
                assert values == wanted
                assert len(mine.no_order_id_entries) == len(getattr(other, groups[1]))
    assert books == 8
    done = run_here("feeds", "check", str(tmp_path / "mill.toml"), str(path))
    assert "46   book" in done.stdout
    assert "unknown message type: 7, the first:" in done.stdout


#: What may stand where something else should.
ODD = ("", "0", "-1", "70000", "9" * 30, "char", "uint8", "double", "Side", "Price9", "nope", "é")


def test_schemas_with_parts_cut_out_never_end_in_a_traceback(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    """Cut, doubled and changed pieces of a schema: a description, or one line each."""
    rng = random.Random(seed)
    schema = tmp_path / "mill.xml"
    gc.freeze()  # what earlier tests left behind is not looked through 50 times
    request.addfinalizer(gc.unfreeze)
    for _ in range(50):
        text = rng.choice([LEVELS, NEWS.replace("bigEndian", "littleEndian")])
        lines = text.splitlines()
        for _ in range(rng.randrange(1, 4)):
            index = rng.randrange(1, len(lines))
            way = rng.randrange(3)
            if way == 0:
                lines[index] = re.sub(r'"[^"]*"', f'"{rng.choice(ODD)}"', lines[index], count=1)
            elif way == 1:
                lines[index] = re.sub(r' \w+="[^"]*"', "", lines[index], count=1)
            elif lines[index].endswith("/>"):
                lines.insert(index, lines[index])
        schema.write_text("\n".join(lines))
        gc.collect()
        done = run_here("feeds", "import", str(schema), "--out", "-")
        assert done.returncode in (0, 1, 2), schema.read_text() + done.stderr
        assert all(line.startswith("feedhandler: ") for line in done.stderr.splitlines())
