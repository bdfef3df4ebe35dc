"""The overlay beside Aeron's multi-destination-cast: the same messages to as many receivers.

Three ways in one run, in turns at each rate, all on loopback of this machine:

* `unicast`: the overlay's sender sends to each receiver.
* `tree`: it sends to proxies, which send to the receivers (depth 2, no hedging).
* `aeron`: a publication with control-mode=manual and a destination a receiver, and a subscription a
  receiver. Publisher and receivers are a process each, each with an embedded media driver that runs
  on one thread (ThreadingMode.SHARED) and idles as it does by default.

Compared are, as ratios of ours to Aeron's:

* `sends_a_processor_second`: messages, times receivers, over the processor time of the sending
  side: the sender with its proxies, the publisher with its driver; and the kernel's work for them.
* `latency_p50_us`, `latency_p99_us`: from just before a program hands a message over until the
  receiving program has it. On both sides one thread serves all receivers in turns.

Not compared: what either adds. Aeron repairs loss and paces itself by its receivers, the overlay
does not; the overlay seals each message, which Aeron does not, and is used without hedging and
deadlines here. Aeron's driver polls, so its figures depend on how it idles: drivers in C, on
processors of their own that spin, are what its users take where latency counts, and a small machine
has none to spare. Aeron may put several messages into a datagram. Our receivers are Python's,
Aeron's Java's: what they take is reported (`receiving_processors`), and in the latencies. A tree's
proxies share this machine's processors, so its latency means little.

Aeron (Apache License 2.0) is fetched by Maven, once, as `tests.interop.install` does; without Java,
without what Maven brings, and without Maven the bench is skipped, and says why.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy

from bench.processes import memory_folder
from feedhandler.overlay.members import Proxy, Receiver, Sender
from feedhandler.overlay.release import Deliver, Event
from feedhandler.overlay.running import BUFFER_BYTES, Loop
from feedhandler.overlay.topology import Member, Topology, make_topology
from feedhandler.overlay.tree import Shape, fan_out_of
from tests.interop.install import install_java, java_classes

RECEIVERS = 10
#: Messages a second. All receivers of ours are one thread of Python, which 50,000 messages a second
#: keep busy.
RATES = (1_000, 2_000)
#: A turn's; the first of each way is not counted: Java compiles meanwhile.
SECONDS = 2.0
ROUNDS = 5
BYTES = 200
SMOKE: dict[str, object] = {"RECEIVERS": 3, "RATES": (200,), "SECONDS": 0.1, "ROUNDS": 1}
#: So long after the last was sent is waited for what has not come.
LINGER_NS = 2_000_000_000
PATIENCE_S = 30.0
#: What members do by time is late by so much at most.
TICK_S = 0.02
FORK = multiprocessing.get_context("fork")
JAVA = (
    "-Xmx256m", "-XX:+UseSerialGC", "-Xshare:auto",
    "--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED",
)  # fmt: skip
WAYS = ("unicast", "tree")
COMPARED = ("sends_a_processor_second", "latency_p50_us", "latency_p99_us")


class Absent(Exception):
    """Error that says what is missing on this machine, with the remedy."""


class Way(Protocol):
    """A sender and receivers that run. `sending`, `receiving`: their processes."""

    sending: list[int]
    receiving: list[int]

    def turn(self, messages: int, rate: float) -> numpy.ndarray:
        """Send so many; how long each took to each receiver that had it, ns."""


def _processor_ns(pids: Sequence[int]) -> int:
    """Return the processor time of these processes so far, with that of their ended threads."""
    # As clock_getcpuclockid(3) makes a clock's number.
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids)


# -- the overlay ------------------------------------------------------------------------------


def _paced(loop: Loop, member: Sender, messages: int, rate: float) -> None:
    """Send at a rate; what comes meanwhile is taken."""
    payload, began_ns = bytes(BYTES), time.monotonic_ns()
    for n in range(messages):
        due_ns = began_ns + int(n * 1e9 / rate)
        while (early_ns := due_ns - time.monotonic_ns()) > 0:
            loop.turn(early_ns)
        loop.send(member.send(payload, time.time_ns()))


def _send(topology: Topology, sock: socket.socket, orders: Any) -> None:
    """Run the sender; `orders` says how many messages to send, and at which rate."""
    member, parent = Sender(topology, time.time_ns(), held=False), os.getppid()
    loop = Loop(member, sock)
    while os.getppid() == parent:
        if orders.poll():
            _paced(loop, member, *orders.recv())
            orders.send("sent")
        loop.turn(int(TICK_S * 1e9))


def _forward(topology: Topology, sock: socket.socket, name: str) -> None:
    """Run a proxy."""
    parent = os.getppid()
    Loop(Proxy(topology, name, time.time_ns()), sock).run(lambda: os.getppid() != parent)


def _receive(
    topology: Topology, members: Sequence[Member], socks: Sequence[socket.socket], orders: Any
) -> None:
    """Run all receivers. `orders` says how many messages to expect, and 0 after the last one:
    answered with each one's latency, once all have come or `LINGER_NS` later."""
    took: list[int] = []
    wanted = until_ns = 0
    tick, parent = time.monotonic(), os.getppid()

    def output(events: Sequence[Event], now_ns: int) -> None:
        took.extend(now_ns - each.sent_ns for each in events if isinstance(each, Deliver))

    loops = {}
    poll = select.epoll()
    poll.register(orders.fileno(), select.EPOLLIN)
    for member, sock in zip(members, socks, strict=True):
        receiver = Receiver(topology, member.name, time.time_ns())
        loops[sock.fileno()] = Loop(receiver, sock, output)
        poll.register(sock.fileno(), select.EPOLLIN)
    while os.getppid() == parent:
        for number, _ in poll.poll(TICK_S):
            if number in loops:
                loops[number].poll()
            elif messages := orders.recv():
                wanted = messages * len(members)
                took.clear()
                orders.send("ready")
            else:
                until_ns = time.monotonic_ns() + LINGER_NS
        if until_ns and (len(took) >= wanted or time.monotonic_ns() > until_ns):
            orders.send(numpy.array(took, numpy.int64))
            until_ns = 0
        if time.monotonic() - tick > TICK_S:
            tick = time.monotonic()
            for loop in loops.values():
                loop.poll()


