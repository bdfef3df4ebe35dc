"""The fan-out: who gets what, in which form, in which order, and how it is cached."""

import pytest

from feedhandler.amqp.fanout import ReferenceMessages
from feedhandler.amqp.framing import QUALITY_NOTE
from feedhandler.codecs import load_feed
from feedhandler.ingest.records import ControlEvent, RecordKind, RefreshLinePacket
from tests.support.amqp import FEED, STAMP_NS, Rig, Sent, order, packet, prefix_of, quote, reference
from tests.support.unsequenced import UTP as ASIDE


def symbols_of(data: bytes) -> list[int]:
    return FEED.decode_packet(data).symbols


def split(data: bytes) -> list[bytes]:
    """A batch body's packets, by the length field of UTP-MD (offset 0, includes itself)."""
    found = []
    while data:
        size = int.from_bytes(data[:2], "big")
        found.append(data[:size])
        data = data[size:]
    return found


# -- packets outside the sequence -------------------------------------------------------------


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_a_packet_outside_the_sequence_comes_where_it_came_and_moves_no_number(grain: str) -> None:
    rig = Rig(feed=ASIDE, history_bytes=1 << 20)
    links = [rig.attach(f"euronext.104{symbol}?as={grain}")[1] for symbol in ("", ".1003")]
    early, between = (packet(0, [order(1003, price), quote(1002)]) for price in (7, 8))
    first = rig.outside(early, 1, 2)
    rig.pump()
    assert rig.streams[0].next_sequence == 0
    rig.control_event(RecordKind.START, sequence=7, next_sequence=7)
    rig.packets(7, 8)
    second = rig.outside(between, 2, 2)
    rig.packets(9, 9)
    rig.pump()
    assert rig.streams[0].next_sequence == 10
    for link in links:
        notes = [each.sequence for each in link.sent if each.content == "quality+json"]
        assert notes == [7]
        story = list(dict.fromkeys(each.sequence for each in link.data))
        assert story == ([first, 7, second, 9] if grain == "batch" else [first, 7, 8, second, 9])
        assert [each.group_sequence for each in link.sent] == list(range(len(link.sent)))
    whole, thinned = ([each for each in link.data if each.sequence == second] for link in links)
    if grain == "message":
        assert [each.number for each in (*whole, *thinned)] == [0, 1, 0]
    else:
        assert [each.body for each in whole] == [between], "a batch of its own"
        assert ASIDE.decode_packet(thinned[0].body).symbols == [1003]


def test_a_closed_stream_does_not_keep_back_what_no_snapshot_has() -> None:
    rig = Rig(feed=ASIDE, history_bytes=1 << 20)
    _, link = rig.attach("euronext.104")
    rig.streams[0].close()
    rig.packets(7, 8)
    aside = rig.outside(packet(0), 1, 5)
    rig.pump()
    assert [each.sequence for each in link.data] == [aside]
    assert rig.streams[0].store.next_serial == 2


# -- packets ----------------------------------------------------------------------------------


def test_a_quality_message_and_the_packet_after_it_have_different_tags() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104")
    rig.control_event(RecordKind.START, sequence=7, next_sequence=7)
    rig.packets(7, 8)
    rig.pump()
    note, *packets = link.sent
    assert (note.content, note.sequence, note.number) == ("quality+json", 7, QUALITY_NOTE)
    assert [(each.sequence, each.number) for each in packets] == [(7, 0xFFFF), (8, 0xFFFF)]
    assert len({each.tag for each in link.sent}) == 3


def test_a_whole_service_link_gets_each_packet_as_it_is_and_in_order() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104")
    put = rig.packets(1, 20)
    rig.pump(500)  # several shares
    assert [each.body for each in link.sent] == put
    assert [each.sequence for each in link.sent] == list(range(1, 21))
    assert {each.number for each in link.sent} == {0xFFFF}
    assert {each.key for each in link.sent} == {"euronext.104"}
    assert {each.content for each in link.sent} == {"packet"}
    assert [each.group_sequence for each in link.sent] == list(range(20))
    assert {each.received_ns for each in link.sent} == {None}
    assert rig.streams[0].packets == 20
    assert rig.streams[0].messages == 100
    assert rig.streams[0].next_sequence == 21


def test_the_tag_carries_day_feed_service_sequence_and_number() -> None:
    rig = Rig((104, 105))
    _, link = rig.attach("euronext.105?as=message")
    rig.packets(9, 9, channel=1)
    rig.pump()
    assert [each.tag for each in link.sent] == [
        prefix_of(FEED, 105) + (9).to_bytes(8, "big") + number.to_bytes(2, "big")
        for number in range(5)
    ]


