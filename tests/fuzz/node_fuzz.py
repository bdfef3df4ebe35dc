"""Mutated frames at the node: it neither crashes nor grows, no exception leaves it, and another
subscriber gets every packet.

Each conversation of `frame_mutator` goes through a pair of sockets into a connection of the node,
with no event loop between: what the loop would call is called, so an exception shows at once. While
that happens the market goes on, and a well-behaved subscriber on the same node must get every
packet in order. A frame counts when it was mutated and the node's engine has taken it from the
bytes, its header found good: what follows the end of a connection does not count.

    python -m tests.fuzz.node_fuzz --count 10000000 --seed 1

prints the seed, the rate, the growth and which conditions the node answered with. The last
conversation stands in the file that `--keep` names, for when the process itself ends.
"""

import gc
import mmap
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedhandler.amqp import proton
from feedhandler.amqp.serving.connection import NodeConnection
from feedhandler.amqp.serving.leftovers import Leftovers
from feedhandler.amqp.serving.login import Admission, Decision, Gate
from feedhandler.amqp.serving.sasl import Credentials
from feedhandler.amqp.users import User, Users
from feedhandler.amqp.work_budget import TURN_UNITS, WorkBudget
from feedhandler.config.amqp import LimitsConfig
from tests.fuzz.command import Command
from tests.fuzz.frame_mutator import Mutator
from tests.support.amqp import decoded
from tests.support.node import NodeRig, Settings
from tests.support.processes import resident_bytes

#: Conversations that are open at a time: they see one another's traffic.
OPEN_CONVERSATIONS = 8
#: Conversations between two packets of the market, and between two looks at time and memory.
CONVERSATIONS_A_PACKET, CONVERSATIONS_A_LOOK = 16, 256
#: The share of a run after which memory must have settled.
WARM_UP = 0.2
#: What the process may grow by after that, whatever the number of frames: its allocator's slack.
GROWTH_BYTES_MAX = 16 << 20
#: What may wait for a link, and what its service remembers: so little that links fall behind, and
#: tags are too old now and then.
QUEUE_BYTES, HISTORY_BYTES = 8_000, 65_536
#: Packets at a look at time, more than `QUEUE_BYTES`.
BURST_PACKETS = 30
#: Bytes of the file that keeps the last conversation.
KEEP_BYTES = 4 << 20
#: What the node, or the engine in it, must have said at least once in so many frames.
CAMPAIGN = 1_000_000
CONDITIONS = (
    "amqp:invalid-field",
    "amqp:not-found",
    "amqp:not-allowed",
    "amqp:not-implemented",
    "amqp:resource-limit-exceeded",
    "amqp:connection:framing-error",
)
#: The node's counters that must have moved, too.
COUNTERS = (
    "logins_refused",
    "resumed",
    "resumed_late",
    "history_sent_bytes",
    "shared_again",
    "links_overrun",
    "dropped",
)
_CONDITION = re.compile(rb"\xa3.(amqp:[a-z: -]+)", re.DOTALL)


class StillLoop:
    """Event loop as a connection needs it; nothing happens in it but what the run does itself."""

    def __init__(self) -> None:
        self.now = 0.0
        self.writers: dict[int, Callable[[], None]] = {}
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def call_later(self, _seconds: float, callback: Callable[..., None], *arguments: Any) -> Any:
        self.soon.append((callback, arguments))

    def turn(self) -> None:
        """Call what is to be called soon, or later."""
        while self.soon:
            due, self.soon = self.soon, []
            for callback, arguments in due:
                callback(*arguments)

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        pass

    def remove_reader(self, fd: int) -> None:
        pass

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        self.writers[fd] = callback

    def remove_writer(self, fd: int) -> None:
        self.writers.pop(fd, None)


