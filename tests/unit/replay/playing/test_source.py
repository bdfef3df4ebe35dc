"""Sources of a player: the channel of each datagram, from captures and from iterables."""

from pathlib import Path

import numpy as np
import pytest

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.replay.captures.reading import Capture, Datagram
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.sender_lines import NO_DESTINATION, MulticastLine, open_lines
from feedhandler.replay.playing.source import CHUNK_DATAGRAMS, Chunk, PayloadField, chunks_of

G1, G2, G3 = ("239.1.1.1", 5_001), ("239.1.1.2", 5_001), ("239.1.1.1", 5_002)


def payloads(chunk: Chunk) -> list[bytes]:
    extents = zip(chunk.offset.tolist(), chunk.length.tolist(), strict=True)
    return [chunk.data[start : start + size].tobytes() for start, size in extents]


@pytest.fixture
def datagrams() -> list[Datagram]:
    """Services 7, 8, 9 in the first two payload bytes, one payload too short for that."""
    contents = [(G1, b"\0\x07one"), (G2, b"\0\x08two"), (G3, b"\0\x09"), (G1, b"\x07")]
    return [
        Datagram(1_000 * number, group, port, "10.0.0.1", payload)
        for number, ((group, port), payload) in enumerate(contents)
    ]


@pytest.fixture
def capture(tmp_path: Path, datagrams: list[Datagram]) -> Capture:
    with CaptureWriter(tmp_path / "some.pcap") as writer:
        for one in datagrams:
            writer.write(one.time_ns, one.group, one.port, one.payload, source=one.source)
    return Capture(tmp_path / "some.pcap")


SERVICE = PayloadField(0, 2)


@pytest.mark.parametrize(
    ("key", "channels", "expected"),
    [
        (None, [], [0, 0, 0, 0]),
        (None, [G1, G3], [0, -1, 1, 0]),
        (SERVICE, [9, 7], [1, -1, 0, -1]),
        (lambda payload: payload[-1], [7, ord("e")], [1, -1, -1, 0]),
    ],
)
def test_the_channel_is_found_by_group_by_field_or_by_function(
    capture: Capture,
    datagrams: list[Datagram],
    key: object,
    channels: list[object],
    expected: list[int],
) -> None:
    for source in (capture, datagrams, iter(datagrams)):
        (chunk,) = chunks_of(source, key, channels, ["A"])  # type: ignore[arg-type]
        assert chunk.channel.tolist() == expected
        assert payloads(chunk) == [one.payload for one in datagrams]
        assert chunk.time_ns.tolist() == [0, 1_000, 2_000, 3_000]
        assert chunk.only_line is None


def test_plain_tuples_may_name_the_line_they_are_for() -> None:
    items = [(5, b"both"), (6, b"a only", "A"), (7, b"b only", "B"), (8, b"", None)]
    (chunk,) = chunks_of(items, None, [], ["A", "B"])
    assert chunk.only_line is not None
    assert chunk.only_line.tolist() == [-1, 0, 1, -1]
    assert payloads(chunk) == [b"both", b"a only", b"b only", b""]
    with pytest.raises(UsageError, match="line 'C'"):
        list(chunks_of([(5, b"", "C")], None, [], ["A", "B"]))


def test_an_iterable_comes_in_chunks_and_tells_how_far_it_is() -> None:
    items = [(number, b"x") for number in range(CHUNK_DATAGRAMS + 1)]
    known = list(chunks_of(items, None, [], ["A"]))
    assert [len(chunk.time_ns) for chunk in known] == [CHUNK_DATAGRAMS, 1]
    assert known[-1].share_done == 1.0
    assert [chunk.share_done for chunk in chunks_of(iter(items), None, [], ["A"])] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (PayloadField(1, 2), 0x0203),
        (PayloadField(1, 2, "little"), 0x0302),
        (PayloadField(0, 4), 0x01020304),
        (PayloadField(3, 1), 4),
        (PayloadField(3, 2), -1),
    ],
)
def test_payload_fields_have_width_and_byte_order(field: PayloadField, value: int) -> None:
    data = np.frombuffer(b"\xff\xff\x01\x02\x03\x04", np.uint8)
    start, length = np.array([2], np.uint32), np.array([4], np.uint32)
    assert field.values(data, start, length).tolist() == [value]


def test_lines_number_their_destinations_by_channel() -> None:
    lines = [MulticastLine("A", {1: G1, 2: G2}), MulticastLine("B", {2: G3})]
    opened = open_lines(lines)
    try:
        assert opened.channels == [1, 2]
        assert opened.table.tolist() == [[0, 1], [NO_DESTINATION, 2]]
        assert [(group, port) for _, group, port in opened.destinations] == [G1, G2, G3]
        assert opened.line_of_destination() == [0, 0, 1]
    finally:
        opened.close()


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        (("10.1.1.1", 5_000), "'10.1.1.1' is no IPv4 multicast group"),
        (("group", 5_000), "'group' is no IPv4 multicast group"),
        (("239.1.1.1", 0), "0 is no port"),
        ({1: ("239.1.1.1", 70_000)}, "70000 is no port"),
    ],
)
def test_a_line_that_cannot_be_is_refused(groups: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        MulticastLine("A", groups)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("interface", "reason"),
    [
        ("no-such-if0", "no such interface"),
        ("192.0.2.1", "cannot assign requested address"),
    ],
)
def test_an_interface_that_is_not_here_is_refused_with_the_reason(
    interface: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"interface '{interface}': {reason} "):
        open_lines([MulticastLine("A", G1), MulticastLine("B", G2, interface)])


def test_lines_are_of_one_kind_and_at_least_one() -> None:
    with pytest.raises(UsageError, match="no line"):
        open_lines([])
    with pytest.raises(UsageError, match="same kind"):
        open_lines([MulticastLine("A", G1), MulticastLine("B", {1: G2})])
