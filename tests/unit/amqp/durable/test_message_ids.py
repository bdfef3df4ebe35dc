"""The index from message-ids to items: found whatever page they are in, and after a restart."""

import random

import pytest

from feedhandler.amqp.durable import message_ids
from feedhandler.amqp.durable.message_ids import ENTRY_BYTES, RECORD, MessageIds

QUEUE = bytes(range(16))
END = 1 << 40


def filled(count: int, first: int = 1) -> MessageIds:
    ids = MessageIds(QUEUE)
    for number in range(first, first + count):
        ids.add(number, b"s%d" % number)
    return ids


def test_an_id_is_found_in_pages_and_in_what_is_newest() -> None:
    ids = filled(1000)
    assert ids.full_page(5)
    for number in range(1001, 1500):
        ids.add(number, b"s%d" % number)
    assert len(ids) == 1499
    for number in (1, 999, 1000, 1001, 1499):
        assert ids.find(b"s%d" % number) == [number]
    assert ids.find(b"s1500") == []


def test_an_id_that_was_used_again_finds_all_its_items_in_order() -> None:
    ids = MessageIds(QUEUE)
    for number in range(1, 7):
        ids.add(number, b"same" if number % 2 else b"")
        if number == 4:
            ids.full_page(1)
    ids.add(7, b"same")
    assert ids.find(b"same") == [1, 3, 5, 7]
    ids.add(9, b"same")
    assert ids.find(b"same") == [1, 3, 5, 7, 9]


def test_a_page_is_due_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "PAGE_ENTRIES", 3)
    ids = filled(2)
    assert not ids.page_due
    ids.add(3, b"x")
    assert ids.page_due
    ids.full_page(1)
    assert not ids.page_due
    assert ids.covered == 3


def test_nothing_new_makes_no_page() -> None:
    ids = MessageIds(QUEUE)
    assert ids.full_page(1) == b""
    ids.add(5, b"x")
    assert ids.full_page(1)
    assert ids.full_page(2) == b""


def test_items_without_ids_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "PAGE_ITEMS", 3)
    ids = MessageIds(QUEUE)
    ids.add(1, b"x")
    records = ids.full_page(1)
    for number in (2, 3, 4):
        assert not ids.page_due
        ids.add(number, b"")
    assert ids.page_due
    records += ids.full_page(1)
    ids.add(5, b"y")
    records += ids.full_page(1)
    again = MessageIds(QUEUE)
    assert again.load(records, 0, 6) == records
    assert (again.covered, again.find(b"x"), again.find(b"y")) == (5, [1], [5])


def test_the_oldest_page_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "ENTRIES_MAX", 25)
    ids = MessageIds(QUEUE)
    for number in range(1, 51):
        ids.add(number, b"s%d" % number)
        if number % 10 == 0:
            ids.full_page(1)
    assert len(ids) == 20
    assert ids.forgotten == 30
    assert ids.find(b"s30") == []
    assert ids.find(b"s31") == [31]


def recorded(pages: int, each: int = 10) -> tuple[bytes, MessageIds]:
    ids, data = MessageIds(QUEUE), b""
    for number in range(1, pages * each + 1):
        ids.add(number, b"s%d" % number)
        if number % each == 0:
            data += ids.full_page(100 * number)
    return data, ids


def test_records_bring_the_index_back() -> None:
    data, _ = recorded(5)
    ids = MessageIds(QUEUE)
    assert ids.load(data, 0, END) == data
    assert ids.covered == ids.last == 50
    assert [ids.find(b"s%d" % number) for number in (1, 50)] == [[1], [50]]


def test_records_of_another_day_are_left_out() -> None:
    data, _ = recorded(5)
    ids = MessageIds(QUEUE)
    kept = ids.load(data, 2001, END)
    assert len(kept) == 3 * (RECORD.size + 10 * ENTRY_BYTES)
    assert ids.find(b"s20") == []
    assert ids.find(b"s21") == [21]
    later = MessageIds(QUEUE)
    assert later.load(kept, 0, END) == kept
    assert later.covered == 50


def test_another_queues_records_and_cut_ones_are_not_believed() -> None:
    data, _ = recorded(3)
    other = MessageIds(bytes(16))
    assert other.load(data, 0, END) == b""
    for cut in (1, RECORD.size - 1, RECORD.size, len(data) - 1):
        ids = MessageIds(QUEUE)
        kept = ids.load(data[:cut], 0, END)
        assert data.startswith(kept)
        assert ids.covered == 10 * (len(kept) // (len(data) // 3))


def test_no_flipped_bit_is_believed(seed: int) -> None:
    draw = random.Random(seed)
    data, _ = recorded(3)
    for _ in range(300):
        spoiled = bytearray(data)
        index = draw.randrange(len(data))
        spoiled[index] ^= 1 << draw.randrange(8)
        ids = MessageIds(QUEUE)
        ids.load(bytes(spoiled), 0, END)
        whole = index // (len(data) // 3)
        # The record's own length is not covered before its bytes are: all of it goes.
        assert ids.covered == 10 * whole, f"seed {seed}, index {index}"


def test_unused_ids_are_looked_at_again() -> None:
    data, _ = recorded(3)
    ids = MessageIds(QUEUE)
    kept = ids.load(data, 0, 25)
    assert ids.covered == 20
    assert len(kept) == 2 * len(data) // 3


def test_a_hole_between_records_ends_what_is_believed() -> None:
    data, _ = recorded(3)
    each = len(data) // 3
    ids = MessageIds(QUEUE)
    assert ids.load(data[:each] + data[2 * each :], 0, END) == data[:each]
