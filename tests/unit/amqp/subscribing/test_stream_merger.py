"""Two gateways' streams made one: nothing is lost that one of them has, whatever happens."""

import os
import random
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from feedhandler.amqp.subscribing.stream_merger import (
    ASIDE_MAX,
    HOLD_NS,
    LAG_MAX,
    NEVER,
    WHOLE,
    StreamMerger,
)
from feedhandler.retrans.ranges import RANGES_MAX

A, B = 0, 1


@dataclass(frozen=True)
class Item:
    """A message as the core sees it; `last` is a batch's last sequence number."""

    sequence: int
    number: int = WHOLE
    content: str = "packet"
    body: bytes = b""
    service: int = 104
    day: int = 20261121
    last: int = 0
    tag: bytes = b""


class ItemShape:
    def span(self, item: Item) -> tuple[int, int]:
        last = max(item.last, item.sequence)
        first = item.sequence << 16 | (WHOLE if item.last else item.number)
        return first, last << 16 | item.number

    def cut(self, item: Item, after: int) -> Item:
        return replace(item, sequence=after + 1)

    def note(self, like: Item, body: bytes) -> Item:
        return replace(like, body=body)


def note(reason: str, following: int | None, **more: Any) -> Item:
    quality = {
        "state": "OK",
        "reason": reason,
        "service": 104,
        "next": following,
        "stale": [],
        **more,
    }
    day = quality.pop("day", 20261121)
    return Item(following or 0, 0xFFFE, "quality", msgspec.json.encode(quality), day=day)


def block(last: int, following: int) -> list[Item]:
    return [
        note("snapshot-begin", following, last=last),
        Item(1 << 63 | last << 24, body=b"block"),
        note("snapshot-end", following, last=last),
    ]


class Play:
    """A merge, and what it has handed out: numbers, and (reason, state, lost) of quality."""

    def __init__(self, **options: Any) -> None:
        self.merge = StreamMerger(ItemShape(), **options)
        self.now = 0

    def receive(self, link: int, *items: Any) -> list[Any]:
        for item in items:
            each = Item(item) if isinstance(item, int) else item
            self.merge.receive(link, each, self.now)
        return self.story()

    def attach(self, link: int, following: int | None, **more: Any) -> list[Any]:
        self.merge.up(link, self.now, more.pop("resumed", False))
        return self.receive(link, note(more.pop("reason", "attached"), following, **more))

    def down(self, link: int) -> list[Any]:
        self.merge.down(link, self.now)
        return self.story()

    def wait(self) -> list[Any]:
        self.now = self.merge.deadline
        self.merge.tick(self.now)
        return self.story()

    def story(self) -> list[Any]:
        events: list[Any] = []
        for item in self.merge.out:
            if item.content == "quality":
                body = msgspec.json.decode(item.body)
                events.append((body["reason"], body["state"], body.get("lost")))
            elif item.sequence >> 63:
                events.append("block")
            elif item.last:
                events += range(item.sequence, item.last + 1)
            else:
                events.append(
                    item.sequence if item.number == WHOLE else (item.sequence, item.number)
                )
        self.merge.out.clear()
        return events


@pytest.fixture
def play() -> Play:
    """Two gateways attached at 1."""
    play = Play()
    assert play.attach(A, 1) == [("attached", "OK", None)]
    assert play.attach(B, 1) == []
    return play


def test_the_first_copy_wins_whichever_link_brings_it(play: Play) -> None:
    assert play.receive(A, 1, 2, 3) == [1, 2, 3]
    assert play.receive(B, 1, 2, 3, 4, 5) == [4, 5]
    assert play.receive(A, 4, 5, 6) == [6]
    assert play.merge.duplicates == 5


def test_gaps_that_thinning_makes_are_no_loss(play: Play) -> None:
    assert play.receive(A, 10, 500) == [10, 500]
    assert play.receive(B, 10, 500, 800) == [800]


