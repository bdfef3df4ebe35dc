"""The recovery manager in the core that ships: events, answers and snapshots."""

import json

import pytest

from feedhandler.codecs import load_feed
from feedhandler.config import (
    ChannelConfig,
    Config,
    GatewaySettings,
    ServerConfig,
    loopback_lines,
    loopback_refresh_lines,
)
from feedhandler.config.amqp import AmqpConfig
from feedhandler.gateway import GatewayCore
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Ring
from feedhandler.retrans.channel import LOOK_NS
from feedhandler.retrans.events import (
    Accepted,
    Answered,
    Packet,
    RefreshAccepted,
    RefreshPacket,
    RefreshRejected,
    Rejected,
)
from feedhandler.retrans.manager import LAG_NS, RECOVERED_AFTER_NS
from feedhandler.retrans.protocol import RETRANSMITTED, RefreshReject, RetransReject
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.snapshots import SnapshotCutter
from feedhandler.retrans.states import State
from tests.support.seeds import drawn

FEED = load_feed("euronext-utp-md")
MS = 1_000_000
SETTINGS = RecoverySettings(store_bytes=1 << 16)
RTS, RFS = "rts", "rfs"
DAY_NS = FEED.trading_day.turns_ns(1_000 * MS)


def packet(sequence, service=104, **header):
    message = FEED.encode_message(230, order_id=sequence)
    return FEED.encode_packet(sequence=sequence, service=service, messages=[message], **header)


def channel(service, retransmission="", refreshed=False, refresh="", reference=False):
    """One channel's configuration; `refreshed`: it has refresh lines."""
    return ChannelConfig(
        service=service,
        lines=tuple(loopback_lines(service)),
        refresh_lines=tuple(loopback_refresh_lines(service)) if refreshed else (),
        retransmission=retransmission,
        refresh=refresh,
        reference=reference,
    )


class Idle:
    """The core's `GatewayIO`: no link is written to, no timer rings, no observer is there."""

    def flush_soon(self):
        pass

    def wake_at(self, deadline_ns, now_ns):
        pass

    def line_changed(self, kind, channel_index, line):
        pass

    def report(self, text):
        pass


