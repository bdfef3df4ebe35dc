"""decode(encode(x)) == x, for every message of every feed, and columns that equal records."""

import random
from datetime import date

import numpy
import pytest

from feedhandler.codecs import Price, Record, feed_table, load_feed, scanner
from feedhandler.codecs import columns as compiled_columns
from feedhandler.codecs.layouts import Block, Field
from feedhandler.codecs.parts import Group, Text
from tests.support.feeds import BINARY_FEEDS
from tests.support.scanners import header_and_index, index_of
from tests.support.twins import twins_of

FEEDS = [load_feed(name) for name in BINARY_FEEDS]
CONTROLS = [(feed, layout) for feed in FEEDS for layout in feed.controls.values()]
DAY = date(2023, 10, 2)
SCALE = 4
#: Random messages of each layout, and packets of each feed.
EXAMPLES = 4
PACKETS = 20


def layouts_of(feed) -> list:
    """Every layout of a feed's messages."""
    return [layout for ways in feed.layouts.values() for layout in ways]


def name_of(value) -> str | None:
    return value.name if hasattr(value, "name") else None


def text_of(rng: random.Random, least: int, size_max: int) -> str:
    """Up to so many characters of one byte, of codes from `least` on."""
    return "".join(chr(rng.randint(least, 255)) for _ in range(rng.randint(0, size_max)))


def field_value(rng: random.Random, field: Field) -> str | int | None:
    """Any value of a field in the form that decoding gives it, prices as wire integers."""
    if field.kind == "c" and field.size == 1:
        return rng.choice(("", " ", chr(rng.randint(33, 255))))
    if field.kind == "c":
        return text_of(rng, 32, field.size).rstrip(" ")
    bits = 8 * field.size
    least = 0 if field.kind == "u" else -(2 ** (bits - 1))
    most = least + 2**bits - 1
    number = rng.choice((least, 0, most, rng.randint(least, most), rng.randint(0, min(most, 99))))
    return None if number == field.null else number


def block_values(rng: random.Random, block: Block, outer: dict | None = None) -> dict:
    """Values of a block's fields and parts that fit each other."""
    values = {field.name: field_value(rng, field) for field in block.named}
    for part in block.parts:
        known = block.known([values[field.name] for field in block.named], outer or {})
        there = part.when is None or (
            part.when.holds(known, 2**16) if part.when.field else rng.random() < 0.5
        )
        if isinstance(part, Group):
            value = [block_values(rng, part.elements, known) for _ in range(rng.randint(0, 3))]
            if part.count:
                values[part.count] = len(value)
        elif isinstance(part, Text):
            value = text_of(rng, 0, 9) if there else ""
        else:
            value = block_values(rng, part.elements, known) if there else None
        values[part.name] = value if there else part.nothing
    return values


def plain(record: Record) -> dict:
    """A record's fields as `message_values` gives them."""
    found = {}
    for field in record.layout.named:
        value = getattr(record, field.name)
        found[field.name] = value.raw if isinstance(value, Price) else value
    for part in record.layout.parts:
        value = getattr(record, part.name)
        if isinstance(value, tuple):
            value = [plain(element) for element in value] or part.nothing
        found[part.name] = plain(value) if isinstance(value, Record) else value
    return found


def given_form(values: dict) -> dict:
    """Empty groups as `plain` gives them."""
    return {name: () if value == [] else value for name, value in values.items()}


@pytest.mark.parametrize("feed", FEEDS, ids=name_of)
def test_decoding_what_was_encoded_gives_the_same_message(feed, seed):
    rng = random.Random(seed)
    for layout in layouts_of(feed) * EXAMPLES:
        values = block_values(rng, layout)
        encoded = feed.encode_message(layout.name, **values)
        record = feed.decode_message(encoded, type=layout.label, scale=SCALE)
        assert plain(record) == given_form(values), layout.name
        again = feed.encode_message(record, scale=SCALE)
        assert feed.decode_message(again, type=layout.label, scale=SCALE) == record


