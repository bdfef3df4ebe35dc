"""The members of an overlay, driven by hand: what they take, forward, answer and refuse."""

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay import wire
from feedhandler.overlay.clocks import OverlayClock
from feedhandler.overlay.counters import OverlayCounter as C
from feedhandler.overlay.delays import SetApart
from feedhandler.overlay.liveness import GONE_NS, SILENT_NS, Change, State
from feedhandler.overlay.node import (
    ClockStepped,
    Node,
    NodeSettings,
    OtherTopology,
    Outcome,
)
from feedhandler.overlay.proxy import Proxy
from feedhandler.overlay.receiver import Receiver
from feedhandler.overlay.release import Deliver, Gap, NewEpoch
from feedhandler.overlay.sender import Sender, SenderSettings
from feedhandler.overlay.topology import Shape, Topology
from feedhandler.overlay.topology_file import excerpt
from feedhandler.overlay.wire import Kind, Report, WireError
from tests.support.overlay import EPOCH, control, data, tree

MS, SECOND = 1_000_000, 1_000_000_000
VERSION = wire.encode_version(1)
DELAYS = (50_000,) * 6
HELLO = (Kind.HELLO, VERSION)


def sender(topology: Topology, **more: object) -> Sender:
    return Sender(topology, EPOCH, 0, **more)  # type: ignore[arg-type]


def proxy(topology: Topology, name: str = "proxy-0-0", **more: object) -> Proxy:
    return Proxy(topology, name, EPOCH, 0, **more)  # type: ignore[arg-type]


def receiver(topology: Topology, name: str = "receiver-0", **more: object) -> Receiver:
    return Receiver(topology, name, EPOCH, 0, **more)  # type: ignore[arg-type]


def kinds(outcome: Outcome) -> list[Kind]:
    return [wire.read_header(datagram).kind for _, datagram in outcome.sends]


def ports(outcome: Outcome) -> list[int]:
    return [address[1] for address, _ in outcome.sends]


def counted(node: Node) -> dict[C, int]:
    return {each: node.counts[each] for each in C if node.counts[each]}


def say(
    node: Node,
    topology: Topology,
    name: str,
    kind: Kind,
    payload: bytes,
    id: int = 1,
    now: int = 0,
    sent: int = 0,
) -> Outcome:
    """Have a neighbour say something."""
    member = topology.member(name)
    made = control(topology, member, kind, payload, id, sent_ns=sent)
    return node.receive(made, member.address, now)


# -- data ------------------------------------------------------------------------------------------


def test_a_proxy_forwards_the_first_copy_unchanged_to_its_own_and_its_siblings_children() -> None:
    topology = tree()
    node, first = proxy(topology), data(topology, 1)
    outcome = node.receive(first, ("10.0.0.1", 1), 5)
    assert ports(outcome) == [5, 6, 7, 8]
    assert all(datagram is first for _, datagram in outcome.sends)
    assert node.receive(first, ("10.0.0.1", 1), 6).sends == []
    assert counted(node) == {C.ACCEPTED: 1, C.DUPLICATES: 1, C.SENT: 4}


