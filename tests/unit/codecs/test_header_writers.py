"""Writers and bulk readers of packet headers, with the feeds of `test_header_bits`.

Numbers with bits above their field, sessions of some bits, data packets with a short header.
"""

import zlib
from pathlib import Path

import numpy as np
import pytest

from feedhandler.characterise.arbitrated import characterise_arbitrated
from feedhandler.characterise.job import Request
from feedhandler.characterise.rows import RowMaker
from feedhandler.codecs import Feed, Reject, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.lab.feeder import Feeder
from feedhandler.lab.workload import Stretch, Workload
from feedhandler.replay.captures.packet_headers import (
    read_headers,
    write_send_times,
    write_sequences,
)
from feedhandler.replay.captures.reading import Capture, DatagramBatch
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.exchange.servers import OfferedPackets
from feedhandler.replay.generating.packets import Outgoing
from feedhandler.replay.playing.renumbering import Renumberer
from feedhandler.replay.playing.sender_lines import MulticastLine
from feedhandler.replay.playing.stamps import Stamper, Stamps
from feedhandler.retrans.packet_cut import PacketCutter
from feedhandler.retrans.protocol import HeartbeatReply, RecoveryProtocol, StreamFramer
from feedhandler.retrans.snapshots import PacketFramer
from tests.support.descriptions import FILE, built_in, described
from tests.support.scanners import SCANNERS
from tests.support.twins import either
from tests.unit.codecs.test_header_bits import FLAGGED, RESTARTED, UPPER, feed_of, ticks

PORTS = (30_001, 30_002)
#: As `UPPER`, but numbers count messages.
UPPER_OF_MESSAGES = UPPER.replace('"packets"', '"messages"').replace(
    '{ type = "x3" }', '{ type = "u8", name = "Count" }, { type = "x2" }'
).replace('session = "', 'count = "Count"\nsession = "')  # fmt: skip
#: As `FLAGGED`, with a count in the short header too.
COUNTED = (
    FLAGGED.replace("header_size = 8", "header_size = 9")
    .replace("header_size = 16", 'header_size = 17\ncount = "Count"')
    .replace('{ type = "u64"', '{ type = "u8", name = "Count" },\n    { type = "u64"')
)
TIMED = FLAGGED.replace(
    "[packet]", '[packet]\nsend_time = { field = "Moved", unit = "ns", since = "epoch" }'
)

twin = either(SCANNERS)


def batch_of(folder: Path, packets: list[bytes]) -> DatagramBatch:
    with CaptureWriter(folder / "x.pcap") as writer:
        for number, packet in enumerate(packets):
            writer.write(1_000 * number, "239.1.1.1", PORTS[0], packet)
    return next(Capture(folder / "x.pcap").batches())


def values(feed: Feed, packet: bytes) -> list[int]:
    return [each.value for each in feed.decode_packet(packet).messages]


def test_a_session_of_some_bits_is_not_a_new_one_where_its_neighbours_change(
    tmp_path: Path,
) -> None:
    feed = feed_of(tmp_path, UPPER)
    with CaptureWriter(tmp_path / "day.pcap") as writer:
        for number in range(0xFFF0, 0x1_0010):
            packet = feed.encode_packet(sequence=number, session=2, messages=ticks(feed, 1))
            for port in PORTS:
                if number % 7 != port % 7:
                    writer.write(10**15 + 1_000 * number + port, "239.1.1.1", port, packet)
    found = characterise_arbitrated([str(tmp_path / "day.pcap")], Request(str(tmp_path / FILE)))
    assert found.digest.totals[:, 0].tolist() == [32]


# -- bits above the number -----------------------------------------------------------------------


def test_a_number_is_written_with_the_bits_above_its_field(tmp_path: Path, twin) -> None:
    feed = feed_of(tmp_path, UPPER)
    table = feed.table_of(twin)
    assert table.number_bits() == 19
    for number in (7, 0xFFFF, 0x1_0000, (1 << 19) - 1):
        packet = bytearray(b"??" + feed.encode_packet(sequence=0x2_0001, session=5))
        packet[4] |= 1  # a bit of nobody's
        assert twin.write_number(table, memoryview(packet), 2, number) == Reject.FINE
        wanted = bytearray(feed.encode_packet(sequence=number, session=5))
        wanted[2] |= 1
        assert packet == b"??" + wanted
        assert twin.write_number(table, memoryview(packet), 3, number) == Reject.TRUNCATED
        assert twin.write_number(table, memoryview(packet), -1, number) == Reject.TRUNCATED


