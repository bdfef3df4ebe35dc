"""A feed that is framed by FIX: what a datagram is to the scanner, the arbiter and the fan-out."""

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from feedhandler._compiled import load_interpreted
from feedhandler.amqp.routing import parse_address
from feedhandler.codecs import BadPacket, UsageError, fix_scanning, load_feed
from feedhandler.codecs.explain import explain
from feedhandler.codecs.fix_runs import LONG_SYMBOL_BIT
from feedhandler.codecs.kinds import PacketKind, Reject
from feedhandler.codecs.loader import FEEDS_FOLDER
from feedhandler.config import parse_config
from feedhandler.counters import ChannelCounter
from feedhandler.gateway import misfit_of
from feedhandler.ingest.records import RecordKind
from feedhandler.ingest.states import Verdict
from tests.support.amqp import Rig
from tests.support.checkout import CHECKOUT
from tests.support.descriptions import check_refused
from tests.support.fix_messages import sealed, summed
from tests.support.ingest import KNOWN, QUICK, TWINS, Channel
from tests.support.scanners import COMPILED, INTERPRETED

FEED = load_feed("fix-marketdata")
SCANNERS = {
    "compiled": (COMPILED, fix_scanning),
    "interpreted": (
        INTERPRETED,
        load_interpreted("feedhandler.codecs.fix_scanning"),
    ),
}
DATA, HEARTBEAT, RESET, CONTROL, _, SKIP = PacketKind
LONG = "EUR/USD-SPOT-2026"


def update(number: int, *names: str) -> bytes:
    """A market data message that names these securities."""
    entries = "".join(f"279=0|55={name}|" for name in names)
    return sealed(f"35=X|34={number}|268={len(names)}|{entries}".encode())


def admin(text: str) -> bytes:
    return sealed(text.encode())


@pytest.fixture(params=sorted(SCANNERS))
def twin(request):
    return SCANNERS[request.param]


def runs(twin, data):
    """(kind, sequence, next sequence, count, bytes) of each run of a datagram, or the reject."""
    scan, _ = twin
    table, header, found, at = FEED.table_of(scan), scan.PacketHeader(), [], 0
    while at < len(data) or not found:
        verdict = scan.parse_next(table, memoryview(data), at, len(data) - at, header)
        if verdict:
            return [*found, Reject(verdict)]
        found.append(
            (
                PacketKind(header.kind),
                header.sequence,
                header.next_sequence,
                header.count,
                data[at : at + header.length],
            )
        )
        at += header.length
    return found


ONE, TWO, FIVE = update(1, "A"), update(2, "B"), update(5, "C")
ADMINISTRATIVE = [
    ("35=0|34=7|", HEARTBEAT, 7, 7),
    ("35=A|34=7|", HEARTBEAT, 7, 7),
    ("35=5|34=7|", HEARTBEAT, 7, 7),
    ("35=A|34=1|141=Y|", RESET, 1, 1),
    ("35=A|34=7|141=Y|", HEARTBEAT, 7, 7),
    ("35=4|34=7|123=Y|36=12|", SKIP, 7, 12),
    ("35=4|34=7|123=Y|36=7|", HEARTBEAT, 7, 7),
    ("35=4|34=7|36=12|", RESET, 7, 12),
    ("35=4|34=7|123=N|36=2|", RESET, 7, 2),
    ("35=UB|", CONTROL, 0, 0),
    ("35=2|34=7|7=1|16=2|", CONTROL, 7, 0),
]


@pytest.mark.parametrize(("text", "kind", "sequence", "following"), ADMINISTRATIVE)
def test_an_administrative_message_is_a_run_of_its_own_kind(twin, text, kind, sequence, following):
    data = admin(text)
    assert runs(twin, ONE + data + TWO) == [
        (DATA, 1, 2, 1, ONE),
        (kind, sequence, following, 0, data),
        (DATA, 2, 3, 1, TWO),
    ]


