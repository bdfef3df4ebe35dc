"""Parts of the exchange's servers that need no sockets: their offers, and when they come."""

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.market.stream_market import Market
from feedhandler.replay.exchange.loops import STEP_SNAPSHOTS_MAX, SnapshotLoops
from feedhandler.replay.exchange.plan import ExchangePlan
from feedhandler.replay.exchange.refresh import CutSnapshot
from feedhandler.replay.exchange.servers import (
    SNAPSHOTS_WAITING_MAX,
    DueState,
    ExchangeServers,
    OfferedPackets,
    SnapshotRequests,
)
from feedhandler.replay.generating.order_session import OrderSession
from feedhandler.replay.generating.packets import SERVICES, Outgoing
from feedhandler.retrans.protocol import RefreshReject
from feedhandler.retrans.protocols.cme_snapshots import LoopAssembler
from feedhandler.retrans.refresh import Snapshot
from feedhandler.retrans.settings import RecoverySettings

FEED = load_feed("euronext-utp-md")
#: Channels are asked for by their own numbers.
NAMED = dict(zip(SERVICES, SERVICES, strict=True))


class Clock:
    """Time since a session's start, as set."""

    now_ns = 0

    def __call__(self):
        return self.now_ns


def data(service, number, due_ns):
    packet = FEED.encode_packet(
        sequence=number, service=service, messages=[FEED.encode_message(230, symbol_index=1)]
    )
    return Outgoing(due_ns, service, packet, 1)


def beat(service, due_ns):
    return Outgoing(due_ns, service, FEED.encode_packet(kind="heartbeat", service=service), 0)


@pytest.fixture
def offered():
    clock = Clock()
    return OfferedPackets(FEED, NAMED, 1 << 20, clock), clock


def test_a_packet_is_offered_from_the_moment_on_at_which_it_is_due(offered):
    stores, clock = offered
    packets = [data(104, 2, 100), data(103, 2, 150), data(104, 3, 200)]
    stores.publish(packets[:2])
    stores.publish(packets[2:])
    assert stores[104].end == 0
    clock.now_ns = 100
    assert stores[104].packets(2, 4) == [(2, 3, packets[0].packet)]
    assert stores[103].end == 0
    clock.now_ns = 1_000
    assert stores[103].end == 3
    assert stores[104].packets(2, 4) == [(2, 3, packets[0].packet), (3, 4, packets[2].packet)]


def test_packets_without_messages_take_no_room(offered):
    stores, clock = offered
    clock.now_ns = 10
    stores.publish([beat(104, 1), data(104, 2, 2), beat(104, 3), data(104, 3, 4)])
    assert stores[104].count == 2
    assert stores[104].covers(2, 4)


def test_a_channel_is_found_by_the_service_that_requests_name():
    clock = Clock()
    stores = OfferedPackets(FEED, {104: 1}, 1 << 12, clock)
    stores.publish([data(104, 2, 0)])
    assert list(stores) == [1]
    assert stores[1].covers(2, 3)


def test_what_was_withheld_is_a_hole(offered):
    stores, clock = offered
    clock.now_ns = 10
    stores.publish([data(104, 2, 1), data(104, 4, 2)])
    assert not stores[104].covers(2, 5)
    assert stores[104].covers(4, 5)


def test_a_service_that_there_is_not_has_no_store(offered):
    stores, _ = offered
    assert list(stores) == list(SERVICES)
    assert len(stores) == len(SERVICES)
    assert stores.get(108) is None


def test_what_is_kept_is_bounded_however_much_is_sent():
    clock = Clock()
    stores = OfferedPackets(FEED, NAMED, 1 << 12, clock)
    for number in range(2, 2_000):
        clock.now_ns = number
        stores.publish([data(104, number, number)])
        stores.advance()
        assert stores.waiting == 0
        assert stores[104].held_bytes <= 1 << 12
    assert stores[104].end == 2_000
    assert not stores[104].covers(2, 3)


def test_what_is_due_waits_nowhere_without_a_request():
    clock = Clock()
    servers = ExchangeServers(FEED, ExchangePlan(retransmission_port=0), None, clock)
    clock.now_ns = 100
    servers.publish([data(104, 2, 99), data(104, 3, 100), data(104, 4, 101)], ())
    servers.close()
    assert servers._packets.waiting == 1
    servers.publish([data(104, 5, 102)], ())


@pytest.mark.parametrize(("feed", "stays"), [("cme-mdp3", True), ("cboe-byx-pitch", False)])
def test_servers_whose_clients_come_only_to_ask_are_in_use_without_a_connection(feed, stays):
    servers = ExchangeServers(
        load_feed(feed), ExchangePlan(feed=feed, retransmission_port=0), None, Clock()
    )
    assert servers.in_use is stays
    servers.close()


class Loop:
    """The part of an event loop that the requests uses: calls wait for `run`."""

    def __init__(self):
        self.calls = []

    def call_soon_threadsafe(self, callback, *arguments):
        self.calls.append((0.0, callback, arguments))

    def call_later(self, delay_s, callback, *arguments):
        self.calls.append((delay_s, callback, arguments))

    def run(self):
        """Make the calls that wait; answers their delays."""
        calls, self.calls = self.calls, []
        for _, callback, arguments in calls:
            callback(*arguments)
        return [delay for delay, _, _ in calls]


class Flow:
    """Fake flow that records the snapshot requests it gets."""

    def __init__(self):
        self.asked = []

    def request(self, service):
        self.asked.append(service)
        return RefreshReject.NONE if service == 104 else RefreshReject.WRONG_SERVICE


@pytest.fixture
def requests():
    flow, loop, clock = Flow(), Loop(), Clock()
    return SnapshotRequests(flow, loop, clock), flow, loop, clock


