"""Answers of a keyed queue to several messages at once, and to those that another queue sends."""

from typing import Any

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
