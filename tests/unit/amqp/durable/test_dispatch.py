"""Dispatch of messages: competing consumers with credit, in the queue's order."""

import pytest

from feedhandler.amqp.durable import dispatch
from feedhandler.amqp.durable.dispatch import Dispatch


class Consumer:
    """A consumer that counts looks at it."""

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.got: list[tuple[int, bytes, bool, int]] = []
        self.looks = 0

    def ready(self) -> bool:
        self.looks += 1
        return self.credit > 0

    def wants(self) -> int:
        self.looks += 1
        return self.credit

    def hand_out(self, number: int, content: bytes, first: bool, failures: int) -> None:
        assert self.credit > 0
        self.credit -= 1
        self.got.append((number, content, first, failures))

    @property
    def numbers(self) -> list[int]:
        return [number for number, *_ in self.got]


def items(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


def test_consumers_take_turns_as_far_as_their_credit_goes() -> None:
    management, first, second = Dispatch(0), Consumer(3), Consumer(1)
    management.join(first)
    management.join(second)
    assert management.wanted(9) == 4
    management.add(items(1, 2, 3, 4, 5))
    assert management.wanted(9) == -1
    assert management.serve(100) == 4
    assert first.numbers == [1, 3, 4]
    assert second.numbers == [2]
    assert management.ready == 1
    assert management.serve(100) == 0
    assert management.handed_out == 4


def test_no_more_than_a_share_is_handed_out_at_once() -> None:
    management, consumer = Dispatch(0), Consumer(10)
    management.join(consumer)
    management.add(items(1, 2, 3))
    assert management.serve(2) == 2
    assert management.serve(2) == 1
    assert consumer.numbers == [1, 2, 3]


def test_without_consumers_messages_stay() -> None:
    management, consumer = Dispatch(0), Consumer(1)
    management.add(items(1))
    assert management.serve(5) == 0
    management.join(consumer)
    management.leave(consumer)
    assert (management.takers, management.serve(5), management.ready) == (0, 0, 1)


def test_who_gets_a_message_hears_what_others_did_with_it() -> None:
    management, consumer = Dispatch(10), Consumer(9)
    management.join(consumer)
    assert management.tried(11, False) == 0
    assert management.tried(12, True) == 1
    assert management.tried(12, True) == 2
    management.add(items(9, 10, 11, 12))
    management.serve(9)
    assert [(first, failures) for _, _, first, failures in consumer.got] == [
        (False, 0),
        (True, 0),
        (False, 0),
        (False, 2),
    ]
    assert management.handed_out_again == 3
    management.forget([12])
    assert management.tried(12, False) == 0


def test_what_is_ready_can_be_taken_back() -> None:
    management = Dispatch(0)
    management.forget([1])
    management.add(items(1, 2, 3))
    assert management.remove(2)
    assert not management.remove(2)
    assert management.withdraw() == [1, 3]
    assert management.ready == 0


def test_tries_that_were_counted_first_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "TRIED_MAX", 2)
    management = Dispatch(0)
    for number in (1, 2, 3):
        management.tried(number, True)
    assert management.tried(3, True) == 2
    assert management.tried(1, True) == 1


@pytest.mark.parametrize("ask", ["serve", "wanted"])
def test_consumers_without_room_are_looked_at_once_until_they_are_offered(ask: str) -> None:
    management, consumers = Dispatch(0), [Consumer(0) for _ in range(2000)]
    for each in consumers:
        management.join(each)
    management.add(items(1, 2, 3))
    assert getattr(management, ask)(256) == (-3 if ask == "wanted" else 0)
    assert [each.looks for each in consumers] == [1] * 2000
    consumers[7].credit = 2
    for _ in range(3):
        assert (management.serve(256), management.wanted(256)) == (0, -3)
    management.offer(consumers[7])
    assert management.serve(256) == 2
    assert sum(each.looks for each in consumers) == 2003
    assert consumers[7].numbers == [1, 2]


def test_of_many_consumers_with_room_no_more_are_asked_than_there_is_a_limit() -> None:
    management, consumers = Dispatch(0), [Consumer(2) for _ in range(2000)]
    for each in consumers:
        management.join(each)
    assert management.wanted(256) == 256
    assert sum(each.looks for each in consumers) == 128


def test_a_consumer_that_is_offered_keeps_its_turn_or_joins_behind_the_others() -> None:
    management, first, second, third = Dispatch(0), Consumer(1), Consumer(9), Consumer(1)
    for each in (first, second, third):
        management.join(each)
    management.offer(second)
    management.add(items(1, 2))
    management.serve(9)
    assert (first.numbers, second.numbers) == ([1], [2])
    first.credit = 1  # it is in the turn still, for nobody has seen that it had no room
    management.offer(first)
    management.add(items(3, 4, 5))
    management.serve(9)
    assert (first.numbers, second.numbers, third.numbers) == ([1, 4], [2, 5], [3])
    management.add(items(6, 7))
    management.serve(9)
    assert second.numbers == [2, 5, 6, 7]
    third.credit = first.credit = 1
    management.offer(third)
    management.offer(first)
    management.add(items(8, 9, 10))
    management.serve(9)
    assert (first.numbers, second.numbers, third.numbers) == (
        [1, 4, 10], [2, 5, 6, 7, 8], [3, 9],
    )  # fmt: skip
    management.leave(first)
    management.offer(first)
    first.credit = 9
    management.add(items(11))
    management.serve(9)
    assert second.numbers[-1] == 11
