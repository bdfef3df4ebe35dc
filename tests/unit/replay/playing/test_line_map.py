"""Destinations of recorded datagrams: maps of groups and ports, and lines made of them."""

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.replay.playing.inject import LineFaults
from feedhandler.replay.playing.line_map import LineMap, mapped_lines, parse_map

A, B, C = ("224.0.59.76", 11_076), ("224.0.59.204", 11_204), ("224.0.59.77", 11_077)
UNICAST = ("10.0.0.1", 5_000)
INTERFACES = {"A": "lo", "B": "127.0.0.1", "recorded": "lo"}
FAULTS = {"A": LineFaults(loss=0.1), "B": LineFaults(loss=0.2), "recorded": LineFaults()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "224.0.59.76:11076=239.1.1.1:5001@a",
            LineMap(("224.0.59.76", 11_076), ("239.1.1.1", 5_001), "A"),
        ),
        ("10.0.0.1=239.1.1.1", LineMap(("10.0.0.1", None), ("239.1.1.1", None))),
    ],
)
def test_maps_are_read_from_text(text: str, expected: LineMap) -> None:
    assert parse_map(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "maps nothing"),
        ("224.0.59.76", "maps nothing"),
        ("224.0.59.76=239.1.1.1@C", "maps nothing"),
        ("224.0.59=239.1.1.1", "'224.0.59' is no IPv4 address"),
        ("224.0.59.76=10.0.0.1", "10.0.0.1 is no multicast group"),
        ("224.0.59.76:0=239.1.1.1", "0 is no port"),
        ("224.0.59.76=239.1.1.1:70000", "70000 is no port"),
    ],
)
def test_what_maps_nothing_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_map(text)


def lines(*texts: str, keep_others: bool = False) -> dict[str, object]:
    made = mapped_lines(
        [parse_map(text) for text in texts],
        [A, B, C, UNICAST],
        keep_others=keep_others,
        interfaces=INTERFACES,
        faults=FAULTS,
    )
    assert all(line.interface == INTERFACES[line.name] for line in made)
    assert all(line.faults == FAULTS[line.name] for line in made)
    return {line.name: line.groups for line in made}


def test_mapped_groups_become_lines_and_the_rest_is_left_out() -> None:
    made = lines("224.0.59.76=239.1.1.1:5001@A", "224.0.59.204:11204=239.1.2.1@B")
    assert list(made) == ["A", "B"]
    assert made == {"A": {A: ("239.1.1.1", 5_001)}, "B": {B: ("239.1.2.1", 11_204)}}


def test_others_stay_where_they_were_when_asked_but_no_unicast() -> None:
    made = lines("224.0.59.76=239.1.1.1@A", keep_others=True)
    assert made == {"A": {A: ("239.1.1.1", 11_076)}, "recorded": {B: B, C: C}}
    assert lines("10.0.0.1=239.9.9.9") == {"recorded": {UNICAST: ("239.9.9.9", 5_000)}}


def test_the_first_map_that_fits_counts() -> None:
    made = lines("224.0.59.76:1=239.1.1.1", "224.0.59.76=239.1.1.2@B", "224.0.59.76=239.1.1.3@A")
    assert made == {"B": {A: ("239.1.1.2", 11_076)}}
    assert lines() == {}