def test_a_packet_is_cut_behind_a_number_with_bits_above_its_field(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, UPPER_OF_MESSAGES)
    packet = feed.encode_packet(sequence=0xFFFE, session=3, messages=ticks(feed, 1, 2, 3, 4))
    cut = feed.decode_packet(PacketCutter(feed).cut(packet, 0x1_0000, 0x1_0002))
    assert (cut.sequence, cut.session) == (0x1_0000, 3)
    assert [each.value for each in cut.messages] == [3, 4]


def test_messages_are_framed_under_a_number_with_bits_above_its_field(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, UPPER_OF_MESSAGES)
    framer, body = PacketFramer(feed, 0, 0), b"".join(ticks(feed, 1, 2))
    packet = feed.decode_packet(framer.packet(0x2_0005, body, 2))
    assert (packet.sequence, len(packet.messages)) == (0x2_0005, 2)
    with pytest.raises(OverflowError, match="does not fit"):
        framer.packet(1 << 19, body, 2)


def test_a_loop_goes_on_behind_the_end_of_the_number_s_field(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, UPPER)
    packets = [feed.encode_packet(sequence=n, messages=ticks(feed, 1)) for n in (0xFFFE, 0xFFFF)]
    renumber = Renumberer(feed.table)
    renumber(batch_of(tmp_path, packets))
    renumber.next_pass()
    again = renumber(batch_of(tmp_path, packets))
    numbers = [feed.decode_packet(each.payload).sequence for each in again.datagrams()]
    assert numbers == [0x1_0000, 0x1_0001]
    last = feed.encode_packet(sequence=(1 << 19) - 1, messages=ticks(feed, 1))
    renumber = Renumberer(feed.table)
    renumber(batch_of(tmp_path, [last]))
    with pytest.raises(UsageError, match="end of their field"):
        renumber.next_pass()


def test_numbers_are_written_into_payloads_that_lie_side_by_side(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, UPPER)
    packets = [feed.encode_packet(sequence=n, messages=ticks(feed, n)) for n in (1, 2)]
    data = np.frombuffer(b"".join(packets), np.uint8).copy()
    numbers = [0x3_0001, 0x7_FFFF]
    length = np.array([len(each) for each in packets], np.uint32)
    offset = np.array([0, len(packets[0])], np.uint32)
    write_sequences(feed.table, data, offset, np.array(numbers, np.uint64), in_frames=False)
    assert data.tobytes() == b"".join(
        feed.encode_packet(sequence=number, messages=ticks(feed, value))
        for value, number in enumerate(numbers, 1)
    )
    assert read_headers(feed.table, data, offset, length).sequence.tolist() == numbers


def test_the_laboratory_numbers_packets_beyond_the_field(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, UPPER)
    packets = [feed.encode_packet(sequence=1, messages=ticks(feed, 1, 2))] * 3
    player = Feeder(
        Workload(feed, packets, [0] * 3, [2] * 3),
        [MulticastLine("A", {0: ("239.111.1.1", 40_000)})],
    )
    player.next_numbers[:] = 0xFFFF
    try:
        (block,) = player.blocks(Stretch(3, 0), 2e6)
        player.next_numbers[:] = (1 << 19) - 2
        with pytest.raises(UsageError, match="outgrow their 19 bits"):
            player.play(Stretch(3, 0), 2e6)
        player.play(Stretch(2, 0), 2e6)
    finally:
        player.close()
    sent = [
        feed.decode_packet(block.data[at : at + size].tobytes())
        for at, size in zip(block.offsets.tolist(), block.lengths.tolist(), strict=True)
    ]
    assert [each.sequence for each in sent] == [0xFFFF, 0x1_0000, 0x1_0001]
    assert {len(each.messages) for each in sent} == {2}


def test_an_exchange_offers_packets_beyond_the_field(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, UPPER)
    stores = OfferedPackets(feed, {0: 0}, 1 << 12, lambda: 10)
    packets = [feed.encode_packet(sequence=n, messages=ticks(feed, n)) for n in (0xFFFF, 0x1_0000)]
    stores.publish([Outgoing(1, 0, packet, 1) for packet in packets])
    assert stores[0].packets(0xFFFF, 0x1_0001) == [
        (0xFFFF, 0x1_0000, packets[0]), (0x1_0000, 0x1_0001, packets[1])
    ]  # fmt: skip


