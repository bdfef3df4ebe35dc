"""A gateway on this machine with one durable queue, for the other examples: started, killed."""

import subprocess
import sys
import threading
from pathlib import Path

from feedhandler.config import loopback_config
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.config.show import to_toml


class LocalGateway:
    """The gateway's process, with a durable queue in `folder`; the port stays when it is started
    anew. `settings` are of the queue's table. `up` is set while it runs."""

    def __init__(self, folder: Path, port: int, queue: str, **settings: object) -> None:
        self.port = port
        self.url = f"amqp://127.0.0.1:{port}"
        small = {
            "block_bytes": 1 << 20, "message_bytes_max": 1 << 16, "checkpoint_bytes": 1 << 20,
        }  # fmt: skip
        table = DurableQueueConfig(name=queue, folder=str(folder / "queue"), **small, **settings)
        config = loopback_config(services=[104], listen=f"127.0.0.1:{port}", queues=(table,))
        self._path = folder / "gateway.toml"
        self._path.write_text(to_toml(config), encoding="utf-8")
        self._process: subprocess.Popen[str]
        self.up = threading.Event()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "feedhandler", "run", str(self._path)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stderr is not None
        output = ""
        while "ready" not in output:
            line = self._process.stderr.readline()
            if not line:
                raise SystemExit(f"the gateway has ended: {output}")
            output += line
        self.up.set()

    def end(self, how: int) -> None:
        """Send it a signal and wait for its end."""
        self.up.clear()
        self._process.send_signal(how)
        self._process.communicate()
