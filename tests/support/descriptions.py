"""Descriptions of feeds for tests: how they begin, one loaded, and how a wrong one is refused."""

import re
from pathlib import Path

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.loader import FEEDS_FOLDER
from tests.support.refusal import refusal

#: Packets with nothing but a number: no length, no count, no send time.
SEQUENCE_ONLY = """
[packet]
header_size = 4
sequence = { field = "Sequence", counts = "packets" }
heartbeat_when_empty = true
fields = [{ type = "u32", name = "Sequence" }]
"""
#: Such packets, whose messages begin with their length and their type.
FRAMING = (
    SEQUENCE_ONLY
    + """
[message]
header_size = 3
length = { at = 0, type = "u16" }
type = { at = 2, type = "u8" }
fields = [{ type = "u16", name = "Length" }, { type = "u8", name = "Type" }]
"""
)
#: The key that takes MoldUDP64 for packets and messages.
MOLDUDP64 = f'include = "{FEEDS_FOLDER}/shared/moldudp64.toml"\n'
#: A side told by a field of that name.
SIDE = 'side = { field = "Side", buy = ["B"], sell = ["S"] }\n'
FILE = "described.toml"
#: A whole description: packets with kinds, a group in a message, prices that references scale.
EXAMPLE = """
name = "example"
title = "An example"
key = "example"
number = 1009
zone = "Europe/Paris"
byte_order = "big"

[packet]
header_size = 12
length = { field = "Length", add = 0 }
sequence = { field = "Seq", counts = "packets" }
kind = { field = "Kind", data = [1], heartbeat = [2], reset = [3], control = [4] }
count = "Count"
send_time = { field = "Time", unit = "ms", since = "midnight" }
reset_next = "Next"
fields = [
    { at = 0, type = "u16", name = "Length" },
    { at = 2, type = "u8", name = "Kind" },
    { at = 3, type = "u8", name = "Count" },
    { at = 4, type = "u32", name = "Seq" },
    { at = 8, type = "u32", name = "Time" },
]

[message]
header_size = 4
length = { at = 0, type = "u16" }
type = { at = 2, type = "u16" }

[reference]
type = 7
index = "Index"
name = ["Ticker"]
scale = "Scale"

[[times]]
name = "time_ns"
since = "midnight"
milliseconds = "Time"

[[controls]]
type = 3
name = "reset"
size = 4
fields = [{ at = 0, type = "u32", name = "Next" }]

[[messages]]
type = 7
name = "instrument"
size = 20
symbol = "Index"
fields = [
    { at = 4, type = "u32", name = "Index" },
    { at = 8, type = "c8", name = "Ticker" },
    { at = 16, type = "u8", name = "Scale" },
    { at = 17, type = "x3" },
]

[[messages]]
type = 8
name = "levels"
size = 12
symbol = "Index"
fields = [
    { at = 4, type = "u32", name = "Index" },
    { at = 8, type = "u32", name = "Time" },
]
group = { name = "points", at = 12, size = 8, fields = [
    { at = 0, type = "u32", name = "Price", price = "reference" },
    { at = 4, type = "u32", name = "Volume" },
] }
"""


def head(byte_order: str = "big", *more: str) -> str:
    """Return the keys in front of a description's tables, with lines `more`."""
    keys = ('name = "sample"', 'title = "A sample"', 'key = "sample"', "number = 1000")
    return "\n".join((*keys, 'zone = "UTC"', f'byte_order = "{byte_order}"', *more)) + "\n"


def built_in(name: str, old: str, new: str) -> str:
    """Return the description of a built-in feed with `new` for every `old`."""
    text = (FEEDS_FOLDER / f"{name}.toml").read_text()
    assert old in text
    return text.replace(old, new)


def written(folder: Path, text: str) -> Path:
    """Write a description into the folder's `FILE`."""
    path = folder / FILE
    path.write_text(text)
    return path


def described(folder: Path, text: str) -> Feed:
    """Load a description that is written into the folder."""
    return load_feed(written(folder, text))


def check_refused(folder: Path, text: str, old: str, new: str, key: str, reason: str) -> None:
    """Hold that a description with `new` for `old` is refused in one line: the file, a line, the
    key (or what it ends with), the reason, and a remedy."""
    assert old in text
    found = refusal(described, folder, text.replace(old, new, 1))
    assert re.match(rf"{re.escape(str(folder / FILE))}:\d+: [^ ]*{re.escape(key)}: ", found), found
    assert reason in found
    assert found.endswith(")"), "a remedy stands behind it"
