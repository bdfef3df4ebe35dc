"""Scanning of ITCH over MoldUDP64 and of SBE with groups, beside decoders of PyPI.

The ITCH load is a generated session of orders (`OrderSession`), up to 20 messages a packet. The SBE
load is CME's incremental refresh (template 46): three price levels of different instruments and two
orders in each message, four messages a packet. Scanning is the gateway's: packet header, walk of
all messages, with type, symbol, offset, size and number of each in preallocated arrays, many
packets a call. The peers are handed each message cut out, and make its object: `itchfeed` by its
`MessageParser`, `sbe` by a schema of the one message. The median of many passes counts.
"""

import io
import random
import struct
from collections.abc import Callable
from typing import Any

import itch.parser
import numpy
import sbe

from bench.processes import passes
from feedhandler.codecs import Feed, feed_table, load_feed, scanner
from feedhandler.replay.generating.order_session import OrderSession

#: The bars: messages a second scanned, and times the peer's rate.
ITCH_RATE_MIN, SBE_RATE_MIN, PEER_RATIO_MIN = 40_000_000, 10_000_000, 10
ITCH_SECONDS, ITCH_RATE = 1, 200_000.0
SBE_PACKETS, SBE_MESSAGES, LEVELS, ORDERS = 20_000, 4, 3, 2
#: Messages that a peer decodes in one pass.
PEER_MESSAGES = 2_000
SEED = 1
SMOKE: dict[str, object] = {"ITCH_RATE": 20_000.0, "SBE_PACKETS": 500, "PEER_MESSAGES": 100}
#: The one message, as an exchange's schema would have it.
SBE_SCHEMA = """<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="bench" id="1" version="9"
    byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/>
      <type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/>
      <type name="version" primitiveType="uint16"/>
    </composite>
    <composite name="groupSize">
      <type name="blockLength" primitiveType="uint16"/>
      <type name="numInGroup" primitiveType="uint8"/>
    </composite>
    <type name="Int32" primitiveType="int32"/>
    <type name="Int64" primitiveType="int64"/>
    <type name="Uint16" primitiveType="uint16"/>
    <type name="Uint32" primitiveType="uint32"/>
    <type name="Uint64" primitiveType="uint64"/>
    <type name="Uint8" primitiveType="uint8"/>
  </types>
  <sbe:message name="Book" id="46" blockLength="11">
    <field name="TransactTime" id="60" type="Uint64"/>
    <field name="MatchEventIndicator" id="5799" type="Uint8"/>
    <field name="Padding" id="1" type="Uint16"/>
    <group name="Levels" id="268" dimensionType="groupSize" blockLength="32">
      <field name="Price" id="270" type="Int64"/>
      <field name="Size" id="271" type="Int32"/>
      <field name="SecurityID" id="48" type="Int32"/>
      <field name="RptSeq" id="83" type="Uint32"/>
      <field name="NumberOfOrders" id="346" type="Int32"/>
      <field name="PriceLevel" id="1023" type="Uint8"/>
      <field name="UpdateAction" id="279" type="Uint8"/>
      <field name="EntryType" id="269" type="Uint8"/>
      <field name="Padding1" id="2" type="Uint8"/>
      <field name="Padding2" id="3" type="Uint32"/>
    </group>
  </sbe:message>
</sbe:messageSchema>
"""


def itch_packets(feed: Feed) -> list[bytes]:
    """Return the packets of a second of a generated session."""
    session = OrderSession(feed, SEED, messages_per_s=ITCH_RATE)
    return [each.packet for each in session.step(ITCH_SECONDS * 1_000_000_000) if each.messages]


def sbe_packets(feed: Feed) -> list[bytes]:
    """Return packets of incremental refreshes."""
    source = random.Random(SEED)

    def message() -> bytes:
        levels = [
            {
                "md_entry_px_optional_ex": source.randrange(1, 1 << 40),
                "md_entry_size_short_optional": source.randrange(1, 1_000),
                "security_id": source.randrange(1_000, 2_000),
                "md_price_level": index + 1,
                "md_entry_type_book": "0",
            }
            for index in range(LEVELS)
        ]
        orders = [
            {"order_id": source.randrange(1 << 60), "reference_id": index + 1}
            for index in range(ORDERS)
        ]
        return feed.encode_message("incremental_refresh_book", entries=levels, orders=orders)

    return [
        feed.encode_packet(sequence=number, messages=[message() for _ in range(SBE_MESSAGES)])
        for number in range(1, SBE_PACKETS + 1)
    ]


