"""A hostile broker at the publisher: it neither crashes nor grows, no exception leaves it, and its
window stays true.

Each conversation of `hostile_broker` goes through a pair of sockets into a `Publisher`, with no
event loop between: what the loop would call is called, so an exception shows at once. Meanwhile the
market goes on. After each read the window must hold up: what left it was accepted by the broker or
counted as abandoned; what is in it is on its way, waits for its next try, or is to be sent again,
and after a connection everything is, in order. At the end an honest broker must get all of it. A
frame counts when it was mutated and the engine has taken it.

    python -m tests.fuzz.publisher_fuzz --count 1000000 --seed 1

prints the seed, the rate, the growth and what the messages met. The last conversation stands in the
file that `--keep` names, for when the process itself ends.
"""

import asyncio
import gc
import mmap
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedhandler.amqp.publishing import publisher as publishing
from feedhandler.amqp.publishing.publisher import Publisher, State
from feedhandler.config.publishing import PublishConfig
from tests.fuzz.command import Command
from tests.fuzz.hostile_broker import Hearing, Script
from tests.fuzz.node_fuzz import GROWTH_BYTES_MAX, KEEP_BYTES, WARM_UP, StillLoop, resident_bytes
from tests.support.amqp import Rig, order, packet

#: Shares in which a conversation is said, with the market and the clock between.
SHARES = 4
#: New packets before each share; fewer than are confirmed on average.
PACKETS = 4
#: Unconfirmed messages at most: few, so that the window is full now and then.
WINDOW = 40
QUEUE_BYTES = 65_536
#: How long a message that came back waits: so short that many are tried again and given up.
RETRY_US = 1
#: Conversations between two looks at memory, and packets then: more than may wait.
CONVERSATIONS_A_LOOK, BURST_PACKETS = 128, 500
#: What every packet holds: messages differ by their tags.
PACKET = packet(1, [order(1000)])
#: Turns in which an honest broker must have got everything.
HONEST_TURNS = 1000


class Future:
    """Stand-in for a future, with only what the publisher needs."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def done(self) -> bool:
        return self.reason is not None

    def set_result(self, reason: str) -> None:
        self.reason = reason


class Loop(StillLoop):
    """A loop in which nothing gathers; `theirs` is the broker's end of the connection."""

    theirs: socket.socket

    async def connected(self) -> socket.socket:
        """Connect to the broker, in no time."""
        ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        ours.setblocking(False)
        return ours

    def call_later(self, _seconds: float, _callback: Callable[[], None]) -> asyncio.TimerHandle:
        raise AssertionError("batches do not gather here")


def at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run what waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


@dataclass
class Found:
    """Result of a run."""

    frames: int = 0
    taken: int = 0
    conversations: int = 0
    up: int = 0
    grown_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """What never happened to a message."""
        return [name for name, count in self.counts.items() if not count]

    def report(self) -> str:
        met = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        return (
            f"{self.frames:,} mutated frames of {self.taken:,} taken in {self.conversations:,} "
            f"conversations ({self.up:,} with a link), {self.grown_bytes / 2**20:.1f} MiB grown: "
            f"{met}; {len(self.reasons)} reasons"
        )