def test_application_messages_are_one_run_as_far_as_their_numbers_go_on(twin):
    assert runs(twin, ONE + TWO + FIVE) == [(DATA, 1, 3, 2, ONE + TWO), (DATA, 5, 6, 1, FIVE)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reject.TRUNCATED),
        (b"8=FIX", Reject.TRUNCATED),
        (b"hello", Reject.WRONG_CONSTANT),
        (ONE[:-1], Reject.MESSAGE_OVERRUN),
        (ONE[:-2] + b"x\x01", Reject.MALFORMED),
        (ONE.replace(b"55=A", b"55=B"), Reject.CHECKSUM),
        (summed(b"8=FIXT.1.1|9=7|35=X|34=1|55=A|"), Reject.LENGTH_MISMATCH),
        (sealed(b"35=X|55=A|"), Reject.MALFORMED),
        (update(1 << 62, "A"), Reject.MALFORMED),
        (sealed(b"35=4|34=1|123=Y|"), Reject.MALFORMED),
    ],
)
def test_what_is_before_a_wrong_message_is_read_and_the_fault_is_reported(twin, data, reason):
    assert runs(twin, data) == [reason]
    assert runs(twin, TWO + data) == ([(DATA, 2, 3, 1, TWO), reason] if data else runs(twin, TWO))
    with pytest.raises(BadPacket) as caught:
        FEED.decode_packet(data)
    assert caught.value.reason == reason
    fault = explain(FEED, TWO + data if data else data)
    assert fault.reason == reason
    assert str(fault)


def test_a_right_datagram_has_no_fault():
    assert explain(FEED, ONE + admin("35=0|34=2|")) is None


def test_messages_are_indexed_by_type_symbol_offset_and_number(twin):
    scan, _ = twin
    table, header, index = FEED.table_of(scan), scan.PacketHeader(), scan.MessageIndex(10)
    several, long = update(3, "A", "B", "A"), update(4, LONG)
    none, other = sealed(b"35=AE|34=5|571=1|"), sealed(b"35=ZZ|34=6|55=A|")
    raw = sealed(b"35=X|34=7|95=9|96=x\x0155=no\x01y|55=B|")
    whole = [several, long, none, other, raw]
    data = memoryview(b"".join(whole))
    assert scan.parse_header(table, data, 0, len(data), header) == Reject.FINE
    assert scan.check_messages(table, data, 0, header) == Reject.FINE
    assert header.unknown == 1
    assert scan.scan_messages(table, data, 0, header, index) == Reject.FINE
    assert list(index.types[:5]) == [ord("X"), ord("X"), 0x4145, 0x5A5A, ord("X")]
    assert list(index.sequences[:5]) == [3, 4, 5, 6, 7]
    assert [bytes(data[a : a + n]) for a, n in zip(index.offsets, index.sizes, strict=True)][
        :5
    ] == whole
    assert index.symbols[0] == scan.SEVERAL_SYMBOLS
    assert LONG_SYMBOL_BIT <= index.symbols[1] < scan.SEVERAL_SYMBOLS
    assert list(index.symbols[2:5]) == [scan.NO_SYMBOL, ord("A"), ord("B")]
    assert (index.count, index.unknown, index.packets) == (5, 1, 1)


def test_a_type_of_three_bytes_is_none_of_two(twin):
    scan, _ = twin
    table, header, index = FEED.table_of(scan), scan.PacketHeader(), scan.MessageIndex(10)
    report, longer = sealed(b"35=AE|34=5|571=1|"), sealed(b"35=AEX|34=6|571=1|")
    data = report + longer
    assert scan.parse_header(table, memoryview(data), 0, len(data), header) == Reject.FINE
    assert scan.scan_messages(table, memoryview(data), 0, header, index) == Reject.FINE
    assert [FEED.message_code(each) for each in (report, longer)] == list(index.types[:2])
    named = [(each.type, each.name) for each in FEED.decode_packet(data).messages]
    assert named == [("AE", "trade_capture_report"), ("AEX", "unknown")]


