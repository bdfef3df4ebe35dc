"""Ledgers and their check: every kind of fault, planted, is found and named."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from feedhandler.codecs import UsageError, load_feed
from feedhandler.codecs.errors import ConfigError, PeerError
from feedhandler.replay.exchange.ledger import (
    BUFFER_RECORDS,
    RECORD,
    Ledger,
    LedgerWriter,
    RecordKind,
    read_ledger,
)
from feedhandler.replay.exchange.ledger_check import Offender, Selection, check, matches
from feedhandler.replay.generating.generator import SessionGenerator
from tests.support.seeds import drawn

FEED = load_feed("euronext-utp-md")
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def packets():
    generator = SessionGenerator(FEED, 3, instruments=30, messages_per_s=2500.0)
    return [packet.packet for packet in generator.packets(SECOND)]


@pytest.fixture(scope="module")
def sent(packets, tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "sent"
    with LedgerWriter(path, FEED) as ledger:
        for packet in packets:
            ledger.sent(packet)
    return read_ledger(path)


@pytest.fixture
def received(tmp_path):
    """A subscriber's ledger to write, and a function that closes it and checks it."""
    writer = LedgerWriter(tmp_path / "received", FEED)

    def verdict(sent, selection=None):
        writer.close()
        return check(FEED, sent, read_ledger(writer.path), selection)

    return writer, verdict


def deliver(writer, packet, numbers=None, damage=()):
    """The packet's messages one by one; only those with `numbers`, some with other bytes."""
    decoded = FEED.decode_packet(packet)
    for number, message in enumerate(decoded.messages):
        if numbers is None or number in numbers:
            data = FEED.encode_message(message)
            if number in damage:
                data = data[:-1] + bytes([data[-1] ^ 1])
            writer.received_message(decoded.service, decoded.sequence, number, data)


def of_service(packets, service, count):
    """The first data packets of a service, decoded beside their bytes."""
    both = [(FEED.decode_packet(packet), packet) for packet in packets]
    return [(d, p) for d, p in both if d.service == service and d.messages][:count]


def test_a_ledger_reads_back_what_was_written(sent, packets):
    total = sum(len(FEED.decode_packet(packet).messages) for packet in packets)
    assert sent.feed == "euronext"
    assert len(sent.records) == total
    assert total > BUFFER_RECORDS / 2
    assert set(np.unique(sent.records["service"])) <= set(range(101, 108))
    first = sent.records[0]
    assert (first["service"], first["sequence"], first["type"], first["kind"]) == (101, 2, 550, 0)


def test_everything_delivered_once_and_in_order_is_clean(sent, packets, received):
    writer, verdict = received
    for packet in packets:
        deliver(writer, packet)
    report = verdict(sent)
    assert report.clean
    assert report.ok == report.expected == report.delivered == len(sent.records)


def test_whole_packets_delivered_are_clean_too(sent, packets, received):
    writer, verdict = received
    for packet in packets:
        writer.received_packet(packet)
    report = verdict(sent)
    assert report.clean
    assert report.ok == len(sent.records)


def thin(packet, wanted):
    decoded = FEED.decode_packet(packet)
    kept = [
        FEED.encode_message(message)
        for message, symbol in zip(decoded.messages, decoded.symbols, strict=True)
        if symbol in wanted
    ]
    return kept and FEED.encode_packet(
        sequence=decoded.sequence, messages=kept, service=decoded.service
    )


def test_packets_thinned_to_a_symbol_are_checked_by_what_is_left(sent, packets, received):
    writer, verdict = received
    selection = Selection("euronext.*.10002")
    thinned = [data for packet in packets if (data := thin(packet, {10002}))]
    for data in thinned[:-1]:
        writer.received_packet(data)
    report = verdict(sent, selection)
    assert report.lost_unannounced == len(FEED.decode_packet(thinned[-1]).messages)
    assert report.ok == report.expected - report.lost_unannounced > 100
    assert not report.phantom


@pytest.mark.parametrize("announced", [True, False])
def test_a_lost_packet_is_announced_or_not(sent, packets, received, announced):
    writer, verdict = received
    (decoded, lost), *_ = of_service(packets, 104, 1)
    for packet in packets:
        if packet != lost:
            deliver(writer, packet)
        elif announced:
            writer.lost(104, decoded.sequence, decoded.sequence)
    report = verdict(sent)
    count = len(decoded.messages)
    assert (report.lost_announced, report.lost_unannounced) == (
        (count, 0) if announced else (0, count)
    )
    assert report.clean == announced
    if not announced:
        assert report.offenders["lost_unannounced"][0] == Offender(104, decoded.sequence, 0)
        assert f"{count} lost unannounced" in next(report.faults())


