"""Several trees as one: numbered in turns by the sender, merged by number by receivers.

At work they are `tests/simulation/test_overlay_trees.py`'s."""

import dataclasses
from collections.abc import Sequence

import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.overlay.delays import Report, decode_report
from feedhandler.overlay.fairness import LADDER, HoldController
from feedhandler.overlay.members import HEARTBEAT_NS, Receiver, Sender, Sends
from feedhandler.overlay.merging import (
    TREES_MAX,
    MergedReceiver,
    MergedSender,
    check_trees,
    receiver_of,
    sender_of,
)
from feedhandler.overlay.readings import counts_of, parts_of
from feedhandler.overlay.release import Deliver, Event, Gap
from feedhandler.overlay.topology import Topology, make_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import Head, Kind, encode, payload_of, read

US, MS, S = 1_000, 1_000_000, 1_000_000_000
NOW = 1_800_000_000 * S


def trees(count: int, shape: Shape) -> list[Topology]:
    """Topologies of one sender and the same receivers; proxies of tree `t` are on host `t`."""
    found = []
    for tree in range(1, count + 1):
        ends = 1 + shape.proxies
        addresses = [("10.0.0.1", 7_000)]
        addresses += [(f"10.0.{tree}.1", 7_000 + n) for n in range(shape.proxies)]
        addresses += [("10.0.0.1", 7_000 + ends + n) for n in range(shape.receivers)]
        keys = (bytes([tree]) * 31 + bytes([n]) for n in range(1 + len(addresses)))
        found.append(make_topology(shape, tree, addresses, keys))
    return found


TWO = trees(2, Shape(4, 2, 2, 1))


def merged_sender(topologies: Sequence[Topology]) -> MergedSender:
    sender = sender_of(topologies, NOW)
    assert isinstance(sender, MergedSender)
    return sender


def merged_receiver(topologies: Sequence[Topology], name: str = "receiver-0") -> MergedReceiver:
    receiver = receiver_of(topologies, name, NOW, gap_wait_ns=5 * MS)
    assert isinstance(receiver, MergedReceiver)
    return receiver


def heads(sends: Sends) -> list[Head]:
    found = [read(datagram) for datagram, _ in sends]
    return [each for each in found if isinstance(each, Head)]


def test_a_single_tree_needs_no_merging() -> None:
    assert isinstance(sender_of(TWO[:1], NOW), Sender)
    assert isinstance(receiver_of(TWO[:1], "receiver-0", NOW), Receiver)


def test_messages_are_numbered_over_the_trees_in_turns() -> None:
    sender = merged_sender(trees(3, Shape(4, 2, 2, 1)))
    found = [heads(sender.send(b"m", NOW + n))[0] for n in range(7)]
    assert [each.id for each in found] == list(range(1, 8))
    assert [each.tree for each in found] == [1, 2, 3, 1, 2, 3, 1]
    with pytest.raises(ValueError, match="at most"):
        sender.send(bytes(2_000), NOW)
    assert heads(sender.send(b"m", NOW))[0].id == 8
    assert [(each.tree, each.id) for each in heads(sender.beat(NOW))] == [(1, 8), (2, 8), (3, 8)]


def test_deadlines_never_go_back_over_trees_of_different_holds() -> None:
    sender = merged_sender(TWO)
    sender.members[0].hold_ns, sender.members[1].hold_ns = 500 * US, 90 * US
    deadlines = [heads(sender.send(b"m", NOW + n))[0].deadline_ns for n in range(4)]
    assert deadlines == [NOW + 500 * US, NOW + 500 * US, NOW + 500 * US + 2, NOW + 500 * US + 2]


def test_no_heartbeat_follows_a_message_of_another_tree_at_once() -> None:
    sender = merged_sender(TWO)
    assert len(sender.tick(NOW)) == 2
    sender.send(b"m", NOW + HEARTBEAT_NS - 1)
    assert sender.tick(NOW + HEARTBEAT_NS) == [], "in neither tree"
    assert sender.deadline_ns == NOW + 2 * HEARTBEAT_NS - 1
    assert len(sender.tick(NOW + 2 * HEARTBEAT_NS)) == 2


def test_a_controller_is_each_trees_own() -> None:
    sender = sender_of(TWO, NOW, controller=lambda: HoldController(0.99))
    assert isinstance(sender, MergedSender)
    one, other = (each.controller for each in sender.members)
    assert one is not None
    assert one is not other


def from_sender(topology: Topology, number: int, kind: Kind = Kind.DATA) -> bytes:
    return encode(Head(kind, topology.tree, NOW, number, NOW), b"%d" % number, topology.key)


def arrive(receiver: MergedReceiver, number: int, now_ns: int = NOW) -> Sends:
    """Message `number` comes, by the tree whose turn it was."""
    topology = TWO[(number - 1) % 2]
    source = topology.sources(topology.member("receiver-0"))[0]
    return receiver.receive(from_sender(topology, number), source.address, now_ns)


def had(events: Sequence[Event]) -> list[object]:
    return [each.id if isinstance(each, Deliver) else each for each in events]


