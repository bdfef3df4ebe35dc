"""Receiving and arbitrating FIX by multicast, beside the binary feed's packets of equal size.

The sockets of lines A and B are filled before the receive thread starts; then it reads, checks,
arbitrates and writes its ring until they are empty. What counts is the thread's processor time, the
kernel's part included, for each datagram of both lines, the best of several rounds in turns: what
else runs on the machine does not count. Three kinds of traffic of each size:

* the binary feed: UTP-MD packets of order updates of 64 bytes (and one that fills up)
* FIX: book updates of 150 to 400 bytes, stamped and packed as our publisher does, cut to the size
* FIX of which line B packs the same messages into other datagrams

The bar: FIX reaches 70 % of the binary feed's packets a second, the goal is 90 %.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fixcast_load import book_updates
from feedhandler.codecs import load_feed
from feedhandler.counters import ChannelCounter, LineCounter
from feedhandler.fixcast.datagrams import Packer
from feedhandler.fixcast.messages import Header
from feedhandler.ingest.lines import ChannelPlan, Line
from feedhandler.ingest.receiver import Receiver
from feedhandler.ingest.ring import Ring
from feedhandler.ingest.settings import ArbitrationSettings

GROUPS = ("239.192.80.1", "239.192.80.2")
SERVICE = 104
DATAGRAMS = 10_000
ROUNDS = 7
#: Bytes of a datagram: as many as a publisher packs, and the source paper's mean packet.
SIZES = (1400, 336)
BAR, GOAL = 0.70, 0.90
#: Room for all datagrams of a line, with what the kernel adds to each; without privilege it grants
#: less, and fewer are sent.
BUFFER_BYTES = 64 << 20
KERNEL_BYTES = 4096
CPU = 0
#: A round that takes longer hangs.
SECONDS_MAX = 20.0
SMOKE: dict[str, object] = {"DATAGRAMS": 500, "ROUNDS": 1}


@dataclass(frozen=True)
class Traffic:
    """Datagrams sent on both lines of a feed, with messages or packets numbered from 1 on."""

    feed: str
    lines: tuple[Sequence[bytes], Sequence[bytes]]
    messages: int


def binary(size: int, count: int) -> Traffic:
    """Return UTP-MD packets of this size."""
    feed = load_feed("euronext-utp-md")
    order = feed.encode_message(230, symbol_index=10_000, price=100, price_scale_code=2)
    many, rest = divmod(size - feed.table.header_size, len(order))
    messages = [order] * many
    if 0 < rest < 4:
        messages, rest = messages[1:], rest + len(order)
    if rest:
        # Its length leaves out its own two bytes; a type that no description knows.
        messages.append((rest - 2).to_bytes(2, "big") + (999).to_bytes(2, "big") + bytes(rest - 4))
    packets = [
        feed.encode_packet(sequence=number, service=SERVICE, messages=messages)
        for number in range(1, count + 1)
    ]
    assert {len(packet) for packet in packets} == {size}
    return Traffic("euronext-utp-md", (packets, packets), count * len(messages))


def fix(size: int, count: int, *, alike: bool = True) -> Traffic:
    """Return FIX datagrams of at most this size; `alike`: the same on both lines."""
    stamper = Header(sender=b"PUB", target=b"c").stamper(1_764_000_000_000_000_000)
    given = [each for each in book_updates(10_000, seed=1) if len(each) < size - 60]
    lines: tuple[list[bytes], list[bytes]] = ([], [])
    packers = [Packer(1, size), Packer(1, size)]
    number = 0
    while len(lines[0]) < count:
        message = stamper.stamped(given[number % len(given)], number + 1)
        assert message is not None
        number += 1
        for line, packer in zip(lines, packers, strict=True):
            line += packer.add(message, 0)
        if number == 1 and not alike:
            lines[1].extend(packers[1].flush())
    for line, packer in zip(lines, packers, strict=True):
        line += packer.flush()
    return Traffic("fix-marketdata", (lines[0], lines[0] if alike else lines[1]), number)


@contextlib.contextmanager
def _filled(traffic: Traffic) -> Iterator[tuple[Receiver, Ring]]:
    """Yield a receiver whose sockets hold all of the traffic."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        lines = tuple(
            Line(name, group, port, "127.0.0.1") for name, group in zip("AB", GROUPS, strict=True)
        )
        feed, ring = load_feed(traffic.feed), Ring()
        receiver = Receiver(
            feed.table, 1, [ChannelPlan(SERVICE, lines)], ring, cpu=CPU,
            settings=ArbitrationSettings(silent_us=60_000_000),
            receive_buffer_bytes=BUFFER_BYTES,
        )  # fmt: skip
        try:
            # In turns, as the lines are read in turns, so that no copy is far from the other.
            for datagrams in zip(*traffic.lines, strict=False):
                for group, datagram in zip(GROUPS, datagrams, strict=True):
                    sock.sendto(datagram, (group, port))
            for line, group in zip(traffic.lines, GROUPS, strict=True):
                for datagram in line[min(map(len, traffic.lines)) :]:
                    sock.sendto(datagram, (group, port))
            yield receiver, ring
        finally:
            receiver.stop()


