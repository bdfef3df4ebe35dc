"""The benchmarks' own arithmetic: loads with the shares they promise, growth, verdicts."""

import json
import os
import random
import subprocess
import sys
import types
from pathlib import Path

import pytest

from bench import __main__ as bench_main
from bench import (
    bench_gateway,
    bench_publish,
    bench_receive,
    bench_routing,
    bench_stall,
    leaks,
    peers,
    rig,
)
from bench.local import FEED, KEY, message_of, packet_of
from tests.support.brokers import Absent


def test_a_message_of_any_size_is_framed_by_that_size() -> None:
    for size in (8, 64, 300):
        packet = FEED.decode_packet(packet_of([message_of(size)] * 4))
        assert len(packet.messages) == 4
        assert len(packet_of([message_of(size)] * 4)) == FEED.table.header_size + 4 * size


def test_half_of_a_mixed_load_is_of_the_wanted_symbols() -> None:
    chance = random.Random(1)
    drawn = bench_routing.mixed(chance, [1, 2], list(range(10, 2000)), 10_000)
    assert 0.48 < sum(symbol < 10 for symbol in drawn) / len(drawn) < 0.52


def test_bursty_traffic_repeats_and_shuffled_traffic_does_not() -> None:
    def repeats(symbols: list[int]) -> float:
        near = bench_routing.RECENT
        return sum(
            symbol in symbols[max(0, at - near) : at] for at, symbol in enumerate(symbols)
        ) / len(symbols)

    assert repeats(bench_routing.bursty(random.Random(1), 5000)) > 0.65
    assert repeats(bench_routing.shuffled(random.Random(1), 5000)) < 0.02


@pytest.mark.parametrize("spread", ["one link", "a link each"])
def test_every_key_is_asked_for_once_however_they_are_spread(spread: str) -> None:
    keys = [f"{KEY}.{number}" for number in range(10)]
    asked = bench_routing.addresses(spread, keys, 230)
    patterns = ",".join(address.partition("?")[0] for each in asked for address in each)
    assert sorted(patterns.split(",")) == sorted(keys)
    assert len(asked) == (1 if spread == "one link" else bench_routing.CONNECTIONS)


def test_growth_is_from_the_fewest_to_the_most() -> None:
    found = {100: {"x": 7.0}, 10: {"x": 10.0}, 1000: {"x": 12.0}}
    assert bench_routing.growth(found, "x") == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("without", "with_stall", "within"),
    [
        ([1.0, 9.0, 1.0], [1.2, 1.2, 30.0], True),  # medians, and less than 0.3 ms
        ([5.0], [5.9], True),  # less than 20 %
        ([5.0], [6.1], False),
        ([1.0], [1.5], False),
        ([5.0], [1.0], True),
    ],
)
def test_a_stall_is_not_noticed_where_the_share_or_the_time_is_small(
    without: list[float], with_stall: list[float], within: bool
) -> None:
    assert bench_stall.change(without, with_stall)[2] is within


def test_memory_counts_from_the_end_of_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([{"resident": 1000}, {"resident": 1600}])
    monkeypatch.setattr(leaks, "memory", lambda: next(samples))
    growth = leaks.Growth(10)
    for done in range(41):
        growth.seen(done)
    assert growth.per_piece(40) == {"resident": 20.0}


def test_a_sender_that_cannot_be_built_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "SEND_SOURCE", tmp_path / "send.c")
    with pytest.raises(Absent, match="apt install"):
        peers.build_sender(tmp_path)
    (tmp_path / "send.c").write_text("no C")
    done = subprocess.CompletedProcess([], 1, "", "error: no C")
    monkeypatch.setattr(peers.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(peers.shutil, "which", lambda _: "/usr/bin/cc")
    with pytest.raises(Absent, match="does not compile: error: no C"):
        peers.build_sender(tmp_path)


@pytest.mark.parametrize(
    ("problems", "code", "lines"),
    [
        ({}, 0, []),
        ({"problems": []}, 0, []),
        ({"problems": ["2 lost", "3 twice"]}, 1, ["fault: node: 2 lost", "fault: node: 3 twice"]),
    ],
)
def test_faults_have_a_line_each_and_end_the_run_with_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problems: dict[str, list[str]],
    code: int,
    lines: list[str],
) -> None:
    module = types.SimpleNamespace(run=lambda quick: {"rate": 1, **problems})
    monkeypatch.setitem(sys.modules, "bench.bench_node", module)
    out = tmp_path / "bench.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "node", "--out", str(out)])
    assert bench_main.main() == code
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("fault")] == lines
    assert json.loads(out.read_text())["node"]["rate"] == 1


