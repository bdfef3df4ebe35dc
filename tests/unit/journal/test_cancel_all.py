"""Cancelling everything in a persistent queue, reported page by page."""

from dataclasses import replace

import pytest

from feedhandler.journal.layout import Status
from tests.support.journal import DAY_NS, SMALL, Queue


@pytest.fixture
def queue() -> Queue:
    """An empty one."""
    return Queue()


def test_cancelling_all_partitions_what_was_there_and_pages_tell_all_that_is_to_be_forwarded(
    queue: Queue,
) -> None:
    queue.put(*[b"x"] * 12)
    queue.take(8)
    queue.end(1, 2, 4, 7)
    queue.delivery.close_order(2)
    cancelled, in_hand, page = queue.delivery.cancel_all_by_page(0, 3)
    assert (cancelled, in_hand) == ([9, 10, 11, 12], [3, 5, 6, 8])
    assert (page.items, page.until, page.more) == ([(1, True), (3, False), (4, True)], 13, True)
    # Between pages: one comes back, one is delivered, and what is put later is none of this.
    assert queue.delivery.release(6) is Status.CANCELLED
    queue.end(5)
    queue.put(b"later", b"later")
    queue.end(*queue.take(1))
    page = queue.delivery.forward_page(0, 4, page.until, 3)
    assert (page.items, page.more) == ([(5, True), (7, True), (8, False)], False)
    assert queue.delivery.forward_page(0, 8, 13, 3).items == []
    assert queue.delivery.forward_page(DAY_NS + 1, 0, 1 << 70, 9).items == [(3, False), (8, False)]


def test_pages_go_through_ids_of_blocks_used_anew(queue: Queue) -> None:
    while queue.store.counts.blocks_reused < 2:
        queue.put(bytes(3000))
        queue.end(*queue.take())
    numbers, page = [], queue.delivery.cancel_all_by_page(0, 7)[2]
    while True:
        numbers += [number for number, _ in page.items]
        if not page.more:
            break
        page = queue.delivery.forward_page(0, numbers[-1], page.until, 7)
    assert numbers == list(range(1, queue.store.visible_end))


def test_pages_are_in_order_where_a_block_was_used_anew_before_an_older_one() -> None:
    queue = Queue(replace(SMALL, blocks=3))
    first = queue.put(bytes(3000))[0]
    queue.take(1)
    for _ in range(60):
        queue.end(*queue.put(bytes(3000)))
    assert queue.store.counts.blocks_reused
    assert queue.delivery.find(first) is not None, "its block is still in use"
    items, page = [], queue.delivery.cancel_all_by_page(0, 7)[2]
    while True:
        items += page.items
        if not page.more:
            break
        page = queue.delivery.forward_page(0, items[-1][0], page.until, 7)
    assert items == [(n, n != first) for n in range(1, queue.store.visible_end)]
