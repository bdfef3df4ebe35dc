"""A broker as a child process, started until it reports that it is ready.

Every kind has besides: free ports on loopback, one user and one virtual host. A *modest* broker
takes as little of the machine as it can, for tests; any other is configured as its project delivers
it, except that it does not use the processor while idle.
"""

import collections
import ctypes
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from feedhandler.lab.brokers.declaring import BrokerAdmin, BrokerFailed
from feedhandler.ports import free_ports

USER, VHOST = "feed", "market"
#: How long a broker may take to start or to end.
START_SECONDS = 180.0
STOP_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
#: How many of its last lines are kept, to show where it fails.
LINES = 200


def end_with_us() -> None:
    """Make the kernel kill this child when the thread that started it ends; called in the child."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Broker(BrokerAdmin):
    """A broker process with its data in `folder`, which exists and is empty.

    `start`, `kill` and `stop` may be called in turn, any number of times. `password` is its user's;
    a random one where none is given.
    """

    #: What it prints when it takes connections.
    READY: ClassVar[str]
    #: The management's URL, of a broker that has one which a publisher asks.
    management: str = ""
    #: Where it gets its ports from, all of them on loopback.
    ports: Callable[[int], list[int]] = staticmethod(free_ports)
    #: Whether it ends with the thread that starts it, however that ends.
    bound = False

    def __init__(self, folder: Path, password: str = "", modest: bool = False) -> None:
        (port,) = self.ports(1)
        super().__init__("127.0.0.1", port, 0, USER, password or secrets.token_hex(12), VHOST)
        self.folder = folder
        self.modest = modest
        self._server: subprocess.Popen[str] | None = None
        self.said: collections.deque[str] = collections.deque(maxlen=LINES)

    # -- the process ------------------------------------------------------------------------

    def command(self) -> list[str]:
        """Return the command that becomes the broker's process, without a child for it."""
        raise AssertionError("each kind has its own")

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the process."""
        raise AssertionError("each kind has its own")

    def start(self) -> None:
        """Start the broker and wait until it is ready; its output goes to `said`.

        Raises `BrokerFailed` where it is not ready in time or ends before.
        """
        server = self._server = subprocess.Popen(
            self.command(),
            env=self.environment(),
            # Files that a broker writes to its working directory go there.
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            # Ctrl-C goes to the parent alone, which ends the broker in order.
            start_new_session=self.bound,
            preexec_fn=end_with_us if self.bound else None,
        )
        said, ready, is_ready = self.said, threading.Event(), False
        said.clear()

        def listen() -> None:
            nonlocal is_ready
            assert server.stdout is not None
            with server.stdout:
                for line in server.stdout:
                    said.append(line)
                    if self.READY in line:
                        is_ready = True
                        ready.set()
            ready.set()

        threading.Thread(target=listen, daemon=True).start()
        if not ready.wait(START_SECONDS) or not is_ready:
            self.kill()
            last = next((line.strip() for line in reversed(said) if line.strip()), "no word")
            raise BrokerFailed(f"{self.kind} did not start: {last}")

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._server is not None, "the broker does not run"
        return self._server.pid

    def freeze(self) -> None:
        """Stop the process (SIGSTOP) with its connections open: it no longer reads."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue the process after `freeze`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._server is not None, "the broker does not run"
        self._server.send_signal(number)

    def _end(self, number: int) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(number)
            server.send_signal(signal.SIGCONT)
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(STOP_SECONDS)

    def kill(self) -> None:
        """Kill the broker (SIGKILL), as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the broker in order."""
        self._end(signal.SIGTERM)

    def discard(self) -> None:
        """Kill every process of the broker at once; its data are not needed any more."""
        self.kill()
