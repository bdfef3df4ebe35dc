"""Normalised records to links: who gets which, what symbols they are sent, what a late or slow one
gets, and what a loss does to them."""

import functools
import json
import time
from collections.abc import Iterator
from datetime import date
from typing import Any

import databento_dbn
import numpy as np
import pytest

from feedhandler.amqp.publishing.destination import Destination
from feedhandler.amqp.publishing.envelope import Envelope
from feedhandler.amqp.routing import AddressError, parse_address
from feedhandler.amqp.serving.backlogged_link import BackloggedLink
from feedhandler.amqp.serving.link_counts import add_sender_queue
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import (
    FLAG_MAYBE_BAD_BOOK,
    FLAG_SNAPSHOT,
    SCHEMAS,
    decode_records,
    encode_symbol_mapping,
)
from feedhandler.codecs.kinds import PacketKind
from feedhandler.counters import NodeCounter, counter_array
from feedhandler.ingest.records import RecordKind
from feedhandler.market.depth_book import DepthBook
from feedhandler.market.records import Records
from feedhandler.replay.generating.order_session import OrderSession
from feedhandler.replay.generating.order_writers import ORDER_WRITERS
from tests.support.amqp import DAY_DATE, STAMP_NS, FakeLink, Rig, decoded
from tests.support.spill import FakeBroker

ITCH = "nasdaq-totalview-itch"
SECOND_NS = 10**9
#: The instruments of `Market`.
NAMES = ["AAAB", "AAAC", "AAAD", "AAAE"]
KEYS = {name: load_feed(name).key for name in ORDER_WRITERS}


@functools.cache
def packets_of(name: str, instruments: int, seed: int) -> list[bytes]:
    """The data packets of a generated session of two seconds."""
    feed = load_feed(name)
    session = OrderSession(feed, seed, instruments=instruments, messages_per_s=400.0, day=DAY_DATE)
    packets = [each.packet for each in session.packets(2 * SECOND_NS)]
    return [each for each in packets if Market.is_data(feed, each)]


class Market(Rig):
    """A gateway's core, and the packets of a generated session; `sent` are those put so far."""

    def __init__(self, name: str = ITCH, instruments: int = 4, seed: int = 3) -> None:
        feed = load_feed(name)
        self.packets_left = packets_of(name, instruments, seed).copy()
        _, header, _ = next(feed.scanned(self.packets_left[0]))
        super().__init__(services=(header.service or 1,), feed=feed, records=True)
        self.sent: list[bytes] = []

    @staticmethod
    def is_data(feed: Any, packet: bytes) -> bool:
        return any(header.kind == PacketKind.DATA for _, header, _ in feed.scanned(packet))

    def go_on(self, count: int) -> None:
        """Put and publish the next packets."""
        for data in self.packets_left[:count]:
            for begin, header, index in self.feed.scanned(data):
                payload = data[begin : begin + header.length]
                self.put(payload, header.sequence, index.count)
                self.sent.append(payload)
        del self.packets_left[:count]
        self.pump()

    def expected(self, schema: str) -> np.ndarray:
        """The records of all that was sent, made apart from any fan-out."""
        records = Records(self.feed, schema)
        records.normaliser.set_day(DAY_DATE)
        for payload in self.sent:
            for begin, header, index in self.feed.scanned(payload):
                sent_ns = self.feed.send_time_ns(header.send_time, self.feed.midnights(DAY_DATE))
                records.apply_packet(
                    payload, begin, index, 0, (1 << 64) - 1 if sent_ns is None else sent_ns,
                    STAMP_NS + header.sequence, self.streams[0].service,
                )  # fmt: skip
        return records.of(schema).copy()


def batches(link: FakeLink) -> Iterator[tuple[np.ndarray, dict[int, str]]]:
    """Records and symbols of each of the link's batches."""
    for each in link.data:
        yield tuple(decode_records(each.body))  # type: ignore[misc]


def records_of(link: FakeLink, schema: str) -> np.ndarray:
    found = [records for records, _ in batches(link) if len(records)]
    return np.concatenate([np.zeros(0, SCHEMAS[schema].records), *found])


@pytest.mark.parametrize("name", ORDER_WRITERS)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_link_gets_the_records_of_all_packets(name: str, schema: str) -> None:
    market = Market(name)
    _, link = market.attach(f"{KEYS[name]}.#?as={schema}")
    market.go_on(1000)
    records = records_of(link, schema)
    least = {"trades": 50, "status": 0, "definition": 4}.get(schema, 200)
    assert len(records) >= least
    if schema == "definition":
        assert sorted(x.decode() for x in records["raw_symbol"]) == NAMES
    else:
        assert records.tobytes() == market.expected(schema).tobytes()
    assert [each.group_sequence for each in link.sent] == list(range(len(link.sent)))