def scanning(feed: Feed, packets: list[bytes]) -> Callable[[], int]:
    """Return what scans all packets in one call, each at its address in memory."""
    data = b"".join(packets)
    sizes = numpy.array([len(packet) for packet in packets], numpy.uint32)
    starts = numpy.cumsum(sizes, dtype=numpy.int64) - sizes
    rejects = numpy.zeros(scanner.REJECT_COUNT, numpy.uint64)
    header, index = feed_table.PacketHeader(), feed_table.MessageIndex(len(data) // 8)

    def work() -> int:
        index.clear()
        done = scanner.scan_datagrams(feed.table, data, starts, sizes, header, index, rejects)
        assert done == len(packets)
        assert rejects.sum() == rejects[0], "a packet was rejected"
        return index.count

    return work


def cut(feed: Feed, packets: list[bytes]) -> list[bytes]:
    """Return the messages of the first packets, as a peer takes them."""
    found: list[bytes] = []
    for packet in packets:
        for begin, _, index in feed.scanned(packet):
            for i in range(index.count):
                at = begin + index.offsets[i]
                found.append(packet[at : at + index.sizes[i]])
        if len(found) >= PEER_MESSAGES:
            break
    return found


def itch_peer(messages: list[bytes], seconds: float) -> dict[str, float]:
    """Run `itchfeed`: an object for each message."""
    parser = itch.parser.MessageParser()
    bodies = [message[2:] for message in messages]

    def work() -> int:
        for body in bodies:
            parser.get_message_type(body)
        return len(bodies)

    assert parser.get_message_type(bodies[0]).message_type == bodies[0][:1]
    return passes(work, seconds)


def sbe_peer(messages: list[bytes], seconds: float) -> dict[str, float]:
    """Run `sbe`: the fields of each message, and of its levels."""
    schema = sbe.Schema.parse(io.BytesIO(SBE_SCHEMA.encode()))
    bodies = [message[2:] for message in messages]

    def work() -> int:
        for body in bodies:
            schema.decode(body)
        return len(bodies)

    decoded = schema.decode(bodies[0]).value
    (security,) = struct.unpack_from("<i", bodies[0], 8 + 11 + 3 + 12)
    assert len(decoded["Levels"]) == LEVELS
    assert decoded["Levels"][0]["SecurityID"] == security
    return passes(work, seconds)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all figures of this file, JSON-ready; print them as it goes."""
    seconds = 1.0 if quick else 5.0
    results: dict[str, Any] = {}
    kinds = (
        ("itch", "nasdaq-totalview-itch", itch_packets, itch_peer, ITCH_RATE_MIN, "itchfeed"),
        ("sbe", "cme-mdp3", sbe_packets, sbe_peer, SBE_RATE_MIN, "sbe"),
    )
    for name, feed_name, make, peer_of, bar, peer_name in kinds:
        feed = load_feed(feed_name)
        packets = make(feed)
        scan = passes(scanning(feed, packets), seconds)
        peer = peer_of(cut(feed, packets), seconds)
        ratio = scan["median_per_s"] / peer["median_per_s"]
        print(
            f"  {name:5} scan      {scan['median_per_s'] / 1e6:8.1f} million messages/s"
            f" (bar {bar / 1e6:.0f}), {ratio:,.0f} times {peer_name} (bar {PEER_RATIO_MIN})"
        )
        print(f"  {peer_name:15} {peer['median_per_s'] / 1e6:8.3f} million messages/s")
        results[name] = {
            "scan": {**scan, "bar_per_s": bar},
            peer_name: peer,
            f"scan_to_{peer_name}": {"ratio": ratio, "bar": PEER_RATIO_MIN},
        }
    return results