def test_a_request_goes_to_the_flow(requests):
    made, flow, _, _ = requests
    assert made.request(104, 1) is RefreshReject.NONE
    assert made.request(99, 1) is RefreshReject.WRONG_SERVICE
    assert flow.asked == [104, 99]


def test_subscribers_get_a_snapshot_when_it_begins_to_leave(requests):
    made, _, loop, clock = requests
    got = []
    leave = made.subscribe(104, got.append)
    clock.now_ns = 1_000_000_000
    made.on_snapshot(CutSnapshot(1_250_000_000, 104, 7, [b"a", b"b"]))
    loop.run()
    assert got == []
    assert loop.run() == [0.25]
    assert got == [[b"a", b"b"]]
    made.on_snapshot(CutSnapshot(900_000_000, 104, 8, [b"c"]))
    loop.run()
    assert loop.run() == [0.0]
    assert got[1:] == [[b"c"]]
    leave()
    leave()
    made.on_snapshot(CutSnapshot(0, 104, 9, [b"d"]))
    assert loop.calls == []


def test_other_services_snapshots_are_not_handed_out(requests):
    made, _, loop, _ = requests
    got = []
    made.subscribe(104, got.append)
    made.on_snapshot(CutSnapshot(0, 103, 8, [b"c"]))
    assert loop.calls == []


def test_snapshots_do_not_pile_up_before_they_go_out(requests):
    made, _, loop, _ = requests
    got = []
    made.subscribe(104, got.append)
    for last in range(SNAPSHOTS_WAITING_MAX + 3):
        made.on_snapshot(CutSnapshot(10, 104, last, [b"%d" % last]))
    loop.run()
    assert len(loop.calls) == SNAPSHOTS_WAITING_MAX
    loop.run()
    assert len(got) == SNAPSHOTS_WAITING_MAX


def test_the_default_addresses_are_the_documented_ones():
    plan = ExchangePlan()
    assert plan.address("A", 104) == ("239.101.1.4", 30_104)
    assert plan.address("B", 107) == ("239.101.2.7", 31_107)
    assert plan.recovery_address("A", 104) == ("239.101.3.4", 32_104)
    assert plan.recovery_address("B", 107) == ("239.101.4.7", 33_107)


def test_what_happens_is_in_the_state_from_its_due_time_on_also_without_an_offer():
    itch, clock = load_feed("nasdaq-totalview-itch"), Clock()
    state = DueState(itch, clock)
    assert state(101) is None
    sent = list(OrderSession(itch, 5, instruments=3, messages_per_s=900.0).packets(10**9))
    state.publish(sent)
    middle = sent[len(sent) // 2].due_ns
    for clock.now_ns in (middle, sent[-1].due_ns):
        due = [each for each in sent if each.due_ns <= clock.now_ns]
        last, messages = state(101)
        assert last == sum(each.messages for each in due)
        whole, joined = Market(itch), Market(itch)
        for each in due:
            whole.apply(each.packet)
        for message in messages:
            joined.apply_message(message)
        assert {n: (b.bids.orders, b.asks.orders) for n, b in joined.books.items()} == {
            n: (b.bids.orders, b.asks.orders) for n, b in whole.books.items()
        }
        assert dict(joined.states) == dict(whole.states)
        assert joined.names == whole.names
        assert not joined.problems


def test_loops_have_every_book_as_of_then_and_go_on_for_ever():
    cme, clock = load_feed("cme-mdp3"), Clock()
    loops, whole = SnapshotLoops(cme, 300_000_000, clock), Market(cme)
    assert loops.step() == []
    sent = list(OrderSession(cme, 5, instruments=3, messages_per_s=900.0).packets(10**9))
    loops.publish(sent)
    for each in sent:
        whole.apply(each.packet)
    assembler = LoopAssembler(cme, 1, RecoverySettings())
    for clock.now_ns in range(2 * 10**9, 3 * 10**9, 10_000_000):
        packets = loops.step()
        assert len(packets) <= STEP_SNAPSHOTS_MAX
        for packet in packets:
            assembler.datagram(0, packet, clock.now_ns)
    found = [event for event in assembler.pop_events() if isinstance(event, Snapshot)]
    assert loops.loops in (3, 4)
    assert len(found) == loops.loops
    assert not assembler.counts["malformed"] + assembler.counts["outside"]
    assert {event.last for event in found} == {cme.decode_packet(sent[-4].packet).sequence}
    joined = Market(cme)
    for packet in found[-1].packets:
        joined.apply(packet)
    for name in ("AAAB", "AAAC", "AAAD"):
        number = whole.instruments()[name]
        for side in ("bids", "asks"):
            levels = getattr(whole.books[name], side).top(99)
            assert levels
            joined_levels = getattr(joined.books[number], side).top(99)
            assert [level[:2] for level in joined_levels] == [level[:2] for level in levels]


def test_servers_and_refresh_lines_are_those_that_the_feed_has():
    for feed in ("nasdaq-totalview-itch", "cboe-byx-pitch"):
        ExchangePlan(feed=feed, retransmission_port=0, refresh_port=0)
    ExchangePlan(feed="nyse-integrated-pillar", retransmission_port=0, refresh_port=0)
    ExchangePlan(feed="cme-mdp3", retransmission_port=0, refresh_s=1.0)
    for wrong in (
        {"feed": "memx-memoir", "retransmission_port": 0},
        {"feed": "nyse-integrated-pillar", "refresh_s": 1.0},
        {"feed": "iex-deep", "refresh_port": 0},
        {"feed": "nasdaq-totalview-itch", "refresh_s": 1.0},
        {"feed": "cme-mdp3", "refresh_port": 0},
        {"refresh_port": 0},
    ):
        with pytest.raises(UsageError):
            ExchangePlan(**wrong)
