"""A destination with a journal, without socket, thread or clock of its own: the broker takes what a
test says, the disk is a simulated one, and jobs at the journal are done when a test says.
"""

import random
import struct
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from feedhandler.amqp.framing import Reader
from feedhandler.amqp.proton import PublisherLink
from feedhandler.amqp.publishing.envelope import Envelope
from feedhandler.amqp.publishing.spill_destination import SpillDestination
from feedhandler.amqp.publishing.spill_disk import SpillDisk
from feedhandler.amqp.publishing.spill_queue import Job, SpillQueue, bounds_of
from feedhandler.amqp.routing import parse_address
from feedhandler.amqp.sender_queue import Peer
from feedhandler.ingest.records import RecordKind
from feedhandler.journal.settings import QueueSettings
from tests.support.amqp import Rig, Sent
from tests.support.simulated_disk import SimulatedDisk

SMALL = QueueSettings(
    block_bytes=64 << 10,
    blocks=2,
    blocks_max=200,
    journal_bytes=8 << 10,
    checkpoint_bytes=32 << 10,
    durability="fast",
)
QUEUE_BYTES = 256 << 10
#: No message of these tests is larger.
ITEM_BYTES_MAX = 8 << 10
WAIT_NS = 2_000_000
WALL_NS = 1_795_000_000_000_000_000


class FakeBroker(PublisherLink):
    """A link that keeps what it is sent; `grants` is the credit left."""

    def __init__(self, grants: int = 1_000_000) -> None:
        self.grants = grants
        self.frames: list[tuple[int, bytes]] = []
        self.unconfirmed: list[int] = []

    def ready(self) -> bool:
        return self.grants > 0

    def send_parts(
        self, number: int, lead: Any, data: bytes, skip: int, cut: int, to: bytes
    ) -> int:
        assert self.grants > 0, "sent without credit"
        self.grants -= 1
        rest = data[skip:cut] + to + data[cut + 1 :] if to else data
        self.frames.append((number, bytes(lead) + rest))
        self.unconfirmed.append(number)
        return 0

    @property
    def sent(self) -> list[Sent]:
        return [read(data) for _, data in self.frames]

    @property
    def notes(self) -> list[dict[str, Any]]:
        """The quality messages' bodies."""
        return [msgspec.json.decode(m.body) for m in self.sent if m.content == "quality+json"]

    @property
    def sequences(self) -> list[int]:
        """Of the packets, as they were sent."""
        return [tag[3] for tag in map(tag_of, self.sent) if tag[4] == 0xFFFF]


def read(data: bytes) -> Sent:
    """A message by our own reader: proton's takes seconds where simulations send so many."""
    reader = Reader()
    assert reader.parse(data, 0, len(data))
    subject, content, tag, body = (
        data[at : at + size]
        for at, size in (
            (reader.subject_at, reader.subject_size),
            (reader.content_at, reader.content_size),
            (reader.tag_at, reader.tag_size),
            (reader.body_at, reader.body_size),
        )
    )
    kind = content.decode().rpartition(".")[2]
    return Sent(subject.decode(), kind, tag, reader.group_sequence, body, None)


def tag_of(message: Any) -> tuple[int, ...]:
    """Day, feed, service, sequence, message number."""
    return struct.unpack(">IHHQH", message.tag)


