"""The kit of the replay benches: captures of numbered datagrams, tcpreplay, our command."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.veth import NEAR

GROUP, PORT = "239.1.1.1", 5_001
#: When captures begin.
BASE_NS = 1_700_000_000 * 10**9
SEED = 1
#: UDP payload bytes of a market's packets: mean 287.53 in the paper, and skewed.
PAYLOAD_MEAN_BYTES, PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX = 287.53, 40, 1_400
_SIGMA = 0.6

Array = np.ndarray[Any, Any]


def payload_sizes(count: int) -> Array:
    """Return payload bytes of `count` packets, log-normal about the paper's mean."""
    source = np.random.default_rng(SEED)
    drawn = source.lognormal(np.log(PAYLOAD_MEAN_BYTES) - _SIGMA**2 / 2, _SIGMA, count)
    return np.clip(drawn, PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX).astype(np.int64)


def write_numbered(path: Path, due_ns: Array, sizes: Array) -> None:
    """Write a pcap of numbered datagrams, at times of whole microseconds, which both
    replayers read."""
    filling = np.random.default_rng(SEED).bytes(PAYLOAD_BYTES_MAX)
    with CaptureWriter(path, nanosecond=False) as writer:
        for number, (due, size) in enumerate(zip(due_ns.tolist(), sizes.tolist(), strict=True)):
            payload = number.to_bytes(4, "big") + filling[: size - 4]
            writer.write(BASE_NS + due, GROUP, PORT, payload, source_port=1_000)


class NoTcpreplay(Exception):
    """tcpreplay is not installed."""


def tcpreplay_version() -> str:
    """Return tcpreplay's version, as it prints it."""
    if shutil.which("tcpreplay") is None:
        raise NoTcpreplay("tcpreplay is not installed (apt install tcpreplay)")
    version = subprocess.run(
        ["tcpreplay", "--version"], capture_output=True, text=True, check=False
    )
    found = re.search(r"version: (\S+)", version.stdout + version.stderr)
    return found[1] if found else "unknown"


def tcpreplay(path: Path, *options: str) -> list[str]:
    """Return the command that sends a capture into `near0`."""
    return ["tcpreplay", "--quiet", f"--intf1={NEAR}", *options, str(path)]


def ours(path: Path, *options: str) -> list[str]:
    """Return our command that sends the same frames there."""
    words = (str(path), "--as-recorded", "--raw", "--interface", NEAR, "--json")
    return [sys.executable, "-m", "feedhandler", "replay", *words, *options]


def account_of(output: str) -> dict[str, Any]:
    """Return the account that our command printed, run with --json."""
    return json.loads(output.splitlines()[-1])
