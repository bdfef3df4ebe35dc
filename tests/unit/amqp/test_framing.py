"""AMQP messages written by us and read by proton, and the other way round; hostile bytes."""

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Message, symbol, timestamp, ulong

from feedhandler.amqp import framing
from tests.support.seeds import drawn
from tests.support.twins import either, twins_of

TWINS = twins_of(framing)
INTERPRETED = TWINS["interpreted"]
module = either(TWINS)
PREFIX = struct.pack(">IHH", 20261121, 1, 104)


def written(
    module: Any, body: bytes, key: str = "e.104", stamped: bool = False, number: int = 0xFFFF
) -> bytes:
    template = module.Template(key, framing.CONTENT_PACKET, PREFIX, stamped)
    frame = module.Frame(70_000)
    frame.begin(template, 2**64 - 2, number, 1_795_000_000_123_456_789)
    half = len(body) // 2
    frame.append(body, 0, half)
    frame.append(body, half, len(body) - half)
    frame.finish(7)
    assert frame.room() == 70_000 - frame.used
    return frame.snapshot()


def parts(module: Any, data: Any, start: int = 0, end: int | None = None) -> Any:
    """Everything the reader says of a message, or None where it refuses it."""
    reader = module.Reader()
    if not reader.parse(data, start, len(data) if end is None else end):
        return None
    names = ("tag", "subject", "content", "body")
    extents = [getattr(reader, f"{name}_{what}") for name in names for what in ("at", "size")]
    return (*extents, reader.group_sequence, reader.received_ns)


def cut(data: bytes, reader: Any, name: str) -> bytes:
    at, size = getattr(reader, f"{name}_at"), getattr(reader, f"{name}_size")
    return data[at : at + size]


# -- what we write --------------------------------------------------------------------------


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 5, b"\0" * 65_507])
@pytest.mark.parametrize("key", ["e.104", "e.104." + "x" * 249, "e.104." + "é" * 200])
def test_proton_reads_what_the_template_writes(
    module: Any, key: str, body: bytes, stamped: bool
) -> None:
    data = written(module, body, key, stamped, number=3)
    message = Message()
    message.decode(data)
    assert message.id == PREFIX + struct.pack(">QH", 2**64 - 2, 3)
    assert message.subject == key
    assert message.content_type == symbol(framing.CONTENT_PACKET)
    assert message.group_sequence == 7
    assert message.inferred
    assert bytes(message.body) == body
    stamp = {symbol("x-opt-received-ns"): 1_795_000_000_123_456_789}
    assert (message.annotations or {}) == (stamp if stamped else {})


def test_a_finished_message_takes_another_number_for_the_next_link(module: Any) -> None:
    frame = module.Frame(1000)
    frame.begin(module.Template("e.1", framing.CONTENT_BATCH, PREFIX), 1, 0, 0)
    frame.append(b"abc", 0, 3)
    frame.finish(0)
    seen = []
    for number in (1, 2**32 - 1, 0):
        frame.number(number)
        message = Message()
        message.decode(frame.snapshot())
        seen.append(message.group_sequence)
        assert bytes(message.body) == b"abc"
    # proton's Python codec reads the field as signed; the bytes are what counts.
    assert [number & 0xFFFF_FFFF for number in seen] == [1, 2**32 - 1, 0]


def test_a_frame_is_used_again_without_traces_of_the_last_message(module: Any) -> None:
    frame = module.Frame(1000)
    for body in (b"long body", b"s"):
        frame.begin(module.Template("e.1", framing.CONTENT_BATCH, PREFIX), 1, 0, 0)
        frame.append(body, 0, len(body))
        frame.finish(0)
        message = Message()
        message.decode(frame.snapshot())
        assert bytes(message.body) == body


def test_a_frame_that_is_too_small_says_so_and_writes_nothing(module: Any) -> None:
    frame = module.Frame(200)
    frame.begin(module.Template("e.1", framing.CONTENT_BATCH, PREFIX), 1, 0, 0)
    used = frame.used
    with pytest.raises(IndexError):
        frame.append(bytes(300), 0, 300)
    with pytest.raises(IndexError):
        frame.append(b"abc", 1, 3)
    with pytest.raises(IndexError):
        frame.append(b"abc", -1, 1)
    assert frame.used == used
    with pytest.raises(IndexError):
        module.Frame(10).begin(module.Template("e.1", framing.CONTENT_BATCH, PREFIX), 1, 0, 0)


