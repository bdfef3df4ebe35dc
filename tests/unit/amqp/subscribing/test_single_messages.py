"""Messages delivered alone have the times and prices that they have in their packet."""

import itertools
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from proton import Message as ProtonMessage

from feedhandler._compiled import load_interpreted
from feedhandler.amqp.subscribing.columns import Batch, Workspace
from feedhandler.amqp.subscribing.inbox import Inbox, Message, rewritten
from feedhandler.codecs import Price, ReferenceData, load_feed
from feedhandler.codecs.feed_table import NO_SEND_TIME
from feedhandler.config import loopback_config
from feedhandler.gateway import Gateway
from feedhandler.ingest.records import RecordKind
from feedhandler.ops import decode, subscribe
from feedhandler.replay.captures.reading import Datagram
from tests.support.amqp import DAY_DATE, FEED, FakeLink, Rig, order, packet
from tests.support.descriptions import built_in, described

#: Times within the packet's second, and scales of prices in reference data alone.
XDP = load_feed("nyse-integrated-xdp")
SENT_NS = 1_795_000_001_000_000_500
SYMBOL = 7


def mapping(symbol: int = SYMBOL, scale: int = 4) -> bytes:
    """Reference data: the symbol's name and scale."""
    return XDP.encode_message(3, symbol_index=symbol, symbol_name="ABC", price_scale_code=scale)


def add(within_ns: int, symbol: int = SYMBOL, price: int = 1_234_500) -> bytes:
    """An order that was taken at this part of a second."""
    return XDP.encode_message(100, symbol_index=symbol, price=price, source_time_ns=within_ns)


def xdp(*messages: bytes, sequence: int = 1, sent: int = SENT_NS) -> bytes:
    return XDP.encode_packet(sequence=sequence, messages=messages, send_time=sent, flags=11)


#: An order before the second began, one in it, both after their mapping; and one without.
PACKET = xdp(mapping(), add(999_999_999), add(400), add(400, 8))
TIMES = [SENT_NS - 501, SENT_NS - 100, SENT_NS - 100]
PRICES = [Price(1_234_500, 4), Price(1_234_500, 4), Price(1_234_500, None)]


def brought(address: str, data: bytes = PACKET, feed: Any = XDP) -> FakeLink:
    """The link that a packet of service 104 went to."""
    rig = Rig(feed=feed, symbols="index")
    _, link = rig.attach(f"{feed.key}.104{address}")
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.put(data, 1, 4)
    rig.pump()
    return link


def read(link: FakeLink, inbox: Inbox | None = None) -> list[Message]:
    """Return the messages that a subscriber makes of a link's frames, quality messages left out."""
    bounds = [0, *itertools.accumulate(len(frame) for frame in link.frames)]
    found = (inbox or Inbox()).read(
        b"".join(link.frames), memoryview(array("q", bounds)), len(link.frames)
    )
    return [message for message in found if message.content != "quality"]


def orders(messages: list[Message]) -> list[Any]:
    records = [record for message in messages for record in message.records()]
    return [record for record in records if record.layout.name == "add_order"]


@pytest.mark.parametrize(("address", "sent"), [("?as=message", SENT_NS), ("?as=packet", -1)])
def test_the_interpreted_inbox_collects_send_times_as_the_compiled_one_does(
    address: str, sent: int
) -> None:
    inbox = load_interpreted("feedhandler.amqp.subscribing.inbox").Inbox()
    frames = [frame for frame in brought(address).frames if b"quality" not in frame]
    bounds = array("q", [0, *itertools.accumulate(map(len, frames))])
    link = SimpleNamespace(arena=b"".join(frames), bounds=bytearray(bounds), count=len(frames))
    assert inbox.collect(link, 0, len(frames)) == len(frames)
    # NO_SEND_TIME is -1 there.
    assert memoryview(inbox.parts).cast("q")[6 * len(frames) :].tolist() == [sent] * len(frames)


@pytest.mark.parametrize("address", ["?as=packet", "?as=batch", "?as=message"])
@pytest.mark.parametrize("stamp", ["", "&stamp=1"])
def test_times_and_prices_are_whole_however_messages_come(address: str, stamp: str) -> None:
    found = orders(read(brought(address + stamp)))
    assert [record.event_time_ns for record in found] == TIMES
    assert [record.price for record in found] == PRICES


def test_a_message_alone_brings_its_packets_send_time_and_the_stamp_beside_it() -> None:
    (plain, *_), (stamped, *_) = (
        read(brought(f"?as=message&types=100{stamp}")) for stamp in ("", "&stamp=1")
    )
    assert (plain.send_time, plain.received_ns) == (SENT_NS, 0)
    assert stamped.send_time == SENT_NS
    assert stamped.received_ns > 0
    assert rewritten(plain, plain.body).record() == plain.record()


def test_a_client_of_another_make_finds_the_send_time_in_an_annotation() -> None:
    made = ProtonMessage()
    made.decode(brought("?as=message&types=100").frames[-1])
    assert made.annotations == {"x-opt-send-time": SENT_NS}