def _drained_ns(traffic: Traffic) -> tuple[int, list[str]]:
    """Return the receive thread's processor time for all of it, and what is wrong in the output."""
    total = sum(map(len, traffic.lines))
    with _filled(traffic) as (receiver, ring):
        receiver.start()
        (thread,) = (each for each in threading.enumerate() if each.name == "receiver")
        end = time.monotonic() + SECONDS_MAX
        while (
            int(receiver.line_counters[:, LineCounter.PACKETS].sum()) < total
            or ring.published != ring.tail
        ) and time.monotonic() < end:
            ring.release(ring.published)
            time.sleep(0.0005)
        spent = int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])
    channel = receiver.channel_counters[0]
    problems = [] if receiver.error is None else [f"the receive thread ended: {receiver.error}"]
    for counter, wanted in (
        (LineCounter.PACKETS, total),
        (LineCounter.KERNEL_DROPS, 0),
        (LineCounter.MISMATCHES, 0),
    ):
        got = int(receiver.line_counters[:, counter].sum())
        if got != wanted:
            problems.append(f"{traffic.feed}: {got} {counter.name.lower()}, not {wanted}")
    if int(channel[ChannelCounter.MESSAGES]) != traffic.messages:
        problems.append(
            f"{traffic.feed}: {channel[ChannelCounter.MESSAGES]} messages, not {traffic.messages}"
        )
    return spent, problems


def measure(size: int, rounds: int) -> tuple[dict[str, Any], list[str]]:
    """Return ns of processor time a datagram of this size, of each kind of traffic, in turns."""
    count = DATAGRAMS
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with contextlib.suppress(PermissionError):
            probe.setsockopt(socket.SOL_SOCKET, 33, BUFFER_BYTES)  # SO_RCVBUFFORCE
        granted = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        count = min(count, granted // KERNEL_BYTES)
    kinds = {
        "binary": binary(size, count),
        "fix": fix(size, count),
        "fix_packed_otherwise": fix(size, count, alike=False),
    }
    best: dict[str, float] = {}
    problems: list[str] = []
    for _ in range(rounds):
        for name, traffic in kinds.items():
            spent, found = _drained_ns(traffic)
            problems += found
            each = spent / sum(map(len, traffic.lines))
            best[name] = min(best.get(name, float("inf")), each)
    figures: dict[str, Any] = {f"{name}_ns": round(each, 1) for name, each in best.items()}
    figures["fix_messages"] = round(kinds["fix"].messages / len(kinds["fix"].lines[0]), 2)
    figures["of_binary"] = round(best["binary"] / best["fix"], 3)
    figures["packed_otherwise_of_binary"] = round(best["binary"] / best["fix_packed_otherwise"], 3)
    return figures, problems


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both sizes, printing as it goes."""
    found: dict[str, Any] = {"problems": [], "bar": BAR, "goal_bar": GOAL}
    for size in SIZES:
        figures, problems = measure(size, 2 if quick else ROUNDS)
        found[f"of_{size}_bytes"] = figures
        found["problems"] += problems
        print(
            f"  {size} bytes: {figures['of_binary']:.0%} of the binary feed's packets/s"
            f" ({figures['fix_ns']:.0f} and {figures['binary_ns']:.0f} ns a datagram,"
            f" {figures['fix_messages']} messages in each); lines packed otherwise"
            f" {figures['packed_otherwise_of_binary']:.0%} (bar {BAR:.0%})",
            flush=True,
        )
    found["bar_met"] = all(found[f"of_{size}_bytes"]["of_binary"] >= BAR for size in SIZES)
    return found