@pytest.mark.parametrize(("feed", "layout"), CONTROLS, ids=name_of)
def test_decoding_an_encoded_control_packet_gives_the_same_body(feed, layout, seed):
    rng = random.Random(seed)
    kinds = feed.description.packet.kind
    kind = next(k for k in ("control", "reset", "heartbeat") if layout.code in getattr(kinds, k))
    for _ in range(EXAMPLES):
        values = block_values(rng, layout)
        packet = feed.encode_packet(
            kind=kind, packet_type=layout.code, body=feed.encode_control(layout.code, **values)
        )
        decoded = feed.decode_packet(packet)
        if layout.size:
            assert plain(decoded.control) == values


@pytest.mark.parametrize("feed", FEEDS, ids=name_of)
def test_a_packet_decodes_to_the_messages_it_was_made_of(feed, seed):
    rng = random.Random(seed)
    for _ in range(PACKETS):
        layouts = [layout for layout in layouts_of(feed) if layout.size < 500]
        if feed.table.type_in_packet:
            layouts = [rng.choice(layouts)]
        most = 5 if feed.table.message_length_size else 1  # without a length one fills a packet
        chosen = rng.choices(layouts, k=rng.randint(1, most))
        values = [block_values(rng, layout) for layout in chosen]
        sequence = rng.randint(1, 2**31)
        packet = feed.decode_packet(
            feed.encode_packet(
                sequence=sequence,
                messages=[
                    feed.encode_message(layout.name, **each)
                    for layout, each in zip(chosen, values, strict=True)
                ],
                packet_type=layouts[0].code if feed.table.type_in_packet else None,
            ),
            DAY,
        )
        assert packet.types == [layout.label for layout in chosen]
        assert [plain(message) for message in packet.messages] == list(map(given_form, values))
        step = 1 if feed.counts_messages else 0
        assert packet.sequences == [sequence + step * i for i in range(len(chosen))]


TWINS = twins_of(compiled_columns)


def expected_rows(packets, layout) -> list[dict]:
    """The rows that columns must have, from decoded packets."""
    rows = []
    for packet in packets:
        for index, message in enumerate(packet.messages):
            if message.layout is not layout:
                continue
            top = {"seq": packet.sequences[index], "service": packet.service}
            top["send_time_ns"] = packet.send_time_ns
            own = message.to_dict()
            parts = [own.pop(part.name) for part in layout.parts]
            elements = parts[0] if layout.group is not None else None
            if layout.group is None:
                rows.append({**top, **own})
            for number, element in enumerate(elements or []):
                rows.append({**top, **own, **element, "element": number})
            if layout.group is not None and not elements:
                rows.append({**top, **own, "element": -1})
    return rows


def column_value(array: numpy.ndarray, row: int):
    value = array[row].item()
    return value.decode("latin-1") if isinstance(value, bytes) else value


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("feed", FEEDS, ids=name_of)
def test_columns_say_what_records_say(twin, feed, seed):
    rng = random.Random(seed)
    for layout in layouts_of(feed):
        check_columns(TWINS[twin], feed, layout, rng)