def test_what_one_lost_is_filled_in_by_the_other_and_not_announced(play: Play) -> None:
    assert play.receive(A, 1, 2, note("gap", 6, state="STALE", lost=[[3, 5]]), 6, 7) == [1, 2]
    assert play.merge.held(A) == 2
    assert play.receive(B, 1, 2, 3, 4) == [3, 4]
    assert play.receive(B, 5) == [5, 6, 7]
    assert play.receive(B, 6, 7) == []
    assert play.merge.held(A) == 0
    assert play.merge.deadline == NEVER


def test_what_one_dropped_from_a_full_queue_is_filled_in_by_the_other(play: Play) -> None:
    dropped = note("overflow", 3, state="STALE", lost=[[3, 5]])
    assert play.receive(A, 1, 2, replace(dropped, sequence=6), 6, 7) == [1, 2]
    assert play.receive(B, 1, 2, 3, 4, 5) == [3, 4, 5, 6, 7]
    assert play.merge.deadline == NEVER


def test_what_all_dropped_from_their_queues_is_announced(play: Play) -> None:
    dropped = note("overflow", 3, state="STALE", lost=[[3, 5]])
    assert play.receive(A, 1, 2, replace(dropped, sequence=6), 6) == [1, 2]
    dropped = note("overflow", 3, state="STALE", lost=[[2, 4]])
    events = play.receive(B, 1, replace(dropped, sequence=5), 5, 6)
    assert events == [("gap", "STALE", [[3, 4]]), 5, 6]


def test_a_stream_that_goes_on_without_its_snapshot_has_dropped_nothing(play: Play) -> None:
    assert play.receive(A, 1, note("overflow", 2, state="STALE", doubt="overflow"), 2)[0] == 1
    assert play.receive(B, 1, 2, 3)[-1] == 3


def test_what_all_lacked_in_error_comes_late_and_once(play: Play) -> None:
    gap = note("gap", 6, state="STALE", lost=[[3, 5]])
    back = note("withdrawn", 3, withdrawn=[[3, 5]])
    assert play.receive(A, 1, 2, gap, 6) == [1, 2]
    assert play.receive(B, 1, 2, gap, 6, 7) == [("gap", "STALE", [[3, 5]]), 6, 7]
    assert play.receive(A, back, 3, 4, 7) == [("withdrawn", "OK", None), 3, 4]
    assert play.receive(B, back, 3, 4, 5, 8) == [5, 8]
    assert play.receive(A, 5, 8, 9) == [9]


def test_what_is_lost_after_all_is_announced_again(play: Play) -> None:
    gap = note("gap", 6, state="STALE", lost=[[3, 5]])
    for link in (A, B):
        play.receive(link, 1, 2, gap, 6)
    assert play.receive(A, note("withdrawn", 3, withdrawn=[[3, 5]]), 3) == [
        ("withdrawn", "OK", None),
        3,
    ]
    lost = note("gap", 6, state="STALE", lost=[[4, 5]])
    assert play.receive(A, lost, 7) == [("gap", "STALE", [[4, 5]]), 7]


def test_what_one_lost_in_error_the_other_had_anyway(play: Play) -> None:
    play.receive(B, 1, 2, 3, 4, 5, 6)
    play.receive(A, 1, 2, note("gap", 6, state="STALE", lost=[[3, 5]]), 6)
    assert play.receive(A, note("withdrawn", 3, withdrawn=[[3, 5]]), 3, 4, 5, 7) == [7]


def test_what_one_was_overtaken_in_while_it_caught_up_the_other_fills_in(play: Play) -> None:
    assert play.receive(A, 1, 2) == [1, 2]
    assert play.down(A) == []
    assert play.attach(A, 3, resumed=True, reason="resume", lost=[]) == []
    slow = note("resume", 6, state="STALE", lost=[[4, 5]], doubt="too slow")
    assert play.receive(A, 3, slow, 6, 7) == [3]
    assert play.receive(B, 1, 2, 3, 4, 5) == [4, 5, 6, 7]


def test_what_all_were_overtaken_in_is_announced(play: Play) -> None:
    assert play.receive(A, 1, 2) == [1, 2]
    play.down(A)
    play.down(B)
    assert play.attach(A, 3, resumed=True, reason="resume", lost=[]) == []
    slow = note("resume", 6, state="STALE", lost=[[4, 5]], doubt="too slow")
    assert ("gap", "STALE", [[4, 5]]) in play.receive(A, 3, slow, 6)


