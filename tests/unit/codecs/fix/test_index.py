"""The index of a FIX message: groups in groups, data fields, and a reason for whatever is wrong."""

import random
from typing import Any

import numpy
import pytest

from feedhandler.codecs.fix.dictionary import Dictionary, load_dictionary, read_toml
from feedhandler.codecs.fix.encode import encode
from feedhandler.codecs.fix.reasons import FixReject
from tests.support.fix_messages import DICTIONARY_HEAD, sealed
from tests.support.fix_twins import BOTH, INTERPRETED, of_twin
from tests.support.twins import either

fix = either(BOTH)

DICTIONARY = load_dictionary("fix50sp2")
HEADER = b"35=%s|34=7|49=PUB|52=20260102-03:04:05.678|"
X = HEADER % b"X"
W = HEADER % b"W"
LOGON = HEADER % b"A"


def index_of(fix: dict[str, Any], body: bytes, **said: Any) -> tuple[FixReject, Any]:
    """The answer to the message around `body`, and its index."""
    message = sealed(body)
    table = of_twin(fix, DICTIONARY)
    for name, value in said.items():
        setattr(table, name, value)
    index = fix["index"].FieldIndex(table)
    frame = fix["framing"].Frame()
    return FixReject(
        fix["index"].read_message(table, message, 0, len(message), frame, index)
    ), index


#: What is wrong: the body, the reason, the tag that it is reported of.
WRONG = {
    "an unknown type": (b"35=ZZ|34=1|", "UNKNOWN_TYPE", 35),
    "a long type": (b"35=UXYZ|34=1|", "UNKNOWN_TYPE", 35),
    "an unknown tag": (W + b"55=A|4999=1|268=0|", "UNKNOWN_TAG", 4999),
    "a tag of another message": (W + b"55=A|112=x|268=0|", "TAG_NOT_OF_MESSAGE", 112),
    "a field of an entry outside": (W + b"55=A|270=1|268=0|", "TAG_NOT_OF_MESSAGE", 270),
    "fewer entries than named": (X + b"268=2|279=0|269=0|", "GROUP_COUNT_WRONG", 268),
    "more entries than named": (X + b"268=1|279=0|269=0|279=0|", "GROUP_COUNT_WRONG", 268),
    "entries of a group of none": (X + b"268=0|279=0|269=0|", "TAG_NOT_OF_MESSAGE", 279),
    "no entries at all": (X + b"268=2|815=1|", "GROUP_COUNT_WRONG", 268),
    "a group within, too short": (
        W + b"55=A|268=1|269=0|453=2|448=x|447=D|270=1|",
        "GROUP_COUNT_WRONG",
        453,
    ),
    "a first entry without its delimiter": (X + b"268=1|269=0|279=0|", "DELIMITER_MISSING", 269),
    "a second one without it": (X + b"268=2|279=0|269=0|269=1|", "DELIMITER_MISSING", 269),
    "a tag twice": (W + b"55=A|55=B|268=0|", "REPEATED_TAG", 55),
    "a tag twice in an entry": (X + b"268=1|279=0|269=0|269=1|", "REPEATED_TAG", 269),
    "a header field behind": (W + b"55=A|268=0|56=T|", "FIELD_ORDER", 56),
    "a body field behind the trailer": (W + b"55=A|93=1|89=x|268=0|", "FIELD_ORDER", 268),
    "a required field missing": (W + b"55=A|", "REQUIRED_MISSING", 268),
    "a price of letters": (X + b"268=1|279=0|269=0|270=1x|", "VALUE_TYPE_WRONG", 270),
    "a price with two points": (X + b"268=1|279=0|269=0|270=1.2.3|", "VALUE_TYPE_WRONG", 270),
    "a price of a point": (X + b"268=1|279=0|269=0|270=.|", "VALUE_TYPE_WRONG", 270),
    "a price with an exponent": (X + b"268=1|279=0|269=0|270=1e5|", "VALUE_TYPE_WRONG", 270),
    "a count of letters": (X + b"268=a|", "VALUE_TYPE_WRONG", 268),
    "a count of ten digits": (X + b"268=0000000001|279=0|", "VALUE_TYPE_WRONG", 268),
    "a position of a sign": (W + b"55=A|268=1|269=0|290=-|", "VALUE_TYPE_WRONG", 290),
    "a character of two": (X + b"268=1|279=00|", "VALUE_TYPE_WRONG", 279),
    "a flag of T": (LOGON + b"98=0|141=N|464=T|", "VALUE_TYPE_WRONG", 464),
    "a day that is none": (X + b"268=1|279=0|269=0|272=20260230|", "VALUE_TYPE_WRONG", 272),
    "a time that is none": (X + b"268=1|279=0|269=0|273=24:00:00|", "VALUE_TYPE_WRONG", 273),
    "a moment that is none": (b"35=W|34=1|52=2026|55=A|268=0|", "VALUE_TYPE_WRONG", 52),
    "a month that is none": (W + b"55=A|200=202613|268=0|", "VALUE_TYPE_WRONG", 200),
    "a currency in small letters": (X + b"268=1|279=0|269=0|15=eur|", "VALUE_TYPE_WRONG", 15),
    "a country of three": (W + b"55=A|470=GBR|268=0|", "VALUE_TYPE_WRONG", 470),
    "characters without spaces": (W + b"55=A|291=12|268=0|", "VALUE_TYPE_WRONG", 291),
    "an action that is none": (X + b"268=1|279=9|269=0|", "VALUE_NOT_LISTED", 279),
    "a book type that is none": (W + b"1021=12|55=A|268=0|", "VALUE_NOT_LISTED", 1021),
    "one character of several": (X + b"268=1|279=0|269=0|286=1 7|", "VALUE_NOT_LISTED", 286),
    "a data field of another length": (LOGON + b"95=3|96=ab|", "DATA_LENGTH_WRONG", 96),
    "a day too short": (X + b"268=1|279=0|269=0|272=2026|", "VALUE_TYPE_WRONG", 272),
    "a time without colons": (X + b"268=1|279=0|269=0|273=09.30.00|", "VALUE_TYPE_WRONG", 273),
    "a time of a minute": (X + b"268=1|279=0|269=0|273=09:30|", "VALUE_TYPE_WRONG", 273),
    "a month of five": (W + b"55=A|200=20261|268=0|", "VALUE_TYPE_WRONG", 200),
    "a week that is none": (W + b"55=A|200=202612w6|268=0|", "VALUE_TYPE_WRONG", 200),
    "a month's day that is none": (W + b"55=A|200=20260231|268=0|", "VALUE_TYPE_WRONG", 200),
    "a tag led by zero": (W + b"055=A|268=0|", "TAG_ZERO_LED", None),
    "an empty value": (W + b"55=|268=0|", "EMPTY_VALUE", 55),
}