def test_symbols_of_a_message_that_names_several_are_read_one_by_one(twin):
    scan, fix = twin
    table, header = FEED.table_of(scan), scan.PacketHeader()
    data = memoryview(ONE + update(2, "A", LONG, "A"))
    assert fix.begin_symbols_of(data, len(ONE), len(data), header) == 1
    found = []
    while (symbol := fix.next_symbol_of(table, data, header)) != scan.NO_SYMBOL:
        at = header.run.symbol_at
        found.append((symbol, bytes(data[at : at + header.run.symbol_size]).decode()))
    assert [name for _, name in found] == ["A", LONG, "A"]
    assert found[0][0] == ord("A")
    assert fix.begin_symbols_of(data, 0, len(ONE) - 1, header) == 0
    assert fix.begin_symbols_of(data, 0, len(data) + 1, header) == 0


def test_both_scanners_agree_on_damaged_datagrams(seed):
    rng = random.Random(seed)
    parts = [ONE, TWO, FIVE, update(6, LONG, "B"), *(admin(row[0]) for row in ADMINISTRATIVE)]
    reasons = set()
    tables = {name: FEED.table_of(scan) for name, (scan, _) in SCANNERS.items()}
    for _ in range(400):
        data = bytearray(b"".join(rng.choices(parts, k=rng.randint(1, 4))))
        for _ in range(rng.choice((0, 1, 1, 2))):
            data[rng.randrange(len(data))] = rng.choice(b"\x01=0198|AZ\xff")
        answers = []
        for name, (scan, _) in SCANNERS.items():
            index, header = scan.MessageIndex(100), scan.PacketHeader()
            rejects = memoryview(numpy.zeros(scan.REJECT_COUNT, numpy.uint64))
            starts, sizes = numpy.array([0]), numpy.array([len(data)], numpy.uint32)
            scan.scan_datagrams(
                tables[name], memoryview(bytes(data)), memoryview(starts),
                memoryview(sizes), header, index, rejects,
            )  # fmt: skip
            entries = [list(each[: index.count]) for each in (index.symbols, index.sequences)]
            answers.append((list(rejects), entries, index.packets))
        assert answers[0] == answers[1]
        reasons.update(i for i, count in enumerate(answers[0][0]) if count)
    assert {Reject.FINE, Reject.CHECKSUM, Reject.MALFORMED} <= reasons


