"""The loader refuses a wrong description with file, key and reason."""

import gc
import re
from pathlib import Path

import msgspec
import pytest

from feedhandler.codecs import ConfigError, description, list_feeds, load_feed
from feedhandler.codecs.field_values import snake_case
from feedhandler.codecs.loader import FEEDS_FOLDER
from tests.support.descriptions import EXAMPLE, built_in, check_refused, described, written
from tests.support.refusal import refusal


def test_a_good_description_loads(tmp_path):
    feed = described(tmp_path, EXAMPLE)
    assert feed.name == "example"
    assert sorted(feed.message_types) == [7, 8]
    record = feed.decode_message(
        feed.encode_message(8, index=1, points=[{"price": 15, "volume": 2}]), scale=1
    )
    assert float(record.points[0].price) == 1.5


INDEX = 'symbol = "Index"\nfields = [{ at = 4, type = "u32", name = "Index" }]\n'
CONFLATED = 'name = "levels"\nconflate = "latest"\nconflate_by = '
WRONG = [
    # what is replaced, by what, the key, the reason
    ('name = "levels"', f'{CONFLATED}["Index"]', "messages[8].conflate_by", "or the symbol"),
    ('name = "levels"', f'{CONFLATED}["Time", "time"]', "messages[8].conflate_by", "twice"),
    (
        'name = "levels"',
        'name = "levels"\nconflate = "book"\nconflate_by = ["Time"]',
        "messages[8].conflate_by",
        'for conflate = "latest" alone',
    ),
    (
        'name = "levels"\nsize = 12',
        f'name = "levels"\nsize = 12\n{INDEX}[[messages]]\ntype = 8\nname = "more"\n'
        f'conflate = "latest"\nsize = 16\n{INDEX}'
        '[[messages]]\ntype = 9\nname = "other"\nsize = 12',
        "messages[8]",
        "conflated alike",
    ),
    (
        'name = "reset"',
        'name = "reset"\nconflate = "latest"',
        "controls[3].conflate",
        "never conflated",
    ),
    (
        'at = 4, type = "u32", name = "Seq"',
        'at = 3, type = "u32", name = "Seq"',
        "packet.Seq",
        "inside what ends at 4",
    ),
    ('type = "x3"', 'type = "x4"', "messages[7].reserved", "outside the 20 bytes"),
    ('type = "x3"', 'type = "u20"', "messages[7].u20", "unknown type 'u20'"),
    ('type = "x3"', 'type = "c0"', "messages[7].c0", "unknown type 'c0'"),
    ("number = 1009", "number = 1009\ncolour = 1", "colour", "unknown key (tables: name, "),
    ("number = 1009", "number = 70000", "number", "not within 1..65535"),
    ("number = 1009", 'number = "9"', "number", "wants an integer, got text in quotes"),
    ('title = "An example"', "", "title", "missing"),
    ('name = "example"', 'name = "Example!"', "name", "lower-case"),
    ('key = "example"', 'key = "an.example"', "key", "lower-case"),
    ('counts = "packets"', 'counts = "bytes"', "packet.sequence.counts", "(messages or packets)"),
    (
        'type = 8\nname = "levels"\nsize = 12',
        'type = 7\nname = "again"\nsize = 20\n\n[[messages]]\ntype = 8\nname = "levels"\nsize = 12',
        "messages[7]",
        "comes twice",
    ),
    ('name = "levels"', 'name = "instrument"', "messages[8]", "comes twice"),
    ('name = "levels"', 'name = "Levels"', "messages[8].name", "snake_case"),
    ('name = "Volume"', 'name = "Price"', "messages[8].group.Price", "comes twice"),
    ('name = "Volume"', 'name = "class"', "messages[8].group.class", "cannot be an attribute"),
    ('price = "reference"', 'price = "Missing"', "messages[8].group.Price", "one-byte integer"),
    ('price = "reference"', "price = 19", "messages[8].group.Price", "not within 0..18"),
    ('scale = "Scale"', "", "messages[8].group.Price", "no reference.scale"),
    ('scale = "Scale"', 'scale = "Size"', "reference.scale", "no field of message 7"),
    (
        'scale = "Scale"',
        'scale = { deals = "Scale" }',
        "messages[8].group.Price",
        "no reference.scale is described",
    ),
    (
        'price = "reference"',
        'price = "reference.deals"',
        "messages[8].group.Price",
        "no reference.scale.deals is described",
    ),
    ('name = "Ticker" }', 'name = "Ticker", price = 2 }', "messages[7].Ticker", "only an integer"),
    ("at = 12, size = 8", "at = 10, size = 8", "messages[8].group.at", "inside the fields"),
    ("at = 12, size = 8", "at = 12, size = 0", "messages[8].group.size", "must be positive"),
    ('name = "points"', 'name = "time"', "messages[8].group.name", "not a field"),
    ("[reference]\ntype = 7", '[reference]\ntype = "AB"', "reference.type", "one character"),
    ("[reference]\ntype = 7", "[reference]\ntype = []", "reference.type", "empty"),
    ("[reference]\ntype = 7", "[reference]\ntype = [7, 7]", "reference.type", "comes twice"),
    ("[reference]\ntype = 7", "[reference]\ntype = [7, 5]", "reference.type", "message 5 is not"),
    (
        "[reference]\ntype = 7",
        "[reference]\ntype = [7, 8]",
        "reference.name",
        "'Ticker' is no field of message 8",
    ),
    ('count = "Count"', 'count = "Seq"', "packet.count", "wider than 2 bytes"),
    ("control = [4]", "control = [1]", "packet.kind.control", "twice"),
    ("control = [4]", "control = [256]", "packet.kind.control", "out of range"),
    ("data = [1]", "data = []", "packet.kind.data", "no value"),
    ('reset_next = "Next"', 'reset_next = "After"', "packet.reset_next", "no field"),
    ('type = 3\nname = "reset"', 'type = 9\nname = "reset"', "controls[9]", "does not list"),
    (
        'kind = { field = "Kind", data = [1], heartbeat = [2], reset = [3], control = [4] }\n',
        "",
        "controls[3]",
        "does not list",
    ),
    (
        'type = { at = 2, type = "u16" }',
        'type = { at = 4, type = "u16" }',
        "message.type",
        "outside message.header_size",
    ),
    (
        'type = { at = 2, type = "u16" }',
        'type = { at = 2, type = "i16" }',
        "message.type",
        "must be",
    ),
    (
        'length = { at = 0, type = "u16" }',
        'length = { at = 3, type = "u16" }',
        "message.length",
        "outside message.header_size",
    ),
    ('milliseconds = "Time"', "", "times[0]", "names no field"),
    (
        '    { at = 4, type = "u32", name = "Index" },\n    { at = 8, type = "u32"',
        '    { at = -4, type = "u32", name = "Index" },\n    { at = 8, type = "u32"',
        "messages[8].Index",
        "negative",
    ),
    ('counts = "packets"', 'counts = "packets", unsequenced = 1', ".unsequenced", "first number"),
    ('counts = "packets"', 'counts = "packets", unsequenced = -1', ".unsequenced", "does not fit"),
    (
        'counts = "packets"',
        'counts = "packets", unsequenced = 4294967296',
        "packet.sequence.unsequenced",
        "does not fit",
    ),
    ('field = "Length"', 'field = ""', "packet.length.field", "empty"),
    ('field = "Seq"', 'field = ""', "packet.sequence.field", "empty"),
    ('field = "Time"', 'field = ""', "packet.send_time.field", "empty"),
    ('field = "Kind"', 'field = ""', "packet.kind.field", "empty"),
    ('count = "Count"', 'count = ""', "packet.count", "empty"),
    ('milliseconds = "Time"', 'nanoseconds = "Ticker"', "times[0]", "'Ticker' is c8, and must be"),
    (
        'milliseconds = "Time"',
        'milliseconds = "Time"\n[[times]]\nname = "time_ns"\nsince = "epoch"\nseconds = "Time"',
        "times[1]",
        "an earlier rule for 'time_ns' takes every message",
    ),
    ('name = "Ticker" }', 'name = "Symbol" }', "messages[7].Symbol", "another name with `as`"),
    ('name = "Volume"', 'name = "Symbol"', "messages[8].group.Symbol", "another name with `as`"),
    ("number = 1009", "number = 4", "number", "4 is the number of iex-deep: choose another one"),
]


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"), WRONG, ids=[f"{i}-{row[2]}" for i, row in enumerate(WRONG)]
)
def test_a_wrong_description_is_refused_with_file_key_and_reason(tmp_path, old, new, key, reason):
    check_refused(tmp_path, EXAMPLE, old, new, key, reason)


