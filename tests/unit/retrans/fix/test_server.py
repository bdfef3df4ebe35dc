"""The server of Resend Requests (`retrans/fix/server.py`)."""

from typing import Any

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.retrans.fix import server as module
from feedhandler.retrans.fix.request import ResendRequest
from feedhandler.retrans.fix.server import (
    ALL,
    NEVER,
    Answer,
    ResendServer,
    ResendSettings,
    ServedChannel,
)
from feedhandler.retrans.store import PacketStore

MS = 1_000_000


def served(last: int = 9, first: int = 1) -> ServedChannel:
    """A channel whose messages `first` to `last` are held."""
    store = PacketStore(1 << 16)
    for number in range(first, last + 1):
        text = b"m%d" % number
        store.append(number, number + 1, text, 0, len(text))
    return ServedChannel(store, lambda a, b: b"fill %d-%d" % (a, b), lambda data: b"dup " + data)


def server(channel: ServedChannel | None = None, **settings: Any) -> ResendServer:
    made = ResendServer(ResendSettings(**settings))
    made.add("c", channel or served())
    return made


def ask(
    made: ResendServer, begin: int, end: int, client: int = 1, now_ns: int = 0, name: str = "c"
) -> list[Answer]:
    made.request(ResendRequest(name, begin, end), client, now_ns)
    return made.tick(now_ns)


def texts(answers: list[Answer]) -> list[bytes]:
    return [message for answer in answers for message in answer.messages]


def test_a_request_is_answered_in_order() -> None:
    made = server()
    assert ask(made, 3, 5) == [Answer("c", ALL, [b"m3", b"m4", b"m5"])]
    assert ask(made, 8, 0) == [Answer("c", ALL, [b"m8", b"m9"])]
    assert made.deadline_ns == NEVER


@pytest.mark.parametrize(
    ("request_", "counter"),
    [
        (None, "unreadable"),
        (ResendRequest("other", 1, 2), "unknown_channel"),
        (ResendRequest("c", 0, 5), "empty"),
        (ResendRequest("c", 5, 4), "empty"),
        (ResendRequest("c", 9, 10), "too_high"),
        (ResendRequest("c", 10, 0), "too_high"),
        (ResendRequest("c", 1, 9), "too_long"),
        (ResendRequest("c", 2, 3), "repeated"),
    ],
)
def test_wrong_requests_are_ignored_and_counted(
    request_: ResendRequest | None, counter: str
) -> None:
    made = server(request_messages_max=8)
    assert ask(made, 1, 4)
    made.request(request_, 1, 0)
    assert made.tick(0) == []
    assert made.counts[counter] == 1
    assert made.counts["requests"] == 2


def test_many_requests_for_one_loss_get_one_answer() -> None:
    made = server(once_ns=10 * MS)
    found = [ask(made, 3, 5, client, client * 1000) for client in range(100)]
    assert texts([answer for each in found for answer in each]) == [b"m3", b"m4", b"m5"]
    # What overlaps is answered as far as it was not.
    assert texts(ask(made, 2, 7, 200, MS)) == [b"m2", b"m6", b"m7"]
    # An answer may be lost too.
    assert texts(ask(made, 3, 5, 7, 11 * MS)) == [b"m3", b"m4", b"m5"]
    assert made.counts["repeated"] == 99


def test_it_answers_at_once_on_a_timer_or_never() -> None:
    assert texts(ask(server(answer="once"), 1, 1)) == [b"m1"]
    timed = server(answer="timer", timer_ns=5 * MS)
    assert ask(timed, 1, 2) == ask(timed, 2, 3, 2, MS) == []
    assert timed.deadline_ns == 5 * MS
    assert texts(timed.tick(5 * MS)) == [b"m1", b"m2", b"m3"]
    never = server(answer="never")
    assert ask(never, 1, 1) == []
    assert never.deadline_ns == NEVER
    assert never.counts["unanswered"] == 1


@pytest.mark.parametrize(("route", "client"), [("group", ALL), ("main", ALL), ("tcp", 5)])
def test_answers_go_where_they_are_set_to_go(route: Any, client: int) -> None:
    made = server(route=route)
    assert [answer.client for answer in ask(made, 1, 1, client=5)] == [client]
    # In TCP sessions each client is answered by itself.
    assert bool(ask(made, 1, 1, client=6)) == (route == "tcp")
    assert ask(made, 1, 1, client=5) == []


def test_the_flag_for_possible_duplicates_is_a_setting() -> None:
    assert texts(ask(server(poss_dup=True), 1, 1)) == [b"dup m1"]
    assert texts(ask(server(poss_dup=False), 1, 1)) == [b"m1"]


