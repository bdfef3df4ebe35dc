"""Definitions of channels (`feedhandler/fixcast/channels.py`)."""

from pathlib import Path

import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.fixcast.channels import Channels, parse_channels, read_channels

TEXT = """
[[channel]]
id = "equities-1"
carries = [{ content = "equities", letters = ["A-D", ["SA", "SN"]], symbols = ["TSLA"] }]
sender = "PUB"
a = { group = "239.10.1.1", port = 31001, source = "10.1.0.5" }
b = { group = "239.10.2.1", port = 31001, source = "10.2.0.5" }
retransmission = "equities"

[[channel]]
id = "equities-2"
carries = [{ content = "equities", letters = ["E-R", ["SN", ""]] }]
a = { group = "239.10.1.2", port = 31001, source = "10.1.0.5" }
b = { group = "239.10.2.2", port = 31001, source = "10.2.0.5" }

[[channel]]
id = "bonds"
carries = [{ content = "fixed income", kinds = ["GOVT", "CORP"] }]
a = { group = "239.10.1.3", port = 31001, source = "10.1.0.5" }
b = { group = "239.10.2.3", port = 31001, source = "10.2.0.5" }

[[retransmission]]
id = "equities"
line = { group = "239.10.3.1", port = 31001, source = "10.1.0.5" }
server = "10.1.0.5:31900"
"""


def channels(text: str = TEXT) -> Channels:
    return parse_channels(text, "channels.toml")


def test_a_definition_has_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "channels.toml"
    path.write_text(TEXT)
    found = read_channels(path)
    assert list(found.channels) == ["equities-1", "equities-2", "bonds"]
    first = found.channels["equities-1"]
    assert (first.topic, first.sender) == ("equities-1", "PUB")
    assert [line.group for line in first.lines] == ["239.10.1.1", "239.10.2.1"]
    group = found.retransmission_of(first)
    assert group is not None
    assert group.server == "10.1.0.5:31900"
    assert (group.join, group.market_data) == ("always", "")
    assert found.retransmission_of(found.channels["bonds"]) is None
    assert found.warnings == []


@pytest.mark.parametrize(
    ("symbol", "content", "kind", "expected"),
    [
        ("A", "equities", "", "equities-1"),
        ("DZ", "equities", "", "equities-1"),
        ("E", "equities", "", "equities-2"),
        ("SAP", "equities", "CS", "equities-1"),
        ("SMX", "equities", "", "equities-1"),
        ("SN", "equities", "", "equities-2"),
        ("ZZ", "equities", "", "equities-2"),
        ("TSLA", "equities", "", "equities-1"),
        ("S", "equities", "", None),
        ("A", "", "", None),
        ("DE0001", "fixed income", "GOVT", "bonds"),
        ("DE0001", "fixed income", "MUNI", None),
    ],
)
def test_an_instrument_has_one_channel(
    symbol: str, content: str, kind: str, expected: str | None
) -> None:
    found = channels().of(symbol, content, kind)
    assert (found.id if found else None) == expected


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('id = "bonds"', 'id = "equities-1"', r"toml:17: channel\[2\].id: equities-1 is there"),
        ('retransmission = "equities"', 'retransmission = "x"', r":8: .*there are: equities"),
        ('"A-D"', '"D-A"', r":4: channel\[0\].carries\[0\].letters\[0\]: 'D-A' is an empty range"),
        ('"E-R"', '"D-R"', r":12: .*carried by equities-1 too"),
        ('letters = ["E-R", ["SN", ""]]', 'symbols = ["TSLA"]', r"TSLA is carried by equities-1"),
        (
            'content = "equities", letters = ["E-R", ["SN", ""]]',
            'content = "fixed income", kinds = ["CORP"]',
            r":18: .*the rest of 'fixed income' is carried by equities-2 too",
        ),
        ("239.10.1.3", "10.0.0.1", r":19: .*is no multicast group"),
        ("239.10.1.3", "hello", r"is no multicast group"),
        ("239.10.3.1", "10.0.0.1", r"retransmission\[0\].line.group: .*is no multicast group"),
        (
            'server = "10.1.0.5:31900"',
            'server = "10.1.0.5:31900"\nrequests = { group = "239.10.4.1", port = 1 }',
            "takes requests by TCP already",
        ),
        ("10.1.0.5:31900", "nowhere", r":25: retransmission\[0\].server: 'nowhere' is no server"),
        (
            'server = "10.1.0.5:31900"',
            'market_data = "10.1.0.5"',
            r":25: retransmission\[0\].market_data: '10.1.0.5' is no server",
        ),
        (
            'line = { group = "239.10.3.1", port = 31001, source = "10.1.0.5" }',
            'join = "needed"',
            r"retransmission\[0\].join: equities has no group to join",
        ),
        (
            'b = { group = "239.10.2.3", port = 31001, source = "10.2.0.5" }',
            'b = { group = "239.10.1.3", port = 31001, source = "10.1.0.5" }',
            r":20: channel\[2\].b: 239.10.1.3:31001 is line A already",
        ),
        ("31001", "0", "port"),
        (
            'carries = [{ content = "equities", letters = ["E-R"',
            'target = ""\nretransmission = "equities"\ncarries = [{ letters = ["E-R"',
            r":12: channel\[1\].target: channels that share equities cannot be distinguished",
        ),
        (
            'carries = [{ content = "equities", letters = ["E-R"',
            'target = "equities-1"\nretransmission = "equities"\ncarries = [{ letters = ["E-R"',
            "cannot be distinguished",
        ),
        ("content", "contents", "did you mean content"),
        ("[[channel]]", "[[channel", "not TOML"),
    ],
)
def test_what_cannot_work_is_refused_with_its_line(old: str, new: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        channels(TEXT.replace(old, new, 1))


def test_the_rest_of_some_kinds_may_be_apart_from_that_of_the_others() -> None:
    made = channels(
        TEXT.replace(
            'content = "equities", letters = ["E-R", ["SN", ""]]', 'content = "fixed income"'
        ).replace("equities-2", "others")
    )
    assert made.of("DE0001", "fixed income", "MUNI") is made.channels["others"]
    assert made.of("DE0001", "fixed income", "GOVT") is made.channels["bonds"]


@pytest.mark.parametrize("carried", ['{ letters = ["A-R"], symbols = ["ZZ"] }', "{}"])
def test_what_has_no_content_carries_what_no_entry_of_a_content_does(carried: str) -> None:
    made = channels(
        TEXT.replace('{ content = "equities", letters = ["E-R", ["SN", ""]] }', carried)
        .replace("equities-2", "others")
        .replace("equities-1", "last")
        .replace('letters = ["A-D", ["SA", "SN"]]', 'letters = ["A-D", ["Z", ""]]')
    )
    made = Channels(tuple(reversed(made.channels.values())), tuple(made.retransmissions.values()))
    expected = {
        ("A", "equities"): "last", ("ZZ", "equities"): "last", ("E", "equities"): "others",
        ("ZZ", ""): "others", ("A", "options"): "others", ("A", "fixed income"): "others",
    }  # fmt: skip
    for (symbol, content), id in expected.items():
        assert made.of(symbol, content) is made.channels[id], (symbol, content)
    assert made.of("A", "fixed income", "GOVT") is made.channels["bonds"]


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "channels.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not text"):
        read_channels(path)


