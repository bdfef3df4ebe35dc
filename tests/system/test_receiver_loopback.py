"""The receive thread on real loopback multicast."""

import os
import random
import select
import socket
import time
from dataclasses import replace

import pytest

from feedhandler.codecs import ConfigError, UsageError, load_feed
from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.ingest.lines import ChannelPlan, Line, open_line, set_receive_buffer
from feedhandler.ingest.receiver import Receiver
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.ring import Ring
from feedhandler.ingest.settings import ArbitrationSettings
from tests.support import free_addresses

FEED = load_feed("euronext-utp-md")
LIMIT_S = 60
QUIET = ArbitrationSettings(silent_us=60_000_000)


@pytest.fixture
def groups(unused_port):
    """Two lines of one service on loopback, and a way to send to each."""
    return (
        Line("A", free_addresses.group(), unused_port, "127.0.0.1"),
        Line("B", free_addresses.group(), unused_port, "127.0.0.1"),
    )


@pytest.fixture
def unused_port():
    return free_addresses.port()


@pytest.fixture
def counting(unused_port):
    """A line that takes only 127.0.0.1 and counts the others."""
    return Line("A", free_addresses.group(), unused_port, "lo", "127.0.0.1", source_filter="count")


@pytest.fixture
def sender():
    with Sender() as sender:
        yield sender


class Sender:
    """Sends datagrams to lines, from an address of choice."""

    def __init__(self, source: str = "127.0.0.1") -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((source, 0))
        self.sock.setsockopt(
            socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
        )
        self.sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)

    def __enter__(self) -> "Sender":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, line: Line, datagram: bytes) -> None:
        self.sock.sendto(datagram, (line.group, line.port))


class Consumer:
    """A running receiver, and everything that came out of it."""

    def __init__(self, plans, settings=QUIET, ring_bytes=1 << 22, **options) -> None:
        self.ring = Ring(ring_bytes)
        self.receiver = Receiver(FEED.table, 1, plans, self.ring, settings=settings, **options)
        self.events = []

    def __enter__(self) -> "Consumer":
        self.receiver.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.receiver.stop()
        assert self.receiver.error is None

    def until(self, done) -> list:
        """Read events, sleeping on the eventfd, until `done(self)`."""
        end = time.monotonic() + LIMIT_S
        while True:
            self.events += self.ring.drain()
            if done(self):
                return self.events
            if self.ring.arm():
                left = end - time.monotonic()
                assert left > 0, f"not in time; events {self.events[-5:]}"
                select.select([self.receiver.fileno()], [], [], min(left, 0.05))

    def until_packets(self, count: int) -> list:
        self.until(lambda self: len(self.sequences()) >= count)
        return self.sequences()

    def until_counted(self, line: int, counter: LineCounter, count: int) -> None:
        """Wait until a line's counter has reached `count`."""
        self.until(lambda self: self.receiver.line_counters[line, counter] >= count)

    def sequences(self) -> list[int]:
        return [e.sequence for e in self.events if e.kind == RecordKind.PACKET]

    def kinds(self) -> list[RecordKind]:
        return [e.kind for e in self.events]


def packet(sequence: int, service: int = 104, messages: int = 2) -> bytes:
    body = [FEED.encode_message(230, order_id=sequence) for _ in range(messages)]
    return FEED.encode_packet(sequence=sequence, service=service, messages=body, send_time=sequence)


def test_two_lines_become_one_stream(groups, sender):
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        for sequence in range(1, 501):
            for line in groups:
                sender.send(line, packet(sequence))
        assert consumer.until_packets(500) == list(range(1, 501))
        counters = consumer.receiver.line_counters
        consumer.until(lambda c: counters[:, LineCounter.DUPLICATES].sum() == 500)
        start, first = consumer.events[:2]
        assert start.kind == RecordKind.START
        assert first.payload == packet(1)
        assert abs(first.received_ns - time.time_ns()) < LIMIT_S * 10**9
        snapshot = consumer.receiver.snapshot()
        assert snapshot["channels"][104]["packets"] == 500
        assert snapshot["channels"][104]["messages"] == 1000
        lines = snapshot["lines"]
        assert lines["A"]["won"] + lines["B"]["won"] == 500
        assert lines["A"]["duplicates"] + lines["B"]["duplicates"] == 500
        assert snapshot["ring_high_bytes"] > 0


