"""Every reason to reject a FIX message has bytes that bring it about (`codecs/fix/reasons.py`)."""

from types import ModuleType

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.dictionary import load_dictionary, read_toml
from feedhandler.codecs.fix.reasons import REJECT_TEXT, FixReject
from tests.support.fix_messages import DICTIONARY_HEAD, sealed, summed
from tests.support.fix_twins import BOTH, of_twin
from tests.support.twins import either

fix = either(BOTH)

DICTIONARY = load_dictionary("fix50sp2")
W = b"35=W|34=1|55=A|"
DEEP = b"35=W|34=1|55=A|268=1|269=0|"

#: By reason: bytes of a message, or of a datagram; `|` stands for SOH.
TABLE = {
    FixReject.FINE: sealed(W + b"268=0|"),
    FixReject.TRUNCATED: b"8=FIX.4.4|9=1",
    FixReject.NO_BEGIN_STRING: b"9=5|8=FIX.4.4|",
    FixReject.NO_BODY_LENGTH: b"8=FIX.4.4|35=0|",
    FixReject.BODY_LENGTH_NOT_NUMBER: b"8=FIX.4.4|9=5a|35=0|",
    FixReject.BODY_LENGTH_TOO_SHORT: summed(b"8=FIX.4.4|9=9|35=0|34=1|"),
    FixReject.BODY_LENGTH_TOO_LONG: summed(b"8=FIX.4.4|9=11|35=0|34=1|") + b"8=FIX",
    FixReject.BODY_LENGTH_BEYOND: b"8=FIX.4.4|9=10|35=0|34=1|10=1",
    FixReject.MESSAGE_TOO_LONG: b"8=FIX.4.4|9=1048576|35=0|",
    FixReject.CHECKSUM_MISSING: b"8=FIX.4.4|9=10|35=0|34=1|11=123|",
    FixReject.CHECKSUM_NOT_DIGITS: b"8=FIX.4.4|9=10|35=0|34=1|10=1x3|",
    FixReject.CHECKSUM_WRONG: b"8=FIX.4.4|9=10|35=0|34=1|10=000|",
    FixReject.NO_SOH: summed(b"8=FIX.4.4|9=11|35=0|34=1|5"),
    FixReject.NO_MESSAGE_TYPE: sealed(b"34=1|35=0|"),
    FixReject.TAG_NOT_NUMBER: sealed(b"35=0|3x=1|"),
    FixReject.TAG_ZERO_LED: sealed(b"35=0|034=1|"),
    FixReject.TAG_TOO_LONG: sealed(b"35=0|1234567890=1|"),
    FixReject.EMPTY_VALUE: sealed(b"35=0|34=|"),
    FixReject.FIELD_ORDER: sealed(W + b"268=0|56=T|"),
    FixReject.DUPLICATE_HEADER_FIELD: sealed(b"35=0|34=1|34=1|"),
    FixReject.DATA_LENGTH_WRONG: sealed(b"35=0|34=1|90=9|91=abc|"),
    FixReject.SEQUENCE_MISSING: sealed(b"35=0|49=PUB|"),
    FixReject.SEQUENCE_NOT_NUMBER: sealed(b"35=0|34=1x|"),
    FixReject.SEQUENCE_TOO_LARGE: sealed(b"35=0|34=18446744073709551615|"),
    FixReject.FLAG_WRONG: sealed(b"35=0|34=1|43=y|"),
    FixReject.NEW_SEQUENCE_MISSING: sealed(b"35=4|34=1|123=Y|"),
    FixReject.NO_MESSAGES: b"",
    FixReject.UNKNOWN_TYPE: sealed(b"35=ZZ|34=1|"),
    FixReject.UNKNOWN_TAG: sealed(W + b"4999=1|268=0|"),
    FixReject.TAG_NOT_OF_MESSAGE: sealed(W + b"112=x|268=0|"),
    FixReject.GROUP_COUNT_WRONG: sealed(W + b"268=2|269=0|"),
    FixReject.DELIMITER_MISSING: sealed(W + b"268=1|270=1|269=0|"),
    FixReject.REPEATED_TAG: sealed(W + b"55=B|268=0|"),
    FixReject.VALUE_TYPE_WRONG: sealed(DEEP + b"270=1x|"),
    FixReject.VALUE_NOT_LISTED: sealed(W + b"1021=7|268=0|"),
    FixReject.REQUIRED_MISSING: sealed(W),
    FixReject.NESTING_TOO_DEEP: sealed(
        b"35=Z|34=1|" + b"".join(b"%d=1|" % tag for tag in range(101, 110)) + b"110=x|"
    ),
    FixReject.INDEX_FULL: sealed(W + b"268=300|" + b"269=0|" * 300),
}  # fmt: skip
#: What only the walk over a datagram finds.
OF_DATAGRAMS = (FixReject.NEW_SEQUENCE_MISSING, FixReject.NO_MESSAGES)
#: A dictionary whose groups nest nine deep: each count is the delimiter of the group around it.
COUNTS = range(101, 110)
NESTED = f"""{DICTIONARY_HEAD}110 = "Text STRING"
{"".join(f'{tag} = "No{tag} NUMINGROUP"{chr(10)}' for tag in COUNTS)}
[messages]
Z = "Nested: {"(".join(map(str, COUNTS))}(110{")" * len(COUNTS)}"
"""


DEEPEST = read_toml(NESTED, "nested")


def test_the_table_has_every_reason() -> None:
    assert set(TABLE) == set(FixReject) == set(REJECT_TEXT)


@pytest.mark.parametrize("reason", FixReject)
def test_every_reason_has_bytes_that_bring_it_about(
    fix: dict[str, ModuleType], reason: FixReject
) -> None:
    data = TABLE[reason].replace(b"|", b"\x01")
    dictionary = DEEPEST if reason is FixReject.NESTING_TOO_DEEP else DICTIONARY
    frame = fix["framing"].Frame()
    if reason in OF_DATAGRAMS:
        datagram = fix["datagram"].Datagram()
        assert fix["datagram"].walk_datagram(data, 0, len(data), frame, datagram) == reason
        return
    table = of_twin(fix, dictionary)
    index = fix["index"].FieldIndex(table, 200)
    answer = fix["index"].read_message(table, data, 0, len(data), frame, index)
    assert FixReject(answer) is reason


@pytest.mark.parametrize("capacity", [0, -1])
def test_an_index_without_room_is_refused(fix: dict[str, ModuleType], capacity: int) -> None:
    with pytest.raises(UsageError, match=f"an index with room for {capacity} fields") as error:
        fix["index"].FieldIndex(of_twin(fix, DICTIONARY), capacity)
    assert error.value.hint == "1 or more"