class Door(Gate):
    """Anybody, or the user with the right password, which is seen at once."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = LimitsConfig(attaches_per_s=0)
        self.plain_without_tls = True
        self.users = Users([User("user", password="a hash")], anonymous=True)

    def at_once(self, admission: Admission, asked: Credentials) -> Decision | None:
        if asked.mechanism != "PLAIN":
            return super().at_once(admission, asked)
        right = (asked.name, asked.password) == ("user", "right")
        return Decision(User("user") if right else None, "wrong user or password")


class Watcher:
    """A subscriber that does everything right, and checks what it gets."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.connection = run.welcome(ours)
        self.engine = proton.Connection(self.sock.fileno(), server=False, container="watcher")
        self.link = self.engine.receiver("w", "euronext.104?quality=0", settled=True, credit=1000)
        self.received = 0
        self.turn()

    def turn(self) -> None:
        """Exchange bytes until neither has more to say; check what came."""
        for _ in range(6):
            self.engine.flush()
            self.connection.on_readable()
            assert self.engine.turn() >= 0, "the watcher's connection has ended"
        bounds = memoryview(self.link.bounds).cast("q")
        for index in range(self.link.count):
            data = bytes(self.link.arena[bounds[index] : bounds[index + 1]])
            sent = decoded(data)
            assert sent.group_sequence == self.received, "a message is missing"
            assert sent.sequence == self.received + 1
            assert sent.body == self.run.expected.pop(0)
            self.received += 1
            self.link.flow(1)
        self.link.clear()


@dataclass
class Outcome:
    """Result of a run."""

    frames: int = 0
    taken: int = 0
    conversations: int = 0
    conditions: Counter[str] = field(default_factory=Counter)
    resident_bytes: list[int] = field(default_factory=list)
    grown_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """Conditions that never came, counters that never moved."""
        found = [name for name in CONDITIONS if not self.conditions[name]]
        return found + [name for name in COUNTERS if not self.counts.get(name)]

    def report(self) -> str:
        said = ", ".join(f"{name} {count:,}" for name, count in self.conditions.most_common())
        return (
            f"{self.frames:,} mutated frames of {self.taken:,} taken in {self.conversations:,} "
            f"conversations, {self.grown_bytes / 2**20:.1f} MiB grown: {said}; "
            + ", ".join(f"{name} {self.counts.get(name, 0):,}" for name in COUNTERS)
        )


