"""Order of consumers: the one with the fewest in hand, and among equals who came first."""

import pytest

from feedhandler.keyed.rota import LEVELS, Rota


def order(rota: Rota[str]) -> list[str]:
    """All that stand there, in their turns."""
    return list(iter(rota.next, None))


@pytest.mark.parametrize(
    ("offers", "turns"),
    [
        ([], ""),
        ([("a", 0), ("b", 0), ("c", 0)], "abc"),
        ([("a", 2), ("b", 0), ("c", 1)], "bca"),
        ([("a", 0), ("b", 0), ("a", 0)], "ab"),  # offered twice: it keeps its position
        ([("a", 0), ("b", 0), ("a", 1)], "ba"),
        ([("a", 3), ("b", 3), ("a", 0)], "ab"),
        ([("a", LEVELS + 5), ("b", LEVELS)], "ab"),  # equals from there on
    ],
)
def test_who_has_the_fewest_in_hand_comes_first(offers: list[tuple[str, int]], turns: str) -> None:
    rota: Rota[str] = Rota()
    for consumer, in_hand in offers:
        rota.offer(consumer, in_hand)
    assert len(rota) == len(turns)
    assert all(consumer in rota for consumer, _ in offers)
    assert "".join(order(rota)) == turns
    assert len(rota) == 0
    assert "a" not in rota


def test_who_is_removed_has_no_turn_until_it_is_offered_again() -> None:
    rota: Rota[str] = Rota()
    rota.offer("a", 0)
    rota.offer("b", 0)
    rota.remove("a")
    rota.remove("a")
    rota.remove("who never came")
    assert order(rota) == ["b"]
    rota.offer("a", 7)
    assert rota.next() == "a"
    assert rota.next() is None
