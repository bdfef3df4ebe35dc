"""What random tests draw from: the fixture `seed`, a number that differs from test to test.

It follows from the content of the commit and the test's name, so that what passed at a commit
passes there again, on any machine, and the next commit tries something new. `SEED=n` gives n, and
`FRESH=1` draws a number each time, which is what campaigns and `make hunt` do.
"""

import functools
import hashlib
import os
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
#: What else a test's course depends on; repeated where a run is told how to do it again.
BESIDE = ("CRASHES", "ROUNDS", "FEEDHANDLER_FUZZ", "FEEDHANDLER_FUZZ_FRAMES")


@functools.cache
def content() -> str:
    """Git's name for the content of the commit; empty where this is no checkout."""
    command = ["git", "rev-parse", "--verify", "HEAD^{tree}"]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def seed_of(test: str) -> int:
    """The seed of the test with this name, from 1 up to 2^32."""
    if os.environ.get("SEED"):
        return int(os.environ["SEED"])
    if os.environ.get("FRESH"):
        return 1 + int.from_bytes(os.urandom(4), "little")
    named = hashlib.sha256(f"{content()}/{test}".encode()).digest()
    return 1 + int.from_bytes(named[:4], "little")


def rerun(test: str, seed: int) -> str:
    """The command that runs a test with this seed again."""
    beside = "".join(f"{name}={os.environ[name]} " for name in BESIDE if name in os.environ)
    return f"{beside}SEED={seed} python -m pytest '{test}'"