def test_a_tags_prefix_is_eight_bytes(module: Any) -> None:
    with pytest.raises(ValueError, match="tag"):
        module.Template("e.1", framing.CONTENT_BATCH, b"short")


# -- what we read ---------------------------------------------------------------------------


def test_the_reader_finds_what_the_template_wrote(module: Any) -> None:
    data = written(module, b"the body", stamped=True, number=5)
    reader = module.Reader()
    assert reader.parse(data, 0, len(data))
    assert cut(data, reader, "tag") == PREFIX + struct.pack(">QH", 2**64 - 2, 5)
    assert cut(data, reader, "subject") == b"e.104"
    assert cut(data, reader, "content") == framing.CONTENT_PACKET.encode()
    assert cut(data, reader, "body") == b"the body"
    assert reader.group_sequence == 7
    assert reader.received_ns == 1_795_000_000_123_456_789


def test_the_reader_finds_a_message_in_the_middle_of_an_arena(module: Any) -> None:
    data = written(module, b"the body")
    arena = b"\xff" * 13 + data + b"\xff" * 9
    reader = module.Reader()
    assert reader.parse(arena, 13, 13 + len(data))
    assert cut(arena, reader, "body") == b"the body"


def rich_message(chance: random.Random) -> Message:
    """A message with any of AMQP's sections, as a broker may re-encode ours."""
    message = Message(body=chance.randbytes(chance.choice([0, 1, 200, 255, 256, 3000])))
    message.inferred = True
    message.id = chance.randbytes(18)
    message.subject = "k" * chance.choice([1, 200, 255, 256, 400])
    message.content_type = symbol(framing.CONTENT_BATCH)
    message.group_sequence = chance.choice([1, 200, 255, 256, 2**31 - 1])
    if chance.random() < 0.5:
        message.durable, message.priority, message.ttl = True, 9, 60_000
    if chance.random() < 0.5:
        message.address, message.reply_to = "to", "r" * 300
        message.correlation_id, message.user_id = ulong(9), b"user"
        message.creation_time, message.expiry_time = 1.5, 2.5
        message.group_id, message.reply_to_group_id = "group", "g" * 300
        message.content_encoding = symbol("gzip")
    if chance.random() < 0.5:
        message.instructions = {symbol("x-opt-route"): {"deep": [1, [2, [3, {"a": b"b"}]]]}}
    if chance.random() < 0.5:
        message.properties = {
            "long": "x" * 1000,
            "n": None,
            "t": timestamp(5),
            "l": [1.5, True, "a"],
            "m": {"k": {"k": "v"}},
        }
    if chance.random() < 0.7:
        message.annotations = {
            symbol("x-first"): "y" * 400,
            symbol("x-opt-received-nx"): 1,
            symbol("x-opt-received-ns"): 123_456_789_012,
            ulong(3): [1, 2],
        }
    return message


@drawn(6)
def test_the_reader_reads_whatever_proton_encodes(module: Any, seed: int) -> None:
    message = rich_message(random.Random(seed))
    data = message.encode()
    reader = module.Reader()
    assert reader.parse(data, 0, len(data))
    assert cut(data, reader, "tag") == message.id
    assert cut(data, reader, "subject").decode() == message.subject
    assert cut(data, reader, "content").decode() == framing.CONTENT_BATCH
    assert cut(data, reader, "body") == message.body
    assert reader.group_sequence == message.group_sequence
    assert reader.received_ns == (123_456_789_012 if message.annotations else 0)


def test_a_message_without_properties_has_none(module: Any) -> None:
    data = b"\x00\x53\x75\xa0\x03abc"
    reader = module.Reader()
    assert reader.parse(data, 0, len(data))
    assert (reader.tag_at, reader.subject_at, reader.content_at) == (-1, -1, -1)
    assert (reader.group_sequence, reader.received_ns) == (-1, 0)
    assert cut(data, reader, "body") == b"abc"


