"""Generated traffic is a sound market: numbers, books, quotes, snapshots; and always the same."""

import hashlib
import os
import re
import subprocess
import sys
import zlib

import msgspec
import numpy as np
import pytest

from feedhandler.codecs import PacketKind
from feedhandler.codecs.errors import UsageError
from feedhandler.market.stream_market import Market
from feedhandler.replay.generating.packets import PACKET_BYTES_MAX, SERVICES
from feedhandler.replay.generating.profile import load_profile
from feedhandler.replay.generating.tape import HEADER_BYTES, REALTIME
from feedhandler.replay.generating.traffic import Traffic, packets
from tests.support.market import same_levels
from tests.support.market_traffic import FEED, MARKET, packets_of, sent, stretch
from tests.support.seeds import rerun, seed_of

#: These tests share what a seed makes, so they share the one that is drawn.
FILE = "tests/unit/replay/generating/test_traffic.py"
DRAWN = seed_of(FILE)


@pytest.fixture
def seed() -> int:
    print(rerun(FILE, DRAWN))
    return DRAWN


def test_a_market_takes_all_of_it_without_a_problem_and_no_book_ever_crosses(seed: int) -> None:
    market, looked = Market(FEED, keeps_messages=True), 0
    for index, (channel, _, packet) in enumerate(sent(seed)):
        if channel >= REALTIME:
            continue
        market.apply(packet)
        if channel == 3 and index % 37 == 0:
            symbols = [s for s in FEED.decode_packet(packet).symbols if s in market.books]
            assert not any(market.books[symbol].crossed for symbol in symbols)
            looked += bool(symbols)
    assert looked > 40
    assert not market.problems
    for book in market.books.values():
        assert book.bids.top(1)
        assert book.asks.top(1)
        assert not book.crossed
    assert len(market.names) == len(stretch(seed).instruments)


def test_quotes_show_the_books_that_orders_make(seed: int) -> None:
    market = Market(FEED, keeps_messages=True)
    for channel, _, packet in sent(seed):
        if channel < REALTIME:
            market.apply(packet)
    compared = 0
    for symbol, levels in market.latest("quote").items():
        book = market.books.get(symbol)
        if book is None or not (book.bids.orders or book.asks.orders):
            continue
        for quote in levels.values():
            same_levels(book, quote)
            compared += 1
    assert compared > 1_000


def test_prices_are_on_the_tick_and_trades_add_up(seed: int) -> None:
    ticks, traded, trades = {}, {}, 0
    for channel, _, packet in sent(seed):
        if channel not in (0, 1, 3, 4):
            continue
        decoded = FEED.decode_packet(packet)
        for kind, message in zip(decoded.types, decoded.messages, strict=True):
            wire = message.wire()
            symbol = wire.get("SymbolIndex")
            if kind == 553:
                ticks[symbol] = wire["FixPriceTick"]
            elif kind == 230:
                assert wire["Price"] % ticks[symbol] == 0
            elif kind == 240:
                traded[symbol] = traded.get(symbol, 0) + wire["Volume"]
                assert wire["CumulativeQuantity"] == traded[symbol]
                assert wire["LowestPrice"] <= wire["Price"] <= wire["HighestPrice"]
                assert wire["Price"] % ticks[symbol] == 0
                trades += 1
    assert trades > 20


def test_packets_are_numbered_without_a_gap_from_a_reset_on_in_order_of_time(seed: int) -> None:
    expected, latest = {}, 0
    for channel, time_ns, packet in sent(seed):
        decoded = FEED.decode_packet(packet)
        assert len(packet) <= PACKET_BYTES_MAX
        assert decoded.service == SERVICES[channel % REALTIME]
        assert decoded.send_time == time_ns // 1_000_000
        assert time_ns >= latest
        latest = time_ns
        if decoded.kind is PacketKind.RESET:
            assert channel not in expected
            expected[channel] = 1
        if decoded.kind is not PacketKind.HEARTBEAT:
            assert decoded.sequence == expected[channel]
            expected[channel] += 1
    assert len(expected) == 2 * REALTIME


