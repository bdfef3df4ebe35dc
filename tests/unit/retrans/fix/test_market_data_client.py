"""The client of Market Data Requests (`retrans/fix/market_data_client.py`)."""

from typing import Any

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.events import Broken
from feedhandler.retrans.fix import market_data_client as module
from feedhandler.retrans.fix.market_data import (
    Digest,
    MarketDataFormat,
    Part,
    Refusal,
    Refused,
)
from feedhandler.retrans.fix.market_data_client import (
    Complete,
    Event,
    Failed,
    MarketDataClient,
    MarketDataClientSettings,
    Rejected,
)
from feedhandler.retrans.fix.server import NEVER
from tests.support.fix_messages import sealed

FORMAT = MarketDataFormat()
MS = 1_000_000


def message(number: int, symbol: str = "A") -> bytes:
    return sealed(f"35=X|34={number}|268=1|279=0|269=0|278=o{number}|55={symbol}|".encode())


def gap_fill(first: int, new: int) -> bytes:
    return sealed(f"35=4|34={first}|123=Y|36={new}|".encode())


def snapshot(symbol: str, number: int = 5, id: bytes = b"r1-1", epoch: int = 7) -> bytes:
    return FORMAT.snapshot(id, number, epoch, f"55={symbol}|".replace("|", "\x01").encode(), [])


def answer(
    *parts: list[bytes],
    first: int = 1,
    last: int = 3,
    id: bytes = b"r1-1",
    total: int | None = None,
    numbers: tuple[int, ...] = (),
) -> bytes:
    """An answer of these parts, as a server writes it, but for what is given."""
    digest, out = Digest(), b""
    for at, messages in enumerate(parts, 1):
        for each in messages:
            digest.add(each)
        ends = at == len(parts)
        count = sum(len(each) for each in parts) if total is None else total
        part = Part(
            id,
            numbers[at - 1] if numbers else at,
            len(messages),
            first,
            last,
            7,
            count if ends else -1,
            digest.text if ends else b"",
        )
        out += FORMAT.part(part) + b"".join(messages)
    return out


def asking(settings: dict[str, Any] | None = None, **asked: Any) -> MarketDataClient:
    """A connected client whose request `r1-1` is with the server."""
    client = MarketDataClient(FORMAT, MarketDataClientSettings(**(settings or {})))
    client.connected(0)
    client.ask("c", 0, **{"begin_ns": 0, **asked})
    assert client.tick(0) == []
    assert b"\x01262=r1-1\x01" in client.data_to_send()
    return client


ONE, TWO, THREE = message(1), message(2), message(3)


def kinds(events: list[Event]) -> list[str]:
    return [type(each).__name__ for each in events]


@pytest.mark.parametrize(
    "data",
    [
        answer([ONE, TWO, THREE]),
        answer([ONE], [TWO, THREE]),
        answer([ONE, TWO, THREE], []),
        answer([ONE], [gap_fill(2, 4)]),
        FORMAT.message(b"0") + answer([ONE, TWO, THREE]),
    ],
)
def test_a_whole_answer_is_complete_however_its_bytes_come(data: bytes) -> None:
    (event,) = asking().feed(data, 1)
    assert isinstance(event, Complete)
    assert (event.request, event.first, event.last, event.epoch) == (1, 1, 3, 7)
    client, events = asking(), []
    for at in range(len(data)):
        events += client.feed(data[at : at + 1], 1)
    assert events == [event]


def test_an_answer_may_be_empty() -> None:
    (event,) = asking().feed(answer([], first=0, last=0), 1)
    assert isinstance(event, Complete)
    assert event.messages == []


