"""Delays of all pairs of hosts: windows, ways by a third host, and whose probes count."""

import itertools
import json
import os
import random
from pathlib import Path

import numpy
import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.overlay.mesh import (
    FRESH_NS,
    OPEN_WINDOWS,
    WINDOW_NS,
    MeshHost,
    PairWindow,
    violations,
    windows_of,
)
from feedhandler.overlay.topology import Topology, make_topology
from feedhandler.overlay.tree import Shape
from tests.support.commands import run_here

NOW_NS = 1_700_000_000 * WINDOW_NS
FAR_NS = 1 << 62
ADDRESSES = [("127.0.0.1", 7_000 + at) for at in range(4)]


def topology() -> Topology:
    return make_topology(Shape(3, 1, 1), 1, ADDRESSES, (os.urandom(32) for _ in range(5)))


def hosts() -> list[MeshHost]:
    read = topology()
    return [MeshHost(read, each.name) for each in read.members]


def naive(delays: numpy.ndarray) -> dict[tuple[int, int], float]:
    """By pair: what the best way through a third host would gain, the slow way round."""
    found = {}
    every = range(len(delays))
    for a, b in itertools.permutations(every, 2):
        ways = [delays[a, c] + delays[c, b] for c in every if c not in (a, b)]
        known = [each for each in ways if not numpy.isnan(each)]
        if known and not numpy.isnan(delays[a, b]):
            found[a, b] = delays[a, b] - min(known)
    return found


@pytest.mark.random
def test_gains_are_those_of_trying_every_way(seed: int) -> None:
    rng = numpy.random.default_rng(seed)
    for _ in range(200):
        count = int(rng.integers(2, 7))
        delays = rng.uniform(5, 100, (count, count))
        delays[rng.random((count, count)) < 0.3] = numpy.nan
        numpy.fill_diagonal(delays, numpy.nan)
        found, wanted = violations(delays), naive(delays)
        known = {(int(a), int(b)) for a, b in zip(*numpy.nonzero(~numpy.isnan(found)), strict=True)}
        assert known == set(wanted)
        assert all(found[pair] == pytest.approx(gain) for pair, gain in wanted.items())


@pytest.mark.random
def test_clocks_that_differ_change_delays_but_no_gain(seed: int) -> None:
    rng = numpy.random.default_rng(seed)
    delays, clocks = rng.uniform(5, 100, (6, 6)), rng.uniform(-1e6, 1e6, 6)
    numpy.fill_diagonal(delays, numpy.nan)
    shifted = delays + clocks[None, :] - clocks[:, None]
    assert numpy.allclose(violations(delays), violations(shifted), equal_nan=True, atol=1e-6)


def test_a_slow_way_past_a_third_host_is_reported() -> None:
    """From 0 to 1 it takes 100 us, by host 2 it takes 30: in two of three windows."""
    rows = []
    for window in range(3):
        for a, b in itertools.permutations(range(3), 2):
            slow = (a, b) == (0, 1) and window != 1
            p50 = 100.0 if slow else 15.0
            rows.append(PairWindow(window, f"host-{a}", f"host-{b}", 50, p50, 2 * p50))
    windows = windows_of(rows)
    gains = windows.gains()
    assert windows.hosts == ["host-0", "host-1", "host-2"]
    assert numpy.argwhere(gains >= 10).tolist() == [[0, 0, 1], [2, 0, 1]]
    assert gains[0, 0, 1] == 70


