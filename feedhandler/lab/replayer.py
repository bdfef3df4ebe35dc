"""The replayer's role: reads or generates what is played, and plays it.

It tells beforehand what each client must get (`plan` writes the file that clients read), plays with
real-time priority where it may, and tells twice a second how far it is.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from feedhandler.codecs import Feed
from feedhandler.lab.bus import Answer, Verb
from feedhandler.lab.feeder import Feeder
from feedhandler.lab.plan import EXCHANGES
from feedhandler.lab.processors import preferred
from feedhandler.lab.results import Sent
from feedhandler.lab.symbols import WorkloadSymbols
from feedhandler.lab.workload import Stretch, Workload, workload_of
from feedhandler.ops.captures import open_captures
from feedhandler.ops.feeds import open_feed
from feedhandler.replay.generating.traffic import packets as packets_of_market
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.sender_lines import MulticastLine

#: Market messages of a generated workload by default: at the source paper's rate some forty
#: seconds, then it loops.
GENERATED_MESSAGES = 1_500_000
#: The file of what a client that wants everything must get.
EXPECTED = "expected.npz"


def generated(feed: Feed, seed: int, messages: int = 0) -> Iterator[tuple[int, bytes]]:
    """The packets of a session after the `market` profile, one line's, in order, until there are
    enough messages. Reference data and books told once, in large packets, are left out: the source
    paper's replay was of the session, not of its opening. Times are 0: nothing was recorded."""
    wanted = messages or GENERATED_MESSAGES
    data, offset, length = packets_of_market(seed, wanted, feed=feed, opening=False)
    whole = memoryview(data)
    for start, size in zip(offset.tolist(), length.tolist(), strict=True):
        yield 0, whole[start : start + size].tobytes()


def recorded(paths: Sequence[Path]) -> Iterator[tuple[int, bytes]]:
    """Times and payloads of captures, one capture after another."""
    for batch in Pipeline(open_captures(paths)).batches():
        for datagram in batch.datagrams():
            yield datagram.time_ns, datagram.payload


class Replayer:
    """What is played, and on which lines."""

    def __init__(self) -> None:
        self._feeder: Feeder | None = None
        self._workload: Workload
        self._stretch = Stretch(0, 0)
        self._rate_bps = self._pace = 0.0
        #: Of each client that wants some symbols, how many messages of each packet it gets.
        self._wanted: list[np.ndarray[Any, Any] | None] = []
        self._real_time = False

    @property
    def verbs(self) -> dict[str, Verb]:
        """What the controller may ask."""
        return {
            "load": self.load,
            "choose": self.choose,
            "open": self.open,
            "plan": self.plan,
            "play": self.play,
        }

    async def load(self, request: Mapping[str, Any]) -> Answer:
        """Have the packets ready: `feed`, and `captures` (paths) or `seed` and `messages` of a
        generated session. Tells what they are, by service."""
        feed = open_feed(request["feed"])
        if request["captures"]:
            packets: Iterator[tuple[int, bytes]] = recorded(
                [Path(path) for path in request["captures"]]
            )
        else:
            packets = generated(feed, request["seed"], request["messages"])
        self._workload = await asyncio.to_thread(workload_of, feed, packets)
        return {"stock": self._workload.describe()}

    async def choose(self, request: Mapping[str, Any]) -> Answer:
        """Choose symbols for `clients` clients by `seed`, `words` of `--symbols` in turn: patterns
        by exchange, of each client, and how many symbols there are; empty and 0: everything."""
        known = await asyncio.to_thread(WorkloadSymbols, self._workload)
        words, seed = request["words"], request["seed"]
        chosen = [
            known.choose(words[number % len(words)], seed, number)
            for number in range(request["clients"])
        ]
        self._wanted = [None if each is None else known.wanted(each) for each in chosen]
        return {
            "symbols": [0 if each is None else len(each) for each in chosen],
            "patterns": {
                exchange: [
                    "" if each is None else known.patterns(each, exchange) for each in chosen
                ]
                for exchange in EXCHANGES
            },
            "known": len(known.words),
        }

    async def open(self, request: Mapping[str, Any]) -> None:
        """Open the lines: `lines`, each a list of [service, group, port], and `interface`."""
        lines = [
            MulticastLine(
                "AB"[number],
                {service: (group, port) for service, group, port in line},
                request["interface"],
            )
            for number, line in enumerate(request["lines"])
        ]
        self._feeder = Feeder(self._workload, lines)

    async def plan(self, request: Mapping[str, Any]) -> Answer:
        """Fix the next step: `rate_bps` or `pace`, `warm_up_s`, `duration_s`, `messages`, and how
        many `clients`; writes what these must expect to files in `folder`: of each the path, and
        how many deliveries."""
        assert self._feeder is not None
        self._rate_bps, self._pace = request["rate_bps"], request["pace"]
        self._stretch = self._feeder.stretch(
            self._rate_bps, request["warm_up_s"], request["duration_s"], self._pace
        )
        folder, messages, clients = Path(request["folder"]), request["messages"], request["clients"]
        everything = self._expect(folder / EXPECTED, messages, None)
        wanted = self._wanted[:clients] or [None] * clients
        told = [
            everything
            if each is None
            else self._expect(folder / f"expected-{number + 1}.npz", messages, each)
            for number, each in enumerate(wanted)
        ]
        return {
            "path": everything[0],
            "paths": [path for path, _ in told],
            "expected": [total for _, total in told],
        }

    def _expect(
        self, path: Path, messages: bool, wanted: np.ndarray[Any, Any] | None
    ) -> tuple[str, int]:
        """Write what one kind of client gets of the stretch; the path, and how much that is."""
        assert self._feeder is not None
        expected = self._workload.expect(self._stretch, self._feeder.next_numbers, messages, wanted)
        np.savez(
            path,
            services=expected.services,
            bases=expected.bases,
            sizes=expected.sizes,
            timed_from=expected.timed_from,
            counts=expected.counts,
            thinned=wanted is not None,
        )
        return str(path), expected.total

    async def play(self, request: Mapping[str, Any]) -> Answer:
        """Send what was planned; the account of it."""
        sent = await asyncio.to_thread(self._play)
        return {"sent": msgspec.to_builtins(sent, str_keys=True), "real_time": self._real_time}

    def _play(self) -> Sent:
        assert self._feeder is not None
        with preferred() as self._real_time:
            return self._feeder.play(self._stretch, self._rate_bps, self._pace)

    def progress(self) -> Answer:
        """How far this role is."""
        if self._feeder is None:
            return {"share": 0.0}
        packets, sent = max(1, self._stretch.packets), self._feeder.sent
        frame_bytes = self._workload.bits_in(0, packets) / 8 / packets * sent
        share = sent / (packets * self._feeder.lines)
        return {"share": share, "at_ns": time.monotonic_ns(), "frame_bytes": round(frame_bytes)}

    async def close(self) -> None:
        """At the end of the role."""
        if self._feeder is not None:
            self._feeder.stop()
            self._feeder.close()