@pytest.mark.parametrize(
    ("port", "made", "counter"),
    [
        (5, lambda t: data(t, 2), C.STRANGERS),
        (99, lambda t: data(t, 2), C.STRANGERS),
        (1, lambda t: data(tree(), 2), C.FORGED),
        (1, lambda t: data(t, 2)[:-1] + b"x", C.FORGED),
        (1, lambda t: data(tree(number=8), 2), C.OTHER_TREE),
        (1, lambda t: data(t, 9, epoch=EPOCH - 1), C.OLD_EPOCH),
        (1, lambda t: data(t, 1), C.DUPLICATES),
        (1, lambda t: b"OV", C.MALFORMED),
        (1, lambda t: data(t, 9, epoch=EPOCH - 1, kind=Kind.HEARTBEAT), C.OLD_EPOCH),
        (1, lambda t: data(t, 9, kind=Kind.HEARTBEAT), C.REPLAYED),
        (1, lambda t: data(tree(), 9, sent_ns=8, kind=Kind.HEARTBEAT), C.FORGED),
    ],
)
def test_what_is_not_the_first_copy_of_a_source_is_counted_and_goes_nowhere(
    port: int, made: object, counter: C
) -> None:
    topology = tree()
    node = proxy(topology)
    node.receive(data(topology, 1), ("10.0.0.1", 1), 0)
    node.receive(data(topology, 1, sent_ns=7, kind=Kind.HEARTBEAT), ("10.0.0.1", 1), 0)
    before = node.counts[counter]
    assert node.receive(made(topology), ("10.0.0.1", port), 1) == ([], [])  # type: ignore[operator]
    assert node.counts[counter] == before + 1
    # A forged copy that came first does not stand in the true one's way.
    assert node.receive(data(topology, 2), ("10.0.0.1", 1), 2).sends


def test_a_restarted_sender_is_followed_by_message_or_heartbeat() -> None:
    topology = tree()
    node = receiver(topology)
    source = ("10.0.0.1", 2)
    begun = node.receive(data(topology, 4), source, 0).events
    assert [type(each) for each in begun] == [NewEpoch, Deliver]
    assert begun[0] == NewEpoch(EPOCH, 4)
    told = node.receive(data(topology, 1, epoch=EPOCH + 1, kind=Kind.HEARTBEAT), source, 1)
    assert told.events == [NewEpoch(EPOCH + 1, 1)]
    assert node.receive(data(topology, 5), source, 2).events == []
    left = node.tick(node.queue.deadline_ns).events
    assert left == [Gap(EPOCH + 1, 1, 1)]
    again = node.receive(data(topology, 1, epoch=EPOCH + 2), source, 60 * MS).events
    assert [type(each) for each in again] == [NewEpoch, Deliver]
    assert node.counts[C.NEW_EPOCHS] == 2
    assert node.counts[C.OLD_EPOCH] == 1


def test_who_joins_by_a_heartbeat_begins_behind_it() -> None:
    topology = tree()
    node = receiver(topology)
    told = node.receive(data(topology, 8, kind=Kind.HEARTBEAT), ("10.0.0.1", 4), 1)
    assert told.events == [NewEpoch(EPOCH, 9)]


def test_the_sender_takes_no_data_and_begins_with_another_child_each_time() -> None:
    topology = tree()
    node = sender(topology)
    assert node.receive(data(topology, 1), ("10.0.0.1", 2), 0) == ([], [])
    orders = [[address[1] for address, _ in node.send(b"x", at)] for at in range(3)]
    assert orders == [[3, 4, 2], [4, 2, 3], [2, 3, 4]]
    assert [wire.read_header(node.send(b"", 9)[0][1]).id] == [4]
    with pytest.raises(WireError):
        node.send(bytes(1_401), 9)
    assert node.id == 4, "a message that is too long takes no id"


# -- deadlines -------------------------------------------------------------------------------------


def hear(node: Sender, topology: Topology, delay_ns: int, id: int, now: int) -> None:
    """Have a proxy report, and an interval end."""
    payload = wire.encode_report(Report(3, (delay_ns,) * 6))
    say(node, topology, "proxy-0-0", Kind.REPORT, payload, id, now)
    node.tick(now)


def deadline(node: Sender, now: int) -> int:
    return wire.read_header(node.send(b"", now)[0][1]).deadline_ns


def test_deadlines_follow_reports_and_never_go_back() -> None:
    topology = tree()
    node = sender(topology, sending=SenderSettings(wanted=0))
    assert deadline(node, 0) == 0
    hear(node, topology, 900_000, 1, 0)
    assert deadline(node, 1_000) == 901_000
    hear(node, topology, 100_000, 2, 100 * MS)
    assert deadline(node, 1_000) == 901_000
    assert deadline(node, 100 * MS) == 100 * MS + 100_000
    assert node.heard_receivers == 3


