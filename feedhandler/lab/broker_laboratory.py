"""The laboratory with a broker between the gateway and its clients.

What it adds: the broker, started before the first step or found at its URL; the queues of a step's
clients, declared before each step, so that no unread queue fills; a gateway that publishes what the
step wants. A gateway publishes in one way only, so each pair of scenario and exchange has a gateway
of its own, and the replayer's numbers begin afresh with it.

What waits in the gateway for the broker has the same limit as a queue of the broker.
"""

import asyncio
import contextlib
from typing import Any

from feedhandler.codecs.errors import PeerError
from feedhandler.lab import processors
from feedhandler.lab.broker import LabBroker, binding_of, open_broker
from feedhandler.lab.laboratory import ASK_S, POLL_S, START_S, Laboratory
from feedhandler.lab.loads import BROKER
from feedhandler.lab.paper import paper
from feedhandler.lab.plan import StepPlan
from feedhandler.rpc import ask

#: Time-out of declaring queues: each takes one or more requests to the management.
DECLARE_S = 120.0


class BrokerLaboratory(Laboratory):
    """A run with the broker that the plan names."""

    _broker: LabBroker
    _sources: list[list[str]]

    @property
    def broker(self) -> str:
        """The broker's kind, with its generation."""
        return self._broker.kind

    @property
    def queue_limit_bytes(self) -> int:
        """The limit of a queue in bytes, as the paper had it."""
        return paper().setting.broker_queue_limit_mib * 2**20

    def _pids(self) -> dict[str, int]:
        pids = super()._pids()
        if self._broker.pids:
            pids[BROKER] = self._broker.pids[0]
        return pids

    def _arrange(self, plan: StepPlan) -> None:
        """Pin the roles to processors; give a broker of our own their niceness, unpinned."""
        super()._arrange(plan)
        for pid in self._broker.pids if self._broker.started else ():
            processors.put_first(pid)

    async def _begin(self) -> None:
        """Start or find the broker."""
        plan = self.plan
        self.view.report(
            f"starting the broker ({plan.broker})" if not plan.broker_url else "broker"
        )
        folder = self.folder / "broker"
        self._broker = await self.supervisor.during(
            "starting the broker",
            2 * START_S,
            asyncio.to_thread(
                open_broker, plan.broker, plan.broker_url, folder, plan.broker_management
            ),
        )
        self._stack.push_async_callback(self._close_broker)
        self.run.versions["broker"] = self._broker.version
        how = "started for this run" if self._broker.started else "as it was found"
        self.run.configuration["broker_process"] = how
        self._password = self.folder / "broker.password"
        self._password.write_text(self._broker.password)

    async def _close_broker(self) -> None:
        """Close the broker at the end of the run; its errors no longer change the result."""
        with contextlib.suppress(PeerError):
            await asyncio.to_thread(self._broker.close)

    async def _prepare(self, plan: StepPlan) -> None:
        """Declare the queues of the step's clients, and start a gateway that publishes to them."""
        binding = binding_of(plan.exchange, plan.grain, self.feed.key, self.services)
        limit = self.queue_limit_bytes
        self._sources = await self.supervisor.during(
            "declaring queues",
            DECLARE_S,
            asyncio.to_thread(self._broker.prepare, binding, plan.clients, limit),
        )
        self.run.configuration[f"binding_{plan.exchange}_{plan.scenario}"] = (
            f"{binding.kind} exchange: {', '.join(binding.keys)}"
        )
        publish = self._broker.publish(
            binding, plan.grain, self.feed.key, limit, str(self._password)
        )
        await self._have_gateway(f"{plan.scenario} {plan.exchange}", plan.grain, (publish,))
        await self.supervisor.during("connecting to the broker", ASK_S, self._published_to())

    async def _published_to(self) -> None:
        """Wait until the gateway's publisher is up."""
        while True:
            status = await asyncio.to_thread(ask, self.control, "status")
            (destination,) = status["destinations"]
            if destination["state"] == "UP":
                return
            await asyncio.sleep(POLL_S)

    def _source(self, plan: StepPlan, number: int) -> dict[str, Any]:
        return {
            "url": self._broker.url,
            "sources": self._sources[number],
            "hostname": self._broker.hostname,
        }

    async def _finish(self, plan: StepPlan) -> None:
        """Remove the queues of the step's clients."""
        await self.supervisor.during(
            "removing queues", DECLARE_S, asyncio.to_thread(self._broker.clear)
        )
