"""Packing messages into datagrams (`feedhandler/fixcast/datagrams.py`)."""

import random
from typing import Any

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.framing import Frame
from feedhandler.codecs.fix.reasons import FixReject
from feedhandler.fixcast.datagrams import DATAGRAM_BYTES, UDP_BYTES_MAX, Packer
from feedhandler.fixcast.messages import Header, read_datagram
from feedhandler.fixcast.session import NEVER

MS = 1_000_000


def test_no_datagram_is_longer_than_set_and_none_is_empty(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        packer = Packer(MS, rng.randint(100, DATAGRAM_BYTES))
        now_ns, waiting, messages, datagrams = 0, [], [], []
        for _ in range(200):
            message = rng.randbytes(rng.choice([1, 20, 90, rng.randint(1, 2000)]))
            now_ns += rng.choice([0, 0, rng.randint(0, MS)])
            assert packer.deadline_ns >= now_ns or waiting
            full = packer.tick(now_ns) + packer.add(message, now_ns)
            waiting = [message]
            messages.append(message)
            datagrams += full
        datagrams += packer.flush()
        assert b"".join(datagrams) == b"".join(messages)
        alone = {message for message in messages if len(message) > packer.bytes_max}
        for datagram in datagrams:
            assert datagram
            assert len(datagram) <= packer.bytes_max or datagram in alone
        assert packer.flush() == []
        assert packer.deadline_ns == NEVER


def test_a_datagram_leaves_when_its_period_ends() -> None:
    packer = Packer(MS)
    assert packer.add(b"one", 5) == []
    assert packer.add(b"two", MS) == []
    assert packer.deadline_ns == 5 + MS
    assert packer.tick(4 + MS) == []
    assert packer.tick(5 + MS) == [b"onetwo"]
    assert packer.tick(10 * MS) == []


def test_a_datagram_leaves_when_it_is_full() -> None:
    packer = Packer(MS, 10)
    assert packer.add(b"123456", 0) == []
    assert packer.add(b"12345", 7) == [b"123456"]
    assert packer.deadline_ns == 7 + MS
    assert packer.add(b"67890", 8) == [b"1234567890"]


def test_without_a_period_nothing_waits() -> None:
    packer = Packer(0)
    assert packer.add(b"one", 0) == [b"one"]


def test_a_long_message_goes_alone_or_is_refused() -> None:
    packer = Packer(MS, 10)
    packer.add(b"one", 0)
    assert packer.add(b"x" * 11, 0) == [b"one", b"x" * 11]
    assert packer.add(b"two", 0) == []
    refusing = Packer(MS, 10, long="refuse")
    refusing.add(b"one", 0)
    with pytest.raises(UsageError, match="at most 10"):
        refusing.add(b"x" * 11, 0)
    assert refusing.flush() == [b"one"]


@pytest.mark.parametrize("size", [0, UDP_BYTES_MAX + 1])
def test_what_no_datagram_can_carry_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="cannot be sent"):
        Packer(MS).add(bytes(size), 0)


@pytest.mark.parametrize(
    "settings", [{"period_ns": -1}, {"period_ns": 0, "bytes_max": UDP_BYTES_MAX + 1}]
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot pack"):
        Packer(**settings)


def test_each_datagram_decodes_by_itself(seed: int) -> None:
    rng = random.Random(seed)
    packer, header = Packer(MS), Header(target=b"T")
    datagrams: list[bytes] = []
    for number in range(1, 200):
        text = b"35=X\x0158=%b\x01" % (b"x" * rng.randint(1, 2000))
        datagrams += packer.add(header.application(envelope(b"FIX.4.4", text), number, 7), 0)
    datagrams += packer.flush()
    assert len(datagrams) > 20
    numbers = []
    for datagram in datagrams:
        messages, fault = read_datagram(datagram, Frame())
        assert fault is FixReject.FINE
        # Channel, epoch and number are in each message.
        assert {(each.topic, each.epoch) for each in messages} == {(b"T", 7)}
        numbers += [each.number for each in messages]
    assert numbers == list(range(1, 200))
