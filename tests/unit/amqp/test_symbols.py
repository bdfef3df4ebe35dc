"""The routing cache's table against a dict, compiled and interpreted."""

import random
from typing import Any

from feedhandler.amqp import symbols
from tests.support.seeds import drawn
from tests.support.twins import either, twins_of

module = either(twins_of(symbols))


@drawn(2)
def test_the_map_agrees_with_a_dict(module: Any, seed: int) -> None:
    chance = random.Random(seed)
    table, known = module.SymbolMap(10_000), {}
    # Small numbers, text, and the two ends: what feeds use, and what collides.
    keys = [chance.randrange(3000) for _ in range(2000)]
    keys += [chance.getrandbits(64) for _ in range(1000)]
    keys += [n << 32 for n in range(500)] + [0, 2**64 - 1, 2**63]
    for _ in range(6000):
        key = chance.choice(keys)
        if chance.random() < 0.5:
            value = chance.randrange(2**31)
            assert table.put(key, value)
            known[key] = value
        assert table.get(key) == known.get(key, -1)
    assert table.count == len(known)
    assert all(table.get(key) == known.get(key, -1) for key in keys)


def test_at_the_bound_new_symbols_are_refused_and_known_ones_stay(module: Any) -> None:
    table = module.SymbolMap(5)
    assert all(table.put(key, key) for key in range(5))
    assert not table.put(5, 5)
    assert table.get(5) == -1
    assert table.put(4, 44)
    assert [table.get(key) for key in range(5)] == [0, 1, 2, 3, 44]


def test_a_map_that_grew_still_knows_everything(module: Any) -> None:
    table = module.SymbolMap(100_000)
    for key in range(20_000):
        table.put(key * 7919, key)
    assert table.count == 20_000
    assert all(table.get(key * 7919) == key for key in range(20_000))


def test_a_cleared_map_knows_nothing(module: Any) -> None:
    table = module.SymbolMap(10)
    table.put(1, 1)
    table.clear()
    assert table.get(1) == -1
    assert table.count == 0
    assert table.put(1, 2)
