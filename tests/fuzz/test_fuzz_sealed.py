"""Mutated sealed datagrams: nothing is raised, each is counted by one reason, and nothing but what
was sealed is ever opened."""

import os
import random

from feedhandler.fixcast.sealing import OVERHEAD_BYTES, Opener, Reason, Sealer
from tests.support.fix_keys import CHANNEL, START, bytes_of, key, receiver, ring

#: As many in `make test`; `SEALED=10000000` for a campaign.
DATAGRAMS = int(os.environ.get("SEALED", "40000"))


def mutated(chance: random.Random, datagram: bytes) -> bytes:
    """A datagram with bytes changed, cut off, added, or put together anew."""
    data = bytearray(datagram)
    match chance.randrange(6):
        case 0:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 1:
            del data[chance.randrange(len(data)) :]
        case 2:
            data += chance.randbytes(1 + chance.randrange(40))
        case 3:
            at = chance.randrange(48)
            data[at : at + 8] = chance.randbytes(8)
        case 4:
            at = chance.randrange(len(data))
            del data[at : at + 1 + chance.randrange(8)]
        case 5:
            data[32:40] = chance.choice([0, 1, 5, 1 << 32, (1 << 64) - 1]).to_bytes(8, "big")
    return bytes(data)


def test_mutated_datagrams_are_dropped_with_one_reason(seed: int) -> None:
    chance = random.Random(seed)
    keys = ring(key(1), key(2, START * 2))
    sealer, opener = Sealer(keys, bytes_of(seed)), Opener(keys)
    true = [sealer.seal(b"8=FIXT.1.1\x01" * chance.randrange(9), START) for _ in range(64)]
    known = set(true)
    opened = opener.open(true[0], 0, START)
    assert opened is not None
    opener.accept(opened, 0)
    for _ in range(DATAGRAMS):
        datagram = mutated(chance, true[chance.randrange(64)])
        before = sum(opener.counts.values())
        found = opener.open(datagram, 0, START)
        assert (found is not None) <= (datagram in known), datagram.hex()
        assert sum(opener.counts.values()) - before == (found is None), datagram.hex()
    reached = {reason for reason in Reason if opener.counts[reason.value]}
    assert reached >= {
        Reason.TRUNCATED,
        Reason.NOT_SEALED,
        Reason.KIND_UNKNOWN,
        Reason.OTHER_CHANNEL,
        Reason.KEY_UNKNOWN,
        Reason.STALE,
        Reason.TOO_EARLY,
        Reason.REPLAYED,
        Reason.FORGED,
    }
    assert opener.sessions == 1
    print(f"channel {CHANNEL}:", dict(opener.counts))


def test_random_bytes_behind_a_true_header_are_dropped(seed: int) -> None:
    chance = random.Random(seed)
    to = receiver()
    head = Sealer(ring(), bytes_of(seed)).seal(b"", START)[:48]
    for size in range(2000):
        assert to.datagram(head + chance.randbytes(size % 300), size % 3, START) == []
    assert set(to.opener.counts) <= {"truncated", "forged"}
    assert to.opener.counts["truncated"] == sum(
        size % 300 < OVERHEAD_BYTES - 48 for size in range(2000)
    )
