"""Sections that a queue reads in a message, and writes before it, against proton's own encoding."""

import random
import uuid

import proton
import pytest

from feedhandler.amqp.durable.keyed_sections import with_reason
from feedhandler.amqp.durable.sections import (
    Look,
    Request,
    head_of,
    id_bytes,
    look,
    read_request,
    shown,
    write_reply,
)
from feedhandler.amqp.durable.values import (
    SectionError,
    encode,
    sections,
)

BARE = {"subject": "orders", "properties": {"symbol": "CHA"}, "body": b"8=FIX.4.3"}


class Message(proton.Message):
    """Encoded as the bytes that a link brings."""

    def encode(self) -> bytes:
        return bytes(super().encode())


def message(**fields: object) -> Message:
    return Message(**{**BARE, **fields})


def decoded(data: bytes) -> proton.Message:
    found = proton.Message()
    found.decode(data)
    return found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("ORD1", b"sORD1"),
        ("ü" * 200, b"s" + ("ü" * 200).encode()),
        (7, b"u" + bytes(7) + b"\x07"),
        (2**40, b"u" + (2**40).to_bytes(8, "big")),
        (b"ORD1", b"bORD1"),
        (uuid.UUID(int=5), b"g" + uuid.UUID(int=5).bytes),
        (None, b""),
    ],
)
def test_the_message_id_is_found_whatever_its_type(value: object, found: bytes) -> None:
    assert look(message(id=value).encode()).message_id == found


def test_a_message_is_passed_on_from_behind_its_header_and_delivery_annotations() -> None:
    plain = message(id="a").encode()
    sent = message(id="a", durable=True, priority=7, ttl=2.5, delivery_count=3)
    sent.instructions = {"x": 1}
    data = sent.encode()
    found = look(data)
    assert data[found.passed_on :] == plain[look(plain).passed_on :]
    again = decoded(head_of(found, False, 4) + data[found.passed_on :])
    assert (again.priority, again.ttl, again.durable) == (7, 2.5, True)
    assert (again.first_acquirer, again.delivery_count) == (False, 4)
    assert (again.id, again.subject, again.body) == ("a", "orders", b"8=FIX.4.3")
    assert again.instructions is None


@pytest.mark.parametrize(("first", "count"), [(True, 0), (False, 0), (False, 255), (True, 9)])
def test_the_header_says_how_often_a_message_was_tried(first: bool, count: int) -> None:
    data = message().encode()
    found = decoded(head_of(look(data), first, count) + data[look(data).passed_on :])
    assert (found.first_acquirer, found.delivery_count, found.durable) == (first, count, True)


def test_a_header_with_more_failures_than_a_byte_holds() -> None:
    prior = look(message(priority=6).encode())
    found = decoded(head_of(prior, False, 300) + b"\x00\x53\x77\x40")
    assert (found.delivery_count, found.priority) == (300, 6)
    assert decoded(head_of(Look(), False, 300) + b"\x00\x53\x77\x40").delivery_count == 255


def test_sections_may_be_named_instead_of_numbered() -> None:
    value = b"\x40"
    name = b"amqp:amqp-value:*"
    data = b"\x00\xa3" + bytes([len(name)]) + name + value
    assert [each[0] for each in sections(data)] == [0x77]
    wide = b"\x00\x80" + (0x77).to_bytes(8, "big") + value
    assert [each[0] for each in sections(wide)] == [0x77]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"8=FIX.4.3",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x77",
        b"\x00\x53\x77\xb0\xff\xff\xff\xff",
        b"\x00\x53\x77\x10",
        b"\x00\x53\x79\x40",
        b"\x00\x53\x28\x45",
        b"\x00\x40\x77\x40",
        b"\x00\x53\x73\x40",
        b"\x00\x53\x73\xc0\x03\x05\x40\x40",
        b"\x00\x53\x73\xc0\x02\x05\x40\x00\x53\x77\x40",
        b"\x00\x53\x73\xc0\x04\x01\xa1\x01\xff",
        b"\x00\x53\x77\x40\x00\x53\x73\x45",
        b"\x00\x53\x77\x40\x00\x53\x77\x40",
        b"\x00" * 50,
    ],
)
def test_bytes_that_are_no_message_are_shown_as_such(data: bytes) -> None:
    with pytest.raises(SectionError):
        look(data)


def test_several_data_sections_are_one_message() -> None:
    assert look(2 * b"\x00\x53\x75\xa0\x01x").passed_on == 0
    assert look(b"\x00\x53\x70\x45").passed_on == 4


def test_no_damaged_message_does_harm(seed: int) -> None:
    draw = random.Random(seed)
    good = message(id="a", reply_to="r", correlation_id=uuid.uuid4(), priority=3).encode()
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        data = data[: draw.randrange(len(data) + 1)]
        for reader in (look, read_request):
            try:
                reader(bytes(data))
            except SectionError:
                pass
            except Exception as error:
                raise AssertionError(f"seed {seed}: {bytes(data)!r}") from error