def test_a_gateway_that_has_nothing_to_resume_from_yet_lacks_what_precedes_its_start(
    play: Play,
) -> None:
    assert play.receive(A, 1, 2) == [1, 2]
    play.down(A)
    play.down(B)
    empty = {"state": "STALE", "doubt": "nothing was published yet", "lost": []}
    play.attach(A, 0, resumed=True, reason="resume", **empty)
    assert ("gap", "STALE", [[3, 5]]) in play.receive(A, note("start", 6), 6) + play.wait()


def test_only_what_both_lost_is_announced(play: Play) -> None:
    assert play.receive(A, 1, 2, note("gap", 8, state="STALE", lost=[[3, 7]]), 8) == [1, 2]
    both = play.receive(B, 1, 2, note("gap", 6, state="STALE", lost=[[3, 5]]))
    assert both == [("gap", "STALE", [[3, 5]])]
    assert play.receive(B, 6, 7, 8) == [6, 7, 8]


def test_the_other_ahead_needs_no_wait(play: Play) -> None:
    assert play.receive(B, 1, 2, 3, 4, 5, 6) == [1, 2, 3, 4, 5, 6]
    assert play.receive(A, 1, note("gap", 5, state="STALE", lost=[[2, 4]]), 5, 6, 7) == [7]


def test_a_hole_waits_no_longer_than_its_time(play: Play) -> None:
    assert play.receive(A, 1, note("gap", 4, state="STALE", lost=[[2, 3]]), 4) == [1]
    assert play.merge.deadline == HOLD_NS
    play.now = HOLD_NS - 1
    play.merge.tick(play.now)
    assert play.story() == []
    assert play.wait() == [("gap", "STALE", [[2, 3]]), 4]
    assert play.merge.gave_up == 1
    assert play.receive(B, 1, 2, 3, 4, 5) == [5]
    assert play.merge.late == 2


def test_who_dies_is_no_longer_waited_for(play: Play) -> None:
    play.receive(A, 1, note("gap", 4, state="STALE", lost=[[2, 3]]), 4)
    assert play.down(B) == [("gap", "STALE", [[2, 3]]), 4]


def test_what_a_dead_gateway_had_sent_behind_its_hole_is_not_thrown_away(play: Play) -> None:
    play.receive(A, 1, note("gap", 4, state="STALE", lost=[[2, 3]]), 4, 5)
    assert play.down(A) == []
    assert play.receive(B, 2) == [2]
    assert play.down(B) == [("gap", "STALE", [[3, 3]]), 4, 5]
    assert play.attach(A, 9) == [("gap", "STALE", [[6, 8]])]
    assert play.receive(A, 9) == [9]


def test_a_gateway_that_comes_back_ahead_waits_for_the_other(play: Play) -> None:
    play.receive(A, 1, 2, 3)
    play.down(A)
    assert play.receive(B, 1, 2, 3, 4) == [4]
    assert play.attach(A, 8) == []
    assert play.receive(A, 8) == []
    assert play.receive(B, 5, 6) == [5, 6]
    assert play.receive(B, 7) == [7, 8]


def test_after_both_were_gone_a_node_may_go_on_from_the_tag(play: Play) -> None:
    play.receive(A, 1, 2)
    play.down(A)
    play.down(B)
    assert play.attach(B, 3, resumed=True, reason="resume", lost=[]) == []
    assert play.receive(B, 3, 4) == [3, 4]
    play.down(B)
    late = {"state": "STALE", "lost": [[5, 8]]}
    assert play.attach(A, 9, resumed=True, reason="resume", **late) == [("gap", "STALE", [[5, 8]])]
    assert play.receive(A, 9) == [9]


def test_a_new_epoch_begins_with_the_first_who_says_so(play: Play) -> None:
    play.receive(A, 1, 2, 100)
    play.receive(B, 1, 2)
    assert play.receive(A, note("reset", 1), 1, 2) == [("reset", "OK", None), 1, 2]
    assert play.receive(B, 100, 101, note("reset", 1), 1, 2, 3) == [3]