@pytest.mark.parametrize(
    ("asked", "data", "reason"),
    [
        ({}, answer([ONE, THREE, TWO]), "2 is missing"),
        ({}, answer([ONE, TWO, TWO]), "not in order"),
        ({}, answer([ONE, THREE]), "2 is missing"),
        ({}, answer([ONE, TWO]), "3 is missing"),
        ({}, answer([ONE, TWO, THREE], total=4), "4 are said"),
        ({}, answer([ONE, TWO, THREE], total=2), "2 are said"),
        ({}, answer([ONE, TWO, THREE, message(4)]), "not of the range"),
        ({}, answer([ONE, TWO, THREE], first=2), "not of the range"),
        ({}, answer([ONE, gap_fill(2, 6)]), "not of the range"),
        ({}, answer([ONE, gap_fill(2, 2)]), "not of the range"),
        ({}, answer([ONE], [TWO, THREE], numbers=(1, 3)), "part is missing"),
        ({}, answer([ONE], [TWO, THREE], numbers=(1, 1)), "part is missing"),
        ({}, answer([ONE, TWO, THREE], numbers=(2,)), "part is missing"),
        ({"securities": (b"B",)}, answer([ONE]), "something else"),
        ({"entry_types": (b"1",)}, answer([ONE]), "something else"),
        ({"securities": (b"A",)}, answer([THREE, ONE]), "not in order"),
        ({"begin_ns": -1}, answer([ONE], first=5, last=5), "not marked"),
        ({"begin_ns": -1}, answer([snapshot("A", id=b"x")], first=5, last=5), "not marked"),
        ({"begin_ns": -1}, answer([snapshot("A", 4)], first=5, last=5), "another number"),
        (
            {"begin_ns": -1},
            answer([snapshot("A", epoch=6)], first=5, last=5),
            "another number",
        ),
        ({"begin_ns": -1}, answer([snapshot("A")] * 2, first=5, last=5), "twice"),
        (
            {"begin_ns": -1, "securities": (b"B",)},
            answer([snapshot("A")], first=5, last=5),
            "another security",
        ),
        (
            {"begin_ns": -1, "securities": (b"A", b"B")},
            answer([snapshot("A")], first=5, last=5),
            "is missing",
        ),
    ],
)
def test_an_answer_that_is_not_whole_is_never_reported_as_complete(
    asked: dict[str, Any], data: bytes, reason: str
) -> None:
    client = asking({"tries_max": 1}, **asked)
    (event,) = client.feed(data, 1)
    assert isinstance(event, Failed)
    assert reason in event.reason
    assert client.counts["wrong_answers"] == 1
    assert client.deadline_ns == client.settings.heartbeat_us * 1000


def test_a_wrong_answer_is_asked_for_again_under_another_id() -> None:
    client = asking()
    assert client.feed(answer([ONE, THREE]), 1) == []
    assert client.data_to_send() == b""
    client.tick(client.deadline_ns)
    assert b"262=r1-2\x01" in client.data_to_send()
    # What comes late of the first try is dropped.
    assert client.feed(answer([ONE, TWO, THREE]), client.deadline_ns) == []
    events = client.feed(answer([ONE, TWO, THREE], id=b"r1-2"), client.deadline_ns)
    assert kinds(events) == ["Complete"]


def _summed(data: bytes) -> bytes:
    """Messages with their sums right again."""
    out = b""
    for each in data.split(b"8=FIX")[1:]:
        text = (b"8=FIX" + each).rpartition(b"10=")[0]
        out += text + b"10=%03d\x01" % (sum(text) % 256)
    return out


def test_a_sum_that_does_not_fit_is_found() -> None:
    client = asking({"tries_max": 1}, securities=(b"A",))
    whole = answer([ONE, TWO, THREE])
    # A message that is left out, where numbers have holes anyway.
    lacking = whole.replace(TWO, b"").replace(b"20104=3", b"20104=2").replace(b"911=3", b"911=2")
    (event,) = client.feed(_summed(lacking), 1)
    assert isinstance(event, Failed)
    assert "sum" in event.reason


def test_snapshots_as_of_one_number_are_a_state() -> None:
    client = asking(begin_ns=-1)
    symbol_less = FORMAT.snapshot(b"r1-1", 5, 7, b"55=[N/A]\x0148=12\x01", [])
    data = answer([snapshot("A")], [snapshot("B"), symbol_less], first=5, last=5)
    (event,) = client.feed(data, 1)
    assert isinstance(event, Complete)
    assert (event.last, len(event.messages)) == (5, 3)