def test_an_instruments_symbol_is_sent_before_its_first_record_and_once() -> None:
    market = Market()
    _, link = market.attach("itch.#?as=mbo")
    market.go_on(1000)
    known: dict[int, str] = {}
    for records, symbols in batches(link):
        assert not known.keys() & symbols.keys()
        known |= symbols
        assert set(records["instrument_id"].tolist()) <= known.keys() | {0}
    assert len(known) == 4
    assert all(name.startswith("S") or name.isalnum() for name in known.values())


def test_a_link_of_a_symbol_gets_its_records_alone() -> None:
    market = Market()
    _, whole = market.attach("itch.#?as=mbo")
    market.go_on(20)
    names = {number: name for _, symbols in batches(whole) for number, name in symbols.items()}
    number, name = next(iter(names.items()))
    _, link = market.attach(f"itch.*.{name}?as=mbo")
    before = len(records_of(whole, "mbo"))
    market.go_on(1000)
    later = records_of(whole, "mbo")[before:]
    wanted = later[(later["instrument_id"] == number) | (later["instrument_id"] == 0)]
    assert 0 < len(wanted) < len(later)
    assert records_of(link, "mbo").tobytes() == wanted.tobytes()


def test_a_schema_without_links_is_made_again_from_the_levels_of_the_moment() -> None:
    market = Market()
    sender_queue, _ = market.attach("itch.#?as=mbp10")
    market.go_on(100)
    market.detach(sender_queue)
    assert not market.fanout.records.records.outputs["mbp10"].active
    market.go_on(100)
    _, link = market.attach("itch.#?as=mbp10")
    market.go_on(1000)
    records = records_of(link, "mbp10")
    assert records.tobytes() == market.expected("mbp10")[-len(records) :].tobytes()


def levels_of(record: np.void) -> tuple[list[tuple[int, int, int]], ...]:
    return tuple(
        [
            tuple(int(record[f"{side}_{what}_{depth:02}"]) for what in ("px", "sz", "ct"))
            for depth in range(10)
            if record[f"{side}_sz_{depth:02}"]
        ]
        for side in ("bid", "ask")
    )


def books_of(book: DepthBook) -> dict[int, tuple[Any, ...]]:
    return {number: (book.bids(number), book.asks(number)) for number in book.instruments()}


def present(market: Market, address: str) -> FakeLink:
    sender_queue, link = market.attach(address)
    market.fanout.records.present(sender_queue, market.streams, STAMP_NS)
    return link


def test_who_comes_late_has_the_books_after_the_state_and_what_follows() -> None:
    market = Market()
    market.go_on(100)
    link = present(market, "itch.#?as=mbo&snapshot=1")
    state = records_of(link, "mbo")
    assert (state["flags"] & FLAG_SNAPSHOT).all()
    assert state["action"].tolist().count(b"R") == 4
    market.go_on(1000)
    book = DepthBook()
    book.apply(records_of(link, "mbo"))
    theirs = market.fanout.records.records.book
    assert books_of(book) == books_of(theirs)
    assert not book.unknown
    assert [book.orders(1, side) for side in (0, 1)] == [theirs.orders(1, x) for x in (0, 1)]


def test_the_state_of_levels_is_one_record_of_each_instrument() -> None:
    market = Market()
    market.go_on(100)
    state = records_of(present(market, "itch.#?as=mbp10&snapshot=1"), "mbp10")
    book = market.fanout.records.records.book
    assert {int(x["instrument_id"]): levels_of(x) for x in state} == books_of(book)
    assert len(state) == 4
    assert not len(records_of(present(market, "itch.#?as=trades&snapshot=1"), "trades"))


def test_trading_statuses_and_the_last_of_each_for_who_comes_late() -> None:
    market = Market()
    _, link = market.attach("itch.#?as=status")
    market.go_on(20)
    (state,) = {*records_of(link, "status")["action"].tolist()}
    assert state == 7, "all trade"
    halt = market.feed.encode_message(
        "stock_trading_action", stock_locate=2, stock="AAAC", trading_state="H"
    )
    packet = market.feed.encode_packet(sequence=market.streams[0].next_sequence, messages=[halt])
    market.put(packet, market.streams[0].next_sequence, 1)
    market.pump()
    last = records_of(link, "status")[-1]
    assert (last["instrument_id"], last["action"], last["is_trading"]) == (2, 8, b"N")
    known = records_of(present(market, "itch.#?as=status&snapshot=1"), "status")
    assert dict(zip(known["instrument_id"].tolist(), known["action"].tolist(), strict=True)) == {
        1: 7, 2: 8, 3: 7, 4: 7,
    }  # fmt: skip
    decoder = databento_dbn.DBNDecoder(has_metadata=False)
    decoder.write(b"".join(each.body for each in link.data))
    read = [x for x in decoder.decode() if isinstance(x, databento_dbn.StatusMsg)]
    assert (read[-1].action, read[-1].is_trading) == (databento_dbn.StatusAction.HALT, False)