@contextlib.contextmanager
def _process(work: Callable[..., None], *given: Any) -> Iterator[int]:
    """Run `work` in a process of its own until the block ends; its number."""

    def run() -> None:
        # Ctrl-C is the parent's, which ends this process.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work(*given)

    process = FORK.Process(target=run, daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join()


def _answer(connection: Any) -> Any:
    if not connection.poll(PATIENCE_S):
        raise TimeoutError(f"a member did not answer within {PATIENCE_S:.0f} s")
    return connection.recv()


class Overlay:
    """The members of a tree, each proxy in a process, all receivers in one."""

    def __init__(self, shape: Shape, stack: contextlib.ExitStack) -> None:
        socks = [self._bound() for _ in range(1 + shape.proxies + shape.receivers)]
        keys = (os.urandom(32) for _ in range(2 + shape.proxies + shape.receivers))
        topology = make_topology(shape, 1, [each.getsockname() for each in socks], keys)
        self._sender, sender = FORK.Pipe()
        self._receivers, receivers = FORK.Pipe()
        below, members = 1 + shape.proxies, topology.members
        self.receiving = [
            stack.enter_context(
                _process(_receive, topology, members[below:], socks[below:], receivers)
            )
        ]
        self.sending = [
            stack.enter_context(_process(_forward, topology, sock, member.name))
            for sock, member in zip(socks[1:below], members[1:below], strict=True)
        ]
        self.sending.append(stack.enter_context(_process(_send, topology, socks[0], sender)))
        for each in socks:
            each.close()

    def _bound(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        sock.bind(("127.0.0.1", 0))
        return sock

    def turn(self, messages: int, rate: float) -> numpy.ndarray:
        """See `Way`."""
        self._receivers.send(messages)
        _answer(self._receivers)
        self._sender.send((messages, rate))
        _answer(self._sender)
        self._receivers.send(0)
        took: numpy.ndarray = _answer(self._receivers)
        return took


# -- Aeron ------------------------------------------------------------------------------------


def _classes() -> str:
    """Return the Java program's class path; fetch and compile what is missing. Raises `Absent`."""
    if shutil.which("java") is None:
        raise Absent("no java; apt install default-jdk-headless")
    found = java_classes("aeron")
    if found is None:
        missing = [tool for tool in ("mvn", "javac") if shutil.which(tool) is None]
        if missing:
            raise Absent(f"Aeron is not installed, and there is no {missing[0]} to fetch it with")
        try:
            install_java("aeron")
        except subprocess.CalledProcessError as error:
            raise Absent(f"Aeron cannot be fetched: {error.cmd[0]} failed") from None
        found = java_classes("aeron")
    return found or ""


class Java:
    """One of the Java program's processes: a line is an order, a line is an answer."""

    def __init__(self, process: "subprocess.Popen[str]", errors: Path) -> None:
        self.pid = process.pid
        self._process, self._errors = process, errors

    def order(self, words: str) -> None:
        """Send an order to the program."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")

    def answer(self, word: str) -> list[str]:
        """Return the words that follow this one in the program's answer.

        Raises `RuntimeError` where it has something else to say, or nothing.
        """
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], PATIENCE_S)
        found = out.readline().split() if ready else []
        if not found or found[0] != word:
            said = self._errors.read_text().strip().splitlines() or ["nothing"]
            raise RuntimeError(f"Aeron's program did not say {word}, but {said[0]}")
        return found[1:]


@contextlib.contextmanager
def _java(classes: str, folder: Path, role: str, *more: str) -> Iterator[Java]:
    """Run one of its roles, with a driver in a folder of `folder`, until the block ends."""
    errors = folder / f"{role}.err"
    words = ["java", *JAVA, "-cp", classes, "Client", role, str(folder / role), *more]
    with (
        errors.open("w") as file,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, bufsize=1
        ) as process,
    ):
        try:
            yield Java(process, errors)
        finally:
            process.kill()


class Aeron:
    """A publisher and its receivers."""

    def __init__(self, classes: str, folder: Path, stack: contextlib.ExitStack) -> None:
        # Both are started before either is waited for.
        receivers = _java(classes, folder, "receive", str(RECEIVERS))
        self._receivers = stack.enter_context(receivers)
        self._publisher = stack.enter_context(_java(classes, folder, "publish"))
        for port in self._receivers.answer("ports"):
            self._publisher.order(f"to {port}")
        self._file = folder / "took"
        self.sending, self.receiving = [self._publisher.pid], [self._receivers.pid]

    def turn(self, messages: int, rate: float) -> numpy.ndarray:
        """See `Way`."""
        self._receivers.order(f"take {messages}")
        self._receivers.answer("ready")
        self._publisher.order(f"send {messages} {rate} {BYTES}")
        self._publisher.answer("sent")
        self._receivers.order(f"end {self._file}")
        self._receivers.answer("had")
        return numpy.fromfile(self._file, "<i8")


# -- the comparison ---------------------------------------------------------------------------


def _measured(way: Way, rate: float) -> dict[str, float]:
    """Return a turn's figures."""
    messages = max(int(rate * SECONDS), 1)
    before = [_processor_ns(each) for each in (way.sending, way.receiving)]
    took = way.turn(messages, rate)
    after = [_processor_ns(each) for each in (way.sending, way.receiving)]
    sending_s, receiving_s = ((b - a) / 1e9 for a, b in zip(before, after, strict=True))
    p50, p99 = numpy.quantile(took, (0.5, 0.99)) / 1e3 if len(took) else (numpy.nan, numpy.nan)
    return {
        "sends_a_processor_second": messages * RECEIVERS / sending_s,
        "sending_processors": sending_s * rate / messages,
        "receiving_processors": receiving_s * rate / messages,
        "latency_p50_us": float(p50),
        "latency_p99_us": float(p99),
        "missing": messages * RECEIVERS - len(took),
    }


def _of(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]], name: str) -> float:
    """Return the median of ours to Aeron's, turn by turn."""
    ratios = [a[name] / b[name] for a, b in zip(ours, theirs, strict=True)]
    return round(float(numpy.median(ratios)), 3)