# -- the description --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        ("[fix]", "[packet]\nheader_size = 4", "packet.symbol_tag", "unknown key"),
        ('framing = "fix"', "", "fix", "is for framing"),
        ("symbol_tag = 55", "symbol_tag = 0", "fix.symbol_tag", "0 is no FIX tag"),
        ('W = "', 'Wxy = "', "", "one or two characters"),
        ('W = "', '0 = "', "", "an administrative message needs no name"),
        ('W = "market_data_snapshot"', 'W = "news"', "", "unique"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(tmp_path: Path, old, new, key, reason):
    text = (FEEDS_FOLDER / "fix-marketdata.toml").read_text()
    check_refused(tmp_path, text, old, new, key, reason)


def test_a_binary_description_needs_its_tables(tmp_path: Path):
    text = (FEEDS_FOLDER / "fix-marketdata.toml").read_text()
    text = text[: text.index("[fix]")]
    check_refused(tmp_path, text, 'framing = "fix"', "", "packet", "missing")


def test_message_types_are_texts_of_one_or_two_characters():
    assert [FEED.type_code(label) for label in ("W", "AE")] == [0x57, 0x4145]
    assert [FEED.type_label(code) for code in (0x57, 0x4145, 0xFFFF)] == ["W", "AE", "?"]
    for wrong in ("", "ABC", "é"):
        with pytest.raises(UsageError):
            FEED.type_code(wrong)


def test_a_datagram_decodes_to_its_application_messages():
    packet = FEED.decode_packet(admin("35=0|34=1|") + ONE + admin("35=UB|") + TWO)
    assert (packet.kind, packet.sequence, packet.next_sequence) == (DATA, 1, 3)
    assert [(each.type, each.name, each.get(55)) for each in packet.messages] == [
        ("X", "market_data_incremental_refresh", b"A"),
        ("X", "market_data_incremental_refresh", b"B"),
    ]
    rows = FEED.to_dicts(update(1, "A", LONG) + admin("35=4|34=2|123=Y|36=4|"))
    assert [(row["type"], row["seq"], row["symbol"]) for row in rows] == [
        ("X", 1, "A"),
        ("skip", 2, None),
    ]
    assert rows[0]["symbols"] == ["A", LONG]
    assert rows[0]["55"] == ["A", LONG]
    assert rows[1]["36"] == "4"


# -- arbitration ------------------------------------------------------------------------------


class FixChannel(Channel):
    """A channel that is given datagrams as the receive thread gives them; with `knows` False, each
    is read to its end."""

    def __init__(self, twin: str, knows: bool = True, settings: Any = QUICK) -> None:
        super().__init__(twin, settings, counts_messages=True, table=FEED.table)
        self.copies = KNOWN[twin]
        self.knows = knows
        self.known = 0

    def datagram(self, line: int, data: bytes) -> list[Verdict]:
        verdicts, at = [], 0
        view = memoryview(data)
        while at < len(data):
            given = FEED.table, view, at, len(data) - at
            assert fix_scanning.parse_first(*given, self.header) == 0
            verdict = 0
            if self.knows and self.copies.may_be_copy(self.arbiter, self.header, self.now):
                verdict = self.copies.accept_copy(
                    self.arbiter, line, self.header, view, at, len(data) - at, self.now, self.now
                )
                self.known += bool(verdict)
            length = len(data) - at
            if not verdict:
                assert fix_scanning.parse_further(*given, self.header) == 0
                length = self.header.length
                verdict = self.arbiter.receive(line, self.header, view, at, self.now, self.now)
            verdicts.append(Verdict(verdict))
            at += length
        self.collect()
        return verdicts

    def story(self) -> list[tuple]:
        """Return the events since the last call, packets with their bytes, and forget them."""
        said = [
            (event.kind.name, event.sequence, event.next_sequence, event.payload)
            for event in self.events
        ]
        self.events.clear()
        return said


@pytest.fixture(params=sorted(TWINS))
def channel(request):
    return FixChannel(request.param)


THREE, FOUR = update(3, "C"), update(4, "D")


def some_lines(rng: random.Random, count: int, reset_share: float) -> list[list[bytes]]:
    """Return the datagrams of both lines, packed alike or not, with heartbeats, gap fills, other
    bytes under a number that is known, forged numbers, and now and then a new epoch."""
    lines: list[list[bytes]] = [[], []]
    number = 1
    for _ in range(count):
        size, first, extra = rng.randint(1, 5), number, b""
        messages = [update(first + at, "ABCD"[at % 4]) for at in range(size)]
        number += size
        if rng.random() < 0.1:
            extra = admin(f"35=0|34={number}|")
        elif rng.random() < 0.05:
            extra = admin(f"35=4|34={number}|123=Y|36={number + 2}|")
            number += 2
        elif rng.random() < reset_share:
            extra = admin("35=A|34=1|98=0|108=1|141=Y|")
            number = 1
        alike = rng.random() < 0.8
        for line in lines:
            cut = size if alike else rng.randint(1, size)
            given = [update(first, "OTHER"), *messages[1:]] if rng.random() < 0.02 else messages
            parts = [b"".join(given[:cut]), b"".join(given[cut:]) + extra]
            line += [each for each in parts if each]
            if rng.random() < 0.05:
                line.append(update(max(1, number + rng.randint(-3, 9)), "FORGED"))
    return lines


def some_steps(rng: random.Random, lines: list[list[bytes]]) -> list[tuple[int, bytes]]:
    """(line, datagram) as they come: lossy, doubled, one line ahead of the other."""
    steps: list[tuple[int, bytes]] = []
    queues = [list(reversed(line)) for line in lines]
    while any(queues):
        line = rng.choice([each for each in (0, 1) if queues[each]])
        if abs(len(queues[0]) - len(queues[1])) > 3:
            line = int(len(queues[0]) < len(queues[1]))
        steps += [(line, queues[line].pop())] * rng.choice([0] + [1] * 20 + [2])
    return steps


@pytest.mark.parametrize("reset_share", [0, 0.02])
@pytest.mark.parametrize("twin", sorted(TWINS))
def test_a_copy_that_is_known_by_its_bytes_is_what_it_would_be_if_it_were_read(
    twin, reset_share, seed
):
    rng, known_of_all = random.Random(seed), 0
    for _ in range(40 if twin == "compiled" else 10):
        # Lines that fall silent at once, and a hold that is soon full.
        settings = msgspec.structs.replace(QUICK, silent_us=15_000, hold_packets=4)
        read, known = FixChannel(twin, False, settings), FixChannel(twin, True, settings)
        for line, data in some_steps(rng, some_lines(rng, 60, reset_share)):
            wait = rng.choice([0] * 15 + [3, 8, 12, 20])
            for each in (read, known):
                each.datagram(line, data)
                each.wait(wait)
            assert known.story() == read.story()
        assert (read.arbiter.line_array == known.arbiter.line_array).all()
        assert (read.arbiter.channel_array == known.arbiter.channel_array).all()
        assert read.arbiter.deadline_ns == known.arbiter.deadline_ns
        known_of_all += known.known
    assert known_of_all > 20


def test_data_and_a_heartbeat_in_one_datagram_are_both_heard(channel):
    channel.datagram(0, ONE + TWO + admin("35=0|34=4|"))
    assert channel.story()[1:] == [("PACKET", 1, 3, ONE + TWO)]
    channel.wait(10)
    assert channel.story() == [("GAP", 3, 4, b"")]


def test_a_packet_of_which_a_part_is_published_is_trimmed_to_the_rest(channel):
    channel.datagram(0, ONE + TWO)
    channel.datagram(1, TWO + THREE + FOUR)
    channel.datagram(0, THREE + FOUR + FIVE)
    assert channel.story()[1:] == [
        ("PACKET", 1, 3, ONE + TWO),
        ("PACKET", 3, 5, THREE + FOUR),
        ("PACKET", 5, 6, FIVE),
    ]
    assert channel.arbiter.channel_array[ChannelCounter.MESSAGES] == 5


def test_a_gap_fill_is_reported_as_skipped_and_closes_the_range(channel):
    channel.datagram(0, ONE)
    channel.datagram(0, FIVE)
    channel.datagram(1, admin("35=4|34=2|123=Y|36=5|"))
    assert channel.story()[1:] == [
        ("PACKET", 1, 2, ONE),
        ("SKIPPED", 2, 5, b""),
        ("PACKET", 5, 6, FIVE),
    ]
    assert channel.arbiter.channel_array[ChannelCounter.SKIPPED] == 3
    assert channel.arbiter.channel_array[ChannelCounter.LOST] == 0


def test_a_gap_fill_of_which_a_part_has_come_skips_the_rest(channel):
    channel.datagram(0, ONE + TWO)
    channel.datagram(1, admin("35=4|34=1|123=Y|36=5|"))
    assert channel.story()[1:] == [("PACKET", 1, 3, ONE + TWO), ("SKIPPED", 3, 5, b"")]
    assert channel.datagram(0, THREE) == [Verdict.DUPLICATE]
    assert channel.arbiter.channel_array[ChannelCounter.MISMATCHES] == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["behind it", "before it"])