class Run:
    """A node, its watcher, and what is fed to it."""

    def __init__(self, seed: int, keep: Path | None = None) -> None:
        settings = Settings(max_links=30, idle_timeout_ms=60_000, queue_bytes=QUEUE_BYTES)
        self.rig = NodeRig(settings, history_bytes=HISTORY_BYTES)
        self.node = self.rig.node
        self.node.gate = Door()
        self.node.fault = self._on_fault  # type: ignore[method-assign]
        self.strangers = 0
        self.loop = StillLoop()
        self.node.loop = self.loop  # type: ignore[assignment]
        self.node.budget = WorkBudget(self.loop.call_soon, TURN_UNITS)
        self.node.leftovers = Leftovers(self.node.budget)
        self.mutator = Mutator(seed)
        self.outcome = Outcome()
        self.expected: list[bytes] = []
        self.keep = None
        if keep is not None:
            keep.write_bytes(bytes(KEEP_BYTES))
            with keep.open("r+b") as file:
                self.keep = mmap.mmap(file.fileno(), KEEP_BYTES)
        self.open: list[tuple[socket.socket, NodeConnection, list[bool]]] = []
        self.sequence = 0
        self.watcher = Watcher(self)

    def welcome(self, sock: socket.socket, encrypted: bool = False) -> NodeConnection:
        """Give the node one end of a pair, as if it had accepted it; each from another address,
        for the node does not hear addresses that have failed too often."""
        sock.setblocking(False)
        self.strangers += 1
        before = set(self.node.connections)
        self.node._on_client(sock, f"stranger {self.strangers}", 1, encrypted)
        (made,) = self.node.connections - before
        return made

    def _on_fault(self, peer: str, error: Exception) -> None:
        """The node would end the connection and go on, and the fault would not be seen."""
        raise AssertionError(f"{peer}: the node failed in handling it") from error

    def conversation(self) -> None:
        """Say one conversation; end the oldest one that is still open."""
        parts = self.mutator.conversation()
        data = b"".join(part.data for part in parts)
        if self.keep is not None:
            self.keep[: len(data) + 4] = len(data).to_bytes(4, "big") + data
        theirs, ours = socket.socketpair()
        theirs.setblocking(False)
        connection = self.welcome(ours)
        mutated = [
            part.mutated
            for part in parts
            if not part.data.startswith(b"AMQP") and part.data[5:6] != b"\1"
        ]
        begun = self.mutator.words_before(parts)
        for some in (parts[:begun], parts[begun:]):
            try:
                theirs.send(b"".join(part.data for part in some))
            except OSError:  # the node has closed, or reads no more
                break
            if not connection.gone:
                connection.on_readable()
            self.loop.turn()
        self.open.append((theirs, connection, mutated))
        if len(self.open) > OPEN_CONVERSATIONS:
            self.finish(*self.open.pop(0))

    def finish(
        self, theirs: socket.socket, connection: NodeConnection, mutated: list[bool]
    ) -> None:
        """Hear what the node said, close the client's end, and count what the node has taken."""
        taken = connection.engine.frames_received
        self.outcome.taken += taken
        self.outcome.frames += sum(mutated[:taken])
        self.outcome.conversations += 1
        heard = b""
        try:
            while more := theirs.recv(1 << 18):
                heard += more
        except OSError:
            pass
        for name in _CONDITION.findall(heard):
            self.outcome.conditions[name.decode()] += 1
        theirs.close()
        if not connection.gone:
            connection.on_readable()
            if not connection.gone:  # what waits for the time that leavers are given
                connection.end()

    def part(self) -> None:
        """Those who still talk leave."""
        while self.open:
            self.finish(*self.open.pop(0))

    def market(self, packets: int = 1) -> None:
        """More packets for everybody; the watcher must get them."""
        first, self.sequence = self.sequence + 1, self.sequence + packets
        self.mutator.sequence = self.sequence
        self.expected += self.rig.packets(first, self.sequence)
        self.rig.ring.publish()
        while self.node.pump():
            pass
        for callback in list(self.loop.writers.values()):
            callback()
        self.loop.turn()
        self.watcher.turn()
        assert not self.expected, "the watcher has not got its packet"

    def look(self) -> None:
        """Time passes, the market is in a hurry, and memory is measured."""
        self.loop.now += 1.0
        self.market(BURST_PACKETS)
        for connection in list(self.node.connections):
            connection.engine.tick(int(self.loop.now * 1000))
            connection.work()
        self.watcher.turn()
        self.outcome.resident_bytes.append(resident_bytes())

    def frames(self, count: int, progress: bool = False) -> Outcome:
        """Feed so many mutated frames. Raises what the node raises, or `AssertionError`."""
        outcome, began, reported = self.outcome, time.monotonic(), 0
        settled = 0
        while outcome.frames < count:
            self.conversation()
            if outcome.conversations % CONVERSATIONS_A_PACKET == 0:
                self.market()
            if outcome.conversations % CONVERSATIONS_A_LOOK == 0:
                self.look()
                if not settled and outcome.frames > WARM_UP * count:
                    gc.collect()
                    settled = resident_bytes()
            if progress and outcome.frames - reported > 500_000:
                reported = outcome.frames
                rate = reported / (time.monotonic() - began)
                print(
                    f"{reported:,} frames, {rate:,.0f}/s, {resident_bytes() >> 20} MiB", flush=True
                )
        self.part()
        self.market()
        gc.collect()
        outcome.grown_bytes = resident_bytes() - settled if settled else 0
        assert self.node.connections == {self.watcher.connection}, "a connection was forgotten"
        assert self.node.links == 1, "a link was forgotten"
        assert len(self.node.fanout.sender_queues) == 1
        outcome.counts = self.node.counters()
        return outcome


def problems(outcome: Outcome, count: int) -> list[str]:
    """Return the broken promises, a line each: memory that grew, conditions never reached."""
    found = []
    if outcome.grown_bytes > GROWTH_BYTES_MAX:
        found.append(f"memory grew by {outcome.grown_bytes:,} bytes")
    if count >= CAMPAIGN and outcome.missing:
        found.append(f"never reached: {', '.join(outcome.missing)}")
    return found


if __name__ == "__main__":
    command = Command(
        "node_fuzz", "frames", lambda n, seed, keep: Run(seed, keep).frames(n, progress=True),
        problems, keeps=True,
    )  # fmt: skip
    sys.exit(command.main())