@pytest.mark.parametrize(("step_ns", "restarted"), [(-10 * MS, False), (-SECOND, True)])
def test_a_step_back_keeps_the_deadline_or_begins_another_epoch(
    step_ns: int, restarted: bool
) -> None:
    topology = tree()
    clock = OverlayClock(5 * SECOND)
    node = sender(topology, clock=clock)
    hear(node, topology, 900_000, 1, 0)
    before = deadline(node, 1_000)
    stepped = node.wall(1_000, 5 * SECOND + 1_000 + step_ns)
    assert stepped.events == [ClockStepped(step_ns)]
    after = wire.read_header(node.send(b"", 2_000)[0][1])
    assert (after.epoch > EPOCH) == restarted
    assert (after.id == 1) == restarted
    assert (after.deadline_ns < before) == restarted
    assert after.deadline_ns - after.sent_ns <= node.sending.hold_ns_max
    assert node.wall(2_000, 5 * SECOND + 2_000 + step_ns) == ([], [])


@pytest.mark.parametrize("known", [False, True])
def test_without_the_time_or_the_wish_nothing_is_dated(known: bool) -> None:
    topology = tree()
    sending = SenderSettings(hold=not known)
    node = sender(topology, clock=OverlayClock(known=known), sending=sending)
    hear(node, topology, 900_000, 1, 0)
    assert deadline(node, 0) == 0


def test_heartbeats_tell_the_last_id_and_rise_though_the_clock_steps_back() -> None:
    topology = tree()
    clock = OverlayClock(SECOND)
    node = sender(topology, clock=clock)
    sent = []
    for now in (0, 100 * MS):
        node.send(b"", now)
        outcome = node.tick(now)
        beats = [wire.read_header(d) for _, d in outcome.sends if d[3] == Kind.HEARTBEAT]
        assert len(beats) == 3
        sent.append(beats[0])
        clock.wall(now, now)
    assert [each.id for each in sent] == [1, 2]
    assert sent[1].sent_ns > sent[0].sent_ns
    assert node.deadline_ns == 200 * MS
    assert node.tick(150 * MS).sends == []


# -- neighbours ------------------------------------------------------------------------------------


def test_a_child_is_answered_with_no_more_than_it_said() -> None:
    topology = tree()
    node = proxy(topology)
    answer = say(node, topology, "receiver-1", *HELLO)
    assert kinds(answer) == [Kind.WELCOME]
    assert ports(answer) == [6]
    assert answer.events == [Change("receiver-1", State.ALIVE)]
    probed = say(node, topology, "receiver-1", Kind.PROBE, wire.PROBE_PAYLOAD, 2, 50, sent=40)
    assert kinds(probed) == [Kind.PROBE_ANSWER]
    assert wire.read_probe_answer(wire.payload_of(probed.sends[0][1])) == (40, 50)
    for outcome in (answer, probed):
        assert len(outcome.sends[0][1]) <= wire.HEADER_BYTES + len(wire.PROBE_PAYLOAD)


@pytest.mark.parametrize(
    ("name", "as_name", "kind", "payload", "counter"),
    [
        ("receiver-5", "receiver-5", *HELLO, C.STRANGERS),  # no child of this proxy
        ("proxy-0-1", "proxy-0-1", *HELLO, C.STRANGERS),
        ("sender", "sender", *HELLO, C.STRANGERS),  # a parent does not say hello
        ("receiver-0", "receiver-0", Kind.WELCOME, VERSION, C.STRANGERS),
        ("receiver-0", "receiver-1", *HELLO, C.FORGED),  # under another's key
        ("receiver-0", "receiver-0", Kind.HELLO, b"", C.WRONG_PAYLOAD),
        ("receiver-0", "receiver-0", Kind.PROBE, b"", C.WRONG_PAYLOAD),
        ("receiver-0", "receiver-0", Kind.REPORT, b"", C.WRONG_PAYLOAD),
        ("sender", "sender", Kind.PROBE_ANSWER, b"", C.WRONG_PAYLOAD),
        ("receiver-0", "receiver-0", Kind.LAST_HOP, b"", C.WRONG_PAYLOAD),
    ],
)
def test_what_no_neighbour_may_say_is_not_answered(
    name: str, as_name: str, kind: Kind, payload: bytes, counter: C
) -> None:
    topology = tree()
    node = proxy(topology)
    made = control(topology, topology.member(as_name), kind, payload)
    assert node.receive(made, topology.member(name).address, 0).sends == []
    assert counted(node) == {counter: 1}