FIELD = '{ at = 16, type = "u8", name = "Scale"'
LINES = [
    # what is replaced, by what, and the error's beginning behind the file's name
    ("byte_order", "bite_order", "7: bite_order: unknown key (did you mean byte_order?)"),
    ("count =", "cuont =", "14: packet.cuont: unknown key (did you mean count?)"),
    ("symbol =", "simbol =", "51: messages[7].simbol: unknown key (did you mean symbol?)"),
    (
        FIELD,
        f"{FIELD}, prise = 2",
        "55: messages[7].Scale.prise: unknown key (did you mean price?)",
    ),
    (FIELD, FIELD.replace("16", '"16"'), "55: messages[7].Scale.at: wants an integer, got text"),
    (FIELD, FIELD.replace("16", "15"), "55: messages[7].Scale: begins at 15, inside what ends"),
    ('"Volume"', '"Volume", doc = 3', "70: messages[8].group.Volume.doc: wants text in quotes"),
    ('"Volume"', '"type"', "70: messages[8].group.type: 'type' is reserved"),
    ('name = "Next"', 'name = "Next", ass = "x"', "45: controls[3].Next.ass: unknown key"),
    ("[packet]", "[packet", "9: not TOML"),
]


@pytest.mark.parametrize(("old", "new", "reason"), LINES)
def test_the_line_of_what_is_wrong_is_reported_and_the_nearest_known_key(
    tmp_path, old, new, reason
):
    assert old in EXAMPLE
    path = written(tmp_path, EXAMPLE.replace(old, new, 1))
    assert refusal(load_feed, path).startswith(f"{path}:{reason}")


