"""Conflation's core: every mode of a message in every situation that what waits can be in."""

import itertools
import random

import pytest

from feedhandler.amqp.queueing.conflation import (
    BOOK,
    DIRTY_BYTES,
    ENTRY_BYTES,
    FENCE,
    LATEST,
    NEVER,
    ORDERS_MIN,
    PIECE_BYTES,
    Conflation,
    Waiting,
)
from feedhandler.amqp.queueing.unsettled_map import OutgoingMessage

BOUND = 1_000_000
numbers = itertools.count(1)


def waiting(*pieces: tuple[int, object], service: int = 1, data: bytes = b"head") -> Waiting:
    """One AMQP message of market messages (mode, key); each says which it is."""
    number = next(numbers)
    bodies = [f"{number}.{index}".encode() for index in range(len(pieces))]
    outgoing = OutgoingMessage(data, service, number, number + 1)
    return Waiting(outgoing, bodies, [mode for mode, _ in pieces], [key for _, key in pieces], 0)


def left(conflation: Conflation) -> list[bytes]:
    """Take everything; the market messages that come."""
    found: list[bytes] = []
    while conflation.next_size() >= 0:
        found += [piece for piece in conflation.pop().pieces if piece is not None]
    return found


def made(orders: int = 0) -> Conflation:
    return Conflation(BOUND, lambda service, symbol: orders)


def situations() -> dict[str, Conflation]:
    """Return, by name, what can wait when a message about key "a" and the book (1, 7) comes."""
    empty = made()
    same, other = made(), made()
    same.put(waiting((LATEST, "a"), (BOOK, (1, 7)), (NEVER, None)))
    other.put(waiting((LATEST, "b"), (BOOK, (1, 8)), (FENCE, None)))
    sealed = made()
    for _ in range(2):
        sealed.put(waiting((NEVER, None), (LATEST, "a"), (BOOK, (1, 7))))
    sealed.pop()
    dirty = made()
    for _ in range(ORDERS_MIN + 1):
        dirty.put(waiting((BOOK, (1, 7))))
    fronted = made()
    fronted.put_front(OutgoingMessage(b"book", 1, 0, 0, True))
    return {
        "empty": empty, "same": same, "other": other, "sealed": sealed, "dirty": dirty,
        "fronted": fronted,
    }  # fmt: skip


MODES = (NEVER, LATEST, BOOK, FENCE)
#: (situation, mode): how many market messages are taken out, and whether the new one goes out.
EXPECTED = dict.fromkeys(itertools.product(situations(), MODES), (0, True)) | {
    ("same", LATEST): (1, True),
    ("sealed", LATEST): (0, True),  # what leaves in this turn is not replaced
    ("dirty", BOOK): (1, False),
}
KEYS = {NEVER: None, LATEST: "a", BOOK: (1, 7), FENCE: None}


@pytest.mark.parametrize(("situation", "mode"), EXPECTED)
def test_each_mode_in_each_situation(situation: str, mode: int) -> None:
    conflation = situations()[situation]
    before = conflation.conflated
    new = waiting((mode, KEYS[mode]))
    body = new.pieces[0]
    conflation.put(new)
    taken, goes = EXPECTED[situation, mode]
    assert conflation.conflated - before == taken
    found = left(conflation)
    assert (body in found) is goes
    if goes:
        assert found[-1] == body, "a new message goes last"
    books = len(conflation.dirty)
    assert conflation.bytes == books * DIRTY_BYTES
    assert not any((conflation.index, conflation.orders, conflation.fences, conflation.entries))


def test_the_newest_of_a_key_waits_at_its_own_position() -> None:
    conflation = made()
    for key in "abcab":
        conflation.put(waiting((LATEST, key)))
    first = int(left(conflation)[0].split(b".")[0])
    assert conflation.conflated == 2
    assert first == next(numbers) - 3


