"""Recovery's packets and the framer: golden bytes, round trips, and streams cut anywhere."""

import random
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from feedhandler.codecs import PeerError, UsageError, load_feed
from feedhandler.retrans.protocol import (
    NEVER_NS,
    WIRE_ERRORS,
    Data,
    Frame,
    Heartbeat,
    HeartbeatReply,
    Other,
    RecoveryProtocol,
    RefreshReject,
    RefreshRequest,
    Response,
    RetransReject,
    RetransRequest,
    SendClock,
    StreamFramer,
    WireError,
)
from tests.support.seeds import drawn

FEED = load_feed("euronext-utp-md")
PROTOCOL = RecoveryProtocol(FEED)
MIDNIGHT_NS = 1_700_002_800 * 10**9  # 2023-11-15 00:00 in Paris
#: Packets 100..120 of service 101 for SourceID SRC1, as published.
GOLDEN_REQUEST = bytes.fromhex(
    "002c001400000064000000000065000100000064000000785352433100000000000000000000000000000000"
)


def data_packet(sequence: int = 7, service: int = 104, messages: int = 1, flags: int = 1) -> bytes:
    message = FEED.encode_message(221, symbol_index=5)
    return FEED.encode_packet(
        sequence=sequence, service=service, flags=flags, messages=[message] * messages
    )


def meaning_or_name(packet: bytes) -> Frame | str:
    try:
        return PROTOCOL.read(packet)
    except WireError as error:
        return WIRE_ERRORS[error.name]


def with_byte(packet: bytes, at: int, value: int) -> bytes:
    return packet[:at] + bytes([value]) + packet[at + 1 :]


def test_a_request_has_the_published_bytes() -> None:
    request = RetransRequest(100, 101, 100, 121, "SRC1")
    assert PROTOCOL.retrans_request(request, MIDNIGHT_NS) == GOLDEN_REQUEST
    assert PROTOCOL.read(GOLDEN_REQUEST) == request


@pytest.mark.parametrize(
    ("packet", "size", "meaning"),
    [
        (PROTOCOL.heartbeat(0), 16, Heartbeat()),
        (PROTOCOL.heartbeat_reply("A" * 20, 0), 36, HeartbeatReply("A" * 20)),
        (
            PROTOCOL.refresh_request(RefreshRequest(9, 103, "ME"), 0),
            36,
            RefreshRequest(9, 103, "ME"),
        ),
        *(
            (
                PROTOCOL.response(Response(refresh, 5, 104, "ME", reason), 0),
                44,
                Response(refresh, 5, 104, "ME", reason),
            )
            for refresh, reasons in ((False, RetransReject), (True, RefreshReject))
            for reason in reasons
        ),
        (data_packet(), 44, Data(104, 7, 8, 1)),
        (FEED.encode_packet(sequence=1, kind="reset"), 20, Other(1)),
    ],
)
def test_what_is_written_is_read_again(packet: bytes, size: int, meaning: Frame) -> None:
    assert len(packet) == size
    assert PROTOCOL.read(packet) == meaning


@pytest.mark.parametrize(
    ("packet", "name"),
    [
        (with_byte(PROTOCOL.heartbeat(0), 15, 1), "wrong_body_size"),
        (b"\0\x14" + PROTOCOL.heartbeat(0)[2:] + bytes(4), "wrong_body_size"),
        (b"\0\x2d" + GOLDEN_REQUEST[2:] + b"\0", "wrong_body_size"),
        (b"\0\x14" + GOLDEN_REQUEST[2:20], "wrong_body_size"),
        (with_byte(GOLDEN_REQUEST, 15, 2), "wrong_count"),
        (GOLDEN_REQUEST[:-1], "bad_packet"),
        (b"", "bad_packet"),
        *(
            (
                with_byte(
                    with_byte(PROTOCOL.response(Response(False, 1, 2, "ME", 0), 0), 40, status),
                    41,
                    reason,
                ),
                "malformed_answer",
            )
            for status, reason in ((ord("A"), 1), (ord("R"), 0), (0, 0), (ord("Q"), 3))
        ),
    ],
)
def test_what_means_nothing_is_a_wire_error_with_a_name(packet: bytes, name: str) -> None:
    with pytest.raises(WireError) as caught:
        PROTOCOL.read(packet)
    assert caught.value.name == name
    assert name in WIRE_ERRORS
    assert isinstance(caught.value, PeerError)


