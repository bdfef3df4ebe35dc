"""The scanner, compiled and interpreted: headers, messages, and every reason to reject."""

import struct
from types import ModuleType

import numpy
import pytest

from feedhandler.codecs import PacketKind, Reject, list_feeds, load_feed
from tests.support.feeds import BINARY_FEEDS
from tests.support.scanners import SCANNERS
from tests.support.twins import either
from tests.support.unsequenced import setting_aside

UTP = load_feed("euronext-utp-md")
IEX = load_feed("iex-deep")
XDP = load_feed("nyse-integrated-xdp")
OPENBOOK = load_feed("nyse-openbook-ultra")


class Scanning:
    """One twin of the scanner and what it needs, for one feed."""

    def __init__(self, module: ModuleType, feed, capacity: int = 1000):
        self.module = module
        self.table = feed.table_of(module)
        self.header = module.PacketHeader()
        self.index = module.MessageIndex(capacity)

    def parse(self, data: bytes, start: int = 0, size: int | None = None) -> Reject:
        size = len(data) - start if size is None else size
        verdict = self.module.parse_header(self.table, memoryview(data), start, size, self.header)
        return Reject(verdict)

    def scan(self, data: bytes) -> Reject:
        """Parse and scan; `check_messages` must say the same as `scan_messages`."""
        verdict = self.parse(data)
        if verdict:
            return verdict
        view = memoryview(data)
        checked = self.module.check_messages(self.table, view, 0, self.header)
        scanned = self.module.scan_messages(self.table, view, 0, self.header, self.index)
        assert checked == scanned or scanned == Reject.INDEX_FULL
        counted = (self.header.unknown, self.header.short)
        assert counted == (self.index.unknown, self.index.short) or scanned == Reject.INDEX_FULL
        return Reject(scanned)

    def entries(self) -> list[tuple[int, int, int, int, int]]:
        arrays = self.index.arrays()
        names = ("types", "symbols", "offsets", "sizes", "sequences")
        return list(zip(*(arrays[name].tolist() for name in names), strict=True))


twin = either(SCANNERS)


def order(symbol: int = 10616) -> bytes:
    return UTP.encode_message(230, symbol_index=symbol, price=50)


def packet(count: int = 3, **more) -> bytearray:
    return bytearray(
        UTP.encode_packet(
            sequence=7, service=104, messages=[order(i) for i in range(count)], **more
        )
    )


def test_every_reject_reason_has_a_counter(twin):
    assert len(Reject) == twin.REJECT_COUNT


def test_header_fields_are_read(twin):
    scanning = Scanning(twin, UTP)
    assert scanning.parse(packet(2, send_time=36_000_000, flags=1)) == Reject.FINE
    header = scanning.header
    assert (header.sequence, header.next_sequence, header.count) == (7, 8, 2)
    assert (header.service, header.send_time, header.flags) == (104, 36_000_000, 1)
    assert (header.length, header.body, header.packet_type) == (16 + 2 * 64, 16, 501)
    assert (header.kind, header.session) == (PacketKind.DATA, 0)


@pytest.mark.parametrize("varied", [False, True])
@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("size", range(9))
def test_header_fields_of_any_size_are_read(twin, size, order, varied):
    table = twin.FeedTable()
    table.big_endian, table.varied = order == "big", varied
    table.header_size, table.length_size, table.count_size = 12, 2, 1
    table.count_at, table.sequence_at, table.sequence_size = 2, 3, size
    data = (20).to_bytes(2, order) + b"\0" + bytes(range(0xF1, 0xFA)) + bytes(8)
    header = twin.PacketHeader()
    assert twin.parse_header(table, memoryview(data), 0, len(data), header) == Reject.FINE
    assert header.sequence == int.from_bytes(data[3 : 3 + size], order)


def test_messages_are_indexed_by_type_symbol_offset_and_size(twin):
    scanning = Scanning(twin, UTP)
    quote = UTP.encode_message(140, symbol_index=2**32 - 1)
    end = UTP.encode_message(551, indicator="E")
    data = UTP.encode_packet(sequence=9, messages=[order(5), quote, end])
    assert scanning.scan(data) == Reject.FINE
    assert scanning.entries() == [
        (230, 5, 16, 64, 9),
        (140, 2**32 - 1, 80, 52, 9),
        (551, twin.NO_SYMBOL, 132, 8, 9),
    ]
    assert scanning.index.packets == 1


