"""The refresh channels: whose snapshot is cut when, from which state, and how it leaves."""

import itertools
import random

import pytest

from feedhandler.codecs import PacketKind, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.exchange.refresh import BACKLOG_NS, RefreshFlow
from feedhandler.replay.generating.packets import SERVICES, Outgoing
from feedhandler.retrans.protocol import RefreshReject

FEED = load_feed("euronext-utp-md")
SECOND = 1_000_000_000
STEP = 50_000_000


class CountingState:
    """A state that is the list of the packets applied, by service."""

    def __init__(self):
        self.applied = {service: [] for service in SERVICES}

    def apply(self, packet):
        decoded = FEED.decode_packet(packet)
        self.applied[decoded.service].append(decoded.sequence)

    def snapshot(self, service):
        return [b"%d" % number for number in self.applied[service]]


class PlainCutter:
    """A packet a message, which says what it holds."""

    def __init__(self, size=3):
        self.size = size
        self.cuts = []

    def cut(self, service, messages, last, refresh_sequence, send_time_ms):
        self.cuts.append((service, messages, last, refresh_sequence, send_time_ms))
        return [b"%d/%d" % (service, refresh_sequence + index) for index in range(self.size)]


def live(service, number, due_ns):
    packet = FEED.encode_packet(
        sequence=number, service=service, messages=[FEED.encode_message(230, symbol_index=1)]
    )
    return Outgoing(due_ns, service, packet, 1)


class Rig:
    """A flow with fakes, driven step by step; `sent` are its packets."""

    def __init__(self, cycle_s=1.0, size=3, **settings):
        self.cutter, self.state = PlainCutter(size), CountingState()
        self.snapshots, self.sent = [], []
        self.now_ns = 0
        self.next = dict.fromkeys(SERVICES, 2)
        self.flow = RefreshFlow(
            FEED,
            self.state,
            self.cutter,
            cycle_ns=int(cycle_s * SECOND),
            heartbeat_ns=SECOND,
            on_snapshot=self.snapshots.append,
            **settings,
        )

    def step(self, *services, steps=1):
        for _ in range(steps):
            self.now_ns += STEP
            packets = []
            for service in services:
                packets.append(live(service, self.next[service], self.now_ns))
                self.next[service] += 1
            self.flow.apply(packets)
            self.sent += self.flow.step(self.now_ns, self.next)

    def of(self, service):
        """The service's packets, decoded where they are control packets."""
        own = [packet for packet in self.sent if packet.service == service]
        return [
            FEED.decode_packet(packet.packet) if len(packet.packet) >= 16 else packet.packet
            for packet in own
        ]


def test_every_channel_begins_with_a_reset():
    rig = Rig()
    rig.step()
    assert [packet.service for packet in rig.sent] == list(SERVICES)
    for service in SERVICES:
        (reset,) = rig.of(service)
        assert (reset.kind, reset.sequence) == (PacketKind.RESET, 1)


def test_a_cycle_has_each_service_once_the_reference_data_first():
    rig = Rig(cycle_s=1.0)
    rig.step(steps=40)
    assert [cut[0] for cut in rig.cutter.cuts] == [*SERVICES, *SERVICES]
    assert (rig.flow.cyclic, rig.flow.asked) == (14, 0)
    due = [packet.due_ns for packet in rig.sent]
    assert due == sorted(due)


def test_a_snapshot_is_the_state_behind_its_last_number_and_leaves_after_that_was_due():
    rng = random.Random(1)
    rig = Rig(cycle_s=0.3)
    for _ in range(60):
        rig.step(*rng.sample(SERVICES, rng.randrange(4)))
    assert len(rig.snapshots) == len(rig.cutter.cuts) > 60
    for snapshot, cut in zip(rig.snapshots, rig.cutter.cuts, strict=True):
        service, messages, last, _, _ = cut
        assert [int(message) for message in messages] == list(range(2, last + 1))
        assert (snapshot.service, snapshot.last) == (service, last)


def test_a_snapshot_waits_for_packets_that_are_due_after_their_step():
    rig = Rig(cycle_s=0)
    rig.step()
    rig.flow.apply([live(104, 2, rig.now_ns + 2 * STEP)])
    rig.next[104] = 3
    rig.flow.request(104)
    rig.step()
    assert rig.snapshots[0].last == 2
    assert rig.snapshots[0].due_ns == STEP + 2 * STEP


def test_channels_number_their_packets_without_a_gap_and_keep_the_rate():
    rig = Rig(cycle_s=0.5, packets_per_s=100, size=4)
    rig.step(steps=200)
    for service in SERVICES:
        data = [packet for packet in rig.of(service) if isinstance(packet, bytes)]
        assert data == [b"%d/%d" % (service, 2 + index) for index in range(len(data))]
        assert len(data) > 20
    due = [packet.due_ns for packet in rig.sent if len(packet.packet) < 16]
    assert min(b - a for a, b in itertools.pairwise(due)) == SECOND // 100


def test_a_request_is_served_at_the_next_step_before_the_cycle():
    rig = Rig(cycle_s=0.35)
    rig.step(steps=2)
    assert rig.flow.request(107) is RefreshReject.NONE
    assert rig.flow.request(107) is RefreshReject.NONE
    assert rig.flow.busy
    cut = len(rig.cutter.cuts)
    rig.step()
    assert rig.cutter.cuts[cut][0] == 107
    assert rig.flow.asked == 1
    rig.step(steps=1)
    assert rig.flow.asked == 1


def test_a_service_that_there_is_not_is_refused():
    rig = Rig()
    assert rig.flow.request(108) is RefreshReject.WRONG_SERVICE
    assert not rig.flow.busy


def test_without_a_cycle_snapshots_come_at_request_alone():
    rig = Rig(cycle_s=0)
    rig.step(steps=100)
    assert rig.cutter.cuts == []
    rig.flow.request(101)
    rig.step()
    assert [cut[0] for cut in rig.cutter.cuts] == [101]
    rig.step()
    assert not rig.flow.busy


def test_idle_channels_send_heartbeats_which_take_no_number():
    rig = Rig(cycle_s=0)
    rig.step(steps=30)
    rig.flow.request(103)
    rig.step(steps=40)
    for service in SERVICES:
        beats = [packet for packet in rig.of(service)[1:] if not isinstance(packet, bytes)]
        assert {beat.kind for beat in beats} == {PacketKind.HEARTBEAT}
        assert 2 <= len(beats) <= 3
    data = [packet for packet in rig.of(103) if isinstance(packet, bytes)]
    assert data == [b"103/2", b"103/3", b"103/4"]


def test_snapshots_never_pile_up():
    rig = Rig(cycle_s=0.1, packets_per_s=100, size=40)
    for _ in range(400):
        rig.flow.request(104)
        rig.step()
        assert rig.flow._free_ns - rig.now_ns <= BACKLOG_NS + 400_000_000
    assert rig.flow.asked > 10


def test_what_is_asked_for_again_and_again_leaves_the_others_their_turn():
    rig = Rig(cycle_s=0.5)
    for _ in range(40):
        rig.flow.request(104)
        rig.step()
    assert {service for service, *_ in rig.cutter.cuts} == set(SERVICES)


@pytest.mark.parametrize("settings", [{"cycle_s": -1.0}, {"packets_per_s": 0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UsageError):
        Rig(**settings)