def test_parts_are_about_one_range() -> None:
    client = asking({"tries_max": 1})
    other = FORMAT.part(Part(b"r1-1", 2, 0, 1, 4, 7))
    begun = FORMAT.part(Part(b"r1-1", 1, 1, 1, 3, 7)) + ONE
    (event,) = client.feed(begun + other, 1)
    assert isinstance(event, Failed)
    assert "different ranges" in event.reason


def test_two_answers_may_alternate() -> None:
    client = asking()
    client.ask("c", 0, begin_ns=0)
    client.tick(0)
    one, two = (
        [b"8=FIXT.1.1\x019=" + each for each in data.split(b"8=FIXT.1.1\x019=")[1:]]
        for data in (answer([ONE], [TWO, THREE]), answer([ONE], [TWO, THREE], id=b"r2-1"))
    )
    events = client.feed(b"".join([*one[:2], *two[:2], *two[2:], *one[2:]]), 1)
    assert [event.request for event in events if isinstance(event, Complete)] == [2, 1]


def test_parts_of_no_request_are_passed_over() -> None:
    client = asking()
    events = client.feed(answer([ONE], id=b"other") + answer([ONE, TWO, THREE]), 1)
    assert kinds(events) == ["Complete"]
    assert client.counts["parts_of_no_request"] == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ONE, "no part"),
        (answer([ONE, TWO])[: -len(TWO)] + FORMAT.part(Part(b"r", 2, 0, 1, 3, 7)), "early"),
        (FORMAT.message(b"UP", b"262=r1-1\x01893=Y\x01"), "part without"),
        (FORMAT.message(b"UP", b"262=r1-1\x01893=N\x0120103=x\x01"), "20103"),
        (FORMAT.message(b"Y"), "reject without"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 2, "other than FIX"),
        (FORMAT.message(b"5"), "logged out"),
    ],
)  # fmt: skip
def test_what_a_server_may_not_send_ends_the_connection(data: bytes, reason: str) -> None:
    event = asking().feed(data, 1)[-1]
    assert isinstance(event, Broken)
    assert reason in event.reason


def test_silence_within_an_answer_is_a_try_that_failed() -> None:
    client = asking({"answer_wait_us": 100_000, "tries_max": 2, "retry_us": 10_000})
    client.feed(answer([ONE], [TWO, THREE])[: -len(TWO) - len(THREE) - 150], 50 * MS)
    assert client.deadline_ns == 150 * MS
    assert client.tick(149 * MS) == []
    assert client.tick(150 * MS) == []
    assert client.data_to_send() == b""
    assert client.tick(160 * MS) == []
    assert b"262=r1-2\x01" in client.data_to_send()
    (event,) = client.tick(260 * MS)
    assert event == Failed(1, event.asked, "no answer, or no more of it")  # type: ignore[union-attr]


def test_the_rest_of_a_part_that_comes_late_is_not_of_the_next_try() -> None:
    client = asking({"answer_wait_us": 100_000, "retry_us": 10_000})
    begun, rest = answer([ONE, TWO, THREE])[: -len(THREE)], THREE
    client.feed(begun, 50 * MS)
    client.tick(150 * MS)
    client.tick(160 * MS)
    assert b"262=r1-2\x01" in client.data_to_send()
    assert client.feed(rest, 170 * MS) == []
    (event,) = client.feed(answer([ONE, TWO, THREE], id=b"r1-2"), 180 * MS)
    assert isinstance(event, Complete)
    assert event.messages == [ONE, TWO, THREE]


