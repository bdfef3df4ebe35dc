"""A changed subscription's two links made one: no gap, no duplicate for what is in both."""

import os
import random
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from feedhandler.amqp.subscribing.join import WHOLE, Join


@dataclass(frozen=True)
class Item:
    """A message as the core sees it; `symbol` is what a test asks about."""

    sequence: int
    number: int = WHOLE
    content: str = "packet"
    body: bytes = b""
    service: int = 104
    symbol: str = ""
    tag: bytes = b""


def note(reason: str, following: int | None, service: int = 104) -> Item:
    quality = {"reason": reason, "next": following, "service": service}
    return Item(following or 0, 0xFFFE, "quality", msgspec.json.encode(quality), service)


def story(items: list[Any]) -> list[Any]:
    return [
        msgspec.json.decode(x.body)["reason"] if x.content == "quality" else x.sequence
        for x in items
    ]


def after(sequence: int) -> Join:
    """A join for which the old link has brought this packet of service 104 last."""
    return Join({104: sequence << 16 | WHOLE})


def test_the_old_links_messages_come_until_it_is_where_the_new_one_begins() -> None:
    join = after(5)
    assert story(join.old(Item(6))) == [6]
    assert join.new(note("attached", 9)) == []
    assert join.new(Item(10)) == []
    assert story(join.old(Item(8))) == [8, "attached", 10]
    assert join.old(Item(10)) == []
    assert story(join.new(Item(11))) == [11]


def test_a_new_link_that_begins_behind_the_old_one_catches_up_first() -> None:
    join = after(5)
    assert story(join.old(Item(6)) + join.old(Item(9))) == [6, 9]
    assert join.new(note("attached", 7)) == []
    assert join.new(Item(8)) == []
    assert join.new(Item(9)) == []
    assert join.old(Item(10)) == []
    assert story(join.new(Item(10))) == [10]


def test_an_old_link_with_nothing_more_to_send_is_not_waited_for() -> None:
    join = after(5)
    join.new(note("attached", 9))
    join.new(Item(12))
    assert story(join.old_ended()) == ["attached", 12]
    assert join.done
    assert story(join.new(Item(13, service=105))) == [13]


def test_a_service_that_only_the_new_link_brings_waits_for_the_end_of_the_old_one() -> None:
    join = after(5)
    assert join.new(Item(50, service=105)) == []
    assert join.new(Item(8)) == []
    assert story(join.old(Item(7))) == [7, 8]
    assert story(join.old_ended()) == [50]


@pytest.mark.parametrize("behind", [False, True])
def test_an_epoch_that_begins_meanwhile_is_announced_once(behind: bool) -> None:
    join = after(500)
    if behind:  # the old link is still to come to it, the new one begins in it
        assert join.new(note("attached", 3)) == []
        assert join.new(Item(3)) == []
        assert story(join.old(Item(501))) == [501]
        assert story(join.old(note("reset", 1))) == ["reset"]
        assert story(join.old(Item(1)) + join.old(Item(2))) == [1, 2, "attached", 3]
    else:  # both come to it
        assert story(join.old(Item(501)) + join.old(note("reset", 1)) + join.old(Item(1))) == [
            501, "reset", 1
        ]  # fmt: skip
        assert join.new(note("attached", 502)) == []
        assert join.new(note("reset", 1)) == []
        assert join.new(Item(1)) == []
        assert story(join.new(Item(2))) == [2]


def test_a_reset_that_the_old_link_has_not_announced_is_the_new_ones_to_announce() -> None:
    join = after(500)
    join.new(note("attached", 501))
    assert story(join.new(note("reset", 1))) == ["reset"]
    assert story(join.new(Item(1))) == [1]


def test_a_stream_that_goes_back_to_what_was_not_lost_goes_back_on_both_links() -> None:
    join = after(500)
    assert story(join.old(Item(520))) == [520]
    assert story(join.old(note("withdrawn", 510)) + join.old(Item(510))) == ["withdrawn", 510]
    assert join.new(note("attached", 521)) == []
    assert join.new(note("withdrawn", 510)) == []
    assert join.new(Item(510)) == []
    assert story(join.new(Item(511))) == [511]