# -- short headers -------------------------------------------------------------------------------


def test_a_short_packet_is_patched_though_it_has_fewer_bytes_than_a_header(
    tmp_path: Path, twin
) -> None:
    feed = feed_of(tmp_path, COUNTED)
    table = feed.table_of(twin)
    wanted = feed.encode_packet(sequence=6, packet_type=0)
    packet = bytearray(wanted[:4] + b"\xff\xff" + wanted[6:8] + b"\xff")
    assert twin.patch_header(table, memoryview(packet), 0, len(packet), 0) == Reject.FINE
    assert packet == wanted
    assert twin.patch_header(table, memoryview(packet), 1, 9, 0) == Reject.TRUNCATED
    long = bytearray(feed.encode_packet(sequence=6)[:16])
    assert twin.patch_header(table, memoryview(long), 0, 16, 0) == Reject.TRUNCATED


def test_a_count_is_not_patched_into_what_follows_a_short_header(tmp_path: Path, twin) -> None:
    counted = COUNTED.replace("header_size = 9, short = [0]", "header_size = 8, short = [0x100]")
    feed = feed_of(tmp_path, counted)
    control = bytearray(feed.encode_packet(kind="control", body=b"\x07" * 9))
    before = bytes(control)
    assert twin.patch_header(feed.table_of(twin), memoryview(control), 0, 17, 3) == Reject.FINE
    assert control == before


def test_a_packet_with_a_short_header_is_cut(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, COUNTED.replace('"packets"', '"messages"'))
    for packet_type in (8, 0):
        packet = feed.encode_packet(
            sequence=5, messages=ticks(feed, 1, 2, 3), packet_type=packet_type
        )
        cut = PacketCutter(feed).cut(packet, 6, 8)
        assert (feed.decode_packet(cut).sequence, values(feed, cut)) == (6, [2, 3])


def test_a_compressed_body_begins_behind_the_packet_s_own_header(tmp_path: Path) -> None:
    zipped = COUNTED.replace("[packet]", '[packet]\nflags = "Zip"\ncompressed_flags = [1]')
    for old, new in (
        ("header_size = 9", "header_size = 10"),
        ("header_size = 17", "header_size = 18"),
        ('name = "Count" }', 'name = "Count" },\n    { type = "u8", name = "Zip" }'),
    ):
        zipped = zipped.replace(old, new)
    feed = feed_of(tmp_path, zipped)
    body = zlib.compress(b"".join(ticks(feed, 3, 4)))
    for packet_type in (8, 0):
        packet = feed.encode_packet(
            sequence=6, packet_type=packet_type, flags=1, body=body, count=2
        )
        assert values(feed, packet) == [3, 4]
        assert values(feed, feed.inflated(packet)) == [3, 4]


def test_send_times_are_written_where_the_header_has_one(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, TIMED)
    short = feed.encode_packet(sequence=1, messages=ticks(feed, 3, 4), packet_type=0)
    packets = [short, *(feed.encode_packet(sequence=n, send_time=100 * n) for n in (2, 3))]
    for stamps, expected in ((Stamps.SHIFT, [1_000, 1_100]), (Stamps.NOW, [1_005, 1_007])):
        batch = batch_of(tmp_path, packets)
        stamper = Stamper(feed, stamps)
        stamper.begin(1_000)
        stamper(batch, np.array([0, 5, 7]))
        first, *others = (each.payload for each in batch.datagrams())
        assert first == short
        assert [feed.decode_packet(each).send_time for each in others] == expected
        assert stamper.stamped == 2
    batch = batch_of(tmp_path, packets)
    write_send_times(feed.table, batch.data, batch.offset, np.full(3, 77, np.uint64))
    sent = [each.payload for each in batch.datagrams()]
    assert sent[0] == short
    assert [feed.decode_packet(each).send_time for each in sent[1:]] == [77, 77]