@pytest.mark.parametrize("what", WRONG)
def test_every_wrong_message_has_its_reason_and_its_tag(fix: dict[str, Any], what: str) -> None:
    body, reason, tag = WRONG[what]
    answer, index = index_of(fix, body)
    assert answer == FixReject[reason]
    assert tag in (None, index.fault_tag)


#: What is right: the body, and for each of its entries (group, parent, number, fields).
RIGHT: dict[str, tuple[bytes, list[tuple[int, int, int, int]]]] = {
    "no group": (W + b"55=A|268=0|", []),
    "two entries": (
        X + b"268=2|279=0|269=0|55=A|270=-1.50|271=3|279=2|269=1|278=7|",
        [(268, 0, 0, 5), (268, 0, 1, 3)],
    ),
    "groups three deep": (
        W + b"55=A|268=2|269=0|453=2|448=a|447=D|452=1|802=2|523=q|803=4|523=r|448=b|"
        b"270=1|269=1|270=2|",
        [
            (268, 0, 0, 11),
            (453, 1, 0, 7),
            (802, 2, 0, 2),
            (802, 2, 1, 1),
            (453, 1, 1, 1),
            (268, 0, 1, 2),
        ],
    ),
    "two groups side by side": (
        HEADER % b"V" + b"262=r|263=1|264=0|267=2|269=0|269=1|146=2|55=A|48=1|55=B|",
        [(267, 0, 0, 1), (267, 0, 1, 1), (146, 0, 0, 2), (146, 0, 1, 1)],
    ),
    "the same tag within and without": (
        HEADER % b"W" + b"55=A|454=1|455=A|456=8|268=1|269=0|271=1|",
        [(454, 0, 0, 2), (268, 0, 0, 2)],
    ),
    "values of all types": (
        W
        + b"1021=3|55=A|200=202612w3|541=20261231|470=GB|291=1 2|268=1|269=h|270=.5|15=EUR|271=5.|"
        b"272=20240229|273=23:59:60.123456|290=-12|286=0 5|",
        [(268, 0, 0, 8)],
    ),
    "SOH in data": (LOGON + b"98=0|108=30|95=5|96=a|10=|464=N|", []),
    "data that look like a trailer": (LOGON + b"95=9|96=x|10=123||58=y|", []),
    "a user's own field in an entry": (X + b"268=1|279=0|5001=z|269=0|", [(268, 0, 0, 3)]),
    "hops in the header": (
        b"35=0|34=1|627=2|628=a|629=20260102-03:04:05|628=b|112=x|",
        [(627, 0, 0, 2), (627, 0, 1, 1)],
    ),
}


