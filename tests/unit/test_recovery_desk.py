"""The desk: what it does with marks, answers and snapshots, told by its hands."""

import json

import pytest

from feedhandler.amqp.quality import QualityState
from feedhandler.codecs import load_feed
from feedhandler.ingest.records import ControlEvent, RecordKind
from feedhandler.recovery.channel import LOOK_NS
from feedhandler.recovery.desk import LAG_NS, WELL_NS, Desk
from feedhandler.recovery.ports import DeskChannel
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Packet,
    RefreshPacket,
    RefreshRejected,
    Rejected,
)
from feedhandler.retrans.protocol import RETRANSMITTED, RefreshReject, RetransReject
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshots import SnapshotCutter
from feedhandler.retrans.states import State

FEED = load_feed("euronext-utp-md")
MS = 1_000_000
SETTINGS = RecoverySettings(store_bytes=1 << 16)
RTS, RFS = "rts", "rfs"
DAY_NS = FEED.trading_day.turns_ns(1_000 * MS)


def packet(sequence, service=104, **header):
    message = FEED.encode_message(230, order_id=sequence)
    return FEED.encode_packet(sequence=sequence, service=service, messages=[message], **header)


class Hands:
    """The desk's ports: notes what was done, in order, and plays the fan-out's part."""

    def __init__(self, channels, settings=SETTINGS):
        self.done = []
        self.next = [0] * len(channels)
        self.closed = set()
        self.withheld = set()
        self.gone = set()
        self.now = 1_000 * MS
        self.qualities = [QualityState(channel.service, ["A", "B"]) for channel in channels]
        self.desk = Desk(FEED, channels, self.qualities, self, settings, seed=1)
        self.cutter = SnapshotCutter(FEED)
        self.refresh_sequence = 1

    # what the desk does

    def ask(self, server, request, now_ns):
        self.done.append(("ask", server, request.first, request.end))
        self.asked = request

    def cancel(self, server, request_id):
        if server == RTS:  # that a refresh came otherwise is no news here
            self.done.append(("cancel", server))

    def ask_refresh(self, server, request, now_ns):
        self.done.append(("ask refresh", server, request.service))

    def fill(self, place, data, epoch):
        self.done.append(("fill", place, FEED.decode_packet(data).sequence, epoch))

    def give_up(self, place, until, epoch):
        self.done.append(("give up", place, until, epoch))

    def disprove(self, place, number, epoch):
        self.done.append(("disprove", place, number, epoch))

    def quality(self, place, body, links=None):
        told = json.loads(body)
        to = () if links is None else (links,)
        self.done.append(("quality", place, told["state"], told["reason"], *to))
        self.told = told

    def block(self, place, begin, packets, last, end, links):
        numbers = [FEED.decode_packet(data).sequence for data in packets]
        since = [number for number in numbers if number > last]
        states = json.loads(begin)["state"], json.loads(end)["state"]
        self.done.append(("block", place, last, since, states[1], json.loads(end)["next"], links))

    def withhold(self, place, link):
        self.withheld.add(link)

    def admit(self, place, link):
        self.withheld.discard(link)

    def close_stream(self, place):
        self.closed.add(place)
        self.done.append(("close", place))

    def open_stream(self, place, packets, following):
        self.closed.discard(place)
        self.next[place] = max(self.next[place], following)
        self.done.append(("open", place, [sequence for sequence, _, _ in packets]))
        if packets:
            self.next[place] = packets[-1][1]

    def renumber(self, place):
        self.done.append(("renumber", place))

    def next_sequence(self, place):
        return self.next[place]

    def is_here(self, link):
        return link not in self.gone

    def alert(self, text, now_ns):
        self.done.append(("alert", text))

    # what happens to it

    def mark(self, kind, first=0, end=0, place=0, auxiliary=0):
        if kind in (RecordKind.GAP, RecordKind.RESET, RecordKind.START):
            self.next[place] = end
        event = ControlEvent(kind, place, 0, first, end, auxiliary=auxiliary)
        self.desk.control_event(event, self.now)

    def packets(self, first, end, place=0, **header):
        """Published, or stored where the stream is closed, as the fan-out would."""
        for sequence in range(first, end):
            store = self.desk.store(place)
            data = packet(sequence, self.qualities[place].service, **header)
            if store is not None:
                store.append(sequence, sequence + 1, data, 0, len(data))
            if place not in self.closed:
                self.next[place] = sequence + 1

    def snapshot(self, last, place=0, over_tcp=False, sent_ms=0):
        """A whole snapshot on the refresh lines."""
        service = self.qualities[place].service
        message = FEED.encode_message(230, order_id=last)
        for data in self.cutter.cut(service, [message], last, self.refresh_sequence, sent_ms):
            if over_tcp:
                event = RefreshPacket(service, self.refresh_sequence, data)
                self.desk.client_events(RFS, [event], self.now)
            else:
                self.desk.refresh_packet(place, self.refresh_sequence, data, self.now)
            self.refresh_sequence += 1

    def wait(self, milliseconds):
        end = self.now + int(milliseconds * MS)
        while self.desk.deadline_ns <= end:
            self.now = max(self.now + 1, self.desk.deadline_ns)
            self.desk.tick(self.now)
        self.now = end

    def story(self):
        done, self.done = self.done, []
        return done


