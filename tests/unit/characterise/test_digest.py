"""Digests of neighbouring stretches merge: however they are grouped, the result is the same."""

import itertools
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedhandler.characterise import job
from feedhandler.characterise.digest import Digest
from feedhandler.characterise.files import look_at
from feedhandler.characterise.job import Request, SliceRun, Tallied, characterise
from feedhandler.characterise.slices import Slice, cut_into_slices
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.characterise import FEED, LINE_A, OPENING_NS, PORT, write_session
from tests.unit.characterise.test_slices import decoy

UTP = Request("euronext-utp-md")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_session(tmp_path_factory.mktemp("day") / "day.pcap", seed=7, seconds=0.2)


def content(digest: Digest) -> bytes:
    """All that tables can be made of, and the order in which it stands."""
    histogram = lambda h: (h.buckets.tobytes(), h.within_1ms, h.within_10ms, h.backwards)  # noqa: E731
    array = lambda a: (a.dtype.str, a.shape, a.tobytes())  # noqa: E731
    runs = digest.runs()
    return pickle.dumps(
        [
            digest.channels,
            array(digest.totals),
            [(k, c.messages, c.message_bytes, histogram(c.interarrival))
             for k, c in digest.cells.items()],
            [(pair, histogram(each)) for pair, each in digest.pairs.items()],
            array(digest.foreign),
            array(digest.overflow),
            [(starts, array(each)) for starts, each in digest.stretches],
            array(digest.buckets()),
            [(index, array(each)) for index, each in digest.minutes().items()],
            [(index, epoch, array(each)) for index in runs for epoch, each in runs[index].items()],
            digest.symbol_counts(),
        ]
    )  # fmt: skip


def digest_of(columns: dict[str, Any]) -> Digest:
    digest = Digest()
    digest.add(columns)
    return digest


def merged_anyhow(digests: list[Digest], rng: random.Random) -> Digest:
    """Neighbours merged in an order drawn, some of them sent and received in between."""
    while len(digests) > 1:
        at = rng.randrange(len(digests) - 1)
        right = digests.pop(at + 1)
        digests[at].merge(pickle.loads(pickle.dumps(right)) if rng.random() < 0.3 else right)
    return digests[0]


@pytest.mark.parametrize("size", [4_000, 30_000])
def test_merging_is_associative(session: Path, size: int, seed: int) -> None:
    rng = random.Random(seed)
    slices = cut_into_slices([look_at(str(session))], size)
    columns = [each.columns for each in job.in_process(slices, UTP)]
    one_by_one = Digest()
    for each in columns:
        one_by_one.add(each)
        one_by_one.resolve()
    expected = content(one_by_one)
    assert len(columns) > 5
    assert len(one_by_one.pairs) > 1
    for _ in range(3):
        assert content(merged_anyhow([digest_of(each) for each in columns], rng)) == expected, seed


def test_the_third_copy_of_a_packet_pairs_with_none_whatever_is_merged_first() -> None:
    """Three lines, a stretch each: the first two copies are the pair."""
    parts = [_one_left(line, number=5, time_ns=1_000 * line) for line in (1, 2, 3)]
    expected = Digest()
    for each in parts:
        expected.add(each)
    assert [tuple(pair) for pair in expected.pairs] == [(0, 1)]
    left, middle, right = map(digest_of, parts)
    middle.merge(right)
    left.merge(middle)
    assert content(left) == content(expected)


def _one_left(line: int, number: int, time_ns: int) -> dict[str, Any]:
    """A tally's columns of one packet, on a line of its own, that waits for its copy."""
    empty = job.Tally(FEED.table).columns()
    return {
        **empty,
        "lines": np.array([line << 17], np.int64),
        "services": np.array([104], np.int64),
        "totals": np.ones((1, empty["totals"].shape[1]), np.int64),
        "sessions": np.array([[0, 0, 0, number + 1]], np.int64),
        "epochs": np.zeros(1, np.int64),
        "left_service": np.zeros(1, np.int32),
        "left_number": np.array([number], empty["left_number"].dtype),
        "left_channel": np.zeros(1, np.int32),
        "left_time_ns": np.array([time_ns], np.int64),
    }


def test_what_was_settled_is_not_merged_into_another() -> None:
    first, second = (digest_of(_one_left(line, 5, line)) for line in (1, 2))
    assert not second.pairs
    with pytest.raises(ValueError, match="settled"):
        first.merge(second)


class ByTree:
    """A runner that merges in groups drawn at random, as a cluster does."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __call__(self, slices: Sequence[Slice], request: Request) -> list[Tallied]:
        return list(job.in_process(slices, request))

    def merged_runs(self, slices: Sequence[Slice], request: Request) -> list[SliceRun]:
        runs = [job.tally_run(part, request) for part in slices]
        for _ in range(3):
            cuts = sorted({0, len(runs), *(self._rng.randrange(len(runs) + 1) for _ in range(4))})
            groups = [runs[a:b] for a, b in itertools.pairwise(cuts)]
            runs = [each for group in groups for each in job.merge_runs(group)]
        return runs


@pytest.mark.parametrize("size", [1_300, 20_000])
def test_slices_merged_by_a_tree_give_what_slices_one_by_one_give(
    session: Path, tmp_path: Path, size: int, seed: int
) -> None:
    """Files, one cut off in a record, one whose payloads look like records: guesses are wrong."""
    data = session.read_bytes()
    (tmp_path / "a.pcap").write_bytes(data[: len(data) // 6 + 5])
    packet = FEED.encode_packet(sequence=1, service=104, send_time=1)
    with CaptureWriter(tmp_path / "b.pcap") as writer:
        for number in range(100):
            payload = decoy(20, OPENING_NS // 10**9) if number % 3 else packet
            writer.write(OPENING_NS + number * 1_000, LINE_A, PORT, payload)
    (tmp_path / "c.pcap").write_bytes(data[: len(data) // 6])
    rng = random.Random(seed)
    plain = characterise([str(tmp_path)], UTP, slice_size=size)
    assert plain.files[1].read_again
    tree = characterise([str(tmp_path)], UTP, ByTree(rng), slice_size=size)
    assert tree.files == plain.files, seed
    assert content(tree.digest) == content(plain.digest), seed