class NotedCore(GatewayCore):
    """The core that ships, with its ring and its streams; what recovery has it do is noted, in
    order, and goes no further where it would leave the core."""

    def __init__(self, channels, settings=SETTINGS, history_bytes=0):
        self.done = []
        self.cancelled = []
        self.room = True
        self.withheld = set()
        self.gone = set()
        self.now = 1_000 * MS
        self.ring = Ring()
        config = Config(
            channels=tuple(channels),
            servers=tuple(ServerConfig(name=name, address="127.0.0.1:1") for name in (RTS, RFS)),
            recovery=settings,
            gateway=GatewaySettings(feed=FEED.name),
            amqp=AmqpConfig(history_bytes=history_bytes),
        )
        super().__init__(config, FEED, self.ring, Idle(), self.now, seed=1)
        self.cutter = SnapshotCutter(FEED)
        self.refresh_sequence = 1

    # what recovery does

    def ask(self, server, request, now_ns):
        self.done.append(("ask", server, request.first, request.end))
        self.asked = request
        return self.room

    def cancel(self, server, request_id):
        self.cancelled.append((server, request_id))
        if server == RTS:  # that a refresh came otherwise is no news here
            self.done.append(("cancel", server))

    def ask_refresh(self, server, request, now_ns):
        self.done.append(("ask refresh", server, request.service))
        self.asked = request

    def fill(self, channel_index, data, epoch):
        self.done.append(("fill", channel_index, FEED.decode_packet(data).sequence, epoch))
        return self.room

    def give_up(self, channel_index, until, epoch):
        self.done.append(("give up", channel_index, until, epoch))

    def disprove(self, channel_index, number, epoch):
        self.done.append(("disprove", channel_index, number, epoch))

    def quality(self, channel_index, body, links=None):
        quality = json.loads(body)
        to = () if links is None else (links,)
        self.done.append(("quality", channel_index, quality["state"], quality["reason"], *to))
        self.reported = quality

    def block(self, channel_index, begin, packets, last, end, links):
        numbers = [FEED.decode_packet(data).sequence for data in packets]
        since = [number for number in numbers if number > last]
        states = json.loads(begin)["state"], json.loads(end)["state"]
        self.done.append(
            ("block", channel_index, last, since, states[1], json.loads(end)["next"], links)
        )

    def withhold(self, channel_index, link):
        self.withheld.add(link)

    def admit(self, channel_index, link):
        self.withheld.discard(link)

    def close_stream(self, channel_index):
        super().close_stream(channel_index)
        self.done.append(("close", channel_index))

    def open_stream(self, channel_index, packets, following):
        super().open_stream(channel_index, packets, following)
        self.done.append(("open", channel_index, [sequence for sequence, _, _ in packets]))

    def renumber(self, channel_index):
        self.done.append(("renumber", channel_index))

    def is_here(self, link):
        return link not in self.gone

    def alert(self, text, now_ns):
        self.done.append(("alert", text))

    # what happens to it

    def control_event(self, kind, first=0, end=0, channel_index=0, auxiliary=0):
        """A control event in the ring."""
        assert self.ring.put(
            kind, channel=channel_index, sequence=first, next_sequence=end, auxiliary=auxiliary
        )
        self.read()

    def packets(self, first, end, channel_index=0, **header):
        """Published, or stored where the stream is closed."""
        for sequence in range(first, end):
            self.put(
                channel_index,
                sequence,
                packet(sequence, self.qualities[channel_index].service, **header),
            )
        self.read()

    def snapshot(self, last, channel_index=0, over_tcp=False, sent_ms=0):
        """A whole snapshot on the refresh lines."""
        service = self.qualities[channel_index].service
        message = FEED.encode_message(230, order_id=last)
        for data in self.cutter.cut(service, [message], last, self.refresh_sequence, sent_ms):
            if over_tcp:
                event = RefreshPacket(service, self.refresh_sequence, data)
                self.recovery.client_events(RFS, [event], self.now)
            else:
                channel = len(self.streams) + self.refresh_indices.index(channel_index)
                self.put(channel, self.refresh_sequence, data)
                self.read()
            self.refresh_sequence += 1

    def put(self, channel, sequence, data):
        assert self.ring.put(
            RecordKind.PACKET,
            channel=channel,
            sequence=sequence,
            next_sequence=sequence + 1,
            count=1,
            payload=data,
        )

    def read(self):
        """Take what is in the ring, as the loop does."""
        self.ring.publish()
        assert not self.pump(self.ring.capacity, self.now)

    def wait(self, milliseconds):
        end = self.now + int(milliseconds * MS)
        while self.recovery.deadline_ns <= end:
            self.now = max(self.now + 1, self.recovery.deadline_ns)
            self.recovery.tick(self.now)
        self.now = end

    def story(self):
        done, self.done = self.done, []
        return done


def joined(*, first=1, refresh=True, retransmission=RTS, settings=SETTINGS, history_bytes=0):
    """One channel, joined and at number 10."""
    channels = [channel(104, retransmission, refresh, RFS if refresh else "")]
    core = NotedCore(channels, settings, history_bytes)
    core.recovery.server_up(RTS, core.now)
    core.control_event(RecordKind.START, first, first)
    if first == 1:
        core.packets(1, 10)
    core.story()
    return core


def test_what_is_missing_is_announced_and_asked_for_and_filled():
    core = joined()
    core.control_event(RecordKind.GAP_NOTICED, 10, 12)
    assert core.recovery.state(0) == State.SUSPECTING
    core.control_event(RecordKind.MISSING, 10, 12, auxiliary=3)
    assert core.story() == [("quality", 0, "RECOVERING", "missing"), ("ask", RTS, 10, 12)]
    assert core.reported["missing"] == [[10, 11]]
    assert core.recovery.snapshot(0)["requested"] == [[10, 11]]
    for event in (
        Accepted(core.asked.request_id),
        Packet(core.asked.request_id, 104, 10, 11, packet(10)),
        Packet(core.asked.request_id, 104, 11, 12, packet(11)),
        Answered(core.asked.request_id),
    ):
        core.recovery.client_events(RTS, [event], core.now)
    assert core.story() == [("fill", 0, 10, 3), ("fill", 0, 11, 3)]
    core.packets(10, 14)
    core.control_event(RecordKind.CLOSED, 14, 14)
    assert core.story() == []
    core.wait(RECOVERED_AFTER_NS / MS)
    assert core.story() == [("quality", 0, "OK", "recovered")]
    assert core.recovery.state(0) == State.IN_SYNC
    assert core.recovery.counts["retransmitted"] == 2
    assert core.recovery.counts["requests"] == 1


