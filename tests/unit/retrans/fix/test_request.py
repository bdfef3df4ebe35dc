"""Resend Requests as messages (`retrans/fix/request.py`)."""

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.framing import SEQUENCE_MAX
from feedhandler.retrans.fix.request import RequestFormat, ResendRequest


@pytest.mark.parametrize(
    "request_",
    [
        ResendRequest("equities-1", 1, 5),
        ResendRequest("é", 7, 0),
        ResendRequest("x", SEQUENCE_MAX, SEQUENCE_MAX),
    ],
)
@pytest.mark.parametrize("form", [RequestFormat(), RequestFormat(1180, "FIX.4.4")])
def test_what_is_written_is_read(form: RequestFormat, request_: ResendRequest) -> None:
    assert form.decode(form.encode(request_)) == request_


def test_the_channel_is_in_the_tag_that_is_set() -> None:
    request = ResendRequest("equities-1", 1, 5)
    assert b"\x0157=equities-1\x01" in RequestFormat().encode(request)
    other = RequestFormat(1180)
    assert b"\x011180=equities-1\x01" in other.encode(request)
    assert RequestFormat().decode(other.encode(request)) is None


def message(text: str) -> bytes:
    return envelope(b"FIXT.1.1", text.replace("|", "\x01").encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"rubbish",
        message("35=2|34=0|57=x|7=1|16=5|")[:-1],
        message("35=0|34=0|57=x|7=1|16=5|"),
        message("35=2|34=0|7=1|16=5|"),
        message("35=2|34=0|57=x|16=5|"),
        message("35=2|34=0|57=x|7=1|"),
        message("35=2|34=0|57=x|7=one|16=5|"),
        message("35=2|34=0|57=x|7=-1|16=5|"),
        message("35=2|34=0|57=x|7=1|16=99999999999999999999|"),
        envelope(b"FIXT.1.1", b"35=2\x0134=0\x0157=\xff\x017=1\x0116=5\x01"),
    ],
)
def test_what_is_no_request_is_none(data: bytes) -> None:
    assert RequestFormat().decode(data) is None


@pytest.mark.parametrize("tag", [0, 7, 16, 34, 10**9])
def test_tags_that_are_taken_are_refused(tag: int) -> None:
    with pytest.raises(UsageError, match="cannot say the channel"):
        RequestFormat(tag)