def test_only_who_asked_for_it_gets_the_receive_stamp() -> None:
    rig = Rig()
    links = {
        address: rig.attach(address)[1]
        for grain in ("packet", "message", "batch")
        for address in (f"euronext.104?as={grain}&stamp=1", f"euronext.104?as={grain}")
    }
    rig.packets(7, 7)
    rig.pump()
    for address, link in links.items():
        expected = STAMP_NS + 7 if "stamp" in address else None
        assert {each.received_ns for each in link.sent} == {expected}
    assert rig.streams[0].latency.count == 0
    rig.fanout.note_latency(STAMP_NS + 7 + 1000)
    assert rig.streams[0].latency.count == 1
    assert 1000 <= rig.streams[0].latency.percentiles(0.5)[0] <= 1032


def test_a_thinned_packet_keeps_its_header_with_length_and_count_of_what_is_left() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104.1003")
    put = rig.packets(1, 7)
    rig.pump()
    whole = [FEED.decode_packet(data) for data in put]
    wanted = [each for each in whole if 1003 in each.symbols]
    assert len(link.sent) == len(wanted) == 5
    for sent, full in zip(link.sent, wanted, strict=True):
        thin = FEED.decode_packet(sent.body)
        assert thin.sequence == full.sequence == sent.sequence
        assert thin.send_time == full.send_time
        assert thin.symbols == [1003]
        assert int.from_bytes(sent.body[:2], "big") == len(sent.body)
        assert [str(m) for m in thin.messages] == [
            str(m) for m, s in zip(full.messages, full.symbols, strict=True) if s == 1003
        ]
        assert sent.key == "euronext.104"
        assert sent.content == "packet"
        assert sent.number == 0xFFFF


def test_types_thin_a_packet_to_those_types() -> None:
    rig = Rig()
    _, orders = rig.attach("euronext.104?types=230")
    _, neither = rig.attach("euronext.104?types=999")
    rig.packets(1, 3)
    rig.pump()
    assert [FEED.decode_packet(each.body).types for each in orders.sent] == [[230] * 3] * 3
    assert neither.sent == []


def test_a_packet_with_nothing_for_a_link_does_not_reach_it() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104.9999")
    rig.packets(1, 5)
    rig.pump()
    assert link.frames == []


def test_a_packet_without_messages_goes_to_whole_service_links_only() -> None:
    rig = Rig()
    _, whole = rig.attach("euronext.104")
    _, fine = rig.attach("euronext.104?as=message")
    data = packet(1, [])
    rig.put(data, 1, 0)
    rig.pump()
    assert [each.body for each in whole.sent] == [data]
    assert fine.sent == []


# -- messages ---------------------------------------------------------------------------------


def test_each_message_alone_has_its_own_key_number_and_bytes() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104.*?as=message")
    messages = [order(5), quote(6), order(5)]
    rig.put(packet(1, messages), 1, 3)
    rig.pump()
    assert [each.body for each in link.sent] == messages
    assert [each.key for each in link.sent] == [f"euronext.104.{n}" for n in (5, 6, 5)]
    assert [each.number for each in link.sent] == [0, 1, 2]
    assert [each.group_sequence for each in link.sent] == [0, 1, 2]
    assert {each.content for each in link.sent} == {"message"}


def test_messages_without_a_symbol_have_a_dash_for_it() -> None:
    rig = Rig()
    _, dash = rig.attach("euronext.104.-?as=message")
    _, everything = rig.attach("euronext.#?as=message")
    data = FEED.encode_message(516)
    rig.put(packet(1, [order(5), data]), 1, 2)
    rig.pump()
    assert [(each.key, each.body) for each in dash.sent] == [("euronext.104.-", data)]
    assert [each.key for each in everything.sent] == ["euronext.104.5", "euronext.104.-"]


def test_a_type_that_the_feed_does_not_know_passes() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104?as=message")
    strange = bytearray(order(5))
    strange[2:4] = (999).to_bytes(2, "big")
    rig.put(packet(1, [bytes(strange)]), 1, 1)
    rig.pump()
    assert [each.body for each in link.sent] == [bytes(strange)]


