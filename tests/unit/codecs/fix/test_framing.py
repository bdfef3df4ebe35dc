"""The framing of FIX messages: every reason, the header's fields, datagrams; both twins alike."""

import random
from typing import Any

import numpy
import pytest

from feedhandler.codecs.fix import framing, values
from feedhandler.codecs.fix.reasons import FixReject
from tests.support.fix_messages import sealed, summed
from tests.support.fix_twins import BOTH, INTERPRETED
from tests.support.twins import either

fix = either(BOTH)

HEADER = b"35=X|34=7|49=PUB|56=TOPIC|52=20260102-03:04:05.678|"
UPDATE = sealed(HEADER + b"268=1|279=0|269=0|55=ABC|270=1.5|")


def read(fix: Any, data: bytes) -> tuple[FixReject, Any]:
    """The answer to the message at the beginning of `data`, and the frame."""
    frame = fix["framing"].Frame()
    return FixReject(fix["framing"].frame_message(data, 0, len(data), frame)), frame


#: What is wrong, the bytes (`|` for SOH), where.
WRONG = {
    "no bytes": (b"", "NO_MESSAGES", 0),
    "nothing but the beginning": (b"8=F", "TRUNCATED", 0),
    "no end of BeginString": (b"8=FIX.4.4", "TRUNCATED", 0),
    "nothing behind BodyLength's tag": (b"8=FIX.4.4|9=", "TRUNCATED", 12),
    "another first field": (b"9=5|8=FIX.4.4|", "NO_BEGIN_STRING", 0),
    "another protocol": (b"8=FOX.4.4|9=5|", "NO_BEGIN_STRING", 0),
    "an endless BeginString": (b"8=FIX" + b"4" * 12, "NO_BEGIN_STRING", 0),
    "another second field": (b"8=FIX.4.4|35=0|", "NO_BODY_LENGTH", 10),
    "a length of letters": (b"8=FIX.4.4|9=5a|35=0|", "BODY_LENGTH_NOT_NUMBER", 12),
    "a negative length": (b"8=FIX.4.4|9=-5|35=0|", "BODY_LENGTH_NOT_NUMBER", 12),
    "an empty length": (b"8=FIX.4.4|9=|35=0|", "BODY_LENGTH_NOT_NUMBER", 12),
    "a length of ten digits": (b"8=FIX.4.4|9=0000000005|", "MESSAGE_TOO_LONG", 12),
    "a length above the maximum": (b"8=FIX.4.4|9=1048576|", "MESSAGE_TOO_LONG", 12),
    "a body of nothing": (summed(b"8=FIX.4.4|9=0|"), "BODY_LENGTH_TOO_SHORT", 12),
    "a length of one too few": (summed(b"8=FIX.4.4|9=9|35=0|34=1|"), "BODY_LENGTH_TOO_SHORT", 24),
    "a length of one too many": (
        summed(b"8=FIX.4.4|9=11|35=0|34=1|") + b"8=FIX",
        "BODY_LENGTH_TOO_LONG",
        25,
    ),
    "a length past the bytes": (b"8=FIX.4.4|9=10|35=0|34=1|10=1", "BODY_LENGTH_BEYOND", 12),
    "no CheckSum": (b"8=FIX.4.4|9=10|35=0|34=1|11=123|", "CHECKSUM_MISSING", 25),
    "a CheckSum of letters": (b"8=FIX.4.4|9=10|35=0|34=1|10=1x3|", "CHECKSUM_NOT_DIGITS", 25),
    "a CheckSum of four digits": (b"8=FIX.4.4|9=10|35=0|34=1|10=1234|", "CHECKSUM_NOT_DIGITS", 25),
    "a CheckSum of two digits": (b"8=FIX.4.4|9=10|35=0|34=1|10=12|8", "CHECKSUM_NOT_DIGITS", 25),
    "another CheckSum": (b"8=FIX.4.4|9=10|35=0|34=1|10=000|", "CHECKSUM_WRONG", 25),
    "a last field that does not end": (summed(b"8=FIX.4.4|9=11|35=0|34=1|5"), "NO_SOH", 26),
    "another third field": (sealed(b"34=1|35=0|"), "NO_MESSAGE_TYPE", 15 + 1),
    "an empty type": (sealed(b"35=|34=1|"), "EMPTY_VALUE", 15),
    "a tag of letters": (sealed(b"35=0|3x=1|"), "TAG_NOT_NUMBER", 21),
    "a tag without a value": (sealed(b"35=0|34|"), "TAG_NOT_NUMBER", 20),
    "no tag": (sealed(b"35=0|=1|"), "TAG_NOT_NUMBER", 20),
    "a negative tag": (sealed(b"35=0|-34=1|"), "TAG_NOT_NUMBER", 21),
    "a tag led by zero": (sealed(b"35=0|034=1|"), "TAG_ZERO_LED", 21),
    "a tag of ten digits": (sealed(b"35=0|1234567890=1|"), "TAG_TOO_LONG", 21),
    "an empty value": (sealed(b"35=0|34=1|49=|"), "EMPTY_VALUE", 26),
    "CheckSum inside": (sealed(b"35=0|34=1|10=000|58=x|"), "FIELD_ORDER", 26),
    "CheckSum in the header": (sealed(b"35=0|10=0|34=1|"), "FIELD_ORDER", 21),
    "BeginString again": (sealed(b"35=0|8=FIX|34=1|"), "DUPLICATE_HEADER_FIELD", 21),
    "MsgType again": (sealed(b"35=0|35=1|34=1|"), "DUPLICATE_HEADER_FIELD", 21),
    "MsgSeqNum again": (sealed(b"35=0|34=1|34=1|"), "DUPLICATE_HEADER_FIELD", 26),
    "a data field that is too long": (
        sealed(b"35=0|34=1|90=9|91=abc|"),
        "DATA_LENGTH_WRONG",
        31,
    ),
    "a data field that is too short": (
        sealed(b"35=0|34=1|90=2|91=abc|"),
        "DATA_LENGTH_WRONG",
        31,
    ),
    "a data field of nothing": (sealed(b"35=0|34=1|90=0|91=|"), "EMPTY_VALUE", 31),
    "no data field": (sealed(b"35=0|34=1|90=2|49=ab|"), "DATA_LENGTH_WRONG", 31),
    "a length of data of letters": (sealed(b"35=0|34=1|90=z|91=a|"), "DATA_LENGTH_WRONG", 26),
    "a length of data as the last field": (sealed(b"35=0|34=1|90=1|"), "DATA_LENGTH_WRONG", 26),
    "a length of data of ten digits": (
        sealed(b"35=0|34=1|90=0000000001|91=a|"),
        "DATA_LENGTH_WRONG",
        26,
    ),
    "a PossDupFlag of two": (sealed(b"35=0|34=1|43=YY|"), "FLAG_WRONG", 26),
    "no MsgSeqNum": (sealed(b"35=0|49=PUB|"), "SEQUENCE_MISSING", 28),
    "MsgSeqNum behind the header": (sealed(b"35=0|112=x|34=1|"), "SEQUENCE_MISSING", 21),
    "MsgSeqNum of letters": (sealed(b"35=0|34=1x|"), "SEQUENCE_NOT_NUMBER", 21),
    "a negative MsgSeqNum": (sealed(b"35=0|34=-1|"), "SEQUENCE_NOT_NUMBER", 21),
    "MsgSeqNum of 21 digits": (sealed(b"35=0|34=" + b"9" * 21 + b"|"), "SEQUENCE_TOO_LARGE", 21),
    "MsgSeqNum without a successor": (
        sealed(b"35=0|34=18446744073709551615|"),
        "SEQUENCE_TOO_LARGE",
        21,
    ),
    "21 digits and a letter": (
        sealed(b"35=0|34=" + b"9" * 21 + b"x|"),
        "SEQUENCE_NOT_NUMBER",
        21,
    ),
    "a snapshot's number of letters": (sealed(b"35=W|34=1|369=x|"), "SEQUENCE_NOT_NUMBER", 26),
    "another PossDupFlag": (sealed(b"35=0|34=1|43=y|"), "FLAG_WRONG", 26),
}


