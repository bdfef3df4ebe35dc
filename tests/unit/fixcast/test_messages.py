"""Headers and administrative messages as bytes (`feedhandler/fixcast/messages.py`)."""

import pytest

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.framing import Frame
from feedhandler.codecs.fix.reasons import FixReject
from feedhandler.fixcast.messages import RUN_MESSAGES, Cutter, Header, read_datagram
from feedhandler.fixcast.values import NUMBER_MAX, Kind, Message

FULL = Header(b"FIXT.1.1", b"PUB", b"EQ1")
LEAST = Header(has_epoch=False)


def message(text: str, begin_string: str = "FIX.4.4") -> bytes:
    """A whole message, written with | for SOH."""
    return envelope(begin_string.encode(), text.replace("|", "\x01").encode())


def shown(data: bytes) -> str:
    """A message as text, without BodyLength and CheckSum."""
    fields = data.decode().replace("\x01", "|").split("|")
    return "|".join(field for field in fields[:-1] if not field.startswith(("9=", "10=")))


GIVEN = message("35=X|49=SOMEBODY|56=ELSE|34=77|52=20261124-10:00:00|268=1|279=0|270=1.5|")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            FULL,
            "8=FIXT.1.1|35=X|34=5|50=9|49=PUB|56=EQ1|52=20261124-10:00:00|268=1|279=0|270=1.5",
        ),
        (LEAST, "8=FIXT.1.1|35=X|34=5|52=20261124-10:00:00|268=1|279=0|270=1.5"),
        (Header(b"FIX.4.4", has_epoch=False, target=b"EQ1"),
         "8=FIX.4.4|35=X|34=5|56=EQ1|52=20261124-10:00:00|268=1|279=0|270=1.5"),
    ],
)  # fmt: skip
def test_a_message_gets_the_channels_header_and_keeps_its_other_fields(
    header: Header, expected: str
) -> None:
    assert shown(header.application(GIVEN, 5, 9)) == expected


def test_the_least_header_has_four_fields() -> None:
    given = message("35=X|268=0|")
    assert shown(LEAST.application(given, 1, 9)) == "8=FIXT.1.1|35=X|34=1|268=0"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (Message(Kind.HEARTBEAT, 7, epoch=9), "8=FIXT.1.1|35=0|34=7|50=9|49=PUB|56=EQ1"),
        (
            Message(Kind.LOGON, 1, epoch=9),
            "8=FIXT.1.1|35=A|34=1|50=9|49=PUB|56=EQ1|98=0|108=2|141=Y|1137=9",
        ),
        (
            Message(Kind.LOGON, 7, epoch=9),
            "8=FIXT.1.1|35=A|34=7|50=9|49=PUB|56=EQ1|98=0|108=2|1137=9",
        ),
        (Message(Kind.LOGOUT, 7, epoch=9), "8=FIXT.1.1|35=5|34=7|50=9|49=PUB|56=EQ1"),
        (
            Message(Kind.GAP_FILL, 7, b"", 12, 9),
            "8=FIXT.1.1|35=4|34=7|50=9|49=PUB|56=EQ1|123=Y|36=12",
        ),
        (Message(Kind.BEACON, 0, epoch=9), "8=FIXT.1.1|35=UB|49=PUB|56=EQ1"),
    ],
)
def test_administrative_messages_are_written_and_read(said: Message, text: str) -> None:
    data = FULL.administrative(said, 1_500_000_000)
    assert shown(data) == text
    expected = said._replace(body=data, topic=b"EQ1")
    if said.kind is Kind.BEACON:
        expected = said._replace(body=data, epoch=0, topic=b"EQ1")
    assert read_datagram(data, Frame()) == ([expected], FixReject.FINE)


def test_numbers_of_20_digits_are_written_and_read() -> None:
    data = FULL.application(GIVEN, NUMBER_MAX, NUMBER_MAX)
    (found,), _ = read_datagram(data, Frame())
    assert (found.number, found.epoch) == (NUMBER_MAX, NUMBER_MAX)