@pytest.mark.parametrize("withdrawn", [True, False])
def test_what_was_announced_lost_in_error_may_come_behind_later_ones(
    sent, packets, received, withdrawn
):
    writer, verdict = received
    (decoded, late), (_, later), *_ = of_service(packets, 104, 2)
    for packet in packets:
        if packet != late:
            deliver(writer, packet)
        else:
            writer.lost(104, decoded.sequence, decoded.sequence)
        if packet == later:
            if withdrawn:
                writer.withdrawn(104, decoded.sequence, decoded.sequence)
            deliver(writer, late)
    report, count = verdict(sent), len(decoded.messages)
    assert report.clean == withdrawn
    assert (report.contradicted, report.reordered) == ((0, 0) if withdrawn else (count, count))


@pytest.mark.parametrize("reaches", [True, False])
def test_what_was_announced_lost_is_made_good_by_a_snapshot_that_covers_it(
    sent, packets, received, reaches
):
    writer, verdict = received
    (decoded, lost), (_, later), *_ = of_service(packets, 104, 2)
    for packet in packets:
        if packet != lost:
            deliver(writer, packet)
        else:
            writer.lost(104, decoded.sequence, decoded.sequence)
        if packet == later:
            writer.refreshed(104, decoded.sequence if reaches else decoded.sequence - 1)
    report = verdict(sent)
    count = len(decoded.messages)
    assert (report.refreshed, report.lost_announced) == ((count, 0) if reaches else (0, count))
    assert report.clean
    assert report.ok == report.expected - count


def test_a_snapshot_makes_nothing_good_that_was_not_announced(sent, packets, received):
    writer, verdict = received
    (decoded, lost), *_ = of_service(packets, 104, 1)
    for packet in packets:
        if packet != lost:
            deliver(writer, packet)
    writer.refreshed(104, 1 << 30)
    assert verdict(sent).lost_unannounced == len(decoded.messages)


def test_a_stream_that_begins_with_a_snapshot_is_expected_from_there_on(sent, packets, received):
    writer, verdict = received
    later = of_service(packets, 104, 20)
    joined, last = later[5][0].sequence, later[12][0].sequence
    writer.start(104, joined)
    writer.refreshed(104, last)
    for packet in packets:
        decoded = FEED.decode_packet(packet)
        if decoded.service == 104 and decoded.sequence > last:
            deliver(writer, packet)
    # One that comes later moves nothing.
    writer.refreshed(104, last + 3)
    report = verdict(sent, Selection("euronext.104"))
    assert report.clean
    assert report.ok == report.expected == report.delivered > 0
    assert report.refreshed == 0


def test_a_packet_that_comes_after_it_was_announced_lost_contradicts(sent, packets, received):
    writer, verdict = received
    (decoded, _), *_ = of_service(packets, 103, 1)
    writer.lost(103, decoded.sequence, decoded.sequence)
    for packet in packets:
        deliver(writer, packet)
    report = verdict(sent)
    assert report.contradicted == len(decoded.messages)
    assert not report.clean


def test_a_message_delivered_twice_is_duplicated(sent, packets, received):
    writer, verdict = received
    (decoded, twice), *_ = of_service(packets, 104, 1)
    for packet in packets:
        deliver(writer, packet)
        if packet == twice:
            deliver(writer, packet, numbers={0})
    report = verdict(sent)
    assert report.duplicated == 1
    assert report.offenders == {"duplicated": [Offender(104, decoded.sequence, 0)]}


def test_a_packet_overtaken_by_the_next_of_its_service_is_reordered(sent, packets, received):
    writer, verdict = received
    (decoded, first), (_, second) = of_service(packets, 103, 2)
    order = [packet for packet in packets if packet != first]
    order.insert(order.index(second) + 1, first)
    for packet in order:
        deliver(writer, packet)
    report = verdict(sent)
    assert report.reordered == len(decoded.messages)
    assert report.offenders["reordered"][0] == Offender(103, decoded.sequence, 0)