def test_a_packet_inside_a_larger_buffer_is_scanned_where_it_lies(twin):
    scanning = Scanning(twin, UTP)
    data = b"\xee" * 11 + bytes(packet(2)) + b"\xee" * 5
    view = memoryview(data)
    assert scanning.parse(data, 11, len(data) - 16) == Reject.FINE
    assert twin.scan_messages(scanning.table, view, 11, scanning.header, scanning.index) == 0
    assert [entry[2] for entry in scanning.entries()] == [16, 80]


def test_little_endian_text_symbols_are_read_as_they_stand(twin):
    scanning = Scanning(twin, IEX)
    message = IEX.encode_message("8", symbol="ZIEXT")
    assert scanning.scan(IEX.encode_packet(sequence=5, messages=[message] * 2)) == Reject.FINE
    entries = scanning.entries()
    assert entries[0][:2] == (ord("8"), int.from_bytes(b"ZIEXT   ", "big"))
    assert [entry[4] for entry in entries] == [5, 6]
    assert scanning.header.next_sequence == 7


def test_the_message_type_comes_from_the_packet_where_the_feed_keeps_it_there(twin):
    scanning = Scanning(twin, OPENBOOK)
    message = OPENBOOK.encode_message(231, symbol_index=44936)
    data = OPENBOOK.encode_packet(sequence=5, packet_type=231, messages=[message] * 2)
    assert scanning.scan(data) == Reject.FINE
    assert [entry[:2] for entry in scanning.entries()] == [(231, 44936)] * 2


def test_unknown_message_types_pass_and_are_counted(twin):
    scanning = Scanning(twin, UTP)
    data = UTP.encode_packet(messages=[struct.pack(">HHI", 6, 999, 5), order()])
    assert scanning.scan(data) == Reject.FINE
    assert scanning.entries()[0][:2] == (999, twin.NO_SYMBOL)
    assert (scanning.index.unknown, scanning.index.short) == (1, 0)


def test_messages_shorter_than_their_layout_pass_and_are_counted(twin):
    scanning = Scanning(twin, UTP)
    with_symbol = struct.pack(">HHI", 6, 230, 5)
    without = struct.pack(">HH", 2, 230)
    assert scanning.scan(UTP.encode_packet(messages=[with_symbol, without])) == Reject.FINE
    assert [entry[1] for entry in scanning.entries()] == [5, twin.NO_SYMBOL]
    assert (scanning.index.unknown, scanning.index.short) == (0, 2)


def test_unknown_and_short_messages_of_a_rejected_packet_are_not_counted(twin):
    scanning = Scanning(twin, UTP)
    messages = [struct.pack(">HHI", 6, 999, 5), struct.pack(">HH", 2, 230), order()]
    data = UTP.encode_packet(messages=messages)
    assert scanning.scan(data) == Reject.FINE
    assert (scanning.header.unknown, scanning.header.short) == (1, 1)
    lying = bytearray(data)
    lying[-64:-62] = b"\x7f\xff"
    assert scanning.scan(lying) == Reject.MESSAGE_OVERRUN
    assert (scanning.header.unknown, scanning.header.short) == (0, 0)
    assert scanning.scan(UTP.encode_packet(kind="heartbeat")) == Reject.FINE
    assert (scanning.header.unknown, scanning.header.short) == (0, 0)


def test_messages_longer_than_their_layout_pass(twin):
    scanning = Scanning(twin, UTP)
    message = bytearray(order(5) + b"tail")
    message[0:2] = struct.pack(">H", len(message) - 2)
    assert scanning.scan(UTP.encode_packet(messages=[bytes(message)])) == Reject.FINE
    assert scanning.entries()[0][1:4] == (5, 16, 68)
    assert scanning.index.short == 0


# -- heartbeats, resets, control packets -----------------------------------------------------------


def test_a_heartbeat_whose_number_says_nothing_expects_nothing(twin):
    scanning = Scanning(twin, UTP)
    assert scanning.scan(UTP.encode_packet(kind="heartbeat", sequence=9)) == Reject.FINE
    assert (scanning.header.kind, scanning.header.next_sequence) == (PacketKind.HEARTBEAT, 0)


@pytest.mark.parametrize(("adds", "expected"), [(0, 9), (1, 10), (-1, 0)])
def test_a_heartbeats_number_means_what_the_feed_says(twin, adds, expected):
    scanning = Scanning(twin, UTP)
    scanning.table.heartbeat_adds = adds
    scanning.parse(UTP.encode_packet(kind="heartbeat", sequence=9))
    assert scanning.header.next_sequence == expected


def test_an_empty_packet_is_a_heartbeat_where_the_feed_says_so(twin):
    scanning = Scanning(twin, IEX)
    assert scanning.scan(IEX.encode_packet(sequence=9, session=3)) == Reject.FINE
    assert scanning.header.kind == PacketKind.HEARTBEAT
    assert (scanning.header.next_sequence, scanning.header.session) == (9, 3)