def test_a_rate_that_was_not_kept_does_not_pass_and_is_no_fault() -> None:
    outcome = rig.Outcome(1, 1, False, [], {}, slow=["sender late"])
    assert not outcome.passed
    assert (outcome.problems, outcome.why) == ([], "sender late")


@pytest.mark.parametrize("lost", [[], ["3 packets not published"]])
def test_a_search_without_a_rate_is_a_fault_only_where_something_was_lost(
    monkeypatch: pytest.MonkeyPatch, lost: list[str]
) -> None:
    def trial(
        grain: str, subscribers: int, rate: int, seconds: float, lost_every: int
    ) -> rig.Outcome:
        return rig.Outcome(rate, 1, False, [], {}, problems=list(lost), slow=["sender late"])

    monkeypatch.setattr(bench_gateway, "trial", trial)
    found = bench_gateway.highest("packet", 1, 3_000, 0.1)
    assert (found.rate, found.faults) == (0, lost)
    assert "sender late" in found.why


def test_a_search_tells_0_where_no_rate_holds() -> None:
    assert bench_receive.highest(lambda rate, seconds: False, 1.0, True) == 0
    assert bench_receive.highest(lambda rate, seconds: rate < 100_000, 1.0, True) > 90_000


@pytest.mark.parametrize(("extra", "faults"), [(0, 0), (bench_stall.BESIDE_BYTES + 1, 1)])
def test_a_stall_is_a_fault_where_memory_grows_beyond_the_queues_bound(
    monkeypatch: pytest.MonkeyPatch, extra: int, faults: int
) -> None:
    def once(stalled: bool, seconds: float) -> dict[str, object]:
        memory = 10_000_000 + stalled * (1_000_000 + extra)
        return {"p99_ms": 1.0, "memory_bytes": memory, "queue_bytes": 1_000_000, "problems": []}

    monkeypatch.setattr(bench_stall, "once", once)
    assert len(bench_stall.alternate(1, 1.0)["problems"]) == faults


def test_what_is_compared_shares_the_processors_which_are_given_back() -> None:
    allowed = os.sched_getaffinity(0)
    ask = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    with peers.processors(1) as count:
        assert count == 1
        assert subprocess.run(ask, capture_output=True, text=True).stdout == "1\n"
    assert os.sched_getaffinity(0) == allowed


def test_publisher_and_bare_sender_take_turns_to_find_the_queue_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    did: list[str] = []

    class Sink:
        kind = "artemis"

        def __enter__(self) -> "Sink":
            return self

        def __exit__(self, *error: object) -> None: ...

        def empty(self, queue: str) -> None:
            did.append("empty")

    def ours(made: Sink, seconds: float) -> peers.Rate:
        did.append("ours")
        return peers.Rate(100.0, {})

    def bare(program: Path, made: Sink, address: str, count: int) -> float:
        did.append("bare")
        return 200.0

    monkeypatch.setattr(bench_publish, "broker", lambda name: Sink())
    monkeypatch.setattr(bench_publish, "ours_rate", ours)
    monkeypatch.setattr(bench_publish, "bare_rate", bare)
    found = bench_publish.compare("artemis", tmp_path, 1.0, 3)
    assert did[::2] == ["ours", "bare", "bare", "ours", "ours", "bare"]
    assert set(did[1::2]) == {"empty"}
    assert (found["to_bare"], found["problems"]) == (0.5, [])