def test_nothing_of_a_halted_share_moves_until_it_is_reopened(seed: int) -> None:
    halted, halts = set(), 0
    for channel, _, packet in sent(seed):
        if channel not in (0, 1, 2, 3):
            continue
        decoded = FEED.decode_packet(packet)
        for kind, message in zip(decoded.types, decoded.messages, strict=True):
            if kind == 505:
                (halted.add if message.order_entry_rejection == "Y" else halted.discard)(
                    message.symbol_index
                )
                halts += 1
            elif kind in (230, 140, 240):
                assert message.symbol_index not in halted
    assert halts > 3


def test_a_snapshot_and_what_follows_give_the_state_of_who_was_there_from_the_start() -> None:
    few = msgspec.structs.replace(MARKET, instruments=250)
    whole, live, snapshots = Market(FEED, keeps_messages=True), {}, {}
    for channel, _, packet in packets_of(stretch(3, profile=few, duration_s=8.0)):
        if channel < REALTIME:
            whole.apply(packet)
            live.setdefault(channel, []).append(packet)
        else:
            snapshots.setdefault(channel - REALTIME, []).append(packet)
    shown = []
    for channel, packets_ in snapshots.items():
        types = [FEED.decode_packet(packet).types for packet in packets_]
        if not any(581 in each for each in types):
            continue
        start = next(i for i, each in enumerate(types) if 580 in each)
        end = next(i for i, each in enumerate(types) if 581 in each and i >= start)
        late = Market(FEED, keeps_messages=True)
        for packet in packets_[start : end + 1]:
            late.apply(packet)
        last = FEED.decode_packet(packets_[start]).messages[0].last_seq_num
        for packet in live[channel]:
            if FEED.decode_packet(packet).sequence > last:
                late.apply(packet)
        assert not late.problems
        assert late.digest(SERVICES[channel]) == whole.digest(SERVICES[channel])
        shown.append(channel)
    assert set(shown) >= {0, 1, 2, 3}


