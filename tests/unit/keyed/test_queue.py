"""A keyed queue's answers, also to several messages at once, and how many slots each looks at."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from feedhandler.keyed.producers import Stamp
from feedhandler.keyed.queue import FULL_OF_KEY, FULL_OF_MESSAGES, KeyedQueue, Outcome
from feedhandler.keyed.settings import Format, KeyedSettings, Rule
from feedhandler.keyed.structure import Structure


class Store:
    """Numbers what it is asked to keep."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.dead: list[tuple[bytes, str]] = []

    def add(self, content: bytes, keys: bytes, stamp: Stamp | None) -> int:
        self.kept.append(content)
        return len(self.kept)

    def cancel(self, number: int) -> None:
        """Ended by the test."""

    def expire(self, number: int) -> None:
        """Not ended in a test."""

    def divert(self, content: bytes, reason: str, stamp: Stamp | None) -> None:
        self.dead.append((content, reason))


def made(store: Any, known: tuple[Any, ...] = (), **settings: Any) -> KeyedQueue:
    """A queue by the field `k`."""
    structure = Structure(Format.JSON, ("k",), Rule.COMPOSITE)
    bounds = {"messages_max": 8, "key_messages_max": 2, **settings}
    return KeyedQueue(structure, KeyedSettings(**bounds), store, 1, known, b"secret")


def of(key: str, **stamp: int) -> tuple[Stamp | None, bytes]:
    """A message of this key, and who has sent it."""
    return Stamp(b"p", **stamp) if stamp else None, b'{"k": "' + key.encode() + b'"}'


def seq(key: str, sequence: int, epoch: int = 2) -> tuple[Stamp | None, bytes]:
    return of(key, epoch=epoch, sequence=sequence)


@pytest.mark.parametrize(
    ("puts", "why"),
    [
        ([], ""),
        ([of("a"), of("b"), of("a")], ""),
        ([seq("a", 5), seq("b", 6)], ""),
        ([seq("a", 4), seq("a", 4), seq("a", 4), seq("a", 5)], ""),  # repeated: not put again
        ([seq("a", 5), seq("b", 7)], "something before it is missing"),
        ([seq("a", 5, epoch=1)], "is over"),
        ([of("a"), (None, b"{}")], "k"),
        ([of("a"), of("a"), of("a")], FULL_OF_KEY),
        ([of("old"), of("old")], FULL_OF_KEY),
        ([of(each) for each in "abcdefgh"], FULL_OF_MESSAGES),
    ],
)
def test_several_messages_are_put_or_none_is(puts: list[Any], why: str) -> None:
    queue = made(Store(), known=((b"p", (2, 4)),))
    queue.put(of("old")[1])
    before = queue.dispatch.count, queue.dispatch.keys.count, queue.producers.judge(seq("", 5)[0])
    answer = queue.refusal(puts)
    assert why in answer if why else answer == ""
    assert before == (
        queue.dispatch.count, queue.dispatch.keys.count, queue.producers.judge(seq("", 5)[0])
    )  # fmt: skip
    if not why:
        for stamp, content in puts:
            assert queue.put(content, stamp).outcome in (Outcome.STORING, Outcome.REPEATED)


def test_a_table_of_keys_that_is_full_takes_known_ones() -> None:
    queue = made(Store(), keys_max=2)
    for key in ("a", "b"):
        queue.put(of(key)[1])
    assert queue.refusal([of("a")]) == ""
    assert queue.refusal([of("c")]) == FULL_OF_MESSAGES


def test_what_another_queue_sends_is_here_once_or_dead_or_waits() -> None:
    store = Store()
    queue = made(store, messages_max=2)

    def send(number: int, content: bytes) -> Outcome:
        return queue.put_sent(content, Stamp(b"q", 0, number, skips=True), content).outcome

    a, b, c = (of(each)[1] for each in "abc")
    assert send(3, a) is Outcome.STORING
    assert send(3, a) is Outcome.REPEATED
    assert send(9, b"{}") is Outcome.STORING
    assert send(9, b"{}") is Outcome.REPEATED
    assert send(10, b) is Outcome.STORING
    assert [send(12, c), send(12, c)] == [Outcome.FULL] * 2
    assert (store.kept, [content for content, _ in store.dead]) == ([a, b], [b"{}"])


class Watched(dict[int, Any]):
    """Deliveries, of which nobody looks at all."""

    def values(self) -> Any:
        raise AssertionError("all deliveries are looked at")


def test_a_consumer_that_leaves_gives_back_its_own_without_a_look_at_the_others() -> None:
    queue = made(Store(), messages_max=40)
    for each in range(30):
        queue.put(of(f"k{each}")[1])
    queue.durable(30)
    taken: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for each in range(30):
        delivery = queue.take(each % 3 + 1, 0)
        assert delivery is not None
        taken[each % 3 + 1].append(delivery.number)
    queue._flights = Watched(queue._flights)
    queue.gone(2, failed=False)
    queue.gone(2, failed=False)
    queue.gone(4, failed=False)
    assert queue.in_hand == 20
    again = [queue.take(5, 0) for _ in taken[2]]
    assert [each.number for each in again if each is not None] == taken[2]
    queue.gone(5, failed=False)
    queue.gone(1, failed=False)
    queue.gone(3, failed=False)
    assert (queue.in_hand, queue._flights_of) == (0, {})


