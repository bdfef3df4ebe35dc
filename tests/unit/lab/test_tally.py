"""Tally of a measuring client: every delivery once, in order, timed."""

import random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from feedhandler.amqp.framing import WHOLE_PACKET
from feedhandler.amqp.subscribing.columns import Batch, Workspace
from feedhandler.lab import tally as compiled
from tests.support.twins import either, twins_of

module = either(twins_of(compiled))
#: Two services, of 4 and 3 packets, numbered from 10 and from 1; two and three messages a packet.
SERVICES, BASES, SIZES, MESSAGES = [104, 107], [10, 1], [4, 3], [2, 2, 2, 2, 3, 3, 3]
NOW_NS = 1_000_000_000

Position = tuple[int, int, int]


def batch_of(positions: list[Position], stamp_ns: int = NOW_NS - 500, notes: Any = None) -> Batch:
    """A read with deliveries of (service, sequence, number)."""
    batch = Batch(object(), "packet", notes, Workspace())
    if positions:
        batch.collect(
            [
                SimpleNamespace(
                    body=b"12345678", received_ns=stamp_ns, sequence=sequence, number=number,
                    day=0, service=service, snapshot=False, feed_number=0, send_time=0,
                )
                for service, sequence, number in positions
            ]
        )  # fmt: skip
    return batch


def packets() -> list[Position]:
    """Everything that is expected, whole packets, the services in turn."""
    return [(104, n, WHOLE_PACKET) for n in range(10, 14)] + [
        (107, n, WHOLE_PACKET) for n in range(1, 4)
    ]


def singles() -> list[Position]:
    """The same, message by message."""
    counts = iter(MESSAGES)
    return [(service, n, at) for service, n, _ in packets() for at in range(next(counts))]


def expecting(module: ModuleType, timed_from: tuple[int, int] = (10, 1)) -> Any:
    tally = module.Tally()
    tally.expect(SERVICES, BASES, SIZES, timed_from)
    return tally


def wrong(tally: Any, counts: list[int]) -> tuple[int, int, int]:
    verdict = tally.verdict(np.array(counts, np.uint16))
    return verdict["lost"], verdict["duplicated"], verdict["reordered"]


ONES = [1] * 7


def test_everything_once_and_in_order_is_right(module: ModuleType) -> None:
    for positions, counts in ((packets(), ONES), (singles(), MESSAGES)):
        tally = expecting(module)
        for position in positions:
            tally.record(batch_of([position]), NOW_NS)
        assert wrong(tally, counts) == (0, 0, 0)
        assert tally.named == []
        assert tally.histogram.count == tally.deliveries == len(positions)
        assert tally.histogram.maximum == tally.histogram.minimum == 500
        assert tally.body_bytes == 8 * len(positions)