def check_columns(twin, feed, layout, rng: random.Random) -> None:
    filler = next(iter(feed.layouts.values()))[0]
    values = [block_values(rng, layout) for _ in range(rng.randint(3, 5))]
    packet_type = layout.code if feed.table.type_in_packet else None
    others = [] if feed.table.type_in_packet else [feed.encode_message(filler.name)]
    packets = [
        feed.encode_packet(
            sequence=10 * offset,
            service=100 + offset if feed.description.packet.service else 0,
            send_time=1_700_000_000_000_000_000 if feed.counts_messages else 40_000_000,
            messages=[*others, feed.encode_message(layout.name, **each)],
            packet_type=packet_type,
        )
        for offset, each in enumerate(values)
    ]
    data_bytes = b"".join(packets)
    index, header = feed_table.MessageIndex(100), feed_table.PacketHeader()
    ends = numpy.cumsum([len(packet) for packet in packets])
    sizes = numpy.array([len(packet) for packet in packets], numpy.uint32)
    rejects = numpy.zeros(scanner.REJECT_COUNT, numpy.uint64)
    scanner.scan_datagrams(feed.table, data_bytes, ends - sizes, sizes, header, index, rejects)
    assert rejects[0] == len(packets)
    made = twin.Columns(feed, layout.name, capacity=2)
    symbols = {index.symbols[i] for i in range(index.count)}
    scales = dict.fromkeys(symbols, SCALE)
    rows = made.decode(data_bytes, index, DAY, dict.fromkeys(feed.scale_names, scales))
    decoded = [feed.decode_packet(packet, DAY, scales=scales) for packet in packets]
    expected = expected_rows(decoded, layout)
    assert rows == len(expected)
    for row, wanted in enumerate(expected):
        for name, value in wanted.items():
            if value is None:
                continue  # a null, which columns keep as it is
            if name.endswith("_ns") and abs(value or 0) >= 2**62:
                continue  # a nonsense time that 64 bits cannot hold
            got = column_value(made.arrays[name], row)
            if isinstance(value, float):
                assert got == pytest.approx(value, rel=1e-15), name
            elif name in made.arrays:
                assert got == value, name


def test_arrow_holds_the_same_values_and_nulls_for_what_is_unknown():
    feed = load_feed("euronext-utp-md")
    messages = [
        feed.encode_message(230, symbol_index=5, price=1050, price_scale_code=2, side="B"),
        feed.encode_message(230, symbol_index=6, price=1, price_scale_code=200, side="S"),
    ]
    data = feed.encode_packet(sequence=3, service=104, messages=messages)
    index = index_of(feed, data)
    made = compiled_columns.Columns(feed, 230)
    assert made.decode(data, index) == 2
    batch = made.to_arrow()
    assert batch["price"].to_pylist() == [10.5, None]
    assert batch["price_raw"].to_pylist() == [1050, 1]
    assert batch["side"].to_pylist() == ["B", "S"]
    assert batch["event_time_ns"].to_pylist() == [None, None]
    made.decode(data, index, DAY)
    assert batch["symbol"].to_pylist() == [5, 6], "a batch owns its memory"
    assert made.to_arrow()["event_time_ns"].null_count == 0


def test_columns_grow_to_the_rows_they_are_given():
    feed = load_feed("euronext-utp-md")
    messages = [feed.encode_message(140, symbol_index=i) for i in range(20)]
    data = feed.encode_packet(sequence=3, messages=messages)
    made = compiled_columns.Columns(feed, 140, capacity=3)
    assert made.decode(data, index_of(feed, data)) == 20
    assert made.arrays["symbol_index"].tolist() == list(range(20))


@pytest.mark.parametrize("twin", TWINS)
def test_more_rows_than_the_arrays_hold_raise_instead_of_being_written(twin):
    feed = load_feed("euronext-utp-md")
    data = feed.encode_packet(sequence=3, messages=[feed.encode_message(140)] * 3)
    header, index = header_and_index(feed, data)
    arrays = [
        numpy.zeros((2, 2), numpy.int64), numpy.zeros(2, numpy.uint64),
        numpy.zeros(2, numpy.uint64), numpy.zeros(2, numpy.uint32), numpy.zeros(2, numpy.int32),
    ]  # fmt: skip
    selection = (feed.table, data, index, 140, 0, 1 << 16, 0, header)
    assert TWINS[twin].count_rows(*selection) == 3
    with pytest.raises(IndexError, match="more than 2 rows"):
        TWINS[twin].select_rows(*selection, *arrays)
    assert arrays[1].tolist() == [3, 3]


def test_bytes_that_were_not_scanned_raise_instead_of_being_read_past():
    feed = load_feed("euronext-utp-md")
    data = feed.encode_packet(sequence=3, messages=[feed.encode_message(140)])
    index = index_of(feed, data)
    with pytest.raises(IndexError):
        compiled_columns.Columns(feed, 140).decode(data[:-10], index)
