"""`feedhandler fix check`: every field by name, and exactly what is wrong."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix import explain
from feedhandler.codecs.fix.dictionary import load_dictionary
from feedhandler.codecs.fix.explain import messages
from feedhandler.ops import fix
from feedhandler.terminal.console import ExitCode
from tests.support.fix_messages import sealed, summed
from tests.support.fix_twins import INTERPRETED

DICTIONARY = load_dictionary("fix50sp2")
BOOK = sealed(b"35=W|34=1|55=A|268=1|269=0|453=1|448=x|447=D|270=1.5|")
HEAD = b"35=W|34=1|55=A|"

#: A wrong message, and how it is reported.
FAULTS = {
    "a wrong CheckSum": (
        BOOK[:-4] + b"999\x01",
        "byte 69, field 10 (CheckSum): CheckSum (10) is not the sum of the message's bytes;"
        " expected 021, found '10=999'",
    ),
    "a length too short": (
        summed(b"8=FIX.4.4|9=8|35=0|34=1|"),
        "byte 24, field 9 (BodyLength): BodyLength (9) ends before the message does;"
        " expected 10, found",
    ),
    "a length beyond": (
        b"8=FIX.4.4\x019=90\x0135=0\x0134=1\x0110=000\x01",
        "expected at most 10, found '90'",
    ),
    "no beginning": (b"hello", "byte 0, field 8 (BeginString): the message does not begin"),
    "a count that lies": (
        sealed(HEAD + b"268=2|269=0|"),
        "field 268 (NoMDEntries): a repeating group has not the number of entries it names;"
        " expected 2 entries, found 1",
    ),
    "more entries than named": (
        sealed(HEAD + b"268=1|269=0|269=1|"),
        "expected 1 entries, found 2 or more",
    ),
    "a value of another type": (
        sealed(HEAD + b"268=1|269=0|270=1x|"),
        "field 270 (MDEntryPx): a value is not of its field's type; expected a decimal number,"
        " found '270=1x'",
    ),
    "a value that is not listed": (
        sealed(HEAD + b"1021=7|268=0|"),
        "expected one of 1 2 3, found '1021=7'",
    ),
    "a missing field": (
        sealed(HEAD),
        "field 268 (NoMDEntries): a field that the message must have is missing;"
        " expected NoMDEntries",
    ),
    "a missing number": (sealed(b"35=0|112=x|"), "field 34 (MsgSeqNum): MsgSeqNum (34) is not in"),
    "a flag": (sealed(b"35=0|34=1|43=1|"), "field 43 (PossDupFlag): a flag (43, 123, 141)"),
    "an unknown tag": (sealed(HEAD + b"4999=1|"), "field 4999 (4999): the dictionary does not"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_wrong_is_reported_with_its_offset_what_is_expected_and_what_is_found(
    what: str,
) -> None:
    data, reason = FAULTS[what]
    (found,) = messages(data, DICTIONARY)
    assert found.fault is not None
    assert reason in str(found.fault)


def test_fields_have_names_and_the_depth_of_their_groups() -> None:
    (found,) = messages(BOOK, DICTIONARY)
    assert (found.code, found.name, found.fault) == ("W", "MarketDataSnapshotFullRefresh", None)
    depths = {field.name: field.depth for field in found.fields}
    assert (depths["NoMDEntries"], depths["MDEntryType"], depths["PartyID"]) == (0, 1, 2)
    assert depths["MDEntryPx"] == 1


def test_reading_goes_on_behind_a_wrong_message_and_over_line_ends() -> None:
    data = b"\r\n" + BOOK + b"\n" + BOOK[:-4] + b"999\x01" + BOOK + b" "
    found = list(messages(data, DICTIONARY))
    assert [each.fault is None for each in found] == [True, False, True]
    assert [data[each.at : each.at + 5] for each in found] == [b"8=FIX"] * 3


class Watched:
    """Bytes that count how many of them are looked at, by index or by slice."""

    looks = 0

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._data, self._start = data, start

    def __getitem__(self, at: int | slice) -> object:
        if isinstance(at, int):
            Watched.looks += 1
            return self._data[self._start + at]
        begin = self._start + (at.start or 0)
        if at.stop is None:
            return Watched(self._data, begin)
        found = self._data[begin : self._start + at.stop]
        Watched.looks += len(found)
        return found


#: The longest message, for this test, and files whose every message claims what follows.
LONGEST = 4096
CLAIMS = b"8=FIX.4.4|9=%04d|10=000|"
HOSTILE = {
    "no CheckSum": b"8=FIX.4.4|9=3000|",
    "a CheckSum where each says that it is": CLAIMS % (100 * len(CLAIMS % 0)),
    "a CheckSum behind where each says that it is": b"8=FIX.4.4|9=10|35=0|34=1|5",
    "nothing but beginnings": b"8=FIX",
    "beginnings with a length": b"8=FIX|9=99|",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_time_is_linear_whatever_bad_messages_claim(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: how many bytes are looked at, in a file and in one of twice the length."""

    def frame_message(data: bytes, at: int, size: int, frame: object) -> int:
        return INTERPRETED["framing"].frame_at(Watched(data), at + size, at, frame)

    monkeypatch.setattr(explain, "MESSAGE_BYTES_MAX", LONGEST)
    monkeypatch.setattr(explain, "Frame", INTERPRETED["framing"].Frame)
    monkeypatch.setattr(explain, "frame_message", frame_message)
    looks = []
    for size in (10_000, 20_000):
        data = (HOSTILE[what].replace(b"|", b"\x01") * size)[:size]
        Watched.looks = 0
        assert all(each.fault for each in messages(data, DICTIONARY))
        looks.append(Watched.looks)
        assert looks[-1] <= (explain.LOOKS_MAX + 4) * (size + 2 * LONGEST)
    assert looks[1] <= 2.1 * looks[0]


