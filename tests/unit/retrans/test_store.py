"""The packet store: what it keeps, what gives way, what it says it has; as both twins."""

import random

import pytest

from feedhandler.retrans import store as compiled
from tests.support.seeds import drawn
from tests.support.twins import either, twins_of

#: A store of either twin.
make = either({name: module.PacketStore for name, module in twins_of(compiled).items()})


def body(number: int, size: int = 10) -> bytes:
    """Bytes that tell which packet they are of."""
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


def put(store, first: int, end: int, size: int = 10) -> None:
    """Append the packets `first` to `end` - 1."""
    for number in range(first, end):
        assert store.append(number, number + 1, body(number, size), 0, size) == 1


def numbers(store, first: int, end: int) -> list[int]:
    return [sequence for sequence, _, _ in store.packets(first, end)]


def test_an_empty_store_holds_nothing(make):
    store = make(1000)
    assert (store.first, store.end, store.count, store.bytes, store.evicted) == (0, 0, 0, 0, 0)
    assert store.packets(0, 100) == []
    assert not store.covers(0, 1)
    assert store.covers(5, 5)


def test_packets_come_out_as_they_went_in(make):
    store = make(1000)
    data = b"..onetwo..."
    assert store.append(7, 8, data, 2, 3) == 1
    assert store.append(8, 9, data, 5, 3) == 1
    assert store.packets(7, 9) == [(7, 8, b"one"), (8, 9, b"two")]
    assert store.packets(8, 100) == [(8, 9, b"two")]
    assert (store.first, store.end, store.count, store.bytes) == (7, 9, 2, 6)


def test_the_oldest_give_way_when_bytes_run_out(make):
    store = make(100)
    put(store, 1, 26)
    assert store.bytes <= 100
    assert store.count == 10
    assert (store.first, store.end, store.evicted) == (16, 26, 15)
    assert store.packets(1, 100) == [(n, n + 1, body(n)) for n in range(16, 26)]


def test_the_oldest_give_way_when_entries_run_out(make):
    store = make(1000, 4)
    put(store, 1, 10)
    assert numbers(store, 0, 100) == [6, 7, 8, 9]
    assert store.first == 6


def test_a_packet_as_long_as_the_store_pushes_out_all_others(make):
    store = make(100)
    put(store, 1, 6)
    put(store, 6, 7, 100)
    assert numbers(store, 0, 100) == [6]
    put(store, 7, 8, 1)
    assert numbers(store, 0, 100) == [7]


def test_what_cannot_be_kept_is_refused_and_counted(make):
    store = make(100)
    put(store, 5, 7)
    assert store.append(6, 7, b"x", 0, 1) == 0
    assert store.append(5, 9, b"x", 0, 1) == 0
    assert store.append(8, 8, b"x", 0, 1) == 0
    assert store.append(9, 10, bytes(101), 0, 101) == 0
    assert store.refused == 4
    assert numbers(store, 0, 100) == [5, 6]


@pytest.mark.parametrize(("start", "size"), [(-1, 2), (0, 5), (4, 1), (0, 0), (2, -1)])
def test_a_packet_outside_its_buffer_is_the_callers_fault(make, start, size):
    with pytest.raises(IndexError):
        make(100).append(1, 2, b"four", start, size)


def test_a_store_without_room_cannot_be_made(make):
    with pytest.raises(ValueError, match="room"):
        make(0)


def test_clearing_begins_a_new_epoch(make):
    store = make(100)
    put(store, 50, 70)
    store.clear()
    assert (store.first, store.end, store.count, store.bytes) == (0, 0, 0, 0)
    put(store, 1, 3)
    assert numbers(store, 0, 100) == [1, 2]
    assert store.covers(1, 3)


def test_a_hole_is_known(make):
    store = make(1000)
    put(store, 1, 4)
    put(store, 6, 9)
    assert store.covers(1, 4)
    assert store.covers(6, 9)
    assert store.covers(7, 8)
    for first, end in [(3, 5), (4, 6), (4, 5), (3, 7), (5, 7), (0, 2), (8, 10), (1, 9)]:
        assert not store.covers(first, end), (first, end)