def test_a_reset_gives_the_number_of_the_next_packet(twin):
    scanning = Scanning(twin, UTP)
    data = UTP.encode_packet(kind="reset", sequence=1, next_sequence=2)
    assert scanning.scan(data) == Reject.FINE
    assert (scanning.header.kind, scanning.header.next_sequence) == (PacketKind.RESET, 2)


def test_a_reset_with_messages_is_followed_by_the_number_after_them(twin):
    scanning = Scanning(twin, XDP)
    data = XDP.encode_packet(kind="reset", sequence=1, messages=[XDP.encode_message(1)])
    assert scanning.scan(data) == Reject.FINE
    assert (scanning.header.kind, scanning.header.next_sequence) == (PacketKind.RESET, 2)
    assert scanning.index.count == 1


def test_delivery_flags_are_known_where_the_description_names_them(twin):
    known = {name: load_feed(name).table_of(twin) for name in list_feeds()}
    assert [flag for flag in range(256) if known["euronext-utp-md"].knows_flags(flag)] == [
        0, 1, 11, 17
    ]  # fmt: skip
    assert known["nyse-openbook-ultra"].knows_flags(6)
    assert not known["nyse-openbook-ultra"].knows_flags(7)
    assert all(known["iex-deep"].knows_flags(flag) for flag in range(256)), "it has none"


def test_an_unknown_delivery_flag_is_read_as_uncompressed(twin):
    scanning = Scanning(twin, UTP)
    assert scanning.scan(packet(2, flags=200)) == Reject.FINE
    assert (scanning.header.flags, scanning.index.count) == (200, 2)


def test_seconds_and_nanoseconds_become_one_send_time(twin):
    scanning = Scanning(twin, XDP)
    data = XDP.encode_packet(sequence=1, send_time=1_506_694_823_087_602_337)
    assert scanning.parse(data) == Reject.FINE
    assert scanning.header.send_time == 1_506_694_823_087_602_337


# -- rejects ---------------------------------------------------------------------------------------


def truncated(data):
    del data[10:]


def not_even_a_number_in_a_reset(data):
    data[:] = UTP.encode_packet(kind="reset", sequence=1)[:-1]
    data[0:2] = struct.pack(">H", len(data))


def length_too_small(data):
    data[0:2] = struct.pack(">H", len(data) - 1)


def length_too_large(data):
    data[0:2] = struct.pack(">H", len(data) + 1)


def wrong_byte_order(data):
    data[0:2] = struct.pack("<H", len(data))


def count_too_small(data):
    data[15] -= 1


def count_too_large(data):
    data[15] += 1


def message_size_below_its_header(data):
    data[16:18] = struct.pack(">H", 1)


def last_message_past_the_end(data):
    data[16 + 2 * 64 : 18 + 2 * 64] = struct.pack(">H", 63)


def packet_ends_inside_a_message_header(data):
    data[15] += 1
    data += b"\0\2"
    data[0:2] = struct.pack(">H", len(data))


def bytes_after_the_last_message(data):
    data += b"\0\0\0"
    data[0:2] = struct.pack(">H", len(data))


def heartbeat_with_a_body(data):
    data[:] = UTP.encode_packet(kind="heartbeat", body=b"body")


def unknown_packet_type(data):
    data[2:4] = struct.pack(">H", 502)


def short_control_body(data):
    data[:] = UTP.encode_packet(kind="control", packet_type=20, body=b"short")


def compressed(data):
    data[14] = 17