def test_services_have_no_order_among_each_other(sent, packets, received):
    writer, verdict = received
    for packet in sorted(packets, key=lambda packet: -FEED.decode_packet(packet).service):
        deliver(writer, packet)
    assert verdict(sent).clean


def test_a_message_with_other_bytes_is_corrupt(sent, packets, received):
    writer, verdict = received
    (decoded, victim), *_ = of_service(packets, 104, 1)
    for packet in packets:
        deliver(writer, packet, damage={0} if packet == victim else ())
    report = verdict(sent)
    assert report.corrupt == 1
    assert report.offenders["corrupt"] == [Offender(104, decoded.sequence, 0)]
    assert report.ok == report.expected - 1


def test_what_was_never_sent_or_never_asked_for_is_a_phantom(sent, packets, received):
    writer, verdict = received
    selection = Selection("euronext.104")
    for packet in packets:
        if FEED.decode_packet(packet).service == 104:
            deliver(writer, packet)
    writer.received_message(104, 999_999, 0, b"never")
    deliver(writer, of_service(packets, 103, 1)[0][1], numbers={0})
    report = verdict(sent, selection)
    assert report.phantom == 2
    assert report.offenders["phantom"][0] == Offender(104, 999_999, 0)
    assert report.ok == report.expected


def test_what_was_sent_before_the_announced_start_is_not_expected(sent, packets, received):
    writer, verdict = received
    later = of_service(packets, 104, 20)[10:]
    start = later[0][0].sequence
    writer.start(104, start)
    for packet in packets:
        decoded = FEED.decode_packet(packet)
        if decoded.service == 104 and decoded.sequence >= start:
            deliver(writer, packet)
    report = verdict(sent, Selection("euronext.104"))
    assert report.clean
    assert report.before_start > 0
    assert report.ok == report.expected == report.delivered


def test_a_selection_by_type_expects_only_those_types(sent, packets, received):
    writer, verdict = received
    for packet in packets:
        decoded = FEED.decode_packet(packet)
        deliver(writer, packet, {n for n, kind in enumerate(decoded.types) if kind == 240})
    report = verdict(sent, Selection("#", types=[240]))
    assert report.clean
    assert report.expected == int((sent.records["type"] == 240).sum()) > 0


@pytest.mark.parametrize(
    ("pattern", "key", "answer"),
    [
        ("#", "euronext.104", True),
        ("euronext.104", "euronext.104", True),
        ("euronext.104", "euronext.104.10001", False),
        ("euronext.*.10001", "euronext.104.10001", True),
        ("euronext.*", "euronext.104.10001", False),
        ("euronext.#", "euronext", True),
        ("#.10001", "euronext.104.10001", True),
        ("#.*.10001", "euronext.10001", True),
        ("#.*.10001", "10001", False),
        ("*.#.*", "euronext", False),
    ],
)
def test_a_pattern_matches_words(pattern, key, answer):
    assert matches(pattern.split("."), key.split(".")) is answer


def test_keys_may_carry_symbol_names():
    records = np.zeros(2, RECORD)
    records["service"], records["symbol"] = 104, [10001, 10002]
    by_name = Selection("euronext.104.ABC_XPAR", names={10001: "ABC_XPAR"})
    assert by_name.mask(FEED, records).tolist() == [True, False]
    by_index = Selection("euronext.104.10002", names={10001: "ABC_XPAR"})
    assert by_index.mask(FEED, records).tolist() == [False, True]


def test_nothing_sent_and_nothing_received_is_clean():
    nothing = Ledger("euronext", np.zeros(0, RECORD))
    report = check(FEED, nothing, nothing)
    assert report.clean
    assert (report.expected, report.delivered) == (0, 0)


def test_a_feed_that_counts_messages_announces_message_numbers():
    feed = load_feed("iex-deep")
    sent = np.zeros(6, RECORD)
    sent["sequence"], sent["number"] = [10, 10, 10, 13, 13, 15], [0, 1, 2, 0, 1, 0]
    sent["hash"] = range(6)
    received = np.zeros(5, RECORD)
    # Cut into packets otherwise, as a retransmission may be: 10, 11, 13 to 14, 15.
    received["sequence"], received["number"] = [10, 11, 13, 14, 12], [0, 0, 0, 0, 0]
    received["hash"] = [0, 1, 3, 4, 0]
    received["symbol"][4] = 12
    received["kind"][4] = RecordKind.LOST
    report = check(feed, Ledger("iex", sent), Ledger("iex", received))
    assert (report.ok, report.lost_announced, report.lost_unannounced) == (4, 1, 1)
    assert report.offenders == {"lost_unannounced": [Offender(0, 15, 0)]}


