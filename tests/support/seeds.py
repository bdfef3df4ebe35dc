"""The source of random tests: the fixture `seed`, a number that differs from test to test.

It follows from the test's name, so that what passed passes again, on any machine, and no change
meets a failure that it has nothing to do with. `SEED=n` gives n, and `FRESH=1` draws a number each
time, which is what campaigns and `make hunt` do: new seeds are theirs to try.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator

import pytest

#: What else a test's course depends on; repeated where a run is told how to do it again.
BESIDE = ("CRASHES", "ROUNDS", "FEEDHANDLER_FUZZ", "FEEDHANDLER_FUZZ_FRAMES")


def seed_of(test: str) -> int:
    """The seed of the test with this name, from 1 up to 2^32."""
    if os.environ.get("SEED"):
        return int(os.environ["SEED"])
    if os.environ.get("FRESH"):
        return 1 + int.from_bytes(os.urandom(4), "little")
    named = hashlib.sha256(test.encode()).digest()
    return 1 + int.from_bytes(named[:4], "little")


def seeds_to_play(usual: Iterable[int]) -> list[int]:
    """`SEED` alone where it is set, else the usual ones."""
    chosen = os.environ.get("SEED")
    return [int(chosen)] if chosen else list(usual)


def rerun(test: str, seed: int) -> str:
    """The command that runs a test with this seed again."""
    beside = "".join(f"{name}={os.environ[name]} " for name in BESIDE if name in os.environ)
    return f"{beside}SEED={seed} python -m pytest '{test}'"


@contextlib.contextmanager
def naming(seed: int, file: str) -> Iterator[None]:
    """Name the seed where what is within fails, and the command that plays it again."""
    try:
        yield
    except Exception as error:
        again = rerun(file, seed)
        raise AssertionError(f"seed {seed} failed; again with: {again}\n{error}") from error


def drawn(times: int) -> pytest.MarkDecorator:
    """Run a random test so many times, each with a `seed` of its own."""
    return pytest.mark.parametrize("seed", [None] * times, indirect=True)
