"""Pausing, dropping and stopping what a sender does, over real multicast on loopback.

Both senders: what they share is told what to do in the same words.
"""

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.replay.playing.frame_headers import Destination
from feedhandler.replay.playing.frame_lines import open_frame_socket
from feedhandler.replay.playing.frame_sender import FrameSender
from feedhandler.replay.playing.sender import Progress, Sender
from feedhandler.replay.playing.sender_lines import open_multicast_sender
from tests.support import free_addresses
from tests.support.needs import absent
from tests.support.replay import PATIENCE_S, joined

AnySender = Sender | FrameSender
LATE_NS = 3_600 * 10**9
SECOND_NS = 10**9
#: A stamp of CLOCK_REALTIME in nanoseconds on everything received (asm-generic/socket.h).
SO_TIMESTAMPNS = 35


class Stamped:
    """A socket on a group of its own whose datagrams carry the kernel's time of their arrival."""

    def __init__(self) -> None:
        self.group = free_addresses.group()
        self.socket = joined(self.group)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def receive(self) -> tuple[int, int]:
        """A datagram's number and when it arrived."""
        payload, ancillary, _, _ = self.socket.recvmsg(64, 64)
        seconds, ns = struct.unpack("@qq", ancillary[0][2])
        return payload[0], seconds * SECOND_NS + ns


@pytest.fixture
def receiver() -> Iterator[Stamped]:
    made = Stamped()
    yield made
    made.socket.close()


@pytest.fixture(params=["udp", "raw"])
def sender(receiver: Stamped, request: pytest.FixtureRequest) -> Iterator[AnySender]:
    port = receiver.socket.getsockname()[1]
    if request.param == "udp":
        with open_multicast_sender("127.0.0.1") as sock:
            yield Sender([(sock, receiver.group, port)])
        return
    try:
        sock = open_frame_socket("lo")
    except ConfigError as refused:
        absent("namespaces", refused.message)
    with sock:
        # From 127.0.0.1 a receiver takes no frame.
        yield FrameSender([sock], [Destination(receiver.group, port, source_ip="192.0.2.1")])


def send(sender: AnySender, due_ns: list[int], anchor_ns: int = 0) -> int:
    """Send one byte at each of the times, numbered from 0."""
    count = len(due_ns)
    return sender.send_block(
        [np.arange(count, dtype=np.uint8)],
        np.zeros(count, np.uint32),
        np.arange(count, dtype=np.uint32),
        np.ones(count, np.uint32),
        np.zeros(count, np.uint16),
        np.array(due_ns, np.int64),
        anchor_ns or time.monotonic_ns() - sender.shift_ns,
    )


class Background(threading.Thread):
    """`send` in a thread; `sent` is what it returned."""

    def __init__(self, sender: AnySender, due_ns: list[int]) -> None:
        super().__init__(daemon=True)
        self._arguments = (sender, due_ns)
        self.sent = -1
        self.start()

    def run(self) -> None:
        self.sent = send(*self._arguments)

    def ended(self) -> bool:
        self.join(PATIENCE_S)
        return not self.is_alive()


def standing_clock(sender: AnySender) -> tuple[int, int]:
    """The sender's clock, from below and from above."""
    before_ns = time.monotonic_ns()
    shift_ns = sender.shift_ns
    return before_ns - shift_ns, time.monotonic_ns() - shift_ns


def test_a_pause_holds_the_next_datagram_back_until_it_is_over(
    sender: AnySender, receiver: Stamped
) -> None:
    work = Background(sender, [0, 50_000_000, 50_000_000])
    assert receiver.receive()[0] == 0
    sender.pause()
    assert sender.paused
    resumed_ns = time.time_ns()
    sent_before = int(sender.progress[Progress.SENT])
    sender.resume()
    assert not sender.paused
    for number in (1, 2):
        got, arrived_ns = receiver.receive()
        assert got == number
        assert arrived_ns > resumed_ns or sent_before == 3
    assert work.ended()
    assert work.sent == 3