@pytest.mark.parametrize("share", [1, 5, 1_000])
def test_a_stream_is_cut_by_the_bits_that_tell_the_kind(tmp_path: Path, share: int) -> None:
    feed = feed_of(tmp_path, FLAGGED)
    packets = [
        feed.encode_packet(sequence=1, packet_type=0),
        feed.encode_packet(sequence=2, messages=ticks(feed, 1), header={"last": 1, "above": 3}),
        feed.encode_packet(sequence=3, messages=ticks(feed, 2), packet_type=0, header={"last": 1}),
    ]
    both = bytearray(packets[1])
    both[7] |= 1  # a flag too many
    framer, stream, found = StreamFramer(feed), b"".join([*packets, both]), []
    for at in range(0, len(stream), share):
        if framer.failure is None:
            found += framer.feed(stream[at : at + share])
    assert found == packets
    assert framer.failure is not None
    assert framer.failure.name == "unknown_type"


def test_recovery_needs_control_packets_with_the_fields_that_it_writes(tmp_path: Path) -> None:
    controls = "control = [10, 20, 22, 23, 24] }"
    for size, refused in ((8, True), (14, False)):
        short = f"control = [10, 20, 22, 23, 24], header_size = {size}, short = [24] }}"
        feed = described(tmp_path, built_in("euronext-utp-md", controls, short))
        if refused:
            with pytest.raises(UsageError, match="a header without number, service or send time"):
                RecoveryProtocol(feed)
            continue
        protocol = RecoveryProtocol(feed)
        reply = protocol.heartbeat_reply("ME", 0)
        assert protocol.read(reply) == HeartbeatReply("ME")
        assert (
            len(reply)
            == len(RecoveryProtocol(load_feed("euronext-utp-md")).heartbeat_reply("ME", 0)) - 2
        )


# -- rows and counts -----------------------------------------------------------------------------


def rows_of(feed: Feed, folder: Path, packets: list[bytes]) -> tuple[int, list[int], list[int]]:
    """The counts by headers and by packet, and the values of the messages."""
    maker = RowMaker(feed, messages=True, fields=["value"])
    batch = batch_of(folder, packets)
    counts = [
        number
        for rows in RowMaker(feed).batches(iter([batch]), "", 0)
        for number in rows["messages"].to_pylist()
    ]
    found = [
        value
        for rows in maker.batches(iter([batch]), "", 0)
        for value in rows["value"].to_pylist()
        if value is not None
    ]
    return maker.counts(batch)[0], counts, found


def test_unsequenced_packets_with_short_headers_have_rows(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, COUNTED.replace('"packets" }', '"packets", unsequenced = 0 }'))
    packets = [
        feed.encode_packet(kind="unsequenced", messages=ticks(feed, 1), packet_type=0),
        feed.encode_packet(sequence=1, messages=ticks(feed, 2)),
        feed.encode_packet(sequence=2, messages=ticks(feed, 3, 4), packet_type=0),
    ]
    assert rows_of(feed, tmp_path, packets) == (4, [1, 1, 2], [1, 2, 3, 4])


def test_short_headers_that_lack_the_count_have_no_messages(tmp_path: Path) -> None:
    counted = COUNTED.replace("header_size = 9, short = [0]", "header_size = 8, short = [0x100]")
    feed = feed_of(tmp_path, counted)
    packets = [
        feed.encode_packet(sequence=2, messages=ticks(feed, 3, 4)),
        feed.encode_packet(kind="control", body=b"\x07"),
        feed.encode_packet(kind="control"),  # and nothing behind it
    ]
    assert rows_of(feed, tmp_path, packets) == (2, [2, 0, 0], [3, 4])


@pytest.mark.parametrize("counted", [True, False])
def test_the_messages_of_a_reset_have_rows_and_are_counted(tmp_path: Path, counted: bool) -> None:
    restarted = RESTARTED if counted else RESTARTED.replace('count = "Count"\n', "")
    feed = feed_of(tmp_path, restarted)
    packets = [feed.encode_packet(sequence=n, messages=ticks(feed, n)) for n in range(1, 3_001)]
    reset = [feed.encode_message("restart", next=1), *ticks(feed, 9)]
    packets.append(feed.encode_packet(sequence=3_001, messages=reset))
    packets += [feed.encode_packet(sequence=n, messages=ticks(feed, n)) for n in range(1, 8)]
    total, counts, found = rows_of(feed, tmp_path, packets)
    assert (total, sum(counts), len(found)) == (3_009, 3_009, 3_008)
    request = Request(str(tmp_path / FILE))
    for size in (None, 20_000):
        outcome = characterise_arbitrated([str(tmp_path / "x.pcap")], request, slice_size=size)
        cells = outcome.digest.cells
        assert sorted(each.messages for each in cells.values()) == [1, 3_008]