def test_types_filter_single_messages_too() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104?as=message&types=140")
    rig.packets(1, 2)
    rig.pump()
    assert [each.number for each in link.sent] == [1, 3, 1, 3]


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_a_link_gets_each_message_once_however_many_patterns_match(grain: str) -> None:
    rig = Rig()
    both = "euronext.104,euronext.#,euronext.104.1001,*.*.1001,euronext.104.*"
    _, many = rig.attach(f"{both}?as={grain}")
    _, one = rig.attach(f"euronext.104?as={grain}")
    _, symbols = rig.attach(f"euronext.104.1001,*.*.1001,#.1001?as={grain}")
    _, symbol = rig.attach(f"euronext.104.1001?as={grain}")
    rig.packets(1, 10)
    rig.pump()
    assert many.frames == one.frames
    assert symbols.frames == symbol.frames
    assert len(one.frames) > 0


def test_links_of_every_kind_side_by_side_get_what_each_gets_alone() -> None:
    addresses = [
        f"{pattern}?as={grain}{extra}"
        for pattern in ("euronext.104", "euronext.104.1002", "euronext.*.1002,euronext.104.1003")
        for grain in ("packet", "batch", "message")
        for extra in ("", "&types=230", "&stamp=1")
    ]
    together = Rig()
    links = {address: together.attach(address)[1] for address in addresses}
    together.packets(1, 12)
    together.pump()
    for address in addresses:
        alone = Rig()
        _, link = alone.attach(address)
        alone.packets(1, 12)
        alone.pump()
        assert links[address].frames == link.frames, address
        assert link.frames, address


def test_feeds_with_the_type_in_the_packet_send_single_messages_as_packets_of_one() -> None:
    feed = load_feed("nyse-openbook-ultra")
    assert feed.table.type_in_packet
    code, ways = next((c, w) for c, w in feed.layouts.items() if w[0].symbol)
    rig = Rig((1,), feed)
    _, link = rig.attach(f"{feed.key}.1?as=message")
    messages = [feed.encode_message(code, **{ways[0].symbol: n}) for n in (7, 8, 9)]
    rig.put(feed.encode_packet(sequence=4, messages=messages, packet_type=code), 4, 3)
    rig.pump()
    assert [each.number for each in link.sent] == [0, 1, 2]
    for sent, symbol in zip(link.sent, (7, 8, 9), strict=True):
        alone = feed.decode_packet(sent.body)
        assert alone.sequence == 4
        assert alone.symbols == [symbol]
        assert sent.key == f"{feed.key}.1.{symbol}"


# -- partial overlap --------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [1, 4])
def test_messages_delivered_before_are_left_out_for_every_kind_of_link(skip: int) -> None:
    rig = Rig()
    links = {
        grain: rig.attach(f"euronext.104?as={grain}")[1] for grain in ("packet", "batch", "message")
    }
    data = packet(1)
    rig.put(data, 1, 5, skip=skip)
    rig.pump()
    left = symbols_of(data)[skip:]
    (whole,) = links["packet"].sent
    (batch,) = links["batch"].sent
    assert symbols_of(whole.body) == symbols_of(batch.body) == left
    assert [each.number for each in links["message"].sent] == list(range(skip, 5))
    assert rig.streams[0].messages == 5 - skip


# -- batches ----------------------------------------------------------------------------------


def test_a_batch_holds_all_packets_of_a_hand_over_and_the_first_ones_tag() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104?as=batch")
    first, second = rig.packets(1, 6), None
    rig.pump()
    second = rig.packets(7, 9)
    rig.pump()
    assert [split(each.body) for each in link.sent] == [first, second]
    assert [each.sequence for each in link.sent] == [1, 7]
    assert {each.content for each in link.sent} == {"batch"}
    assert [each.group_sequence for each in link.sent] == [0, 1]


def test_a_batch_grows_while_there_is_no_credit_and_is_cut_at_its_limit() -> None:
    rig = Rig()
    sender_queue, link = rig.attach("euronext.104?as=batch", grants=0, batch_bytes=2000)
    put = []
    for sequence in range(1, 31):
        put += rig.packets(sequence, sequence)
        rig.pump()
    assert link.frames == []
    link.grants = 100
    sender_queue.drain()
    bodies = [each.body for each in link.sent]
    assert [data for body in bodies for data in split(body)] == put
    largest = max(len(data) for data in put)
    assert all(len(body) <= 2000 for body in bodies)
    assert all(len(body) > 2000 - 2 * largest for body in bodies[:-1])
    assert len(bodies) > 3


def test_a_packet_larger_than_a_batch_may_be_goes_alone() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104?as=batch", batch_bytes=100)
    put = rig.packets(1, 3)
    rig.pump()
    assert [each.body for each in link.sent] == put