@pytest.mark.parametrize("what", WRONG)
def test_every_wrong_message_has_its_reason_and_its_offset(fix: Any, what: str) -> None:
    data, reason, fault_at = WRONG[what]
    data = data.replace(b"|", b"\x01")
    answer, frame = read(fix, data)
    assert answer == FixReject[reason]
    if data:
        assert frame.fault_at == fault_at


def test_the_header_is_read_and_where_it_ends(fix: Any) -> None:
    answer, frame = read(fix, b"" + UPDATE + b"rest")
    assert answer == FixReject.FINE
    assert (frame.begin, frame.end) == (0, len(UPDATE))
    assert frame.sequence == 7
    assert frame.message_type == ord("X")
    assert frame.flags == framing.HAS_SEQUENCE
    assert UPDATE[frame.body : frame.body + 5] == b"35=X\x01"
    assert UPDATE[frame.body_end : frame.end].startswith(b"10=")
    assert UPDATE[frame.header_end :].startswith(b"268=1\x01")
    assert UPDATE[frame.sender_at : frame.sender_at + frame.sender_size] == b"PUB"
    assert UPDATE[frame.target_at : frame.target_at + frame.target_size] == b"TOPIC"
    assert UPDATE[frame.time_at : frame.time_at + frame.time_size] == b"20260102-03:04:05.678"


