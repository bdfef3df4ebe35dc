"""Writing FIX messages, and cutting a byte stream into them: what is written is read again."""

import random
from decimal import Decimal
from typing import Any

import pytest

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.fix.dictionary import load_dictionary
from feedhandler.codecs.fix.encode import Fields, encode, field_text
from feedhandler.codecs.fix.fields import FixError, fields
from feedhandler.codecs.fix.reasons import FixReject
from feedhandler.codecs.fix.stream import FixStream
from feedhandler.codecs.prices import Price
from tests.support.fix_messages import sealed
from tests.support.fix_twins import BOTH
from tests.support.twins import either

fix = either(BOTH)

DICTIONARY = load_dictionary("fix50sp2")

WRITTEN: dict[str, tuple[Fields, bytes]] = {
    "text and numbers": ([(35, "0"), (34, 7), (112, b"x")], b"35=0|34=7|112=x|"),
    "flags": ([(35, "0"), (34, 1), (43, True), (97, False)], b"35=0|34=1|43=Y|97=N|"),
    "exact prices": (
        [(35, "X"), (270, Decimal("1.50")), (271, Price(-5, 3)), (44, Decimal("1E+2"))],
        b"35=X|270=1.50|271=-0.005|44=100|",
    ),
    "text beyond ASCII": ([(35, "B"), (58, "ü")], b"35=B|58=\xc3\xbc|"),
    "groups in groups": (
        [(35, "W"), (268, [[(269, "0"), (453, [[(448, "a")], [(448, "b")]])], [(269, "1")]])],
        b"35=W|268=2|269=0|453=2|448=a|448=b|269=1|",
    ),
    "an empty group": ([(35, "W"), (268, [])], b"35=W|268=0|"),
    "data without their length": ([(35, "A"), (96, b"a\x01b")], b"35=A|95=3|96=a\x01b|"),
    "data with a wrong length": ([(35, "A"), (95, 9), (96, b"ab")], b"35=A|95=2|96=ab|"),
    "a length without data": ([(35, "A"), (95, 9), (58, "x")], b"35=A|95=9|58=x|"),
    "a length at the end": ([(35, "A"), (95, 9)], b"35=A|95=9|"),
    "a decoded message": ([(8, "FIXT.1.1"), (9, 5), (35, "0"), (10, "1")], b"35=0|"),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_messages_are_written_with_counts_lengths_and_check_sums(what: str) -> None:
    given, body = WRITTEN[what]
    assert encode(given) == sealed(body)


def test_the_begin_string_is_the_callers_or_the_decoded_messages() -> None:
    assert encode([(35, "0")], b"FIX.4.4") == sealed(b"35=0|", b"FIX.4.4")
    assert encode([(8, b"FIX.4.2"), (35, "0")]) == sealed(b"35=0|", b"FIX.4.2")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ([], "begins with its type"),
        ([(34, 1), (35, "0")], "begins with its type"),
        ([(35, "")], "has no value"),
        ([(35, "0"), (58, "a\x01b")], "has an SOH"),
        ([(35, "0"), (0, "a")], "no tag 0"),
        ([(35, "0"), (-5, "a")], "no tag -5"),
        ([(35, "0"), (58, 1.5)], "cannot be float"),
    ],
)
def test_what_no_message_can_hold_is_refused(given: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        encode(given)


def test_a_value_that_is_refused_leaves_nothing_in_the_message(fix: dict[str, Any]) -> None:
    writer = fix["encode"].MessageWriter(b"FIX.4.4")
    writer.begin(b"X")
    writer.put_number(34, 7)
    for wrong in (b"", b"AB\x01C"):
        with pytest.raises(UsageError):
            writer.put_bytes(55, wrong)
    writer.put_bytes(48, b"ABC")
    writer.finish()
    assert writer.message() == encode([(35, "X"), (34, 7), (48, "ABC")], b"FIX.4.4")


def test_the_writer_writes_the_same_message_again_and_again(fix: dict[str, Any]) -> None:
    writer = fix["encode"].MessageWriter(b"FIX.4.4")
    constant = field_text([(49, "PUB"), (56, "TOPIC")])
    for number in (1, 18_446_744_073_709_551_614):
        writer.begin(b"X")
        writer.put_number(34, number)
        writer.put_fields(constant)
        writer.put_time(52, 1_767_323_045_678_901_234, 9)
        writer.put_bytes(55, b"ABC")
        writer.put_decimal(270, -12_345, 2)
        writer.put_decimal(271, 7, 0)
        writer.put_decimal(44, 5, 3)
        size = writer.finish()
        body = b"35=X|34=%d|49=PUB|56=TOPIC|52=20260102-03:04:05.678901234|55=ABC|" % number
        expected = sealed(body + b"270=-123.45|271=7|44=0.005|", b"FIX.4.4")
        assert writer.message() == expected
        assert size == len(expected)


@pytest.mark.parametrize(
    ("time_ns", "places", "text"),
    [
        (0, 0, b"19700101-00:00:00"),
        (951_868_799_999_999_999, 0, b"20000229-23:59:59"),
        (951_868_799_987_654_321, 3, b"20000229-23:59:59.987"),
        (951_868_800 * 10**9, 6, b"20000301-00:00:00.000000"),
        (4_102_444_799 * 10**9 + 1, 9, b"20991231-23:59:59.000000001"),
    ],
)
def test_times_are_written_to_the_decimal_that_is_wanted(
    fix: dict[str, Any], time_ns: int, places: int, text: bytes
) -> None:
    writer = fix["encode"].MessageWriter()
    writer.begin(b"0")
    writer.put_time(52, time_ns, places)
    writer.finish()
    assert writer.message() == sealed(b"35=0|52=" + text + b"|")


def test_a_writer_refuses_what_cannot_be_read_again(fix: dict[str, Any]) -> None:
    make = fix["encode"].MessageWriter
    for begin, capacity in ((b"FIX" + b"4" * 12, 100), (b"FOX", 100), (b"FIX.4.4", 10)):
        with pytest.raises(UsageError):
            make(begin, capacity)
    writer = make()
    writer.begin(b"0")
    for wrong in (
        lambda: writer.put_bytes(58, b""),
        lambda: writer.put_bytes(58, b"a\x01"),
        lambda: writer.put_decimal(270, 1, 19),
        lambda: writer.put_time(52, -1, 0),
        lambda: writer.put_time(52, 0, 10),
    ):
        with pytest.raises(UsageError):
            wrong()


def test_a_message_that_does_not_fit_is_given_up_and_the_next_one_is_not(
    fix: dict[str, Any],
) -> None:
    writer = fix["encode"].MessageWriter(b"FIX.4.4", 100)
    for put in (
        lambda: writer.put_bytes(58, b"x" * 60),
        lambda: writer.put_fields(b"58=" + b"x" * 80 + b"\x01"),
        lambda: [writer.put_number(34, 1) for _ in range(30)],
        lambda: [writer.put_decimal(34, 1, 1) for _ in range(30)],
        lambda: [writer.put_time(52, 1, 9) for _ in range(3)],
    ):
        writer.begin(b"0")
        put()
        with pytest.raises(UsageError, match="longer than 100 bytes"):
            writer.finish()
    writer.begin(b"0")
    assert writer.finish() == len(writer.message())


def random_fields(source: random.Random, depth: int = 0) -> list[Any]:
    """Fields of users' own tags, and entries of groups within entries."""
    made: list[Any] = []
    for tag in source.sample(range(5_000, 5_100), source.randrange(1, 6)):
        text = bytes(source.randrange(2, 256) for _ in range(source.randrange(1, 30)))
        made.append((tag, text))
    if depth < 3 and source.random() < 0.5:
        made.append((5_200 + depth, [random_fields(source, depth + 1) for _ in range(2)]))
    if source.random() < 0.3:
        made.append((96, bytes(source.randrange(256) for _ in range(source.randrange(1, 9)))))
    return made


def test_what_is_written_is_read_again(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(200):
        given = [(35, "U1"), *random_fields(source)]
        message = encode(given)
        assert encode(fields(message)) == message
        assert b"".join(b"%d=%b\x01" % field for field in fields(message)) == field_text(given)


MESSAGES = [
    sealed(b"35=0|34=1|"),
    sealed(b"35=X|34=2|58=" + b"long" * 400 + b"|"),
    sealed(b"35=A|34=3|95=20|96=10=000|8=FIX.4.4|9=5|"),
    sealed(b"35=0|34=4|", b"FIX.4.4"),
]


def test_a_stream_gives_the_same_messages_however_its_bytes_come(seed: int) -> None:
    source = random.Random(seed)
    data = b"".join(MESSAGES) * 3
    whole, single = FixStream(), FixStream()
    assert whole.receive(data) == MESSAGES * 3
    assert [
        each for at in range(len(data)) for each in single.receive(data[at : at + 1])
    ] == MESSAGES * 3
    for _ in range(50):
        cut, found, at = FixStream(), [], 0
        while at < len(data):
            step = source.choice((1, 2, 7, 50, 3_000))
            found += cut.receive(data[at : at + step])
            at += step
        assert found == MESSAGES * 3
        assert cut.held == 0
    assert whole.held == single.held == 0


def test_a_message_that_comes_byte_by_byte_is_looked_at_as_often_as_a_short_one() -> None:
    looked = []
    for size in (100, 1_000, 10_000):
        stream, message = FixStream(), sealed(b"35=B|34=1|58=" + b"x" * size + b"|")
        for at in range(len(message)):
            stream.receive(message[at : at + 1])
        looked.append(stream.framings)
    assert max(looked) <= min(looked) + 2  # a digit more of BodyLength each
    assert max(looked) < 32


def test_what_is_wrong_in_a_stream_ends_it_once_the_messages_before_are_given() -> None:
    for cut in (10_000, 1):
        stream = FixStream()
        data = MESSAGES[0] + b"8=FIX.4.4\x019=x"
        found = [
            each for at in range(0, len(data), cut) for each in stream.receive(data[at : at + cut])
        ]
        assert found == [MESSAGES[0]]
        assert stream.fault == FixReject.BODY_LENGTH_NOT_NUMBER
        assert stream.fault_at == len(data) - 1
        with pytest.raises(PeerError, match="BodyLength"):
            stream.receive(b"")


def test_a_stream_holds_no_more_than_one_message_of_the_longest_kind() -> None:
    stream = FixStream(100)
    assert stream.receive(b"8=FIX.4.4\x019=500\x01") == []
    assert stream.fault == FixReject.MESSAGE_TOO_LONG


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "NO_MESSAGES"),
        (b"hello", "NO_BEGIN_STRING"),
        (sealed(b"35=0|34=1|") + b"x", "BODY_LENGTH_TOO_SHORT"),
        (sealed(b"35=0|34=1|58=|"), "EMPTY_VALUE"),
        (sealed(b"35=0|34=1|58=a|58=b|"), "INDEX_FULL"),
    ],
)
def test_fields_are_those_of_one_whole_message(data: bytes, reason: str) -> None:
    with pytest.raises(FixError) as caught:
        fields(data, 3)
    assert caught.value.reason == FixReject[reason]
