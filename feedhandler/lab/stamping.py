"""The controller's side of the paper's measurement: the stamping role and its results."""

from typing import Any

import numpy as np

from feedhandler.lab.results import BUCKETS, Latency
from feedhandler.lab.supervisor import RoleFailed, Supervisor

STAMPER = "stamper"
START_S, ASK_S = 60.0, 60.0
#: Of the control datagrams that one side sent, the other may lack this share: a buffer that was
#: full. Where more are missing, the measurement does not count.
UNMATCHED_SHARE_MAX = 0.01


class Stamping:
    """A running stamping role; `gateway` and `client` are the addresses that each is to send to."""

    def __init__(self, supervisor: Supervisor, places: dict[str, Any]) -> None:
        self._supervisor = supervisor
        self.gateway, self.client = str(places["gateway"]), str(places["client"])

    async def latency(self) -> Latency:
        """Return the latencies of the step that is over.

        Raises `RoleFailed` where too few of its datagrams could be matched.
        """
        (told,) = await self._supervisor.ask_all("matching stamps", ASK_S, [STAMPER], "latency")
        lone = told["published_only"] + told["received_only"] + told["over"]
        if lone > UNMATCHED_SHARE_MAX * max(1, told["count"]):
            raise RoleFailed(
                f"{told['count']:,} control datagrams had a match, {told['published_only']:,} of "
                f"the gateway and {told['received_only']:,} of the control client had none",
                "a lower rate, or a larger net.core.rmem_max",
            )
        return latency_of_answer(told)


async def start_stamping(supervisor: Supervisor) -> Stamping:
    """Start the stamping role and return it once it is ready. Raises `RoleFailed`."""
    await supervisor.enlist_role(STAMPER, STAMPER)
    await supervisor.greeted("starting the stamping role", START_S, STAMPER)
    (places,) = await supervisor.ask_all("starting the stamping role", ASK_S, [STAMPER], "places")
    return Stamping(supervisor, places)


def latency_of_answer(told: dict[str, Any]) -> Latency:
    """Return a role's answer as a distribution."""
    buckets = np.zeros(BUCKETS, np.uint64)
    buckets[told["buckets"]] = told["counts"]
    return Latency(
        count=told["count"],
        sum_ns=told["sum_ns"],
        min_ns=told["min_ns"],
        max_ns=told["max_ns"],
        buckets=buckets,
    )
