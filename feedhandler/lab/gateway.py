"""The gateway's role in the paper's measurement: `feedhandler run` with control datagrams.

    python -m feedhandler.lab.gateway CONFIGURATION HOST:PORT GRAIN

The gateway is the product's own; before it begins, its fan-out gets one more link (`control`),
which sends the stamping process at HOST:PORT a datagram for each sampled packet or message that is
published.
"""

import sys
from pathlib import Path

from feedhandler.config import load_config
from feedhandler.lab.control import attach
from feedhandler.ops.run import serve
from feedhandler.terminal.console import ExitCode, run_async, run_guarded


def run(path: Path, address: str, grain: str) -> int:
    """Run the gateway configured in `path` until SIGTERM."""
    config = load_config(path)
    return run_async(
        lambda stop: serve(config, stop, lambda gateway: attach(gateway.fanout, address, grain)),
        config.gateway.loop,
    )


if __name__ == "__main__":
    sys.exit(run_guarded(lambda: run(Path(sys.argv[1]), sys.argv[2], sys.argv[3]), ExitCode.OK))
