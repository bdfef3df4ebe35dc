"""`feedhandler overlay send`, `proxy` and `receive`: the members of a tree."""

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedhandler.codecs.errors import ConfigError, FeedhandlerError, UsageError, reason_of
from feedhandler.overlay.fairness import HoldController
from feedhandler.overlay.members import Proxy, Receiver, Sender
from feedhandler.overlay.merging import MergedReceiver, MergedSender, receiver_of, sender_of
from feedhandler.overlay.readings import parts_of
from feedhandler.overlay.release import Deliver, Event, Gap
from feedhandler.overlay.running import SWITCH_SECONDS, AnyMember, Loop, opened, pin
from feedhandler.overlay.topology import Member
from feedhandler.overlay.topology_file import (
    address_of,
    check_host,
    ipv4_address_of,
    read_topology,
    read_trees,
)
from feedhandler.overlay.wire import PAYLOAD_MAX
from feedhandler.terminal.console import (
    ExitCode,
    complain,
    interrupt,
    print_json,
    reading,
    signal_handlers,
)

#: A sender with a rate catches up with this much delay.
CATCH_UP_NS = 100_000_000
#: Upper limit on a line that is read; those beyond `PAYLOAD_MAX` are passed over.
LINE_BYTES_MAX = 1 << 20


class Signals:
    """Signal handlers of a member: SIGINT and SIGTERM end it, SIGHUP reloads its topologies."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.stopped = False
        self._paths = paths
        self._again = False
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGHUP, self._reload)

    def _stop(self, *_: Any) -> None:
        self.stopped = True

    def _reload(self, *_: Any) -> None:
        self._again = True

    def over(self, member: AnyMember) -> bool:
        """Return whether the member is to end; reload topologies first where that was asked.

        A topology that cannot be read, or that does not fit, is reported, and the old one stays.
        """
        if self._again:
            self._again = False
            for path in self._paths:
                try:
                    reason = member.change(read_topology(path))
                except FeedhandlerError as error:
                    reason = str(error)
                if reason:
                    which = "the topology" if len(self._paths) == 1 else path
                    complain(f"{which} stays as it was: {reason}")
        return self.stopped


@dataclass(frozen=True, slots=True)
class Running:
    """Settings of a member. `topologies`: one, or those of several trees that are merged."""

    topologies: Sequence[Path]
    name: str
    slots: int
    follows_clock: bool
    processor: int | None
    busy: bool
    as_json: bool
    metrics: str = ""
    control: str = ""


@contextlib.contextmanager
def _observed(running: Running, me: Member, loop: Loop) -> Iterator[None]:
    """Serve metrics and the control socket, where asked for, and print the member's address."""
    with contextlib.ExitStack() as stack:
        if running.metrics or running.control:
            from feedhandler.overlay.observing import MemberWatch

            sys.setswitchinterval(SWITCH_SECONDS)
            watch = MemberWatch(me, loop)
            stack.enter_context(watch.serving(running.metrics, running.control))
        complain(f"{me.name} is at {me.address[0]}:{me.address[1]}")
        yield


def proxy(running: Running) -> int:
    """Run a proxy until it is stopped."""
    topology = read_topology(running.topologies[0])
    me = topology.member(running.name)
    if me.role != "proxy":
        raise UsageError(f"{me.name} is a {me.role}", "name a proxy, such as proxy-0-0")
    pin(running.processor)
    signals = Signals(running.topologies)
    member = Proxy(topology, me.name, time.time_ns(), running.slots, running.follows_clock)
    with opened(member, me, busy=running.busy) as loop, _observed(running, me, loop):
        loop.run(lambda: signals.over(member))
        _report(member, loop, running.as_json)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class Receiving:
    """A receiver's settings.

    `to`, `echo`: addresses or ""; `extra_hold_us` None: by the last hops of all receivers; `count`
    0: without an end.
    """

    to: str
    echo: str
    gap_wait_us: int
    extra_hold_us: int | None
    count: int