def test_a_request_is_read_with_its_arguments() -> None:
    arguments = {
        "operation": "cancel", "id": 7, "negative": -3, "wait": True, "none": None, "text": "x",
        "small": proton.ubyte(3), "big": proton.ulong(2**60), "uuid": uuid.UUID(int=9), "real": 1.5,
        "binary": b"b", "symbol": proton.symbol("s"), "no": False, "when": proton.timestamp(5),
        "long": proton.int32(-9), "map": {"a": [1, 2]}, "char": proton.char("c"), "zero": 0,
    }  # fmt: skip
    sent = Message(reply_to="me", correlation_id="c", properties=arguments)
    found = read_request(sent.encode())
    assert found.reply_to == "me"
    assert found.arguments.pop("char") is None
    del arguments["char"]
    assert found.arguments == arguments


def test_application_properties_that_are_no_map_are_refused() -> None:
    with pytest.raises(SectionError):
        read_request(b"\x00\x53\x74\x45")


@pytest.mark.parametrize("correlation", ["c1", 77, uuid.UUID(int=3), b"c"])
def test_a_reply_goes_back_with_the_requests_correlation_id(correlation: object) -> None:
    for asked in (
        Message(reply_to="me", correlation_id=correlation, id="not this"),
        Message(reply_to="me", id=correlation),
    ):
        body = {"depth": 3, "name": "orders", "parts": [1, -1, 2.5, None, True, b"x" * 300],
                "id": uuid.UUID(int=1), "no": False}  # fmt: skip
        data = write_reply(read_request(asked.encode()), {"status-code": 200, "answer": "ü"}, body)
        found = decoded(data)
        assert found.correlation_id == correlation
        assert (found.address, found.properties) == ("me", {"status-code": 200, "answer": "ü"})
        assert found.body == body


def test_a_request_without_anything_is_one() -> None:
    assert read_request(b"\x00\x53\x77\x40") == Request()
    assert encode([]) == b"\xd0" + (4).to_bytes(4, "big") + bytes(4)


def test_a_dead_messages_annotations_are_its_producers_and_where_it_died() -> None:
    given = {
        proton.symbol("x-opt-when"): proton.timestamp(1700),
        proton.symbol("x-opt-tries"): proton.ubyte(7),
        proton.symbol("x-opt-legs"): proton.Array(proton.UNDESCRIBED, proton.Data.INT, 1, 2),
        proton.symbol("x-opt-dead-queue"): "another",
    }
    sent = message(annotations=given, durable=True)
    for count in (1, 2):  # one that dies again says where it died last
        data = with_reason(sent.encode(), "orders", f"failed {count} times")
        died = {"x-opt-dead-queue": "orders", "x-opt-dead-reason": f"failed {count} times"}
        found = decoded(data)
        assert found.annotations == {**given, **died}
        assert type(found.annotations["x-opt-when"]) is proton.timestamp
        assert type(found.annotations["x-opt-tries"]) is proton.ubyte
        assert (found.body, found.properties) == (sent.body, sent.properties)
        sent.annotations = found.annotations
    bare = decoded(with_reason(message().encode(), "orders", "rejected"))
    assert bare.annotations == {"x-opt-dead-queue": "orders", "x-opt-dead-reason": "rejected"}
    assert with_reason(b"no message", "orders", "rejected") == b"no message"


@pytest.mark.parametrize("body", ["c1 03 01 a3 00", "c1 03 03 40 40 40", "c0 03 02 40 40"])
def test_a_dead_message_whose_annotations_are_no_map_stays_as_it_is(body: str) -> None:
    data = b"\0\x53\x72" + bytes.fromhex(body)
    assert with_reason(data, "orders", "rejected") == data


@pytest.mark.parametrize("value", [1.5, True, -1, 1 << 64, [1], None])
def test_what_is_no_message_id_has_no_bytes(value: object) -> None:
    assert id_bytes(value) == b""


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (message(id="ORD1"), ("ORD1", b"8=FIX.4.3")),
        (Message(id=7, body="text"), ("7", b"text")),
        (Message(body={"a": 1}), ("", b"{'a': 1}")),
        (Message(id=b"\xff", body=None), ("\N{REPLACEMENT CHARACTER}", b"")),
    ],
)
def test_a_message_is_shown_by_its_id_and_body(sent: Message, expected: tuple[str, bytes]) -> None:
    assert shown(sent.encode()) == expected


def test_properties_without_fields_show_no_id() -> None:
    assert shown(b"\x00\x53\x73\x45" + 2 * b"\x00\x53\x75\xa0\x01x") == ("", b"xx")


def test_a_truth_value_may_be_a_byte() -> None:
    found = read_request(b"\x00\x53\x74\xc1\x09\x02\xa1\x04wait\x56\x01")
    assert found.arguments == {"wait": True}
