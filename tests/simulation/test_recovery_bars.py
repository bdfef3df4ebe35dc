"""The bars of recovery, in simulated time: its greatest cost, and the faults that it withstands.

Each plays a `World` whose plan is written down here instead of drawn; the oracle's promises hold in
all of them. `SEED=s` plays with another seed;
`make simulate` plays more of them, and darkens twice as many packets.
"""

import heapq
import os
import random
import resource

import pytest
from network import MS, LineFaults, Shared
from oracle import WHOLE
from sessions import DATA, SECOND, Sent, Session, parse, session
from world import Plan, World

from feedhandler.counters import LineCounter
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.retrans.states import State

SEED = int(os.environ.get("SEED", "1"))
FORGED = int(os.environ.get("FORGED", "10000"))
HEAL_NS = 2 * SECOND
#: Sessions of the pool that are not renumbered: at a reset, what is still missing is let go.
PLAIN = (0, 1, 3, 4)
#: How many packets a blackout of 1.7 s costs, and copies of each packet that make it so many. With
#: fewer than by default the gateway asks for them, as it should, and nothing is refreshed.
DARK = max(50_000, int(os.environ.get("DARK", "0")))
COPIES = 68 * DARK // 100_000
#: Seeds of each bar.
PLAYED = int(os.environ.get("BAR_SEEDS", "1"))
#: What a blackout may cost in memory: the snapshots, the stores' pages that were never used before.
MEMORY_KIB_MAX = 65_536


def lines(shared: Shared, a: LineFaults | None = None, b: LineFaults | None = None) -> list:
    """The same faults on each of three channels."""
    return [(a or LineFaults(), b or LineFaults(skew_ns=2 * MS), shared)] * 3


def recovered_by_retransmission(world: World) -> None:
    """Nothing was announced lost, no snapshot was needed, and the end is the fault-free one."""
    world.subscriber.check_end(world.plan.heal_ns)
    assert world.gateway.records["GAP"] == 0
    assert world.gateway.core.recovery.counts["refreshes"] == 0


def lost_on_both(world: World) -> tuple[int, int, int]:
    """Packets that no line brought, their bytes, and in how many runs they come."""
    came = {(channel, sent.epoch, sent.sequence) for _, _, channel, _, sent in world.arrivals}
    count = size = gaps = 0
    for service, channel in world.channels.items():
        before = False
        for sent in world.plan.session.packets[service]:
            missing = (channel, sent.epoch, sent.sequence) not in came
            if missing:
                count, size = count + 1, size + len(sent.packet)
                gaps += not before
            before = missing
    return count, size, gaps


@pytest.mark.parametrize("seed", range(SEED, SEED + PLAYED))
def test_one_percent_lost_together_costs_little_more_than_the_packets(seed):
    shared = Shared(loss=0.01, until_ns=HEAL_NS)
    world = World(Plan(session(PLAIN[seed % 4]), heal_ns=HEAL_NS, live=lines(shared)), seed)
    world.play()
    recovered_by_retransmission(world)
    count, size, gaps = lost_on_both(world)
    counts = world.gateway.core.recovery.counts
    print(f"seed {seed}: {count} lost in {gaps} gaps, {counts['requests']} requests")
    assert count > 10
    assert counts["retransmitted_bytes"] <= 1.2 * size
    assert counts["requests"] <= 1.5 * gaps


@pytest.mark.parametrize("seed", range(SEED, SEED + PLAYED))
def test_twenty_percent_lost_together_is_all_recovered(seed):
    shared = Shared(loss=0.2, until_ns=HEAL_NS)
    world = World(Plan(session(PLAIN[seed % 4]), heal_ns=HEAL_NS, live=lines(shared)), seed)
    world.play()
    recovered_by_retransmission(world)
    count, _, gaps = lost_on_both(world)
    print(f"seed {seed}: {count} lost in {gaps} gaps")
    assert count > 300


def test_a_line_dead_for_a_minute_and_five_percent_lost_on_the_other_loses_nothing():
    dead, back = SECOND, 61 * SECOND
    long = Session(SEED, live_ns=62 * SECOND, rate=1_500.0, heartbeat_ns=30 * MS)
    a = LineFaults(outages=[(dead, back)])
    b = LineFaults(loss=0.05, skew_ns=MS, until_ns=back)
    plan = Plan(
        long, heal_ns=back, live=lines(Shared(), a, b),
        arbitration=ArbitrationSettings(silent_us=90_000),
    )  # fmt: skip
    world = World(plan, SEED)
    world.play()
    recovered_by_retransmission(world)
    qualities = world.subscriber.qualities
    for service in long.services:
        mine = [(at, state, reason) for at, which, state, reason in qualities if which == service]
        assert any(dead < at <= dead + 100 * MS for at, _, reason in mine if reason == "silent")
        # What is missing is announced, or has come, within the bound; after the healing all is
        # well.
        for at, state, _ in mine:
            if state not in WHOLE and state != "SILENT" and at < back:
                assert any(at < later <= at + 100 * MS for later, good, _ in mine if good in WHOLE)
        assert all(state in WHOLE for at, state, _ in mine if at > back + SECOND)
        assert any(back < at <= back + SECOND for at, _, reason in mine if reason == "back")
    retransmitted = world.gateway.core.recovery.counts["retransmitted"]
    print(f"{len(long.sent):,} packets, {retransmitted:,} retransmitted")
    assert retransmitted > 0.03 * sum(sent.kind == DATA for sent in long.sent)


