"""The oracle itself: a gateway that does one thing wrong is caught, whatever it is."""

import json

import pytest
from world import World, drawn

from feedhandler.retrans import RecoveryManager
from feedhandler.retrans.quality import QualityState

SEEDS = range(6)


def swallow_a_packet(world, patch):
    original = world.subscriber.packet
    patch.setattr(world.subscriber, "packet", lambda *a: None if a[1] == 150 else original(*a))


def publish_a_packet_twice(world, patch):
    original = world.subscriber.packet
    patch.setattr(
        world.subscriber, "packet", lambda *a: [original(*a) for _ in range(1 + (a[1] == 150))]
    )


def turn_a_bit(world, patch):
    original = world.subscriber.packet

    def turned(service, sequence, following, packet, data):
        if sequence == 150:
            packet = packet[:30] + bytes([packet[30] ^ 1]) + packet[31:]
        original(service, sequence, following, packet, data)

    patch.setattr(world.subscriber, "packet", turned)


def keep_a_gap_to_itself(world, patch):
    original = world.subscriber.quality
    patch.setattr(
        world.subscriber, "quality", lambda s, b: b'"reason":"gap"' in b or original(s, b)
    )


def say_that_all_is_well(world, patch):
    original = world.subscriber.quality

    def rosy(service, body):
        said = json.loads(body)
        original(service, json.dumps({**said, "state": "OK"}).encode())

    patch.setattr(world.subscriber, "quality", rosy)


def leave_the_catch_up_out(world, patch):
    block = RecoveryManager._block
    patch.setattr(
        RecoveryManager, "_block",
        lambda self, channel, snapshot, since, *rest: block(self, channel, snapshot, [], *rest),
    )  # fmt: skip


def lose_a_packet_of_a_block(world, patch):
    original = world.subscriber.block

    def shortened(service, begin, packets, *rest):
        begin = json.dumps({**json.loads(begin), "packets": len(packets[1:])}).encode()
        original(service, begin, packets[1:], *rest)

    patch.setattr(world.subscriber, "block", shortened)


def never_ask_for_a_snapshot(world, patch):
    patch.setattr(world.gateway.core, "ask_refresh", lambda *a: None)
    patch.setattr(world.gateway, "refresh", lambda *a: None)


def forget_what_was_missing(world, patch):
    recovering = QualityState.recovering
    patch.setattr(
        QualityState, "recovering", lambda self, ranges, *rest: recovering(self, [], *rest)
    )


def leave_links_unwritten(world, patch):
    patch.setattr(world.gateway, "flush_soon", lambda: None)


def keep_a_deadline_to_itself(world, patch):
    patch.setattr(world.gateway, "wake_at", lambda *a: None)


@pytest.mark.parametrize(
    "sabotage",
    [
        swallow_a_packet, publish_a_packet_twice, turn_a_bit, keep_a_gap_to_itself,
        say_that_all_is_well, leave_the_catch_up_out, lose_a_packet_of_a_block,
        never_ask_for_a_snapshot, forget_what_was_missing, leave_links_unwritten,
        keep_a_deadline_to_itself,
    ],
)  # fmt: skip
def test_the_oracle_notices(sabotage, monkeypatch):
    caught = 0
    for seed in SEEDS:
        with monkeypatch.context() as patch:
            world = World(drawn(seed), seed)
            sabotage(world, patch)
            try:
                world.play()
                world.subscriber.check_end(world.plan.heal_ns)
            except AssertionError:
                caught += 1
        if caught == 2:
            return
    pytest.fail(f"{caught} of {len(SEEDS)} seeds")