def test_batches_of_several_services_do_not_mix() -> None:
    rig = Rig((104, 105))
    _, link = rig.attach("euronext.*?as=batch")
    for sequence in range(1, 4):
        rig.packets(sequence, sequence, channel=0)
        rig.packets(sequence, sequence, channel=1)
    rig.pump()
    assert sorted((each.key, len(split(each.body))) for each in link.sent) == [
        ("euronext.104", 3),
        ("euronext.105", 3),
    ]


# -- quality and control events --------------------------------------------------------------------


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_a_control_event_is_sent_between_the_packets_it_stands_between(grain: str) -> None:
    rig = Rig()
    _, link = rig.attach(f"euronext.104?as={grain}")
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.packets(1, 3)
    rig.control_event(RecordKind.GAP, sequence=4, next_sequence=6)
    rig.packets(6, 7)
    rig.pump()

    def span(each: Sent) -> list[object]:
        if each.content == "quality+json":
            return ["quality"]
        if each.content == "batch":
            return [FEED.decode_packet(data).sequence for data in split(each.body)]
        return [each.sequence]

    order_seen = [item for each in link.sent for item in span(each)]
    per = 5 if grain == "message" else 1
    expected: list[object] = ["quality"]
    expected += [n for n in (1, 2, 3) for _ in range(per)] + ["quality"]
    expected += [n for n in (6, 7) for _ in range(per)]
    assert order_seen == expected
    assert [each.group_sequence for each in link.sent] == list(range(len(link.sent)))


def test_a_quality_message_concerns_the_links_of_its_service_that_want_it() -> None:
    rig = Rig((104, 105))
    links = {
        address: rig.attach(address)[1]
        for address in (
            "euronext.104",
            "euronext.104.7?as=message",
            "euronext.#",
            "euronext.104.quality",
            "euronext.104?quality=0",
            "euronext.105",
        )
    }
    rig.control_event(RecordKind.GAP, sequence=4, next_sequence=6)
    rig.pump()
    reached = {address for address, link in links.items() if link.frames}
    assert reached == set(links) - {"euronext.104?quality=0", "euronext.105"}
    assert rig.fanout.quality_messages == 4
    (message,) = links["euronext.104"].sent
    assert message.key == "euronext.104.quality"


def test_a_control_event_has_all_that_its_record_says() -> None:
    rig = Rig((104, 105))
    rig.control_event(
        RecordKind.LINE_SILENT,
        channel=1,
        line=1,
        sequence=4,
        next_sequence=5,
        received_ns=6,
        auxiliary=7,
    )
    rig.ring.publish()
    assert rig.fanout.pump(1 << 18)
    assert rig.fanout.event == ControlEvent(RecordKind.LINE_SILENT, 1, 1, 4, 5, 6, 7)


CONTROL_KINDS = [kind for kind in RecordKind if kind not in (RecordKind.PAD, RecordKind.PACKET)]


@pytest.mark.parametrize("kind", CONTROL_KINDS, ids=lambda kind: kind.name)
def test_pump_ends_at_a_control_event_and_resume_goes_on_behind_it(kind: RecordKind) -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104?quality=0")
    before = rig.packets(1, 3)
    rig.control_event(kind, sequence=4, next_sequence=6)
    rig.control_event(RecordKind.MISMATCH, sequence=6, next_sequence=6)
    behind = rig.packets(6, 7)
    rig.ring.publish()
    assert rig.fanout.pump(1 << 18), "the share is not over"
    assert rig.fanout.event == ControlEvent(kind, 0, 0, 4, 6)
    assert [each.body for each in link.sent] == before
    assert rig.fanout.resume()
    assert rig.fanout.event == ControlEvent(RecordKind.MISMATCH, 0, 0, 6, 6)
    assert [each.body for each in link.sent] == before
    assert not rig.fanout.resume()
    assert rig.fanout.event is None
    assert [each.body for each in link.sent] == before + behind
    assert rig.ring.tail == rig.ring.published


def test_pump_ends_at_a_packet_of_a_refresh_line_with_a_copy_of_it() -> None:
    rig = Rig()
    data = packet(7)
    rig.put(data, 7, 5, channel=1)
    rig.ring.publish()
    assert rig.fanout.pump(1 << 18)
    assert rig.fanout.event == RefreshLinePacket(1, 7, data)
    assert not rig.fanout.resume()


