"""Entries of market data as columns: each with its own instrument, prices exact."""

from typing import Any

import numpy
import pytest

from feedhandler.codecs.fix.dictionary import load_dictionary, read_toml
from feedhandler.codecs.fix.reasons import FixReject
from tests.support.fix_messages import DICTIONARY_HEAD, sealed
from tests.support.fix_twins import BOTH, COMPILED, of_twin
from tests.support.twins import either

fix = either(BOTH)

DICTIONARY = load_dictionary("fix50sp2")
UPDATE = sealed(
    b"35=X|34=18446744073709551614|268=4|279=0|269=0|278=a1|55=ABC|270=101.250|271=1000|"
    b"272=20260102|273=09:30:00.000000001|290=1|"
    b"279=1|269=1|55=A LONGER SYMBOL THAN EIGHT BYTES|48=X1|270=-.5|346=3|1023=2|"
    b"279=2|269=0|278=a1|48=ISIN|270=1234567890123456789|"
    b"279=0|269=2|55=ABC|270=7|453=1|448=ABC|447=D|"
)
BOOK = sealed(b"35=W|34=9|48=ISIN|55=XYZ|454=1|455=other|268=2|269=0|270=1.5|271=2|269=1|270=2|")
STATUS = sealed(b"35=f|34=10|55=XYZ|326=17|")


def columns_of(fix: dict[str, Any], capacity: int = 100) -> Any:
    return fix["entries"].EntryColumns(of_twin(fix, DICTIONARY), capacity)


def decode(columns: Any, data: bytes) -> tuple[int, dict[str, int]]:
    """The bytes that were read, and how many messages had which reason."""
    rejects = numpy.zeros(len(FixReject), numpy.uint64)
    read = columns.decode(data, 0, len(data), memoryview(rejects))
    return read, {FixReject(at).name: int(rejects[at]) for at in numpy.flatnonzero(rejects)}


def test_every_entry_has_its_own_instrument_and_exact_numbers(fix: dict[str, Any]) -> None:
    columns, data = columns_of(fix), UPDATE + STATUS + BOOK
    assert decode(columns, data) == (len(data), {"FINE": 3})
    assert columns.texts(data, "symbol") == [
        b"ABC",
        b"A LONGER SYMBOL THAN EIGHT BYTES",
        b"ISIN",
        b"ABC",
        b"XYZ",
        b"XYZ",
    ]
    found = {name: column.tolist() for name, column in columns.arrays().items()}
    assert found["message"] == [0, 0, 0, 0, 2, 2]
    assert found["sequence"] == [2**64 - 2] * 4 + [9] * 2
    assert bytes(found["action"]) == b"0120\0\0"
    assert bytes(found["kind"]) == b"010201"
    assert found["price_raw"][:2] == [101_250, -5]
    assert found["price_places"] == [3, 1, -1, 0, 1, 0]
    assert columns.texts(data, "price")[2] == b"1234567890123456789"
    assert found["size_raw"] == [1000, 0, 0, 0, 2, 0]
    assert found["size_places"] == [0, -1, -1, -1, 0, -1]
    assert found["time_ns"] == [34_200 * 10**9 + 1] + [-1] * 5
    assert found["date"] == [20_260_102] + [-1] * 5
    assert found["position"] == [1] + [-1] * 5
    assert found["level"] == [-1, 2] + [-1] * 4
    assert found["orders"] == [-1, 3] + [-1] * 4
    assert columns.texts(data, "id") == [b"a1", b"", b"a1", b"", b"", b""]
    assert found["price"][:2] == [101.25, -0.5]
    assert numpy.isnan(found["price"][2])


def test_columns_go_to_arrow_with_nulls_for_what_is_missing() -> None:
    columns = columns_of(COMPILED)
    decode(columns, UPDATE)
    batch = columns.to_arrow(UPDATE).to_pydict()
    assert batch["symbol"][1] == "A LONGER SYMBOL THAN EIGHT BYTES"
    assert batch["action"] == ["0", "1", "2", "0"]
    assert batch["price"] == [101.25, -0.5, None, 7.0]
    assert batch["price_raw"] == [101_250, -5, None, 7]
    assert batch["level"] == [None, 2, None, None]
    assert batch["id"] == ["a1", None, "a1", None]