def test_many_packets_blacked_out_on_both_lines_are_one_refresh():
    long = Session(SEED, copies=COPIES)
    first, end = 300 * MS, 2 * SECOND
    dark = sum(first <= sent.at < end and sent.kind == DATA for sent in long.sent)
    assert dark >= DARK
    plan = Plan(
        long,
        heal_ns=end,
        live=lines(Shared(blackouts=[(first, end)])),
        lag_ns=50_000,
        arbitration=ArbitrationSettings(hold_packets=4096),
    )
    world = World(plan, SEED)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    world.play()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    world.subscriber.check_end(world.plan.heal_ns)
    counts = world.gateway.core.recovery.counts
    print(f"{dark:,} packets dark: {counts}; memory grew by {grown:,} KiB")
    for index, service in enumerate(long.services):
        reasons = [reason for _, which, _, reason in world.subscriber.qualities if which == service]
        assert reasons.count("gap") <= 1, "one range is lost"
        assert reasons.count("snapshot-end") == reasons.count("gap"), "one snapshot heals it"
        assert world.gateway.core.recovery.state(index) is State.IN_SYNC
    assert counts["refreshes"] == counts["refresh_requests"] >= 2
    # Only reference data lost few enough for asking to be of use.
    assert counts["requests"] <= 1
    assert counts["retransmitted"] <= 2 * COPIES
    assert grown < MEMORY_KIB_MAX


@pytest.mark.parametrize("seed", range(SEED, SEED + PLAYED))
def test_an_epoch_that_begins_unannounced_is_healed_by_a_snapshot(seed):
    shared = Shared(loss=0.01 * (seed % 3), until_ns=HEAL_NS)
    plan = Plan(
        session(2 + 3 * (seed % 2)),
        heal_ns=HEAL_NS,
        reset_lost=True,
        live=lines(shared),
        arbitration=ArbitrationSettings(resync_us=50_000),
    )
    world = World(plan, seed)
    world.play()
    world.subscriber.check_end(HEAL_NS)
    assert all(known.epoch == 1 for known in world.subscriber.services.values())
    assert world.gateway.core.recovery.counts["mid_day_starts"] >= 1


def forged(sent: Sent, draw: random.Random, window: int) -> Sent:
    """The packet with a number far beyond all that the exchange sends."""
    sequence = draw.randrange(sent.sequence + window, 2**32)
    packet = sent.packet[:4] + sequence.to_bytes(4, "big") + sent.packet[8:]
    return sent._replace(sequence=sequence, packet=packet, header=parse(packet))


@pytest.mark.timeout(0)
def test_forged_numbers_move_neither_the_stream_nor_recovery():
    settings = ArbitrationSettings()
    rounds = max(1, FORGED // 100_000)
    for seed in range(SEED, SEED + rounds):
        long = Session(seed, copies=max(1, FORGED // rounds // 4_400 + 1))
        draw = random.Random(f"{seed}/forged")
        world = World(Plan(long, heal_ns=HEAL_NS, live=lines(Shared())), seed)
        real = [each for each in world.arrivals if each[4].kind == DATA and each[4].sequence > 1]
        window = 4 * settings.hold_packets + len(long.sent)
        false = [
            (at, tie, channel, draw.randrange(2), forged(sent, draw, window))
            for at, tie, channel, _, sent in real
        ]
        world.arrivals = list(heapq.merge(world.arrivals, false, key=lambda each: each[:2]))
        world.play()
        recovered_by_retransmission(world)
        quarantined = sum(
            int(arbiter.line_array[:, LineCounter.QUARANTINED].sum())
            for arbiter in world.gateway.arbiters
        )
        print(f"seed {seed}: {len(false):,} forged, {quarantined:,} quarantined")
        assert quarantined == len(false)
        assert world.gateway.records["MISSING"] == 0
        assert world.gateway.core.recovery.counts["requests"] == 0
        assert world.gateway.core.recovery.counts["refresh_requests"] == 0
        assert {state for _, _, state, _ in world.subscriber.qualities} == {"OK"}
