"""The token bucket (`feedhandler/fixcast/pacing.py`)."""

import random

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast.pacing import TokenBucket

SECOND = 1_000_000_000
MS = 1_000_000


def sent_by(bucket: TokenBucket, sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(time, size) of each datagram that wants to be sent at (time, size), in order."""
    sent, now_ns = [], 0
    for wanted_ns, size in sizes:
        now_ns = max(now_ns, wanted_ns)
        while (ready_ns := bucket.ready_ns(size, now_ns)) > now_ns:
            now_ns = ready_ns
        bucket.charge(size, now_ns)
        sent.append((now_ns, size))
    return sent


def test_no_window_has_more_than_the_bucket_and_its_flow(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        rate, burst = rng.randint(10**5, 10**9), rng.randint(1400, 10**6)
        times, at = [], 0
        for _ in range(300):
            at += rng.choice([0, 0, 0, rng.randint(0, 5 * MS)])
            times.append((at, rng.randint(1, 1400)))
        sent = sent_by(TokenBucket(rate, burst), times)
        assert [size for _, size in sent] == [size for _, size in times]
        first = total = 0
        for last, (end_ns, size) in enumerate(sent):
            total += size
            while sent[first][0] <= end_ns - 10 * MS:
                total -= sent[first][1]
                first += 1
            assert total * SECOND <= burst * SECOND + rate * 10 * MS, (seed, last)
        for begin in range(0, len(sent), 37):
            total = 0
            for end_ns, size in sent[begin:]:
                total += size
                assert total * SECOND <= burst * SECOND + rate * (end_ns - sent[begin][0])


def test_nothing_waits_longer_than_it_must() -> None:
    bucket = TokenBucket(1_000_000, 1000)
    assert sent_by(bucket, [(0, 1000), (0, 500), (0, 1), (10 * MS, 1000)]) == [
        (0, 1000),
        (500_000, 500),
        (501_000, 1),
        (10 * MS, 1000),
    ]


def test_the_bucket_holds_no_more_than_its_size() -> None:
    bucket = TokenBucket(1_000_000, 1000)
    assert sent_by(bucket, [(0, 1), (100 * SECOND, 1000), (100 * SECOND, 1000)])[2] == (
        100 * SECOND + MS,
        1000,
    )


def test_what_is_larger_than_the_bucket_leaves_a_debt() -> None:
    bucket = TokenBucket(1_000_000, 1000)
    assert sent_by(bucket, [(0, 3000), (0, 1000)]) == [(0, 3000), (3 * MS, 1000)]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(1_000_000, 1000)
    bucket.charge(1000, 10 * MS)
    assert bucket.ready_ns(1000, 9 * MS) == 10 * MS
    assert bucket.ready_ns(1000, 10 * MS) == 11 * MS


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (1, 0), (-1, 1)])
def test_a_bucket_has_a_rate_and_a_size(rate: int, burst: int) -> None:
    with pytest.raises(UsageError, match="cannot pace"):
        TokenBucket(rate, burst)


@pytest.mark.parametrize(("rate", "burst"), [((1 << 40) + 1, 1), (1, (1 << 31) + 1)])
def test_a_bucket_has_bounds(rate: int, burst: int) -> None:
    with pytest.raises(UsageError, match="cannot pace"):
        TokenBucket(rate, burst)


def test_sending_that_takes_long_breaks_no_promise(seed: int) -> None:
    """A datagram leaves at any time between `admits` and `take`: no window has too much of them,
    whenever it was."""
    rng = random.Random(seed)
    for late in (0.0, 1.0, 0.5):
        rate, burst = rng.randint(10**6, 10**9), rng.randint(3000, 10**5)
        bucket, now_ns, left = TokenBucket(rate, burst), 0, []
        for _ in range(150):
            batch: list[int] = []
            while bucket.admits(sum(batch), size := rng.randint(1, 1466), now_ns):
                batch.append(size)
            took_ns = rng.choice([0, 1000, rng.randint(0, 5 * MS)])
            left += [(now_ns + int(took_ns * late), size) for size in batch]
            now_ns += took_ns
            bucket.charge(sum(batch), now_ns)
            now_ns += rng.choice([1, rng.randint(1, MS)])
        for begin in range(0, len(left), 29):
            total = 0
            for end_ns, size in left[begin:]:
                total += size
                allowed = burst * SECOND + rate * (end_ns - left[begin][0])
                assert total * SECOND <= allowed, (seed, late, begin)


def test_centuries_of_silence_fill_the_bucket() -> None:
    bucket = TokenBucket(1 << 40, 1 << 31)
    bucket.charge(1 << 31, 0)
    assert bucket.ready_ns(1 << 31, 0) == 1_953_125
    assert bucket.admits(0, 1 << 31, 1 << 62)
