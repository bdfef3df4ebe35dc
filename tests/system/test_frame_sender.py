"""Raw frames over a veth pair, where what arrives can be compared with what was sent."""

import dataclasses
import errno
import random
import struct
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.replay.captures.frames import LinkType
from feedhandler.replay.captures.records import frame_headers
from feedhandler.replay.playing import frame_lines
from feedhandler.replay.playing.frame_headers import Destination
from feedhandler.replay.playing.frame_lines import (
    explain,
    interface_of,
    look_at,
    open_frame_socket,
    parse_mac,
)
from feedhandler.replay.playing.frame_sender import FrameSender
from feedhandler.replay.playing.progress import Progress
from tests.support.frames import FrameReceiver, namespace, without_net_raw
from tests.support.veth import FAR, NEAR, ip, wait_for_link

AS_CAPTURED = Destination()
MOVED = Destination("239.7.7.7", 7_007, bytes.fromhex("020000000007"), "10.7.7.7")


@pytest.fixture
def far() -> Iterator[FrameReceiver]:
    """A receiver at the far end of a veth pair in a namespace of the test's own."""
    with namespace(), FrameReceiver() as receiver:
        yield receiver


def frame(number: int, size: int = 50, tags: tuple[int, ...] = ()) -> bytes:
    """A frame that cannot be taken for another."""
    payload = random.Random(number).randbytes(size)
    return frame_headers("233.5.5.5", 5_005, "10.0.0.1", 99, size, tags) + payload


def headers_bytes(tags: int = 0) -> int:
    return 42 + 4 * tags


def send(sender: FrameSender, frames: list[bytes], **other: Any) -> int:
    """Send whole frames (Ethernet without tags unless `other` says otherwise) to destination 0."""
    lengths = np.array([len(each) for each in frames], np.uint32)
    starts = (np.cumsum(lengths) - lengths).astype(np.uint32)
    columns: dict[str, Any] = {
        "buffers": [np.frombuffer(b"".join(frames), np.uint8)],
        "buffer_of": np.zeros(len(frames), np.uint32),
        "offsets": starts + np.uint32(42),
        "lengths": lengths - np.uint32(42),
        "destinations": np.zeros(len(frames), np.uint16),
        "due_ns": np.zeros(len(frames), np.int64),
        "anchor_ns": time.monotonic_ns(),
        "frame_offsets": starts,
        "frame_lengths": lengths,
        "link_types": np.full(len(frames), LinkType.ETHERNET, np.uint16),
    }
    return sender.send_block(**(columns | other))


def test_captured_frames_arrive_as_they_are(far: FrameReceiver) -> None:
    frames = [frame(number, size) for number, size in enumerate([0, 18, 1, 1_458, *[300] * 200])]
    frames += [frame(1, 5) + b"padding behind", bytes(60)]
    with open_frame_socket(NEAR) as sock:
        sender = FrameSender([sock], [AS_CAPTURED])
        ends = np.array([len(each) for each in frames], np.uint32)
        ends[-2] -= 14
        assert send(sender, frames, lengths=ends - np.uint32(42)) == len(frames)
    assert far.frames(len(frames)) == frames
    assert sender.progress[Progress.SENT] == len(frames)
    assert sender.progress[Progress.BYTES] == ends.sum() - 42 * len(frames)
    assert sender.sent_by_destination.tolist() == [len(frames)]


@pytest.mark.parametrize("tags", [(), (77,), (77, 78)])
def test_headers_are_changed_for_each_line_and_the_capture_is_not(
    far: FrameReceiver, tags: tuple[int, ...]
) -> None:
    frames = [frame(number, number, tags) for number in range(100)]
    before = b"".join(frames)
    with open_frame_socket(NEAR, bypass_queue=True) as sock:
        sender = FrameSender([sock, sock], [AS_CAPTURED, MOVED])
        for line in (0, 1):
            lengths = np.array([len(each) for each in frames], np.uint32)
            starts = (np.cumsum(lengths) - lengths).astype(np.uint32)
            sent = send(
                sender, frames, destinations=np.full(100, line, np.uint16),
                offsets=starts + np.uint32(headers_bytes(len(tags))),
                lengths=lengths - np.uint32(headers_bytes(len(tags))),
            )  # fmt: skip
            assert sent == 100
    assert far.frames(100) == frames
    assert b"".join(frames) == before
    for number, got in enumerate(far.frames(100)):
        payload = frame(number, number, tags)[headers_bytes(len(tags)) :]
        wanted = frame_headers("239.7.7.7", 7_007, "10.7.7.7", 99, number, tags)
        assert got == wanted[:6] + MOVED.source_mac + wanted[12:] + payload  # type: ignore[operator]
    assert sender.sent_by_destination.tolist() == [100, 100]


