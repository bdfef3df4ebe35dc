"""Additions of recovery to the stream: snapshot blocks, stored packets, refresh lines, names.

As the fan-out's own tests, these run a second time interpreted.
"""

import random

import pytest

from feedhandler.amqp.sender_queue import Peer
from feedhandler.ingest.records import ControlEvent, RecordKind, RefreshLinePacket
from feedhandler.ingest.ring import Ring
from feedhandler.retrans.store import PacketStore
from tests.support.amqp import STAMP_NS, Rig, Sent, order, packet, quote, reference
from tests.support.seeds import drawn

GRAINS = ("packet", "batch", "message")


def snapshot(count: int, last: int = 3) -> list[bytes]:
    """Packets of a snapshot: all have its LastSeqNum, as re-framed ones do."""
    return [packet(last, [order(1000 + n % 7, n), quote(1001, n)]) for n in range(count)]


def bodies(sent: list[Sent]) -> bytes:
    return b"".join(each.body for each in sent)


def reasons(sent: list[Sent]) -> list[str]:
    """The story of a link: reasons of quality messages, "live" and "block" for runs of data."""
    found: list[str] = []
    for each in sent:
        if each.content == "quality+json":
            found.append(str(each.body).partition('"reason":"')[2].partition('"')[0])
        elif found[-1:] != [word := "live" if each.block_position is None else "block"]:
            found.append(word)
    return found


# -- blocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("grain", GRAINS)
def test_a_block_stands_between_its_markers_and_live_packets_around_it(grain: str) -> None:
    rig = Rig()
    _, link = rig.attach(f"euronext.104?as={grain}")
    before = rig.packets(1, 3)
    rig.pump()
    block = snapshot(4)
    rig.block(block, last=3)
    after = rig.packets(4, 5)
    rig.pump()
    assert reasons(link.sent) == ["live", "snapshot-begin", "block", "snapshot-end", "live"]
    if grain != "message":
        assert bodies(link.data) == b"".join(before + block + after)
    else:
        wanted = [m for data in before + block + after for m in messages_of(data)]
        assert [each.body for each in link.data] == wanted
    assert [each.group_sequence for each in link.sent] == list(range(len(link.sent)))


def messages_of(data: bytes) -> list[bytes]:
    """A UTP-MD packet's messages, by their size fields, which count what follows them."""
    found, at = [], 16
    while at < len(data):
        size = 2 + int.from_bytes(data[at : at + 2], "big")
        found.append(data[at : at + size])
        at += size
    return found


def test_a_blocks_tags_have_the_last_number_and_the_index_in_the_block() -> None:
    rig = Rig()
    links = {grain: rig.attach(f"euronext.104?as={grain}")[1] for grain in GRAINS}
    last = 0xFFFF_FFFF
    rig.block(snapshot(3, last), last=last)
    packets = [each.block_position for each in links["packet"].data]
    assert packets == [(last, 0), (last, 1), (last, 2)]
    assert [each.block_position for each in links["batch"].data] == [(last, 0)]
    assert [(each.block_position, each.number) for each in links["message"].data] == [
        ((last, index), number) for index in range(3) for number in range(2)
    ]
    assert {each.number for each in links["packet"].data} == {0xFFFF}
    assert {each.key for each in links["packet"].data} == {"euronext.104"}


@pytest.mark.parametrize("grain", GRAINS)
def test_a_block_is_thinned_as_live_packets_are(grain: str) -> None:
    rig, live = Rig(), Rig()
    addresses = [
        f"{pattern}?as={grain}{types}"
        for pattern in ("euronext.104.1003", "euronext.#.1001,euronext.104.1002", "euronext.104")
        for types in ("", "&types=230", "&types=999")
    ]
    block = snapshot(20)
    links = [(rig.attach(each)[1], live.attach(each)[1]) for each in addresses]
    rig.block(block, last=3)
    for index, data in enumerate(block):
        live.put(data, index, 2)
    live.pump()
    for address, (found, wanted) in zip(addresses, links, strict=True):
        assert bodies(found.data) == bodies(wanted.data), address
        assert [each.key for each in found.data] == [each.key for each in wanted.data]


