"""The overlay's members and files under mutated datagrams and topologies.

Invariants: a member's `receive` never raises, and what is forged, replayed, mutated or a stranger's
is neither forwarded nor answered and makes no event; a topology's text becomes a topology or raises
a `FeedhandlerError`. A neighbour that seals nonsense with its own key is answered with no more
datagrams than it sent, each no longer.

`FEEDHANDLER_FUZZ` is the number of datagrams (100,000 by default, 10 million for a campaign);
topologies, of which a parse costs as much as a hundred datagrams, are a hundredth of it.
"""

import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

from feedhandler.codecs.errors import FeedhandlerError
from feedhandler.overlay import wire
from feedhandler.overlay.counters import OverlayCounter as C
from feedhandler.overlay.node import Node
from feedhandler.overlay.proxy import Proxy
from feedhandler.overlay.receiver import Receiver
from feedhandler.overlay.sender import Sender
from feedhandler.overlay.topology import Address, Topology
from feedhandler.overlay.topology_file import parse, render
from feedhandler.overlay.wire import HEADER_BYTES, SEALED_BYTES, Kind, Report, WireError
from tests.support.overlay import EPOCH, control, data, tree

COUNT = int(os.environ.get("FEEDHANDLER_FUZZ", "100000"))
STRANGER: Address = ("192.0.2.1", 1)
#: Numbers at which something ends.
EDGES = (0, 1, 2, 3, 8, 9, 127, 128, 255, 1400, 1401, 0xFFFF)
REPORT = Report(3, (1, 2, 3, 4, 5, 6), 1, 20, 0b1011, (1, 2))
PAYLOADS = {
    Kind.REPORT: wire.encode_report(REPORT),
    Kind.PROBE: wire.PROBE_PAYLOAD,
    Kind.PROBE_ANSWER: wire.encode_probe_answer(1, 2),
    Kind.HELLO: wire.encode_version(1),
    Kind.WELCOME: wire.encode_version(1),
    Kind.LAST_HOP: wire.encode_last_hop(20_000, 3),
}


def mutated(dice: random.Random, datagram: bytes) -> bytes:
    """A datagram with bits turned, bytes set, cut, doubled or made up."""
    made = bytearray(datagram)
    trick = dice.randrange(8)
    if trick == 0:
        return bytes(made[: dice.randrange(len(made))])
    if trick == 1:
        return bytes(made + dice.randbytes(dice.randint(1, 40)))
    if trick == 2:
        return dice.randbytes(dice.randrange(90))
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(made))
        if trick < 5:
            made[at] ^= 1 << dice.randrange(8)
        elif trick < 7:
            made[at] = dice.choice(EDGES) & 255
        else:
            made[dice.randrange(SEALED_BYTES)] = dice.choice(EDGES) & 255
    return bytes(made)


def members(topology: Topology) -> list[Node]:
    """A sender, a proxy and a receiver, each of which has heard something."""
    return [
        Sender(topology, EPOCH, 0),
        Proxy(topology, "proxy-0-0", EPOCH, 0),
        Receiver(topology, "receiver-0", EPOCH, 0),
    ]


def true_datagrams(topology: Topology) -> list[tuple[bytes, Address]]:
    """What members may hear, each with its source."""
    found: list[tuple[bytes, Address]] = []
    for name in ("sender", "proxy-0-0", "proxy-0-2", "receiver-0", "receiver-5"):
        member = topology.member(name)
        found += [
            (control(topology, member, kind, payload, id=5), member.address)
            for kind, payload in PAYLOADS.items()
        ]
    for port in (1, 2, 4):
        found.append((data(topology, 5), ("10.0.0.1", port)))
        found.append((data(topology, 5, kind=Kind.HEARTBEAT), ("10.0.0.1", port)))
    return found


def test_nothing_mutated_forged_or_replayed_is_forwarded_or_answered(seed: int) -> None:
    dice, topology = random.Random(seed), tree()
    nodes, true = members(topology), true_datagrams(topology)
    for node in nodes:
        for datagram, source in true:
            node.receive(datagram, source, 0)
    before = [[each.counts[counter] for counter in (C.ACCEPTED, C.SENT)] for each in nodes]
    for at in range(COUNT):
        datagram, source = true[dice.randrange(len(true))]
        if at % 4 == 3:
            source = STRANGER  # replayed, by whom it was not sent
        elif at % 4 < 2:
            datagram = mutated(dice, datagram)
        outcome = nodes[at % 3].receive(datagram, source, at)
        assert not outcome.sends, (datagram.hex(), source)
        assert not outcome.events, (datagram.hex(), source)
    assert before == [[e.counts[counter] for counter in (C.ACCEPTED, C.SENT)] for e in nodes]
    for node in nodes:
        assert all(node.counts[each] for each in (C.MALFORMED, C.STRANGERS, C.FORGED))