def test_the_symbol_itself_may_be_called_symbol(tmp_path):
    text = EXAMPLE.replace('name = "Index" }', 'name = "Symbol" }').replace("Index", "Symbol")
    feed = described(tmp_path, text)
    assert feed.layout(8).symbol == "symbol"


def test_two_feeds_in_use_do_not_share_a_number_but_variants_of_one_do(tmp_path):
    feed = described(tmp_path, EXAMPLE)
    variant = described(tmp_path, EXAMPLE.replace("An example", "Another"))
    other = written(tmp_path, EXAMPLE.replace('name = "example"', 'name = "other"'))
    assert refusal(load_feed, other).startswith(f"{other}:5: number: 1009 is the number of example")
    del feed, variant
    gc.collect()
    assert load_feed(other).name == "other"


def test_a_variant_of_a_built_in_feed_has_its_number_and_name(tmp_path):
    text = built_in("euronext-utp-md", 'heartbeat = "none"', 'heartbeat = "next"')
    assert described(tmp_path, text).number == load_feed("euronext-utp-md").number


def test_two_layouts_of_a_type_must_keep_the_symbol_at_one_offset(tmp_path):
    text = EXAMPLE.replace("type = 8\n", "type = 7\n").replace(
        'size = 12\nsymbol = "Index"', "size = 12"
    )
    with pytest.raises(ConfigError, match="symbol in one place"):
        described(tmp_path, text)


def test_a_feed_without_kinds_must_say_what_a_heartbeat_is(tmp_path):
    text = re.sub(r"kind = .*\n", "", EXAMPLE).replace('reset_next = "Next"\n', "")
    text = re.sub(r"\[\[controls\]\].*?\n\n", "", text, flags=re.S)
    with pytest.raises(ConfigError, match="heartbeat_when_empty"):
        described(tmp_path, text)


def test_a_scale_by_use_is_a_field_of_some_of_the_messages(tmp_path):
    by_use = EXAMPLE.replace('price = "reference"', 'price = "reference.deals"')
    feed = described(tmp_path, by_use.replace('"Scale"', '{ deals = "Scale" }', 1))
    assert feed.scale_names == ("reference.deals",)
    with pytest.raises(ConfigError, match=r"reference\.scale: 'Size' is no field of any"):
        described(tmp_path, by_use.replace('"Scale"', '{ deals = "Size" }', 1))


def test_every_key_of_a_description_is_documented_in_the_format_reference():
    page = (FEEDS_FOLDER.parent / "FORMAT.md").read_text()
    structs = [each for each in vars(description).values() if isinstance(each, type)]
    keys = {
        field.encode_name
        for each in structs
        if issubclass(each, msgspec.Struct) and each is not msgspec.Struct
        for field in msgspec.structs.fields(each)
    }
    assert keys
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}\b", page)] == []


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.toml"):
        load_feed(tmp_path / "missing.toml")