@pytest.mark.parametrize("what", RIGHT)
def test_entries_are_listed_with_their_groups_and_the_entries_around_them(
    fix: dict[str, Any], what: str
) -> None:
    body, expected = RIGHT[what]
    answer, index = index_of(fix, body)
    assert answer == FixReject.FINE
    groups = {name: column.tolist()[1:] for name, column in index.groups().items()}
    sizes = [end - first for first, end in zip(groups["firsts"], groups["ends"], strict=True)]
    found = zip(groups["group_tags"], groups["parents"], groups["numbers"], sizes, strict=True)
    assert list(found) == expected
    message = sealed(body)
    written = b"".join(b"%d=%s\x01" % field for field in index.fields(message))
    assert written == message
    assert encode(index.tree(message)) == message
    lists = [value for _, value in index.tree(message) if isinstance(value, list)]
    assert sum(map(len, lists)) == sum(parent == 0 for _, parent, _, _ in expected)


def test_a_users_tag_before_the_first_entry_is_of_what_the_group_is_in(
    fix: dict[str, Any],
) -> None:
    table = of_twin(fix, DICTIONARY)
    index, frame = fix["index"].FieldIndex(table), fix["framing"].Frame()
    many = sealed(W + b"55=A|268=3|269=0|453=1|5001=x|448=a|447=D|269=1|269=2|")
    one = sealed(W + b"55=A|268=1|5001=x|269=0|453=1|448=b|447=D|270=1|")
    for message in (many, one):
        answer = fix["index"].read_message(table, message, 0, len(message), frame, index)
        assert answer == FixReject.FINE
    found = list(zip(index.tags[: index.count], index.entries, strict=False))
    assert found[7:] == [
        (268, 0), (5001, 0), (269, 1), (453, 1), (448, 2), (447, 2), (270, 1), (10, 0)
    ]  # fmt: skip
    tree = dict(index.tree(one))
    assert tree[5001] == b"x"
    assert tree[268] == [
        [(269, b"0"), (453, [[(448, b"b"), (447, b"D")]]), (270, b"1")],
    ]


def test_a_count_that_lies_is_reported_with_both_numbers(fix: dict[str, Any]) -> None:
    _, index = index_of(fix, X + b"268=3|279=0|269=0|279=1|")
    assert (index.declared, index.found) == (3, 2)
    _, index = index_of(fix, X + b"268=1|279=0|269=0|279=1|")
    assert (index.declared, index.found) == (1, 2)


def test_unknown_tags_pass_where_that_is_wanted_and_users_own_are_refused_where_not(
    fix: dict[str, Any],
) -> None:
    assert index_of(fix, W + b"55=A|4999=1|268=0|", pass_unknown_tags=True)[0] == FixReject.FINE
    answer, index = index_of(fix, W + b"55=A|5001=1|268=0|", user_tags_from=2**31)
    assert answer == FixReject.UNKNOWN_TAG
    assert index.fault_tag == 5001


def test_an_index_that_is_full_refuses_the_message_and_takes_the_next(fix: dict[str, Any]) -> None:
    table = of_twin(fix, DICTIONARY)
    long = sealed(X + b"268=9|" + b"279=0|269=0|" * 9)
    short = sealed(X + b"268=1|279=0|269=0|")
    frame = fix["framing"].Frame()
    read = fix["index"].read_message
    for capacity, reason in (
        (1, "INDEX_FULL"),
        (2, "INDEX_FULL"),
        (20, "INDEX_FULL"),
        (26, "FINE"),
    ):
        index = fix["index"].FieldIndex(table, capacity)
        assert FixReject(read(table, long, 0, len(long), frame, index)) == FixReject[reason]
        if capacity > 2:
            assert read(table, short, 0, len(short), frame, index) == FixReject.FINE
            assert index.count == 10


def test_groups_deeper_than_the_index_follows_are_refused(fix: dict[str, Any]) -> None:
    table = fix["index"].FixTable(13, 10)
    for slot, tag in enumerate((8, 9, 10, 34, 35, *range(101, 108)), 1):
        table.set_field(tag, slot, 5 if tag > 100 else 0, 0)
    table.set_type(b"Z", 0)
    # A group that is a member of itself: as deep as a message says.
    for scope in (0, 1):
        for tag in (8, 9, 10, 34, 35):
            if scope == 0:
                table.add_member(0, tag, -1)
        table.add_member(scope, 101, 1)
        table.set_scope(scope, 101)
    frame, index = fix["framing"].Frame(), fix["index"].FieldIndex(table)
    for depth, reason in ((8, FixReject.GROUP_COUNT_WRONG), (9, FixReject.NESTING_TOO_DEEP)):
        message = sealed(b"35=Z|34=1|" + b"101=1|" * depth)
        assert fix["index"].read_message(table, message, 0, len(message), frame, index) == reason


