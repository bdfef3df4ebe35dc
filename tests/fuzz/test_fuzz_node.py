"""Mutated frames at the node, and whole ones in any order, in processes of their own: a crash of
the engine would be one.

`FEEDHANDLER_FUZZ_FRAMES` is the number of each: 10 million in a campaign. By default there are
16,000 mutated ones, and 5,000 in any order, of which `make fuzz-asan` tries more.
"""

import os
import subprocess
import sys

import pytest

from tests.fuzz import frame_mutator, node_fuzz
from tests.support.amqp_wire import Frame, split
from tests.support.checkout import CHECKOUT

#: Fuzzer to the number of frames that it makes by default.
FRAMES = {"node_fuzz": "16000", "sequence_fuzz": "5000"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fuzzer", FRAMES)
def test_frames_neither_crash_nor_grow_the_node_nor_harm_another_subscriber(tmp_path, seed, fuzzer):
    keep = tmp_path / "conversation"
    frames = os.environ.get("FEEDHANDLER_FUZZ_FRAMES", FRAMES[fuzzer])
    command = ["-m", f"tests.fuzz.{fuzzer}", "--count", frames, "--seed", str(seed)]
    command += ["--keep", str(keep)]
    done = subprocess.run(
        [sys.executable, *command], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout)
    if done.returncode:
        data = keep.read_bytes()
        data = data[4 : 4 + int.from_bytes(data[:4], "big")]
        raise AssertionError(f"exit code {done.returncode}; what was said last: {data.hex()}")


def test_a_seed_gives_the_same_conversations_again():
    first, second = (frame_mutator.Mutator(7) for _ in range(2))
    for _ in range(20):
        assert first.conversation() == second.conversation()


def test_the_seeds_are_whole_conversations_of_stock_clients():
    for path in sorted(frame_mutator.FOLDER.glob("*.bin")):
        parts = split(path.read_bytes())
        again = b"".join(each.encode() if isinstance(each, Frame) else each for each in parts)
        assert again == path.read_bytes()
        codes = {each.code for each in parts if isinstance(each, Frame) and not each.kind}
        assert codes >= {0x10, 0x11, 0x12, 0x13, 0x15, 0x16}


def test_a_run_notices_what_it_is_there_to_notice():
    outcome = node_fuzz.Outcome(grown_bytes=node_fuzz.GROWTH_BYTES_MAX + 1)
    assert len(node_fuzz.problems(outcome, 1_000_000)) == 2
    outcome.conditions.update(node_fuzz.CONDITIONS)
    outcome.grown_bytes = 0
    (missing,) = node_fuzz.problems(outcome, 1_000_000)
    assert all(name in missing for name in node_fuzz.COUNTERS)
    outcome.counts.update(dict.fromkeys(node_fuzz.COUNTERS, 1))
    assert node_fuzz.problems(outcome, 1_000_000) == []