def test_nothing_leaves_while_a_pause_is_on(sender: AnySender, receiver: Stamped) -> None:
    sender.pause()
    work = Background(sender, [0, 1_000])
    receiver.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        receiver.receive()
    receiver.socket.settimeout(PATIENCE_S)
    resumed_ns = time.time_ns()
    sender.resume()
    assert [receiver.receive()[1] > resumed_ns for _ in range(2)] == [True, True]
    assert work.ended()
    assert work.sent == 2


def test_the_senders_clock_stands_still_in_a_pause_and_then_goes_on(sender: AnySender) -> None:
    before = standing_clock(sender)
    sender.pause()
    first, second = standing_clock(sender), standing_clock(sender)
    sender.pause()
    third = standing_clock(sender)
    assert max(first[0], second[0], third[0]) <= min(first[1], second[1], third[1])
    assert before[0] <= third[1]
    asked_ns = sender.shift_ns
    sender.resume()
    shift_ns = sender.shift_ns
    assert 0 < asked_ns <= shift_ns
    sender.resume()
    assert sender.shift_ns == shift_ns
    assert standing_clock(sender)[1] > third[0]


def test_the_schedule_is_put_off_by_the_whole_of_every_pause(
    sender: AnySender, receiver: Stamped
) -> None:
    due_ns = [0, 30_000_000, 60_000_000, 90_000_000]
    anchor_ns = time.monotonic_ns()
    realtime_minus_monotonic_ns = time.time_ns() - time.monotonic_ns()
    work = threading.Thread(target=send, args=(sender, due_ns, anchor_ns))
    work.start()
    for number, due in enumerate(due_ns):
        got, arrived_ns = receiver.receive()
        assert got == number
        # The clocks are set against each other once, which is good for a fraction of 1 ms.
        earliest_ns = anchor_ns + due + realtime_minus_monotonic_ns - 1_000_000
        assert arrived_ns >= earliest_ns + (sender.shift_ns if number == 3 else 0)
        if number < 3:
            sender.pause()
            sender.resume()
    work.join(PATIENCE_S)


@pytest.mark.parametrize("paused", [False, True])
def test_a_stop_ends_the_call_in_a_wait_and_in_a_pause(
    sender: AnySender, receiver: Stamped, paused: bool
) -> None:
    work = Background(sender, [0, LATE_NS])
    assert receiver.receive()[0] == 0
    if paused:
        sender.pause()
    sender.stop()
    assert work.ended()
    assert work.sent == 1
    assert sender.stopped
    sender.resume()
    sender.stop_dropping()
    sender.drop()
    assert sender.stopped
    assert send(sender, [0]) == 0


@pytest.mark.parametrize("paused", [False, True])
def test_a_drop_ends_the_call_and_later_ones_until_take(
    sender: AnySender, receiver: Stamped, paused: bool
) -> None:
    work = Background(sender, [0, LATE_NS])
    assert receiver.receive()[0] == 0
    if paused:
        sender.pause()
    sender.drop()
    assert work.ended()
    assert work.sent == 1
    assert not sender.stopped
    assert send(sender, [0]) == 0
    sender.resume()
    assert send(sender, [0]) == 0
    sender.stop_dropping()
    assert send(sender, [0]) == 1
    assert receiver.receive()[0] == 0


def test_an_interrupt_reaches_a_sender_that_is_paused_in_the_main_thread(sender: AnySender) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    sender.pause()
    helper = threading.Timer(0.5, interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        send(sender, [0])
    helper.join()


def test_pauses_without_number_lose_and_repeat_nothing(
    sender: AnySender, receiver: Stamped
) -> None:
    count = 200
    work = Background(sender, [number * 100_000 for number in range(count)])
    while work.is_alive():
        sender.pause()
        sender.resume()
    assert [receiver.receive()[0] for _ in range(count)] == list(range(count))
    assert work.sent == count
