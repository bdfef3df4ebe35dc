"""Hostile messages of keyed queues: mutated JSON, FIX and AMQP, and what is very long or deep.

Each has keys of bounded length, or is refused with a reason that fits a line; nothing else is
raised. What JSON has for keys is compared with Python's own reader. A run is 6,000 messages of
each kind, or a fifth of `FEEDHANDLER_FUZZ_FRAMES`.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import proton
import pytest

from feedhandler.amqp.durable.keyed_sections import read_message
from feedhandler.amqp.durable.values import SectionError
from feedhandler.keyed.settings import Format, Rule
from feedhandler.keyed.structure import READ_BYTES_MAX, VALUE_BYTES_MAX, Misfit, Structure, encoded
from tests.fuzz.test_fuzz_door import damaged

MESSAGES = int(os.environ.get("FEEDHANDLER_FUZZ_FRAMES", "30000")) // 5
REASON_CHARACTERS_MAX = 300
ACCOUNT, SECOND = "account", "legs.0.id"
VALUES: list[Any] = [
    7,
    "7",
    -1.5e3,
    0,
    "",
    "é\u0000",
    "x" * 300,
    True,
    None,
    {"a": [1]},
    [1],
    2**70,
]


def json_message(draw: random.Random) -> bytes:
    content = {
        "n": draw.choice(VALUES),
        ACCOUNT: draw.choice(VALUES),
        "legs": draw.choice([[{"id": draw.choice(VALUES)}], {"0": {"id": 3}}, [], 5]),
        "more": [draw.choice(VALUES) for _ in range(draw.randrange(4))],
    }
    return json.dumps(content, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def fix_message(draw: random.Random) -> bytes:
    tags = [1, 55, draw.choice([58, 58, 1, 96]), *draw.choice([[], [], [95]])]
    parts = [f"{tag}={draw.choice(VALUES)}" for tag in tags]
    body = "".join(part + "\x01" for part in parts).encode()
    text = b"8=FIX.4.4\x019=%d\x01%s" % (len(body), body)
    return text + b"10=%03d\x01" % (sum(text) % 256)


def amqp_message(draw: random.Random) -> bytes:
    message = proton.Message(id="m", body=json_message(draw))
    simple = [value for value in VALUES if value != 2**70]
    message.properties = {"account": draw.choice(simple), "legs": draw.choice(simple)}
    message.group_id = "g"
    message.annotations = {proton.symbol("x-opt-account"): draw.choice(simple)}
    return bytes(message.encode())


def by_python(data: bytes) -> list[bytes] | None:
    """The keys by Python's own reader; None where it refuses the message, or has none."""

    def refuse(_: str) -> Any:
        raise ValueError

    def number(text: str) -> Any:
        try:
            return Decimal(text)
        except InvalidOperation:
            return None  # out of all bounds

    try:
        content = json.loads(data, parse_float=number, parse_constant=refuse)
        account, legs = content[ACCOUNT], content["legs"]
        leg = legs["0"] if isinstance(legs, dict) else legs[0]
        return [encoded(account), encoded(leg["id"])]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None


def keys_or_reason(structure: Structure, material: Any, seen: Counter[str]) -> list[bytes] | None:
    """A message's keys, checked; None where it is refused."""
    keys, reason = None, ""
    try:
        keys = structure.keys(material)
    except Misfit as misfit:
        reason = str(misfit)
    if keys is None:
        assert 0 < len(reason) < REASON_CHARACTERS_MAX
        seen["refused"] += 1
        return None
    assert all(0 < len(key) <= VALUE_BYTES_MAX for key in keys)
    seen["taken"] += 1
    return keys


def fuzz(
    seed: int, make: Callable[[random.Random], bytes], look: Callable[[bytes, Counter[str]], None]
) -> None:
    """Look at so many messages, most of them damaged."""
    draw, seen = random.Random(seed), Counter[str]()
    for _ in range(MESSAGES):
        data = make(draw)
        look(damaged(data, draw) if draw.random() < 0.7 else data, seen)
    print(dict(seen))
    assert seen["taken"] > MESSAGES // 20
    assert seen["refused"] > MESSAGES // 20


@pytest.mark.random
def test_json(seed: int) -> None:
    structure = Structure(Format.JSON, (ACCOUNT, SECOND), Rule.ANY)

    def look(data: bytes, seen: Counter[str]) -> None:
        keys, others = keys_or_reason(structure, data, seen), by_python(data)
        if others is not None and keys is not None:
            assert keys == others, data
            seen["compared"] += 1
        elif keys is not None:
            # It reads what is not asked for no further than it must.
            assert b"\\" in data or by_python(data.decode(errors="replace").encode()) == keys, data

    fuzz(seed, json_message, look)


@pytest.mark.random
def test_fix(seed: int) -> None:
    structure = Structure(Format.FIX, ("1", "55"))
    fuzz(seed, fix_message, lambda data, seen: (keys_or_reason(structure, data, seen), None)[1])


@pytest.mark.random
@pytest.mark.parametrize("form", [Format.AMQP, Format.JSON])
def test_amqp(seed: int, form: Format) -> None:
    structure = Structure(form, ("account",))

    def look(data: bytes, seen: Counter[str]) -> None:
        read, reason = None, ""
        try:
            read = read_message(data, form)
        except SectionError as error:
            reason = str(error)
        if read is None:
            assert 0 < len(reason) < REASON_CHARACTERS_MAX
            seen["refused"] += 1
        else:
            keys_or_reason(structure, read.material, seen)

    fuzz(seed, amqp_message, look)


BEFORE, AFTER = b'{"account": ', b"}"
MIB = READ_BYTES_MAX - 200
LONG = {
    "text": b'"' + b"x" * MIB + b'"',
    "escapes": b'"' + b"\\u0041" * (MIB // 6) + b'"',
    "an integer": b"9" * MIB,
    "a fraction": b"0." + b"9" * MIB,
    "zeros": b"1" + b"0" * MIB,
    "arrays in arrays": b"[" * MIB,
    "objects in objects": b'{"account": ' * (MIB // 12),
    "an array": b"[" + b"1," * (MIB // 2) + b"1]",
    "an object": b"{" + b'"a":0.1,' * (MIB // 8) + b'"a":1}',
    "keys again and again": b'1, "account": ' * (MIB // 14) + b"1",
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("beside", [False, True])
def test_what_is_very_long_or_deep(name: str, beside: bool) -> None:
    structure = Structure(Format.JSON, ("account",))
    data = BEFORE + (b'5, "beside": ' if beside else b"") + LONG[name] + AFTER
    taken = keys_or_reason(structure, data, Counter())
    deep = name in ("arrays in arrays", "objects in objects")
    again = name == "keys again and again"
    assert (taken is None) is (deep or not (beside or again))
    assert keys_or_reason(structure, data + b" " * READ_BYTES_MAX, Counter()) is None