def played(looking: Any, meanwhile: Callable[[int], None] = lambda step: None) -> tuple[int, Any]:
    """How many times a look has paused, and what it has found; `meanwhile` is called at each."""
    pauses = 0
    while True:
        try:
            next(looking)
        except StopIteration as end:
            return pauses, end.value
        pauses += 1
        meanwhile(pauses)


def pages(queue: KeyedQueue, limit: int) -> list[int]:
    """The numbers of all messages, page by page."""
    found: list[int] = []
    while lines := played(queue.lines(found[-1] if found else 0, limit))[1]:
        assert len(lines) <= limit
        found += [line.number for line in lines]
    return found


def end(queue: KeyedQueue, numbers: list[int]) -> None:
    """End these messages, durably."""
    for number in numbers:
        queue.cancel(number)
        queue.ended(number)


def ending(queue: KeyedQueue, at: int, numbers: list[int]) -> Callable[[int], None]:
    """What ends these messages at one of a look's pauses."""
    return lambda pause: end(queue, numbers if pause == at else [])


def half_ended(store: Store, messages: int) -> KeyedQueue:
    """A queue with these messages, some of the same key, in slots that are not in their order, as
    others have ended."""
    draw, there = random.Random(7), []
    queue = made(store, messages_max=1_000_000)
    for each in range(2 * messages):
        queue.put(of(f"k{each - each % 3 // 2}")[1])
        there.append(each + 1)
        queue.durable(each + 1)
        if each % 2:
            end(queue, [there.pop(draw.randrange(len(there)))])
    return queue


def numbers_of(queue: KeyedQueue, highest: int = 100) -> list[int]:
    """The numbers of a queue's messages."""
    return [number for number in range(1, highest + 1) if queue.slot_of(number)]


def test_a_page_of_messages_is_found_in_shares_of_the_slots_that_were_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("feedhandler.keyed.queue.LOOK", 8)
    queue = half_ended(Store(), 50)
    there, dispatch = numbers_of(queue), queue.dispatch
    slots = [queue.slot_of(number) for number in there]
    assert slots != sorted(slots)
    for limit in (1, 7, len(there), 1000):
        assert pages(queue, limit) == there
    pauses, _ = played(queue.lines(0, 7))
    assert pauses == (dispatch.fresh - 2) // 8
    pauses, found = played(queue.longest(5))
    assert pauses == (dispatch.keys.fresh - 2) // 8
    lengths = [dispatch.lengths[key] for key in range(1, dispatch.keys.fresh)]
    assert [line.messages for line in found] == sorted(lengths, reverse=True)[:5]
    _, found = played(queue.longest(1000))
    assert sum(line.messages for line in found) == len(there)
    assert played(made(Store()).longest(5)) == played(made(Store()).lines(0, 5)) == (0, [])


def test_what_ends_and_comes_during_a_look_hides_nothing_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("feedhandler.keyed.queue.LOOK", 8)
    store = Store()
    queue = half_ended(store, 50)
    there = numbers_of(queue)

    def end_and_put(pause: int) -> None:
        """The oldest nine, which are the page, end at the first pause; another comes at each."""
        end(queue, there[:9] if pause == 1 else [])
        queue.put(of(f"new{pause}")[1])
        queue.durable(len(store.kept))

    pauses, found = played(queue.lines(0, 9), end_and_put)
    assert [line.number for line in found] == there[9 : 9 + len(found)] != []
    assert pages(queue, 9) == numbers_of(queue, len(store.kept))
    # The one that was found ends before the look is over: the next one is looked for.
    last, _ = played(queue.lines(0, 1))
    pauses, found = played(queue.lines(0, 1), ending(queue, last, there[9:10]))
    assert [line.number for line in found] == there[10:11]
    assert pauses == 2 * last
    _, found = played(queue.longest(1000), ending(queue, 1, there[10:30]))
    assert sum(line.messages for line in found) == queue.dispatch.count
    assert min(line.messages for line in found) > 0


def test_a_day_ends_in_shares_of_the_slots_that_were_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedhandler.keyed.queue.LOOK", 8)
    monkeypatch.setattr("feedhandler.keyed.queue.SHARE", 3)
    queue = half_ended(Store(), 50)
    there, sizes, plain = numbers_of(queue), list[int](), numpy.flatnonzero
    held = queue.take(1, 0)
    assert held is not None

    def flatnonzero(part: Any) -> Any:
        sizes.append(len(part))
        return plain(part)

    monkeypatch.setattr(numpy, "flatnonzero", flatnonzero)
    shares = list(queue.expire(91))
    assert max(map(len, shares)) <= 3
    assert sorted(itertools.chain(*shares)) == [n for n in there if n < 91 and n != held.number]
    assert (max(sizes), sum(sizes)) == (8, queue.dispatch.fresh - 1)