def test_a_snapshot_block_of_the_new_link_is_followed_by_what_follows_it() -> None:
    join = after(5)
    join.old(Item(9))
    join.new(note("attached", 7))
    assert join.new(Item(8)) == []
    block = [note("snapshot-begin", 8), Item(1 << 63 | 7 << 24), note("snapshot-end", 9)]
    assert story([y for x in block for y in join.new(x)])[0::2] == [
        "snapshot-begin", "snapshot-end"
    ]  # fmt: skip
    assert story(join.new(Item(9))) == [9]


def test_a_block_of_the_old_link_is_handed_out_whole() -> None:
    join = after(5)
    block = [note("snapshot-begin", 6), Item(1 << 63), note("snapshot-end", 6)]
    assert len([y for x in block for y in join.old(x)]) == 3
    join.old_ended()
    assert join.new(Item(1 << 63)) == []


def test_the_word_of_a_node_that_has_received_nothing_is_no_beginning() -> None:
    join = Join({})
    assert join.old(note("attached", None))
    assert story(join.new(note("attached", None))) == []
    assert story(join.old_ended()) == ["attached"]
    assert story(join.new(Item(1))) == [1]


ROUNDS = int(os.environ.get("ROUNDS", "600"))


def test_whatever_the_interleaving_what_is_in_both_comes_once_and_in_order(seed: int) -> None:
    for number in range(ROUNDS):
        one_round(random.Random(f"{seed}/{number}"), f"{seed}/{number}")


def one_round(rng: random.Random, name: str) -> None:
    """One node's stream, seen by a link that wants a and b and by one that wants b and c."""
    world = [Item(n, 0, symbol=rng.choice("abc")) for n in range(1, rng.randrange(5, 120))]
    asked = rng.randrange(len(world))  # what the old link was read up to when the new was asked
    attached = rng.randrange(asked, len(world))
    old = [x for x in world if x.symbol in "ab"]
    before = [x for x in old if x.sequence <= asked]
    rest = [x for x in old if x.sequence > asked]
    new = [note("attached", attached + 1)]
    new += [x for x in world if x.symbol in "bc" and x.sequence > attached]
    join = Join({104: before[-1].sequence << 16} if before else {})
    got = list(before)
    while rest or new or not join.done:
        # The old link is drained: it ends once all from before the new one's attach has come.
        drained = not rest or rest[0].sequence > attached
        choice = rng.random()
        if drained and not join.done and (choice < 0.1 or not (rest or new)):
            got += join.old_ended()
            rest = []
        elif rest and choice < 0.55:
            got += join.old(rest.pop(0))
        elif new:
            got += join.new(new.pop(0))
    numbers = [x.sequence for x in got if x.content != "quality"]
    assert numbers == sorted(set(numbers)), name
    assert {x.sequence for x in world if x.symbol == "b"} <= set(numbers), name
    fresh = [x.sequence for x in got if x.symbol == "c"]
    if fresh:  # what is new has no hole from its first one on
        wanted = [x.sequence for x in world if x.symbol == "c" and x.sequence >= fresh[0]]
        assert fresh == wanted, name


def test_messages_outside_the_sequence_come_once_though_they_have_no_position() -> None:
    one, two, three = (Item(1 << 62 | n, tag=bytes([n])) for n in (1, 2, 3))
    join = after(5)
    assert join.new(one) == join.new(note("attached", 8)) == []
    assert story(join.old(one)) == [one.sequence]
    assert story([*join.old(Item(6)), *join.old(two)]) == [6, two.sequence]
    assert join.new(Item(6)) == join.new(two) == []
    assert story(join.old(Item(7))) == [7, "attached"]
    assert story([*join.new(two), *join.new(three), *join.new(Item(8))]) == [three.sequence, 8]
    assert story(join.new(one)) == [one.sequence], "behind the change-over no other link brings it"