class Run:
    """A publisher, the market before it and the broker behind it."""

    def __init__(self, seed: int, keep: Path | None = None) -> None:
        publishing.RETRY_US = publishing.RETRY_MOST_US = RETRY_US
        self.rig = Rig()
        config = PublishConfig(
            name="firm",
            to="amqp://127.0.0.1",
            exchange="x",
            require_route=False,
            quality=False,
            window=WINDOW,
            queue_bytes=QUEUE_BYTES,
            batch_max_us=0,
        )
        self.publisher = Publisher(
            config, self.rig.fanout, self.rig.feed.type_code, "gateway", self.report
        )
        self.reported = 0
        self.loop = Loop()
        self.publisher._loop = self.loop  # type: ignore[assignment]
        self.publisher._open_socket = self.loop.connected  # type: ignore[method-assign]
        self.destination = self.publisher.destination
        self.rig.fanout.add(self.destination)
        self.script = Script(seed, "gateway/firm")
        self.found = Found()
        self.sequence = 0
        self.keep = None
        if keep is not None:
            keep.write_bytes(bytes(KEEP_BYTES))
            with keep.open("r+b") as file:
                self.keep = mmap.mmap(file.fileno(), KEEP_BYTES)

    def report(self, text: str) -> None:
        assert "\n" not in text
        self.reported += 1

    # -- the publisher's turns --------------------------------------------------------------

    def connect(self) -> Hearing:
        """A new connection, as `Publisher._serve_once` begins one."""
        publisher = self.publisher
        publisher._ended = Future()  # type: ignore[assignment]
        publisher._moved.clear()
        publisher.state = State.CONNECTING
        at_once(publisher._connect())
        return Hearing()

    def hear(self, hearing: Hearing) -> None:
        """Take what the publisher wrote, which may let it write more."""
        while True:
            try:
                data = self.loop.theirs.recv(1 << 18)
            except OSError:
                return
            if not data:
                return
            hearing.hear(data)
            for callback in list(self.loop.writers.values()):
                callback()

    def say(self, hearing: Hearing, data: bytes) -> bool:
        """Let the publisher read this; whether the connection goes on."""
        publisher, destination = self.publisher, self.destination
        before, abandoned = set(destination.unsettled.held), destination.abandoned
        may_go = hearing.accepted(data)
        try:
            self.loop.theirs.sendall(data)
        except OSError:
            return False
        publisher._on_readable()
        gone = before - set(destination.unsettled.held) - may_go
        assert len(gone) <= destination.abandoned - abandoned, f"forgotten: {sorted(gone)}"
        if publisher._moved.is_set() and not self.over:
            at_once(publisher._next_step())
        self.check()
        if not self.over:
            publisher.tick(int(time.monotonic() * 1000))
            self.check()
            self.hear(hearing)
        return not self.over

    @property
    def over(self) -> bool:
        """Whether this connection has ended."""
        assert self.publisher._ended is not None
        return self.publisher._ended.done()

    def disconnect(self) -> None:
        """As `Publisher._run` does after a connection."""
        publisher = self.publisher
        engine = publisher.engine
        assert engine is not None
        assert publisher._ended is not None
        if not self.over:
            self.loop.theirs.close()
            publisher._on_readable()
            assert self.over, "a broker that has gone goes unnoticed"
        self.found.reasons[publisher._ended.reason.partition(":")[0]] += 1  # type: ignore[attr-defined]
        self.found.up += publisher.state is State.UP
        publisher._disconnect()
        unsettled = self.destination.unsettled
        assert list(unsettled.again) == list(unsettled.held), (
            "all that is unconfirmed is sent again"
        )
        self.check()
        self.loop.theirs.close()

    def check(self) -> None:
        """The window's books."""
        destination, unsettled = self.destination, self.destination.unsettled
        held = unsettled.held
        assert unsettled.bytes == sum(len(outgoing.data) for outgoing in held.values())
        assert len(held) <= WINDOW
        assert unsettled.bytes + destination.queued_bytes <= QUEUE_BYTES
        assert destination.sent == unsettled.confirmed + destination.abandoned + len(held)
        if not self.over and self.publisher.state is State.UP:
            waiting = {number for _, number in unsettled.waiting} | set(unsettled.again)
            on_its_way = len(held.keys() - waiting)
            assert on_its_way == destination.link.unsettled, "a message is forgotten"

    def market(self, packets: int = PACKETS) -> None:
        """More packets."""
        for _ in range(packets):
            self.sequence += 1
            self.rig.put(PACKET, self.sequence, 1)
        self.rig.pump()
        for peer in self.rig.fanout.flush():
            peer.attend()

    # -- conversations ----------------------------------------------------------------------

    def conversation(self) -> None:
        """One connection, from its beginning to its end."""
        shares = self.script.lines(SHARES)
        said = b"".join(part.data for share in shares for part in share)
        if self.keep is not None:
            self.keep[: len(said) + 4] = len(said).to_bytes(4, "big") + said
        hearing = self.connect()
        engine = self.publisher.engine
        assert engine is not None
        for share in shares:
            self.market()
            self.hear(hearing)
            if not self.say(hearing, b"".join(part.data for part in share)):
                break
        taken = engine.frames_received
        mutated = [
            part.mutated for share in shares for part in share if not part.data.startswith(b"AMQP")
        ]
        self.found.taken += taken
        self.found.frames += sum(mutated[:taken])
        self.found.conversations += 1
        self.disconnect()

    def honest(self) -> None:
        """A broker that takes everything gets what is unconfirmed, in order, and what waits."""
        unsettled = self.destination.unsettled
        held = {number: outgoing.data for number, outgoing in unsettled.held.items()}
        hearing = self.connect()
        for said in (self.script.opening(), self.script.answer(2**31 - 1)):
            data = b"".join(each if isinstance(each, bytes) else each.encode() for each in said)
            assert self.say(hearing, data), self.publisher._ended
        answered = 0
        for _ in range(HONEST_TURNS):
            if not self.publisher._unfinished():
                break
            self.hear(hearing)
            last = max(hearing.numbers)
            self.say(hearing, self.script.accept(answered, last).encode())
            answered = last + 1
        assert not self.publisher._unfinished(), "an honest broker has not got everything"
        came = list(hearing.numbers.values())
        assert came == sorted(came), "what was unconfirmed is sent again in order"
        for index, number in hearing.numbers.items():
            if number in held:
                assert held.pop(number) in hearing.payloads[index]
        assert not held, "a message was never sent again"
        self.disconnect()

    def run(self, count: int) -> Found:
        """Say so many mutated frames; then be honest."""
        found, settled = self.found, 0
        while found.frames < count:
            self.conversation()
            if found.conversations % CONVERSATIONS_A_LOOK == 0:
                self.market(BURST_PACKETS)
                self.honest()
                if not settled and found.frames >= WARM_UP * count:
                    gc.collect()
                    settled = resident_bytes()
        self.honest()
        gc.collect()
        found.grown_bytes = resident_bytes() - settled if settled else 0
        unsettled = self.destination.unsettled
        found.counts = {
            outcome.name.lower(): unsettled.counts[outcome] for outcome in unsettled.counts
        }
        found.counts |= {
            "confirmed": unsettled.confirmed,
            "resent": unsettled.resent,
            "abandoned": self.destination.abandoned,
            "dropped": self.destination.dropped,
        }
        return found


def problems(found: Found, count: int) -> list[str]:
    """Return the broken promises, a line each: memory that grew, few links, outcomes never met."""
    wrong = []
    if found.grown_bytes > GROWTH_BYTES_MAX:
        wrong.append(f"memory grew by {found.grown_bytes:,} bytes")
    if found.up < found.conversations / 2:
        wrong.append(f"only {found.up:,} of {found.conversations:,} connections had a link")
    if count >= 100_000 and found.missing:
        wrong.append(f"never happened: {', '.join(found.missing)}")
    return wrong


if __name__ == "__main__":
    command = Command(
        "publisher_fuzz", "frames", lambda n, seed, keep: Run(seed, keep).run(n), problems,
        count=100_000, keeps=True,
    )  # fmt: skip
    sys.exit(command.main())
