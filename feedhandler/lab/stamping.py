"""The controller's side of the paper's measurement: the stamping role and its results."""

from typing import Any

from feedhandler.lab.results import Latency, latency_of_answer
from feedhandler.lab.supervisor import RoleFailed, Supervisor

STAMPER = "stamper"
START_S, ASK_S = 60.0, 60.0
#: Of the control datagrams that one side sent, the other may lack this share: a buffer that was
#: full. Where more are missing, the measurement does not count.
UNMATCHED_SHARE_MAX = 0.01


class Stamping:
    """A running stamping role; `gateway` and `client` are the addresses that each is to send to."""

    def __init__(self, supervisor: Supervisor, addresses: dict[str, Any]) -> None:
        self._supervisor = supervisor
        self.gateway, self.client = str(addresses["gateway"]), str(addresses["client"])

    async def latency(self) -> Latency:
        """Return the latencies of the step that is over.

        Raises `RoleFailed` where too few of its datagrams could be matched.
        """
        (answer,) = await self._supervisor.ask_all("matching stamps", ASK_S, [STAMPER], "latency")
        lone = answer["published_only"] + answer["received_only"] + answer["over"]
        if lone > UNMATCHED_SHARE_MAX * max(1, answer["count"]):
            raise RoleFailed(
                f"{answer['count']:,} control datagrams had a match, {answer['published_only']:,} "
                f"of the gateway and {answer['received_only']:,} of the control client had none",
                "a lower rate, or a larger net.core.rmem_max",
            )
        return latency_of_answer(answer)


async def start_stamping(supervisor: Supervisor) -> Stamping:
    """Start the stamping role and return it once it is ready. Raises `RoleFailed`."""
    await supervisor.enlist_role(STAMPER, STAMPER)
    await supervisor.greeted("starting the stamping role", START_S, STAMPER)
    (addresses,) = await supervisor.ask_all(
        "starting the stamping role", ASK_S, [STAMPER], "addresses"
    )
    return Stamping(supervisor, addresses)