def test_a_gateway_that_comes_back_in_a_new_epoch_waits_for_the_other(play: Play) -> None:
    play.receive(B, LAG_MAX * 2)
    play.down(A)
    play.attach(A, 3, since=1)
    assert play.receive(A, 3) == []
    assert play.receive(B, LAG_MAX * 2 + 1) == [LAG_MAX * 2 + 1]
    assert play.receive(B, note("reset", 1), 1, 2, 3) == [("reset", "OK", None), 1, 2, 3]
    assert play.receive(A, 4) == [4]


def test_a_new_epoch_does_not_wait_for_the_dead(play: Play) -> None:
    play.receive(B, LAG_MAX * 2)
    play.down(A)
    play.attach(A, 3, since=1)
    play.receive(A, 3, 4)
    assert play.down(B) == [("gap", "STALE", [[1, 2]]), ("reset", "STALE", None), 3, 4]


def test_another_day_is_another_epoch(play: Play) -> None:
    play.receive(A, 5)
    play.down(B)
    play.attach(B, 9, day=20261120)
    assert play.receive(B, replace(Item(9), day=20261120)) == []
    play.down(B)
    play.down(A)
    play.attach(B, 2, day=20261122)
    assert play.receive(B, replace(Item(2), day=20261122)) == [("reset", "OK", None), 2]


def test_a_day_that_turns_while_numbers_go_on_is_no_other_epoch(play: Play) -> None:
    play.receive(A, 5)
    play.down(B)
    assert play.receive(A, replace(Item(6), day=20261122)) == [6]
    play.attach(B, 7, day=20261122)
    assert play.receive(B, replace(Item(7), day=20261122)) == [7]
    assert play.receive(A, replace(Item(8), day=20261122)) == [8]


def test_an_older_epoch_is_believed_when_no_link_has_a_newer(play: Play) -> None:
    play.receive(A, 5, note("reset", 1), 1)
    play.down(A)
    assert play.story() == []
    assert play.receive(B, 7) == [("gap", "STALE", [[2, 6]]), 7]
    assert play.receive(B, 8) == [8]


def test_the_best_of_their_states_is_handed_on(play: Play) -> None:
    assert play.receive(A, note("silent", 1, state="SILENT")) == []
    assert play.receive(B, note("missing", 1, state="RECOVERING", missing=[[1, 4]])) == [
        ("missing", "RECOVERING", None)
    ]
    assert play.receive(A, note("back", 1)) == [("back", "OK", None)]
    assert play.down(A) == [("gateway", "RECOVERING", None)]
    assert play.receive(B, note("no snapshot", 1, state="STALE", doubt="none")) == [
        ("no snapshot", "STALE", None)
    ]


def test_a_gateway_that_waits_for_its_first_packet_joins_by_its_start() -> None:
    play = Play()
    assert play.attach(A, None, state="WAITING") == [("attached", "WAITING", None)]
    play.attach(B, 5)
    assert play.story() == []
    assert play.receive(B, 5, 6) == [5, 6]
    assert play.receive(A, note("start", 9)) == []
    assert play.receive(A, 9) == []
    assert play.receive(B, 7, 9) == [7, 9]


def test_without_quality_messages_a_gateway_has_what_it_sends() -> None:
    play = Play()
    play.merge.up(A, 0)
    play.merge.up(B, 0)
    assert play.receive(A, 5, 6) == [5, 6]
    assert play.receive(B, 8) == []
    assert play.receive(A, 7) == [7, 8]
    assert play.receive(B, 9) == [9]


def test_a_block_is_handed_out_whole_where_it_heals(play: Play) -> None:
    assert play.receive(A, *block(3, 4)) == []
    play.receive(A, 4, note("gap", 7, state="STALE", lost=[[5, 6]]))
    play.down(B)
    assert play.receive(A, 7, *block(7, 8)[:2]) == [7]
    assert play.receive(A, block(7, 8)[2], 8) == [
        ("snapshot-begin", "STALE", None), "block", ("snapshot-end", "REFRESHED", None), 8
    ]  # fmt: skip