def test_what_trees_bring_is_released_in_one_order() -> None:
    receiver = merged_receiver(TWO)
    for number in (1, 3, 5, 4):
        arrive(receiver, number)
    assert had(receiver.release(NOW)) == [1]
    arrive(receiver, 2)
    arrive(receiver, 2)
    assert had(receiver.release(NOW)) == [2, 3, 4, 5]
    assert receiver.counts == {"first": 5, "duplicate": 1}
    first, other = parts_of(receiver)
    shared = {"delivered", "clock_steps"}
    assert not shared & counts_of(other, None).keys(), "they are shared, and the first one's"
    assert counts_of(first, None)["first"] == 3


def test_a_tree_that_is_quicker_at_the_start_takes_nothing_from_the_others() -> None:
    receiver = merged_receiver(TWO)
    arrive(receiver, 2)
    assert receiver.release(NOW) == []
    arrive(receiver, 1, NOW + MS)
    assert had(receiver.release(NOW + MS)) == [1, 2]
    late = merged_receiver(TWO)
    arrive(late, 8)
    arrive(late, 7, NOW + MS)
    assert late.release_ns == NOW + 6 * MS
    assert late.release(NOW + 6 * MS - 1) == []
    assert had(late.release(NOW + 6 * MS)) == [7, 8]


def test_a_gap_is_reported_up_the_trees_that_it_is_in() -> None:
    receiver = merged_receiver(TWO)
    for number in (1, 2, 6):
        arrive(receiver, number)
    assert had(receiver.release(NOW)) == [1, 2]
    assert receiver.release_ns == NOW + 5 * MS
    assert had(receiver.release(NOW + 5 * MS)) == [Gap(NOW, 3, 5), 6]
    assert receiver.deadline_ns > NOW
    late = {}
    for datagram, (to,) in receiver.tick(NOW + 2 * S):
        head = read(datagram)
        report = decode_report(payload_of(datagram))
        assert isinstance(head, Head)
        assert report is not None
        assert to == TWO[head.tree - 1].member("proxy-0-0").address
        late[head.tree] = {n for n in range(1, 10) if report.late >> n & 1}
    assert late == {1: {3, 5}, 2: {4}}


def test_a_datagram_of_no_tree_here_is_counted() -> None:
    receiver = merged_receiver(TWO)
    third = trees(3, Shape(4, 2, 2, 1))[2]
    source = third.sources(third.member("receiver-0"))[0]
    assert receiver.receive(from_sender(third, 1), source.address, NOW) == []
    assert receiver.receive(b"", source.address, NOW) == []
    assert receiver.counts == {"tree": 1, "short": 1}


def test_a_tree_takes_its_own_later_version() -> None:
    receiver, sender = merged_receiver(TWO), merged_sender(TWO)
    later = TWO[1].replaced("proxy-0-1", ("10.0.9.9", 7_000), b"n" * 32)
    for each in (receiver, sender):
        assert each.change(later) == ""
        assert [part.topology.version for part in each.members] == [1, 2]
        assert each.change(dataclasses.replace(later, tree=9)) == "it is another tree"


def test_the_isolated_process_answers_one_of_them_and_both_hold() -> None:
    echo = ("10.1.0.1", 5_000)
    receiver = receiver_of(TWO, "receiver-0", NOW, echo=echo)
    assert isinstance(receiver, MergedReceiver)
    ((probe, _),) = receiver.tick(NOW)
    receiver.receive(probe, echo, NOW + 20 * US)
    topology = TWO[1]
    source = topology.sources(topology.member("receiver-0"))[0]
    notice = Head(Kind.NOTICE, topology.tree, NOW, 0, NOW)
    hop = (50 * US).to_bytes(8, "little")
    receiver.receive(encode(notice, hop, topology.key), source.address, NOW)
    assert receiver.holding.extra_hold_ns == 40 * US
    assert receiver.last_hop.own_ns(NOW) == 10 * US


OTHER_SHAPE = trees(2, Shape(3, 2, 2, 1))[1]


@pytest.mark.parametrize(
    ("topologies", "said"),
    [
        ([TWO[0], TWO[0]], "two topologies of tree 1"),
        (trees(TREES_MAX + 1, Shape(1, 1, 1)), f"{TREES_MAX + 1} trees"),
        ([TWO[0], OTHER_SHAPE], "tree 2 has fewer receivers than tree 1"),
        ([OTHER_SHAPE, TWO[0]], "tree 1 has receiver-3 at 10.0.0.1:7006, and tree 2 has not"),
        ([TWO[0], TWO[1].replaced("sender", ("10.9.9.9", 1), b"n" * 32)], "tree 2 has sender at"),
    ],
    ids=["number", "many", "fewer", "more", "elsewhere"],
)
def test_trees_that_cannot_be_merged_are_refused(topologies: list[Topology], said: str) -> None:
    check_trees(TWO)
    with pytest.raises(ConfigError, match=said):
        check_trees(topologies)


def test_a_report_moves_the_hold_of_its_tree_alone() -> None:
    sender = merged_sender(TWO)
    for n in range(2):
        member = TWO[1].member(f"proxy-0-{n}")
        report = Report(1, 2, 9, (700,) * len(LADDER)).encoded()
        datagram = encode(Head(Kind.REPORT, 2, 9, 1, NOW), report, member.key)
        sender.receive(datagram, member.address, NOW)
    assert [each.hold_ns for each in sender.members] == [0, 700]