@pytest.mark.parametrize(
    ("refusal", "tries"),
    [
        (Refusal.TIME_NOT_HELD, 1),
        (Refusal.UNKNOWN_CHANNEL, 1),
        (Refusal.NOT_COMPLETE, 1),
        (Refusal.TOO_MANY, 2),
        (Refusal.CUT_SHORT, 2),
        (Refusal.STATE_UNKNOWN, 2),
    ],
)
def test_a_reject_is_reported_at_once_unless_another_try_may_help(
    refusal: Refusal, tries: int
) -> None:
    client = asking({"tries_max": 2})
    for at in range(1, tries + 1):
        data = FORMAT.reject(Refused(refusal, "because", b"r1-%d" % at, 10**18))
        events = client.feed(data, 0)
        if at < tries:
            assert events == []
            client.tick(client.deadline_ns)
    (event,) = events
    assert isinstance(event, Rejected)
    assert (event.code, event.text, event.held_from_ns) == (refusal.name, "because", 10**18)
    assert client.feed(data, 0) == []
    assert client.counts["rejects_of_no_request"] == 1


def test_a_reject_ends_an_answer_that_has_begun() -> None:
    client = asking()
    reject = FORMAT.reject(Refused(Refusal.NOT_COMPLETE, "because", b"r1-1"))
    first = answer([ONE], [TWO, THREE]).partition(TWO)[0].rpartition(b"8=FIX")[0]
    assert kinds(client.feed(first + reject, 1)) == ["Rejected"]


def test_a_foreign_servers_reject_says_its_own_reason() -> None:
    (event,) = asking().feed(FORMAT.message(b"Y", b"262=r1-1\x01281=3\x01"), 1)
    assert isinstance(event, Rejected)
    assert (event.code, event.held_from_ns) == ("3", 0)


def test_what_was_under_way_is_asked_for_again_in_the_next_connection() -> None:
    client = asking({"tries_max": 2})
    client.feed(answer([ONE], [TWO, THREE])[:200], 1)
    client.disconnected(2)
    assert not client.up
    assert client.deadline_ns == NEVER
    assert client.tick(3) == []
    client.connected(4)
    client.tick(4)
    assert b"262=r1-2\x01" in client.data_to_send()
    client.disconnected(5)
    client.connected(6)
    (event,) = client.tick(6)
    assert isinstance(event, Failed)
    assert event.reason == "the connection broke"


def test_requests_wait_for_their_turn() -> None:
    client = asking({"under_way_max": 1})
    client.ask("c", 0, begin_ns=0)
    client.tick(0)
    assert client.data_to_send() == b""
    assert client.deadline_ns == client.settings.heartbeat_us * 1000
    client.feed(answer([ONE, TWO, THREE]), 1)
    client.tick(1)
    assert b"262=r2-1\x01" in client.data_to_send()


def test_a_request_that_is_cancelled_has_no_owner() -> None:
    client = asking()
    client.cancel(1)
    client.cancel(1)
    assert client.feed(answer([ONE, TWO, THREE]), 1) == []


@pytest.mark.parametrize("before", [1, len(ONE)])
def test_nor_has_one_that_is_cancelled_in_the_midst_of_its_answer(before: int) -> None:
    client, data = asking(), answer([ONE, TWO, THREE])
    assert client.feed(data[:-before], 1) == []
    client.cancel(1)
    assert client.feed(data[-before:], 1) == []
    client.ask("c", 1, begin_ns=0)
    client.tick(1)
    assert kinds(client.feed(answer([ONE, TWO, THREE], id=b"r2-1"), 1)) == ["Complete"]


def test_an_answer_is_bounded() -> None:
    client = asking({"answer_bytes_max": len(ONE) + 1, "tries_max": 1})
    (event,) = client.feed(answer([ONE, TWO, THREE]), 1)
    assert isinstance(event, Failed)
    assert "larger" in event.reason


def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS_MAX", 1)
    with pytest.raises(UsageError, match="wait already"):
        asking().ask("c", 0)


def test_a_silent_server_is_given_up_and_heartbeats_go_out() -> None:
    client = MarketDataClient(FORMAT)
    client.connected(0)
    assert client.deadline_ns == 1000 * MS
    client.tick(1000 * MS)
    assert b"\x0135=0\x01" in client.data_to_send()
    client.feed(FORMAT.message(b"1", b"112=you\x01"), 1500 * MS)
    assert b"\x01112=you\x01" in client.data_to_send()
    assert client.tick(6500 * MS) == [Broken("the server is silent")]


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(UsageError):
        MarketDataClientSettings(tries_max=0)