def joined(*, first=1, refresh=True, retransmission=RTS, settings=SETTINGS):
    """One channel, joined and at number 10."""
    channel = DeskChannel(104, retransmission, refresh, RFS if refresh else "")
    hands = Hands([channel], settings)
    hands.desk.server_up(RTS, hands.now)
    hands.mark(RecordKind.START, first, first)
    if first == 1:
        hands.packets(1, 10)
    hands.story()
    return hands


def test_what_is_missing_is_told_and_asked_for_and_filled():
    hands = joined()
    hands.mark(RecordKind.HOLE, 10, 12)
    assert hands.desk.state(0) == State.SUSPECTING
    hands.mark(RecordKind.MISSING, 10, 12, auxiliary=3)
    assert hands.story() == [("quality", 0, "RECOVERING", "missing"), ("ask", RTS, 10, 12)]
    assert hands.told["missing"] == [[10, 11]]
    assert hands.desk.snapshot(0)["requested"] == [[10, 11]]
    for event in (
        Accepted(hands.asked.request_id),
        Packet(hands.asked.request_id, 104, 10, 11, packet(10)),
        Packet(hands.asked.request_id, 104, 11, 12, packet(11)),
        Answered(hands.asked.request_id),
    ):
        hands.desk.client_events(RTS, [event], hands.now)
    assert hands.story() == [("fill", 0, 10, 3), ("fill", 0, 11, 3)]
    hands.packets(10, 14)
    hands.mark(RecordKind.CLOSED, 14, 14)
    assert hands.story() == []
    hands.wait(WELL_NS / MS)
    assert hands.story() == [("quality", 0, "OK", "recovered")]
    assert hands.desk.state(0) == State.IN_SYNC
    assert hands.desk.counts["retransmitted"] == 2
    assert hands.desk.counts["requests"] == 1


def test_requests_of_two_channels_are_told_apart():
    channels = [DeskChannel(service, RTS) for service in (103, 104)]
    hands = Hands(channels)
    hands.desk.server_up(RTS, hands.now)
    for place in (0, 1):
        hands.mark(RecordKind.START, 1, 1, place)
        hands.packets(1, 10, place)
        hands.mark(RecordKind.MISSING, 10, 11, place)
    hands.story()
    hands.desk.client_events(
        RTS, [Packet(hands.asked.request_id, 104, 10, 11, packet(10))], hands.now
    )
    assert hands.story() == [("fill", 1, 10, 0)]
    assert hands.desk.state(0) == State.REQUESTING


def test_what_was_lost_is_refreshed_and_the_block_has_what_was_published_since():
    hands = joined()
    hands.mark(RecordKind.GAP, 10, 12)
    assert hands.story() == [("quality", 0, "STALE", "gap"), ("ask refresh", RFS, 104)]
    hands.packets(12, 20)
    hands.snapshot(15)
    assert hands.story() == [("block", 0, 15, [16, 17, 18, 19], "REFRESHED", 20, None)]
    assert hands.desk.state(0) == State.IN_SYNC


def test_a_snapshot_that_does_not_reach_the_loss_changes_nothing():
    hands = joined()
    hands.mark(RecordKind.GAP, 10, 12)
    hands.packets(12, 20)
    hands.story()
    hands.snapshot(10)
    assert hands.story() == []
    assert hands.desk.state(0) == State.REFRESHING


def test_a_snapshot_ahead_of_the_live_lines_waits_for_them():
    hands = joined()
    hands.mark(RecordKind.GAP, 10, 12)
    hands.packets(12, 15)
    hands.story()
    hands.snapshot(16)
    assert hands.story() == []
    hands.packets(15, 18)
    hands.wait(LOOK_NS / MS)
    assert hands.story() == [("block", 0, 16, [17], "REFRESHED", 18, None)]


