"""Descriptions with something changed at random are refused in one line, or can be used."""

import copy
import json
import random
from pathlib import Path
from typing import Any

from feedhandler.codecs import BadPacket, ConfigError, Feed, UsageError, load_feed
from feedhandler.codecs.loader import FEEDS_FOLDER
from feedhandler.codecs.toml_text import parse_toml
from tests.support.seeds import drawn
from tests.unit.codecs.test_contradictions import GOOD
from tests.unit.codecs.test_layout_sizes import BLOCKS

MUTATIONS = 100
SOURCES = {
    "base": GOOD,
    "blocks": BLOCKS,
    "iex-tops": (FEEDS_FOLDER / "iex-tops.toml").read_text(),
    "nyse-openbook-ultra": (FEEDS_FOLDER / "nyse-openbook-ultra.toml").read_text(),
}
INTEGERS = [-1, 0, 1, 8, 18, 255, 256, 65_535, 65_576, 1 << 31, 1 << 63, 1 << 64, 10**30, -(10**12)]
TEXTS = [
    "", "x", "a.b", "\n", "Größe", "AB", "9", "u8", "u24", "u64", "i8", "c1", "c9", "x1", "f32",
    "epoch", "clock", "reference", "little", "symbol", "type", "class", "order", "packets",
]  # fmt: skip
OTHERS: list[Any] = [True, 1.5, [], {}, [1], ["a"], [[]], [{}], {"a": 1}]
#: Keys that are given to tables that may not have them.
KEYS = [
    "at", "type", "name", "as", "price", "exponent", "decimals", "null", "constant", "bits",
    "block", "byte_order", "values", "size", "when", "mask", "in", "left", "count", "length", "add",
    "align", "symbol", "group", "text", "parts", "first", "unsequenced", "constants",
    "end_of_session",
]  # fmt: skip


def as_toml(value: Any) -> str:
    """A value as TOML in one line."""
    if isinstance(value, dict):
        inner = (f"{json.dumps(key)} = {as_toml(each)}" for key, each in value.items())
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every key of every table, and index of every list, with what has it."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    return [place for key in keys for place in [(value, key), *places(value[key])]]


def mutate(draw: random.Random, values: dict[str, Any]) -> None:
    """Change, remove or add one thing."""
    found = places(values)
    (holder, key), (donor, taken) = draw.choice(found), draw.choice(found)
    old = holder[key]
    way = draw.random()
    if way < 0.1:
        del holder[key]
        return
    if way < 0.25:
        tables = [each for each, _ in found if isinstance(each, dict)]
        holder, key = draw.choice(tables), draw.choice(KEYS)
        old = draw.choice([1, "a"])
    if way < 0.35:
        holder[key] = copy.deepcopy(donor[taken])
    elif way < 0.45:
        holder[key] = draw.choice(OTHERS)
    else:
        holder[key] = draw.choice(INTEGERS if isinstance(old, int) else TEXTS)


def use(feed: Feed) -> None:
    """Encode and decode a record of each layout, without values and with those of its parts."""
    empty: dict[Any, Any] = {(): [{}], "": "ab", None: {}}
    for layout in [each for ways in feed.layouts.values() for each in ways]:
        for values in ({}, {part.name: empty[part.nothing] for part in layout.parts}):
            try:
                message = feed.encode_message(layout.name, **values)
                packet = feed.encode_packet(sequence=1, messages=[message])
                feed.to_dicts(packet)
            except (UsageError, BadPacket):
                continue


@drawn(3)
def test_a_description_with_one_thing_changed_is_refused_in_one_line_or_can_be_used(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    sources = {name: parse_toml(text, name, "description") for name, text in SOURCES.items()}
    path = tmp_path / "changed.toml"
    for _ in range(MUTATIONS):
        values = copy.deepcopy(sources[draw.choice(sorted(sources))])
        mutate(draw, values)
        path.write_text("\n".join(f"{json.dumps(key)} = {as_toml(values[key])}" for key in values))
        reason = ""
        try:
            use(load_feed(path))
        except ConfigError as refused:
            reason = str(refused)
        assert "\n" not in reason