def test_packets_of_several_numbers_are_found_by_each(make):
    """A packet of a feed that counts messages has a range of numbers, and is found by each."""
    store = make(1000)
    store.append(10, 15, b"a", 0, 1)
    store.append(15, 16, b"b", 0, 1)
    store.append(20, 30, b"c", 0, 1)
    assert numbers(store, 12, 13) == [10]
    assert numbers(store, 14, 21) == [10, 15, 20]
    assert numbers(store, 16, 20) == []
    assert store.covers(11, 16)
    assert store.covers(25, 28)
    assert not store.covers(15, 21)


@drawn(4)
def test_it_agrees_with_a_plain_list(make, seed):
    """Random packets, sizes and holes; reproduce with `-k 'plain_list and <seed>'`."""
    print("seed", seed)
    chance = random.Random(seed)
    bytes_max, packets_max = chance.randint(20, 300), chance.choice([0, 3, 10])
    store = make(bytes_max, packets_max)
    model: list[tuple[int, int, bytes]] = []
    number, evicted = 1, 0
    for _ in range(400):
        number += chance.choice([0, 0, 0, 0, 3])
        width = chance.choice([1, 1, 4])
        data = chance.randbytes(chance.randint(1, bytes_max // 2))
        store.append(number, number + width, data, 0, len(data))
        model.append((number, number + width, data))
        number += width
        evicted = store.evicted
        assert store.count == len(model) - evicted
        held = model[evicted:]
        assert held
        assert store.bytes == sum(len(data) for *_, data in held) <= bytes_max
        first, end = chance.randint(0, number + 2), chance.randint(0, number + 2)
        touched = [entry for entry in held if entry[0] < end and entry[1] > first]
        assert store.packets(first, end) == (touched if first < end else [])
        have = {n for low, high, _ in held for n in range(low, high)}
        assert store.covers(first, end) == have.issuperset(range(first, end))
    assert store.packets(0, number) == model[evicted:]
    assert evicted
    if not packets_max:  # the slab, not the table, was the bound: it is well used
        assert store.bytes > bytes_max // 4


# -- over several epochs ------------------------------------------------------------------------


def test_a_keeping_store_forgets_numbers_and_keeps_packets_until_room_is_needed(make):
    store = make(100)
    store.keeping = True
    put(store, 1, 6)
    store.clear()
    assert (store.first, store.end, store.count, store.bytes) == (0, 0, 0, 0)
    assert (store.held, store.held_bytes, store.next_serial) == (5, 50, 5)
    assert not store.covers(1, 3)
    put(store, 1, 4)
    assert numbers(store, 0, 100) == [1, 2, 3]
    assert store.packet(4) == (5, 6, body(5), 0, 0, 0)
    assert store.packet(5) == (1, 2, body(1), 0, 0, 0)
    assert store.packet(8) is None
    put(store, 4, 9)
    assert (store.held, store.count, store.first) == (10, 8, 1)
    put(store, 9, 12)
    assert (store.held, store.count, store.bytes, store.first) == (10, 10, 100, 2)
    assert (store.gone_first, store.gone_next) == (1, 2)
    assert store.packet(5) is None
    assert store.entry(5) == -1
    assert store.entry(6) >= 0


def test_a_range_of_serials_is_searched_by_number(make):
    store = make(1000)
    store.keeping = True
    put(store, 10, 20)
    store.clear()
    put(store, 5, 10)
    assert store.find(0, 10, 12) == 2
    assert store.find(0, 10, 50) == 10
    assert store.find(10, 15, 7) == 12
    assert store.find(15, 15, 7) == 15


def test_a_packet_that_overlaps_the_one_before_is_kept_but_not_offered_by_number(make):
    store = make(1000)
    assert store.append(1, 6, body(1), 0, 10, 55, 0, 5) == 1
    assert store.append(4, 6, body(4), 0, 10, 56, 2, 2) == 0
    assert store.append(4, 9, body(4), 0, 10, 56, 2, 5) == 1
    assert store.append(9, 11, body(9), 0, 10, 57, 0, 2) == 1
    assert store.packet(1) == (4, 9, body(4), 56, 2, 5)
    assert numbers(store, 1, 20) == [1, 9]
    assert store.covers(9, 11)
    assert not store.covers(4, 11)


def test_a_store_that_trims_offers_an_overlapping_packet_as_what_it_brought(make):
    """A byte stands for a message, and its value for the number."""

    def trimming(bytes_max):
        store = make(bytes_max)
        store.trim_by(lambda data, first, end: bytes(n for n in data if first <= n < end))
        return store

    def put(store, first, end, skip=0):
        data = bytes(range(first, end))
        return store.append(first, end, data, 0, len(data), 0, skip)

    store = trimming(1 << 10)
    assert put(store, 1, 4)
    assert put(store, 2, 7, skip=2)
    assert put(store, 7, 8)
    assert store.packets(1, 8) == [(1, 4, b"\1\2\3"), (4, 7, b"\4\5\6"), (7, 8, b"\7")]
    assert store.packets(2, 4) == [(1, 4, b"\1\2\3")]
    assert store.packets(5, 6) == [(4, 7, b"\4\5\6")]
    assert store.covers(1, 8)
    assert put(store, 8, 12, skip=2)  # 8 and 9 are said to be there, and are not
    assert not store.covers(7, 11)
    assert store.covers(10, 12)
    small = trimming(8)
    assert put(small, 1, 5)
    assert put(small, 3, 7, skip=2)
    assert small.covers(1, 7)
    assert put(small, 7, 10)
    assert (small.first, small.covers(3, 10), small.covers(5, 10)) == (5, False, True)
    small.clear()
    assert put(small, 7, 10, skip=1)
    assert (small.first, small.packets(1, 20)) == (8, [(8, 10, b"\x08\x09")])


def test_bytes_of_a_range_are_those_of_its_packets(make):
    store = make(1000)
    put(store, 1, 6)
    put(store, 6, 11, 20)
    assert store.bytes_of(1, 11) == 150
    assert store.bytes_of(4, 8) == 60
    assert store.bytes_of(50, 60) == 0


# -- packets outside the sequence -----------------------------------------------------------


def test_packets_outside_the_sequence_are_held_at_their_position_and_not_offered_by_number(make):
    store = make(1000)
    ours, other = (1 << 62 | n for n in (5, 6))
    assert store.append_unsequenced(ours, 7, b"before", 0, 6) == 1
    assert (store.first, store.end, store.covers(7, 8)) == (0, 0, False)
    put(store, 7, 9)
    assert store.append_unsequenced(other, 9, b"between", 0, 7, 55, 3) == 1
    put(store, 9, 10)
    assert (store.first, store.end) == (7, 10)
    assert numbers(store, 0, 100) == [7, 8, 9]
    assert store.covers(7, 10)
    assert [store.packet(serial)[2] for serial in range(5)] == [
        b"before", body(7), body(8), b"between", body(9)
    ]  # fmt: skip
    assert store.packet(3) == (9, 9, b"between", 55, other, 3)
    assert store.find_unsequenced(other) == 3
    assert store.find_unsequenced(7) == -1
    assert [store.find(0, 5, number) for number in (7, 8, 9)] == [1, 2, 4]
    assert store.append_unsequenced(ours, 10, bytes(1001), 0, 1001) == 0


def test_a_hole_before_a_packet_outside_the_sequence_is_still_one(make):
    store = make(1000)
    put(store, 1, 3)
    store.append_unsequenced(1 << 62, 5, b"x", 0, 1)
    put(store, 5, 7)
    assert not store.covers(1, 4)
    assert not store.covers(2, 6)
    assert store.covers(5, 7)
    assert numbers(store, 2, 6) == [2, 5]


def test_one_that_gave_way_takes_the_position_behind_the_packet_before_it_along(make):
    store = make(30)
    put(store, 1, 2)
    store.append_unsequenced(1 << 62, 2, body(0), 0, 10)
    put(store, 2, 4)
    assert (store.gone_first, store.gone_next) == (1, 2)
    put(store, 4, 5)
    assert (store.gone_first, store.gone_next) == (2, 3)