def test_a_repeated_message_says_so_and_changes_nothing_else() -> None:
    data = FULL.application(GIVEN, 5, 9)
    again = FULL.repeated(data)
    assert shown(again) == shown(data).replace("|34=5", "|43=Y|34=5")
    (found,), _ = read_datagram(again, Frame())
    assert (found.number, found.poss_dup) == (5, True)
    assert FULL.application(again, 5, 9) == data
    assert FULL.application(GIVEN, 5, 9, poss_dup=True) == again


def test_a_datagram_is_read_up_to_what_is_wrong() -> None:
    good = FULL.application(GIVEN, 5, 9)
    found, fault = read_datagram(good + good[:-2] + b"9\x01", Frame())
    assert [each.number for each in found] == [5]
    assert fault is FixReject.CHECKSUM_WRONG
    assert read_datagram(b"", Frame()) == ([], FixReject.NO_MESSAGES)
    assert read_datagram(message("35=4|34=5|123=Y|"), Frame())[1] is FixReject.NEW_SEQUENCE_MISSING


@pytest.mark.parametrize("text", ["35=1|34=5|112=x|", "35=2|34=5|7=1|16=0|", "35=3|34=5|45=1|"])
def test_the_sessions_other_messages_take_no_number(text: str) -> None:
    good = FULL.application(GIVEN, 5, 9)
    found, fault = read_datagram(message(text) + good + message(text), Frame())
    assert ([each.body for each in found], fault) == ([good], FixReject.FINE)


def cut(data: bytes, size: int) -> tuple[list[bytes], int]:
    """The messages of what comes in pieces of a size, and what is left."""
    cutter, found = Cutter(), []
    for at in range(0, len(data), size):
        found += cutter.cut(data[at : at + size])
    return found, cutter.held


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_messages_are_cut_however_they_come(size: int) -> None:
    one, two = GIVEN, message("35=W|55=IBM|")
    assert cut(one + two, size) == ([one, two], 0)
    assert cut(b"\n" + one + b"\n" + two + b"\r\n", size) == ([one, two], 0)
    assert cut(one + two[:-3], size) == ([one], len(two) - 3)
    assert cut(b"", size) == ([], 0)


@pytest.mark.parametrize("size", [1000, 10**6])
def test_many_messages_are_cut_with_numbers_or_without(size: int) -> None:
    one, two = GIVEN, message("35=W|55=IBM|")
    many = [one, one, two, *[one] * (2 * RUN_MESSAGES + 7), two, two, one]
    assert cut(b"".join(many), size) == (many, 0)
    assert cut(b"\n".join(many) + two[:9], size) == (many, 9)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"rubbish", "byte 0: the message does not begin with BeginString"),
        (GIVEN + b"\x01", f"byte {len(GIVEN)}"),
        (GIVEN + GIVEN.replace(b"270=", b"271="), "CheckSum"),
    ],
)
def test_what_is_no_message_is_refused_with_its_offset(data: bytes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        cut(data, 1000)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (message("35=0|34=1|"), "administrative"),
        (GIVEN + GIVEN, "give whole messages"),
        (GIVEN[:-1], "BodyLength"),
        (message("35=X|34=1|90=3|91=a\x01b|268=0|"), "data fields"),
    ],
)
def test_what_a_channel_cannot_carry_is_refused(given: bytes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        FULL.application(given, 1, 1)


@pytest.mark.parametrize(
    ("begin_string", "sender"), [(b"FIX\x01", b""), (b"HTTP", b""), (b"FIX.4.4", b"a\x01")]
)
def test_a_header_that_would_break_messages_is_refused(begin_string: bytes, sender: bytes) -> None:
    with pytest.raises(ConfigError):
        Header(begin_string, sender)


def test_a_logon_before_fixt_says_no_application_version() -> None:
    said = Message(Kind.LOGON, 7, epoch=9)
    text = shown(Header(b"FIX.4.4", has_epoch=False).administrative(said, 10**9))
    assert text == "8=FIX.4.4|35=A|34=7|98=0|108=1"
