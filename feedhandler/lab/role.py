"""One role of the laboratory as a process.

    python -m feedhandler.lab.role KIND NAME ENDPOINT

KIND is `replayer`, `client` or `stamper`; NAME is the controller's name for it, ENDPOINT where the
controller listens. It ends in order on SIGTERM; an error outside a request is its last line on
stderr.
"""

import asyncio
import os
import signal
import sys
from typing import Protocol

import uvloop

from feedhandler.lab.bus import Answer, Station, Verb
from feedhandler.lab.client import Client
from feedhandler.lab.replayer import Replayer
from feedhandler.lab.stamper import Stamper
from feedhandler.ops.console import ExitCode, run_guarded

#: How often a role reports its progress.
PROGRESS_S = 0.5


class Role(Protocol):
    """The interface of every role."""

    @property
    def verbs(self) -> dict[str, Verb]: ...

    def progress(self) -> Answer: ...

    async def close(self) -> None: ...


ROLES: dict[str, type[Role]] = {"replayer": Replayer, "client": Client, "stamper": Stamper}


async def serve(kind: str, name: str, endpoint: str) -> int:
    """Answer the controller's requests until SIGTERM; return the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    # Ctrl-C is the controller's, which ends its roles in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    role = ROLES[kind]()
    station = Station(name, endpoint, role.verbs)
    telling = asyncio.create_task(_tell(station, role))
    try:
        await station.serve(stop, os.getpid())
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        await role.close()
    return 0


async def _tell(station: Station, role: Role) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        await station.tell(role.progress())


if __name__ == "__main__":
    sys.exit(run_guarded(lambda: uvloop.run(serve(*sys.argv[1:4])), ExitCode.OK))