def test_of_a_packet_only_what_is_replaced_is_taken_out() -> None:
    conflation = made()
    conflation.put(waiting((LATEST, "a"), (NEVER, None), (LATEST, "a")))
    conflation.put(waiting((LATEST, "b")))
    first = conflation.pop()
    assert [piece is None for piece in first.pieces] == [True, False, False]
    assert first.live == 2


def test_a_key_that_always_changes_is_sent_once_a_turn() -> None:
    conflation = made()
    for key in "abcdefgh":
        conflation.put(waiting((LATEST, key)))
    sent: list[object] = []
    for number in range(64):
        conflation.put(waiting((LATEST, "a")))
        conflation.put(waiting((LATEST, "bcdefgh"[number % 7])))
        sent += conflation.pop().keys
    assert {key: sent.count(key) >= 6 for key in "abcdefgh"} == dict.fromkeys("abcdefgh", True)
    assert len(conflation.entries) <= 16


def test_orders_wait_as_they_are_as_long_as_the_book_would_cost_more() -> None:
    conflation = made(orders=100)
    for _ in range(100):
        conflation.put(waiting((BOOK, (1, 7))))
    assert conflation.conflated == 0
    conflation.put(waiting((BOOK, (1, 7)), (NEVER, None)))
    assert conflation.conflated == 101
    assert list(conflation.dirty) == [(1, 7)]
    assert len(conflation.entries) == 1
    assert len(conflation) == 2


def test_a_book_comes_at_the_end_of_a_turn_and_behind_every_fence() -> None:
    conflation = made()
    for _ in range(ORDERS_MIN + 1):
        conflation.put(waiting((BOOK, (1, 7)), (BOOK, (2, 7))))
    conflation.put(waiting((NEVER, None)))
    assert conflation.due() == (1, 7)
    conflation.pop()  # the turn begins
    conflation.put(waiting((FENCE, None)))
    conflation.put(waiting((NEVER, None)))
    assert conflation.at_end_of_turn()
    assert conflation.due() == (2, 7), "service 1 waits for its fence"
    conflation.clean((2, 7))
    assert conflation.due() is None
    conflation.pop()
    assert conflation.due() is None, "not in the midst of a turn"
    conflation.pop()
    assert conflation.due() == (1, 7)
    conflation.clean((1, 7))
    assert (conflation.due(), conflation.bytes, len(conflation)) == (None, 0, 0)


def test_a_book_that_is_dirty_again_waits_for_the_next_turn() -> None:
    conflation = made()
    for _ in range(ORDERS_MIN + 1):
        conflation.put(waiting((BOOK, (1, 7))))
    conflation.put(waiting((NEVER, None)))
    key = conflation.due()
    conflation.clean(key)
    for _ in range(ORDERS_MIN + 1):
        conflation.put(waiting((BOOK, (1, 7))))
    assert conflation.due() is None
    conflation.pop()
    assert conflation.due() == (1, 7)
    conflation.clean((1, 7))
    for _ in range(ORDERS_MIN + 1):
        conflation.put(waiting((BOOK, (1, 7))))
    assert conflation.due() == (1, 7), "where nothing else waits there is no turn to wait for"


def test_what_is_put_in_front_goes_first_and_in_its_order() -> None:
    conflation = made()
    conflation.put(waiting((NEVER, None)))
    for data in (b"begin", b"order", b"end"):
        conflation.put_front(OutgoingMessage(data, 1, 0, 0, True))
    assert conflation.peek().data == b"begin"
    assert conflation.next_size() == 5
    assert not conflation.at_end_of_turn()
    assert [conflation.pop().outgoing.data for _ in range(4)] == [
        b"begin",
        b"order",
        b"end",
        b"head",
    ]
    assert (conflation.peek(), conflation.next_size()) == (None, -1)