def test_what_is_no_longer_held_is_skipped_from_its_first_number() -> None:
    held = served(first=4)
    assert texts(ask(server(held, unheld="skip"), 2, 5)) == [b"fill 2-4", b"m4", b"m5"]
    held = served(first=4)
    assert texts(ask(server(held, unheld="ignore"), 2, 5)) == [b"m4", b"m5"]
    made = server(served(first=4), unheld="ignore")
    assert ask(made, 2, 3) == []
    assert made.counts["not_held"] == 1


def test_what_the_publisher_left_out_is_skipped() -> None:
    channel = served(last=3)
    channel.store.append(7, 8, b"m7", 0, 2)
    channel.skip(4, 6)
    assert texts(ask(server(channel), 3, 7)) == [b"m3", b"fill 4-7", b"m7"]


def test_a_new_epoch_is_answered_anew() -> None:
    channel = served(last=2)
    made = server(channel)
    assert texts(ask(made, 1, 1)) == [b"m1"]
    channel.skip(2, 2)
    channel.store.clear()
    channel.skip(3, 4)
    channel.store.append(1, 2, b"n1", 0, 2)
    channel.store.append(5, 6, b"n5", 0, 2)
    assert texts(ask(made, 1, 5)) == [b"n1", b"fill 3-5", b"n5"]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    made = server(answer="timer")
    for number in range(1, 6):
        made.request(ResendRequest("c", number, number), 1, 0)
    assert made.counts["refused_for_room"] == 3
    assert texts(made.tick(made.deadline_ns)) == [b"m1", b"m2"]
    # What was refused may be asked for again.
    made.request(ResendRequest("c", 5, 5), 1, made.settings.timer_ns)
    assert texts(made.tick(made.deadline_ns)) == [b"m5"]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWERED_MAX", 2)
    channel = served()
    made = server(channel)
    for number in range(1, 9, 2):
        ask(made, number, number)
    assert len(channel.answered) == 2


def test_a_long_answer_is_given_in_parts_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PART_NUMBERS", 3)
    made = server(route="tcp")
    parts = [ask(made, 1, 7, client=1)]
    made.request(ResendRequest("c", 9, 9), 2, 0)
    while made.deadline_ns != NEVER:
        parts.append(made.tick(made.deadline_ns))
    assert [[(each.client, *each.messages) for each in part] for part in parts] == [
        [(1, b"m1", b"m2", b"m3")],
        [(1, b"m4", b"m5", b"m6")],
        [(2, b"m9"), (1, b"m7")],
    ]


def test_what_is_for_a_client_that_is_behind_waits_until_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PART_NUMBERS", 3)
    made = server(route="tcp")
    for begin, end, client in ((1, 4, 1), (5, 6, 2), (7, 7, 1), (8, 9, 2)):
        made.request(ResendRequest("c", begin, end), client, 0)
    assert texts(made.tick(0, {1})) == [b"m5", b"m6", b"m8"]
    assert texts(made.tick(0, {1})) == [b"m9"]
    assert made.deadline_ns == NEVER
    assert made.tick(5 * MS) == []
    made.resume(6 * MS)
    assert texts(made.tick(made.deadline_ns)) == [b"m1", b"m2", b"m3"]
    assert texts(made.tick(made.deadline_ns)) == [b"m7", b"m4"]
    made.resume(7 * MS)
    assert made.deadline_ns == NEVER


def test_nothing_waits_for_a_client_that_has_gone() -> None:
    made = server(answer="timer", route="tcp")
    made.request(ResendRequest("c", 1, 1), 1, 0)
    made.request(ResendRequest("c", 2, 2), 2, 0)
    made.forget(1)
    assert texts(made.tick(made.deadline_ns)) == [b"m2"]


def test_a_channel_is_served_once() -> None:
    with pytest.raises(UsageError, match="served already"):
        server().add("c", served())


def test_what_is_withheld_is_not_answered_and_no_gap_fill_says_that_it_is_skipped() -> None:
    channel = served()
    channel.withhold(4, 5)
    made = server(channel, unheld="skip")
    assert texts(ask(made, 3, 6)) == [b"m3", b"m6"]
    assert ask(made, 4, 5, 2, 100 * MS) == []
    assert made.counts["not_held"] == 1
    channel.store.clear()
    channel.follow()
    assert not channel.withheld


def test_what_is_withheld_before_anybody_asks_in_a_new_epoch_stays_so() -> None:
    channel = served()
    channel.store.clear()
    channel.store.append(1, 2, b"m1", 0, 2)
    channel.withhold(1, 1)
    assert ask(server(channel), 1, 1) == []


def test_what_was_left_out_last_is_skipped_though_nothing_follows_it() -> None:
    channel = served(last=3)
    channel.skip(4, 6)
    assert texts(ask(server(channel), 3, 6)) == [b"m3", b"fill 4-7"]
    assert texts(ask(server(channel), 2, 0, now_ns=100 * MS)) == [b"m2", b"m3", b"fill 4-7"]
    made = server(channel)
    assert ask(made, 7, 7) == ask(made, 7, 0) == []
    assert made.counts["too_high"] == 2
