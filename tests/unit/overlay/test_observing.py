"""Members watched from outside: health, status, metrics, and the doctor on a topology."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from feedhandler.counters import OVERLAY_COUNTS as COUNTS
from feedhandler.counters import OVERLAY_GAUGES as GAUGES
from feedhandler.doctor import host
from feedhandler.doctor import overlay_members as doctor_overlay
from feedhandler.doctor.host import ClockState
from feedhandler.observe import metrics
from feedhandler.observe.metrics import Gathering
from feedhandler.ops.overlay import status as overlay_status
from feedhandler.overlay.members import Proxy, Receiver, Sender
from feedhandler.overlay.merging import receiver_of
from feedhandler.overlay.observing import STILL_NS, MemberWatch
from feedhandler.overlay.readings import counts_of, gauges_of
from feedhandler.overlay.running import AnyMember, Loop
from feedhandler.overlay.topology import make_topology
from feedhandler.overlay.topology_file import write_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import Head, Kind, encode
from feedhandler.terminal.console import ExitCode

S = 1_000_000_000
KEYS = [bytes([n]) * 32 for n in range(20)]
#: Members of these tests are fed by hand.
TREES = [
    make_topology(Shape(2, 2, 1), tree, [("127.0.0.1", 1 + n) for n in range(4)], KEYS)
    for tree in (3, 4)
]
TOPOLOGY = TREES[0]


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        yield made


def watch(name: str, member: AnyMember, sock: socket.socket) -> MemberWatch:
    return MemberWatch(TOPOLOGY.member(name), Loop(member, sock))


def beat(tree: int, now_ns: int) -> bytes:
    topology = TREES[tree - 3]
    return encode(Head(Kind.HEARTBEAT, tree, now_ns, 0, now_ns), b"", topology.key)


def test_every_count_and_gauge_has_a_meaning_and_some_member(sock: socket.socket) -> None:
    now_ns = time.time_ns()
    of_roles = [
        Sender(TOPOLOGY, now_ns), Proxy(TOPOLOGY, "proxy-0-0", now_ns),
        Receiver(TOPOLOGY, "receiver-0", now_ns),
    ]  # fmt: skip
    port = Loop(of_roles[0], sock).port
    for member in of_roles:
        assert set(counts_of(member, port)) <= set(COUNTS)
    assert {name for each in of_roles for name in gauges_of(each, now_ns)} == set(GAUGES)


def test_a_member_is_ready_while_something_of_the_sender_comes(sock: socket.socket) -> None:
    began_ns = time.time_ns() - 10 * S
    member = Proxy(TOPOLOGY, "proxy-0-0", began_ns)
    seen = watch("proxy-0-0", member, sock)
    assert seen.not_live() == []
    assert seen.not_ready() == ["tree 3: nothing of the sender for 10 s"]
    now_ns = time.time_ns()
    member.receive(beat(3, now_ns), TOPOLOGY.members[0].address, now_ns)
    assert seen.not_ready() == []


def test_each_tree_of_several_must_be_heard(sock: socket.socket) -> None:
    now_ns = time.time_ns()
    member = receiver_of(TREES, "receiver-0", now_ns - 10 * S)
    seen = watch("receiver-0", member, sock)
    source = TREES[1].member("proxy-0-0").address
    member.receive(beat(4, now_ns), source, now_ns)
    assert seen.not_ready() == ["tree 3: nothing of the sender for 10 s"]
    snapshot = seen.snapshot()
    assert [each["tree"] for each in snapshot["trees"]] == [3, 4]
    assert "delivered" not in snapshot["trees"][1], "what trees share is listed once"


def test_a_loop_that_stands_still_is_not_live(sock: socket.socket) -> None:
    loop = Loop(Sender(TOPOLOGY, time.time_ns()), sock)
    seen = MemberWatch(TOPOLOGY.members[0], loop)
    assert seen.not_live() == seen.not_ready() == []
    loop.turned_ns -= 2 * STILL_NS
    assert seen.not_live() == seen.not_ready() == ["its loop stands still for 10 s"]


def test_readings_are_as_prometheus_reads_them(sock: socket.socket) -> None:
    member = Receiver(TOPOLOGY, "receiver-0", time.time_ns())
    member.receive(b"junk", ("127.0.0.1", 1), time.time_ns())
    gathering = Gathering(("overlay_member",))
    for reading in watch("receiver-0", member, sock).readings():
        gathering.add(reading)
    text = b"".join(metrics.text(gathering.families())).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    (sample,) = families["feedhandler_overlay_member_short"].samples
    assert (sample.labels, sample.value) == ({"tree": "3", "member": "receiver-0"}, 1)
    assert families["feedhandler_overlay_member_topology_version"].samples[0].value == 1
    assert all(name.startswith("feedhandler_overlay_member_") for name in families)


SNAPSHOT = {
    "member": "receiver-0", "role": "receiver", "address": "10.0.0.1:7003", "not_live": [],
    "not_ready": [], "set_apart": [],
    "trees": [{"tree": 3, "delivered": 1_234, "late": 0, "last_hop_seconds": 12.5e-6}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said", "code"),
    [
        ({}, "receiver-0 at 10.0.0.1:7003: ready", ExitCode.OK),
        ({}, "tree 3: delivered 1,234, last hop 12.5 us", ExitCode.OK),
        ({"not_ready": ["tree 3: nothing"]}, "7003: not ready: tree 3: nothing", ExitCode.FOUND),
        ({"set_apart": ["receiver-1"]}, "set apart: receiver-1", ExitCode.FOUND),
        ({"trees": [{"tree": 3, "missing": 2}]}, "tree 3: missing 2", ExitCode.FOUND),
    ],
    ids=["ready", "counts", "not ready", "apart", "missing"],
)
def test_a_status_is_reported_in_lines_and_by_the_exit_code(
    change: dict[str, object], said: str, code: ExitCode
) -> None:
    snapshot = {**SNAPSHOT, **change}
    assert any(said in line for line in overlay_status.lines_of(snapshot))
    assert overlay_status.verdict(snapshot) == code


# -- the doctor ---------------------------------------------------------------------------------


def planned(path: Path, hosts: list[str]) -> Path:
    addresses = [(each, 20_001 + n) for n, each in enumerate(hosts)]
    write_topology(make_topology(Shape(2, 2, 1), 3, addresses, KEYS), path)
    return path


def test_the_doctor_tells_which_members_may_run_here(tmp_path: Path) -> None:
    path = planned(tmp_path / "tree.toml", ["127.0.0.1", "192.0.2.7", "127.0.0.1", "192.0.2.8"])
    checks = list(doctor_overlay.check_topology(path, follows=True))
    assert [each.status for each in checks] == ["ok"] * 4
    assert checks[0].found == "version 1: tree 3, 4 members, hedging 0"
    assert checks[2].found == "2 of 4 may run here: sender, receiver-0"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 20_001))
        members = list(doctor_overlay.check_topology(path, follows=True))[2]
    assert members.found.endswith("1 of their addresses are taken, by themselves if they run")


def test_the_doctor_tells_a_topology_that_is_of_no_use_here(tmp_path: Path) -> None:
    (check,) = doctor_overlay.check_topology(tmp_path / "none.toml", follows=False)
    assert (check.status, "cannot read" in check.found) == ("fail", True)
    path = planned(tmp_path / "tree.toml", ["192.0.2.7"] * 4)
    path.chmod(0o644)
    rights, members = list(doctor_overlay.check_topology(path, follows=True))[1:3]
    assert (rights.status, rights.remedy) == ("fail", f"chmod 600 {path}")
    assert (members.status, members.found) == (
        "warn", "no member has an address of this machine",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("clock", "follows", "status"),
    [
        (None, False, "warn"), (ClockState(False, 0), False, "warn"),
        (ClockState(True, 20), False, "ok"), (None, True, "ok"),
    ],
)  # fmt: skip
def test_the_doctor_tells_whose_clock_members_go_by(
    monkeypatch: pytest.MonkeyPatch, clock: ClockState | None, follows: bool, status: str
) -> None:
    monkeypatch.setattr(host, "clock_state", lambda: clock)
    check = doctor_overlay.check_clock(follows, "keep it")
    assert (check.status, bool(check.remedy)) == (status, status == "warn")