def test_both_lines_lossy_and_only_what_both_lost_is_announced(groups, sender):
    draw = random.Random(11)
    lost = {line.name: {s for s in range(2, 2000) if draw.random() < 0.1} for line in groups}
    both = lost["A"] & lost["B"]
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        for sequence in range(1, 2001):
            for line in groups:
                if sequence not in lost[line.name]:
                    sender.send(line, packet(sequence))
        got = consumer.until_packets(2000 - len(both))
        announced = {
            number
            for e in consumer.events
            if e.kind == RecordKind.GAP
            for number in range(e.sequence, e.next_sequence)
        }
        assert got == [s for s in range(1, 2001) if s not in both]
        assert announced == both


def test_a_datagram_for_a_foreign_group_does_not_arrive(groups, sender, unused_port):
    foreign = Line("X", free_addresses.group(), unused_port, "127.0.0.1")
    with open_line(foreign), Consumer([ChannelPlan(104, groups)]) as consumer:
        sender.send(foreign, packet(1))
        for line in groups:
            sender.send(line, packet(1))
        consumer.until_counted(0, LineCounter.PACKETS, 1)
        consumer.until_counted(1, LineCounter.PACKETS, 1)
        assert consumer.receiver.line_counters[:, LineCounter.PACKETS].tolist() == [1, 1]


def test_each_line_gets_only_its_own_group_on_the_same_port(groups, sender):
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        for sequence in (1, 2, 3):
            sender.send(groups[1], packet(sequence))
        consumer.until_packets(3)
        assert consumer.receiver.line_counters[:, LineCounter.PACKETS].tolist() == [0, 3]


def test_the_kernel_keeps_a_foreign_source_from_a_source_specific_line(unused_port, sender):
    line = Line("A", free_addresses.group(), unused_port, "lo", source="127.0.0.1")
    with Sender("127.0.0.2") as stranger, Consumer([ChannelPlan(104, (line,))]) as consumer:
        for sequence in (1, 2, 3):
            stranger.send(line, packet(sequence, messages=1))
        for sequence in (1, 2, 3):
            sender.send(line, packet(sequence))
        consumer.until_packets(3)
        assert all(e.count == 2 for e in consumer.events if e.kind == RecordKind.PACKET)
        seen = consumer.receiver.line_counters[0]
        assert (seen[LineCounter.PACKETS], seen[LineCounter.FOREIGN_SOURCE]) == (3, 0)


def test_a_line_that_counts_drops_and_counts_each_datagram_of_a_foreign_source(counting, sender):
    with Sender("127.0.0.2") as stranger, Consumer([ChannelPlan(104, (counting,))]) as consumer:
        for sequence in (1, 2, 3):
            stranger.send(counting, packet(sequence, messages=1))
        for sequence in (1, 2, 3):
            sender.send(counting, packet(sequence))
        assert consumer.until_packets(3) == [1, 2, 3]
        assert all(e.count == 2 for e in consumer.events if e.kind == RecordKind.PACKET)
        seen = consumer.receiver.line_counters[0]
        assert (seen[LineCounter.PACKETS], seen[LineCounter.FOREIGN_SOURCE]) == (6, 3)


def test_forged_packets_of_a_foreign_source_change_nothing(counting, sender):
    batch = 200  # fits into the smallest usual receive buffer
    batches = int(os.environ.get("FORGED", "10000")) // batch
    with Sender("127.0.0.2") as stranger, Consumer([ChannelPlan(104, (counting,))]) as consumer:
        for number in range(1, batches + 1):
            forged = packet(number, messages=1)
            for _ in range(batch):
                stranger.send(counting, forged)
            sender.send(counting, packet(number))
            consumer.until_packets(number)
        assert consumer.sequences() == list(range(1, batches + 1))
        assert all(e.count == 2 for e in consumer.events if e.kind == RecordKind.PACKET)
        seen = consumer.receiver.line_counters[0]
        assert seen[LineCounter.FOREIGN_SOURCE] == batches * batch
        assert seen[LineCounter.KERNEL_DROPS] == 0