def test_the_delays_of_a_window_come_when_it_is_over() -> None:
    sender, receiver, *_ = hosts()
    target, source = receiver.me.address, sender.me.address
    for at in range(100):
        sent_ns = NOW_NS + at * WINDOW_NS // 50
        receiver.receive(sender.probe(target, sent_ns), source, sent_ns + 1_000 * (1 + at % 50))
    assert list(receiver.close(NOW_NS + (1 + OPEN_WINDOWS) * WINDOW_NS - 1)) == [
        PairWindow(NOW_NS // WINDOW_NS, "sender", "receiver-0", 50, 25.5, pytest.approx(49.51))
    ]
    # What comes of a window that was reported comes too late.
    late = sender.probe(target, NOW_NS + 3 * WINDOW_NS)
    (rest,) = receiver.close(FAR_NS)
    assert (rest.window, rest.count) == (NOW_NS // WINDOW_NS + 1, 50)
    receiver.receive(late, source, NOW_NS + 3 * WINDOW_NS)
    assert receiver.counts == {"taken": 100, "late": 1}
    assert not list(receiver.close(FAR_NS))


def test_each_round_begins_with_another_target() -> None:
    first, *_ = hosts()
    rounds = [first.targets(turn) for turn in range(3)]
    assert sorted(each[0] for each in rounds) == sorted(ADDRESSES[1:])
    assert all(sorted(each) == sorted(ADDRESSES[1:]) for each in rounds)


@pytest.mark.random
def test_forged_and_replayed_probes_are_dropped_and_counted(seed: int) -> None:
    read = topology()
    sender, receiver, third, _ = (MeshHost(read, each.name) for each in read.members)
    stranger = MeshHost(topology(), "sender")
    target, source = receiver.me.address, sender.me.address
    probe = sender.probe(target, NOW_NS)
    cases = [
        (probe, ("127.0.0.1", 9_999), "stranger"),
        (probe[:-1], source, "length"),
        (probe + b"x", source, "length"),
        (stranger.probe(target, NOW_NS), source, "seal"),
        (sender.probe(third.me.address, NOW_NS), source, "seal"),
        (probe, third.me.address, "seal"),
        (probe, source, "taken"),
        (probe, source, "number"),
        (sender.probe(target, NOW_NS + 2 * FRESH_NS), source, "stale"),
    ]
    for datagram, address, wanted in cases:
        before = receiver.counts[wanted]
        receiver.receive(datagram, address, NOW_NS + 5_000)
        assert receiver.counts[wanted] == before + 1, wanted
    rng = random.Random(seed)
    for _ in range(500):
        mutated = bytearray(sender.probe(target, NOW_NS))
        mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
        receiver.receive(bytes(mutated), source, NOW_NS)
    assert receiver.counts["taken"] == 1
    assert receiver.counts["seal"] == 503


def test_a_host_that_was_started_again_is_heard() -> None:
    read = topology()
    receiver = MeshHost(read, "receiver-0")
    for start in range(2):
        sender = MeshHost(read, "sender")
        sent_ns = NOW_NS + start * 1_000_000
        receiver.receive(sender.probe(receiver.me.address, sent_ns), sender.me.address, sent_ns)
    assert receiver.counts == {"taken": 2}


def test_hosts_here_probe_each_other_over_real_sockets() -> None:
    words = ["overlay", "measure", "--triangles", "--hosts", "4", "--seconds", "1.5"]
    done = run_here(*words, "--rate", "20", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert max(row["pairs"] for row in rows) == 12
    assert all(row["p50_us"] > 0 for row in rows)
    assert not done.stderr


def test_what_no_host_printed_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    row = '{"window": 1, "source": "a", "target": "b", "count": 1, "p50_us": 1.0, "p99_us": 1.0}'
    path.write_text(f"{row}\n{{}}\n")
    done = run_here("overlay", "measure", "--triangles", "--read", str(path))
    assert done.returncode == 2
    assert "line 2: no window of a pair of hosts" in done.stderr
    path.write_text("")
    done = run_here("overlay", "measure", "--triangles", "--read", str(path))
    assert (done.returncode, "no window of any pair" in done.stderr) == (2, True)


def test_windows_of_members_are_put_together(tmp_path: Path) -> None:
    paths = []
    for target in range(3):
        path = tmp_path / f"{target}.jsonl"
        paths += ["--read", str(path)]
        rows = [
            {"window": 7, "source": f"h-{source}", "target": f"h-{target}", "count": 9,
             "p50_us": 90.0 if (source, target) == (2, 0) else 20.0, "p99_us": 95.0}
            for source in range(3) if source != target
        ]  # fmt: skip
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = tmp_path / "page.html"
    done = run_here("overlay", "measure", "--triangles", *paths, "--json", "--report", str(report))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "window": 7, "pairs": 6, "violations": 1, "most_us": 50.0, "p50_us": 20.0
    }  # fmt: skip
    assert "Violations of the triangle inequality" in report.read_text()
    done = run_here("overlay", "measure", "--triangles", *paths)
    assert "h-2 to h-0" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--triangles", "--last-hop"], "give one of them"),
        (["--triangles", "--spikes", "1%"], "--spikes says nothing beside --triangles"),
        (["--last-hop", "--hosts", "4"], "--hosts says nothing beside --last-hop"),
        (["--hosts", "4"], "--hosts says nothing by itself"),
        (["--triangles", "--member", "sender"], "which host is this"),
        (["--triangles", "--read", "x", "--hosts", "4"], "--hosts says nothing beside --read"),
        (["--triangles", "--read", "x", "--report", "x.pdf"], "a report is a page"),
        (["--triangles", "--read", "/nowhere/x"], "cannot read /nowhere/x"),
        (["--last-hop", "--cpu", "9999"], "--cpu twice"),
        (["--last-hop", "--cpu", "0", "--echo", "127.0.0.1:9"], "--cpu says nothing beside --echo"),
    ],
)  # fmt: skip
def test_options_that_say_nothing_are_refused(words: list[str], said: str) -> None:
    done = run_here("overlay", "measure", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_name_that_the_topology_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="no member receiver-9"):
        MeshHost(topology(), "receiver-9")
