"""The benchmarks' own arithmetic: loads with the shares they promise, growth, verdicts."""

import random
import subprocess
from pathlib import Path

import pytest

from bench import bench_routing, bench_stall, leaks, peers
from bench.local import FEED, KEY, message_of, packet_of
from tests.broker_kit import Absent


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
    told = iter([{"resident": 1000}, {"resident": 1600}])
    monkeypatch.setattr(leaks, "memory", lambda: next(told))
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