def test_bad_packets_are_counted_by_reason_and_the_stream_is_unharmed(groups, sender):
    good = packet(1)
    bad = {
        LineCounter.TRUNCATED: good[:10],
        LineCounter.LENGTH_MISMATCH: good[:-1],
        LineCounter.UNKNOWN_PACKET_TYPE: good[:2] + b"\x7f\x7f" + good[4:],
        LineCounter.COUNT_MISMATCH: good[:15] + b"\x01" + good[16:],
        LineCounter.MESSAGE_OVERRUN: good[:16] + b"\x7f\xff" + good[18:],
        LineCounter.UNCONFIGURED_SERVICE: packet(1, service=999),
        LineCounter.OVERSIZE: bytes(2049),
    }
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        for datagram in bad.values():
            sender.send(groups[0], datagram)
        sender.send(groups[0], b"")
        sender.send(groups[1], good)
        sender.send(groups[0], packet(2))
        assert consumer.until_packets(2) == [1, 2], "a lying packet must not win over a good copy"
        consumer.until_counted(0, LineCounter.PACKETS, len(bad) + 2)
        seen = consumer.receiver.line_counters[0]
        for counter in bad:
            expected = 2 if counter == LineCounter.TRUNCATED else 1
            assert seen[counter] == expected, counter.name


def test_what_the_description_does_not_know_passes_and_is_counted(groups, sender):
    unknown = FEED.encode_message(230)[:2] + b"\x03\xe7" + FEED.encode_message(230)[4:]
    short = b"\x00\x06\x00\xe6" + bytes(4)
    order = FEED.encode_message(230)
    strange = FEED.encode_packet(sequence=1, service=104, messages=[unknown, short, short, order])
    flagged = FEED.encode_packet(sequence=2, service=104, messages=[order], flags=200)
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        for datagram in (strange, flagged, packet(3)):
            sender.send(groups[0], datagram)
        assert consumer.until_packets(3) == [1, 2, 3]
        for datagram in (strange, flagged, packet(3)):
            sender.send(groups[1], datagram)
        consumer.until_counted(1, LineCounter.DUPLICATES, 3)
        payloads = [e.payload for e in consumer.events if e.kind == RecordKind.PACKET]
        assert payloads == [strange, flagged, packet(3)]
        first, second = consumer.receiver.line_counters
        for counter, on_the_first, on_the_second in (
            (LineCounter.UNKNOWN_TYPES, 1, 0),  # messages are looked at where they are new
            (LineCounter.SHORT_MESSAGES, 2, 0),
            (LineCounter.UNKNOWN_FLAGS, 1, 1),
        ):
            assert first[counter] == on_the_first, counter.name
            assert second[counter] == on_the_second, counter.name


def test_a_lying_packet_in_the_run_that_resyncs_is_not_published(groups, sender):
    settings = ArbitrationSettings(
        resync_us=1_000, resync_run_packets=4, gap_wait_us=1_000, silent_us=20_000
    )
    with Consumer([ChannelPlan(104, groups[:1])], settings) as consumer:
        for sequence in range(1, 21):
            sender.send(groups[0], packet(sequence))
        # Silence is reported later than nothing has fitted for `resync_us`.
        consumer.until(
            lambda c: len(c.sequences()) == 20 and c.kinds()[-1] == RecordKind.LINE_SILENT
        )
        consumer.events.clear()
        anew = {
            sequence: FEED.encode_packet(
                sequence=sequence,
                service=104,
                send_time=1000 + sequence,
                messages=[FEED.encode_message(230, order_id=100 + sequence)] * 3,
            )
            for sequence in range(1, 13)
        }
        lying = bytearray(anew[3])
        lying[16:18] = b"\x7f\xff"
        for sequence, datagram in anew.items():
            sender.send(groups[0], bytes(lying) if sequence == 3 else datagram)
        consumer.until_packets(11)
        assert consumer.receiver.line_counters[0, LineCounter.MESSAGE_OVERRUN] == 1
        got = [e for e in consumer.events if e.kind == RecordKind.PACKET]
        assert [e.payload for e in got] == [anew[s] for s in anew if s != 3]
        gaps = [e for e in consumer.events if e.kind == RecordKind.GAP]
        assert [(e.sequence, e.next_sequence) for e in gaps] == [(3, 4)]
        assert consumer.receiver.snapshot()["channels"][104]["resyncs"] == 1