class SpillRig:
    """A fan-out with one destination that has a journal in `files`."""

    def __init__(
        self,
        folder: Path,
        files: SimulatedDisk | None = None,
        *,
        address: str = "#",
        window: int = 1000,
        queue_bytes: int = QUEUE_BYTES,
        settings: QueueSettings = SMALL,
        services: tuple[int, ...] = (104,),
        now_ns: int = 0,
        batch_bytes: int = 4096,
        on_batch: Any = None,
    ) -> None:
        self.files = files or SimulatedDisk()
        self.rig = Rig(services)
        self.now_ns = now_ns
        self.queue_bytes = queue_bytes
        self.spill = SpillQueue(bounds_of(queue_bytes), WAIT_NS)
        self.disk = SpillDisk(
            folder, settings, ITEM_BYTES_MAX, files=self.files, clock=lambda: WALL_NS + self.now_ns
        )
        self.spill.find(self.disk.pending, now_ns)
        self.destination = SpillDestination(
            Peer(self.rig.fanout.dirty_peers),
            parse_address(address, self.rig.feed.type_code),
            self.rig.fanout.streams,
            window,
            queue_bytes,
            batch_bytes,
            lambda tries: 1000 * tries,
            lambda: self.now_ns,
            on_batch,
            self.spill,
            lambda: WALL_NS + self.now_ns,
            self.look,
        )
        self.rig.fanout.add(self.destination)
        self.link: FakeBroker | None = None
        self.job: Job | None = None
        self.frozen = False
        self.high_bytes = 0

    # -- the exchange -----------------------------------------------------------------------

    def begin(self, following: int = 1, channel: int = 0) -> None:
        """The service's stream is joined."""
        self.rig.control_event(
            RecordKind.START, channel=channel, sequence=0, next_sequence=following
        )
        self.rig.pump()

    def stream(self, first: int, last: int, channel: int = 0) -> None:
        """Packets come, and the disk does what it does meanwhile."""
        for sequence in range(first, last + 1):
            self.rig.packets(sequence, sequence, channel)
            self.rig.pump()
        self.measure()

    def stream_for_long(self, last: int) -> None:
        """Packets from the first on, while the disk has its time again and again."""
        for sequence in range(1, last + 1):
            self.stream(sequence, sequence)
            if sequence % 20 == 0:
                self.wait()

    # -- the broker -------------------------------------------------------------------------

    def connect(self, grants: int = 1_000_000) -> FakeBroker:
        self.link = FakeBroker(grants)
        self.destination.connect(self.link, Envelope())
        self.destination.drain()
        return self.link

    def disconnect(self) -> None:
        self.link = None
        self.destination.process_outcomes()
        self.destination.disconnect()

    def confirm(self, count: int = 1 << 30) -> None:
        """The broker has the oldest `count` of what it was sent."""
        self.link.confirmed.extend(self.link.unconfirmed[:count])
        del self.link.unconfirmed[:count]
        self.destination.process_outcomes()
        self.destination.drain()

    # -- the disk ---------------------------------------------------------------------------

    def look(self) -> None:
        """Take the next job where there is one, as the journal's glue does."""
        if self.job is None:
            self.job = self.spill.next_job(self.now_ns, self.destination.front_bytes)
            self.measure()

    def work(self) -> None:
        """The disk does the job that it has, and the next one is looked for."""
        if self.job is not None and not self.frozen:
            result = self.disk.carry_out(self.job)
            self.job = None
            if self.disk.engine.growth_due:
                self.disk.engine.grow()
            self.destination.process_result(result)
            self.destination.drain()
            self.measure()
        self.look()

    def wait(self, ns: int = WAIT_NS) -> None:
        """Time passes, then the disk works."""
        self.now_ns += ns
        self.look()
        self.work()

    def settle(self, rounds: int = 10_000) -> None:
        """All that comes goes to the broker, and all it says to the journal."""
        for _ in range(rounds):
            if self.link is not None:
                self.confirm()
            self.wait()
            if self.idle:
                return
        raise AssertionError(f"not settled: {self.spill.state}, {self.spill.on_disk} on disk")

    @property
    def idle(self) -> bool:
        destination = self.destination
        held = destination.queue or destination.unsettled.held
        held = held or (self.spill.on_disk and not self.spill.failed)
        waits = self.link is not None and held
        return not waits and self.job is None and self.spill.settled

    def kill(self, power: random.Random | None = None) -> SimulatedDisk:
        """The process is gone; the disk as the next one finds it: all that was written, or what a
        power cut has left of it."""
        self.disk.engine._owner.release()
        return self.files.copy() if power is None else self.files.after_power_cut(power)

    def close(self) -> None:
        """The orderly end."""
        self.spill.hurry = True
        for _ in range(10_000):
            if self.spill.settled:
                break
            self.look()
            self.work()
        self.disk.close()

    # -- what is held -----------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Everything that is in memory because the broker or the disk has not taken it."""
        flying = self.job
        writing = sum(map(len, flying.contents)) if flying else 0
        reading = flying.read_bytes if flying else 0
        return self.destination.front_bytes + self.spill.extra_bytes + writing + reading

    def measure(self) -> None:
        self.high_bytes = max(self.high_bytes, self.memory_bytes)
        assert self.memory_bytes <= self.queue_bytes, self.spill.state

    def unsaved(self) -> list[tuple[int, int, int]]:
        """Of each service packets from one number to before another one that a kill now would
        lose, if the broker has not got them; or that would lose the news of their loss."""
        spill = self.spill
        flying = self.job.messages if self.job else ()
        found = [
            (service, first, last + 1)
            for service, loss_tracker in self.destination.loss_trackers.items()
            for first, last in loss_tracker.fresh
        ]
        for outgoing in chain(spill._writing, flying, spill._unwritten):
            if not outgoing.reason:
                found.append((outgoing.service, outgoing.sequence, outgoing.following))
            elif outgoing.reason == "overflow":
                quality = msgspec.json.decode(outgoing.data[outgoing.data.index(b"{") :])
                found += [(outgoing.service, first, last + 1) for first, last in quality["lost"]]
        return found