@pytest.mark.parametrize("packed", [False, True], ids=["packed alike", "packed differently"])
def test_a_message_sent_again_with_its_flag_is_no_mismatch_of_the_one_without(
    channel, order, packed
):
    again = sealed(b"35=X|34=1|43=Y|268=1|279=0|55=A|")
    ways = [(0, ONE + TWO if packed else ONE), (1, again)]
    for index in order:
        channel.datagram(*ways[index])
    channel.datagram(0, THREE)
    assert channel.arbiter.channel_array[ChannelCounter.MISMATCHES] == 0
    assert channel.arbiter.channel_array[ChannelCounter.LOST] == 0


@pytest.mark.parametrize("reset", ["35=A|34=1|141=Y|", "35=4|34=3|36=1|"])
def test_a_new_epoch_begins_with_a_logon_or_a_sequence_reset(channel, reset):
    channel.datagram(0, ONE + TWO)
    again = update(1, "new")
    for line in (0, 1):
        channel.datagram(line, admin(reset))
    channel.datagram(0, again)
    said = [each[:3] for each in channel.story()]
    assert ("RESET", 0, 1) in said
    assert said[-1] == ("PACKET", 1, 2)
    assert sum(name == "RESET" for name, *_ in said) == 1


def test_a_logon_repeated_before_the_first_message_begins_nothing(channel):
    logon = admin("35=A|34=1|141=Y|")
    for _ in range(3):
        for line in (0, 1):
            channel.datagram(line, logon)
    channel.datagram(1, ONE)
    assert [name for name, *_ in channel.story()].count("RESET") <= 1
    assert channel.arbiter.expected == 2


