"""Header changes against frames that dpkt builds from nothing, compiled and interpreted alike."""

import os
import random
import socket
import struct
import subprocess
import sys
from types import ModuleType
from typing import Any

import dpkt
import pytest

from feedhandler.replay.captures.records import internet_checksum, multicast_mac
from feedhandler.replay.playing import frame_headers
from feedhandler.replay.playing.frame_headers import Destination
from feedhandler.replay.playing.frame_sender import payload_sum
from tests.support.twins import either, twins_of


def ones_sum(payload: bytes) -> int:
    """The one's complement sum of 16-bit numbers, an odd byte padded with 0 (RFC 1071)."""
    padded = payload + bytes(len(payload) % 2)
    total = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


TWINS = twins_of(frame_headers)
module = either(TWINS)
#: Bytes around the headers in the room that they are changed in.
MARGIN = 5
OLD_MAC, NEW_MAC = bytes.fromhex("00a0c9112233"), bytes.fromhex("020000000099")
OLD = Destination("233.1.2.3", 20_001, OLD_MAC, "10.1.1.1", 9_001)
NEW = Destination("239.129.77.5", 30_005, NEW_MAC, "192.168.7.8", 7)


def frame_of(
    said: Any,
    payload: bytes,
    tags: tuple[int, ...] = (),
    options: bytes = b"",
    checksum: int | None = None,
) -> bytes:
    """A frame with these addresses, as dpkt makes it; `checksum` replaces UDP's own."""
    for value in said[:5]:
        assert value is not None
    udp = dpkt.udp.UDP(sport=said.source_port, dport=said.port, data=payload)
    udp.ulen = 8 + len(payload)
    ip = dpkt.ip.IP(
        src=socket.inet_aton(said.source_ip), dst=socket.inet_aton(said.group), p=17, ttl=9,
        id=4_711, opts=options, data=udp,
    )  # fmt: skip
    ip.hl = 5 + len(options) // 4
    ip.len = 20 + len(options) + 8 + len(payload)
    body = bytes(ip)
    if checksum is not None:
        at = 20 + len(options) + 6
        body = body[:at] + checksum.to_bytes(2, "big") + body[at + 2 :]
    ether = multicast_mac(said.group) + said.source_mac
    ether += b"".join(b"\x81\x00" + tag.to_bytes(2, "big") for tag in tags)
    return ether + b"\x08\x00" + body


def changed(
    module: ModuleType,
    destination: Destination,
    frame: bytes,
    payload: bytes,
    prepare: Any = None,
    made: bool = False,
) -> bytes | int:
    """Return a frame with changed headers; -1: refused. `payload`: its payload or what is left."""
    changes = module.HeaderChanges([Destination(), destination])
    head = frame[: len(frame) - len(payload)]
    room = bytearray(b"\xaa" * MARGIN + head + b"\xaa" * MARGIN)
    end = MARGIN + len(head)
    if prepare is not None:
        prepare(changes, room, MARGIN, end)
    outcome = changes.apply(1, room, MARGIN, end, len(payload), ones_sum(payload), made)
    assert room[:MARGIN] == room[end:] == b"\xaa" * MARGIN
    return bytes(room[MARGIN:end]) + payload if outcome == 0 else outcome


@pytest.mark.parametrize("options", [b"", b"\x94\x04\0\0", b"\x07\x27\x04" + bytes(37)])
@pytest.mark.parametrize("tags", [(), (12,), (12, 345)])
@pytest.mark.parametrize("size", [0, 1, 8, 333])
def test_a_changed_frame_is_the_one_that_would_have_been_built(
    module: ModuleType, tags: tuple[int, ...], options: bytes, size: int
) -> None:
    payload = random.Random(size).randbytes(size)
    frame = frame_of(OLD, payload, tags, options)
    assert changed(module, NEW, frame, payload) == frame_of(NEW, payload, tags, options)


@pytest.mark.parametrize("field", ["group", "port", "source_mac", "source_ip", "source_port"])
def test_each_field_is_changed_for_itself(module: ModuleType, field: str) -> None:
    alone = Destination(**{field: getattr(NEW, field)})
    wanted = OLD._replace(**{field: getattr(NEW, field)})
    assert changed(module, alone, frame_of(OLD, b"abcd"), b"abcd") == frame_of(wanted, b"abcd")


def test_a_checksum_that_was_not_computed_stays_so(module: ModuleType) -> None:
    frame = frame_of(OLD, b"abc", checksum=0)
    assert changed(module, NEW, frame, b"abc") == frame_of(NEW, b"abc", checksum=0)


def test_a_wrong_checksum_is_put_right_with_the_change(module: ModuleType) -> None:
    frame = frame_of(OLD, b"abc", checksum=0x1234)
    assert changed(module, NEW, frame, b"abc") == frame_of(NEW, b"abc")


def test_where_nothing_changes_nothing_is_touched(module: ModuleType) -> None:
    wrong = bytearray(frame_of(OLD, b"abc", checksum=0x1234))
    wrong[0:6] = bytes.fromhex("0002deadbeef")  # not the group's: a router's
    wrong[24] ^= 0xFF  # in the IPv4 header's checksum
    for destination in (Destination(), OLD):
        assert changed(module, destination, bytes(wrong), b"abc") == bytes(wrong)


@pytest.mark.parametrize("options", [b"", bytes(8)])
def test_a_datagram_that_was_cut_keeps_the_checksum_of_the_whole(
    module: ModuleType, options: bytes
) -> None:
    whole = random.Random(3).randbytes(200)
    frame = frame_of(OLD, whole, options=options)
    wanted = frame_of(NEW, whole, options=options)
    for kept in (0, 1, 77):
        got = changed(module, NEW, frame[: len(frame) - 200 + kept], whole[:kept])
        assert got == wanted[: len(frame) - 200 + kept]


