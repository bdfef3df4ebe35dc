"""Sampling roles: what the kernel tells of a process and of its sockets."""

import errno
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from feedhandler.lab import sampling, sock_diag
from feedhandler.lab.results import Loads
from feedhandler.lab.sampling import Sampler, pids_listening, read_usage, sockets_of, usage_of

WAIT_S = 60.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
        with one, other:
            yield one, other


def transfer(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    sender.sendall(bytes(size))
    left = size
    while left:
        left -= len(receiver.recv(left))


# -- the kernel's answers ---------------------------------------------------------------------


def test_the_kernel_counts_the_bytes_of_each_connection(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, other = pair
    transfer(one, other, 12_345)
    inodes = {each: os.fstat(each.fileno()).st_ino for each in pair}
    found = {each.inode: each for each in sock_diag.tcp_sockets()}
    assert found[inodes[other]].in_bytes == 12_345
    assert found[inodes[one]].port == one.getsockname()[1]
    # The connection's begin counts as a byte that was acknowledged.
    assert found[inodes[one]].out_bytes in (12_345, 12_346)


def test_answers_are_read_message_by_message() -> None:
    info = bytes(120) + struct.pack("=QQ", 70, 30) + bytes(8)
    attribute = struct.pack("=HH", 4 + len(info), 2) + info
    other = struct.pack("=HH", 5, 7) + b"x\0\0\0"
    head = struct.pack(
        "=BBBB2s2s16s16sIQIIIII", 2, 1, 0, 0, b"\x16\x28", b"", b"", b"", *[0] * 6, 99
    )
    body = head + other + attribute
    message = struct.pack("=IHHII", 16 + len(body), 20, 0, 1, 0) + body
    ignored = struct.pack("=IHHII", 16, 1, 0, 1, 0)
    done = struct.pack("=IHHII", 20, 3, 0, 1, 0) + bytes(4)
    expected = sock_diag.Connection(99, 0x1628, 30, 70)
    assert sock_diag.parse(ignored + message + message) == ([expected, expected], False)
    assert sock_diag.parse(message + done) == ([expected], True)
    short = head + struct.pack("=HH", 8, 2) + bytes(4)
    without = struct.pack("=IHHII", 16 + len(short), 20, 0, 1, 0) + short
    assert sock_diag.parse(without)[0] == [sock_diag.Connection(99, 0x1628, 0, 0)]


def test_a_refusal_and_nonsense_are_errors() -> None:
    refusal = struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -errno.EPERM)
    with pytest.raises(OSError, match="refuses") as caught:
        sock_diag.parse(refusal)
    assert caught.value.errno == errno.EPERM
    with pytest.raises(ValueError, match="netlink message of 3"):
        sock_diag.parse(struct.pack("=IHHII", 3, 20, 0, 1, 0))
    head = struct.pack("=BBBB2s2s16s16sIQIIIII", 2, 1, 0, 0, b"", b"", b"", b"", *[0] * 7)
    wrong = head + struct.pack("=HH", 2, 2)
    with pytest.raises(ValueError, match="attribute of 2"):
        sock_diag.parse(struct.pack("=IHHII", 16 + len(wrong), 20, 0, 1, 0) + wrong)


def test_who_listens_on_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert pids_listening(listener.getsockname()[1]) == [os.getpid()]
    assert pids_listening(1) == []


# -- processes --------------------------------------------------------------------------------


def test_times_and_memory_are_read_from_the_right_fields() -> None:
    stat = "12 (a) b (c)) S " + " ".join(str(number) for number in range(4, 53))
    ticks = os.sysconf("SC_CLK_TCK")
    found = usage_of(stat, "100 20 3")
    assert (found.user_s, found.system_s) == (14 / ticks, 15 / ticks)
    assert found.rss_bytes == 20 * os.sysconf("SC_PAGE_SIZE")


def test_our_own_process_has_memory_and_a_process_that_is_none_has_nothing() -> None:
    found = read_usage(os.getpid())
    assert found is not None
    assert found.rss_bytes > 1 << 20
    assert read_usage(1 << 22) is None
    assert sockets_of(1 << 22) == set()


# -- sampling ---------------------------------------------------------------------------------


class Stepped(Sampler):
    """A sampler whose samples can be waited for."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]
        self.news = threading.Condition()
        self.taken = 0

    def _sample(self, t_s: float) -> None:
        super()._sample(t_s)
        with self.news:
            self.taken += 1
            self.news.notify_all()

    def wait(self, more: int) -> None:
        with self.news:
            wanted = self.taken + more
            assert self.news.wait_for(lambda: self.taken >= wanted, WAIT_S)


def by_role(loads: list[Loads]) -> dict[str, Loads]:
    return {each.role: each for each in loads}


def test_bytes_are_counted_from_the_start_and_those_of_a_closed_socket_stay(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, other = pair
    transfer(one, other, 1000)
    sampler = Stepped({"us": os.getpid(), "absent": [1 << 22]}, 0.01)
    sampler.start()
    transfer(one, other, 200_000)
    sampler.wait(2)
    one.close()
    other.close()
    sampler.wait(2)
    found = by_role(sampler.stop())
    us, absent = found["us"], found["absent"]
    # Both ends are ours.
    assert us.net_in_bytes[-1] == 200_000
    assert us.net_out_bytes[-1] == 200_000
    assert (us.net_in_bytes[1:] >= us.net_in_bytes[:-1]).all()
    assert len(us.t_s) == len(us.user_cpu) == len(us.rss_bytes) >= 4
    assert (us.t_s[1:] > us.t_s[:-1]).all()
    assert us.rss_bytes[-1] > 1 << 20
    assert not absent.rss_bytes.any()
    assert not absent.net_in_bytes.any()


def test_a_busy_process_shows_and_what_it_used_stays_after_its_end() -> None:
    code = (
        "import os, sys\nsys.stdin.readline(); begun = os.times().user\n"
        "while os.times().user < begun + 0.2: pass\n"
        "print(os.times().user - begun, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        sampler = Stepped({"busy": [child.pid], "both": [child.pid, os.getpid()]}, 0.02)
        sampler.start()
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        reported = float(child.stdout.readline())
        sampler.wait(2)
        child.stdin.close()
        child.wait(WAIT_S)
        sampler.wait(2)
    found = by_role(sampler.stop())
    busy = found["busy"]
    elapsed = [b - a for a, b in zip([0, *busy.t_s], busy.t_s, strict=False)]
    used = sum(share * each for share, each in zip(busy.user_cpu, elapsed, strict=True))
    # The interpreter's start and end are in the samples too, or some of it.
    assert reported - 0.05 <= used <= reported + 0.3
    assert busy.rss_bytes[0] > 0
    assert busy.rss_bytes[-1] == 0
    assert (busy.user_cpu >= 0).all()
    assert found["both"].processes == 2


def test_what_a_role_counts_at_moments_of_its_own_is_what_it_was_between_them() -> None:
    counts = {"us": (100.0, 10, 0)}
    sampler = Sampler({"us": []}, counted=lambda: counts)
    for _ in range(2):
        sampler._sample(0.0)
    assert sampler._counts["us"] == [(100.0, 10, 0)], "reported twice, counted once"
    sampler._began = 100.0
    sampler._rows["us"] = [(t_s, 0.0, 0.0, 0.0, 0.0, 0.0) for t_s in (0.0, 1.0, 2.0, 3.0)]
    sampler._counts["us"] = [(100.0, 10, 0), (102.0, 30, 8)]
    found = sampler._loads("us")
    assert found.net_in_bytes.tolist() == [10, 20, 30], "on it goes, for a while"
    assert found.net_out_bytes.tolist() == [4, 8, 12]
    sampler._counts["us"] = [(100.0, 10, 0), (101.0, 20, 4)]
    assert sampler._loads("us").net_in_bytes.tolist() == [10, 20, 20], "but not for ever"


def test_a_last_sample_takes_the_place_of_one_that_is_hardly_older() -> None:
    sampler = Sampler({"us": []}, interval_s=1000.0)
    sampler.start()
    sampler._sample(0.0)
    (found,) = sampler.stop()
    assert len(found.t_s) == 1
    assert found.t_s[0] > 0.0


def test_a_sampler_takes_no_more_samples_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLES_MAX", 3)
    sampler = Sampler({"us": os.getpid()}, 0.0)
    sampler.start()
    sampler._thread.join(WAIT_S)
    assert not sampler._thread.is_alive()
    (found,) = sampler.stop()
    assert len(found.t_s) == 3