def test_a_message_whose_entries_have_no_room_is_left_for_the_next_call(
    fix: dict[str, Any],
) -> None:
    columns, data = columns_of(fix, 40), (UPDATE + BOOK) * 20
    at = calls = 0
    symbols: list[bytes] = []
    while at < len(data):
        columns.clear()
        read, _ = decode(columns, data[at:])
        symbols += columns.texts(data[at:], "symbol")
        at += read
        calls += 1
        assert columns.rows <= 40
    assert symbols.count(b"XYZ") == symbols.count(b"ABC") == 40
    assert calls == 4


def test_a_time_or_a_price_that_no_column_can_hold_is_missing(fix: dict[str, Any]) -> None:
    columns = columns_of(fix)
    data = sealed(b"35=X|34=1|268=2|279=0|269=0|55=A|270=0.0000000000000000001|279=0|269=0|271=0|")
    assert decode(columns, data)[1] == {"FINE": 1}
    found = columns.arrays()
    assert found["price_places"].tolist() == [-1, -1]
    assert found["size_places"].tolist() == [-1, 0]
    assert columns.texts(data, "price") == [b"0.0000000000000000001", b""]


def test_a_wrong_message_gives_no_row_and_a_wrong_frame_ends_the_reading(
    fix: dict[str, Any],
) -> None:
    columns = columns_of(fix)
    wrong = sealed(b"35=X|34=1|268=2|279=0|269=0|55=A|")
    assert decode(columns, wrong + BOOK + b"8=FIX.x") == (
        len(wrong + BOOK),
        {"FINE": 1, "TRUNCATED": 1, "GROUP_COUNT_WRONG": 1},
    )
    assert columns.arrays()["message"].tolist() == [1, 1]
    assert columns.decode(BOOK, 1, len(BOOK), memoryview(numpy.zeros(40, numpy.uint64))) == 0


@pytest.mark.parametrize(
    ("message", "symbols"),
    [
        (UPDATE, [b"ABC", b"A LONGER SYMBOL THAN EIGHT BYTES", b"ISIN"]),
        (BOOK, [b"XYZ"]),
        (STATUS, [b"XYZ"]),
        (sealed(b"35=0|34=1|"), []),
        (
            sealed(b"35=V|34=1|262=r|263=1|264=0|267=1|269=0|146=3|55=A|55=B|48=C|55=A|"),
            [b"A", b"B"],
        ),
    ],
)
def test_a_message_reaches_each_of_its_instruments_once(
    fix: dict[str, Any], message: bytes, symbols: list[bytes]
) -> None:
    columns = columns_of(fix)
    index, table, frame = columns.index, columns.table, columns.frame
    read = fix["index"].read_message
    assert read(table, message, 0, len(message), frame, index) == FixReject.FINE
    assert fix["entries"].symbols_of(message, index) == symbols


def test_a_book_without_entries_has_no_rows(fix: dict[str, Any]) -> None:
    columns, data = columns_of(fix), sealed(b"35=W|34=9|55=XYZ|268=0|")
    assert decode(columns, data) == (len(data), {"FINE": 1})
    assert columns.rows == 0


#: A dictionary of a user's own, whose prices and times are any text.
LOOSE = (
    DICTIONARY_HEAD
    + """\
268 = "NoMDEntries NUMINGROUP"
269 = "MDEntryType CHAR"
270 = "MDEntryPx STRING"
271 = "MDEntrySize STRING"
273 = "MDEntryTime STRING"
[messages]
W = "Book: 268(269 270 271 273)"
"""
)


def test_a_text_where_a_number_or_a_time_should_be_has_none(fix: dict[str, Any]) -> None:
    table = of_twin(fix, read_toml(LOOSE, "loose"))
    columns = fix["entries"].EntryColumns(table, 50)
    data = sealed(b"35=W|34=9|268=2|269=0|270=market|271=1,5|273=noon|269=1|270=7|")
    assert decode(columns, data) == (len(data), {"FINE": 1})
    found = {name: column.tolist() for name, column in columns.arrays().items()}
    assert found["price_raw"][1:] == [7]
    assert found["price_places"] == [-1, 0]
    assert found["size_places"] == [-1, -1]
    assert found["time_ns"] == [-1, -1]
    assert columns.texts(data, "price") == [b"market", b"7"]