@pytest.mark.parametrize("cut", [False, True])
def test_a_checksum_that_comes_out_as_0_is_sent_as_ffff(module: ModuleType, cut: bool) -> None:
    # What a checksum lacks to 0 is the checksum itself: two bytes of payload make up for it.
    payload = frame_of(NEW, b"\0\0")[40:42]
    wanted = frame_of(NEW, payload)
    assert wanted[40:42] == b"\xff\xff"
    kept = payload[:1] if cut else payload
    frame = frame_of(OLD, payload)
    got = changed(module, NEW, frame[: len(frame) - 2 + len(kept)], kept)
    assert got == wanted[: len(frame) - 2 + len(kept)]


@pytest.mark.parametrize("size", [0, 5, 1_400])
def test_a_bare_payload_gets_all_headers(module: ModuleType, size: int) -> None:
    payload = random.Random(size).randbytes(size)

    def make(changes: Any, room: bytearray, start: int, end: int) -> None:
        assert changes.make(1, room, start, size) == frame_headers.HEADERS_BYTES == end - start

    for asked in (NEW, NEW._replace(source_mac=None, interface_mac=NEW_MAC)):
        for ip in ({}, {"source_ip": None, "interface_ip": NEW.source_ip}):
            for port in (7, None):
                destination = asked._replace(**ip, source_port=port)
                got = changed(
                    module, destination, bytes(frame_headers.HEADERS_BYTES) + payload, payload,
                    make, made=True,
                )  # fmt: skip
                assert isinstance(got, bytes)
                source_port = port or NEW.port
                wanted = bytearray(frame_of(NEW._replace(source_port=source_port), payload))
                # What dpkt was given for the tests: an identification and a time to live.
                wanted[18:20], wanted[22], wanted[24:26] = b"\0\0", 1, b"\0\0"
                wanted[24:26] = internet_checksum(bytes(wanted[14:34])).to_bytes(2, "big")
                assert got == bytes(wanted)


def test_a_frame_without_ethernet_gets_the_header_of_its_group(module: ModuleType) -> None:
    frame = frame_of(OLD, b"abcd", options=bytes(4))

    def cover(changes: Any, room: bytearray, start: int, end: int) -> None:
        room[start : start + 14] = bytes(14)
        assert changes.cover(1, room, start, end) == 0
        assert changes.cover(1, room, start, start + 41) == -1

    kept = Destination(interface_mac=OLD_MAC)
    assert changed(module, kept, frame, b"abcd", cover) == frame
    wanted = frame_of(NEW, b"abcd", options=bytes(4))
    assert changed(module, NEW, frame, b"abcd", cover) == wanted


def test_what_are_no_headers_is_refused(module: ModuleType) -> None:
    frame = frame_of(OLD, b"")
    for wrong in (
        frame[:12] + b"\x08\x06" + frame[14:],  # ARP
        frame[:12] + b"\x81\x00\0\1" * 3 + frame[12:],  # three tags
        frame[:14] + b"\x46" + frame[15:],  # options that are not there
        frame[:14] + b"\x55" + frame[15:],  # version 5
        frame[:13],
        frame[:12] + b"\x81\x00\x00",
        frame[:40],
    ):
        assert changed(module, NEW, wrong, b"") == -1


def test_both_twins_change_random_frames_alike(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(300):
        payload = source.randbytes(source.randrange(60))
        options = source.randbytes(4 * source.randrange(11))
        tags = tuple(source.randrange(4_096) for _ in range(source.randrange(3)))
        frame = frame_of(OLD, payload, tags, options, source.choice([None, 0, 1, 0xFFFF]))
        destination = Destination(*(source.choice([value, None]) for value in NEW[:5]))
        kept = payload[: source.randrange(len(payload) + 1)]
        frame = frame[: len(frame) - len(payload) + len(kept)]
        outcomes = {changed(module, destination, frame, kept) for module in TWINS.values()}
        assert len(outcomes) == 1
        (outcome,) = outcomes
        assert isinstance(outcome, bytes)
        assert dpkt.ethernet.Ethernet(outcome).src in (OLD_MAC, NEW_MAC)


def test_which_destinations_change_anything_and_which_can_make_headers() -> None:
    made = frame_headers.HeaderChanges(
        [
            Destination(),
            Destination(source_port=0),
            Destination("239.1.1.1", 5),
            Destination(port=5),
        ]
    )
    assert made.changes.tolist() == [0, 1, 1, 1]
    assert made.complete.tolist() == [0, 0, 1, 0]


def test_payloads_are_summed_as_rfc_1071_does_it() -> None:
    example = bytes.fromhex("0001f203f4f5f6f7")
    assert ones_sum(example) == payload_sum(example) == 0xDDF2  # its section 3
    source = random.Random(1)
    for size in [*range(40), 65_507]:
        payload = source.randbytes(size)
        assert payload_sum(payload) == ones_sum(payload)
    assert payload_sum(b"\xff" * 65_507) == ones_sum(b"\xff" * 65_507)


def test_where_everything_runs_interpreted_players_can_still_be_imported() -> None:
    environment = {**os.environ, "FEEDHANDLER_PURE": "1"}
    command = [sys.executable, "-c", "import feedhandler.replay, feedhandler.ops.replay.playing"]
    subprocess.run(command, env=environment, check=True, timeout=200)
