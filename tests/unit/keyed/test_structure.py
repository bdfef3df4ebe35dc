"""Keys of messages: the values that they consist of, and their equality."""

import json

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.keyed.settings import Format, Rule
from feedhandler.keyed.structure import READ_BYTES_MAX, VALUE_BYTES_MAX, Digester, Misfit, Structure

SOH = "\x01"


def key(text: str) -> list[bytes]:
    return Structure(Format.JSON, ("k",)).keys(b'{"k": ' + text.encode() + b"}")


def fix(*parts: str, checksum: str = "", length: int | None = None) -> bytes:
    body = "".join(part + SOH for part in parts)
    text = f"8=FIX.4.4{SOH}9={len(body) if length is None else length}{SOH}{body}"
    return f"{text}10={checksum or f'{sum(text.encode()) % 256:03d}'}{SOH}".encode()


SAME = [
    ("7", "7.0", "7e0", "70e-1", "0.7E1", "7.000000000000000000000000000000000000"),
    ("-0", "0", "0.0", "0e99"),
    ("123456789012345678901234567890", "1.2345678901234567890123456789e29"),
    ('"A"', '"\\u0041"'),
]
DIFFERENT = ["7", '"7"', '"7.0"', "true", "1", '"true"', "-7", "70", "0.1", '""',
             "0.1000000000000000055511151231257827", '"n7e0"', '"é"', '"e\\u0301"']  # fmt: skip


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_a_value_is_the_same_however_it_is_written(texts: tuple[str, ...]) -> None:
    assert len({tuple(key(text)) for text in texts}) == 1


def test_other_values_are_other_keys() -> None:
    assert len({tuple(key(text)) for text in DIFFERENT}) == len(DIFFERENT)


MISFITS = {
    "null": (b'{"k": null}', "null is no key"),
    "an object": (b'{"k": {}}', "a dict is no key"),
    "an array": (b'{"k": [1]}', "a list is no key"),
    "no such field": (b'{"j": 1}', "it has no k"),
    "no object": (b"[1]", "it has no k"),
    "no JSON": (b"{", "no JSON"),
    "bytes that are no text": (b'{"k": "\xff"}', "no JSON"),
    "not a number": (b'{"k": NaN}', "no JSON"),
    "deep": (b'{"k": ' + b"[" * 100_000, "no JSON"),
    "deep beside the key": (b'{"k": 1, "j": ' + b"[" * 100_000, "no JSON"),
    "cut off behind the key": (b'{"k": 1, "j": [1', "no JSON"),
    "a long integer": (b'{"k": ' + b"9" * 200_000 + b"}", "longer"),
    "an integer of many bits": (b'{"k": ' + b"9" * 4000 + b"}", "no JSON|bits"),
    "a long fraction": (b'{"k": 0.' + b"9" * 900_000 + b"}", "longer"),
    "half of a surrogate": (b'{"k": "\\ud800"}', "no JSON"),
    "a long value": (b'{"k": "' + b"x" * VALUE_BYTES_MAX + b'"}', "longer"),
    "a long message": (b" " * READ_BYTES_MAX + b'{"k": 1}', "at most"),
    "an exponent out of bounds": (b'{"k": 1e99999999999999999999}', "no JSON|out of all bounds"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_refused_with_the_reason(name: str) -> None:
    data, reason = MISFITS[name]
    with pytest.raises(Misfit, match=reason):
        Structure(Format.JSON, ("k",)).keys(data)


def test_a_path_leads_through_objects_and_arrays() -> None:
    structure = Structure(Format.JSON, ("legs.1.account", "by.0"))
    data = {"legs": [{}, {"account": 5}], "by": {"0": "x"}}
    same = {"by": ["x"], "legs": {"1": {"account": 5.0}}}
    assert structure.keys(json.dumps(data).encode()) == structure.keys(json.dumps(same).encode())
    with pytest.raises(Misfit, match=r"it has no legs\.1\.account"):
        structure.keys(b'{"legs": [1]}')


def transfer(source: str, target: str, rule: Rule) -> list[bytes]:
    data = json.dumps({"src": source, "dst": target}).encode()
    return Structure(Format.JSON, ("src", "dst"), rule).keys(data)


def test_rules_say_how_values_make_keys() -> None:
    composite, pair, several = Rule.COMPOSITE, Rule.PAIR, Rule.ANY
    assert transfer("A", "B", composite) != transfer("B", "A", composite)
    assert transfer("A", "B", pair) == transfer("B", "A", pair)
    assert transfer("A", "B", pair) != transfer("A", "C", pair)
    assert set(transfer("A", "B", several)) & set(transfer("C", "A", several))
    assert not set(transfer("A", "B", several)) & set(transfer("C", "D", several))
    assert transfer("A", "BC", composite) != transfer("AB", "C", composite)


def test_a_structure_that_cannot_be_is_refused() -> None:
    for fields, rule in (((), Rule.ANY), (("a", "a"), Rule.ANY), (("a",), Rule.PAIR),
                         (("a..b",), Rule.COMPOSITE), (tuple("abcdefghi"), Rule.ANY)):  # fmt: skip
        with pytest.raises(UsageError):
            Structure(Format.JSON, fields, rule)
    with pytest.raises(UsageError):
        Structure(Format.FIX, ("Symbol",))


def test_keys_of_a_fix_message_are_its_fields() -> None:
    structure = Structure(Format.FIX, ("1", "55"))
    first = structure.keys(fix("35=D", "1=ACC", "55=IBM", "38=100"))
    assert first == structure.keys(fix("35=F", f"95=5{SOH}96=a{SOH}1=b", "55=IBM", "1=ACC"))
    assert first != structure.keys(fix("35=D", "1=ACC", "55=IBM.N"))


FIX_MISFITS = {
    "a field that is missing": (fix("35=D", "1=ACC"), "it has no 55"),
    "two values": (fix("55=A", "1=X", "55=B"), "twice"),
    "a wrong CheckSum": (fix("35=D", checksum="999"), "CheckSum"),
    "a wrong BodyLength": (fix("35=D", length=99), "BodyLength"),
    "data that run out": (fix("95=99", "96=a"), "data field"),
    "data without their length's field": (fix("95=1", "58=a"), "data field"),
    "no tag": (fix("=5"), "tag|no"),
    "a tag with a zero before": (fix("055=A"), "begins with zero"),
    "more fields than are read": (fix(*["1=A"] * 9000), "fields at most"),
    "nothing": (b"", "no bytes"),
    "text": (b"hello", "BeginString"),
}


@pytest.mark.parametrize("name", FIX_MISFITS)
def test_a_fix_message_that_is_not_whole_is_refused_with_the_reason(name: str) -> None:
    data, reason = FIX_MISFITS[name]
    with pytest.raises(Misfit, match=reason):
        Structure(Format.FIX, ("1", "55")).keys(data)


def test_digests_tell_keys_apart_and_depend_on_a_secret() -> None:
    mine = Digester(b"s" * 32)
    digests = mine.digests([b"a", b"b", b"a"])
    assert digests[:16] == digests[32:] != digests[16:32]
    assert Digester().digests([b"a"]) != digests[:16]
