"""One role of the laboratory as a process.

    python -m feedhandler.lab.role KIND NAME ENDPOINT

KIND is `replayer`, `client` or `stamper`; NAME is the controller's name for it, to be seen in lists
of processes; ENDPOINT is where it answers requests (`rpc`): its own verbs, and `progress`. It ends
in order on SIGTERM; an error outside a request is its last line on stderr.
"""

import asyncio
import signal
import sys
from typing import Any, Protocol

import uvloop

from feedhandler.lab.client import Client
from feedhandler.lab.replayer import Replayer
from feedhandler.lab.stamper import Stamper
from feedhandler.rpc import FRAME_BYTES_MAX, ControlSocket, Verb
from feedhandler.terminal.console import ExitCode, run_guarded


class Role(Protocol):
    """The interface of every role."""

    @property
    def verbs(self) -> dict[str, Verb]:
        """The requests that the controller may send, by name."""
        ...

    def progress(self) -> dict[str, Any]:
        """Return figures of what it has done so far."""
        ...

    async def close(self) -> None:
        """End what it does."""


ROLES: dict[str, type[Role]] = {"replayer": Replayer, "client": Client, "stamper": Stamper}


async def serve(kind: str, _name: str, endpoint: str) -> int:
    """Answer the controller's requests until SIGTERM; return the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    # Ctrl-C is the controller's, which ends its roles in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    role = ROLES[kind]()
    verbs = {**role.verbs, "progress": lambda _request: role.progress()}
    control = ControlSocket(endpoint, verbs, "ENDPOINT", FRAME_BYTES_MAX)
    control.open()
    try:
        await stop.wait()
    finally:
        await control.closed()
        await role.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded(lambda: uvloop.run(serve(*sys.argv[1:4])), ExitCode.OK))