def test_a_control_datagram_counts_once_and_of_its_tree() -> None:
    topology = tree()
    node = proxy(topology)
    assert say(node, topology, "receiver-0", *HELLO, id=3).sends
    for id in (3, 2):
        assert say(node, topology, "receiver-0", *HELLO, id=id) == ([], [])
    assert node.counts[C.REPLAYED] == 2
    assert say(node, topology, "receiver-0", *HELLO, id=4).sends
    other = control(tree(number=8), topology.member("receiver-0"), *HELLO, id=9)
    assert node.receive(other, ("10.0.0.1", 5), 0) == ([], [])
    assert node.counts[C.OTHER_TREE] == 1


def test_a_member_whose_key_is_unknown_is_not_believed() -> None:
    topology = tree()
    node = Receiver(excerpt(topology, "receiver-0"), "receiver-0", EPOCH, 0)
    member = topology.member("proxy-0-0")
    node.admission.sources[member.address] = member._replace(key=b"")
    assert say(node, topology, "proxy-0-0", Kind.WELCOME, VERSION) == ([], [])
    assert node.counts[C.FORGED] == 1


def test_a_child_that_is_gone_is_sent_nothing_until_it_is_back() -> None:
    topology = tree()
    node = proxy(topology)
    for at in range(4):
        say(node, topology, f"receiver-{at}", *HELLO)
    assert node.tick(SILENT_NS).events == [
        Change(f"receiver-{at}", State.SILENT) for at in range(4)
    ]
    for at in range(3):
        say(node, topology, f"receiver-{at}", *HELLO, id=2, now=GONE_NS - 1)
    gone = node.tick(GONE_NS).events
    assert Change("receiver-3", State.GONE) in gone
    outcome = node.receive(data(topology, 1), ("10.0.0.1", 1), GONE_NS)
    assert ports(outcome) == [5, 6, 7]
    assert node.counts[C.UNSERVED] == 1
    say(node, topology, "receiver-3", *HELLO, id=2, now=GONE_NS)
    assert len(node.receive(data(topology, 2), ("10.0.0.1", 1), GONE_NS).sends) == 4


def test_a_receiver_greets_all_sources_and_reports_to_the_next_one_while_its_parent_is_silent(
) -> None:  # fmt: skip
    topology = tree()
    node = receiver(topology, settings=NodeSettings(probe_ns=50 * MS))
    first = node.tick(0)
    assert kinds(first) == [Kind.HELLO, Kind.HELLO, Kind.PROBE]
    assert ports(first) == [2, 4, 2]
    for name in ("proxy-0-0", "proxy-0-2"):
        say(node, topology, name, Kind.WELCOME, VERSION)
    say(node, topology, "proxy-0-2", Kind.WELCOME, VERSION, id=2, now=SILENT_NS - 1)
    outcome = node.tick(SILENT_NS)
    assert outcome.events == [Change("proxy-0-0", State.SILENT)]
    assert ports(outcome) == [2, 4, 4]
    outcome = node.tick(SILENT_NS + SILENT_NS)
    assert ports(outcome) == [2, 4, 2], "where all are silent, the parent"
    assert node.deadline_ns == 2 * SILENT_NS + 50 * MS


# -- time ------------------------------------------------------------------------------------------