@pytest.mark.parametrize(
    ("link_type", "before"),
    [
        (LinkType.RAW, 0),
        (LinkType.RAW_BSD, 0),
        (LinkType.LINUX_COOKED, 16),
        (LinkType.LINUX_COOKED_V2, 20),
    ],
)
def test_captures_without_ethernet_get_an_ethernet_header(
    far: FrameReceiver, link_type: int, before: int
) -> None:
    whole = frame(3)
    captured = b"\xcc" * before + whole[14:] + b"\xdd"  # one byte more than the datagram
    columns = {
        "offsets": np.array([before + 28], np.uint32),
        "lengths": np.array([50], np.uint32),
        "link_types": np.array([link_type], np.uint16),
    }
    with open_frame_socket(NEAR) as sock:
        mac = look_at(NEAR).mac
        sender = FrameSender([sock, sock], [Destination(interface_mac=mac), MOVED])
        assert send(sender, [captured], **columns) == 1
        assert send(sender, [captured], destinations=np.ones(1, np.uint16), **columns) == 1
    kept, moved = far.frames(2)
    assert kept == whole[:6] + mac + whole[12:]
    wanted = frame_headers("239.7.7.7", 7_007, "10.7.7.7", 99, 50)
    assert moved == wanted[:6] + bytes.fromhex("020000000007") + wanted[12:] + whole[42:]


def test_bare_payloads_get_headers_that_an_ordinary_receiver_understands(
    far: FrameReceiver,
) -> None:
    bare: dict[str, Any] = dict.fromkeys(("frame_offsets", "frame_lengths", "link_types"))
    with open_frame_socket(NEAR) as sock:
        sender = FrameSender([sock], [MOVED])
        payloads = [bytes([number]) * (42 + number) for number in range(3)]
        assert send(sender, payloads, **bare) == 3
        none = np.zeros(3, np.uint16)
        assert send(sender, payloads, link_types=none) == 3
    for number, got in enumerate(far.frames(3) + far.frames(3)):
        assert got[42:] == payloads[number % 3][42:]
        assert struct.unpack_from(">HHH", got, 34) == (7_007, 7_007, 8 + number % 3)
        assert got[40:42] != b"\0\0"


def test_what_the_interface_does_not_take_is_left_out_and_counted(far: FrameReceiver) -> None:
    frames = [frame(0), frame(1, 1_473), frame(2), frame(3, 1_473), frame(4, 1_472)]
    with open_frame_socket(NEAR) as sock:
        sender = FrameSender([sock], [AS_CAPTURED])
        assert send(sender, frames) == 5
        assert far.frames(3) == [frames[0], frames[2], frames[4]]
        assert sender.progress[Progress.TOO_LONG] == 2
        assert sender.progress[Progress.SENT] == sender.sent_by_destination[0] == 3
        ip("link", "set", FAR, "mtu", "9000")
        ip("link", "set", NEAR, "mtu", "9000")
        assert send(sender, frames) == 5
        assert far.frames(5) == frames


def test_frames_leave_on_their_schedule_and_stop_on_request(far: FrameReceiver) -> None:
    frames = [frame(number) for number in range(3)]
    due_ns = np.array([0, 1_000_000, 3_600 * 10**9], np.int64)
    with open_frame_socket(NEAR) as sock:
        sender = FrameSender([sock], [AS_CAPTURED], spin_ns=0)
        sender.drop()
        assert send(sender, frames) == 0
        sender.stop_dropping()
        anchor_ns = time.monotonic_ns()
        assert send(sender, frames[:2], due_ns=due_ns[:2], anchor_ns=anchor_ns) == 2
        assert time.monotonic_ns() >= anchor_ns + 1_000_000
        sender.stop()
        assert send(sender, frames) == 0
    assert far.frames(2) == frames[:2]


def test_an_interface_that_goes_down_while_sending_is_named(far: FrameReceiver) -> None:
    with open_frame_socket(NEAR) as sock:
        sender = FrameSender([sock], [AS_CAPTURED])
        ip("link", "set", NEAR, "down")
        with pytest.raises(OSError, match="down"):
            send(sender, [frame(1)])