def resealed(dice: random.Random, datagram: bytes, key: bytes) -> bytes:
    """A mutated datagram under a valid seal."""
    made = mutated(dice, datagram)
    if len(made) < HEADER_BYTES:
        return made
    return made[:SEALED_BYTES] + wire.compute_seal(key, made) + made[HEADER_BYTES:]


def test_a_neighbour_that_seals_nonsense_breaks_nothing_and_amplifies_nothing(seed: int) -> None:
    dice, topology = random.Random(seed), tree()
    nodes, now_ns = members(topology), 0
    neighbours = {
        0: ["proxy-0-0", "proxy-0-1"],
        1: ["sender", "receiver-0", "receiver-3"],
        2: ["proxy-0-0", "proxy-0-2"],
    }
    for at in range(COUNT // 4):
        which = dice.randrange(3)
        member = topology.member(dice.choice(neighbours[which]))
        kind = dice.choice([*PAYLOADS, Kind.DATA, Kind.HEARTBEAT])
        if kind in PAYLOADS:
            made = control(topology, member, kind, PAYLOADS[kind], id=at + 1, sent_ns=now_ns)
            key = member.key
        else:
            sent_ns = now_ns + dice.randrange(1 << 20)
            made = data(topology, 1 + at // 3, sent_ns=sent_ns, deadline_ns=sent_ns, kind=kind)
            key = topology.key
        if dice.random() < 0.8:
            made = resealed(dice, made, key)
        now_ns += dice.randrange(10_000_000)
        outcome = nodes[which].receive(made, member.address, now_ns)
        if kind in PAYLOADS and len(outcome.sends) > 0:
            assert len(outcome.sends) <= (4 if made[wire.KIND_AT] <= 2 else 1)
        nodes[which].tick(now_ns)


@pytest.mark.parametrize(
    ("payload", "read"),
    [
        (PAYLOADS[Kind.REPORT], wire.read_report),
        (PAYLOADS[Kind.HELLO], wire.read_version),
        (PAYLOADS[Kind.PROBE_ANSWER], wire.read_probe_answer),
        (PAYLOADS[Kind.LAST_HOP], wire.read_last_hop),
    ],
    ids=["report", "version", "probe-answer", "last-hop"],
)
def test_a_payload_is_read_or_refused(
    seed: int, payload: bytes, read: Callable[[bytes], object]
) -> None:
    dice, refused = random.Random(seed), 0
    for _ in range(COUNT // 4):
        try:
            read(mutated(dice, payload + bytes(40))[: dice.choice([len(payload), 90])])
        except WireError:
            refused += 1
    assert refused


#: What a mutation puts into a topology's text.
PIECES = (
    "-1", "0", "1", "16", "99999999999999999999", '""', '"x"', "[]", "{}", "nan", "true", "\n", "=",
    "[[member]]\n", 'role = "sender"\n', "layer = -1\n", "depth = 9\n", "fan_out = 20000\n", "\0",
    '"10.0.0.1:7"', "\ud7ff",
)  # fmt: skip


def mutated_text(dice: random.Random, text: str) -> str:
    """A topology's text with lines lost, doubled and changed, and values replaced."""
    lines = text.split("\n")
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(lines))
        trick = dice.randrange(6)
        if trick == 0 and len(lines) > 1:
            del lines[at]
        elif trick == 1:
            lines.insert(at, lines[dice.randrange(len(lines))])
        elif trick == 2:
            lines[at] = lines[at].partition("=")[0] + "= " + dice.choice(PIECES)
        elif trick == 3:
            lines.insert(at, dice.choice(PIECES))
        elif trick == 4 and lines[at]:
            where = dice.randrange(len(lines[at]))
            lines[at] = lines[at][:where] + chr(dice.randrange(128)) + lines[at][where + 1 :]
        else:
            lines = lines[: max(2, dice.randrange(len(lines) + 1))]
    return "\n".join(lines)


def test_a_topologys_text_is_read_or_refused(seed: int) -> None:
    dice, text = random.Random(seed), render(tree())
    seen: Counter[bool] = Counter()
    for _ in range(max(1_000, COUNT // 100)):
        made, lines = mutated_text(dice, text), 0
        try:
            parse(made)
        except FeedhandlerError as error:
            seen[False] += 1
            lines = str(error).count("\n")
        else:
            seen[True] += 1
        assert not lines, made
    assert seen[False] > seen[True] > 0