def test_a_receiver_asks_its_parent_for_the_time_and_survives_a_step() -> None:
    topology = tree()
    node = receiver(
        topology, settings=NodeSettings(probe_ns=50 * MS), clock=OverlayClock(known=False)
    )
    events: list[object] = []
    offset_ns, now = 7 * SECOND, 0
    for id in range(1, 9):
        now += 50 * MS
        if id == 5:
            offset_ns += SECOND
        at_ns = now + offset_ns
        payload = wire.encode_probe_answer(now - 1_000, at_ns - 500)
        answer = say(node, topology, "proxy-0-0", Kind.PROBE_ANSWER, payload, id, now, at_ns - 500)
        events += [each for each in answer.events if isinstance(each, ClockStepped)]
    assert events == [ClockStepped(SECOND)]
    assert node.clock.offset_ns == offset_ns
    assert node.counts[C.CLOCK_STEPS] == 1


def test_who_is_given_the_time_takes_no_answer_and_who_has_none_gives_none() -> None:
    topology = tree()
    given = receiver(topology)
    payload = wire.encode_probe_answer(0, SECOND)
    say(given, topology, "proxy-0-0", Kind.PROBE_ANSWER, payload, 1, 10, SECOND)
    assert given.clock.offset_ns == 0
    without = proxy(topology, clock=OverlayClock(known=False))
    assert say(without, topology, "receiver-0", Kind.PROBE, wire.PROBE_PAYLOAD).sends == []


# -- reports ---------------------------------------------------------------------------------------


def test_reports_are_merged_up_the_tree_and_outliers_are_told() -> None:
    topology = tree(Shape(2, 2, 1, 6))
    root, middle = sender(topology), proxy(topology)
    for at in range(3):
        delays = DELAYS if at else (900_000,) * 6
        payload = wire.encode_report(Report(1, delays, 1, 8, 1 << at))
        say(middle, topology, f"receiver-{at}", Kind.REPORT, payload)
    outcome = middle.tick(0)
    assert SetApart(("receiver-0",)) in outcome.events
    (report,) = [each for each in outcome.sends if each[1][3] == Kind.REPORT]
    assert wire.read_report(wire.payload_of(report[1])) == Report(2, DELAYS, 1, 8, 0b110, (0,))
    root.receive(report[1], topology.member("proxy-0-0").address, 0)
    root.tick(0)
    assert root.controller.hold_ns == DELAYS[0]
    assert root.outliers == (0,)
    assert root.heard_receivers == 2


def test_the_sender_tells_which_child_it_sets_apart() -> None:
    topology = tree()
    node = sender(topology)
    for at in range(3):
        payload = wire.encode_report(Report(2, (DELAYS, DELAYS, (900_000,) * 6)[at]))
        say(node, topology, f"proxy-0-{at}", Kind.REPORT, payload)
    assert SetApart(("proxy-0-2",)) in node.tick(0).events


def test_a_receiver_reports_delays_and_what_was_late() -> None:
    topology = tree()
    node = receiver(topology)
    source = ("10.0.0.1", 2)
    node.tick(0)
    sent = 10 * MS
    for id, took, hold in ((1, 40, 50), (2, 60, 50), (5, 40, 50)):
        made = data(topology, id, sent_ns=sent, deadline_ns=sent + hold)
        node.receive(made, source, sent + took)
    node.tick(sent + 50 * MS)
    (report,) = [d for _, d in node.tick(100 * MS).sends if d[3] == Kind.REPORT]
    said = wire.read_report(wire.payload_of(report))
    assert said == Report(1, (40, 60, 60, 60, 60, 60), 1, 5, 0b00010)
    assert not [d for _, d in node.tick(200 * MS).sends if d[3] == Kind.REPORT]


def test_a_receiver_without_the_time_reports_nothing() -> None:
    topology = tree()
    node = receiver(topology, clock=OverlayClock(known=False))
    node.receive(data(topology, 1), ("10.0.0.1", 2), 5)
    assert Kind.REPORT not in kinds(node.tick(100 * MS))