def test_the_sender_refuses_what_lies_outside_buffers_and_frames(far: FrameReceiver) -> None:
    one = np.array([1], np.uint32)
    with open_frame_socket(NEAR) as sock:
        sender = FrameSender([sock, sock], [AS_CAPTURED, MOVED])
        for wrong in (
            {"offsets": one * 92},
            {"lengths": one * 51},
            {"buffer_of": one},
            {"destinations": np.array([2], np.uint16)},
            {"frame_offsets": one},
            {"frame_lengths": one * 93},
            {"frame_lengths": one * 91},
            {"offsets": one * 41},
            {"lengths": np.ones(2, np.uint32)},
            {"frame_offsets": np.ones(2, np.uint32)},
            {"frame_offsets": None},
            {"link_types": np.zeros(1, np.uint16)},
            {"link_types": np.array([999], np.uint16)},
            {"link_types": None},
        ):
            with pytest.raises(IndexError):
                send(sender, [frame(1)], **wrong)
        none = np.zeros(0, np.uint32)
        empty: dict[str, Any] = dict.fromkeys(("buffer_of", "offsets", "lengths"), none)
        assert sender.send_block(
            [], **empty, destinations=none.astype(np.uint16), due_ns=none.astype(np.int64),
            anchor_ns=0,
        ) == 0  # fmt: skip
        assert sender.progress[Progress.SENT] == 0
        # No IPv4 before what is called a payload: reported when it is that frame's turn.
        with pytest.raises(OSError, match="message"):
            send(
                sender, [frame(1), bytes(92)],
                destinations=np.ones(2, np.uint16),
            )  # fmt: skip
        raw = {"link_types": np.full(1, LinkType.RAW, np.uint16), "offsets": one * 60}
        with pytest.raises(OSError, match="message"):
            send(sender, [bytes(92)], lengths=one, **raw)
        assert send(sender, [frame(1)]) == 1
        assert far.frames(1) == [frame(1)]
    with pytest.raises(UsageError, match="destinations"):
        FrameSender([], [])


def test_interfaces_are_found_by_name_and_by_address(far: FrameReceiver) -> None:
    ip("address", "add", "10.77.1.1/24", "dev", NEAR)
    assert interface_of("10.77.1.1") == interface_of(NEAR) == NEAR
    state = look_at(NEAR)
    assert (state.address, state.mtu_bytes, len(state.mac)) == ("10.77.1.1", 1_500, 6)
    assert look_at(FAR).address == "0.0.0.0"
    with pytest.raises(ConfigError, match="no such interface"):
        interface_of("nowhere0")
    with pytest.raises(ConfigError, match="no such interface"):
        interface_of("10.77.1.99")


def test_an_interface_that_cannot_be_used_is_refused_in_one_line(
    far: FrameReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ip("link", "set", FAR, "down")
    wait_for_link(False)
    with pytest.raises(ConfigError, match="near0': it has no link"):
        open_frame_socket(NEAR)
    with pytest.raises(ConfigError, match="far0': it is down"):
        open_frame_socket(FAR)
    tunnel = dataclasses.replace(look_at(NEAR), name="tunnel0", carries_ethernet=False)
    monkeypatch.setattr(frame_lines, "look_at", lambda name: tunnel)
    with pytest.raises(ConfigError, match="tunnel0': it carries no Ethernet"):
        open_frame_socket("tunnel0")
    monkeypatch.undo()
    assert "gone" in str(explain("nowhere0", OSError(errno.ENXIO, "No such device")))
    ip("link", "set", FAR, "up")
    wait_for_link(True)
    assert "no buffer" in str(explain(NEAR, OSError(errno.ENOBUFS, "No buffer space")))
    assert "headers" in str(explain(NEAR, OSError(errno.EBADMSG, "Bad message")))


def test_without_the_right_the_remedy_is_reported(far: FrameReceiver) -> None:
    with without_net_raw(), pytest.raises(ConfigError, match="CAP_NET_RAW") as refused:
        open_frame_socket(NEAR)
    assert "setcap" in refused.value.hint


@pytest.mark.parametrize(
    "text", ["", "02:00", "02:00:00:00:00:0g", "0200.0000.0001", "02:00:00:00:00:001"]
)
def test_what_is_no_mac_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no MAC"):
        parse_mac(text)


def test_mac_addresses_come_with_colons_or_dashes() -> None:
    assert parse_mac("02:00:5e:10:00:aF") == parse_mac(" 02-00-5E-10-00-af ")
    with pytest.raises(UsageError, match="group of stations"):
        parse_mac("01:00:5e:00:00:01")