def test_an_unknown_feed_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        load_feed("no-such-feed")
    assert "no-such-feed" in caught.value.message
    for name in list_feeds():
        assert name in caught.value.hint


def test_the_feeds_of_the_package_load_under_their_files_names():
    assert {"euronext-utp-md", "fix-marketdata", "iex-deep"} < set(list_feeds())
    assert len(list_feeds()) == 21
    feeds = [load_feed(name) for name in list_feeds()]
    assert [feed.name for feed in feeds] == list_feeds()
    assert {feed.key: feed.number for feed in feeds} == {
        "euronext": 1, "nyse-openbook": 2, "nyse-integrated": 3, "iex": 4, "fix": 5, "itch": 6,
        "asx24": 7, "byx": 8, "c1options": 9, "memoir": 10, "cme": 11, "b3": 12, "eobi": 13,
        "onyxtom": 14, "cqs": 15, "cts": 16, "ice": 17, "nyse-pillar": 18, "otclink": 19,
        "iex-tops": 20, "iex-deep-plus": 21,
    }  # fmt: skip
    assert load_feed("iex-deep") is load_feed("iex-deep")
    assert load_feed(FEEDS_FOLDER / "iex-deep.toml").name == "iex-deep"


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        ("SourceTimeMicroSecs", "source_time_micro_secs"),
        ("IMPrice", "im_price"),
        ("MICList", "mic_list"),
        ("UnderlyingISINCode", "underlying_isin_code"),
        ("RFSID", "rfsid"),
        ("TimeOpening1", "time_opening1"),
        ("already_snake", "already_snake"),
    ],
)
def test_wire_names_become_snake_case(wire, name):
    assert snake_case(wire) == name


def test_each_message_that_is_described_says_what_may_replace_it():
    replacements = {
        (name, layout.name): (layout.conflate, layout.conflate_by)
        for name in list_feeds()
        for ways in load_feed(name).layouts.values()
        for layout in ways
    }
    assert replacements["euronext-utp-md", "quote"] == ("latest", ("quote_number",))
    assert replacements["euronext-utp-md", "order_update"] == ("book", ())
    assert replacements["euronext-utp-md", "trade"] == ("never", ())
    assert replacements["iex-deep", "price_level_update_buy"] == ("latest", ("price",))
    for name in list_feeds():
        text = (FEEDS_FOLDER / f"{name}.toml").read_text()
        described = text.count("[[messages]]")
        reasons = re.findall(r'^conflate = "\w+" # \S', text, re.MULTILINE)
        assert len(reasons) == described, f"{name}: every message with its reason"


#: Messages about trades that each replace the one before: statistics and states.
STATISTICS_OF_TRADES = {
    "trading_status", "last_trade_price", "approximate_trades_and_total_dollar_value"
}  # fmt: skip


def test_trades_are_never_conflated_in_any_feed():
    for name in list_feeds():
        for ways in load_feed(name).layouts.values():
            for layout in ways:
                if "trade" in layout.name or layout.name == "order_execution":
                    expected = "latest" if layout.name in STATISTICS_OF_TRADES else "never"
                    assert layout.conflate == expected, (name, layout.name)


@pytest.mark.parametrize(
    ("table", "key", "reason"),
    [
        ('protocol = "mold"', "protocol", "'mold' is no protocol of these: utp-md"),
        ("request_max = 5", "protocol", "missing: name a protocol"),
        ('protocol = "fix-market-data"', "protocol", "fix-market-data has snapshots alone"),
        ('protocol = "utp-md"\nsnapshots = "moldudp64"', "snapshots", "moldudp64 has no"),
        ('protocol = "moldudp64"\ncounts = "packets"', "counts", "requests of moldudp64"),
        ('protocol = "moldudp64"\nrequest_max = 65535', "request_max", "65535 is not"),
        ('protocol = "utp-md"\ntimeout_s = 0.0', "timeout_s", "0.0 is not above 0"),
        (
            'protocol = "utp-md"\nheartbeat_s = 2.0\ntimeout_s = 1.0',
            "heartbeat_s",
            "must not be longer than timeout_s",
        ),
    ],
)
def test_a_recovery_table_that_cannot_be_is_refused_with_its_key(
    tmp_path: Path, table: str, key: str, reason: str
) -> None:
    text = (FEEDS_FOLDER / "euronext-utp-md.toml").read_text()
    check_refused(tmp_path, text, 'protocol = "utp-md"', table, f"recovery.{key}", reason)