def receive(running: Running, receiving: Receiving) -> int:
    """Run a receiver until it is stopped, or has had `count` messages."""
    topologies = read_trees(running.topologies)
    me = topologies[0].member(running.name)
    if me.role != "receiver":
        raise UsageError(f"{me.name} is a {me.role}", "name a receiver, such as receiver-0")
    extra = receiving.extra_hold_us
    echo = ipv4_address_of(receiving.echo) if receiving.echo else None
    pin(running.processor)
    signals = Signals(running.topologies)
    member = receiver_of(
        topologies, me.name, time.time_ns(), slots=running.slots,
        follows_clock=running.follows_clock, gap_wait_ns=receiving.gap_wait_us * 1_000,
        extra_hold_ns=None if extra is None else extra * 1_000, echo=echo,
    )  # fmt: skip
    count, counts = receiving.count, parts_of(member)[0].counts
    with _relay(receiving.to) as relayed:

        def output(events: Sequence[Event], now_ns: int) -> None:
            for event in events:
                if isinstance(event, Deliver) and relayed is not None:
                    try:
                        relayed.send(event.payload)
                    except OSError:  # no socket there, or its buffer is full: lost as in a network
                        counts["unrelayed"] += 1
                if running.as_json:
                    print_json(_event(event, member.senders_time(now_ns)))
            sys.stdout.flush()  # a reader wants it now

        with opened(member, me, output, running.busy) as loop, _observed(running, me, loop):
            loop.run(lambda: signals.over(member) or 0 < count <= member.holding.delivered)
            _report(member, loop, running.as_json)
    return ExitCode.FOUND if member.holding.missing else ExitCode.OK


def _event(event: Event, released_ns: int) -> dict[str, Any]:
    if isinstance(event, Deliver):
        return {
            "event": "message", "epoch": event.epoch, "id": event.id, "sent_ns": event.sent_ns,
            "deadline_ns": event.deadline_ns, "arrived_ns": event.arrived_ns,
            "released_ns": released_ns, "late": event.late, "payload": event.payload.hex(),
        }  # fmt: skip
    if isinstance(event, Gap):
        return {"event": "gap", "epoch": event.epoch, "first": event.first, "last": event.last}
    return {"event": "restart", "epoch": event.epoch}