# -- model 3 ---------------------------------------------------------------------------------------


def relay(outcome: Outcome, source: Node, topology: Topology, nodes: dict[str, Node]) -> None:
    """Bring a member's words on last hops to whom they are for."""
    for address, datagram in outcome.sends:
        name = topology.by_address[address].name
        if datagram[3] == Kind.LAST_HOP and name in nodes:
            nodes[name].receive(datagram, source.member.address, 0)


def test_last_hops_are_exchanged_over_the_tree_and_their_difference_is_held() -> None:
    topology = tree()
    names = ["receiver-0", "receiver-2", "proxy-0-0", "proxy-0-1", "sender"]
    nodes: dict[str, Node] = {
        name: {"s": lambda n: sender(topology), "p": lambda n: proxy(topology, n)}.get(
            name[0], lambda n: receiver(topology, n)
        )(name)
        for name in names
    }
    for name, latency_ns in (("receiver-0", 10_000), ("receiver-2", 50_000)):
        nodes[name].last_hop.observe(latency_ns)  # type: ignore[attr-defined]
    for at in range(5):
        order = names if at < 3 else reversed(names)
        for name in order:
            relay(nodes[name].tick(at * 100 * MS), nodes[name], topology, nodes)
    assert nodes["receiver-0"].queue.extra_ns == 40_000  # type: ignore[attr-defined]
    assert nodes["receiver-2"].queue.extra_ns == 0  # type: ignore[attr-defined]


# -- topology --------------------------------------------------------------------------------------


def test_a_replaced_proxy_is_served_and_the_old_one_is_a_stranger() -> None:
    old = tree()
    new = old.replaced("proxy-0-0", ("10.0.0.2", 9), bytes(32))
    root, child = sender(old), receiver(old)
    say(root, old, "proxy-0-0", Kind.REPORT, wire.encode_report(Report(1, DELAYS)))
    for node in (root, child):
        node.adopt(new, 5)
    assert {address[1] for address, _ in root.send(b"", 6)} == {9, 3, 4}
    assert say(root, old, "proxy-0-0", *HELLO, id=2) == ([], [])
    assert root.counts[C.STRANGERS] == 1
    stale = control(old, old.member("proxy-0-0"), *HELLO, id=3)
    assert root.receive(stale, ("10.0.0.2", 9), 7) == ([], [])
    assert root.counts[C.FORGED] == 1
    assert child.receive(data(old, 1), ("10.0.0.1", 2), 7) == ([], [])
    assert child.receive(data(old, 1), ("10.0.0.2", 9), 7).events
    answer = say(root, new, "proxy-0-0", Kind.HELLO, wire.encode_version(1), id=1, now=8)
    assert OtherTopology("proxy-0-0", 1) in answer.events
    root.tick(100 * MS)
    assert not root.controller.known, "what the old one reported is forgotten"


def test_a_proxy_forgets_what_a_replaced_child_reported() -> None:
    old = tree()
    node = proxy(old)
    say(node, old, "receiver-0", Kind.REPORT, wire.encode_report(Report(1, DELAYS)))
    node.adopt(old.replaced("receiver-0", ("10.0.0.2", 9), bytes(32)), 5)
    assert Kind.REPORT not in kinds(node.tick(0))


def test_only_a_higher_version_of_the_same_tree_is_adopted() -> None:
    old = tree()
    node = proxy(old)
    changed = old.replaced("proxy-0-0", ("10.0.0.2", 9), bytes(32))
    other = Topology(2, old.tree, tree(Shape(2, 3, 2, 6)).shape, old.key, old.members)
    for topology in (old, changed, other):
        with pytest.raises(UsageError):
            node.adopt(topology, 0)


def test_a_member_wants_its_own_role_and_key() -> None:
    topology = tree()
    with pytest.raises(UsageError):
        proxy(topology, "receiver-0")
    with pytest.raises(UsageError):
        proxy(excerpt(topology, "receiver-5"), "proxy-0-0")