def test_behind_a_block_the_stream_goes_on_where_its_gateway_does() -> None:
    play = Play(snapshot=True)
    play.attach(A, 1)
    play.attach(B, 1)
    play.receive(A, 1, 2)
    assert play.receive(B, 1, 2, 3, 4) == [3, 4]
    assert [x for x in play.receive(A, *block(2, 3)) if x == "block"] == ["block"]
    assert play.receive(B, *block(4, 5), 5) == []
    assert play.receive(A, 3) == [3]
    assert play.receive(A, 4) == [4, 5]
    assert play.merge.held(B) == 0


def test_half_a_block_is_none() -> None:
    play = Play(snapshot=True)
    play.attach(A, 1)
    play.receive(A, 1, *block(1, 2)[:2])
    play.down(A)
    assert play.attach(A, 5) == [("gap", "STALE", [[2, 4]])]
    assert play.receive(A, Item(1 << 63), 5) == [5]
    assert "block" in play.receive(A, *block(5, 6))


def test_batches_are_cut_where_they_overlap(play: Play) -> None:
    assert play.receive(A, Item(1, last=5)) == [1, 2, 3, 4, 5]
    assert play.receive(B, Item(1, last=3), Item(4, last=9)) == [6, 7, 8, 9]


def test_single_messages_go_on_within_a_packet(play: Play) -> None:
    assert play.receive(A, Item(1, 0), Item(1, 2)) == [(1, 0), (1, 2)]
    assert play.receive(B, Item(1, 0), Item(1, 2), Item(1, 3), Item(2, 0)) == [(1, 3), (2, 0)]


ROUNDS = int(os.environ.get("ROUNDS", "400"))


def gateway_stream(rng: random.Random, wanted: set[int], first: int, end: int) -> list[Item]:
    """One gateway's words from where it is attached: what is wanted, with losses it announces."""
    items: list[Item] = [note("attached", first)]
    at = first
    while at < end:
        if rng.random() < 0.05:
            last = min(at + rng.randrange(1, 12), end - 1)
            # Lost on its lines, or dropped from a full queue: that says where the stream was.
            reason, following = rng.choice([("gap", last + 1), ("overflow", first)])
            loss = note(reason, following, state="STALE", lost=[[at, last]])
            items.append(replace(loss, sequence=last + 1))
            at = last + 1
            continue
        if at in wanted:
            items.append(Item(at))
        at += 1
    return [*items, note("back", end)]


def lacking(items: list[Item]) -> set[int]:
    """Return the sequence numbers that a gateway says it lost."""
    found: set[int] = set()
    for item in items:
        if item.content == "quality":
            for first, last in msgspec.json.decode(item.body).get("lost", ()):
                found |= set(range(first, last + 1))
    return found


@pytest.mark.parametrize("killing", [False, True], ids=["both live", "killed in turns"])
def test_merged_is_what_a_gateway_without_faults_would_have_sent(killing: bool, seed: int) -> None:
    for round_number in range(ROUNDS):
        one_round(random.Random(f"{seed}/{round_number}"), killing, f"{seed}/{round_number}")


def announced_lost(story: list[Any]) -> set[int]:
    """The numbers that a story of `Play` tells as lost."""
    return {
        n for x in story if isinstance(x, tuple) for a, b in x[2] or () for n in range(a, b + 1)
    }


def packets(items: list[Item]) -> set[int]:
    """The numbers of those that are packets."""
    return {x.sequence for x in items if x.content == "packet"}