def test_squeezing_makes_books_dirty_first_and_then_ends_the_turn() -> None:
    conflation = Conflation(8 * (PIECE_BYTES + 10), lambda service, symbol: 1000)
    conflation.put(waiting((NEVER, None)))
    for key in range(20):
        conflation.put(waiting((LATEST, key), (BOOK, (1, key))))
    for books in range(1, 21):
        assert conflation.squeeze()
        assert len(conflation.dirty) == books
    assert not conflation.squeeze()
    conflation.pop()  # the turn begins: twenty leave with it
    for key in range(20):
        conflation.put(waiting((LATEST, key)))
    assert len(conflation.entries) == 40
    assert conflation.squeeze()
    assert len(conflation.entries) == 20
    assert not conflation.squeeze()
    assert len(left(conflation)) == 20


def test_what_was_taken_out_is_announced_by_service_with_its_range() -> None:
    conflation = made()
    put = [waiting((LATEST, "a"), service=service) for service in (1, 1, 1)]
    put += [waiting((LATEST, "b"), service=2)]
    for entry in put:
        conflation.put(entry)
    assert conflation.drain_gone() == {1: [2, put[0].outgoing.sequence, put[1].outgoing.sequence]}
    assert conflation.drain_gone() == {}


def test_nothing_is_left_after_all_is_forgotten() -> None:
    for conflation in situations().values():
        conflation.clear()
        assert (conflation.bytes, len(conflation), conflation.next_size()) == (0, 0, -1)


def test_the_account_is_right_whatever_comes_and_goes(seed: int) -> None:
    chance = random.Random(seed)
    conflation = Conflation(60_000, lambda service, symbol: 20)
    never: list[bytes] = []
    got: list[bytes] = []
    for _ in range(4000):
        if chance.random() < 0.55:
            entry = waiting(
                *(
                    chance.choice(
                        [(NEVER, None), (FENCE, None)]
                        + [(LATEST, chance.randrange(30))] * 6
                        + [(BOOK, (1, chance.randrange(10)))] * 6
                    )
                    for _ in range(chance.randrange(1, 6))
                )
            )
            modes = zip(entry.modes, entry.pieces, strict=True)
            never += [piece for mode, piece in modes if mode in (NEVER, FENCE)]
            conflation.put(entry)
            while conflation.bytes > 60_000 and conflation.squeeze():
                pass
        elif (key := conflation.due()) is not None:
            conflation.clean(key)
        elif conflation.next_size() >= 0:
            entry = conflation.pop()
            modes = zip(entry.modes, entry.pieces, strict=True)
            got += [piece for mode, piece in modes if mode in (NEVER, FENCE)]
        held = list(conflation.entries.values())
        pieces = [piece for entry in held for piece in entry.pieces if piece is not None]
        assert conflation.bytes == (
            sum(ENTRY_BYTES + len(entry.outgoing.data) for entry in held)
            + sum(PIECE_BYTES + len(piece) for piece in pieces)
            + DIRTY_BYTES * len(conflation.dirty)
        )
    while conflation.next_size() >= 0:
        entry = conflation.pop()
        modes = zip(entry.modes, entry.pieces, strict=True)
        got += [piece for mode, piece in modes if mode in (NEVER, FENCE)]
    assert got == never


def test_a_turn_that_ends_early_leaves_what_nothing_replaced() -> None:
    conflation = Conflation(PIECE_BYTES, lambda service, symbol: 1000)
    conflation.put(waiting((NEVER, None)))
    conflation.put(waiting((LATEST, "a"), (LATEST, "b"), (NEVER, None)))
    conflation.pop()
    conflation.put(waiting((LATEST, "a")))
    assert conflation.squeeze()
    assert conflation.conflated == 1
    assert len(left(conflation)) == 3
    for key in "aab":
        conflation.put(waiting((LATEST, key)))
    conflation.pop()
    conflation.put(waiting((LATEST, "b")))
    assert conflation.squeeze()
    assert len(left(conflation)) == 1
