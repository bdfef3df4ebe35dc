"""Lines of a gateway that come through the overlay: configuration, hand-over, doctor, status."""

import asyncio
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from feedhandler.codecs.errors import ConfigError
from feedhandler.config import Config, OverlayConfig, load_config, parse_config
from feedhandler.config.show import to_toml
from feedhandler.doctor import overlay_members as doctor_overlay
from feedhandler.doctor.openness import check_openness
from feedhandler.gateway import Gateway, open_config
from feedhandler.gateway.readings import readings
from feedhandler.ingest.lines import ChannelPlan, Line
from feedhandler.observe.metrics import Reading
from feedhandler.ops import run, status
from feedhandler.overlay import lines as overlay_lines
from feedhandler.overlay.lines import OverlayLines
from feedhandler.overlay.topology import Topology, make_topology
from feedhandler.overlay.topology_file import write_topology
from feedhandler.overlay.tree import Shape
from feedhandler.overlay.wire import Head, Kind, encode
from tests.support.fed_lines import PATIENCE_S, recorded_frame, until
from tests.support.refusal import refusal

CHANNEL = """
[[channel]]
service = 104

[[channel.line]]
name = "A"
topology = "tree.toml"
member = "receiver-0"
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('member = "receiver-0"', "", "gw.toml:5: channel[0].line[0].member: missing (a receiver"),
        ('topology = "tree.toml"', "", "gw.toml:5: channel[0].line[0].topology: missing"),
        ('name = "A"', 'name = "A"\nport = 7', "gw.toml:7: channel[0].line[0].port: a line comes"),
        ('name = "A"', 'name = "A"\ngroup = "239.1.1.1"', "line[0].group: a line comes by a group"),
        (
            CHANNEL,
            CHANNEL + CHANNEL[CHANNEL.index("[[channel.line") :].replace('"A"', '"B"'),
            "channel[0].line[1].member: receiver-0 is line 'A' already",
        ),
        (
            CHANNEL,
            '[[server]]\nname = "s"\naddress = "h:1"\n[[server.line]]\nname = "R"\n'
            'topology = "t"\nmember = "m"\n' + CHANNEL,
            "gw.toml:6: server[0].line[0].topology: a server answers by multicast",
        ),
        (CHANNEL, "[overlay]\ngap_wait_us = -1\n" + CHANNEL, "gw.toml:2: overlay.gap_wait_us"),
    ],
    ids=["member", "topology", "port", "group", "twice", "server", "bounds"],
)
def test_what_is_wrong_about_a_line_is_reported_by_key(old: str, new: str, said: str) -> None:
    assert old in CHANNEL
    assert said in refusal(parse_config, CHANNEL.replace(old, new), "gw.toml")


def test_a_configuration_is_written_as_it_was_read() -> None:
    config = parse_config(CHANNEL)
    assert config.channels[0].lines[0].overlay == (("tree.toml",), "receiver-0")
    assert parse_config(to_toml(config, comments=True)) == config


# -- with a tree --------------------------------------------------------------------------------


class Tree:
    """A tree of one receiver, whose sender is this test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self.receiver = free.getsockname()
        self.topology: Topology = make_topology(
            Shape(1, 1, 1), 3, [self.sock.getsockname(), self.receiver],
            [bytes([n]) * 32 for n in range(3)],
        )  # fmt: skip
        write_topology(self.topology, path)
        self.epoch = time.time_ns()
        self.sent = 0

    def send(self, payload: bytes) -> None:
        self.sent += 1
        head = Head(Kind.DATA, 3, self.epoch, self.sent, time.time_ns())
        self.sock.sendto(encode(head, payload, self.topology.key), self.receiver)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path / "tree.toml")
    yield made
    made.sock.close()


def opened(tree: Tree, failures: list[BaseException]) -> OverlayLines:
    line = Line("104/A", "", 0, "lo", overlay=((str(tree.path),), "receiver-0"))
    plans = [ChannelPlan(104, (line,)), ChannelPlan(105, (line,))]
    return OverlayLines(plans, OverlayConfig(gap_wait_us=0), 1 << 20, failures.append)


def until_counted(overlay: OverlayLines, **at_least: int) -> None:
    """Wait until one of these counts has come so far."""

    def come() -> bool:
        snapshot = overlay.snapshot()[0]
        return any(snapshot[key] >= n for key, n in at_least.items())

    until(come, overlay.snapshot)