@pytest.mark.parametrize(
    ("mutation", "expected"),
    [
        (truncated, Reject.TRUNCATED),
        (not_even_a_number_in_a_reset, Reject.TRUNCATED),
        (length_too_small, Reject.LENGTH_MISMATCH),
        (length_too_large, Reject.LENGTH_MISMATCH),
        (wrong_byte_order, Reject.LENGTH_MISMATCH),
        (count_too_small, Reject.COUNT_MISMATCH),
        (count_too_large, Reject.COUNT_MISMATCH),
        (bytes_after_the_last_message, Reject.COUNT_MISMATCH),
        (heartbeat_with_a_body, Reject.COUNT_MISMATCH),
        (message_size_below_its_header, Reject.MESSAGE_SHORT),
        (last_message_past_the_end, Reject.MESSAGE_OVERRUN),
        (packet_ends_inside_a_message_header, Reject.MESSAGE_OVERRUN),
        (unknown_packet_type, Reject.UNKNOWN_PACKET_TYPE),
        (short_control_body, Reject.CONTROL_SHORT),
        (compressed, Reject.COMPRESSED),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_packet_is_rejected_with_its_reason(twin, mutation, expected):
    data = packet(3)
    mutation(data)
    scanning = Scanning(twin, UTP)
    assert scanning.scan(data) == expected
    assert scanning.index.count == 0


@pytest.mark.parametrize(("at", "value"), [(0, 2), (2, 3)])
def test_a_wrong_constant_is_rejected(twin, at, value):
    data = bytearray(IEX.encode_packet(sequence=1))
    data[at] = value
    assert Scanning(twin, IEX).parse(data) == Reject.WRONG_CONSTANT


def test_more_messages_than_the_index_holds_are_the_callers_fault(twin):
    scanning = Scanning(twin, UTP, capacity=2)
    assert scanning.scan(packet(2)) == Reject.FINE
    assert scanning.scan(packet(3)) == Reject.INDEX_FULL
    assert scanning.index.count == 0


@pytest.mark.parametrize(("start", "size"), [(-1, 20), (0, 10_000), (200, 64), (0, -1)])
def test_a_packet_said_to_lie_outside_the_buffer_is_truncated(twin, start, size):
    assert Scanning(twin, UTP).parse(packet(3), start, size) == Reject.TRUNCATED


# -- many packets ----------------------------------------------------------------------------------


def test_packets_back_to_back_are_scanned_in_one_call(twin):
    scanning = Scanning(twin, UTP)
    first, second = (
        bytes(packet(2)),
        UTP.encode_packet(sequence=8, service=103, messages=[order(9)]),
    )
    data = first + UTP.encode_packet(kind="heartbeat") + second
    view = memoryview(data)
    verdict = twin.scan_packets(scanning.table, view, 0, len(data), scanning.header, scanning.index)
    assert verdict == Reject.FINE
    offset = len(data) - 64
    assert scanning.entries()[2] == (230, 9, offset, 64, 8)
    index = scanning.index
    assert index.packets == 2
    assert [index.firsts[i] for i in range(2)] == [0, 2]
    assert [index.services[i] for i in range(2)] == [104, 103]


def test_packets_back_to_back_end_at_the_first_bad_one(twin):
    scanning = Scanning(twin, UTP)
    bad = packet(2)
    bad[15] = 5
    data = bytes(packet(2)) + bytes(bad) + bytes(packet(1))
    verdict = twin.scan_packets(
        scanning.table, memoryview(data), 0, len(data), scanning.header, scanning.index
    )
    assert (verdict, scanning.index.count) == (Reject.COUNT_MISMATCH, 2)


@pytest.mark.parametrize("cut", [1, 20, 143])
def test_a_cut_off_packet_at_the_end_is_truncated(twin, cut):
    scanning = Scanning(twin, UTP)
    data = bytes(packet(2)) + bytes(packet(2))[:cut]
    verdict = twin.scan_packets(
        scanning.table, memoryview(data), 0, len(data), scanning.header, scanning.index
    )
    assert (verdict, scanning.index.count) == (Reject.TRUNCATED, 2)


def test_datagrams_are_scanned_where_they_lie_and_bad_ones_counted(twin):
    scanning = Scanning(twin, UTP)
    bad = packet(2)
    bad[3] = 0
    parts = [bytes(packet(2)), bytes(bad), bytes(packet(1))]
    data = b"--".join(parts)
    starts = numpy.array([0, len(parts[0]) + 2, len(parts[0] + parts[1]) + 4], numpy.int64)
    sizes = numpy.array([len(part) for part in parts], numpy.uint32)
    rejects = numpy.zeros(twin.REJECT_COUNT, numpy.uint64)
    done = twin.scan_datagrams(
        scanning.table,
        memoryview(data),
        memoryview(starts),
        memoryview(sizes),
        scanning.header,
        scanning.index,
        memoryview(rejects),
    )
    assert (done, scanning.index.count) == (3, 3)
    assert rejects[Reject.FINE] == 2
    assert rejects[Reject.UNKNOWN_PACKET_TYPE] == 1


def test_datagrams_end_where_the_index_is_full(twin):
    scanning = Scanning(twin, UTP, capacity=3)
    data = bytes(packet(2)) * 2
    starts = memoryview(numpy.array([0, len(data) // 2], numpy.int64))
    sizes = memoryview(numpy.array([len(data) // 2] * 2, numpy.uint32))
    rejects = memoryview(numpy.zeros(twin.REJECT_COUNT, numpy.uint64))
    done = twin.scan_datagrams(
        scanning.table,
        memoryview(data),
        starts,
        sizes,
        scanning.header,
        scanning.index,
        rejects,
    )
    assert (done, scanning.index.count) == (1, 2)


@pytest.mark.parametrize("feed", [UTP, IEX, XDP, OPENBOOK], ids=lambda feed: feed.name)
def test_a_stream_is_cut_by_the_length_field(twin, feed):
    data = feed.encode_packet(sequence=5, kind="heartbeat" if feed is not IEX else "data")
    table = feed.table_of(twin)
    view = memoryview(data + b"more")
    assert twin.frame_length(table, view, 0, len(view)) == len(data)
    assert twin.frame_length(table, view, 0, table.length_at + table.length_size - 1) == 0


@pytest.mark.parametrize("name", BINARY_FEEDS)
def test_a_thinned_packet_keeps_its_header_and_can_be_read(twin, name):
    feed = load_feed(name)
    layout = next(iter(feed.layouts.values()))[0]
    messages = [feed.encode_message(layout.name)] * 3
    packet_type = layout.code if feed.table.type_in_packet else None
    whole = feed.encode_packet(sequence=5, messages=messages, packet_type=packet_type)
    thin = bytearray(whole[: -2 * len(messages[0])])
    table = feed.table_of(twin)
    assert twin.patch_header(table, memoryview(thin), 0, len(thin), 1) == Reject.FINE
    scanning = Scanning(twin, feed)
    assert scanning.scan(thin) == Reject.FINE
    assert (scanning.header.sequence, scanning.header.count) == (5, 1)
    assert twin.patch_header(table, memoryview(thin), len(thin) - 3, 9, 1) == Reject.TRUNCATED


@pytest.mark.parametrize("feed", [UTP, IEX, XDP, OPENBOOK], ids=lambda feed: feed.name)
def test_a_header_is_the_same_however_few_bytes_stand_behind_it(twin, feed):
    packet = feed.encode_packet(kind="heartbeat", service=1, sequence=0x0102_0304)
    names = ("sequence", "session", "service", "length", "flags", "count", "packet_type", "kind")
    found = set()
    for behind in range(10):
        scanning = Scanning(twin, feed)
        data = bytearray(b"\xff" * 3 + packet + b"\xff" * behind)
        assert scanning.parse(data, 3, len(packet)) == Reject.FINE
        header = scanning.header
        found.add((header.send_time, *(getattr(header, name) for name in names)))
    assert len(found) == 1
    assert found.pop()[1] == 0x0102_0304


def test_a_table_has_no_other_kinds(twin):
    with pytest.raises(ValueError, match="no kind 4"):
        twin.FeedTable().set_kind(1, 4)


# -- packets outside the sequence -------------------------------------------------------------


@pytest.mark.parametrize("heartbeat", ["next", "last", "none"])
def test_the_number_set_aside_marks_data_packets_and_tells_nothing_on_a_heartbeat(twin, heartbeat):
    feed = setting_aside("iex-deep", heartbeat=f'"{heartbeat}"')
    scanning = Scanning(twin, feed)
    message = feed.encode_message("S")
    for sequence, count, kind, following in (
        (0, 2, PacketKind.UNSEQUENCED, 0),
        (7, 2, PacketKind.DATA, 9),
        (0, 0, PacketKind.HEARTBEAT, 0),
        (7, 0, PacketKind.HEARTBEAT, {"next": 7, "last": 8, "none": 0}[heartbeat]),
    ):
        data = feed.encode_packet(sequence=sequence, messages=[message] * count)
        assert scanning.scan(data) == Reject.FINE
        header = scanning.header
        assert (header.kind, header.sequence, header.next_sequence) == (kind, sequence, following)
        step = int(kind == PacketKind.DATA)
        assert [entry[4] for entry in scanning.entries()] == [sequence + step * n
                                                             for n in range(count)]  # fmt: skip


def test_resets_and_control_packets_stay_what_they_are_whatever_their_number(twin):
    feed = setting_aside("euronext-utp-md")
    scanning = Scanning(twin, feed)
    assert scanning.parse(feed.encode_packet(kind="reset", next_sequence=9)) == Reject.FINE
    assert (scanning.header.kind, scanning.header.next_sequence) == (PacketKind.RESET, 9)
    assert scanning.parse(feed.encode_packet(kind="heartbeat")) == Reject.FINE
    assert scanning.header.kind == PacketKind.HEARTBEAT


def test_where_no_number_is_set_aside_none_is(twin):
    for sequence in (0, 2**64 - 1):
        scanning = Scanning(twin, IEX)
        scanning.parse(IEX.encode_packet(sequence=sequence, messages=[IEX.encode_message("S")]))
        assert scanning.header.kind == PacketKind.DATA
