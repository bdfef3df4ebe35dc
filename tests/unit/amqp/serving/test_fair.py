"""Places that strangers share: who has most of them makes room."""

from feedhandler.amqp.serving.fair import FairPool


def offered(pool: FairPool[str], *items: str) -> list[str]:
    """Offer items, each of the address that it begins with; those that are out for it, in order."""
    out = []
    for item in items:
        taken, gone = pool.room_for(item[0])
        if taken:
            pool.add(item[0], item)
        out += [gone] if gone is not None else [] if taken else [item]
    return out


def everything(pool: FairPool[str]) -> list[str]:
    found = []
    while (item := pool.pop()) is not None:
        found.append(item)
    return found


def test_two_addresses_that_have_all_slots_make_room_for_others() -> None:
    pool: FairPool[str] = FairPool(6)
    assert offered(pool, "a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4") == ["a4", "b4"]
    assert offered(pool, "c1", "c2") == ["a3", "b3"]
    assert offered(pool, "c3", "a5") == ["c3", "a5"]
    assert offered(pool, "d1", "d2") == ["a2", "d2"]
    assert len(pool) == 6


def test_the_addresses_are_served_in_rotation() -> None:
    pool: FairPool[str] = FairPool(9)
    assert offered(pool, "a1", "a2", "a3", "b1", "c1", "c2") == []
    pool.remove("a", "a2")
    pool.remove("a", "nobody")
    pool.remove("z", "nobody")
    assert "a3" in pool
    assert everything(pool) == ["a1", "b1", "c1", "a3", "c2"]
    assert len(pool) == 0


def test_a_pool_without_slots_admits_none() -> None:
    assert offered(FairPool(0), "a1") == ["a1"]
