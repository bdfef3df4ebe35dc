"""Mutated and forged datagrams of the overlay: dropped with a counter, never forwarded or answered.

`OVERLAY=10000000` for the campaign of `make fuzz`.
"""

import os
import random

import pytest

from feedhandler.overlay.admission import FROM_SENDER
from feedhandler.overlay.delays import Report
from feedhandler.overlay.fairness import LADDER
from feedhandler.overlay.members import Proxy, Receiver, Sender
from feedhandler.overlay.topology import make_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import HEAD_BYTES, Head, Kind, encode

DATAGRAMS = int(os.environ.get("OVERLAY", "40000"))
NOW = 1_800_000_000 * 10**9


@pytest.mark.random
def test_what_was_changed_on_the_way_goes_no_further(seed: int) -> None:
    rng = random.Random(seed)
    shape = Shape(4, 2, 2, 1)
    addresses = [("10.0.0.1", 7_000 + n) for n in range(7)]
    topology = make_topology(shape, 1, addresses, (rng.randbytes(32) for _ in range(8)))
    members = [
        Sender(topology, NOW), Proxy(topology, "proxy-0-0", NOW),
        Receiver(topology, "receiver-0", NOW),
    ]  # fmt: skip
    key_of = {each.address: each.key for each in topology.members}
    report = Report(1, 1, 9, tuple(range(len(LADDER)))).encoded()
    for number in range(1, DATAGRAMS + 1):
        member = members[number % 3]
        address = rng.choice(addresses)
        kind = rng.choice(list(Kind))
        key = topology.key if kind in FROM_SENDER else key_of[address]
        payload = report if kind == Kind.REPORT else rng.randbytes(rng.randrange(30))
        datagram = bytearray(encode(Head(kind, 1, NOW, number, NOW), payload, key))
        for _ in range(rng.randrange(1, 4)):
            what = rng.randrange(4)
            if what == 0 and datagram:
                datagram[rng.randrange(len(datagram))] ^= 1 << rng.randrange(8)
            elif what == 1:
                del datagram[rng.randrange(len(datagram) + 1) :]
            elif what == 2:
                datagram += rng.randbytes(rng.randrange(1, 9))
            elif len(datagram) >= HEAD_BYTES:  # another number, under the old seal
                datagram[16:24] = rng.randbytes(8)
        if bytes(datagram) == encode(Head(kind, 1, NOW, number, NOW), payload, key):
            continue
        before = sum(member.counts.values())
        assert member.receive(bytes(datagram), address, NOW) == []
        assert sum(member.counts.values()) == before + 1, "each is counted, once"
    assert "first" not in members[1].counts
    assert "forwarded" not in members[1].counts
