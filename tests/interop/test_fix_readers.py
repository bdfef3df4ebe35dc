"""Each datagram of FIX over multicast is read alike by tshark, QuickFIX/J, simplefix and us."""

import functools
import gzip
import random
from pathlib import Path

import dpkt
import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.fix.dictionary import load_dictionary
from feedhandler.codecs.fix.encode import LENGTH_OF, encode
from feedhandler.fixcast.exchange_plan import symbols_of
from feedhandler.fixcast.values import Kind, Message
from feedhandler.replay.generating.fix_market import FixMarket
from feedhandler.replay.translation.fix_translator import FixTranslator
from tests.support.fix_readers import (
    our_messages,
    our_reading,
    quickfixj_reading,
    simplefix_reading,
    tshark_reading,
)
from tests.support.fix_translation import EPOCH, MS, Wire

DICTIONARY = load_dictionary("fix50sp2")
#: 2026-01-05 09:00:00 UTC.
OPENING_NS = 1_767_603_600_000_000_000
#: Messages of the simulated market, and of random ones with data and nested groups.
SIMULATED, RANDOM = 400, 300
SOURCES = ("session", "random", "simulated", "real")


def session() -> list[bytes]:
    """Return datagrams with all that a publisher sends beside data, alone and among data.

    That is Logon, Heartbeat, GapFill, Logout, the beacon, and possible duplicates.
    """
    wire, market = Wire(), FixMarket(1, symbols_of(1))
    for second in range(1, 4):
        list(wire.publish(market.next_message(OPENING_NS) for _ in range(7)))
        wire.now_ns = (1_000 + 2_000 * second) * MS
        list(wire.end_period())
        wire.sender.skip(wire.sender.session.next + 100, wire.now_ns)
        list(wire.end_period())
    list(wire.end())
    header = wire.sender.header
    beacon = header.administrative(Message(Kind.BEACON, 0, epoch=EPOCH))
    again = [header.repeated(each) for each in wire.bodies.values()]
    return [*wire.datagrams, beacon, beacon + again[0] + beacon, b"".join(again[:4])]


def _data(rng: random.Random) -> bytes:
    """Bytes in which SOH, equals signs and what looks like a trailer may be."""
    parts = [b"\x01", b"=", b"\x0110=000\x01", b"8=FIX", b"text", bytes([rng.randrange(1, 256)])]
    return b"".join(rng.choices(parts, k=rng.randint(1, 8)))


def _entry(rng: random.Random) -> list[tuple[int, object]]:
    """An entry of X, with groups within groups and data in some."""
    entry: list[tuple[int, object]] = [
        (279, rng.choice("012")),
        (269, rng.choice("01")),
        (55, rng.choice(("ABC", "EUR/USD", "EIN-LANGER-NAME-2026"))),
        (270, f"{rng.randint(1, 9999)}.{rng.randint(0, 9999):04}"),
        (271, rng.randint(1, 10**9)),
    ]
    if rng.random() < 0.5:
        parties = []
        for number in range(rng.randint(1, 3)):
            subs = [[(523, f"S{n}"), (803, n + 1)] for n in range(rng.randint(0, 3))]
            party: list[tuple[int, object]] = [(448, f"P{number}"), (447, "D"), (452, 1)]
            parties.append([*party, (802, subs)] if subs else party)
        entry.append((453, parties))
    if rng.random() < 0.5:
        entry.append((355, _data(rng)))
    return entry


def randomly(seed: int) -> list[bytes]:
    """X with nested groups, and news with data; whatever may be in them."""
    rng, wire = random.Random(seed), Wire()

    def message() -> bytes:
        if rng.random() < 0.2:
            lines = [[(58, "line"), (355, _data(rng))] for _ in range(rng.randint(1, 3))]
            return encode([(35, "B"), (148, "news"), (33, lines), (96, _data(rng))])
        return encode([(35, "X"), (268, [_entry(rng) for _ in range(rng.randint(1, 4))])])

    list(wire.publish(message() for _ in range(RANDOM)))
    list(wire.end())
    return wire.datagrams


def simulated(seed: int) -> list[bytes]:
    """The simulated market's book updates."""
    wire, market = Wire(), FixMarket(seed, symbols_of(1)[:20])
    list(wire.publish(market.next_message(OPENING_NS + n) for n in range(SIMULATED)))
    list(wire.end())
    return wire.datagrams


@functools.cache
def real(captures: Path) -> list[bytes]:
    """The real session of IEX and real packets of OpenBook Ultra as FIX."""
    wire = Wire()
    files = [("iex-deep", captures / "iex" / "deep-2023-10-02.pcap.gz")]
    folder = captures / "nyse" / "openbook-ultra-2.1.b"
    files += [("nyse-openbook-ultra", path) for path in sorted(folder.glob("*UpdateMessage.pcap"))]
    for feed, path in files:
        translator = FixTranslator(load_feed(feed))
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for _, frame in dpkt.pcap.Reader(file):
                payload = bytes(dpkt.ethernet.Ethernet(frame).data.data.data)
                list(wire.publish(translator.packet(payload)))
    list(wire.end())
    return wire.datagrams


@pytest.fixture
def datagrams(source: str, seed: int, request: pytest.FixtureRequest) -> list[bytes]:
    if source == "real":
        return real(request.getfixturevalue("captures"))
    return {"session": lambda _: session(), "random": randomly, "simulated": simulated}[source](
        seed
    )


@pytest.mark.parametrize("source", SOURCES)
def test_simplefix_reads_the_same_fields_in_the_same_order(datagrams: list[bytes]) -> None:
    for datagram in datagrams:
        ours = [our_reading(DICTIONARY, each)[0] for each in our_messages(datagram)]
        assert simplefix_reading(datagram) == ours


@pytest.mark.parametrize("source", SOURCES)
def test_quickfixj_reads_the_same_fields_and_groups(datagrams: list[bytes]) -> None:
    theirs = quickfixj_reading(datagrams)
    assert len(theirs) == len(datagrams)
    for datagram, messages in zip(datagrams, theirs, strict=True):
        assert messages == [our_reading(DICTIONARY, each)[1] for each in our_messages(datagram)]


@pytest.mark.parametrize("source", SOURCES)
def test_tshark_finds_the_same_messages_and_fields(datagrams: list[bytes]) -> None:
    """Wireshark ends a data field at its first SOH: what is behind such a one it reads as it can,
    so there its fields are compared up to that one."""
    compared = 0
    for datagram, dissected in zip(datagrams, tshark_reading(datagrams), strict=True):
        at = 0
        for message, theirs in zip(our_messages(datagram), dissected, strict=True):
            assert (theirs.at, theirs.size) == (at, len(message))
            at += len(message)
            ours, _ = our_reading(DICTIONARY, message)
            cut = next(
                (n for n, (tag, value) in enumerate(ours) if tag in LENGTH_OF and b"\x01" in value),
                None,
            )
            assert theirs.fields[:cut] == ours[:cut]
            assert theirs.checksum_good or cut is not None
            compared += cut is None
    assert compared > 20