def test_lines_are_equal_that_would_receive_the_same_whatever_they_are_called(groups):
    assert groups[0] == replace(groups[0], name="other")
    assert groups[0] != replace(groups[0], port=groups[0].port + 1)
    assert groups[0] != replace(groups[0], source="127.0.0.1")


def test_services_that_share_a_line_become_channels_of_their_own(groups, sender):
    plans = [ChannelPlan(101, groups), ChannelPlan(104, groups)]
    with Consumer(plans, first_channel=5) as consumer:
        for sequence in (1, 2, 3):
            for service in (101, 104):
                for line in groups:
                    sender.send(line, packet(sequence, service))
        consumer.until_packets(6)
        by_channel = {
            channel: [e.sequence for e in consumer.events
                      if e.channel == channel and e.kind == RecordKind.PACKET]
            for channel in (5, 6)
        }  # fmt: skip
        assert by_channel == {5: [1, 2, 3], 6: [1, 2, 3]}
        assert len(consumer.receiver.snapshot()["lines"]) == 2


def test_a_silent_line_is_noticed_and_its_return_too(groups, sender):
    settings = ArbitrationSettings(silent_us=50_000)
    with Consumer([ChannelPlan(104, groups)], settings) as consumer:
        consumer.until(lambda c: c.kinds().count(RecordKind.LINE_SILENT) == 2)
        sender.send(groups[1], packet(1))
        consumer.until(lambda c: RecordKind.LINE_BACK in c.kinds())
        back = next(e for e in consumer.events if e.kind == RecordKind.LINE_BACK)
        assert back.line == 1


def test_a_gap_is_declared_although_nothing_more_comes(groups, sender):
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        sender.send(groups[0], packet(1))
        sender.send(groups[0], packet(4))
        consumer.until_packets(2)
        gap = next(e for e in consumer.events if e.kind == RecordKind.GAP)
        assert (gap.sequence, gap.next_sequence) == (2, 4)


def test_a_full_ring_makes_the_kernel_wait_and_nothing_is_lost(groups, sender):
    total = 3000
    plan = [ChannelPlan(104, groups[:1])]
    settings = ArbitrationSettings(silent_us=60_000_000, packet_bytes_max=512)
    with Consumer(plan, settings, ring_bytes=1 << 18) as consumer:
        for sequence in range(1, total + 1):
            sender.send(groups[0], packet(sequence))
        end = time.monotonic() + LIMIT_S
        while consumer.receiver.ring_waits == 0:
            assert time.monotonic() < end, "the ring never filled"
        assert consumer.until_packets(total) == list(range(1, total + 1))
        assert consumer.receiver.snapshot()["lines"]["A"]["kernel_drops"] == 0


def test_what_a_line_has_not_been_read_for_is_not_lost_however_long_the_ring_is_full(
    groups, sender
):
    """Line A is read far ahead of line B, which has what A lacks, and then the ring is full."""
    total, plan = 1500, [ChannelPlan(104, groups)]
    settings = ArbitrationSettings(silent_us=60_000_000, packet_bytes_max=512)
    consumer = Consumer(plan, settings, ring_bytes=1 << 18)
    for sequence in range(1, total + 1):
        if sequence % 3 != 2:
            sender.send(groups[0], packet(sequence))
        for _ in range(3):
            sender.send(groups[1], packet(sequence))
    with consumer:
        end = time.monotonic() + LIMIT_S
        while consumer.receiver.ring_waits < 1500:  # of 0.2 ms at least: more than LAG_NS
            assert time.monotonic() < end, "the ring never filled"
        assert consumer.until_packets(total) == list(range(1, total + 1))
        assert RecordKind.GAP not in consumer.kinds()


