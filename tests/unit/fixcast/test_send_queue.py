"""A channel's datagrams on their way out (`feedhandler/fixcast/send_queue.py`)."""

import random
from collections import deque
from types import ModuleType
from typing import Any

import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.fixcast import send_queue, stamping
from feedhandler.fixcast.datagrams import Packer
from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.pacing import OVERHEAD_BYTES, TokenBucket
from feedhandler.fixcast.session import NEVER
from feedhandler.retrans.store import PacketStore

MS = 1_000_000
HEADER = Header(target=b"T", has_epoch=False)
TWINS: list[tuple[ModuleType, ModuleType]] = [
    (send_queue, stamping),
    (
        load_interpreted("feedhandler.fixcast.send_queue"),
        load_interpreted("feedhandler.fixcast.stamping"),
    ),
]
IDS = ["compiled", "interpreted"]
MODULES = [pytest.param(one, id=name) for (one, _), name in zip(TWINS, IDS, strict=True)]


def update(size: int = 0) -> bytes:
    return envelope(b"FIXT.1.1", b"35=X\x0158=%b\x01" % (b"x" * (size + 1)))


def wide() -> TokenBucket:
    return TokenBucket(10**9, 10**8)


def taken(queue: Any, bucket: TokenBucket, now_ns: int, most: int = 1000) -> list[bytes]:
    count = queue.due(bucket, now_ns, most)
    found: list[bytes] = queue.datagrams(count)
    queue.gone(bucket, count, now_ns)
    return found


@pytest.mark.parametrize("twin", TWINS, ids=IDS)
def test_it_packs_as_the_packer_does(twin: tuple[ModuleType, ModuleType], seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        period_ns, bytes_max = rng.choice([0, MS]), rng.randint(100, 1400)
        longest = rng.choice([bytes_max, 3000])
        queue = twin[0].SendQueue(period_ns, bytes_max, longest, rng.randint(2, 40))
        stamper = twin[1].Stamper(b"FIXT.1.1", b"56=T\x01")
        packer, store = Packer(period_ns, bytes_max), PacketStore(1 << 16)
        expected: deque[bytes] = deque()
        bucket, now_ns, number = wide(), 0, 1
        for _ in range(200):
            now_ns += rng.choice([0, 0, rng.randint(0, MS)])
            queue.tick(now_ns)
            expected += packer.tick(now_ns)
            data = update(rng.choice([0, 20, rng.randint(0, 2000)]))
            stamped = HEADER.application(data, number, 0)
            if len(stamped) > longest:
                assert not queue.publish(stamper, store, data, number, now_ns)
            elif rng.random() < 0.1 and not queue.is_full():
                assert queue.push(b"datagram" * 5)
                expected += [*packer.flush(), b"datagram" * 5]
            elif rng.random() < 0.2 and not queue.is_full():
                assert queue.add(stamped, now_ns)
                expected += packer.add(stamped, now_ns)
            elif not queue.is_full():
                assert queue.publish(stamper, store, data, number, now_ns)
                expected += packer.add(stamped, now_ns)
                number += 1
            assert queue.deadline_ns == packer.deadline_ns
            assert queue.count == len(expected)
            if queue.is_full() or rng.random() < 0.2:
                for datagram in taken(queue, bucket, now_ns, rng.randint(1, 9)):
                    assert datagram == expected.popleft()
        queue.flush()
        expected += packer.flush()
        assert taken(queue, bucket, now_ns) == list(expected)
        assert (queue.count, queue.deadline_ns) == (0, NEVER)
        assert store.end == number


@pytest.mark.parametrize("twin", TWINS, ids=IDS)
def test_many_are_taken_up_to_the_first_that_is_wrong(
    twin: tuple[ModuleType, ModuleType],
) -> None:
    queue, store = twin[0].SendQueue(MS, 1400, 1400, 10), PacketStore(1 << 16)
    stamper = twin[1].Stamper(b"FIXT.1.1", b"56=T\x01")
    given = [update(), update(3), b"rubbish", update()]
    assert queue.publish_each(stamper, store, given, 0, 9, 5, 0) == 2
    assert queue.publish_each(stamper, store, given, 2, 9, 7, 0) == 0
    assert queue.publish_each(stamper, store, given, 3, 9, 7, 0) == 1
    assert queue.publish_each(stamper, store, given, 4, 9, 8, 0) == 0
    queue.flush()
    sent = [HEADER.application(given[at], number, 0) for at, number in ((0, 5), (1, 6), (3, 7))]
    assert queue.datagrams(9) == [b"".join(sent)]
    assert queue.message_bytes == sum(map(len, sent))
    assert [data for _, _, data in store.packets(5, 8)] == sent
    assert not queue.publish(stamper, store, b"", 8, 0)


@pytest.mark.parametrize("module", MODULES)
def test_what_waits_is_bounded_and_the_session_has_slots_to_spare(module: ModuleType) -> None:
    queue = module.SendQueue(0, 100, 200, 3)
    for index in range(3):
        assert queue.is_full() == 0, index
        assert queue.add(b"m" * 100, 0)
    assert queue.is_full()
    spare = 0
    while queue.push(b"datagram") and spare < 1000:
        spare += 1
    assert 0 < spare <= module.SPARE
    assert not queue.add(b"m" * 100, 0)
    assert not queue.push(b"")
    assert not queue.push(bytes(201))
    assert len(taken(queue, wide(), 0)) == 3 + spare
    assert queue.add(b"m", 0)
    assert not queue.add(b"", 0)


@pytest.mark.parametrize("module", MODULES)
def test_the_bucket_says_how_many_leave(module: ModuleType) -> None:
    queue = module.SendQueue(0, 1000, 1000, 100)
    bucket = TokenBucket(1_000_000, 3 * (100 + OVERHEAD_BYTES))
    for _ in range(5):
        queue.add(bytes(100), 0)
    assert queue.due(bucket, 0, 2) == 2
    assert len(taken(queue, bucket, 0)) == 3
    assert queue.due(bucket, 0, 9) == 0
    # What one datagram wants, which is more than a quarter of the bucket.
    ready_ns = queue.ready_ns(bucket, 0)
    assert queue.due(bucket, ready_ns - 1, 9) == 0
    assert len(taken(queue, bucket, ready_ns)) == 1
    queue.gone(bucket, 9, 0)
    assert queue.count == 0
    assert queue.ready_ns(bucket, 0) == NEVER


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("rate", "burst", "waiting", "expected_ns"),
    [
        pytest.param(100_000_000, 16_600, 9, 41_500, id="a quarter of the bucket"),
        pytest.param(100_000_000, 16_600, 2, 3_320, id="all that waits"),
        pytest.param(10_000_000, 16_600, 9, 100_000, id="no longer than a tenth of a ms"),
        pytest.param(100_000, 16_600, 9, 1_660_000, id="but until the first may leave"),
    ],
)
def test_a_channel_that_waits_for_the_bucket_gathers_what_leaves_at_once(
    module: ModuleType, rate: int, burst: int, waiting: int, expected_ns: int
) -> None:
    queue = module.SendQueue(0, 1000, 1000, 100)
    bucket = TokenBucket(rate, burst)
    bucket.charge(burst, 0)
    for _ in range(waiting):
        queue.add(bytes(100 if waiting == 2 or rate < 10**6 else 1000 - OVERHEAD_BYTES), 0)
    assert queue.ready_ns(bucket, 0) == expected_ns
