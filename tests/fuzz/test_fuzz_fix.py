"""Damaged FIX messages of many types, through the compiled codec.

`FEEDHANDLER_FUZZ` is the number of messages (75,000 by default, 100 million for a campaign).
"""

import os

import pytest

pytest.importorskip("simplefix", reason="simplefix is the judge; it is in the dev extra")

from tests.fuzz import fix_fuzz


def test_every_damaged_message_gets_one_typed_answer_and_every_reason_comes(seed: int) -> None:
    count = int(os.environ.get("FEEDHANDLER_FUZZ", "75000"))
    print(f"python -m tests.fuzz.fix_fuzz --count {count} --seed {seed}")
    fuzzer = fix_fuzz.run(count, seed)
    print(fuzzer.report())
    assert fuzzer.messages == count
    assert fuzzer.judged > 0
    assert not fuzzer.missing


def test_a_seed_gives_the_same_messages_again() -> None:
    first, second = (fix_fuzz.Fuzzer(7) for _ in range(2))
    for _ in range(3):
        one, other = first.batch(64), second.batch(64)
        assert one[0].tobytes() == other[0].tobytes()
        assert one[1].tolist() == other[1].tolist()


def test_messages_of_every_type_are_right_before_they_are_damaged() -> None:
    fuzzer = fix_fuzz.Fuzzer(1)
    for body in fix_fuzz.BODIES[:-1]:
        message = fix_fuzz.sealed(b"".join(field + b"|" for field in body.split(b"|")[:-1]))
        fuzzer.compare(message)
    assert fuzzer.judged == fuzzer.compared == len(fix_fuzz.BODIES) - 1