def test_a_snapshot_that_its_stream_never_reaches_is_dropped():
    hands = joined()
    hands.mark(RecordKind.GAP, 10, 12)
    hands.packets(12, 15)
    hands.snapshot(5_000)
    hands.story()
    hands.wait(SETTINGS.refresh_timeout_us / 1000 + 1)
    assert not [done for done in hands.story() if done[0] == "block"]
    assert hands.desk.snapshot(0)["counts"]["snapshots_failed"] >= 1


def test_when_too_much_was_published_since_the_snapshot_another_one_is_wanted():
    hands = joined()
    hands.mark(RecordKind.GAP, 10, 12)
    size = len(packet(1))
    hands.packets(12, 12 + 2 * SETTINGS.store_bytes // size)
    hands.story()
    hands.snapshot(13)
    assert not [done for done in hands.story() if done[0] == "block"]
    assert hands.desk.counts["overflows"] == 1
    last = hands.next[0] - 3
    hands.snapshot(last)
    assert [done[2] for done in hands.story() if done[0] == "block"] == [last]


def test_without_refresh_a_loss_stays_stale():
    hands = joined(refresh=False)
    hands.mark(RecordKind.GAP, 10, 12)
    assert hands.story() == [("quality", 0, "STALE", "gap")]
    assert hands.desk.state(0) == State.STALE
    assert hands.desk.store(0) is None


def test_a_refusal_gives_the_range_up():
    hands = joined()
    hands.mark(RecordKind.MISSING, 10, 12, auxiliary=1)
    hands.story()
    hands.desk.client_events(RTS, [Rejected(hands.asked.request_id, 5)], hands.now)
    assert hands.story() == [("give up", 0, 12, 1)]


def test_a_server_given_up_for_today_is_asked_again_at_the_operators_word():
    hands = joined()
    for first in (10, 20, 30):
        hands.mark(RecordKind.MISSING, first, first + 2, auxiliary=1)
        if first < 30:
            today = Rejected(hands.asked.request_id, RetransReject.TOO_MANY_TODAY)
            hands.desk.client_events(RTS, [today], hands.now)
            hands.wait(100)
    assert hands.desk.paused_until_ns(RTS, hands.now) == DAY_NS
    hands.story()
    assert hands.desk.resume(RTS, hands.now)
    assert hands.desk.paused_until_ns(RTS, hands.now) == 0
    assert not hands.desk.resume(RTS, hands.now)
    hands.mark(RecordKind.MISSING, 40, 42, auxiliary=1)
    assert ("ask", RTS, 40, 42) in hands.story()


def test_so_is_a_refresh_server_and_what_was_lost_is_asked_for_at_once():
    hands = joined()
    hands.mark(RecordKind.GAP, 10, 12)
    today = RefreshRejected(hands.desk._desks[0].refresh_id, RefreshReject.TOO_MANY_TODAY)
    hands.desk.client_events(RFS, [today], hands.now)
    assert hands.desk.paused_until_ns(RFS, hands.now) == DAY_NS
    assert hands.desk.state(0) == State.STALE
    hands.story()
    assert hands.desk.resume(RFS, hands.now)
    assert hands.desk.paused_until_ns(RFS, hands.now) == 0
    assert hands.story() == [("ask refresh", RFS, 104)]
    assert not hands.desk.resume(RFS, hands.now)


def test_a_start_in_mid_day_is_closed_until_its_snapshot_is_there():
    hands = joined(first=100)
    assert hands.desk.snapshot(0)["closed"]
    hands.packets(100, 110)
    assert hands.story() == []
    hands.snapshot(104)
    assert hands.story() == [
        ("block", 0, 104, [], "REFRESHED", 105, None),
        ("open", 0, [105, 106, 107, 108, 109]),
    ]
    assert not hands.desk.snapshot(0)["closed"]


def test_a_start_at_the_days_first_packet_needs_no_snapshot():
    hands = Hands([DeskChannel(104, RTS, True, RFS)])
    hands.mark(RecordKind.START, 2, 2)
    assert hands.story() == [("quality", 0, "OK", "start")]


def test_a_mid_day_start_without_a_snapshot_opens_honestly_stale():
    hands = joined(first=100)
    hands.packets(100, 105)
    hands.wait(10 * SETTINGS.refresh_timeout_us / 1000)
    story = hands.story()
    assert ("open", 0, [100, 101, 102, 103, 104]) in story
    assert story[story.index(("open", 0, [100, 101, 102, 103, 104])) - 1][2] == "STALE"
    assert hands.desk.counts["opened_stale"] == 1


def test_a_closed_stream_that_begins_with_skipped_numbers_does_not_tell_them_lost():
    hands = joined(first=100)
    hands.mark(RecordKind.SKIPPED, 100, 103)
    hands.packets(103, 105)
    hands.wait(10 * SETTINGS.refresh_timeout_us / 1000)
    story = hands.story()
    assert ("open", 0, [103, 104]) in story
    assert not [told for told in story if told[3:] == ("gap",)]


def test_a_closed_stream_tells_lost_what_gave_way_in_its_store():
    hands = joined(first=100)
    count = SETTINGS.store_bytes // len(packet(1)) * 2
    hands.packets(100, 100 + count)
    hands.wait(LOOK_NS / MS)
    story = hands.story()
    (kept,) = [told[2] for told in story if told[0] == "open"]
    assert 100 < kept[0] < kept[-1] == 100 + count - 1
    assert ("quality", 0, "STALE", "gap") in story
    assert hands.qualities[0].lost.within(100, kept[0]) == [(100, kept[0] - 1)]


def test_a_closed_stream_whose_store_fills_up_opens_before_anything_is_lost():
    hands = joined(first=100)
    count = SETTINGS.store_bytes // len(packet(1)) * 6 // 10
    hands.packets(100, 100 + count)
    hands.wait(LOOK_NS / MS)
    story = hands.story()
    assert ("quality", 0, "STALE", "overflow") in story
    assert story[-1] == ("open", 0, list(range(100, 100 + count)))


def test_reference_data_comes_first():
    channels = [
        DeskChannel(101, RTS, True, RFS, reference=True),
        DeskChannel(104, RTS, True, RFS),
    ]
    hands = Hands(channels)
    hands.mark(RecordKind.START, 100, 100, place=1)
    asked = [done for done in hands.story() if done[0] == "ask refresh"]
    assert asked == [("ask refresh", RFS, 101)]
    hands.snapshot(7, place=0)
    story = hands.story()
    assert ("block", 0, 7, [], "REFRESHED", 8, None) in story or story[0][:3] == ("block", 0, 7)
    assert ("ask refresh", RFS, 104) in story


def test_reference_data_that_does_not_come_is_not_waited_for_for_ever():
    channels = [
        DeskChannel(101, RTS, True, RFS, reference=True),
        DeskChannel(104, RTS, True, RFS),
    ]
    hands = Hands(channels)
    hands.mark(RecordKind.START, 100, 100, place=1)
    hands.story()
    hands.wait(SETTINGS.refresh_timeout_us / 1000 + 5)
    assert ("ask refresh", RFS, 104) in hands.story()


def test_a_link_that_wants_the_state_gets_the_latest_snapshot_and_what_followed():
    hands = joined()
    hands.snapshot(7)
    hands.desk.attached("link", [0], hands.now)
    assert hands.story() == [("block", 0, 7, [8, 9], "OK", 10, ["link"])]


def test_a_link_that_wants_the_state_waits_where_there_is_none_yet():
    hands = joined()
    hands.desk.attached("early", [0], hands.now)
    hands.gone.add("early")
    hands.desk.attached("link", [0], hands.now)
    story = hands.story()
    assert ("ask refresh", RFS, 104) in story
    assert ("quality", 0, "RECOVERING", "snapshot", ["link"]) in story
    assert hands.withheld == {"early", "link"}
    hands.packets(10, 12)
    hands.snapshot(10)
    assert hands.story() == [("block", 0, 10, [11], "OK", 12, ["link"])]
    assert "link" not in hands.withheld
    hands.snapshot(11)
    assert hands.story() == []


def test_a_snapshot_over_tcp_serves_as_well():
    hands = joined()
    hands.mark(RecordKind.GAP, 10, 12)
    hands.packets(12, 20)
    hands.story()
    hands.snapshot(15, over_tcp=True)
    assert [done[:3] for done in hands.story()] == [("block", 0, 15)]


def test_a_hole_in_a_snapshot_spoils_it():
    hands = joined()
    hands.mark(RecordKind.GAP, 10, 12)
    hands.packets(12, 20)
    hands.story()
    message = FEED.encode_message(230, order_id=1)
    packets = hands.cutter.cut(104, [message], 15, 1, 0)
    hands.desk.refresh_packet(0, 1, packets[0], hands.now)
    hands.desk.refresh_control_event(0, RecordKind.GAP, hands.now)
    for number, data in enumerate(packets[1:], 2):
        hands.desk.refresh_packet(0, number, data, hands.now)
    if len(packets) > 1:
        assert not [done for done in hands.story() if done[0] == "block"]


def test_a_new_numbering_voids_what_is_under_way_and_opens_what_was_closed():
    hands = joined(first=100)
    hands.packets(100, 103)
    hands.story()
    hands.mark(RecordKind.RESET, 0, 2)
    assert hands.story()[:4] == [
        ("quality", 0, "STALE", "no snapshot"),
        ("open", 0, [100, 101, 102]),
        ("renumber", 0),
        ("quality", 0, "OK", "reset"),
    ]
    assert hands.desk.store(0).count == 0
    hands.packets(2, 5)
    assert hands.desk.state(0) == State.IN_SYNC


def test_a_lost_connection_is_waited_for_and_its_ranges_asked_again():
    hands = joined()
    hands.mark(RecordKind.MISSING, 10, 12)
    hands.desk.server_down(RTS, hands.now)
    hands.story()
    hands.wait(100)
    assert hands.story() == []
    hands.desk.server_up(RTS, hands.now)
    hands.wait(200)
    assert ("ask", RTS, 10, 12) in hands.story()


@pytest.mark.parametrize("seed", range(20))
def test_deadlines_always_lie_ahead(seed):
    hands = joined()
    hands.mark(RecordKind.MISSING, 10, 12 + seed)
    hands.mark(RecordKind.GAP, 10, 11)
    for _ in range(200):
        if hands.desk.deadline_ns > hands.now + 10**12:
            break
        hands.now = max(hands.now, hands.desk.deadline_ns)
        hands.desk.tick(hands.now)
        assert hands.desk.deadline_ns > hands.now


def test_holes_that_follow_one_another_closely_are_told_once_each_and_their_end_once():
    hands = joined()
    told = []
    for first in (10, 12, 14):
        hands.mark(RecordKind.MISSING, first, first + 1)
        request = hands.asked.request_id
        assert hands.asked.first == first
        hands.desk.client_events(
            RTS, [Packet(request, 104, first, first + 1, packet(first)), Answered(request)],
            hands.now,
        )  # fmt: skip
        told.append(hands.told["missing"])
        hands.packets(first, first + 2)
        hands.mark(RecordKind.CLOSED, first + 2, first + 2)
        hands.wait(WELL_NS / MS / 2)
    assert told == [[[10, 10]], [[12, 12]], [[14, 14]]]
    hands.wait(WELL_NS / MS)
    assert [done[3] for done in hands.story() if done[0] == "quality"] == [
        "missing", "missing", "missing", "recovered",
    ]  # fmt: skip


def test_a_range_is_told_before_the_packet_that_fills_it():
    hands = joined()
    hands.mark(RecordKind.MISSING, 10, 11)
    first = hands.asked.request_id
    hands.mark(RecordKind.MISSING, 12, 13)
    hands.story()
    hands.desk.client_events(RTS, [Packet(first, 104, 10, 11, packet(10))], hands.now)
    assert hands.story() == [("quality", 0, "RECOVERING", "missing"), ("fill", 0, 10, 0)]
    assert hands.told["missing"] == [[10, 10], [12, 12]]


def test_a_stream_that_opens_behind_its_snapshot_goes_on_there():
    hands = joined(first=100)
    hands.packets(100, 105)
    hands.snapshot(104)
    assert hands.next[0] == 105


def test_a_stream_joined_in_front_of_its_early_snapshot_publishes_nothing_twice():
    hands = Hands([DeskChannel(104, RTS, True, RFS)])
    hands.snapshot(100)
    assert [done[:3] for done in hands.story()] == [("block", 0, 100)]
    hands.mark(RecordKind.START, 90, 90)
    hands.packets(90, 99)
    hands.wait(LOOK_NS / MS)
    assert 0 in hands.closed
    hands.packets(99, 104)
    hands.wait(LOOK_NS / MS)
    story = hands.story()
    assert [done for done in story if done[0] in ("block", "open")] == [
        ("block", 0, 100, [], "REFRESHED", 101, None),
        ("open", 0, [101, 102, 103]),
    ]
    assert "OK" not in [done[2] for done in story if done[0] == "quality"]


def test_a_stream_joined_right_behind_its_early_snapshot_is_whole():
    hands = Hands([DeskChannel(104, RTS, True, RFS)])
    hands.snapshot(99)
    hands.story()
    hands.mark(RecordKind.START, 100, 100)
    assert [done[0] for done in hands.story()] == ["quality"]
    assert not hands.closed


def test_a_later_early_snapshot_is_not_sent_again():
    hands = Hands([DeskChannel(104, RTS, True, RFS)])
    hands.snapshot(100)
    hands.snapshot(150)
    assert [done[2] for done in hands.story() if done[0] == "block"] == [100]


def test_a_gap_while_the_reference_data_is_waited_for_does_not_jump_the_queue():
    channels = [
        DeskChannel(101, RTS, True, RFS, reference=True),
        DeskChannel(104, RTS, True, RFS),
    ]
    hands = Hands(channels)
    hands.mark(RecordKind.START, 100, 100, place=1)
    hands.story()
    hands.mark(RecordKind.GAP, 105, 107, place=1)
    assert not [done for done in hands.story() if done[0] == "ask refresh"]
    hands.snapshot(7, place=0)
    assert ("ask refresh", RFS, 104) in hands.story()
    assert hands.desk.snapshot(1)["lost"][-1][1] == 106


def test_a_snapshot_of_the_numbering_before_a_reset_heals_nothing_after_it():
    hands = joined()
    hands.mark(RecordKind.RESET, 0, 2)
    hands.packets(2, 10)
    hands.mark(RecordKind.GAP, 10, 12)
    hands.packets(12, 50)
    hands.story()
    hands.snapshot(400)
    hands.wait(LAG_NS / MS + 1)
    hands.packets(50, 500)
    hands.wait(10)
    assert not [done for done in hands.story() if done[0] == "block"]
    hands.snapshot(450)
    assert [done[2] for done in hands.story() if done[0] == "block"] == [450]


@pytest.mark.parametrize(
    ("sent_ms", "fits"),
    [
        (70_000, True),  # between the packets 13 and 14
        (59_995, True),  # by a clock that is a little behind
        (59_985, False),  # in the numbering before, however late it comes
        (85_000, True),  # it was cut before packet 14, and took its time
        (91_000, False),  # in a numbering that is still to come
    ],
)
def test_a_snapshot_is_of_the_numbering_that_its_send_time_says(sent_ms, fits):
    hands = joined()
    hands.packets(10, 12, send_time=50_000)
    hands.mark(RecordKind.GAP, 12, 13)
    hands.packets(13, 14, send_time=60_000)
    hands.packets(14, 16, send_time=80_000)
    hands.packets(16, 17, send_time=99_000, flags=RETRANSMITTED)
    hands.story()
    hands.snapshot(13, sent_ms=sent_ms)
    assert hands.desk.counts["foreign"] == (not fits)
    assert hands.desk.counts["refreshes"] == fits
    assert (hands.desk.state(0) == State.IN_SYNC) == fits


def test_who_sent_a_retransmitted_packet_when_says_nothing_of_a_snapshot():
    hands = joined()
    hands.mark(RecordKind.GAP, 10, 11)
    hands.packets(11, 12, send_time=60_000)
    hands.packets(12, 14, send_time=95_000, flags=RETRANSMITTED)
    hands.snapshot(13, sent_ms=70_000)
    assert hands.desk.counts["refreshes"] == 1


def test_a_link_whose_service_has_no_refresh_is_told_so():
    hands = joined(refresh=False)
    hands.desk.attached("link", [0], hands.now)
    assert hands.story() == [("quality", 0, "STALE", "no snapshot", ["link"])]
    assert not hands.withheld


def test_at_the_end_what_closed_streams_hold_is_published_stale():
    hands = joined(first=100)
    hands.packets(100, 103)
    hands.story()
    hands.desk.open_all("stopping", hands.now)
    assert hands.story() == [("quality", 0, "STALE", "stopping"), ("open", 0, [100, 101, 102])]


def test_ranges_that_were_not_told_yet_are_known_to_who_attaches():
    hands = joined()
    hands.mark(RecordKind.MISSING, 10, 11)
    hands.mark(RecordKind.MISSING, 12, 14)
    told = json.loads(hands.qualities[0].attached(10))
    assert told["missing"] == [[10, 10], [12, 13]]