@pytest.mark.parametrize(
    ("body", "expected"),
    {
        "the four fields alone": (b"35=0|34=1|", {"sequence": 1, "message_type": 0x30}),
        "a type of two bytes": (b"35=AE|34=1|", {"message_type": 0x4145}),
        "a longer type": (b"35=UABC|34=1|", {"message_type": framing.LONG_TYPE, "type_size": 4}),
        "the largest number": (b"35=0|34=18446744073709551614|", {"sequence": 2**64 - 2}),
        "leading zeros": (b"35=0|34=" + b"0" * 30 + b"12|", {"sequence": 12}),
        "a duplicate": (b"35=0|34=1|43=Y|", {"flags": 3}),
        "no duplicate": (b"35=0|43=N|34=1|", {"flags": 1}),
        "a beacon without a number": (b"35=UB|52=20260102-03:04:05|", {"flags": 0, "sequence": 0}),
        "a snapshot's number": (
            b"35=W|34=3|369=18446744073709551614|",
            {"flags": 5, "last_processed": 2**64 - 2},
        ),
        "SOH in data of the header": (b"35=0|90=5|91=a|34=|34=3|", {"sequence": 3}),
        "hops that repeat": (
            b"35=0|34=3|627=2|628=a|629=20260102-00:00:00|628=b|",
            {"sequence": 3},
        ),
    }.values(),
)
def test_headers_of_many_kinds_are_read(fix: Any, body: bytes, expected: dict[str, int]) -> None:
    answer, frame = read(fix, sealed(body))
    assert answer == FixReject.FINE
    assert {name: getattr(frame, name) for name in expected} == expected


#: Fields of the header that come once; 90 and 212 with the data that they count.
HEADER_TAGS = (
    *(43, 49, 50, 52, 56, 57, 97, 115, 116, 122, 128, 129, 142, 143, 144, 145, 347, 369, 370, 627),
    *(1128, 1129, 1156),
)


@pytest.mark.parametrize("tag", [*HEADER_TAGS, 90, 212, 0])
def test_each_field_of_the_header_is_one_and_comes_once(fix: dict[str, Any], tag: int) -> None:
    field = b"%d=%s|" % (tag, b"Y" if tag in (43, 97) else b"7")
    if tag in (90, 212):
        field = b"%d=1|%d=x|" % (tag, tag + 1)
    if tag == 0:
        field = b"628=a|628=b|629=c|629=d|630=1|630=2|"
    answer, frame = read(fix, sealed(b"35=0|" + field + b"34=5|112=x|"))
    assert answer == FixReject.FINE
    assert frame.sequence == 5
    answer, _ = read(fix, sealed(b"35=0|" + field * 2 + b"34=5|"))
    assert answer == (FixReject.DUPLICATE_HEADER_FIELD if tag else FixReject.FINE)


def test_body_length_may_have_leading_zeros_and_the_maximum_is_the_readers(fix: Any) -> None:
    message = summed(b"8=FIX.4.4|9=00010|35=0|34=1|")
    assert read(fix, message)[0] == FixReject.FINE
    for room, reason in (
        (len(message), FixReject.FINE),
        (len(message) - 1, FixReject.MESSAGE_TOO_LONG),
    ):
        frame = fix["framing"].Frame(room)
        assert fix["framing"].frame_message(message, 0, len(message), frame) == reason