def test_an_empty_property_list_and_a_long_descriptor_are_read(module: Any) -> None:
    data = b"\x00\x53\x73\x45" + b"\x00\x80" + bytes(7) + b"\x75\xa0\x03abc"
    reader = module.Reader()
    assert reader.parse(data, 0, len(data))
    assert cut(data, reader, "body") == b"abc"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x00\x53\x75",
        b"\x00\x53\x75\xa0",
        b"\x00\x53\x75\xa0\x05abc",
        b"\x00\x53\x75\xb0\xff\xff\xff\xffabc",
        b"\x00\x53\x77\xa0\x03abc",  # an amqp-value, no data
        b"\x00\x53\x75\xa1\x03abc",  # data that is a string
        b"\x01\x53\x75\xa0\x03abc",
        b"\x00\xa3\x09amqp:data\xa0\x03abc",
        b"\x00\x53\x73\xc0\x00\x01\x00\x53\x75\xa0\x00",  # a list that cannot hold its count
        b"\x00\x53\x73\xd0\x00\x00\x00\x03\x00\x00\x00\x53\x75\xa0\x00",
        b"\x00\x53\x73\xc0\x02\x05\x40\x00\x53\x75\xa0\x00",  # counts more than it holds
        b"\x00\x53\x73\xd0\x00\x00\x00\x05\xff\xff\xff\xff\x40\x00\x53\x75\xa0\x00",
        b"\x00\x53\x73\xa1\x00\x00\x53\x75\xa0\x00",  # properties that are a string
        b"\x00\x53\x72\x45\x00\x53\x75\xa0\x00",  # annotations that are a list
        b"\x00\x53\x72\xc1\x02\x02\x40\x00\x53\x75\xa0\x00",
        b"\x00\x53\x71" + b"\x00\x40" * 40 + b"\x40",  # nested beyond reason
        b"\x00\x53\x71\x10\x00\x53\x75\xa0\x00",  # a constructor that does not exist
    ],
)
def test_what_is_no_message_is_refused(module: Any, data: bytes) -> None:
    assert parts(module, data) is None


def hostile(chance: random.Random) -> bytes:
    """A valid message with a few bytes changed, dropped, doubled, or its end cut off."""
    message = rich_message(chance)
    if len(message.body) > 300:
        message.body = message.body[:20]
    data = bytearray(message.encode() if chance.random() < 0.8 else written(framing, b"body"))
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(data))
        what = chance.random()
        if what < 0.5:
            data[at] = chance.choice([chance.randrange(256), 0, 0xFF, 0xD0, 0xC1, data[at] ^ 1])
        elif what < 0.7:
            del data[at : at + chance.randrange(1, 9)]
        elif what < 0.85:
            data[at:at] = data[at : at + chance.randrange(1, 9)]
        else:
            del data[max(1, at) :]
        if not data:
            return b""
    return bytes(data)


@drawn(3)
def test_on_mutated_messages_both_twins_agree_and_stay_inside(seed: int) -> None:
    chance = random.Random(seed)
    read = 0
    for _ in range(1000):
        data = hostile(chance)
        # What follows the message must make no difference: no code may look at it.
        results = {
            parts(module, data + tail, 0, len(data))
            for module, tail in ((framing, b""), (INTERPRETED, b""), (framing, b"\xff" * 40))
        }
        assert len(results) == 1, data.hex()
        found = results.pop()
        if found is None:
            continue
        read += 1
        for at, size in zip(found[0:8:2], found[1:8:2], strict=True):
            assert (at == -1 and size == 0) or (at >= 0 and size >= 0 and at + size <= len(data))
    assert read > 100  # the mutations are mild enough to reach the depths


def test_every_truncation_of_a_message_is_refused_or_ends_inside(module: Any) -> None:
    data = rich_message(random.Random(3)).encode()
    for end in range(len(data)):
        found = parts(module, data, 0, end)
        exact = parts(module, data[:end])
        assert found == exact
        if found is not None:
            assert found[6] + found[7] <= end


@given(st.binary(max_size=80))
def test_any_bytes_are_read_alike_by_both_twins(data: bytes) -> None:
    assert parts(framing, data) == parts(INTERPRETED, data)
    assert framing.value_end(data, 0, len(data), 0) == INTERPRETED.value_end(data, 0, len(data), 0)


@given(st.integers(0, 2**64 - 1), st.sampled_from([1, 2, 4, 8]))
def test_numbers_are_written_big_endian(value: int, size: int) -> None:
    for module in TWINS.values():
        data = bytearray(10)
        module.write_uint(data, 1, size, value)
        assert data == b"\0" + (value % 256**size).to_bytes(size, "big") + bytes(9 - size)
        assert module.read_uint(data, 1, size) == value % 256**size