def test_many_messages_are_counted_by_reason(fix: dict[str, Any]) -> None:
    bodies = [W + b"55=A|268=0|", W + b"55=A|", X + b"268=1|279=0|269=0|"]
    data = b"".join(map(sealed, bodies)) + b"8=FIX"
    table = of_twin(fix, DICTIONARY)
    rejects = numpy.zeros(len(FixReject), numpy.uint64)
    frame, index = fix["framing"].Frame(), fix["index"].FieldIndex(table)
    read = fix["index"].count_messages(table, data, 0, len(data), frame, index, memoryview(rejects))
    assert read == len(data) - 5
    assert {FixReject(at).name: int(rejects[at]) for at in numpy.flatnonzero(rejects)} == {
        "FINE": 2,
        "TRUNCATED": 1,
        "REQUIRED_MISSING": 1,
    }


def test_fields_are_listed_without_a_dictionary_too(fix: dict[str, Any]) -> None:
    message = sealed(b"35=D|34=1|9999=x|9999=y|95=3|96=a|b|58=z|")
    table = of_twin(fix, DICTIONARY)
    frame, index = fix["framing"].Frame(), fix["index"].FieldIndex(table)
    assert fix["framing"].frame_message(message, 0, len(message), frame) == FixReject.FINE
    assert fix["index"].list_fields(message, frame, index) == FixReject.FINE
    assert b"".join(b"%d=%s\x01" % field for field in index.fields(message)) == message


def test_both_twins_say_the_same_of_changed_messages(seed: int) -> None:
    source = random.Random(seed)
    bodies = [body for body, _ in RIGHT.values()] + [body for body, _, _ in WRONG.values()]
    readers = []
    for fix in BOTH.values():
        table = of_twin(fix, DICTIONARY)
        readers.append((fix, table, fix["framing"].Frame(), fix["index"].FieldIndex(table)))
    for _ in range(1_000):
        body = bytearray(source.choice(bodies))
        for _ in range(source.randrange(4)):
            body[source.randrange(5, len(body))] = source.choice(b"012=|NY|AX. -\xff")
        message = sealed(bytes(body))
        answers = []
        for fix, table, frame, index in readers:
            verdict = fix["index"].read_message(table, message, 0, len(message), frame, index)
            arrays = {name: column.tolist() for name, column in index.arrays().items()}
            said = [index.fault_at, index.fault_tag, index.declared, index.found]
            answers.append((verdict, arrays, said if verdict else index.groups()["ends"].tolist()))
        assert answers[0] == answers[1], bytes(body)


def test_what_was_seen_is_forgotten_when_its_stamps_run_out() -> None:
    fix = INTERPRETED
    table = of_twin(fix, DICTIONARY)
    frame, index = fix["framing"].Frame(), fix["index"].FieldIndex(table)
    message = sealed(X + b"268=1|279=0|269=0|")
    for stamp in (0, 0xFFFF_0000, 0xFFFF_0001):
        index.stamp = stamp
        assert fix["index"].read_message(table, message, 0, len(message), frame, index) == 0
    assert index.stamp == 2


def test_a_table_is_made_for_either_twin() -> None:
    dictionary: Dictionary = load_dictionary("fix44")
    assert type(dictionary.table).__module__ == "feedhandler.codecs.fix.index"
    assert of_twin(INTERPRETED, dictionary).slots == dictionary.table.slots


class Counted:
    """Bytes that count how many of them are read."""

    def __init__(self, data: bytes, reads: list[int]) -> None:
        self.data = data
        self.reads = reads

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Counted(self.data[at], self.reads)
        self.reads[0] += at < len(self.data)
        return self.data[at]