def test_who_pumps_before_the_event_is_applied_is_refused_and_nothing_is_delivered() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104?quality=0")
    rig.control_event(RecordKind.GAP, sequence=1, next_sequence=2)
    put = rig.packets(2, 3)
    rig.ring.publish()
    assert rig.fanout.pump(1 << 18)
    with pytest.raises(RuntimeError, match="not applied"):
        rig.fanout.pump(1 << 18)
    assert link.frames == []
    assert not rig.fanout.resume()
    assert [each.body for each in link.sent] == put


def test_an_event_takes_no_room_from_its_share_and_cuts_no_batch_of_another_service() -> None:
    rig = Rig((104, 105))
    _, batches = rig.attach("euronext.105?as=batch")
    first = rig.packets(1, 2, channel=1)
    rig.control_event(RecordKind.GAP, sequence=1, next_sequence=3)
    second = rig.packets(3, 4, channel=1)
    rig.ring.publish()
    assert not rig.share(1 << 18)
    assert [each.body for each in batches.sent] == [b"".join(first + second)]


def test_a_share_ends_at_its_bytes_however_many_events_are_in_it() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104?quality=0")
    for sequence in range(1, 5):
        rig.control_event(RecordKind.MISMATCH, sequence=sequence, next_sequence=sequence)
        rig.packets(sequence, sequence)
    rig.ring.publish()
    shares = 0
    while rig.share(64 + 1):  # one event's record, and its packet's
        shares += 1
        assert [each.sequence for each in link.sent] == list(range(1, shares + 1))
    assert len(link.sent) == 4


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (RecordKind.START, {"sequence": 9, "next_sequence": 9}, 9),
        (RecordKind.GAP, {"sequence": 4, "next_sequence": 8}, 8),
        (RecordKind.RESET, {"sequence": 0, "next_sequence": 1}, 1),
        (RecordKind.LINE_SILENT, {"sequence": 4, "next_sequence": 4}, 4),
        (RecordKind.MISMATCH, {"sequence": 2, "next_sequence": 3}, 4),
    ],
)
def test_the_sequence_expected_next_follows_control_events_as_well_as_packets(
    kind: RecordKind, fields: dict[str, int], expected: int
) -> None:
    rig = Rig()
    rig.packets(1, 3)
    rig.control_event(kind, **fields)
    rig.pump()
    assert rig.streams[0].next_sequence == expected


def test_a_new_trading_day_changes_the_tags_of_every_kind_of_message() -> None:
    rig = Rig()
    links = [rig.attach(f"euronext.104?as={grain}")[1] for grain in ("packet", "batch", "message")]
    rig.packets(1, 1)
    rig.pump()
    tomorrow = (20261122).to_bytes(4, "big") + prefix_of(FEED, 104)[4:]
    rig.streams[0].set_prefix(tomorrow)
    rig.packets(1, 1)
    rig.pump()
    for link in links:
        half = len(link.sent) // 2
        assert {each.tag[:8] for each in link.sent[:half]} == {prefix_of(FEED, 104)}
        assert {each.tag[:8] for each in link.sent[half:]} == {tomorrow}


# -- the routing cache ------------------------------------------------------------------------


def test_a_symbols_route_is_worked_out_once() -> None:
    rig = Rig()
    rig.attach("euronext.104?as=message")
    for sequence in range(1, 5):
        rig.put(packet(sequence, [order(1), order(2), order(1)]), sequence, 3)
    rig.pump()
    assert rig.fanout.route_lookups == 12
    assert rig.fanout.route_hits == 10
    assert rig.fanout.route_resets == 0


def test_nothing_is_looked_up_where_only_whole_packets_are_wanted() -> None:
    rig = Rig()
    rig.attach("euronext.104")
    rig.attach("euronext.104?as=batch")
    rig.packets(1, 5)
    rig.pump()
    assert rig.fanout.route_lookups == 0


def test_at_the_bound_on_symbols_the_cache_starts_afresh_and_nothing_is_lost() -> None:
    rig = Rig(symbols_max=4)
    _, link = rig.attach("euronext.104?as=message")
    _, one = rig.attach("euronext.104.3?as=message")
    wanted = [n % 10 for n in range(100)]
    for sequence, symbol in enumerate(wanted, 1):
        rig.put(packet(sequence, [order(symbol)]), sequence, 1)
    rig.pump()
    assert [each.key for each in link.sent] == [f"euronext.104.{n}" for n in wanted]
    assert len(one.sent) == 10
    assert rig.fanout.route_resets > 0