def fill(tree: Tree, overlay: OverlayLines) -> None:
    """Send until the receiver waits for its reader; what it has not taken by then is little."""
    while overlay.snapshot()[0]["waits"] == 0:
        for _ in range(16):
            tree.send(b"%d" % (tree.sent + 1) + bytes(1_200))
        until_counted(overlay, datagrams_received=tree.sent, waits=1)
        assert tree.sent < 100_000


def test_what_the_receive_thread_does_not_take_waits_and_nothing_is_lost(tree: Tree) -> None:
    failures: list[BaseException] = []
    overlay = opened(tree, failures)
    (line,) = {each for plan in overlay.plans for each in plan.lines}
    assert (line.group, line.port) == tree.receiver, "both channels have one line"
    feed = overlay.feeds[line]
    overlay.start()
    try:
        fill(tree, overlay)
        numbers = []
        poller = select.poll()
        poller.register(feed, select.POLLIN)
        while len(numbers) < tree.sent:
            assert poller.poll(PATIENCE_S * 1e3), overlay.snapshot()
            numbers.append(int(feed.recv(2_048).rstrip(b"\0")))
        assert numbers == list(range(1, tree.sent + 1))
        snapshot = overlay.snapshot()[0]
        assert (snapshot["delivered"], snapshot["missing"], snapshot["kernel_drops"]) == (
            tree.sent,
            0,
            0,
        )
    finally:
        overlay.stop()
        feed.close()
    assert not failures


def test_a_line_is_recorded_with_its_members_address_and_without_a_sender(tree: Tree) -> None:
    overlay = opened(tree, [])
    frame = recorded_frame(overlay, lambda: tree.send(b"recorded"))
    host, port = tree.receiver
    assert (frame[26:30], frame[30:34]) == (bytes(4), socket.inet_aton(host))
    assert (int.from_bytes(frame[36:38], "big"), frame[42:50]) == (port, b"recorded")


def test_a_line_may_come_through_several_trees(tree: Tree, tmp_path: Path) -> None:
    keys = [bytes([n]) * 32 for n in range(10, 13)]
    addresses = [tree.sock.getsockname(), tree.receiver]
    other = make_topology(Shape(1, 1, 1), 4, addresses, keys)
    path = tmp_path / "tree-2.toml"
    write_topology(other, path)
    config = config_of(tree)
    (channel,) = config.channels
    line = msgspec.structs.replace(channel.lines[0], topology=f"{tree.path}, {path}")
    assert line.topologies == (str(tree.path), str(path))
    plans = [ChannelPlan(104, (Line("104/A", "", 0, "lo", overlay=line.overlay),))]
    overlay = OverlayLines(plans, OverlayConfig(), 1 << 20, pytest.fail)
    overlay.start()
    for number, topology in ((1, tree.topology), (2, other), (3, tree.topology)):
        head = Head(Kind.DATA, topology.tree, tree.epoch, number, time.time_ns())
        tree.sock.sendto(encode(head, b"%d" % number, topology.key), tree.receiver)
    until_counted(overlay, delivered=3)
    overlay.stop()
    for feed in overlay.feeds.values():
        assert [feed.recv(100) for _ in range(3)] == [b"1", b"2", b"3"]
        feed.close()
    (snapshot,) = overlay.snapshot()
    assert (snapshot["first"], snapshot["missing"], snapshot["topology"]) == (3, 0, line.topology)


def test_the_end_does_not_wait_for_a_receive_thread_that_takes_nothing(tree: Tree) -> None:
    overlay = opened(tree, [])
    overlay.start()
    fill(tree, overlay)
    overlay.stop()
    for feed in overlay.feeds.values():
        feed.close()


def test_a_receiver_that_fails_says_so(tree: Tree) -> None:
    failures: list[BaseException] = []
    overlay = opened(tree, failures)
    for feed in overlay.feeds.values():
        feed.close()
    overlay.start()
    tree.send(b"without a child")
    until(lambda: bool(failures), overlay.snapshot)
    overlay.stop()
    assert isinstance(failures[0], OSError)