def test_definitions_come_at_once_or_when_a_symbol_is_wanted() -> None:
    market = Market()
    _, link = market.attach("itch.*.AAAC?as=definition")
    market.go_on(100)
    (record,) = records_of(link, "definition")
    assert (record["raw_symbol"], record["instrument_id"]) == (b"AAAC", 2)
    late = records_of(present(market, "itch.#?as=definition&snapshot=1"), "definition")
    assert sorted(x.decode() for x in late["raw_symbol"]) == NAMES
    decoder = databento_dbn.DBNDecoder(has_metadata=False)
    decoder.write(record.tobytes())
    (read,) = decoder.decode()
    assert (read.raw_symbol, bytes(read)) == ("AAAC", record.tobytes())


def test_definitions_have_what_the_directory_told_for_who_comes_late_too() -> None:
    market = Market()
    _, link = market.attach("itch.*.AAAC?as=definition")
    market.go_on(100)
    for lot in (40, 100):
        directory = market.feed.encode_message(
            "stock_directory", stock_locate=2, stock="AAAC", round_lot_size=lot, market_category="Q"
        )
        sequence = market.streams[0].next_sequence
        market.put(market.feed.encode_packet(sequence=sequence, messages=[directory]), sequence, 1)
        market.pump()
    records = records_of(link, "definition")[-2:]
    assert records["min_lot_size_round_lot"].tolist() == [40, 100]
    assert records["exchange"].tolist() == [b"XNAS", b"XNAS"]
    late = records_of(present(market, "itch.#?as=definition&snapshot=1"), "definition")
    lots = dict(zip(late["raw_symbol"].tolist(), late["min_lot_size_round_lot"], strict=True))
    assert lots[b"AAAC"] == 100
    market.fanout.records.set_day(date(2026, 1, 2))
    anew = records_of(present(market, "itch.*.AAAC?as=definition&snapshot=1"), "definition")
    assert anew["min_lot_size_round_lot"].tolist() in ([], [2**31 - 1])


def test_a_slow_link_of_levels_gets_those_of_the_moment_once() -> None:
    market = Market()
    sender_queue, link = market.attach("itch.#?as=mbp10&full=conflate", grants=1)
    market.go_on(10)
    assert len(link.frames) == 1
    market.go_on(50)
    assert sender_queue.behind
    market.go_on(100)
    link.grants = 100
    sender_queue.drain()
    assert not sender_queue.behind
    assert sender_queue.conflated > 50
    counts = counter_array(NodeCounter, 1)[0]
    add_sender_queue(counts, sender_queue)
    assert counts[NodeCounter.CONFLATED] == sender_queue.conflated
    last = {int(each["instrument_id"]): levels_of(each) for each in records_of(link, "mbp10")}
    assert last == books_of(market.fanout.records.records.book)
    market.go_on(1000)
    last = {int(each["instrument_id"]): levels_of(each) for each in records_of(link, "mbp10")}
    assert last == books_of(market.fanout.records.records.book)
    assert market.peer.backlog == 0


def test_books_are_in_doubt_from_a_loss_until_numbers_begin_anew() -> None:
    market = Market()
    _, link = market.attach("itch.#?as=mbo")
    market.go_on(20)
    assert not (records_of(link, "mbo")["flags"] & FLAG_MAYBE_BAD_BOOK).any()
    stream = market.streams[0]
    body = b'{"state":"STALE","reason":"gap","service":1,"stale":[[5,6]]}'
    market.fanout.quality(stream, body)
    before = len(records_of(link, "mbo"))
    market.go_on(20)
    flags = records_of(link, "mbo")["flags"][before:]
    assert (flags & FLAG_MAYBE_BAD_BOOK).all()
    market.control_event(RecordKind.RESET, sequence=1, next_sequence=1)
    market.pump()
    last = records_of(link, "mbo")[-1]
    assert (last["action"], last["instrument_id"], last["flags"] & FLAG_MAYBE_BAD_BOOK) == (
        b"R", 0, 0,
    )  # fmt: skip
    assert not any(books_of(market.fanout.records.records.book)[1])