def test_a_wire_error_says_which_request_it_was() -> None:
    with pytest.raises(WireError) as caught:
        PROTOCOL.read(with_byte(GOLDEN_REQUEST, 15, 2))
    error = caught.value
    assert (error.packet_type, error.number, error.service) == (20, 100, 101)
    assert PROTOCOL.is_request(error.packet_type)
    assert not PROTOCOL.is_refresh(error.packet_type)


def test_an_empty_range_can_be_read_but_a_number_too_big_not_written() -> None:
    request = RetransRequest(1, 101, 100, 100, "ME")
    assert PROTOCOL.read(PROTOCOL.retrans_request(request, 0)) == request
    with pytest.raises(UsageError, match="does not fit"):
        PROTOCOL.retrans_request(RetransRequest(1, 101, 1, 2**32 + 1, "ME"), 0)
    with pytest.raises(UsageError, match="longer than 20 bytes"):
        PROTOCOL.heartbeat_reply("X" * 21, 0)


def test_a_feed_without_recovery_is_refused() -> None:
    with pytest.raises(UsageError, match="heartbeat response"):
        RecoveryProtocol(load_feed("iex-deep"))


def test_send_times_count_from_the_exchanges_midnight() -> None:
    clock = SendClock(FEED)
    assert clock.send_time(MIDNIGHT_NS) == 0
    assert clock.send_time(MIDNIGHT_NS - 1) == 86_400_000 - 1
    assert clock.send_time(MIDNIGHT_NS + 5_999_999) == 5
    noon = int(datetime(2023, 11, 15, 12, tzinfo=ZoneInfo("Europe/Paris")).timestamp()) * 10**9
    packet = FEED.decode_packet(PROTOCOL.heartbeat(noon))
    assert packet.send_time == 12 * 3_600_000
    assert noon < NEVER_NS


def test_send_times_of_a_feed_that_counts_from_1970() -> None:
    assert SendClock(load_feed("iex-deep")).send_time(123_456_789) == 123_456_789


STREAM = [
    data_packet(1),
    PROTOCOL.heartbeat(0),
    PROTOCOL.response(Response(True, 1, 2, "ME", 3), 0),
    data_packet(2, messages=40),
]
WHOLE = b"".join(STREAM)


@pytest.mark.parametrize("share", [1, 2, 3, 7, 15, 16, 17, 44, 100, len(WHOLE)])
def test_it_does_not_matter_how_a_stream_is_cut(share: int) -> None:
    framer = StreamFramer(FEED)
    found = []
    for at in range(0, len(WHOLE), share):
        found += framer.feed(WHOLE[at : at + share])
    assert found == STREAM
    assert framer.buffered == 0
    assert framer.failure is None


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (b"\0\x0f" + bytes(14), "length_too_small"),
        (bytes(16), "length_too_small"),
        (b"\xff\xff" + bytes(14), "length_too_big"),
        (b"\x08\x01" + data_packet()[2:], "length_too_big"),
        (b"\0\x10\x00\x0b" + bytes(12), "unknown_type"),
        (b"HTTP/1.1 400 Bad", "length_too_big"),
    ],
)
@pytest.mark.parametrize("share", [1, 5, 10_000])
def test_a_broken_stream_gives_what_came_before_and_then_its_failure(
    broken: bytes, name: str, share: int
) -> None:
    framer = StreamFramer(FEED)
    stream, found = WHOLE + broken, []
    for at in range(0, len(stream), share):
        if framer.failure is None:
            found += framer.feed(stream[at : at + share])
    assert found == STREAM
    assert framer.failure is not None
    assert framer.failure.name == name
    assert framer.buffered == 0
    with pytest.raises(WireError) as caught:
        framer.feed(WHOLE)
    assert caught.value.name == name


def test_a_packet_may_be_as_long_as_the_bound() -> None:
    packet = data_packet(messages=10)
    assert StreamFramer(FEED, len(packet)).feed(packet) == [packet]
    framer = StreamFramer(FEED, len(packet) - 1)
    assert framer.feed(packet) == []
    assert framer.failure is not None


@drawn(3)
def test_random_bytes_end_in_packets_or_in_a_failure(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(300):
        framer = StreamFramer(FEED)
        stream = bytearray(WHOLE)
        for _ in range(chance.randint(1, 8)):
            stream[chance.randrange(len(stream))] = chance.randrange(256)
        once = StreamFramer(FEED)
        all_at_once = once.feed(bytes(stream))
        bytewise: list[bytes] = []
        for byte in stream:
            if framer.failure is None:
                bytewise += framer.feed(bytes([byte]))
        assert bytewise == all_at_once
        names = [f.failure.name if f.failure else "" for f in (framer, once)]
        assert names[0] == names[1]
        for packet in all_at_once:
            assert meaning_or_name(packet)