def test_good_messages_among_such_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "MESSAGE_BYTES_MAX", LONGEST)
    claim = HOSTILE["no CheckSum"].replace(b"|", b"\x01")
    data = (claim * 20 + BOOK) * 50
    found = list(messages(data, DICTIONARY))
    assert sum(each.fault is None for each in found) == 50
    assert len(found) == 50 * 21


def test_a_file_is_printed_as_fields_with_the_wrong_ones_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log"
    wrong = sealed(HEAD + b"268=2|269=0|")
    file.write_bytes(BOOK.replace(b"\x01", b"|") + b"\n" + wrong.replace(b"\x01", b"|"))
    assert fix.check(str(file), "fix50sp2", None, "|", False, False) == ExitCode.FOUND
    output = capsys.readouterr().out
    assert "message 1, byte 0," in output
    assert "\n       448 PartyID = x\n" in output
    assert "wrong at byte" in output
    assert output.endswith("2 messages of FIX.5.0SP2, 1 wrong\n")
    assert fix.check(str(file), "fix50sp2", None, "|", True, False) == ExitCode.FOUND
    assert "message 1," not in capsys.readouterr().out


def test_programs_get_one_object_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = BOOK + sealed(HEAD)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert fix.check("-", "fix50sp2", None, "", False, True) == ExitCode.FOUND
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert "fault" not in first
    assert second["fault"]["reason"] == "required_missing"
    assert second["fault"]["tag"] == 268


def test_right_messages_are_no_finding_and_no_messages_are_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log"
    file.write_bytes(BOOK)
    assert fix.check(str(file), "fix50sp2", None, "", False, False) == ExitCode.OK
    file.write_bytes(b"\n")
    assert fix.check(str(file), "fix50sp2", None, "", False, False) == ExitCode.FOUND
    assert "no FIX message" in capsys.readouterr().err


def test_files_that_cannot_be_read_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        fix.check(str(tmp_path / "none"), "fix50sp2", None, "", False, False)
    monkeypatch.setattr(fix, "FILE_BYTES_MAX", 10)
    (tmp_path / "long").write_bytes(BOOK)
    with pytest.raises(UsageError, match="more than 10 bytes"):
        fix.check(str(tmp_path / "long"), "fix50sp2", None, "", False, False)