def test_records_of_one_packet_may_be_more_than_a_batch_holds() -> None:
    market = Market()
    sender_queue, link = market.attach("itch.#?as=mbp10", batch_bytes=300)
    market.go_on(1000)
    assert records_of(link, "mbp10").tobytes() == market.expected("mbp10").tobytes()
    assert not sender_queue.overrun
    tags = [each.tag for each in link.data]
    assert len({*tags}) == len(tags)
    assert {each.number for each in link.data} == {0xFFFF, 1}


def test_a_slow_link_by_drop_oldest_is_told_which_records_it_lacks() -> None:
    market = Market()
    link = FakeLink(grants=1)
    subscription = parse_address("itch.#?as=mbo&full=drop_oldest", int, records=True)
    bounds = (20_000, 2000)
    backlog = BackloggedLink(
        market.peer, link, subscription, market.streams, *bounds, time.monotonic_ns
    )
    market.fanout.add(backlog)
    for _ in range(40):
        market.go_on(10)
    assert backlog.dropped > 0
    link.grants = 1000
    backlog.drain()
    (note,) = [each for each in link.sent if each.content == "quality+json"]
    assert json.loads(note.body)["reason"] == "overflow"
    records = records_of(link, "mbo")
    expected = market.expected("mbo")
    assert 0 < len(records) < len(expected)
    assert set(records["sequence"].tolist()) < set(expected["sequence"].tolist())
    assert records["sequence"][-1] == expected["sequence"][-1]


def test_a_broker_gets_the_records_that_a_subscriber_gets() -> None:
    market = Market()
    link = market.attach("itch.#?as=mbo&quality=0")[1]
    subscription = parse_address("#?as=mbo&quality=0", int, records=True)
    destination = Destination(
        market.peer, subscription, market.streams, 10_000, 1 << 22, 65_536,
        lambda tries: 1000, lambda: 0, None, "drop_oldest",
    )  # fmt: skip
    market.fanout.add(destination)
    broker = FakeBroker(1000)
    destination.connect(broker, Envelope())
    market.go_on(1000)
    bodies = [decoded(data).body for _, data in broker.frames]
    assert bodies == [each.body for each in link.data]
    assert len(bodies) == 1


def test_the_library_reads_a_stream_of_records_and_symbols() -> None:
    market = Market()
    _, link = market.attach("itch.#?as=mbo")
    market.go_on(100)
    decoder = databento_dbn.DBNDecoder(has_metadata=False)
    decoder.write(b"".join(each.body for each in link.data))
    read = decoder.decode()
    assert {type(each) for each in read} == {
        databento_dbn.MBOMsg, databento_dbn.SymbolMappingMsg,
    }  # fmt: skip
    names = {x.instrument_id: x.stype_out_symbol for x in read if hasattr(x, "stype_out_symbol")}
    ours = {number: name for _, symbols in batches(link) for number, name in symbols.items()}
    assert names == ours


def test_a_mapping_is_laid_out_as_the_library_has_it() -> None:
    record = encode_symbol_mapping(7, 9, "ACME", 5)
    decoder = databento_dbn.DBNDecoder(has_metadata=False)
    decoder.write(record)
    (read,) = decoder.decode()
    assert bytes(read) == record
    assert (read.publisher_id, read.instrument_id, read.stype_out_symbol) == (7, 9, "ACME")
    assert (read.stype_in_symbol, read.ts_event, read.start_ts) == ("9", 5, 5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("as=ohlcv", "it is one of packet, batch, message, mbo"),
        ("as=mbo&types=A", "types="),
        ("as=mbo&from=" + "00" * 18, "from= is not offered"),
        ("as=mbo&full=conflate", "bbo and mbp10"),
    ],
)
def test_what_a_link_of_records_cannot_have_is_refused(options: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        parse_address(f"itch.#?{options}", int, history=True, records=True)


def test_records_are_refused_where_no_books_are_kept() -> None:
    with pytest.raises(AddressError, match="not offered by this node") as refusal:
        parse_address("itch.#?as=mbo", int)
    assert refusal.value.condition == "amqp:not-implemented"
    assert parse_address("itch.#?as=bbo&full=conflate", int, records=True).schema == "bbo"


@pytest.mark.parametrize(
    "body",
    [
        b"\x0e",
        b"\x0e\xa0" + bytes(54) + b"\x02\x00",
        b"\x00\x00" + bytes(14),
        b"\x04\x77" + bytes(14),
    ],
)
def test_a_body_that_holds_no_records_is_reported(body: bytes) -> None:
    with pytest.raises(ValueError, match="record"):
        decode_records(body)