def test_a_later_topology_is_taken_and_another_is_refused(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(overlay_lines, "FILE_NS", 0)
    monkeypatch.setattr(
        overlay_lines, "log_event", lambda _event, text, *_, **__: logged.append(text)
    )
    overlay = opened(tree, [])
    overlay.start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another:
        another.bind(("127.0.0.1", 0))
        later = tree.topology.replaced("sender", another.getsockname(), b"n" * 32)
        write_topology(later, tree.path)
        until_counted(overlay, topology_version=2)
        tree.send(b"from the old one")
        until_counted(overlay, datagrams_received=1)
        another.sendto(
            encode(Head(Kind.DATA, 3, tree.epoch, 1, time.time_ns()), b"x", tree.topology.key),
            tree.receiver,
        )
        until_counted(overlay, delivered=1)
        write_topology(tree.topology, tree.path)
        until(lambda: len(logged) == 2, lambda: logged)
    assert logged[0].endswith("tree.toml: version 2 is in force")
    assert "its version 1 is not above 2" in logged[1]
    overlay.stop()
    for feed in overlay.feeds.values():
        assert feed.recv(100) == b"x"
        feed.close()


def config_of(tree: Tree, member: str = "receiver-0") -> Config:
    text = CHANNEL.replace("tree.toml", str(tree.path)).replace("receiver-0", member)
    return parse_config('[amqp]\nlisten = "127.0.0.1:0"\n' + text)


@pytest.mark.parametrize(
    ("member", "said"),
    [("receiver-7", "no member receiver-7"), ("sender", "sender is a sender")],
)
def test_a_member_that_cannot_receive_is_reported_with_its_line(
    tree: Tree, tmp_path: Path, member: str, said: str
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(to_toml(config_of(tree, member)))
    load_config(path)
    with pytest.raises(ConfigError, match=said) as caught:
        open_config(path)
    assert str(caught.value).startswith(f"{path}:")
    assert "channel[0].line[0].topology" in str(caught.value)
    (check, clock) = doctor_overlay.check_lines(config_of(tree, member))
    assert (check.name, check.status) == ("line 104.A", "fail")
    assert clock.name == "overlay clock"


def test_the_doctor_looks_at_address_clock_and_rights(tree: Tree) -> None:
    config = config_of(tree)
    assert next(doctor_overlay.check_lines(config)).status == "ok"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(tree.receiver)
        check = next(doctor_overlay.check_lines(config))
    assert (check.status, "cannot have 127.0.0.1" in check.found) == ("fail", True)
    rights = f"topology {tree.path} rights"
    for mode, wanted in ((0o600, "ok"), (0o640, "warn"), (0o644, "fail")):
        tree.path.chmod(mode)
        found = {each.name: each.status for each in check_openness(config)}
        assert found[rights] == wanted


def test_an_address_in_use_is_reported_in_one_line(tree: Tree) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(tree.receiver)
        with pytest.raises(ConfigError, match=r"receiver-0 cannot have 127\.0\.0\.1") as caught:
            Gateway(config_of(tree))
    assert "\n" not in str(caught.value)


def test_a_gateway_ends_where_a_lines_receiver_fails(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise OSError("it broke")

    monkeypatch.setattr(overlay_lines, "hand_over", fails)
    gateway = Gateway(config_of(tree))
    with pytest.raises(OSError, match="it broke"):
        asyncio.run(gateway.run(lambda: tree.send(b"anything")))


def test_status_and_metrics_tell_what_a_lines_receiver_counts(tree: Tree) -> None:
    gateway = Gateway(config_of(tree))
    assert gateway.overlay is not None
    try:
        (row,) = gateway.snapshot()["overlay"]
        assert (row["line"], row["member"], row["tree"]) == ("104/A", "receiver-0", 3)
        line = status.overlay_line({**row, "missing": 1_234})
        assert line == f"overlay 104/A: receiver-0 of {tree.path}, version 1: missing 1,234"
        assert status.overlay_line(row).endswith("nothing yet")
        (reading,) = [
            each
            for each in readings(gateway)
            if isinstance(each, Reading) and each.scope == "overlay_member"
        ]
        assert reading.labels == ("3", "receiver-0")
        assert reading.values["topology_version"] == 1
        snapshot = gateway.snapshot()
        snapshot["overlay"][0]["kernel_drops"] = 5
        assert any("overlay 104/A: kernel_drops 5" in each for each in run.account(snapshot))
        assert set(gateway.receive_buffers()) == {"104/A"}
    finally:
        gateway.overlay.close()
        gateway.receiver.close()