def long_messages(size: int) -> dict[str, bytes]:
    """Messages of about `size` bytes, of the kinds that would make a careless reader look twice."""
    right = sealed(X + b"268=%d|" % (size // 24) + b"279=0|269=0|58=abcdefgh|" * (size // 24))
    one = sealed(W + b"55=A|58=" + b"x" * size + b"|268=0|")
    # Where CheckSum is not at its offset it is looked for: once, over what looks nearly like it.
    near = b"\x0110=00" * (size // 6)
    return {
        "many entries": right,
        "one long value": one,
        "a length that lies": b"8=FIX.4.4\x019=%d\x01" % (size // 2) + near,
        "a number of many digits": sealed(b"35=0|34=" + b"0" * size + b"1|"),
        "a number that is too large": sealed(b"35=0|34=" + b"9" * size + b"|"),
        "a tag that does not end": sealed(b"35=0|34=1|" + b"1" * size + b"|"),
    }


@pytest.mark.parametrize("what", long_messages(100))
def test_twice_as_long_a_message_takes_twice_the_reads(what: str) -> None:
    fix = INTERPRETED
    table = of_twin(fix, DICTIONARY)
    frame, index = fix["framing"].Frame(1 << 20), fix["index"].FieldIndex(table)
    reads = []
    for size in (2_400, 4_800, 9_600):
        message, count = long_messages(size)[what], [0]
        data = Counted(message, count)
        verdict = fix["framing"].frame_at(data, len(message), 0, frame)
        if verdict == FixReject.FINE:
            fix["index"].index_message_at(table, data, frame, index)
        reads.append(count[0])
    assert reads[0] > 100
    assert reads[2] - reads[1] < 2.2 * (reads[1] - reads[0]) + 200


def test_data_fields_of_the_dictionarys_own_follow_their_lengths(fix: dict[str, Any]) -> None:
    text = (
        DICTIONARY_HEAD
        + """\
5500 = "PictureLen LENGTH >5501"
5501 = "Picture DATA"
[messages]
P = "Picture: 5500 5501"
PIX = "LongType: 5500"
"""
    )
    table = of_twin(fix, read_toml(text, "here"))
    frame, index = fix["framing"].Frame(), fix["index"].FieldIndex(table)
    for body, reason in (
        (b"5500=3|5501=a\x01b|", FixReject.FINE),
        (b"5500=2|5501=a\x01b|", FixReject.DATA_LENGTH_WRONG),
        (b"5500=x|5501=a|", FixReject.VALUE_TYPE_WRONG),
        (b"5500=0000000001|5501=a|", FixReject.DATA_LENGTH_WRONG),
    ):
        message = sealed(b"35=P|34=1|" + body)
        assert fix["index"].read_message(table, message, 0, len(message), frame, index) == reason


def test_nothing_outside_the_given_bytes_is_asked_for(fix: dict[str, Any]) -> None:
    table, message = of_twin(fix, DICTIONARY), sealed(W + b"55=A|268=0|")
    frame, index = fix["framing"].Frame(), fix["index"].FieldIndex(table)
    module, rejects = fix["index"], memoryview(numpy.zeros(len(FixReject), numpy.uint64))
    size = len(message)
    for start, length in ((-1, size), (1, size), (0, 0)):
        said = module.read_message(table, message, start, length, frame, index)
        assert said == FixReject.NO_MESSAGES
        assert module.count_messages(table, message, start, length, frame, index, rejects) == 0
    assert module.count_messages(table, message, 0, size, frame, index, rejects) == size
    # The frame of one message, and the bytes of another: shorter, or without the SOH at its end.
    for other in (b"", message[:-1], b"x" * size):
        assert module.index_message(table, other, frame, index) == FixReject.NO_MESSAGES
        assert module.list_fields(other, frame, index) == FixReject.NO_MESSAGES
    unread = fix["framing"].Frame()
    assert module.index_message(table, message, unread, index) == FixReject.NO_MESSAGES


def test_a_table_has_its_bounds(fix: dict[str, Any]) -> None:
    table = fix["index"].FixTable(2, 1)
    table.set_field(35, 1, 0, 0)
    with pytest.raises(ValueError, match="scopes"):
        table.add_member(0, 35, 65_001)
    for _ in range(16_384):
        table.add_required(0, 35)
    with pytest.raises(ValueError, match="required"):
        table.add_required(0, 35)


def test_entries_that_find_no_room_refuse_the_message(fix: dict[str, Any]) -> None:
    table = of_twin(fix, DICTIONARY)
    message = sealed(b"35=X|34=1|268=4|" + b"279=0|" * 4)
    frame = fix["framing"].Frame()
    reasons = set()
    for capacity in range(1, 12):
        index = fix["index"].FieldIndex(table, capacity)
        verdict = fix["index"].read_message(table, message, 0, len(message), frame, index)
        reasons.add(FixReject(verdict))
        assert (verdict == FixReject.FINE) == (capacity >= 10)
    assert reasons == {FixReject.FINE, FixReject.INDEX_FULL}