def test_services_may_be_mixed_in_any_way_but_not_their_own_numbers(
    module: ModuleType, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        queues = [[p for p in singles() if p[0] == service] for service in SERVICES]
        mixed = []
        while any(queues):
            mixed.append(chance.choice([queue for queue in queues if queue]).pop(0))
        tally = expecting(module)
        while mixed:
            size = chance.randint(1, 4)
            tally.record(batch_of(mixed[:size]), NOW_NS)
            del mixed[:size]
        assert wrong(tally, MESSAGES) == (0, 0, 0)


def test_where_some_messages_of_a_packet_are_wanted_the_others_are_no_loss(
    module: ModuleType,
) -> None:
    tally = module.Tally()
    tally.expect(SERVICES, BASES, SIZES, [10, 1], thinned=True)
    tally.record(batch_of([(104, 10, 1), (107, 2, 0), (107, 2, 2)]), NOW_NS)
    assert wrong(tally, [1, 0, 0, 0, 0, 2, 0]) == (0, 0, 0)
    assert tally.named == []
    assert wrong(tally, [1, 0, 0, 0, 0, 2, 1]) == (1, 0, 0)


def test_a_lost_packet_is_named(module: ModuleType) -> None:
    tally = expecting(module)
    tally.record(batch_of([p for p in packets() if p[:2] != (107, 2)]), NOW_NS)
    assert wrong(tally, ONES) == (1, 0, 0)
    assert tally.first_lost(np.array(ONES), SERVICES) == ["service 107, 2: missing"]


def test_a_lost_message_is_noticed_within_its_packet(module: ModuleType) -> None:
    tally = expecting(module)
    tally.record(batch_of([p for p in singles() if p != (107, 2, 1)]), NOW_NS)
    assert wrong(tally, MESSAGES) == (1, 0, 0)
    assert tally.named == ["service 107, 2.2: a message before it is missing"]


def test_a_lost_last_packet_is_noticed(module: ModuleType) -> None:
    tally = expecting(module)
    tally.record(batch_of(packets()[:-1]), NOW_NS)
    assert wrong(tally, ONES) == (1, 0, 0)


def test_what_comes_twice_is_counted_and_named(module: ModuleType) -> None:
    tally = expecting(module)
    everything = packets()
    tally.record(batch_of([*everything[:2], everything[1], *everything[2:]]), NOW_NS)
    assert wrong(tally, ONES) == (0, 1, 0)
    assert tally.named == ["service 104, 11: came again or too late"]


def test_what_comes_too_late_is_reordered_and_neither_lost_nor_double(module: ModuleType) -> None:
    tally = expecting(module)
    everything = packets()
    everything[0], everything[2] = everything[2], everything[0]
    tally.record(batch_of(everything), NOW_NS)
    lost, duplicated, reordered = wrong(tally, ONES)
    assert (lost, duplicated) == (0, 0)
    assert reordered == 2  # 11 and 10 both come behind 12


@pytest.mark.parametrize("position", [(104, 9, 0), (104, 14, 0), (105, 10, 0), (0, 10, 0)])
def test_what_was_not_sent_is_a_stranger(module: ModuleType, position: Position) -> None:
    tally = expecting(module)
    tally.record(batch_of([position, *packets()]), NOW_NS)
    assert tally.strangers == 1
    assert wrong(tally, ONES) == (0, 1, 0)
    assert "never sent" in tally.named[0]


def test_only_the_first_few_are_named(module: ModuleType) -> None:
    tally = expecting(module)
    tally.record(batch_of([(1, n, 0) for n in range(20)]), NOW_NS)
    assert (tally.strangers, len(tally.named)) == (20, compiled.NAMED_MAX)


def test_the_warm_up_is_checked_but_not_timed(module: ModuleType) -> None:
    tally = expecting(module, timed_from=(12, 2))
    tally.record(batch_of(packets()), NOW_NS)
    assert wrong(tally, ONES) == (0, 0, 0)
    assert (tally.deliveries, tally.histogram.count) == (7, 4)


def test_a_new_expectation_starts_afresh(module: ModuleType) -> None:
    tally = expecting(module)
    tally.record(batch_of([(1, 1, 0), *packets()]), NOW_NS)
    tally.expect([107], [4], [1], [4])
    assert tally.histogram.count == tally.deliveries == tally.strangers == 0
    assert tally.named == []
    tally.record(batch_of([(107, 4, WHOLE_PACKET)]), NOW_NS)
    assert wrong(tally, [1]) == (0, 0, 0)


def test_without_expectation_deliveries_are_counted_and_timed_from_a_time_on(
    module: ModuleType,
) -> None:
    tally = expecting(module)
    tally.forget()
    tally.clock_from_ns = NOW_NS
    tally.record(batch_of([(1, 1, 0)]), NOW_NS - 1)
    tally.record(batch_of([(1, 1, 0), (9, 9, 9)]), NOW_NS)
    tally.record(batch_of([(1, 1, 0)], stamp_ns=0), NOW_NS)
    assert (tally.deliveries, tally.strangers, tally.histogram.count) == (4, 0, 2)


def test_announced_losses_count_as_far_as_they_are_of_this_step(module: ModuleType) -> None:
    def notes(service: int, *lost: tuple[int, int]) -> list[Any]:
        return [SimpleNamespace(quality={"service": service, "lost": list(lost)})]

    tally = expecting(module)
    tally.record(batch_of([], notes=notes(104, (1, 9), (9, 11), (13, 99))), NOW_NS)
    assert tally.announced == 3
    tally.record(batch_of([], notes=notes(1, (1, 9))), NOW_NS)
    assert tally.announced == 3
    tally.forget()
    tally.record(batch_of([], notes=notes(1, (1, 9))), NOW_NS)
    assert tally.announced == 12