def test_a_time_beacon_says_that_the_line_lives_and_nothing_else(channel):
    channel.datagram(0, ONE)
    assert channel.datagram(0, admin("35=UB|")) == [Verdict.HEARD]
    assert channel.arbiter.expected == 2


# -- fan-out ----------------------------------------------------------------------------------


def put(rig: Rig, first: int, *messages: bytes) -> None:
    rig.put(b"".join(messages), first, len(messages))


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_a_message_that_names_several_securities_reaches_each_link_once(grain):
    rig = Rig(services=(7,), feed=FEED)
    names = ("A", "B", LONG, "none")
    links = {name: rig.attach(f"fix.7.{name}?as={grain}&quality=0")[1] for name in names}
    both = rig.attach(f"fix.7.A,fix.7.B,fix.7.{LONG}?as={grain}&quality=0")[1]
    typed = rig.attach(f"fix.7.A?as={grain}&quality=0&types=W")[1]
    mixed, alone, other = update(1, LONG, "B", "A", "B"), update(2, LONG), update(3, "A")
    put(rig, 1, mixed, alone, other)
    rig.pump()
    got = {name: b"".join(each.body for each in link.data) for name, link in links.items()}
    assert got == {"A": mixed + other, "B": mixed, LONG: mixed + alone, "none": b""}
    assert b"".join(each.body for each in both.data) == mixed + alone + other
    assert not typed.data
    if grain == "message":
        assert [each.key for each in links["A"].data] == ["fix.7.A", "fix.7.A"]
        assert [each.key for each in both.data] == [f"fix.7.{LONG}"] * 2 + ["fix.7.A"]
        assert [each.number for each in both.data] == [0, 1, 2]


def test_a_name_with_reserved_characters_is_one_word_of_the_key():
    rig = Rig(services=(7,), feed=FEED)
    link = rig.attach("fix.7.VOD_L_LONDON?as=message&quality=0")[1]
    put(rig, 1, update(1, "VOD.L LONDON"))
    rig.pump()
    assert [each.key for each in link.data] == ["fix.7.VOD_L_LONDON"]


def test_routes_of_long_names_are_cached_and_made_anew_when_links_change():
    rig = Rig(services=(7,), feed=FEED)
    first = rig.attach(f"fix.7.{LONG}?as=message&quality=0")
    put(rig, 1, update(1, LONG))
    put(rig, 2, update(2, LONG))
    rig.pump()
    assert rig.fanout.route_hits == 1
    second = rig.attach("fix.7.*?as=message&quality=0")
    rig.detach(first[0])
    put(rig, 3, update(3, LONG))
    rig.pump()
    assert (len(first[1].data), len(second[1].data)) == (2, 1)


def test_skipped_numbers_are_announced_to_the_services_links():
    rig = Rig(services=(7,), feed=FEED)
    link = rig.attach("fix.7")[1]
    put(rig, 1, ONE)
    rig.control_event(RecordKind.SKIPPED, sequence=2, next_sequence=5)
    put(rig, 5, FIVE)
    rig.pump()
    assert [each.content for each in link.sent] == ["packet", "quality+json", "packet"]
    assert b'"skipped":[[2,4]]' in link.sent[1].body.replace(b" ", b"")
    assert link.sent[1].sequence == 5


@pytest.mark.parametrize("grain", ["packet", "message"])
def test_a_link_that_comes_back_gets_what_it_missed(grain):
    rig = Rig(services=(7,), feed=FEED, history_bytes=1 << 20)
    address = f"fix.7?as={grain}"
    _, before = rig.attach(address)
    put(rig, 1, ONE, TWO)
    put(rig, 3, THREE)
    rig.pump()
    tag = before.data[-1].tag.hex()
    put(rig, 4, FOUR, FIVE)
    rig.pump()
    _, after = rig.attach(f"{address}&from={tag}")
    rig.catch_up()
    assert b"".join(each.body for each in after.data) == FOUR + FIVE