def test_what_the_kernel_drops_for_want_of_room_is_counted_to_the_datagram(groups, sender):
    flood = 2000
    consumer = Consumer([ChannelPlan(104, groups[:1])], receive_buffer_bytes=4096)
    for sequence in range(1, flood + 1):  # the line is joined, but not read yet
        sender.send(groups[0], packet(sequence))
    with consumer:
        # The kernel tells its drops with the next datagram that it takes.
        sent = flood
        seen = consumer.receiver.line_counters[0]
        consumer.until(lambda c: seen[LineCounter.PACKETS] > 0)
        while seen[LineCounter.KERNEL_DROPS] == 0:
            sent += 1
            sender.send(groups[0], packet(sent))
            consumer.until(lambda c, last=sent: c.sequences()[-1:] == [last])
        assert seen[LineCounter.KERNEL_DROPS] > 0
        assert seen[LineCounter.PACKETS] + seen[LineCounter.KERNEL_DROPS] == sent
        lost = int(consumer.receiver.channel_counters[0, ChannelCounter.LOST])
        assert lost == seen[LineCounter.KERNEL_DROPS], "each drop is announced"


def test_stopping_an_idle_receiver_is_final(groups):
    consumer = Consumer([ChannelPlan(104, groups)])
    consumer.receiver.start()
    assert consumer.receiver.running
    with pytest.raises(UsageError):
        consumer.receiver.start()
    consumer.receiver.stop()
    consumer.receiver.stop()
    assert not consumer.receiver.running
    with pytest.raises(UsageError):
        consumer.receiver.start()


def test_an_error_in_the_thread_is_kept_and_wakes_the_consumer(groups):
    consumer = Consumer([ChannelPlan(104, groups)], cpu=4095)
    consumer.receiver.start()
    ready, _, _ = select.select([consumer.receiver.fileno()], [], [], LIMIT_S)
    assert ready
    assert isinstance(consumer.receiver.error, OSError)
    consumer.receiver.stop()


def test_the_consumer_is_woken_once_per_sleep(groups, sender):
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        consumer.until_packets(0)
        assert not select.select([consumer.receiver.fileno()], [], [], 0)[0]
        sender.send(groups[0], packet(1))
        assert select.select([consumer.receiver.fileno()], [], [], LIMIT_S)[0]
        consumer.until_packets(1)


def test_a_line_asks_for_a_receive_buffer_and_says_what_it_got(groups):
    with open_line(groups[0], 1 << 16) as sock:
        assert set_receive_buffer(sock, 1 << 17) > 0
    consumer = Consumer([ChannelPlan(104, groups)], receive_buffer_bytes=1 << 16)
    assert set(consumer.receiver.receive_buffers()) == {"A", "B"}
    consumer.receiver.stop()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"group": "no address"}, "is not an IPv4 address"),
        ({"group": "10.1.2.3"}, "is not a multicast address"),
        ({"port": 70_000}, "is not in 1..65535"),
        ({"interface": "nosuch0"}, "no such interface"),
        ({"interface": "203.0.113.77"}, "cannot join"),
        ({"source": "nobody"}, "source 'nobody' is not an IPv4 address"),
        ({"source": "x", "source_filter": "count"}, "source 'x' is not an IPv4 address"),
    ],
)
def test_a_line_that_cannot_be_opened_is_one_clear_configuration_error(groups, change, said):
    fields = {"name": "A", "group": "239.192.77.1", "port": 20_000, "interface": "127.0.0.1"}
    with pytest.raises(ConfigError, match=said) as caught:
        Consumer([ChannelPlan(104, (Line(**{**fields, **change}),))])
    assert "\n" not in str(caught.value)