def test_a_block_goes_to_the_links_that_it_is_for_and_to_no_other() -> None:
    rig = Rig((104, 105))
    asked = {
        address: rig.attach(address)
        for address in (
            "euronext.104",
            "euronext.104?as=message",
            "euronext.104.1001",
            "euronext.#?as=batch",
            "euronext.104?quality=0",
            "euronext.104?as=message&quality=0",
            "euronext.105",
        )
    }
    rig.block(snapshot(5), last=3)
    reached = {address for address, (_, link) in asked.items() if link.frames}
    assert reached == set(asked) - {
        "euronext.104?quality=0",
        "euronext.104?as=message&quality=0",
        "euronext.105",
    }
    frames = {address: len(link.frames) for address, (_, link) in asked.items()}
    only = [asked["euronext.104?as=message"][0], asked["euronext.104?quality=0"][0]]
    rig.block(snapshot(5), last=3, sender_queues=only)
    grown = {a for a, (_, link) in asked.items() if len(link.frames) > frames[a]}
    assert grown == {"euronext.104?as=message"}
    rig.packets(4, 4)
    rig.pump()
    assert all(link.data for a, (_, link) in asked.items() if a != "euronext.105")


def test_an_open_batch_is_closed_before_a_block_and_the_block_is_no_part_of_later_ones() -> None:
    rig = Rig()
    sender_queue, link = rig.attach("euronext.104?as=batch", grants=0)
    before = rig.packets(1, 2)
    rig.pump()
    block = snapshot(2)
    rig.block(block, last=2)
    after = rig.packets(3, 4)
    rig.pump()
    link.grants = 100
    sender_queue.drain()
    assert [each.body for each in link.data] == [b"".join(p) for p in (before, block, after)]
    assert [each.block_position for each in link.data] == [None, (2, 0), None]
    assert reasons(link.sent) == ["live", "snapshot-begin", "block", "snapshot-end", "live"]


def test_a_block_that_an_event_brings_stands_where_the_event_does() -> None:
    rig = Rig()
    links = [rig.attach(f"euronext.104?as={grain}")[1] for grain in GRAINS]
    before = rig.packets(1, 3)
    rig.control_event(RecordKind.MISMATCH, sequence=3, next_sequence=4)
    after = rig.packets(4, 6)
    rig.ring.publish()
    assert rig.fanout.pump(1 << 18)
    rig.block(snapshot(3), last=3)
    assert not rig.fanout.resume()
    for link in links[:2]:
        assert bodies(link.data) == b"".join(before + snapshot(3) + after)
    for link in links:
        assert reasons(link.sent) == ["live", "snapshot-begin", "block", "snapshot-end", "live"]


def test_a_link_that_a_block_overruns_is_given_up_alone() -> None:
    rig = Rig()
    slow_peer = Peer(rig.fanout.dirty_peers)
    slow, slow_link = rig.attach("euronext.104", grants=0, queue_bytes=4000, peer=slow_peer)
    _, quick_link = rig.attach("euronext.104")
    block = snapshot(100)
    rig.block(block, last=3)
    assert slow.overrun
    assert slow_peer.overruns == [slow]
    assert slow_link.frames == []
    assert [each.body for each in quick_link.data] == block


def test_stamps_of_a_block_are_zero_and_its_packets_are_in_no_count() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104?stamp=1")
    rig.block(snapshot(3), last=3)
    assert [each.received_ns for each in link.data] == [0, 0, 0]
    rig.fanout.note_latency(10**9)
    assert (rig.streams[0].packets, rig.streams[0].latency.count) == (0, 0)


def test_what_is_no_packet_in_a_block_does_no_harm() -> None:
    rig = Rig()
    _, fine = rig.attach("euronext.104?as=message")
    _, whole = rig.attach("euronext.104")
    rig.block([b"junk", *snapshot(1)], last=3)
    assert len(fine.data) == 2
    assert len(whole.data) == 2
    rig.packets(4, 4)
    rig.pump()
    assert len(fine.data) == 7


# -- closed streams and the store ---------------------------------------------------------------


def test_every_published_packet_is_in_the_store() -> None:
    rig = Rig((104, 105))
    rig.streams[0].store = PacketStore(1 << 16)
    put = rig.packets(1, 20)
    rig.packets(1, 3, channel=1)
    rig.pump(700)
    store = rig.streams[0].store
    assert [data for _, _, data in store.packets(1, 21)] == put
    assert (store.first, store.end) == (1, 21)


@pytest.mark.parametrize("kind", [RecordKind.RESET, RecordKind.START])
def test_a_new_epoch_empties_the_store(kind: RecordKind) -> None:
    rig = Rig()
    store = rig.streams[0].store = PacketStore(1 << 16)
    rig.packets(1, 20)
    rig.control_event(RecordKind.GAP, sequence=21, next_sequence=23)
    rig.packets(23, 23)
    rig.pump()
    assert store.count == 21
    rig.control_event(kind, sequence=5, next_sequence=5)
    rig.packets(5, 6)
    rig.pump()
    assert [sequence for sequence, _, _ in store.packets(1, 100)] == [5, 6]