def test_a_check_sum_is_right_for_messages_of_every_length(fix: Any) -> None:
    text = bytes(range(32, 256)) * 12
    for size in (*range(1, 80), 255, 256, 257, 1_023, 1_024, 1_025, 2_600):
        message = sealed(b"35=B|34=1|58=" + text[:size] + b"|")
        assert read(fix, message)[0] == FixReject.FINE, size
        wrong = bytearray(message)
        wrong[-10 - size // 2] ^= 0x40
        assert read(fix, bytes(wrong))[0] == FixReject.CHECKSUM_WRONG, size


HEARTBEAT = sealed(b"35=0|34=9|52=20260102-03:04:05|")
UPDATES = [sealed(b"35=X|34=%d|52=20260102-03:04:05|268=0|" % number) for number in range(6, 10)]
DATAGRAMS: dict[str, tuple[list[bytes], dict[str, object]]] = {
    "one update": (
        UPDATES[:1],
        {"messages": 1, "applications": 1, "sequence": 6, "next_sequence": 7},
    ),
    "three in a row": (
        UPDATES[:3],
        {"applications": 3, "sequence": 6, "next_sequence": 9, "consecutive": True},
    ),
    "one left out": (UPDATES[::2], {"consecutive": False, "sequence": 6, "next_sequence": 9}),
    "a heartbeat alone": (
        [HEARTBEAT],
        {"applications": 0, "sequence": 9, "next_sequence": 9, "messages": 1},
    ),
    "a heartbeat behind updates": (
        [*UPDATES[:3], HEARTBEAT],
        {"messages": 4, "applications": 3, "consecutive": True, "admin_sequence": 9},
    ),
    "a beacon has no number": (
        [HEARTBEAT, sealed(b"35=UB|52=20260102-03:04:06|")],
        {"messages": 2, "applications": 0, "next_sequence": 9},
    ),
    "a gap fill": (
        [sealed(b"35=4|34=6|43=Y|123=Y|36=20|")],
        {
            "gap_fill": True,
            "new_sequence": 20,
        },
    ),
    "a reset": ([sealed(b"35=4|34=6|36=1|")], {"gap_fill": False, "new_sequence": 1}),
    "a logon that begins anew": (
        [sealed(b"35=A|34=1|98=0|108=1|141=Y|")],
        {"reset_numbers": True, "sequence": 1},
    ),
    "a logout": (
        [sealed(b"35=5|34=8|58=bye|")],
        {"applications": 0, "next_sequence": 8},
    ),
    "a request": (
        [sealed(b"35=2|34=8|7=1|16=2|")],
        {"applications": 0},
    ),
    "its time": (UPDATES[:1], {"send_time_ns": 1_767_323_045 * 10**9}),
    "no time": ([sealed(b"35=X|34=1|")], {"send_time_ns": values.NO_TIME}),
}


@pytest.mark.parametrize("what", DATAGRAMS)
def test_a_datagram_says_which_numbers_it_carries_and_what_the_publisher_says(
    fix: Any, what: str
) -> None:
    messages, expected = DATAGRAMS[what]
    data = b"##" + b"".join(messages) + b"##"
    datagram = fix["datagram"].Datagram()
    assert (
        fix["datagram"].walk_datagram(data, 2, len(data) - 4, fix["framing"].Frame(), datagram)
        == FixReject.FINE
    )
    assert {name: getattr(datagram, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("data", "reason", "fault_at"),
    [
        (b"", "NO_MESSAGES", 0),
        (UPDATES[0] + b"\x00", "NO_BEGIN_STRING", len(UPDATES[0])),
        (UPDATES[0] + UPDATES[1][:-1], "BODY_LENGTH_BEYOND", len(UPDATES[0]) + 13),
        (sealed(b"35=4|34=1|123=Y|"), "NEW_SEQUENCE_MISSING", 26),
        (sealed(b"35=4|34=1|123=1|36=4|"), "FLAG_WRONG", 26),
        (sealed(b"35=4|34=1|36=x|"), "SEQUENCE_NOT_NUMBER", 26),
        (sealed(b"35=A|34=1|141=1|"), "FLAG_WRONG", 26),
        (sealed(b"35=A|34=1|95=3|96=a|"), "DATA_LENGTH_WRONG", 31),
    ],
)
def test_a_datagram_with_one_wrong_message_is_wrong(
    fix: Any, data: bytes, reason: str, fault_at: int
) -> None:
    datagram = fix["datagram"].Datagram()
    answer = fix["datagram"].walk_datagram(data, 0, len(data), fix["framing"].Frame(), datagram)
    assert FixReject(answer) == FixReject[reason]
    assert datagram.fault_at == fault_at


def test_nothing_outside_the_given_bytes_is_asked_for(fix: Any) -> None:
    frame, datagram = fix["framing"].Frame(), fix["datagram"].Datagram()
    size = len(UPDATE)
    for start, length in ((-1, size), (1, size), (0, size + 1), (0, 0), (0, -1)):
        assert fix["framing"].frame_message(UPDATE, start, length, frame) == FixReject.NO_MESSAGES
        assert fix["framing"].frame_envelope(UPDATE, start, length, frame) == FixReject.NO_MESSAGES
        assert (
            fix["datagram"].walk_datagram(UPDATE, start, length, frame, datagram)
            == FixReject.NO_MESSAGES
        )


def test_many_messages_are_framed_in_one_call_up_to_the_first_wrong_one(fix: Any) -> None:
    data = b"".join(UPDATES)
    begins, numbers = numpy.zeros(8, numpy.uint32), numpy.zeros(8, numpy.uint64)
    frame = fix["framing"].Frame()
    count = fix["framing"].frame_all(
        data, 0, len(data), frame, memoryview(begins), memoryview(numbers)
    )
    assert count == 4
    assert numbers[:4].tolist() == [6, 7, 8, 9]
    assert [data[at : at + 2] for at in begins[:4]] == [b"8="] * 4
    cut = len(data) - 1
    assert (
        fix["framing"].frame_all(data, 0, cut, frame, memoryview(begins), memoryview(numbers)) == 3
    )
    few = memoryview(begins)[:2]
    assert fix["framing"].frame_all(data, 0, len(data), frame, few, memoryview(numbers)) == 2
    assert fix["framing"].frame_all(data, 0, len(data) + 1, frame, few, memoryview(numbers)) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"19700101-00:00:00", 0),
        (b"20000229-23:59:59", 951_868_799 * 10**9),
        (b"20240229-00:00:00.5", 1_709_164_800 * 10**9 + 500_000_000),
        (b"20260102-03:04:05.678901234", 1_767_323_045 * 10**9 + 678_901_234),
        (b"20260102-03:04:05.678901234567", 1_767_323_045 * 10**9 + 678_901_234),
        (b"20161231-23:59:60", 1_483_228_800 * 10**9),
        (b"20230229-00:00:00", -1),
        (b"21000229-00:00:00", -1),
        (b"20260431-00:00:00", -1),
        (b"20261301-00:00:00", -1),
        (b"20260102-24:00:00", -1),
        (b"20260102-23:60:00", -1),
        (b"20260102-23:00:61", -1),
        (b"19691231-00:00:00", -1),
        (b"29990101-00:00:00", -1),
        (b"20260102-03:04:05.", -1),
        (b"20260102-03:04:05,5", -1),
        (b"20260102-03:04:05.x", -1),
        (b"20260102 03:04:05", -1),
        (b"2026010a-03:04:05", -1),
        (b"22630101-00:00:00", -1),
        (b"20260102-03:04", -1),
    ],
)
def test_a_sending_time_is_read_to_the_nanosecond(fix: Any, text: bytes, expected: int) -> None:
    message = sealed(b"35=UB|52=" + text + b"|")
    datagram = fix["datagram"].Datagram()
    assert (
        fix["datagram"].walk_datagram(message, 0, len(message), fix["framing"].Frame(), datagram)
        == 0
    )
    assert datagram.send_time_ns == expected