def test_a_port_that_another_program_holds_is_a_configuration_error(groups):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind((groups[0].group, groups[0].port))
        with pytest.raises(ConfigError, match="cannot bind") as caught:
            open_line(groups[0])
    assert "ss -ulpn" in caught.value.hint


def test_plans_that_contradict_themselves_are_refused(groups):
    twin = replace(groups[0], name="C")
    stranger = replace(groups[0], name="D", source="127.0.0.1")
    for plans in (
        [],
        [ChannelPlan(104)],
        [ChannelPlan(104, groups), ChannelPlan(104, groups)],
        [ChannelPlan(104, (groups[0], twin))],
        [ChannelPlan(104, groups), ChannelPlan(105, (stranger,))],
    ):
        with pytest.raises(FeedhandlerError):
            Consumer(plans)


@pytest.mark.parametrize("source_filter", ["kernel", "count"])
def test_a_line_whose_sender_fails_over_goes_on(unused_port, source_filter):
    line = Line(
        "A",
        free_addresses.group(),
        unused_port,
        "lo",
        "127.0.0.1, 127.0.0.3",
        source_filter=source_filter,
    )
    with (
        Sender("127.0.0.1") as first,
        Sender("127.0.0.2") as stranger,
        Sender("127.0.0.3") as second,
        Consumer([ChannelPlan(104, (line,))]) as consumer,
    ):
        first.send(line, packet(1))
        first.send(line, packet(2))
        stranger.send(line, packet(3, messages=1))
        second.send(line, packet(3))
        second.send(line, packet(4))
        assert consumer.until_packets(4) == [1, 2, 3, 4]
        assert all(e.count == 2 for e in consumer.events if e.kind == RecordKind.PACKET)


def test_a_consumer_that_rests_is_woken_when_it_has_rested(groups, sender):
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        sender.send(groups[0], packet(1))
        assert consumer.until_packets(1) == [1]
        at_once, later = consumer.receiver.filenos()
        # A machine that is late may find a short rest over, or an earlier wake-up comes now.
        for count, rest_ms in enumerate((20, 500, 5_000, 20_000), 2):
            until_ns = time.monotonic_ns() + rest_ms * 1_000_000
            consumer.ring.rest(until_ns)
            assert consumer.ring.arm()
            sender.send(groups[0], packet(count))
            woken = select.select([at_once, later], [], [], LIMIT_S)[0]
            rested = time.monotonic_ns() >= until_ns
            assert consumer.until_packets(count) == [*range(1, count + 1)]
            if woken == [later]:
                assert rested
                break
            assert os.read(at_once, 8)
        else:
            raise AssertionError("never woken later")


def test_a_rest_that_is_over_delays_nothing(groups, sender):
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        consumer.ring.rest(time.monotonic_ns())
        assert consumer.ring.arm()
        sender.send(groups[0], packet(1))
        at_once, later = consumer.receiver.filenos()
        assert select.select([at_once, later], [], [], LIMIT_S)[0] == [at_once]
        assert consumer.until_packets(1) == [1]


def test_who_finds_more_before_its_rest_is_woken_after_it(groups, sender):
    with Consumer([ChannelPlan(104, groups)]) as consumer:
        sender.send(groups[0], packet(1))
        consumer.until_counted(0, LineCounter.PACKETS, 1)
        sender.send(groups[0], packet(2))
        while consumer.ring.tail == consumer.ring.published:
            assert select.select([consumer.receiver.fileno()], [], [], LIMIT_S)[0]
        until_ns = time.monotonic_ns() + 20_000_000
        consumer.ring.rest(until_ns)
        assert not consumer.ring.arm(), "there is something to read"
        consumer.receiver.wake()
        later = consumer.receiver.filenos()[1]
        assert select.select([later], [], [], LIMIT_S)[0] == [later]
        assert time.monotonic_ns() >= until_ns
        assert consumer.until_packets(2) == [1, 2]
