"""Lines that pack messages differently agree message by message."""

import os
import random
from itertools import product

import pytest

from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest.states import Verdict
from tests.support.packings import (
    SETTINGS,
    FixMessages,
    IexMessages,
    PackedChannel,
    merges,
    packings,
)

#: Messages of the exhaustive test: 4 in a campaign, which is twenty times as much.
FEW = int(os.environ.get("PACKED", "3"))
KINDS = {"binary": IexMessages, "fix": FixMessages}


@pytest.fixture(params=sorted(KINDS))
def kind(request):
    return KINDS[request.param]()


def test_every_packing_of_few_messages_in_every_order_with_every_loss(kind):
    channel = PackedChannel(kind, FEW)
    for one, other in product(packings(FEW), repeat=2):
        for order in merges([(0, *each) for each in one], [(1, *each) for each in other]):
            for lost in range(1 << len(order)):
                channel.case([step for at, step in enumerate(order) if not lost >> at & 1])
    assert channel.cases > {3: 2_000, 4: 40_000}[FEW]
    assert channel.arbiter.channel_array[ChannelCounter.MISMATCHES] == 0


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
def test_random_packings_lost_doubled_and_delayed_on_each_line(kind, twin, seed):
    rng = random.Random(seed)
    channel = PackedChannel(kind, 12, twin)
    for _ in range(400 if twin == "compiled" else 100):
        lines = [[(line, *each) for each in rng.choice(PACKED)] for line in (0, 1)]
        steps = []
        while any(lines):
            step = rng.choice([line for line in lines if line]).pop(0)
            steps += [step] * rng.choice((0, 1, 1, 1, 2))
            if len(steps) > 1 and rng.random() < 0.1:
                steps[-2:] = [steps[-1], steps[-2]]
        channel.case(steps)
    assert channel.arbiter.channel_array[ChannelCounter.MISMATCHES] == 0


PACKED = packings(12)


def test_both_twins_say_the_same_of_the_same_packets(kind, seed):
    rng = random.Random(seed)
    channels = [PackedChannel(kind, 12, twin) for twin in ("compiled", "interpreted")]
    for _ in range(80):
        steps = [
            (line, *each) for line in (0, 1) for each in rng.choice(PACKED) if rng.random() < 0.8
        ]
        rng.shuffle(steps)
        answers = []
        for channel in channels:
            verdicts = [channel.give(*step) for step in steps]
            channel.end()
            answers.append((verdicts, channel.read()))
            channel.base += 12
        assert answers[0] == answers[1]
    assert (channels[0].arbiter.line_array == channels[1].arbiter.line_array).all()
    assert (channels[0].arbiter.channel_array == channels[1].arbiter.channel_array).all()


@pytest.mark.parametrize("forged", range(6))
def test_a_message_that_differs_is_reported_although_the_copy_is_packed_differently(kind, forged):
    channel = PackedChannel(kind, 6)
    channel.case([(0, 0, 3), (1, 0, 2), (1, 2, 4), (0, 3, 6)])  # shows that the lines differ
    for step in [(0, 0, 3), (0, 3, 6)]:
        channel.give(*step)
    for first, end in [(0, 2), (2, 4), (4, 6)]:
        channel.give(1, first, end, forged if first <= forged < end else -1)
    assert channel.arbiter.channel_array[ChannelCounter.MISMATCHES] == 1
    assert channel.arbiter.line_array[1][LineCounter.MISMATCHES] == 1


def test_the_copy_that_shows_another_packing_is_compared_no_more_than_that(kind):
    channel = PackedChannel(kind, 4)
    assert channel.give(0, 0, 3) == Verdict.PUBLISHED
    assert channel.give(1, 0, 2, forged=1) == Verdict.DUPLICATE
    assert channel.arbiter.channel_array[ChannelCounter.MISMATCHES] == 0
    channel.give(0, 3, 4)
    assert channel.give(1, 2, 4, forged=3) == Verdict.DUPLICATE
    assert channel.arbiter.channel_array[ChannelCounter.MISMATCHES] == 1


def test_a_packet_that_goes_on_behind_what_was_published_brings_the_rest(kind):
    channel = PackedChannel(kind, 5)
    channel.give(0, 0, 2)
    channel.give(1, 0, 5)
    assert [(first, end) for _, first, end, _ in channel.read()] == [(0, 2), (2, 5)]


def test_of_two_held_packets_that_overlap_each_message_comes_once(kind):
    channel = PackedChannel(kind, 6)
    channel.case([(0, 2, 5), (1, 1, 3), (1, 3, 6), (0, 0, 2)])


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
def test_a_packet_that_ends_in_what_was_published_before_the_stream_went_back_is_cut(kind, twin):
    channel = PackedChannel(kind, 4, twin)
    channel.give(0, 0, 1)
    channel.give(0, 2, 3)
    channel.end()  # 1 is announced lost, 2 published, and 3 announced
    channel.give(1, 1, 3)  # the announcement is taken back
    channel.give(1, 3, 4)
    said = channel.read()
    assert [(what, first, end) for what, first, end, _ in said] == [
        ("packet", 0, 1),
        ("gap", 1, 2),
        ("packet", 2, 3),
        ("gap", 3, 4),
        ("packet", 1, 2),
        ("packet", 3, 4),
    ]
    assert said[4][3] == kind.packet(channel.base + 1, channel.messages[1:2])[kind.body :]


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
def test_what_is_sent_again_does_not_contradict_what_its_line_has_shown(twin, again):
    channel = PackedChannel(FixMessages(), 6, twin)
    for number in (0, 2, 4):
        channel.give(0, number, number + 1)
    channel.give(0, 1, 2, again=again)  # the line goes back: below 2, which is out now, and 4
    channel.now += SETTINGS.gap_wait_us * 1_000
    channel.arbiter.tick(channel.now)
    said = [(what, first, end) for what, first, end, _ in channel.read()]
    assert said[:3] == [("packet", 0, 1), ("packet", 1, 2), ("packet", 2, 3)]
    assert said[3:] == ([("gap", 3, 4), ("packet", 4, 5)] if again else [])


def caught_out(kind, twin):
    """A channel whose line 0 was caught with a forged message; 4 is next, 5 stands aside for it."""
    channel = PackedChannel(kind, 9, twin, recovery_wait_us=10_000_000)
    channel.give(0, 0, 1)
    channel.give(0, 3, 4, forged=3)
    channel.give(0, 1, 2)  # below what it has shown
    channel.give(1, 3, 4)
    channel.give(1, 2, 3)
    channel.give(0, 5, 6)
    channel.now += SETTINGS.gap_wait_us * 1_000
    return channel


@pytest.mark.parametrize("twin", ["compiled", "interpreted"])
def test_what_stood_aside_goes_on_when_its_line_s_next_word_has_it_believed(kind, twin):
    for word in ("heartbeat", "packet"):
        channel = caught_out(kind, twin)
        channel.give(1, 4, 5)
        assert [first for _, first, _, _ in channel.read()] == [0, 1, 2, 3, 4], "5 is doubted"
        if word == "heartbeat":
            channel.beat(0, 7)
        else:
            channel.give(0, 6, 7)
        published = [first for _, first, _, _ in channel.read()]
        assert published == ([5] if word == "heartbeat" else [5, 6])
