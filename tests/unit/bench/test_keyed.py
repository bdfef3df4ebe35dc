"""The bench of keyed queues: its schedule, its workload, and what its check of histories finds."""

import itertools
import random
import sys
from pathlib import Path

import pytest

from bench import bench_keyed_peers, keyed_work
from bench.bench_keyed_peers import Scenario, Taken
from bench.keyed_peers import Absent, Command
from bench.keyed_work import Handled, Message, Rule, Workload, check, figures, rounds, values_of
from feedhandler.lab.brokers import BrokerFailed

RULES: tuple[Rule, ...] = ("composite", "pair", "any")


def scanned_rounds(keys: list[tuple[int, ...]], workers: int, rule: Rule) -> int:
    """The greedy schedule by its definition: scan all that waits, oldest first."""
    waiting, steps = [values_of(key, rule) for key in keys], 0
    while waiting:
        blocked: set[object] = set()
        left, busy = [], 0
        for values in waiting:
            if busy < workers and not values & blocked:
                busy += 1
            else:
                left.append(values)
            blocked |= values
        waiting, steps = left, steps + 1
    return steps


def fewest_rounds(keys: list[tuple[int, ...]], workers: int, rule: Rule) -> int:
    """The best of all schedules that keep the order, by breadth."""
    held = [values_of(key, rule) for key in keys]
    states, steps = {frozenset(range(len(keys)))}, 0
    while frozenset() not in states:
        following = set()
        for state in states:
            eligible = [
                one for one in state if not any(held[one] & held[o] for o in state if o < one)
            ]
            for chosen in itertools.combinations(eligible, min(workers, len(eligible))):
                following.add(state.difference(chosen))
        states, steps = following, steps + 1
    return steps


@pytest.mark.parametrize("rule", RULES)
def test_the_schedule_is_that_of_a_scan_and_within_twice_the_best(rule: Rule) -> None:
    for seed in range(50):
        chance = random.Random(seed)
        keys = [tuple(chance.sample(range(5), 2)) for _ in range(chance.randint(0, 8))]
        workers = chance.randint(1, 4)
        found, best = rounds(keys, workers, rule), fewest_rounds(keys, workers, rule)
        assert found == scanned_rounds(keys, workers, rule), (seed, keys, workers)
        # Graham's bound for a schedule that leaves no worker idle for nothing.
        assert best <= found <= (2 - 1 / workers) * best, (seed, keys, workers)


@pytest.mark.parametrize(
    ("rule", "keys", "workers", "steps"),
    [
        ("composite", [(1, 2), (2, 1)], 2, 1),
        ("pair", [(1, 2), (2, 1)], 2, 2),
        ("pair", [(1, 2), (1, 3)], 2, 1),
        ("any", [(1, 2), (1, 3)], 2, 2),
        # (3, 4) waits for (2, 3), which waits itself.
        ("any", [(1, 2), (2, 3), (3, 4)], 3, 3),
        ("composite", [(1,)] * 5, 8, 5),
        ("composite", [(n,) for n in range(9)], 8, 2),
        ("composite", [], 8, 0),
    ],
)
def test_rules_say_what_goes_side_by_side(
    rule: Rule, keys: list[tuple[int, ...]], workers: int, steps: int
) -> None:
    assert rounds(keys, workers, rule) == steps


def test_a_workload_is_the_same_by_seed_and_as_skewed_as_it_says() -> None:
    skewed = Workload(5000, keys=100, zipf=1.0, seed=3)
    assert skewed.messages() == skewed.messages()
    assert skewed.messages() != Workload(5000, keys=100, zipf=1.0, seed=4).messages()
    most = sum(message.fields == (0,) for message in skewed.messages()) / 5000
    # One in the hundredth harmonic number, 5.19.
    assert 0.17 < most < 0.22
    even = Workload(5000, keys=100).messages()
    assert sum(message.fields == (0,) for message in even) < 100
    assert all(a != b for (a, b), _ in Workload(500, keys=3, fields=2).messages())
    with pytest.raises(ValueError, match="different fields"):
        Workload(1, keys=1, fields=2).messages()


def test_a_workload_of_keys_in_turn_has_each_key_as_often() -> None:
    messages = Workload(6, keys=3, in_turn=True).messages()
    assert [(m.fields, m.sequence) for m in messages] == [
        ((key,), time) for time in (0, 1) for key in range(3)
    ]
    with pytest.raises(ValueError, match="2 different fields"):
        Workload(1, keys=3, fields=2, in_turn=True).messages()


MESSAGES = [Message((1,), 0), Message((2,), 0), Message((1,), 1)]
GOOD = [
    Handled(0, "1", 0, 0, 10, 20),
    Handled(1, "2", 0, 0, 10, 30),
    Handled(1, "1", 1, 0, 30, 40),
]


