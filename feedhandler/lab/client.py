"""The client's role: subscribes to everything or to some symbols, times and checks each delivery.

The expected deliveries are in a file that the replayer wrote before it sends; the results go to the
controller as numbers. Between, twice a second, the client reports its progress.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.histogram import percentiles_of
from feedhandler.lab.broker_client import BrokerSubscriber
from feedhandler.lab.control import Sender
from feedhandler.lab.results import answer_of
from feedhandler.lab.tally import Tally
from feedhandler.rpc import Verb

#: A callback for each batch.
OnBatch = Callable[[Any], object]
#: Numbers of an expectation's file.
COLUMNS = ("services", "bases", "sizes", "timed_from", "counts")


class Client:
    """One client's connection and tally."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._stack = contextlib.AsyncExitStack()
        self._consumer: asyncio.Task[None] | None = None
        self._expected: dict[str, np.ndarray[Any, Any]] = {}
        self._error = ""

    @property
    def verbs(self) -> dict[str, Verb]:
        """The verbs that the controller may send."""
        return {
            "attach": self.attach,
            "expect": self.expect,
            "count": self.count,
            "verdict": self.verdict,
            "detach": self.detach,
        }

    async def attach(self, request: Mapping[str, Any]) -> None:
        """Subscribe to `url` by `pattern`, `grain` and `feed`.

        For a broker `sources` and `hostname` instead of `pattern`. `control`, of the control client
        only: `host:port` of the paper's control datagrams.
        """
        record = self._with_control(request["control"]) if "control" in request else self._record()
        messages = await self._stack.enter_async_context(_subscriber(request))
        self._error = ""
        self._consumer = asyncio.create_task(self._consume(messages, record))

    def _record(self) -> OnBatch:
        # The clock of the kernel's stamps.
        now_ns, record = time.time_ns, self.tally.record
        return lambda batch: record(batch, now_ns())

    def _with_control(self, address: str) -> OnBatch:
        """Return the control client's callback, which sends the datagrams before it counts."""
        sender, record = Sender(address), self._record()
        self._stack.callback(sender.close)

        def on_batch(batch: Any) -> None:
            sender.send(batch)
            record(batch)

        return on_batch

    async def _consume(self, messages: Any, on_batch: OnBatch) -> None:
        try:
            await messages.deliver(on_batch)
            self._error = "the connection ended"
        except Exception as error:  # whatever it is: the controller reports it
            self._error = str(error) or type(error).__name__

    async def expect(self, request: Mapping[str, Any]) -> None:
        """Begin to count against the expectation in the file at `path`."""
        with np.load(Path(request["path"])) as stored:
            self._expected = {name: stored[name] for name in COLUMNS}
            thinned = bool(stored["thinned"])
        expected = self._expected
        self.tally.expect(
            expected["services"],
            expected["bases"],
            expected["sizes"],
            expected["timed_from"],
            thinned,
        )

    async def count(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the deliveries and latencies so far, and why the stream ended, if it did."""
        return {**self.progress(), "ended": self._error}

    def progress(self) -> dict[str, Any]:
        """Return the deliveries so far and the latency percentiles p50 and p90, in ns."""
        counts = self.tally.histogram.counts()
        p50, p90 = percentiles_of(counts, 0.5, 0.9)
        return {"deliveries": self.tally.deliveries, "p50_ns": p50, "p90_ns": p90}

    async def verdict(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return all that was found since `expect`: counts, losses, findings, latencies in ns."""
        expected = self._expected
        verdict = self.tally.verdict(expected["counts"])
        missing = self.tally.first_lost(expected["counts"], expected["services"])
        return {
            **verdict,
            **answer_of(self.tally.histogram),
            "announced_lost": self.tally.announced,
            "body_bytes": self.tally.body_bytes,
            "findings": [*([self._error] if self._error else []), *self.tally.named, *missing],
        }

    async def detach(self, request: Mapping[str, Any] | None = None) -> None:
        """Close the connection."""
        await self._stack.aclose()
        if self._consumer is not None:
            self._consumer.cancel()
            await asyncio.gather(self._consumer, return_exceptions=True)
            self._consumer = None

    async def close(self) -> None:
        """Close the connection at the end of the role."""
        await self.detach()


def _subscriber(request: Mapping[str, Any]) -> Any:
    """Return the subscriber to the gateway's node, or to a broker's queues."""
    feed = load_feed(request["feed"])
    if "sources" in request:
        sources, hostname = request["sources"], request["hostname"]
        return BrokerSubscriber(request["url"], sources, request["grain"], feed, hostname)
    return feedhandler.subscribe(
        request["url"],
        request["pattern"],
        as_=request["grain"],
        stamp=True,
        feed=feed,
        # A connection that is lost ends the measurement.
        reconnect=False,
    )