def test_a_closed_stream_delivers_nothing_until_its_packets_are_replayed() -> None:
    rig, live = Rig(), Rig()
    addresses = [f"euronext.104{symbol}?as={g}" for symbol in ("", ".1003") for g in GRAINS]
    links = [(rig.attach(a)[1], live.attach(a)[1]) for a in addresses]
    stream = rig.streams[0]
    stream.store = PacketStore(1 << 16)
    stream.closed = True
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    live.control_event(RecordKind.START, sequence=1, next_sequence=1)
    for each in (rig, live):
        each.packets(1, 4)
        each.pump()
    assert [len(link.data) for link, _ in links] == [0] * 6
    assert (stream.packets, stream.messages) == (0, 0)
    stream.closed = False
    rig.fanout.replay(stream, stream.store.packets(1, stream.store.end))
    for each in (rig, live):
        each.packets(5, 6)
        each.pump()
    for address, (found, wanted) in zip(addresses, links, strict=True):
        assert bodies(found.data) == bodies(wanted.data), address
        if "batch" not in address:
            assert found.frames == wanted.frames, address
    other = live.streams[0]
    assert (stream.packets, stream.messages) == (other.packets, other.messages)
    assert stream.next_sequence == other.next_sequence == 7


def test_a_mid_day_start_is_a_block_then_what_was_stored_then_live() -> None:
    rig = Rig()
    links = {grain: rig.attach(f"euronext.104?as={grain}")[1] for grain in GRAINS}
    stream = rig.streams[0]
    store = stream.store = PacketStore(1 << 16)
    stream.closed = True
    rig.control_event(RecordKind.START, sequence=50, next_sequence=50)
    put = rig.packets(50, 59)
    rig.pump()
    block = snapshot(3, last=54)
    rig.block(block, last=54)
    stream.closed = False
    rig.fanout.replay(stream, store.packets(55, store.end))
    put += rig.packets(60, 61)
    rig.pump()
    for grain in ("packet", "batch"):
        assert bodies(links[grain].data) == b"".join(block + put[5:])
    for link in links.values():
        assert reasons(link.sent) == ["start", "snapshot-begin", "block", "snapshot-end", "live"]


def test_who_applies_a_new_epoch_still_finds_what_is_stored_of_the_old_one() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104")
    stream = rig.streams[0]
    stream.store = PacketStore(1 << 16)
    stream.closed = True
    old = rig.packets(50, 52)
    rig.control_event(RecordKind.RESET, next_sequence=2)
    rig.ring.publish()
    assert rig.fanout.pump(1 << 18)
    rig.fanout.replay(stream, stream.store.packets(0, 100))
    rig.fanout.quality(stream, rig.qualities[0].control_event(RecordKind.RESET, 0, 0, 2))
    assert not rig.fanout.resume()
    assert [each.body for each in link.data] == old
    assert (stream.next_sequence, stream.store.count) == (2, 0)
    new = rig.packets(2, 3)
    rig.pump()
    assert [each.body for each in link.data] == old + new
    assert reasons(link.sent) == ["live", "reset", "live"]


