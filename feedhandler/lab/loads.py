"""The roles' loads during the measured part of a step, and the bytes that a step's grain costs.

`LoadWatch` samples while its block runs, from the end of the warm-up on. What the replayer sends,
and the gateway receives, is UDP, whose bytes the kernel does not count by socket: the replayer
reports them, as Ethernet frames, the unit of the rate. `traffic_of` computes from the loads the
bytes in and out of each point of the path.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from feedhandler.lab.results import Loads, Step, Traffic
from feedhandler.lab.sampling import Counts, Sampler

REPLAYER, GATEWAY, BROKER, CLIENTS = "replayer", "gateway", "broker", "clients"
#: All roles in the order of a packet's way.
ROLES = (REPLAYER, GATEWAY, BROKER, CLIENTS)
#: The beginning of a client's name.
CLIENT_PREFIX = "client-"


def by_role(pids: Mapping[str, int]) -> dict[str, list[int]]:
    """Group processes (name: process id) by role, in the order of a packet's way.

    All clients are one role.
    """
    found: dict[str, list[int]] = {role: [] for role in ROLES}
    for name, pid in pids.items():
        found.setdefault(CLIENTS if name.startswith(CLIENT_PREFIX) else name, []).append(pid)
    return {role: pids for role, pids in found.items() if pids}


def counted(progress: Mapping[str, Any]) -> Counts:
    """Return byte counts from the replayer's progress: out of it, and into the gateway."""
    if "frame_bytes" not in progress:
        return {}
    at_s, sent = progress["at_ns"] / 1e9, progress["frame_bytes"]
    return {REPLAYER: (at_s, 0, sent), GATEWAY: (at_s, sent, 0)}


class LoadWatch:
    """A context that samples the roles while its block runs, except for the warm-up; fills `loads`.

    `progress` returns the replayer's last report.
    """

    def __init__(
        self,
        roles: Mapping[str, list[int]],
        warm_up_s: float,
        progress: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.loads: list[Loads] = []
        self._warm_up_s = warm_up_s
        self._sampler = Sampler(roles, counted=lambda: counted(progress()))
        self._started = False
        self._starting: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._starting = asyncio.create_task(self._start())
        return self

    async def _start(self) -> None:
        await asyncio.sleep(self._warm_up_s)
        self._sampler.start()
        self._started = True

    async def __aexit__(self, *_: object) -> None:
        self._starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._starting
        if self._started:
            self.loads = self._sampler.stop()


def traffic_of(step: Step) -> Iterator[Traffic]:
    """Yield the bytes in and out of gateway, broker and clients in a step's measured part.

    Loads are sampled for about as long as the measured part lasts; bytes are scaled to that.
    """
    seconds = step.sent.duration_ns / 1e9
    for loads in step.loads:
        if loads.role in (GATEWAY, BROKER, CLIENTS) and len(loads.t_s) and loads.t_s[-1] > 0:
            scale = seconds / float(loads.t_s[-1])
            yield Traffic(
                where="client" if loads.role == CLIENTS else loads.role,
                grain=step.grain,
                bytes_in=round(float(loads.net_in_bytes[-1]) * scale),
                bytes_out=round(float(loads.net_out_bytes[-1]) * scale),
            )