SAID = (
    "messages",
    "applications",
    "sequence",
    "next_sequence",
    "consecutive",
    "admin_sequence",
    "new_sequence",
    "gap_fill",
    "reset_numbers",
    "send_time_ns",
)


def test_both_twins_say_the_same_of_changed_messages(seed: int) -> None:
    source = random.Random(seed)
    whole = [UPDATE, HEARTBEAT, *(b"".join(messages) for messages, _ in DATAGRAMS.values())]
    for _ in range(2_000):
        data = bytearray(source.choice(whole))
        for _ in range(source.randrange(3)):
            data[source.randrange(len(data))] = source.choice(b"0195=\x01NY|ABX\x00\xff")
        answers = []
        for fix in BOTH.values():
            frame, datagram = fix["framing"].Frame(), fix["datagram"].Datagram()
            verdict = fix["datagram"].walk_datagram(bytes(data), 0, len(data), frame, datagram)
            said = [getattr(datagram, name) for name in SAID]
            answers.append((verdict, datagram.fault_at, said))
        assert answers[0] == answers[1], bytes(data)


def test_a_datagram_of_nothing_has_no_messages() -> None:
    walk = INTERPRETED["datagram"].walk_datagram_at
    frame, datagram = INTERPRETED["framing"].Frame(), INTERPRETED["datagram"].Datagram()
    assert walk(b"", 0, frame, datagram) == FixReject.NO_MESSAGES