def _compared(ways: dict[str, Way], rate: float, rounds: int) -> dict[str, Any]:
    """Return figures of all ways at a rate, in turns."""
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(1 + rounds):
        for name, way in ways.items():
            found = _measured(way, rate)
            if number:
                turns[name].append(found)
    figures: dict[str, Any] = {"messages_a_second": rate}
    for name, each in turns.items():
        figures[name] = {
            key: round(float(numpy.median([turn[key] for turn in each])), 3) for key in each[0]
        }
        figures[name]["missing"] = sum(turn["missing"] for turn in each)
    for name in WAYS:
        figures[f"{name}_of_aeron"] = {
            figure: _of(turns[name], turns["aeron"], figure) for figure in COMPARED
        }
        print(f"  {rate:,}/s, {name} of Aeron: {figures[f'{name}_of_aeron']}", flush=True)
    return figures


@contextlib.contextmanager
def _running(classes: str) -> Iterator[dict[str, Way]]:
    """Run all ways, until the block ends."""
    with contextlib.ExitStack() as stack:
        # The last that is given back: what a driver that is killed leaves goes, too.
        made = tempfile.TemporaryDirectory(prefix="bench-aeron-", dir=memory_folder())
        folder = Path(stack.enter_context(made))
        unicast = Shape(RECEIVERS, 1, 1)
        tree = Shape(RECEIVERS, 2, fan_out_of(RECEIVERS, 2))
        yield {
            "unicast": Overlay(unicast, stack),
            "tree": Overlay(tree, stack),
            "aeron": Aeron(classes, folder, stack),
        }


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all rates; quick: two rounds."""
    try:
        classes = _classes()
    except Absent as reason:
        print(f"  skipped: {reason}", flush=True)
        return {"problems": [], "skipped": str(reason)}
    with _running(classes) as ways:
        rates = [_compared(ways, rate, min(ROUNDS, 2) if quick else ROUNDS) for rate in RATES]
    # Some that are missing are a figure, on a machine that may be busy; a way that does not work is
    # a fault.
    dead = [
        f"{name} at {each['messages_a_second']:,} a second: nothing came"
        for each in rates
        for name in ways
        if numpy.isnan(each[name]["latency_p50_us"])
    ]
    return {"receivers": RECEIVERS, "bytes": BYTES, "rates": rates, "problems": dead}


def main() -> None:
    """Run as `run` does, with other receivers and rates."""
    global RECEIVERS, RATES, BYTES
    parser = argparse.ArgumentParser(prog="python -m bench.bench_overlay_aeron")
    parser.add_argument("--receivers", type=int, default=RECEIVERS)
    parser.add_argument("--rate", type=int, nargs="+", default=RATES, help="messages a second")
    parser.add_argument("--bytes", type=int, default=BYTES, help="of a message, 8 at least")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    given = parser.parse_args()
    RECEIVERS, RATES, BYTES = given.receivers, tuple(given.rate), given.bytes
    print(json.dumps(run(given.quick), indent=2))


if __name__ == "__main__":
    main()
