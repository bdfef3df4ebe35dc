"""The table of resting orders against a dictionary, through growth, removal and clearance."""

from random import Random

from feedhandler.market import order_table as compiled
from tests.support.twins import either, twins_of

twin = either(twins_of(compiled))


def test_what_is_known_is_what_a_dictionary_knows(twin) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    table = twin.OrderTable()
    known: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for _ in range(12_000):
        scope, order_id = random.randrange(4), random.choice((1, 2**64 - 1)) * random.randrange(999)
        key = (scope, order_id & (2**64 - 1))
        chance = random.random()
        if chance < 0.6:
            order = (random.randrange(6), random.choice((1, 2)), -random.randrange(99), 7)
            known[key] = order
            table.put(*key, *order)
        elif chance < 0.997:
            slot = table.find(*key)
            assert (slot >= 0) == (key in known)
            if slot >= 0:
                kept = (table.instruments, table.sides, table.prices, table.sizes)
                assert tuple(each[slot] for each in kept) == known.pop(key)
                table.remove(slot)
        elif chance < 0.9985:
            gone = random.randrange(6)
            table.clear(gone)
            known = {each: order for each, order in known.items() if order[0] != gone}
        else:
            table.clear_scope(scope)
            known = {each: order for each, order in known.items() if each[0] != scope}
    for key in known:
        assert table.find(*key) >= 0
    table.clear_all()
    assert table.count == 0


def test_a_full_table_forgets_what_was_cleared_day_after_day(twin) -> None:
    table = twin.OrderTable(orders_max=700)
    for day in range(10):
        orders = range(600 * day, 600 * (day + 1))
        for order_id in orders:
            assert table.put(1, order_id, 5, 1, 100, 7) >= 0
        assert all(table.find(1, order_id) >= 0 for order_id in orders)
        table.clear_scope(1)
    assert table.refused == 0
    assert table.slots == table.slots_max == 1024


def test_a_table_full_of_orders_is_not_looked_through_for_each_further_one(twin) -> None:
    table = twin.OrderTable(orders_max=700)
    full = 1024 * 3 // 4
    for order_id in range(full + 10):
        table.put(1, order_id, order_id % 400, 1, 100, 7)
    assert (table.count, table.refused) == (full, 10)
    table.clear(0)
    for order_id in (5000, 5001):
        assert table.put(1, order_id, 2, 1, 100, 7) >= 0, "two of instrument 0 were stale"
    table.clear(1)
    while table.put(1, 5002, 2, 1, 100, 7) < 0:
        pass
    assert table.refused >= 10 + 1024 // 8, "few were stale before"
    assert table.count <= full
    assert all(table.find(1, each) >= 0 for each in range(full) if each % 400 > 1)