def one_round(rng: random.Random, killing: bool, name: str) -> None:
    """Two gateways, any delay between them; killed, one at a time, and back a little later."""
    end = rng.randrange(30, 200)
    wanted = {n for n in range(1, end) if rng.random() < rng.choice((0.1, 0.6, 1.0))}
    streams = [gateway_stream(rng, wanted, 1, end) for _ in (A, B)]
    said = [lacking(stream) for stream in streams]
    play = Play()
    got: list[Any] = []
    delivered: set[int] = set()
    downtime = {A: 0, B: 0}
    # How far each has come, and whether it has never come back behind that: what one says to lack
    # holds for as long as what it sent behind it waits, even if it comes back and has it then.
    reach, steady = {A: 0, B: 0}, {A: True, B: True}

    def heard(story: list[Any]) -> None:
        """Nothing is announced lost that a gateway has delivered, or that one which is up has yet
        to deliver."""
        up = [x for x in (A, B) if steady[x] and not downtime[x]]
        coming = {n for x in up for n in packets(streams[x])}
        assert not announced_lost(story) & (delivered | coming), name
        got.extend(story)

    for link in (A, B):
        play.merge.up(link, 0)
        heard(play.receive(link, streams[link].pop(0)))
    while any(streams):
        link = rng.choice([x for x in (A, B) if streams[x]])
        if killing and rng.random() < 0.03 and not downtime[1 - link]:
            # What it had not said yet dies with it; it comes back where the other is, or ahead.
            back = next((x.sequence for x in streams[1 - link]), end)
            back = min(end, back + rng.randrange(0, 6))
            downtime[link] = rng.randrange(1, 30)
            steady[link] &= back >= reach[link]
            streams[link] = gateway_stream(rng, wanted, back, end)
            heard(play.down(link))
            continue
        if downtime[link]:
            downtime[link] -= 1
            if downtime[link] or not streams[link]:
                continue
            play.merge.up(link, 0)
        given = [streams[link].pop(0) for _ in range(min(3, len(streams[link])))]
        reach[link] = max(x.sequence for x in given)
        if steady[link]:
            delivered |= packets(given)
        heard(play.receive(link, *given))
    for link in (A, B):
        heard(play.down(link))
    numbers = [x for x in got if isinstance(x, int)]
    lost = announced_lost(got)
    assert numbers == sorted(set(numbers)), name
    assert not lost & set(numbers), name
    assert not wanted - set(numbers) - lost, (name, sorted(wanted - set(numbers) - lost))
    if not killing:
        assert lost <= said[A] & said[B], name


# -- outside the sequence -------------------------------------------------------------------


def test_messages_outside_the_sequence_come_once_and_move_nothing() -> None:
    play = Play()
    one, two = (Item(1 << 62 | n, tag=bytes([n])) for n in (1, 2))
    assert play.receive(A, one) == [one.sequence], "before the stream has begun"
    play.receive(A, note("start", 5), 5)
    play.receive(B, note("attached", 6))
    assert play.receive(B, one, two) == [two.sequence]
    assert play.receive(A, two, 6) == [6]
    assert play.merge.positions() == {104: 6 << 16 | WHOLE}
    assert play.receive(B, 6, 7) == [7]
    assert play.receive(A, one) == [one.sequence], "the same gateway again: another message"
    play.merge.down(A, 0)
    play.merge.up(A, 0, True)
    assert play.receive(A, one, two) == [], "sent again behind the position where it goes on"
    assert not play.merge.gave_up


def test_so_many_of_them_are_remembered() -> None:
    play = Play()
    items = [Item(1 << 62 | n, tag=n.to_bytes(2)) for n in range(ASIDE_MAX + 1)]
    assert len(play.receive(A, *items)) == ASIDE_MAX + 1
    assert play.receive(B, *items[1:]) == []
    assert play.receive(B, items[0]) == [items[0].sequence], "forgotten: rather twice than never"


def test_among_thousands_of_losses_what_lies_between_two_of_the_latest_comes_out() -> None:
    play = Play()
    play.attach(A, 1)
    for number in range(2, 6 * RANGES_MAX, 6):
        play.receive(A, note("gap", number + 1, state="STALE", lost=[[number, number]]))
    at = number + 1
    assert play.down(A) == []
    lost = [[at, at + 2], [at + 4, at + 9]]
    assert play.attach(A, at, resumed=True, reason="resume", state="STALE", lost=lost) == [
        ("gap", "STALE", [pair]) for pair in lost
    ]
    assert play.receive(A, at + 3, at + 10) == [at + 3, at + 10]