def test_what_found_no_room_on_its_way_to_the_arbiter_is_asked_for_again():
    core = joined()
    core.control_event(RecordKind.MISSING, 10, 12)
    asked = core.asked.request_id
    for number in (10, 11):
        core.room = number == 10
        event = Packet(asked, 104, number, number + 1, packet(number))
        core.recovery.client_events(RTS, [event], core.now)
    core.recovery.client_events(RTS, [Answered(asked)], core.now)
    core.story()
    core.wait(SETTINGS.backoff_us / 1000)
    assert core.story() == [("ask", RTS, 11, 12)]


def test_requests_that_cannot_be_sent_say_nothing_of_the_server():
    """As where they name a session, which the channel has not shown yet."""
    channels = [channel(service, RTS) for service in (103, 104)]
    core = NotedCore(channels)
    core.recovery.server_up(RTS, core.now)
    core.room = False
    for first in (10, 20):
        core.control_event(RecordKind.MISSING, first, first + 1)
        core.wait(SETTINGS.recovery_wait_us / 1000)
        core.control_event(RecordKind.GAP, first, first + 1)
    story = core.story()
    assert story.count(("ask", RTS, 10, 11)) == 1 + SETTINGS.retries
    assert ("give up", 0, 11, 0) in story
    assert core.recovery.snapshot(0)["counts"]["timed_out"] == 0
    core.control_event(RecordKind.MISSING, 30, 31, channel_index=1)
    assert ("ask", RTS, 30, 31) in core.story()


def test_requests_of_two_channels_are_told_apart():
    channels = [channel(service, RTS) for service in (103, 104)]
    core = NotedCore(channels)
    core.recovery.server_up(RTS, core.now)
    for channel_index in (0, 1):
        core.control_event(RecordKind.START, 1, 1, channel_index)
        core.packets(1, 10, channel_index)
        core.control_event(RecordKind.MISSING, 10, 11, channel_index)
    core.story()
    core.recovery.client_events(
        RTS, [Packet(core.asked.request_id, 104, 10, 11, packet(10))], core.now
    )
    assert core.story() == [("fill", 1, 10, 0)]
    assert core.recovery.state(0) == State.REQUESTING


def test_what_was_lost_is_refreshed_and_the_block_has_what_was_published_since():
    core = joined()
    core.control_event(RecordKind.GAP, 10, 12)
    assert core.story() == [("quality", 0, "STALE", "gap"), ("ask refresh", RFS, 104)]
    core.packets(12, 20)
    core.snapshot(15)
    assert core.story() == [("block", 0, 15, [16, 17, 18, 19], "REFRESHED", 20, None)]
    assert core.recovery.state(0) == State.IN_SYNC


def test_a_snapshot_that_does_not_reach_the_loss_changes_nothing():
    core = joined()
    core.control_event(RecordKind.GAP, 10, 12)
    core.packets(12, 20)
    core.story()
    core.snapshot(10)
    assert core.story() == []
    assert core.recovery.state(0) == State.REFRESHING


def test_a_snapshot_ahead_of_the_live_lines_waits_for_them():
    core = joined()
    core.control_event(RecordKind.GAP, 10, 12)
    core.packets(12, 15)
    core.story()
    core.snapshot(16)
    assert core.story() == []
    core.packets(15, 18)
    core.wait(LOOK_NS / MS)
    assert core.story() == [("block", 0, 16, [17], "REFRESHED", 18, None)]


def test_a_snapshot_that_its_stream_never_reaches_is_dropped():
    core = joined()
    core.control_event(RecordKind.GAP, 10, 12)
    core.packets(12, 15)
    core.snapshot(5_000)
    core.story()
    core.wait(SETTINGS.refresh_timeout_us / 1000 + 1)
    assert not [done for done in core.story() if done[0] == "block"]
    assert core.recovery.snapshot(0)["counts"]["snapshots_failed"] >= 1