def test_a_link_of_batches_comes_back_behind_the_last_message_that_it_read():
    """Of a batch a client knows the last message; any other may stand in the packet before it."""
    rig = Rig(services=(7,), feed=FEED, history_bytes=1 << 20)
    _, before = rig.attach("fix.7?as=batch")
    put(rig, 1, ONE, TWO)
    put(rig, 3, THREE, FOUR)
    rig.pump()
    assert [each.body for each in before.data] == [ONE + TWO + THREE + FOUR]
    put(rig, 5, FIVE)
    rig.pump()
    tag = before.data[0].tag
    last = tag[:8] + (4).to_bytes(8, "big") + tag[16:]
    _, after = rig.attach(f"fix.7?as=batch&from={last.hex()}")
    rig.catch_up()
    assert b"".join(each.body for each in after.data) == FIVE


# -- the page ---------------------------------------------------------------------------------

PAGE = (CHECKOUT / "docs" / "fix-feed.md").read_text()


def test_the_configuration_on_the_page_is_one():
    config = parse_config(PAGE.split("```toml\n")[1].split("```")[0], "fix-feed.md")
    assert misfit_of(config, FEED) is None
    (channel,) = config.channels
    assert [line.name for line in channel.lines] == ["A", "B"]


def test_the_servers_on_the_page_are_those_of_a_configuration():
    lines, servers = (PAGE.split("```toml\n")[at].split("```")[0] for at in (1, 2))
    begin = lines.index("[[channel]]")
    text = lines[:begin] + servers + lines[lines.index("[[channel.line]]") :]
    config = parse_config(text, "fix-feed.md")
    assert misfit_of(config, FEED) is None
    assert (config.channels[0].topic, config.channels[0].refresh) == ("equities-1", "mds")


def test_the_addresses_on_the_page_are_taken():
    rows = [row for row in PAGE.splitlines() if row.startswith("| `fix.7")]
    assert len(rows) == 3
    for row in rows:
        assert parse_address(row.split("`")[1], FEED.type_code).patterns[0][0] == "fix"


ENTRIES = [[(279, "0"), (269, "0"), (55, "ABC"), (270, "101.25"), (355, b"a\x01b")]]


@pytest.mark.parametrize("type", ["X", "market_data_incremental_refresh", 0x58])
def test_a_message_is_encoded_of_its_fields(type: str | int) -> None:
    message = FEED.encode_message(type, [(268, ENTRIES)], sequence=7)
    packet = FEED.decode_packet(FEED.encode_packet(messages=[message]))
    assert packet.sequence == 7
    decoded = packet.messages[0]
    assert (decoded.type, decoded.get(55), decoded.get(355)) == ("X", b"ABC", b"a\x01b")
    assert FEED.encode_message(decoded) == message
    assert b"\x0134=9\x01" in FEED.encode_message(decoded, sequence=9)


@pytest.mark.parametrize(
    ("arguments", "named", "reason"),
    [
        (("market_data",), {}, "'market_data' is no message type of fix-marketdata"),
        (("X",), {"price": 5}, "no layouts with a field 'price'"),
        (("X", [(55, "")]), {}, "field 55 has no value"),
    ],
)
def test_what_cannot_be_a_message_is_refused(
    arguments: tuple[Any, ...], named: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        FEED.encode_message(*arguments, **named)


def test_a_number_that_a_gateway_cannot_count_to_is_reported_with_its_message():
    fault = explain(FEED, ONE + update((1 << 64) - 2, "A"))
    assert fault is not None
    assert (fault.message, fault.what, fault.at) == (2, "MsgSeqNum", len(ONE))
    found, wanted = "18,446,744,073,709,551,614", "4,611,686,018,427,387,904"
    assert str(fault) == (
        f"message 2, MsgSeqNum at byte {len(ONE)}: {found}, wanted a number below {wanted} "
        "(2**62): a gateway counts no further"
    )
    assert explain(FEED, update((1 << 62) - 2, "A")) is None