def test_a_link_that_names_its_symbols_costs_the_cache_those_symbols_alone() -> None:
    rig = Rig()
    _, everything = rig.attach("euronext.104?as=message")
    symbols = [order(symbol) for symbol in range(10)]

    def lookups_missed() -> int:
        before = rig.fanout.route_lookups - rig.fanout.route_hits
        rig.put(packet(1, symbols), 1, len(symbols))
        rig.pump()
        return rig.fanout.route_lookups - rig.fanout.route_hits - before

    assert lookups_missed() == 10
    sender_queue, link = rig.attach("euronext.104.3,euronext.104.7,euronext.104.99?as=message")
    rig.attach("euronext.104?as=batch")  # whole packets: no symbol's route is another for it
    assert lookups_missed() == 2
    assert [each.key for each in link.sent] == ["euronext.104.3", "euronext.104.7"]
    rig.fanout.remove(sender_queue)
    assert lookups_missed() == 2
    assert len(link.sent) == 2
    _, starred = rig.attach("euronext.*.*?as=message")
    assert lookups_missed() == 10
    assert len(starred.sent) == 10
    assert len(everything.sent) == 4 * 10


def test_a_symbol_is_found_by_its_other_name_once() -> None:
    rig = Rig(symbols="index")
    rig.names.update({1: "A1", 2: "A2"})
    _, link = rig.attach("euronext.104.A1,euronext.104.1?as=message")
    _, other = rig.attach("euronext.104.A2?as=message")
    for sequence in (1, 2):
        rig.put(packet(sequence, [order(1), order(2)]), sequence, 2)
        rig.pump()
        rig.attach("euronext.104.A2")  # the route of 2 is worked out again, at its index
    assert [each.key for each in link.sent] == ["euronext.104.1"] * 2
    assert [each.key for each in other.sent] == ["euronext.104.2"] * 2
    assert rig.fanout.route_lookups - rig.fanout.route_hits == 3


def test_links_that_come_and_go_are_seen_by_the_cache() -> None:
    rig = Rig()
    first, first_link = rig.attach("euronext.104.1?as=message")
    rig.put(packet(1, [order(1)]), 1, 1)
    rig.pump()
    _, second_link = rig.attach("euronext.104.1?as=message")
    rig.put(packet(2, [order(1)]), 2, 1)
    rig.pump()
    rig.fanout.remove(first)
    rig.fanout.remove(first)  # twice does no harm
    rig.put(packet(3, [order(1)]), 3, 1)
    rig.pump()
    assert [each.sequence for each in first_link.sent] == [1, 2]
    assert [each.sequence for each in second_link.sent] == [2, 3]
    assert len(rig.fanout.sender_queues) == 1


def test_a_link_that_leaves_takes_its_open_batch_along() -> None:
    rig = Rig()
    sender_queue, link = rig.attach("euronext.104?as=batch", grants=0)
    rig.packets(1, 2)
    rig.pump()
    rig.fanout.remove(sender_queue)
    link.grants = 10
    rig.packets(3, 3)
    rig.pump()
    assert link.frames == []


@pytest.mark.parametrize("grain", ["packet", "message"])
def test_reference_data_ends_the_pump_before_its_packet_so_that_keys_have_the_name(
    grain: str,
) -> None:
    rig = Rig()
    _, link = rig.attach(f"euronext.104?as={grain}")
    _, named = rig.attach("euronext.104.AIRF_XPAR?as=message&types=230")
    definitions = [reference(symbol, name) for symbol, name in ((5, "AIRF"), (6, ""))]
    before, data = packet(1, [order(5)]), packet(2, [order(5), *definitions, order(5)])
    rig.put(before, 1, 1)
    rig.put(data, 2, 4)
    rig.ring.publish()
    assert rig.fanout.pump(1 << 18)
    assert rig.fanout.event == ReferenceMessages(tuple((553, each) for each in definitions))
    assert {each.sequence for each in link.sent} == {1}
    rig.names[5] = "AIRF_XPAR"
    rig.streams[0].forget_routes()
    assert not rig.fanout.resume()
    assert rig.fanout.event is None
    assert {each.sequence for each in link.sent} == {1, 2}
    assert [each.number for each in named.sent] == [0, 3]


def test_references_are_looked_for_without_delivering_anything() -> None:
    rig = Rig()
    _, link = rig.attach("euronext.104")
    definition = reference(5, "AIRF")
    assert rig.fanout.references([b"junk", packet(3, [order(5), definition])]) == (
        (553, definition),
    )
    assert link.frames == []