def test_when_too_much_was_published_since_the_snapshot_another_one_is_wanted():
    core = joined()
    core.control_event(RecordKind.GAP, 10, 12)
    size = len(packet(1))
    core.packets(12, 12 + 2 * SETTINGS.store_bytes // size)
    core.story()
    core.snapshot(13)
    assert not [done for done in core.story() if done[0] == "block"]
    assert core.recovery.counts["overflows"] == 1
    last = core.next_sequence(0) - 3
    core.snapshot(last)
    assert [done[2] for done in core.story() if done[0] == "block"] == [last]


def test_without_refresh_a_loss_stays_stale():
    core = joined(refresh=False)
    core.control_event(RecordKind.GAP, 10, 12)
    assert core.story() == [("quality", 0, "STALE", "gap")]
    assert core.recovery.state(0) == State.STALE
    assert core.recovery.store(0) is None


def test_a_refusal_gives_the_range_up():
    core = joined()
    core.control_event(RecordKind.MISSING, 10, 12, auxiliary=1)
    core.story()
    core.recovery.client_events(RTS, [Rejected(core.asked.request_id, 5)], core.now)
    assert core.story() == [("give up", 0, 12, 1)]


def test_a_declared_loss_reports_what_is_missing_now_by_its_own_message():
    core = joined()
    for first in (10, 14, 18):
        core.control_event(RecordKind.MISSING, first, first + 2, auxiliary=1)
    core.story()
    core.control_event(RecordKind.GAP, 10, 12)
    reports = [each for each in core.story() if each[0] == "quality"]
    assert reports == [("quality", 0, "STALE", "gap")]
    assert core.reported["missing"] == [[14, 15], [18, 19]]


def test_what_stays_lost_at_a_withdrawal_is_counted_once():
    core = joined()
    for first in (10, 14, 18):
        core.control_event(RecordKind.GAP, first, first + 2)
    core.control_event(RecordKind.WITHDRAWN, 20, 18)
    recovery = core.recovery._channels[0].recovery
    assert recovery.lost_ranges == [(10, 12), (14, 16)]
    assert recovery.counts["lost"] == 6


def given_up_for_today():
    """A manager whose server said twice that there were too many requests today."""
    core = joined()
    for first in (10, 20, 30):
        core.control_event(RecordKind.MISSING, first, first + 2, auxiliary=1)
        if first < 30:
            today = Rejected(core.asked.request_id, RetransReject.TOO_MANY_TODAY)
            core.recovery.client_events(RTS, [today], core.now)
            core.wait(100)
    assert core.recovery.paused_until_ns(RTS, core.now) == DAY_NS
    core.story()
    return core


@pytest.mark.parametrize(
    ("kind", "first", "end", "asked_again"),
    [(RecordKind.RESET, 0, 2, True), (RecordKind.WITHDRAWN, 12, 10, False)],
    ids=["reset", "withdrawn"],
)
def test_a_server_given_up_for_today_is_asked_again_in_a_new_epoch_only(
    kind, first, end, asked_again
):
    core = given_up_for_today()
    core.control_event(RecordKind.GAP, 10, 12)
    core.control_event(kind, first, end)
    assert (core.recovery.paused_until_ns(RTS, core.now) == 0) == asked_again
    core.control_event(RecordKind.MISSING, 40, 42, auxiliary=1)
    assert (("ask", RTS, 40, 42) in core.story()) == asked_again


def test_a_server_given_up_for_today_is_asked_again_at_the_operators_word():
    core = given_up_for_today()
    assert core.recovery.resume(RTS, core.now)
    assert core.recovery.paused_until_ns(RTS, core.now) == 0
    assert not core.recovery.resume(RTS, core.now)
    core.control_event(RecordKind.MISSING, 40, 42, auxiliary=1)
    assert ("ask", RTS, 40, 42) in core.story()


def test_so_is_a_refresh_server_and_what_was_lost_is_asked_for_at_once():
    core = joined()
    core.control_event(RecordKind.GAP, 10, 12)
    today = RefreshRejected(core.recovery._channels[0].refresh_id, RefreshReject.TOO_MANY_TODAY)
    core.recovery.client_events(RFS, [today], core.now)
    assert core.recovery.paused_until_ns(RFS, core.now) == DAY_NS
    assert core.recovery.state(0) == State.STALE
    core.story()
    assert core.recovery.resume(RFS, core.now)
    assert core.recovery.paused_until_ns(RFS, core.now) == 0
    assert core.story() == [("ask refresh", RFS, 104)]
    assert not core.recovery.resume(RFS, core.now)


def test_a_start_in_mid_day_is_closed_until_its_snapshot_is_there():
    core = joined(first=100)
    assert core.recovery.snapshot(0)["closed"]
    core.packets(100, 110)
    assert core.story() == []
    core.snapshot(104)
    assert core.story() == [
        ("block", 0, 104, [], "REFRESHED", 105, None),
        ("open", 0, [105, 106, 107, 108, 109]),
    ]
    assert not core.recovery.snapshot(0)["closed"]


def test_a_start_at_the_days_first_packet_needs_no_snapshot():
    core = NotedCore([channel(104, RTS, True, RFS)])
    core.control_event(RecordKind.START, 2, 2)
    assert core.story() == [("quality", 0, "OK", "start")]


def test_a_mid_day_start_without_a_snapshot_opens_honestly_stale():
    core = joined(first=100)
    core.packets(100, 105)
    core.wait(10 * SETTINGS.refresh_timeout_us / 1000)
    story = core.story()
    assert ("open", 0, [100, 101, 102, 103, 104]) in story
    assert story[story.index(("open", 0, [100, 101, 102, 103, 104])) - 1][2] == "STALE"
    assert core.recovery.counts["opened_stale"] == 1


def test_a_closed_stream_that_begins_with_skipped_numbers_does_not_tell_them_lost():
    core = joined(first=100)
    core.control_event(RecordKind.SKIPPED, 100, 103)
    core.packets(103, 105)
    core.wait(10 * SETTINGS.refresh_timeout_us / 1000)
    story = core.story()
    assert ("open", 0, [103, 104]) in story
    assert not [step for step in story if step[3:] == ("gap",)]


def test_a_closed_stream_tells_lost_what_gave_way_in_its_store():
    core = joined(first=100)
    count = SETTINGS.store_bytes // len(packet(1)) * 2
    core.packets(100, 100 + count)
    core.wait(LOOK_NS / MS)
    story = core.story()
    (kept,) = [step[2] for step in story if step[0] == "open"]
    assert 100 < kept[0] < kept[-1] == 100 + count - 1
    assert ("quality", 0, "STALE", "gap") in story
    assert core.qualities[0].lost.within(100, kept[0]) == [(100, kept[0] - 1)]


@pytest.mark.parametrize("first", [50, 5000])
def test_a_closed_stream_does_not_tell_lost_what_gives_way_of_the_epoch_before(first):
    core = joined(history_bytes=SETTINGS.store_bytes)
    core.packets(10, SETTINGS.store_bytes // len(packet(1)) * 2)
    assert core.recovery.store(0).evicted
    core.control_event(RecordKind.RESET, 0, first)
    core.packets(first, first + 10)
    core.wait(10 * SETTINGS.refresh_timeout_us / 1000)
    story = core.story()
    assert ("open", 0, list(range(first, first + 10))) in story
    assert not [step for step in story if step[3:] == ("gap",)]


def test_a_closed_stream_whose_store_fills_up_opens_before_anything_is_lost():
    core = joined(first=100)
    count = SETTINGS.store_bytes // len(packet(1)) * 6 // 10
    core.packets(100, 100 + count)
    core.wait(LOOK_NS / MS)
    story = core.story()
    assert ("quality", 0, "STALE", "overflow") in story
    assert story[-1] == ("open", 0, list(range(100, 100 + count)))


def test_reference_data_comes_first():
    channels = [
        channel(101, RTS, True, RFS, reference=True),
        channel(104, RTS, True, RFS),
    ]
    core = NotedCore(channels)
    core.control_event(RecordKind.START, 100, 100, channel_index=1)
    asked = [done for done in core.story() if done[0] == "ask refresh"]
    assert asked == [("ask refresh", RFS, 101)]
    core.snapshot(7, channel_index=0)
    story = core.story()
    assert ("block", 0, 7, [], "REFRESHED", 8, None) in story or story[0][:3] == ("block", 0, 7)
    assert ("ask refresh", RFS, 104) in story


def test_reference_data_that_does_not_come_is_not_waited_for_for_ever():
    channels = [
        channel(101, RTS, True, RFS, reference=True),
        channel(104, RTS, True, RFS),
    ]
    core = NotedCore(channels)
    core.control_event(RecordKind.START, 100, 100, channel_index=1)
    core.story()
    core.wait(SETTINGS.refresh_timeout_us / 1000 + 5)
    assert ("ask refresh", RFS, 104) in core.story()


def test_a_link_that_wants_the_state_gets_the_latest_snapshot_and_what_followed():
    core = joined()
    core.snapshot(7)
    core.recovery.attached("link", [0], core.now)
    assert core.story() == [("block", 0, 7, [8, 9], "OK", 10, ["link"])]


def test_a_link_that_wants_the_state_waits_where_there_is_none_yet():
    core = joined()
    core.recovery.attached("early", [0], core.now)
    core.gone.add("early")
    core.recovery.attached("link", [0], core.now)
    story = core.story()
    assert ("ask refresh", RFS, 104) in story
    assert ("quality", 0, "RECOVERING", "snapshot", ["link"]) in story
    assert core.withheld == {"early", "link"}
    core.packets(10, 12)
    core.snapshot(10)
    assert core.story() == [("block", 0, 10, [11], "OK", 12, ["link"])]
    assert "link" not in core.withheld
    core.snapshot(11)
    assert core.story() == []


def test_a_snapshot_over_tcp_serves_as_well():
    core = joined()
    core.control_event(RecordKind.GAP, 10, 12)
    core.packets(12, 20)
    core.story()
    core.snapshot(15, over_tcp=True)
    assert [done[:3] for done in core.story()] == [("block", 0, 15)]


def test_a_hole_in_a_snapshot_spoils_it():
    core = joined()
    core.control_event(RecordKind.GAP, 10, 12)
    core.packets(12, 20)
    core.story()
    message = FEED.encode_message(230, order_id=1)
    packets = core.cutter.cut(104, [message], 15, 1, 0)
    core.recovery.refresh_packet(0, 1, packets[0], core.now)
    core.recovery.refresh_line_event(0, RecordKind.GAP, core.now)
    for number, data in enumerate(packets[1:], 2):
        core.recovery.refresh_packet(0, number, data, core.now)
    if len(packets) > 1:
        assert not [done for done in core.story() if done[0] == "block"]


def test_a_new_epoch_voids_what_is_under_way_and_opens_what_was_closed():
    core = joined(first=100)
    core.packets(100, 103)
    core.story()
    core.control_event(RecordKind.RESET, 0, 2)
    assert core.story()[:4] == [
        ("quality", 0, "STALE", "no snapshot"),
        ("open", 0, [100, 101, 102]),
        ("renumber", 0),
        ("quality", 0, "OK", "reset"),
    ]
    assert core.recovery.store(0).count == 0
    core.packets(2, 5)
    assert core.recovery.state(0) == State.IN_SYNC


def test_a_lost_connection_is_waited_for_and_its_ranges_asked_again():
    core = joined()
    core.control_event(RecordKind.MISSING, 10, 12)
    core.recovery.server_down(RTS, core.now)
    core.story()
    core.wait(100)
    assert core.story() == []
    core.recovery.server_up(RTS, core.now)
    core.wait(200)
    assert ("ask", RTS, 10, 12) in core.story()


@drawn(4)
def test_deadlines_always_lie_ahead(seed):
    core = joined()
    core.control_event(RecordKind.MISSING, 10, 12 + seed)
    core.control_event(RecordKind.GAP, 10, 11)
    for _ in range(200):
        if core.recovery.deadline_ns > core.now + 10**12:
            break
        core.now = max(core.now, core.recovery.deadline_ns)
        core.recovery.tick(core.now)
        assert core.recovery.deadline_ns > core.now


def test_gaps_that_follow_one_another_closely_are_announced_once_each_and_their_end_once():
    core = joined()
    announced = []
    for first in (10, 12, 14):
        core.control_event(RecordKind.MISSING, first, first + 1)
        request = core.asked.request_id
        assert core.asked.first == first
        core.recovery.client_events(
            RTS, [Packet(request, 104, first, first + 1, packet(first)), Answered(request)],
            core.now,
        )  # fmt: skip
        announced.append(core.reported["missing"])
        core.packets(first, first + 2)
        core.control_event(RecordKind.CLOSED, first + 2, first + 2)
        core.wait(RECOVERED_AFTER_NS / MS / 2)
    assert announced == [[[10, 10]], [[12, 12]], [[14, 14]]]
    core.wait(RECOVERED_AFTER_NS / MS)
    assert [done[3] for done in core.story() if done[0] == "quality"] == [
        "missing", "missing", "missing", "recovered",
    ]  # fmt: skip


def test_a_range_is_announced_before_the_packet_that_fills_it():
    core = joined()
    core.control_event(RecordKind.MISSING, 10, 11)
    first = core.asked.request_id
    core.control_event(RecordKind.MISSING, 12, 13)
    core.story()
    core.recovery.client_events(RTS, [Packet(first, 104, 10, 11, packet(10))], core.now)
    assert core.story() == [("quality", 0, "RECOVERING", "missing"), ("fill", 0, 10, 0)]
    assert core.reported["missing"] == [[10, 10], [12, 12]]


def test_a_stream_that_opens_behind_its_snapshot_goes_on_there():
    core = joined(first=100)
    core.packets(100, 105)
    core.snapshot(104)
    assert core.next_sequence(0) == 105


def test_a_stream_joined_in_front_of_its_early_snapshot_publishes_nothing_twice():
    core = NotedCore([channel(104, RTS, True, RFS)])
    core.snapshot(100)
    assert [done[:3] for done in core.story()] == [("block", 0, 100)]
    core.control_event(RecordKind.START, 90, 90)
    core.packets(90, 99)
    core.wait(LOOK_NS / MS)
    assert core.streams[0].closed
    core.packets(99, 104)
    core.wait(LOOK_NS / MS)
    story = core.story()
    assert [done for done in story if done[0] in ("block", "open")] == [
        ("block", 0, 100, [], "REFRESHED", 101, None),
        ("open", 0, [101, 102, 103]),
    ]
    assert "OK" not in [done[2] for done in story if done[0] == "quality"]


def test_a_stream_joined_right_behind_its_early_snapshot_is_whole():
    core = NotedCore([channel(104, RTS, True, RFS)])
    core.snapshot(99)
    core.story()
    core.control_event(RecordKind.START, 100, 100)
    assert [done[0] for done in core.story()] == ["quality"]
    assert not core.streams[0].closed


def test_a_later_early_snapshot_is_not_sent_again():
    core = NotedCore([channel(104, RTS, True, RFS)])
    core.snapshot(100)
    core.snapshot(150)
    assert [done[2] for done in core.story() if done[0] == "block"] == [100]


def test_a_gap_while_the_reference_data_is_waited_for_does_not_jump_the_queue():
    channels = [
        channel(101, RTS, True, RFS, reference=True),
        channel(104, RTS, True, RFS),
    ]
    core = NotedCore(channels)
    core.control_event(RecordKind.START, 100, 100, channel_index=1)
    core.story()
    core.control_event(RecordKind.GAP, 105, 107, channel_index=1)
    assert not [done for done in core.story() if done[0] == "ask refresh"]
    core.snapshot(7, channel_index=0)
    assert ("ask refresh", RFS, 104) in core.story()
    assert core.recovery.snapshot(1)["lost"][-1][1] == 106


def test_a_gap_behind_the_reference_data_is_lost_like_any_other():
    channels = [
        channel(101, RTS, True, RFS, reference=True),
        channel(104, RTS, True, RFS),
    ]
    core = NotedCore(channels)
    core.recovery.server_up(RTS, core.now)
    core.control_event(RecordKind.START, 100, 100, channel_index=1)
    core.snapshot(7, channel_index=0)
    core.packets(100, 110, channel_index=1)
    core.control_event(RecordKind.MISSING, 110, 112, channel_index=1)
    core.control_event(RecordKind.GAP, 110, 112, channel_index=1)
    core.packets(112, 115, channel_index=1)
    core.snapshot(110, channel_index=1)
    recovery = core.recovery.snapshot(1)
    assert (recovery["lost"], recovery["requested"]) == ([[1, 99], [110, 111]], [])
    counts = recovery["counts"]
    assert (counts["lost"], counts["snapshots_old"]) == (101, 1)
    assert core.recovery.counts["overflows"] == 0


def test_a_snapshot_of_the_epoch_before_a_reset_heals_nothing_after_it():
    core = joined()
    core.control_event(RecordKind.RESET, 0, 2)
    core.packets(2, 10)
    core.control_event(RecordKind.GAP, 10, 12)
    core.packets(12, 50)
    core.story()
    core.snapshot(400)
    core.wait(LAG_NS / MS + 1)
    core.packets(50, 500)
    core.wait(10)
    assert not [done for done in core.story() if done[0] == "block"]
    core.snapshot(450)
    assert [done[2] for done in core.story() if done[0] == "block"] == [450]


@pytest.mark.parametrize("asked_again", [False, True])
def test_a_snapshot_that_a_server_has_accepted_to_send_is_cancelled_by_a_new_epoch(asked_again):
    core = joined()
    core.control_event(RecordKind.GAP, 10, 12)
    accepted = core.asked.request_id
    core.recovery.client_events(RFS, [RefreshAccepted(accepted)], core.now)
    if asked_again:
        core.wait(SETTINGS.refresh_timeout_us / 1000 + 1)
    core.cancelled.clear()
    core.control_event(RecordKind.RESET, 0, 2)
    assert (RFS, accepted) in core.cancelled
    core.cancelled.clear()
    core.control_event(RecordKind.RESET, 0, 2)
    assert core.cancelled == []


@pytest.mark.parametrize(
    ("sent_ms", "fits"),
    [
        (70_000, True),  # between the packets 13 and 14
        (59_995, True),  # by a clock that is a little behind
        (59_985, False),  # in the epoch before, however late it comes
        (85_000, True),  # it was cut before packet 14, and took its time
        (91_000, False),  # in an epoch that is still to come
    ],
)
def test_a_snapshot_is_of_the_epoch_that_its_send_time_says(sent_ms, fits):
    core = joined()
    core.packets(10, 12, send_time=50_000)
    core.control_event(RecordKind.GAP, 12, 13)
    core.packets(13, 14, send_time=60_000)
    core.packets(14, 16, send_time=80_000)
    core.packets(16, 17, send_time=99_000, flags=RETRANSMITTED)
    core.story()
    core.snapshot(13, sent_ms=sent_ms)
    assert core.recovery.counts["foreign"] == (not fits)
    assert core.recovery.counts["refreshes"] == fits
    assert (core.recovery.state(0) == State.IN_SYNC) == fits


def test_who_sent_a_retransmitted_packet_when_says_nothing_of_a_snapshot():
    core = joined()
    core.control_event(RecordKind.GAP, 10, 11)
    core.packets(11, 12, send_time=60_000)
    core.packets(12, 14, send_time=95_000, flags=RETRANSMITTED)
    core.snapshot(13, sent_ms=70_000)
    assert core.recovery.counts["refreshes"] == 1


def test_a_link_whose_service_has_no_refresh_is_told_so():
    core = joined(refresh=False)
    core.recovery.attached("link", [0], core.now)
    assert core.story() == [("quality", 0, "STALE", "no snapshot", ["link"])]
    assert not core.withheld


def test_at_the_end_what_closed_streams_hold_is_published_stale():
    core = joined(first=100)
    core.packets(100, 103)
    core.story()
    core.recovery.open_all("stopping", core.now)
    assert core.story() == [("quality", 0, "STALE", "stopping"), ("open", 0, [100, 101, 102])]


def test_ranges_that_were_not_announced_yet_are_in_the_first_message_of_a_link():
    core = joined()
    core.control_event(RecordKind.MISSING, 10, 11)
    core.control_event(RecordKind.MISSING, 12, 14)
    quality = json.loads(core.qualities[0].attached(10))
    assert quality["missing"] == [[10, 10], [12, 13]]