@contextlib.contextmanager
def _relay(to: str) -> Iterator[socket.socket | None]:
    """Yield a socket that sends to an address, a group on loopback included; None for ""."""
    if not to:
        yield None
        return
    host, port = address_of(to)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            if socket.inet_aton(host)[0] >> 4 == 14:
                here = socket.inet_aton("127.0.0.1")
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
            sock.connect((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot send to {to}: {reason_of(error)}", "give host:port"
            ) from None
        yield sock


@dataclass(frozen=True, slots=True)
class Sending:
    """A sender's source of messages, and how it sends them."""

    messages: Path | None
    source: str
    interface: str
    rate: float
    hold: bool
    fair: float
    rotate: bool


def send(running: Running, sending: Sending) -> int:
    """Run the sender: lines of a file, or the datagrams of an address."""
    if (sending.messages is None) == (not sending.source):
        raise UsageError(
            "a sender has one source of messages", "name a file, -, or --from HOST:PORT"
        )
    topologies = read_trees(running.topologies)
    me = topologies[0].members[0]
    pin(running.processor)
    signals = Signals(running.topologies)
    member = sender_of(
        topologies, time.time_ns(), held=sending.hold, rotate=sending.rotate,
        controller=lambda: HoldController(sending.fair) if sending.fair else None,
    )  # fmt: skip
    with (
        _messages(sending, signals) as (file, lines),
        opened(member, me) as loop,
        _observed(running, me, loop),
    ):
        # From now on it says ten times a second at least that it is there.
        loop.send(member.tick(time.time_ns()))
        _send_all(member, loop, file, lines, sending.rate, signals)
        # The end of the stream goes down the tree, twice, for a datagram may be lost.
        for _ in range(2):
            loop.send(member.beat(time.time_ns()))
        _report(member, loop, running.as_json)
    return ExitCode.OK


def _send_all(
    member: Sender | MergedSender, loop: Loop, file: Any, lines: bool, rate: float, signals: Signals
) -> None:
    began_ns, sent, waiting = time.monotonic_ns(), 0, b""
    poller = select.poll()
    poller.register(file, select.POLLIN)
    poller.register(loop.sock, select.POLLIN)
    ended = False
    while not signals.over(member):
        due_ns = began_ns + int(sent * 1e9 / rate) if rate else 0
        early_ns = due_ns - time.monotonic_ns()
        if early_ns > 0:
            loop.turn(min(early_ns, 100_000_000))
            continue
        if lines and (b"\n" in waiting or (ended and waiting)):
            payload, _, waiting = waiting.partition(b"\n")
        elif ended:
            return
        else:
            ready = dict(poller.poll(50))
            loop.poll()
            if file.fileno() not in ready:
                continue
            payload = os.read(file.fileno(), 65_536) if lines else file.recv(65_536)
            if lines:
                ended = not payload
                waiting += payload
                if len(waiting) > LINE_BYTES_MAX and b"\n" not in payload:
                    raise UsageError(f"a line has more than {LINE_BYTES_MAX:,} bytes", "give lines")
                continue
        if rate:  # time without input is not caught up in a burst
            began_ns += max(-early_ns - CATCH_UP_NS, 0)
        try:
            loop.send(member.send(payload, time.time_ns()))
        except ValueError:
            complain(f"a message of {len(payload):,} bytes is not sent: at most {PAYLOAD_MAX:,}")
        sent += 1


@contextlib.contextmanager
def _messages(sending: Sending, signals: Signals) -> Iterator[tuple[Any, bool]]:
    """Yield the file or socket that messages come from, and whether they are lines.

    Raises `KeyboardInterrupt` where a signal comes before the file is open.
    """
    if sending.messages is not None:
        with contextlib.ExitStack() as stack:
            # A named pipe opens once it has a writer: a flag would end nothing until then.
            with signal_handlers(interrupt):
                if signals.stopped:  # just before
                    raise KeyboardInterrupt
                file = stack.enter_context(reading(sending.messages, "a line is a message"))
            yield file, True
        return
    host, port = address_of(sending.source)
    check_host(sending.interface, "--interface takes the local address of one")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            if socket.inet_aton(host)[0] >> 4 == 14:
                joined = struct.pack(
                    "4s4s", socket.inet_aton(host), socket.inet_aton(sending.interface)
                )
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        except OSError as error:
            raise ConfigError(
                f"cannot listen to {sending.source}: {reason_of(error)}",
                "give host:port or group:port",
            ) from None
        yield sock, False


def _report(member: AnyMember, loop: Loop, as_json: bool) -> None:
    """Print the member's counts, at its end."""
    report: dict[str, Any] = {"counts": dict(sorted(member.counts.items()))}
    report |= {"datagrams_sent": loop.port.sent, "datagrams_received": loop.port.received,
             "not_taken": sum(loop.port.errors.values()),
             "kernel_drops": loop.port.kernel_drops}  # fmt: skip
    if isinstance(member, Receiver | MergedReceiver):
        holding = member.holding
        report |= {"delivered": holding.delivered, "late": holding.late, "passed": holding.passed,
                 "missing": holding.missing}  # fmt: skip
        if member.counts["echoes"]:
            last_hop_ns = member.last_hop.own_ns(time.time_ns())
            report |= {"last_hop_us": last_hop_ns / 1e3,
                     "extra_hold_us": holding.extra_hold_ns / 1e3}  # fmt: skip
    parts = [each for each in parts_of(member) if not isinstance(each, Receiver)]
    if apart := {name for part in parts for name in part.reports.apart}:
        report["set_apart"] = sorted(apart)
    if isinstance(member, Sender | MergedSender):
        senders = [part for part in parts if isinstance(part, Sender)]
        report |= {"sent": member.last_id, "hold_us": max(each.hold_ns for each in senders) / 1e3}
        if longest_ns := max(sender.longest_hop_ns for sender in senders):
            report["longest_hop_us"] = longest_ns / 1e3
    if as_json:
        print_json({"event": "end", **report})
        return
    names = report.pop("set_apart", [])
    words = [
        f"{key.replace('_', ' ')} {value:,}" for key, value in report.items() if key != "counts"
    ]
    words += [f"set apart: {', '.join(names)}"] if names else []
    words += [f"{key} {value:,}" for key, value in report["counts"].items()]
    print(", ".join(words))
