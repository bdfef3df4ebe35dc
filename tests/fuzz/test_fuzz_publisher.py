"""A hostile broker at the publisher, in a process of its own: a crash of the engine would be one.

A run is 4,000 frames, or a tenth of `FEEDHANDLER_FUZZ_FRAMES`.
"""

import os
import subprocess
import sys

import pytest

from tests.fuzz import publisher_fuzz
from tests.fuzz.hostile_broker import Hearing, Script
from tests.support.amqp_wire import ACCEPTED, DISPOSITION, TRANSFER, Frame, Value, described, frame
from tests.support.checkout import CHECKOUT

FRAMES = int(os.environ.get("FEEDHANDLER_FUZZ_FRAMES", "40000")) // 10


@pytest.mark.timeout(0 if FRAMES > 10_000 else 300)
def test_a_hostile_broker_neither_crashes_the_publisher_nor_makes_it_forget_a_message(
    tmp_path, seed
):
    keep = tmp_path / "conversation"
    command = ["-m", "tests.fuzz.publisher_fuzz", "--count", str(FRAMES), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, *command, "--keep", str(keep)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    if done.returncode:
        data = keep.read_bytes()
        data = data[4 : 4 + int.from_bytes(data[:4], "big")]
        raise AssertionError(f"exit code {done.returncode}; the last conversation: {data.hex()}")
    assert len(done.stdout.splitlines()) == 3, "the engine writes nothing of its own"


def test_a_seed_gives_the_same_broker_again():
    first, second = (Script(7, "a/b") for _ in range(2))
    for _ in range(20):
        assert first.lines(4) == second.lines(4)


def transfer(delivery_id: int, number: int) -> bytes:
    tag = Value(0xA0, number.to_bytes(8, "little"))
    return Frame(0, described(TRANSFER, 0, delivery_id, tag, 0, False), b"body").encode()


def outcome(first: int, last: int | None, state: int) -> bytes:
    return frame(DISPOSITION, True, first, last, True, described(state))


def test_what_a_broker_accepts_is_told_apart_from_all_else():
    hearing = Hearing()
    said = b"".join(transfer(index, 100 + index) for index in range(5))
    hearing.hear(said[:50])
    hearing.hear(said[50:])
    assert hearing.numbers == {index: 100 + index for index in range(5)}
    assert hearing.payloads[4] == b"body"
    assert hearing.accepted(outcome(1, 3, ACCEPTED)) == {101, 102, 103}
    assert hearing.accepted(outcome(1, None, ACCEPTED) + outcome(2, 4, 0x25)) == {101}
    assert hearing.accepted(outcome(2**32 - 1, 0, ACCEPTED)) == {100}
    assert hearing.accepted(transfer(9, 9)) == set()
    fewer = bytearray(outcome(2, 2, ACCEPTED))
    fewer[16:20] = (3).to_bytes(4, "big")
    assert hearing.accepted(bytes(fewer)) == {102}, "the engine reads what the size holds"
    unreadable = bytearray(outcome(1, 1, ACCEPTED))
    unreadable[11] = 0xC1
    unreadable[12:] = b"\xff"
    unreadable[3] = len(unreadable)
    assert hearing.accepted(bytes(unreadable)) == set(hearing.numbers.values())


def test_a_run_of_the_publisher_notices_what_it_is_there_to_notice():
    found = publisher_fuzz.Found(grown_bytes=publisher_fuzz.GROWTH_BYTES_MAX + 1)
    found.conversations, found.counts = 9, {"confirmed": 0}
    assert len(publisher_fuzz.problems(found, 100_000)) == 3
    found.grown_bytes, found.up, found.counts = 0, 5, {"confirmed": 1}
    assert publisher_fuzz.problems(found, 100_000) == []