#: What a frame says of a message, but for `bytes_max` and the field that was read last.
FRAMED = (
    "begin", "end", "length_at", "body", "body_end", "header_end", "sequence", "last_processed",
    "message_type", "flags", "type_size", "sequence_size", "sender_size", "target_size",
    "time_size", "fault_at",
)  # fmt: skip
#: Values whose offsets are given where their sizes are not 0.
OF_VALUES = ("type", "sequence", "sender", "target", "time")
#: Bodies whose first field decides whether a header is like another.
BODIES = [b"268=1|279=0|", b"268=2|279=0|", b"269=0|", b"268=|", b"95=3|96=a\x01b|", b"26=8|", b""]


def a_header(rng: random.Random) -> list[bytes]:
    """The fields of a header behind MsgType, in some order."""
    fields = [b"34=%d|" % rng.choice([9, 10, 11, 99, 100]), b"49=PUB|", b"52=12:00:00|"]
    fields += rng.sample([b"56=T|", b"50=9|", b"43=Y|", b"369=7|", b"90=2|91=\x01x|"], 2)
    rng.shuffle(fields)
    return fields[rng.choice([0, 0, 0, 1]) :]


def like_it(rng: random.Random, fields: list[bytes]) -> list[bytes]:
    """The fields with another number and time, and sometimes with something else that differs."""
    made = []
    for field in fields:
        if field.startswith(b"34="):
            field = b"34=%b|" % rng.choice([b"9", b"10", b"12345", b"", b"x", b"0", b"9" * 21])
        elif field.startswith(b"52="):
            field = b"52=%b|" % rng.choice(
                [b"12:00:01", b"12:00:02", b"12:00:00.5", b"", b"a|58=b"]
            )
        elif rng.random() < 0.05:
            field = rng.choice([b"", b"49=PUC|", b"57=D|", b"49=PUB2|"])
        made.append(field)
    return made


def test_a_message_that_is_like_the_one_before_is_framed_as_if_it_were_alone(
    fix: Any, seed: int
) -> None:
    rng, alike = random.Random(seed), 0
    begins, numbers = numpy.zeros(2, numpy.uint32), numpy.zeros(2, numpy.uint64)
    columns = memoryview(begins), memoryview(numbers)
    for _ in range(3000 if fix is not INTERPRETED else 800):
        fields, body = a_header(rng), rng.choice(BODIES)
        one = sealed(b"35=X|" + b"".join(fields) + body)
        if read(fix, one)[0]:
            continue
        kind = rng.choice([b"X"] * 9 + [b"W"])
        body = rng.choice([body, body, rng.choice(BODIES)])
        other = bytearray(sealed(b"35=%b|" % kind + b"".join(like_it(rng, fields)) + body))
        if rng.random() < 0.2:
            other[rng.randrange(len(other))] = rng.choice(b"\x01=09X")
            other[-7:] = b""
            other = bytearray(summed(bytes(other)))
        data = one + bytes(other)
        expected = fix["framing"].Frame()
        verdict = fix["framing"].frame_message(data, len(one), len(other), expected)
        frame = fix["framing"].Frame()
        count = fix["framing"].frame_all(data, 0, len(data), frame, *columns)
        assert count == 2 - bool(verdict), data
        assert frame.fault_at == expected.fault_at, data
        if verdict:
            continue
        alike += 1
        assert [getattr(frame, each) for each in FRAMED] == [
            getattr(expected, each) for each in FRAMED
        ], data
        assert list(numbers) == [read(fix, one)[1].sequence, expected.sequence]
        for name in OF_VALUES:
            if getattr(expected, f"{name}_size"):
                assert getattr(frame, f"{name}_at") == getattr(expected, f"{name}_at"), data
    assert alike > 100