def test_both_lines_bring_the_same_in_order_but_for_what_each_loses() -> None:
    traffic = stretch(5, loss=(0.05, 0.02))
    everything: list[bytes] = []
    traffic.on_block = lambda data, columns: everything.extend(
        data[at : at + size].tobytes()
        for at, size in zip(columns["offset"].tolist(), columns["length"].tolist(), strict=True)
    )
    lines, latest = {0: [], 1: []}, 0
    for datagrams in traffic.datagrams():
        assert (np.diff(datagrams.time_ns) >= 0).all()
        assert int(datagrams.time_ns[0]) >= latest
        latest = int(datagrams.time_ns[-1])
        for row in range(len(datagrams)):
            lines[int(datagrams.destination[row]) // 14].append(datagrams.payload(row))
    total = len(everything)
    # Five standard deviations of a binomial count.
    for line, loss in ((0, 0.05), (1, 0.02)):
        lost = total - len(lines[line])
        assert abs(lost - loss * total) < 5 * (loss * (1 - loss) * total) ** 0.5
        unseen = iter(everything)
        assert all(packet in unseen for packet in lines[line])


DAY = load_profile("euronext-2011-03")


def morning() -> Traffic:
    """A thousandth of the day till after the opening's peaks: reference data, books sent by the
    plan, heartbeats, seconds with a size of their own."""
    few = msgspec.structs.replace(DAY, instruments=20_000, heartbeat_s=30.0)
    return Traffic(few, 2, scale=0.001, duration_s=10_520.0, feed=FEED)


def digest(traffic: Traffic) -> str:
    found = hashlib.sha256()
    for datagrams in traffic.datagrams():
        for column in (datagrams.data, datagrams.time_ns, datagrams.destination, datagrams.length):
            found.update(column.tobytes())
    return found.hexdigest()


def messages_digest(traffic: Traffic) -> str:
    """Of what every machine must send alike: each packet's position, and its messages, inflated.
    Lengths of compressed packets are zlib's, and send times follow from lengths."""
    found = hashlib.sha256()
    for channel, _, packet in packets_of(traffic):
        header = FEED.decode_packet(packet)
        body = packet[HEADER_BYTES:]
        if channel >= REALTIME and header.kind is PacketKind.DATA:
            body = zlib.decompress(body)
        found.update(b"%d %d %d " % (channel, header.sequence, packet[15]))
        found.update(body)
    return found.hexdigest()


#: Of the session below; a change of the generator changes it, a change of machine must not.
DIGEST = "a7d7bc0435396125117270aa6f518e9bdd6720263f7cabe863f6b44b5c24cd6e"
SMALL = {"rate_mbps": 1.0, "duration_s": 1.0}
_TWIN = """
import feedhandler._compiled as compiled
compiled.PURE_MODE = {name: path for name, path in compiled.PURE_MODE.items()
                      if name.startswith("feedhandler.replay.generating.")}
compiled.prefer_interpreted()
from tests.unit.replay.generating.test_traffic import SMALL, digest, morning, stretch
import feedhandler.replay.generating.flow as flow
assert flow.__file__.endswith(".py"), flow.__file__
print(digest(stretch(11, **SMALL)), digest(morning()))
"""


def test_the_interpreted_twin_gives_the_same_bytes_and_another_seed_others() -> None:
    compiled = digest(stretch(11, **SMALL))
    assert compiled == digest(stretch(11, **SMALL))
    assert compiled != digest(stretch(12, **SMALL))
    twin = subprocess.run(
        [sys.executable, "-c", _TWIN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert twin.stdout.split() == [compiled, digest(morning())], twin.stderr


def test_the_messages_are_those_of_every_other_machine_whatever_its_zlib(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert messages_digest(stretch(11, **SMALL)) == DIGEST
    as_here, deflate = messages_digest(morning()), zlib.compress
    monkeypatch.setattr(zlib, "compress", lambda data, level: deflate(data, 9))
    assert messages_digest(stretch(11, **SMALL)) == DIGEST
    assert messages_digest(morning()) == as_here


def test_without_refreshes_there_is_nothing_on_their_channels() -> None:
    assert {channel for channel, _, _ in packets_of(stretch(2, refresh=False))} == set(range(7))


def test_packets_for_the_laboratory_are_one_lines_until_there_are_enough_messages() -> None:
    data, offset, length = packets(4, 60_000, rate_mbps=8.0, feed=FEED)
    counted = 0
    for start, size in zip(offset.tolist(), length.tolist(), strict=True):
        assert start + size <= len(data)
        counted += int(data[start + 15])
    assert 60_000 <= counted < 120_000


def test_without_its_opening_a_stretch_begins_with_the_market_itself() -> None:
    whole, offsets, _ = packets(4, 5_000, rate_mbps=8.0, feed=FEED)
    data, offset, length = packets(4, 5_000, rate_mbps=8.0, feed=FEED, opening=False)
    assert len(whole) <= len(data)
    opening = offsets.tolist().index(int(offset[0]))
    first = [whole[at : at + 16].tobytes() for at in offsets[:opening].tolist()]
    assert opening > 100
    assert {int.from_bytes(each[12:14], "big") for each in first} >= {101, 103, 104, 106}
    kinds = {
        FEED.decode_packet(data[at : at + size].tobytes()).kind
        for at, size in zip(offset[:500].tolist(), length[:500].tolist(), strict=True)
    }
    assert kinds == {PacketKind.DATA}


def test_a_days_opening_and_quiet_hours_are_sound_too() -> None:
    market, seen, traffic = Market(FEED, keeps_messages=True), set(), morning()
    for channel, _, packet in packets_of(traffic):
        if channel < REALTIME:
            market.apply(packet)
            seen.add(FEED.decode_packet(packet).kind)
    assert seen == {PacketKind.RESET, PacketKind.DATA, PacketKind.HEARTBEAT}
    assert not market.problems
    assert traffic.flow.rounds >= 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seed": -1}, "a seed of -1"),
        ({"scale": 1e9}, "a scale of 1e+09"),
        ({"scale": float("nan")}, "a scale of nan"),
        ({"rate_mbps": 0.0}, "a rate of 0 Mbit/s"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(wrong: dict, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as refused:
        Traffic(MARKET, **wrong)
    assert "\n" not in str(refused.value)


def test_a_day_has_no_rate() -> None:
    with pytest.raises(UsageError, match="is a day"):
        Traffic(DAY, rate_mbps=40.0)