@drawn(2)
def test_random_blocks_and_control_events_never_mix_with_live_packets(seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig()
    stream = rig.streams[0]
    stream.store = PacketStore(1 << 18)
    attached = [
        rig.attach(f"euronext.104{s}?as={g}", grants=0, batch_bytes=2000)
        for s in ("", ".1002")
        for g in GRAINS
    ]
    rig.packets(1, 2)
    sequence = 3
    for _ in range(50):
        for _ in range(chance.randrange(3)):
            rig.packets(sequence, sequence)
            sequence += 1
        rig.pump()
        if chance.random() < 0.2:
            some = [sender_queue for sender_queue, _ in attached if chance.random() < 0.5]
            catch_up = [data for _, _, data in stream.store.packets(sequence - 2, sequence)]
            block = snapshot(chance.randrange(30), sequence - 3) + catch_up
            rig.block(block, last=sequence - 3, sender_queues=chance.choice([None, some]))
        for sender_queue, link in attached:
            if chance.random() < 0.5:
                link.grants += chance.randrange(8)
                sender_queue.drain()
    for sender_queue, link in attached:
        link.grants = 100_000
        sender_queue.drain()
        inside = False
        live: list[int] = []
        for each in link.sent:
            if each.content == "quality+json":
                inside = {"snapshot-begin": True, "snapshot-end": False}[reasons([each])[0]]
            else:
                assert (each.block_position is not None) is inside
                if each.block_position is None:
                    live.append(each.sequence)
        assert live == sorted(live)
        assert not inside


# -- refresh lines ------------------------------------------------------------------------------


def test_packets_and_control_events_of_refresh_lines_have_their_channel() -> None:
    rig = Rig((104, 105))
    _, link = rig.attach("euronext.#?quality=0")
    data = packet(7, service=104)
    rig.put(data, 7, 5, channel=2)
    rig.packets(1, 1)
    rig.control_event(RecordKind.GAP, channel=3, sequence=9, next_sequence=11)
    rig.ring.publish()
    assert rig.fanout.pump(1 << 18)
    assert rig.fanout.event == RefreshLinePacket(2, 7, data)
    assert link.frames == []
    assert rig.fanout.resume()
    assert rig.fanout.event == ControlEvent(RecordKind.GAP, 3, 0, 9, 11)
    assert not rig.fanout.resume()
    assert len(link.frames) == 1
    assert [stream.next_sequence for stream in rig.streams] == [2, 0]


def test_packets_of_refresh_lines_outside_the_sequence_are_passed_over() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104")
    rig.outside(packet(11), 11, 5, channel=1)
    put = rig.packets(1, 1)
    rig.ring.publish()
    assert not rig.fanout.pump(1 << 18)
    assert rig.fanout.event is None
    assert [each.body for each in link.sent] == put


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("grain", GRAINS)
def test_a_symbol_is_known_by_index_and_by_name_at_the_same_time(grain: str) -> None:
    rig = Rig()
    asked = ("euronext.104.5", "euronext.104.AIRF_XPAR", "euronext.104.5,euronext.*.AIRF_XPAR")
    links = [rig.attach(f"{each}?as={grain}&types=230")[1] for each in asked]
    _, other = rig.attach(f"euronext.104.6?as={grain}")
    rig.put(packet(1, [order(5)]), 1, 1)
    rig.put(packet(2, [reference(5, "AIRF"), order(5)]), 2, 2)
    rig.put(packet(3, [order(5)]), 3, 1)
    rig.pump()
    by_index, by_name, by_both = links
    assert by_index.frames == by_both.frames
    if grain == "message":
        keys = ["euronext.104.5", "euronext.104.AIRF_XPAR", "euronext.104.AIRF_XPAR"]
        assert [each.key for each in by_index.sent] == keys
        assert [each.sequence for each in by_index.sent] == [1, 2, 3]
        assert [each.sequence for each in by_name.sent] == [2, 3]
    elif grain == "packet":
        assert [each.sequence for each in by_name.sent] == [2, 3]
    assert other.frames == []


def test_names_are_learnt_where_only_whole_packets_are_wanted_and_without_links() -> None:
    for address in (None, "euronext.104"):
        rig = Rig()
        if address:
            rig.attach(address)
        rig.put(packet(1, [order(5), reference(5, "AIRF")]), 1, 2)
        rig.pump()
        assert rig.names == {5: "AIRF_XPAR"}
        assert rig.fanout.route_lookups == 0


@pytest.mark.parametrize("grain", ["message", "packet"])
def test_reference_data_of_blocks_and_of_stored_packets_names_symbols_before_they_are_routed(
    grain: str,
) -> None:
    packets = [packet(3, [order(5)]), packet(3, [reference(5, "AIRF")])]
    for stored in (False, True):
        rig = Rig()
        _, link = rig.attach(f"euronext.104.AIRF_XPAR?as={grain}&types=230")
        if stored:
            rig.streams[0].close()
            rig.core.open_stream(0, [(3, 4, packets[0]), (4, 5, packets[1])], 3)
        else:
            rig.core.block(0, b"{}", packets, 3, b"{}", None)
        assert rig.names == {5: "AIRF_XPAR"}
        assert [each.body for each in link.data] == [order(5) if grain == "message" else packets[0]]


def test_a_recorders_tap_gets_every_packet_that_is_delivered_and_no_more() -> None:
    rig = Rig()
    rig.attach("euronext.104")
    tap = rig.fanout.tap = Ring(1 << 18)
    live = rig.packets(1, 3)
    rig.pump()
    stored = [packet(4), packet(5)]
    rig.fanout.replay(rig.streams[0], [(4, 5, stored[0]), (5, 6, stored[1])])
    blocked = [packet(3)]
    rig.block(blocked, 3)
    rig.streams[0].closed = True
    rig.packets(6, 6)
    rig.pump()
    copies = tap.drain()
    assert [copy.payload for copy in copies] == live + stored + blocked
    stamps = [copy.received_ns - STAMP_NS for copy in copies]
    assert stamps == [1, 2, 3, 3, 3, 3], "the stored ones have the latest live one's"
    assert {copy.channel for copy in copies} == {0}
    assert rig.fanout.tap_drops == 0


def test_a_tap_without_room_drops_and_counts_and_delivery_goes_on() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104")
    tap = rig.fanout.tap = Ring(1 << 18)
    while tap.put(RecordKind.GAP):
        pass
    sent = len(link.data)
    rig.packets(1, 3)
    rig.pump()
    assert rig.fanout.tap_drops == 3
    assert len(link.data) == sent + 3
