"""The channel's header by compiled code (`feedhandler/fixcast/stamping.py`)."""

import random
from collections.abc import Callable

import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.fixcast import stamping
from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.values import NUMBER_MAX

HEADERS = [
    Header(b"FIXT.1.1", b"PUB", b"EQ1"),
    Header(b"FIX.4.4", b"", b"EQ1"),
    Header(has_epoch=False),
]
TWIN = load_interpreted("feedhandler.fixcast.stamping")
#: Header fields that a message may bring, in any order; its body follows.
FIELDS = [
    b"34=77\x01", b"43=Y\x01", b"49=SOMEBODY\x01", b"50=DESK\x01", b"52=20261124-10:00:00\x01",
    b"56=ELSE\x01", b"57=SUB\x01", b"97=N\x01", b"115=BEHALF\x01", b"122=20261124-10:00:00\x01",
    b"128=TO\x01", b"369=9\x01", b"1128=9\x01",
]  # fmt: skip
REFUSED = {
    "nothing": b"",
    "rubbish": b"rubbish",
    "a heartbeat": envelope(b"FIX.4.4", b"35=0\x01"),
    "a test request": envelope(b"FIX.4.4", b"35=1\x01112=x\x01"),
    "a resend request": envelope(b"FIX.4.4", b"35=2\x017=1\x0116=0\x01"),
    "a reject": envelope(b"FIX.4.4", b"35=3\x0145=1\x01"),
    "a time beacon": envelope(b"FIX.4.4", b"35=UB\x01"),
    "data in the header": envelope(b"FIX.4.4", b"35=X\x0190=3\x0191=a\x01b\x0158=x\x01"),
    "XML in the header": envelope(b"FIX.4.4", b"35=X\x01212=1\x01213=x\x0158=x\x01"),
    "a wrong CheckSum": envelope(b"FIX.4.4", b"35=X\x0158=x\x01")[:-2] + b"0\x01",
    "two messages": 2 * envelope(b"FIX.4.4", b"35=X\x01"),
    "half a message": envelope(b"FIX.4.4", b"35=X\x0158=x\x01")[:-1],
}

Stamp = Callable[[Header, bytes, int, int], bytes | None]


def compiled(header: Header, data: bytes, number: int, epoch: int) -> bytes | None:
    return header.stamper(epoch).stamped(data, number)


def interpreted(header: Header, data: bytes, number: int, epoch: int) -> bytes | None:
    own = b"50=%d\x01" % epoch if header.has_epoch else b""
    stamper = TWIN.Stamper(header.begin_string, own + header._names())
    found: bytes | None = stamper.stamped(data, number)
    return found


def some_message(rng: random.Random) -> bytes:
    """A message with some of the header fields, however it was numbered before."""
    fields = rng.sample(FIELDS, rng.randint(0, len(FIELDS)))
    kind = rng.choice([b"X", b"W", b"AE", b"U1", b"ABC"])
    body = b"268=1\x01279=0\x0158=%b\x01" % (b"x" * rng.randint(0, 300))
    if rng.random() < 0.2:
        body += b"95=3\x0196=\x01=\x01\x01"
    return envelope(
        rng.choice([b"FIX.4.4", b"FIXT.1.1"]), b"35=%b\x01%b%b" % (kind, b"".join(fields), body)
    )


@pytest.mark.parametrize("stamp", [compiled, interpreted])
def test_it_writes_what_the_header_writes(stamp: Stamp, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        header, data = rng.choice(HEADERS), some_message(rng)
        number = rng.choice([1, 9, 10, rng.randint(1, 10**6), NUMBER_MAX])
        epoch = rng.choice([0, 7, NUMBER_MAX])
        assert stamp(header, data, number, epoch) == header.application(data, number, epoch)


@pytest.mark.parametrize("stamp", [compiled, interpreted])
@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses_what_the_header_refuses(stamp: Stamp, what: str) -> None:
    for header in HEADERS:
        assert stamp(header, REFUSED[what], 1, 1) is None
        with pytest.raises(UsageError):
            header.application(REFUSED[what], 1, 1)


@pytest.mark.parametrize("stamp", [compiled, interpreted])
def test_of_mutated_messages_both_take_the_same(stamp: Stamp, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        data = bytearray(some_message(rng))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice(b"\x01=0159X" + rng.randbytes(2))
        # A CheckSum that is right lets more of them through.
        given = bytes(data[:-7])
        given += b"10=%03d\x01" % (sum(given) & 0xFF)
        try:
            expected = HEADERS[0].application(given, 5, 9)
        except UsageError:
            expected = None
        assert stamp(HEADERS[0], given, 5, 9) == expected


def test_a_message_outside_its_buffer_is_not_written() -> None:
    stamper = TWIN.Stamper(b"FIX.4.4", b"")
    data = memoryview(envelope(b"FIX.4.4", b"35=X\x0158=x\x01"))
    assert stamper.measure(data, len(data), 0, 1) == stamper.size
    for index, room in ((0, stamper.size - 1), (1, stamper.size), (-1, stamper.size)):
        with pytest.raises(IndexError):
            stamper.write(data, memoryview(bytearray(room)), index)


def test_runs_of_kept_fields_are_bounded_by_what_a_header_may_hold() -> None:
    own = [b"34=1\x01", b"43=Y\x01", b"49=a\x01", b"50=b\x01", b"56=c\x01"]
    kept = [b"52=x\x01", b"57=x\x01", b"97=N\x01", b"115=x\x01", b"116=x\x01", b"128=x\x01"]
    fields = b"".join(k + o for k, o in zip(kept, own, strict=False)) + kept[-1]
    data = envelope(b"FIX.4.4", b"35=X\x01" + fields + b"58=x\x01")
    assert compiled(HEADERS[0], data, 1, 1) == HEADERS[0].application(data, 1, 1)
    assert len(own) < stamping.KEPT_RUNS_MAX