def test_ledgers_that_cannot_be_checked_are_refused(sent):
    with pytest.raises(UsageError, match="cannot be checked"):
        check(load_feed("iex-deep"), sent, sent)
    mixed = np.zeros(2, RECORD)
    mixed["kind"] = [RecordKind.MESSAGE, RecordKind.PACKED]
    with pytest.raises(UsageError, match="packets and"):
        check(FEED, sent, Ledger("euronext", mixed))
    large = np.zeros(1, RECORD)
    large["sequence"] = 1 << 36
    with pytest.raises(UsageError, match="too large"):
        check(FEED, Ledger("euronext", large), Ledger("euronext", large))


def test_files_that_are_no_ledgers_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_ledger(tmp_path / "absent")
    (tmp_path / "text").write_bytes(b"hello")
    with pytest.raises(UsageError, match="not a ledger"):
        read_ledger(tmp_path / "text")
    (tmp_path / "newer").write_bytes(b"FHLEDGER\x09\0\x20\0" + bytes(20))
    with pytest.raises(UsageError, match="version 9"):
        read_ledger(tmp_path / "newer")
    with pytest.raises(ConfigError, match="cannot be written"):
        LedgerWriter(tmp_path / "absent" / "ledger", FEED)


def test_a_ledger_cut_short_reads_up_to_its_last_whole_record(tmp_path, packets):
    path = tmp_path / "cut"
    with LedgerWriter(path, FEED) as ledger:
        count = sum(ledger.sent(packet) for packet in packets)
        ledger.close()
    path.write_bytes(path.read_bytes()[:-5])
    assert len(read_ledger(path).records) == count - 1


def test_records_that_the_disk_takes_in_parts_are_written_whole(tmp_path, packets, monkeypatch):
    path = tmp_path / "parts"
    with LedgerWriter(path, FEED) as ledger:
        write = ledger._file.write
        in_parts = SimpleNamespace(
            write=lambda data: write(data[:100]), closed=False, close=ledger._file.close
        )
        monkeypatch.setattr(ledger, "_file", in_parts)
        count = sum(ledger.sent(packet) for packet in packets)
    assert len(read_ledger(path).records) == count


def test_what_is_no_packet_and_an_empty_range_are_refused(tmp_path):
    with LedgerWriter(tmp_path / "ledger", FEED) as ledger:
        with pytest.raises(PeerError, match="TRUNCATED"):
            ledger.sent(b"short")
        with pytest.raises(UsageError, match="empty"):
            ledger.lost(104, 5, 4)


@drawn(3)
@pytest.mark.parametrize("packed", [False, True])
def test_random_faults_are_counted_exactly(sent, packets, received, seed, packed):
    """Each data packet meets at most one fault; the report must count messages as planted."""
    rng = random.Random(seed)
    writer, verdict = received
    planted = dict.fromkeys(("announced", "unannounced", "duplicated", "late", "ok"), 0)
    held = {}

    def put(packet):
        writer.received_packet(packet) if packed else deliver(writer, packet)

    for packet in packets:
        decoded = FEED.decode_packet(packet)
        count, service = len(decoded.messages), decoded.service
        fault = rng.choices(("ok", "announced", "unannounced", "duplicated", "late"),
                            (90, 3, 2, 3, 2))[0]  # fmt: skip
        if not count or (fault == "late" and service in held):
            fault = "ok"
        planted[fault] += count
        if fault == "announced":
            writer.lost(service, decoded.sequence, decoded.sequence)
        elif fault == "late":
            held[service] = packet
        elif fault != "unannounced":
            put(packet)
            if fault == "duplicated":
                put(packet)
            if count and service in held:
                put(held.pop(service))
    for packet in held.values():
        # Nothing came after it: it was not overtaken, only the last.
        planted["late"] -= len(FEED.decode_packet(packet).messages)
        planted["ok"] += len(FEED.decode_packet(packet).messages)
        put(packet)
    report = verdict(sent)
    assert planted == {
        "announced": report.lost_announced,
        "unannounced": report.lost_unannounced,
        "duplicated": report.duplicated,
        "late": report.reordered,
        "ok": report.ok,
    }
    assert (report.phantom, report.corrupt, report.contradicted) == (0, 0, 0)
