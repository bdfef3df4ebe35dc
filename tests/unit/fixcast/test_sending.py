"""One channel's way out (`feedhandler/fixcast/sending.py`)."""

import random
from typing import Any

import pytest

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.framing import Frame
from feedhandler.codecs.fix.reasons import FixReject
from feedhandler.fixcast.messages import Header, read_datagram
from feedhandler.fixcast.pacing import OVERHEAD_BYTES, TokenBucket
from feedhandler.fixcast.sending import ChannelSender, SendingSettings, next_epoch
from feedhandler.fixcast.session import NEVER, SessionSettings
from feedhandler.fixcast.values import NUMBER_MAX, Kind, Message
from tests.support.fixcast import pop_due

MS = 1_000_000
SECOND = 1000 * MS
HEADER = Header(sender=b"PUB", target=b"T")


def update(size: int = 0) -> bytes:
    return envelope(
        b"FIXT.1.1", b"35=X\x01268=0\x01" + (b"58=%b\x01" % (b"x" * size) if size else b"")
    )


def sender(bucket: TokenBucket | None = None, **settings: Any) -> ChannelSender:
    made = ChannelSender(HEADER, SendingSettings(**settings), bucket or TokenBucket(10**9, 10**6))
    made.start(0, epoch=9)
    return made


def messages(datagrams: list[bytes]) -> list[Message]:
    found = []
    for datagram in datagrams:
        read, fault = read_datagram(datagram, Frame())
        assert fault is FixReject.FINE
        found += read
    return found


def test_messages_leave_in_the_order_of_their_numbers_packed_and_paced(seed: int) -> None:
    rng = random.Random(seed)
    channel = sender(TokenBucket(2_000_000, 5000))
    now_ns, sent, published = 0, [], 0
    while published < 500 or channel.waiting or channel.deadline_ns <= now_ns + MS:
        if published < 500 and not channel.full and rng.random() < 0.8:
            published += 1
            assert channel.publish(update(rng.randint(1, 300)), now_ns) == published
        channel.tick(now_ns)
        sent += [(now_ns, each) for each in pop_due(channel, now_ns)]
        if rng.random() < 0.3:
            now_ns = min(max(channel.deadline_ns, now_ns + 1), now_ns + MS)
    found = messages([each for _, each in sent])
    assert [each.number for each in found if each.kind is Kind.APPLICATION] == [*range(1, 501)]
    assert found[0].kind is Kind.LOGON
    for at, (begin_ns, _) in enumerate(sent):
        window = [each for time_ns, each in sent[at:] if time_ns < begin_ns + 10 * MS]
        size = sum(len(each) + OVERHEAD_BYTES for each in window)
        assert size <= 5000 + 2_000_000 // 100


def test_what_has_a_number_leaves_before_the_heartbeat_that_tells_of_it() -> None:
    channel = sender(session=SessionSettings(heartbeat_ns=1000), period_ns=SECOND)
    pop_due(channel, 0)
    channel.publish(update(), 0)
    channel.tick(1000)
    found = messages(pop_due(channel, 1000))
    assert [(each.kind, each.number) for each in found] == [
        (Kind.APPLICATION, 1),
        (Kind.HEARTBEAT, 2),
    ]


def test_a_message_that_is_refused_takes_no_number() -> None:
    channel = sender(long="refuse")
    for wrong in (b"rubbish", update(3000), envelope(b"FIX.4.4", b"35=0\x01")):
        with pytest.raises(UsageError):
            channel.publish(wrong, 0)
    assert channel.publish(update(), 0) == 1


def test_what_waits_is_bounded() -> None:
    channel = sender(TokenBucket(1000, 100), waiting_max=3, period_ns=0)
    pop_due(channel, 0)
    while not channel.full:
        channel.publish(update(), 0)
    with pytest.raises(UsageError, match="full"):
        channel.publish(update(), 0)
    assert channel.waiting == 3
    assert channel.deadline_ns == 0
    assert pop_due(channel, 0) == []
    assert len(pop_due(channel, channel.deadline_ns)) == 1
    assert not channel.full


def test_what_was_sent_is_kept_under_its_number() -> None:
    channel = sender()
    for size in (1, 2, 3):
        channel.publish(update(size), 0)
    kept = channel.store.packets(2, 4)
    assert [(first, end) for first, end, _ in kept] == [(2, 3), (3, 4)]
    assert [each.number for each in messages([data for _, _, data in kept])] == [2, 3]
    channel.stop(0)
    channel.start(0, epoch=10)
    assert channel.store.count == 0


def test_when_the_numbers_are_used_up_a_new_epoch_begins() -> None:
    channel = sender()
    channel.stop(0)
    channel.start(0, 9, NUMBER_MAX)
    assert [channel.publish(update(), 0), channel.publish(update(), 0)] == [NUMBER_MAX, 1]
    channel.tick(MS)
    found = messages(pop_due(channel, MS))
    assert [(each.kind, each.epoch, each.number) for each in found[2:]] == [
        (Kind.LOGON, 9, NUMBER_MAX),
        (Kind.APPLICATION, 9, NUMBER_MAX),
        (Kind.LOGOUT, 9, NUMBER_MAX + 1),
        (Kind.LOGON, 10, 1),
        (Kind.APPLICATION, 10, 1),
    ]


def test_what_is_skipped_is_announced() -> None:
    channel = sender()
    channel.skip(100, 0)
    assert channel.publish(update(), 0) == 100
    assert messages(pop_due(channel, 0))[-1][:4:3] == (Kind.GAP_FILL, 100)


@pytest.mark.parametrize(
    ("before", "wall_ns", "expected"),
    [(0, 5, 5), (5, 5, 6), (9, 5, 10), (0, NUMBER_MAX + 9, NUMBER_MAX)],
)
def test_an_epoch_is_above_the_one_before(before: int, wall_ns: int, expected: int) -> None:
    assert next_epoch(before, wall_ns) == expected


def test_an_answer_on_the_main_group_leaves_among_the_others() -> None:
    channel = sender()
    channel.publish(update(), 0)
    channel.tick(MS)
    (kept,) = channel.store.packets(1, 2)
    channel.repeat(kept[2], MS)
    found = messages(pop_due(channel, MS))
    assert [(each.kind, each.number) for each in found[1:]] == [(Kind.APPLICATION, 1)] * 2


class Failing:
    """A sealer that has no key at first."""

    overhead_bytes = 0
    deadline_ns = NEVER

    def __init__(self) -> None:
        self.broken = False

    def seal(self, datagram: bytes, now_ns: int) -> list[bytes]:
        if self.broken:
            raise ConfigError("no key is valid")
        return [datagram]

    def tick(self, now_ns: int) -> list[bytes]:
        return []

    flush = tick


def test_a_number_is_taken_even_where_its_datagram_cannot_be_sealed() -> None:
    sealer = Failing()
    settings = SendingSettings(period_ns=0)
    channel = ChannelSender(HEADER, settings, TokenBucket(10**9, 10**6), sealer)
    channel.start(0, epoch=9)
    assert channel.publish(update(), 0) == 1
    sealer.broken = True
    with pytest.raises(ConfigError):
        channel.publish(update(), 0)
    sealer.broken = False
    assert channel.publish_each([update(), update()], 0, 2, 0) == 2
    found = messages(pop_due(channel, 0))
    assert [each.number for each in found if each.kind is Kind.APPLICATION] == [1, 3, 4]
    assert [first for first, _, _ in channel.store.packets(1, 5)] == [1, 2, 3, 4]