@pytest.mark.parametrize("address", ["?as=message", "?as=packet"])
def test_messages_that_need_no_send_time_go_without_annotations(address: str) -> None:
    for feed, data in ((FEED, packet(1, [order(5)])), (XDP, PACKET)):
        made = ProtonMessage()
        made.decode(brought(address, data, feed).frames[-1])
        assert bool(made.annotations) == (feed is XDP and address == "?as=message")
    (one,) = read(brought("?as=message", packet(1, [order(5)]), FEED))
    assert one.send_time == NO_SEND_TIME
    assert one.record().price == Price(100, 2)


def test_a_message_alone_under_its_packets_header_needs_no_send_time_beside_it(
    tmp_path: Path,
) -> None:
    since_midnight = 'since = "midnight"\nmilliseconds = "SourceTime"\n'
    text = built_in("nyse-openbook-ultra", since_midnight, 'since = "send_second"\n')
    feed = described(tmp_path, text)
    assert not feed.needs_send_time
    message = feed.encode_message(231, source_time_micro_secs=400)
    data = feed.encode_packet(sequence=1, messages=[message], packet_type=231, send_time=2500)
    (sent,) = brought("?as=message", data, feed).data
    alone, whole = (feed.decode_packet(each, DAY_DATE).messages[0] for each in (sent.body, data))
    assert alone.event_time_ns == whole.event_time_ns
    assert whole.event_time_ns % 10**9 == 400_000


@pytest.mark.parametrize("grain", ["message", "packet"])
def test_columns_have_the_same_times_and_prices(grain: str) -> None:
    batch = Batch(None, grain, None, Workspace())
    batch.collect(read(brought(f"?as={grain}")))
    columns = batch.columns(100)
    assert columns["event_time_ns"].tolist() == TIMES
    assert columns["send_time_ns"].tolist() == [SENT_NS] * 3
    assert columns["service"].tolist() == [104 if grain == "message" else 0] * 3
    assert columns["price"].tolist()[:2] == [123.45] * 2
    assert columns["price"][2] != columns["price"][2], "not a number: no scale was given"


def test_what_one_inbox_learns_the_others_of_the_subscription_know() -> None:
    references: dict[int, ReferenceData] = {}
    orders(read(brought("?as=message", xdp(mapping())), Inbox(references=references)))
    assert references[XDP.number].names == {SYMBOL: "ABC"}
    (found,) = orders(read(brought("?as=message", xdp(add(400))), Inbox(references=references)))
    assert found.price == Price(1_234_500, 4)
    (message,) = read(brought("?as=packet", xdp(add(400))), Inbox(references=references))
    assert message.reference_data.scales == {SYMBOL: 4}


def test_subscribe_shows_what_decode_shows() -> None:
    options = decode.Options(capture=None, feed=XDP.name)  # type: ignore[arg-type]
    datagram = Datagram(SENT_NS, "239.1.1.1", 1, "10.0.0.1", PACKET)
    decoded = list(decode.Decoder(XDP, options).messages(iter([datagram])))
    for address in ("?as=message", "?as=packet"):
        chosen = subscribe.Options(url="u", pattern="p")
        lines = [
            line
            for message in read(brought(address))
            for line in subscribe.lines_of(message, chosen)
        ]
        assert [line.get("price") for line in lines] == [None, 123.45, 123.45, None]
        for line, same in zip(lines, decoded, strict=True):
            assert line.keys() - {"key"} == same.keys() - {"captured_ns"}
            assert {k: v for k, v in line.items() if k in same and k != "service"} == {
                k: v for k, v in same.items() if k in line and k != "service"
            }


@pytest.mark.parametrize(
    ("types", "pattern", "feed", "more"),
    [
        (("100",), "nyse-integrated.1", None, ("3",)),
        (("100", "3"), "nyse-integrated.1", None, ()),
        ((), "nyse-integrated.1", None, ()),
        (("230",), "euronext.104,nyse-openbook.#", None, ()),
        (("100",), "#", XDP, ("3",)),
    ],
)
def test_reference_messages_are_asked_for_where_prices_need_them(
    types: tuple[str, ...], pattern: str, feed: Any, more: tuple[str, ...]
) -> None:
    assert subscribe.reference_types(types, pattern, feed) == more


def test_a_message_that_is_decoded_alone_takes_what_is_known() -> None:
    known = ReferenceData(XDP)
    day = DAY_DATE
    before = XDP.decode_message(add(400), day=day, known=known)
    XDP.decode_message(mapping(), known=known)
    after = XDP.decode_message(add(400), day=day, known=known, send_time=SENT_NS)
    assert (before.price.scale, before.event_time_ns) == (None, None)  # type: ignore[union-attr]
    assert (after.price.scale, after.event_time_ns) == (4, TIMES[1])  # type: ignore[union-attr]
    known.learn(3, mapping()[:-1])
    assert known.scales == {SYMBOL: 4}


def test_the_gateway_tells_send_times_of_the_feeds_that_need_them() -> None:
    for feed, needed in ((XDP.name, True), (FEED.name, False)):
        assert Gateway(loopback_config(feed=feed)).fanout.has_send_time == needed