def test_a_good_history_has_no_problem_and_its_figures_are_those_of_its_times() -> None:
    assert check(MESSAGES, GOOD).problems == []
    found = figures(GOOD, ready_ns=5)
    assert found.a_second == pytest.approx(3 / 35e-9)
    assert (found.wait_p50_ms, found.wait_p99_ms, found.workers_used) == (5e-6, 25e-6, 2)


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        (GOOD[:2], "1 lost"),
        ([*GOOD, Handled(0, "2", 0, 0, 50, 60)], "1 doubled"),
        ([*GOOD, Handled(0, "3", 0, 0, 50, 60)], "1 strange"),
        (
            [GOOD[1], Handled(0, "1", 1, 0, 10, 20), Handled(0, "1", 0, 0, 20, 30)],
            "1 disordered",
        ),
        ([*GOOD[:2], Handled(1, "1", 1, 0, 19, 40)], "1 overlapping"),
    ],
)
def test_what_is_wrong_with_a_history_is_found(history: list[Handled], problem: str) -> None:
    assert check(MESSAGES, history).problems == [problem]


def test_syncs_are_counted_and_leave_nothing_behind(tmp_path: Path) -> None:
    assert keyed_work.syncs_a_second(tmp_path, 0.0) > 0
    assert not list(tmp_path.iterdir())


# -- the runner, with a peer that is a few lines of Python ------------------------------------

TAKING = """
import time
now = time.monotonic_ns
print("attached", flush=True)
input()
print("ready", now())
for key, sequence in {handled}:
    print(0, key, sequence, now(), now(), now())
print(end="", flush=True)
time.sleep(60)
"""


class FakePeer:
    """Says that it handled what it is told to."""

    name = "fake"
    parallel = True

    def __init__(self, handled: list[tuple[str, int]], reason: str = "") -> None:
        self.handled, self.reason, self.stopped = handled, reason, False

    def start(self) -> str:
        if self.reason:
            raise Absent(self.reason)
        return "fake 1"

    def declare(self, queue: str, workers: int) -> None:
        """Nothing to declare."""

    def produce(self, queue: str, workload: Workload) -> Command:
        return Command([sys.executable, "-c", "print('put', 0, 10**9)"], "")

    def consume(self, queue: str, workers: int, handler_ms: float) -> list[Command]:
        """Two processes; the other one has nothing to do."""
        return [
            Command([sys.executable, "-c", TAKING.format(handled=handled)], "")
            for handled in (self.handled, [])
        ]

    def stop(self) -> None:
        self.stopped = True


SMALL = Scenario("small", Workload(3, keys=1), workers=2, handler_ms=0)


@pytest.mark.parametrize(
    ("handled", "problems"),
    [
        ([("0", 0), ("0", 1), ("0", 2)], []),
        ([("0", 0), ("0", 2), ("0", 1)], ["fake, small: 1 disordered"]),
        (
            [("0", 0), ("0", 1), ("0", 1), ("0", 2)],
            ["fake, small: 1 doubled"],
        ),
        ([("0", 0), ("0", 2)], ["fake, small: 1 lost"]),
    ],
)
def test_a_peer_that_breaks_its_promise_is_a_fault(
    handled: list[tuple[str, int]], problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_keyed_peers, "AFTER_SECONDS", 0.05)
    # Longer than an interpreter needs to start; only the one that loses a message waits so long.
    monkeypatch.setattr(bench_keyed_peers, "IDLE_SECONDS", 0.5)
    found, wrong = bench_keyed_peers.compare(FakePeer(handled), SMALL, "queue", 1000.0)
    assert wrong == problems
    assert found["handled"] == len(handled)
    assert found["put_a_second"] == 3


def test_a_client_that_ends_by_itself_is_reported_with_its_last_words() -> None:
    peer = FakePeer([])
    peer.consume = lambda *_: [  # type: ignore[method-assign]
        Command([sys.executable, "-c", "print('attached\\nready 1'); raise SystemExit('gone')"], "")
    ]
    with pytest.raises(BrokerFailed, match=r"a client ended: gone"):
        bench_keyed_peers.consume(peer, "queue", SMALL)


def test_a_run_is_cut_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_keyed_peers, "TAKE_SECONDS_MAX", 0.2)
    taken = bench_keyed_peers.consume(FakePeer([("0", 0)]), "queue", SMALL)
    assert taken.cut
    assert bench_keyed_peers.judged(SMALL.workload.messages(), taken) == []


def test_a_peer_that_is_not_installed_is_reported_and_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = FakePeer([], reason="no fake here; apt install fake")
    monkeypatch.setattr(bench_keyed_peers, "PEERS", {"fake": lambda folder: peer})
    monkeypatch.setattr(bench_keyed_peers, "NAMES", ("fake",))
    monkeypatch.setattr(bench_keyed_peers, "SCENARIOS", (SMALL,))
    monkeypatch.setattr(bench_keyed_peers, "SYNC_SECONDS", 0.0)
    monkeypatch.setattr(bench_keyed_peers, "TRANSFERS", Workload(4, keys=3, fields=2))
    found = bench_keyed_peers.run()
    assert found["problems"] == []
    assert peer.stopped
    assert found["fake"] == {"left_out": "no fake here; apt install fake"}
    assert "fake: left out, no fake here; apt install fake" in capsys.readouterr().out


def test_what_a_cut_run_did_not_handle_is_not_lost() -> None:
    cut = Taken(GOOD[:1], 0, cut=True, processors=0.1)
    assert bench_keyed_peers.judged(MESSAGES, cut) == []
    whole = Taken(GOOD[:1], 0, cut=False, processors=0.1)
    assert bench_keyed_peers.judged(MESSAGES, whole) == ["2 lost"]