def many(count: int) -> str:
    one = '[[channel]]\nid = "c{0}"\ncarries = [{{ symbols = ["S{0}"] }}]\n'
    one += 'a = {{ group = "233.1.1.{0}", port = 1, source = "10.0.0.1" }}\n'
    one += 'b = {{ group = "233.1.2.{0}", port = 1, source = "10.0.0.2" }}\n'
    return "".join(one.format(number) for number in range(1, count + 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT.replace("239.10.1.1", "224.3.0.1"), "channel equities-1, line A: 224.3.0.1 is out"),
        (TEXT.replace(', source = "10.2.0.5"', "", 1), "equities-1, line B: no source"),
        (TEXT.replace("239.10.2.1", "239.10.1.1"), "line B: 239.10.1.1:31001 carries something"),
        (TEXT.replace("239.10.3.1", "239.10.1.2"), "retransmission equities: 239.10.1.2:31001"),
        (many(2), "2 channels carry a single instrument each: c1, c2"),
        (many(21), "21 channels: few are recommended"),
        (TEXT.replace('b = { group = "239.10.2.3"', 'sender = "X" # {'), "bonds has one line"),
    ],
)
def test_what_is_unwise_is_warned_of(text: str, expected: str) -> None:
    assert [warning for warning in channels(text).warnings if expected in warning]


def test_what_is_wise_is_not_warned_of() -> None:
    assert channels(many(1)).warnings == []
    assert channels(TEXT.replace("239.10.1.1", "232.10.1.1")).warnings == []


def test_one_letter_is_a_range_and_a_listed_symbol_is_of_its_content_alone() -> None:
    text = """
[[channel]]
id = "one"
carries = [{ content = "bonds", symbols = ["T1"] }, { content = "equities", letters = ["T"] }]
a = { group = "239.10.1.1", port = 31001, source = "10.1.0.5" }

[[channel]]
id = "two"
carries = [{ content = "equities", letters = ["U"] }]
a = { group = "239.10.1.2", port = 31001, source = "10.1.0.5" }
"""
    made = channels(text)
    expected = {"T1": "one", "T": "one", "U": "two", "S": None, "V": None}
    for symbol, id in expected.items():
        found = made.of(symbol, "equities")
        assert (found and found.id) == id
