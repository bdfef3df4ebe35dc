"""NYSE XDP refreshes: assembled line by line, whatever a line loses, repeats or turns into; never
whole without every symbol; each symbol continued behind the number that it reaches."""

import random
import struct
from pathlib import Path

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.gateway import open_config
from feedhandler.retrans.protocols.nyse_refresh import XdpRefreshAssembler, XdpSnapshots
from feedhandler.retrans.protocols.nyse_xdp_server import XdpServer
from feedhandler.retrans.protocols.registry import snapshots_of
from feedhandler.retrans.protocols.setup import ServerSetup
from feedhandler.retrans.refresh import RefreshEvent, Snapshot, SnapshotBegan, SnapshotFailed
from feedhandler.retrans.settings import RecoverySettings, ServerSettings
from feedhandler.retrans.store import PacketStore
from tests.support.line_answers import Lines, keep, mutated, stored
from tests.support.refusal import refusal
from tests.support.seeds import drawn

FEED = load_feed("nyse-integrated-xdp")
CHANNEL, PRODUCT = 3, 7
A, B = 0, 1
ONLY, FIRST, FURTHER, LAST = 17, 18, 19, 20
MS = 1_000_000


def packet(number: int, *bodies: bytes, flag: int = 11, sent_ns: int = 0) -> bytes:
    """By the specification: size, flag, count, number, seconds and nanoseconds; messages."""
    body = b"".join(bodies)
    sent = divmod(sent_ns, 10**9)
    return struct.pack("<HBBIII", 16 + len(body), flag, len(bodies), number, *sent) + body


def order(symbol: int, number: int) -> bytes:
    """An "add order" whose order id tells which it is."""
    return struct.pack("<HHIIIQII", 39, 100, 0, symbol, 0, number, 100, 5) + b"BFIRM \0"


def mapping(symbol: int) -> bytes:
    return FEED.encode_message(
        "symbol_index_mapping", symbol_index=symbol, symbol_name=f"S{symbol}"
    )


def head(number: int, total: int, last: int = 0) -> bytes:
    """A refresh header: the long one in a symbol's first packet."""
    if number > 1:
        return struct.pack("<HHHH", 8, 35, number, total)
    return struct.pack("<HHHHII", 16, 35, number, total, last, 0)


def refresh(*symbols: tuple[int, int], at: int = 1) -> list[bytes]:
    """An answer with two packets, of an order each, of each (symbol, live number)."""
    found: list[bytes] = []
    for symbol, last in symbols:
        for number in (1, 2):
            index = len(found)
            flag = FIRST if not index else LAST if index == 2 * len(symbols) - 1 else FURTHER
            said = (head(number, 2, last), order(symbol, 10 * symbol + number))
            found.append(packet(at + 2 * index, *said, flag=flag, sent_ns=last))
    return found


def single(symbol: int, last: int, at: int) -> bytes:
    """An answer of one packet about one symbol."""
    return packet(at, head(1, 1, last), order(symbol, 10 * symbol), flag=ONLY, sent_ns=last)


def assembler(**settings: int) -> XdpRefreshAssembler:
    return XdpRefreshAssembler(FEED, CHANNEL, RecoverySettings(**settings))


def events_of(
    made: XdpRefreshAssembler, line: int, *packets: bytes, now_ns: int = 0
) -> list[RefreshEvent]:
    for each in packets:
        made.datagram(line, each, now_ns)
    return made.pop_events()


def held(snapshot: RefreshEvent) -> list[bytes]:
    assert isinstance(snapshot, Snapshot)
    return [message for each in snapshot.packets for message in FEED.messages_of(each)]


def test_an_answer_with_several_symbols_is_whole_with_its_last_packet() -> None:
    made = assembler()
    *packets, last = refresh((4, 50), (9, 57), (5, 52))
    assert events_of(made, A, *packets) == [SnapshotBegan(CHANNEL, 50)]
    (whole,) = events_of(made, A, last)
    assert isinstance(whole, Snapshot)
    assert (whole.last, whole.highest, whole.send_time) == (50, 57, 50)
    assert whole.reaches == {4: 50, 9: 57, 5: 52}
    assert held(whole) == [order(s, 10 * s + n) for s in (4, 9, 5) for n in (1, 2)]
    assert made.deadline_ns > 1 << 62


def test_names_that_were_asked_for_stand_in_front() -> None:
    made = assembler()
    names = packet(1, mapping(4), mapping(9), flag=FIRST), packet(3, mapping(5), flag=LAST)
    assert events_of(made, A, *names) == []
    whole = events_of(made, B, *refresh((4, 50), (9, 57)))[-1]
    assert held(whole)[:3] == [mapping(4), mapping(9), mapping(5)]


def test_answers_of_one_symbol_each_are_whole_when_every_name_is_there() -> None:
    made = assembler()
    names = packet(1, mapping(4), mapping(9), flag=ONLY)
    assert events_of(made, A, single(4, 40, 7)) == [SnapshotBegan(CHANNEL, 40)]
    assert events_of(made, A, names, packet(5, mapping(4), flag=ONLY), single(4, 50, 10)) == [
        SnapshotBegan(CHANNEL, 50)
    ]
    assert events_of(made, A, single(4, 52, 14), single(8, 52, 16)) == []
    (whole,) = events_of(made, A, single(9, 51, 20))
    assert isinstance(whole, Snapshot)
    assert whole.reaches == {4: 52, 8: 52, 9: 51}


def test_a_symbol_whose_state_comes_again_and_again_takes_its_room_once() -> None:
    made = assembler(snapshot_bytes_max=1 << 10)
    events_of(made, A, packet(1, mapping(4), mapping(9), flag=ONLY))
    again = [single(4, 40 + number, 10 * number) for number in range(1, 100)]
    assert events_of(made, A, *again) == [SnapshotBegan(CHANNEL, 41)]
    (whole,) = events_of(made, A, single(9, 150, 2_000))
    assert isinstance(whole, Snapshot)
    assert whole.reaches == {4: 139, 9: 150}


def test_a_state_that_may_lack_symbols_is_never_whole() -> None:
    made = assembler(refresh_timeout_us=1_000)
    assert events_of(made, A, *refresh((4, 50))) == [SnapshotBegan(CHANNEL, 50)]
    assert events_of(made, A, packet(9, mapping(4), flag=ONLY), single(4, 51, 10)) == []
    clock = FEED.encode_message("source_time_reference")
    timed = packet(20, head(1, 1, 52), clock, order(4, 40), flag=ONLY)
    assert events_of(made, A, timed) == []
    assert events_of(made, A, *refresh((4, 52), (5, 52), at=30)[:3]) == []
    made.tick(MS)
    assert made.pop_events() == [SnapshotFailed(CHANNEL, "timed_out")]


def test_a_packet_that_is_lost_fails_the_answer_and_copies_are_passed_over() -> None:
    made = assembler()
    one, two, three, four = refresh((4, 50), (9, 50))
    assert events_of(made, A, two, one, one, three)[-1] == SnapshotFailed(CHANNEL, "gap")
    assert (made.counts["outside"], made.counts["failed_gap"]) == (3, 1)
    assert isinstance(events_of(made, A, one, two, one, two, three, four)[-1], Snapshot)
    events_of(made, A, one)
    later = refresh((4, 60), (9, 60), at=30)
    assert isinstance(events_of(made, A, *later)[-1], Snapshot)
    assert made.counts["started_over"] == 1


def test_each_line_is_assembled_by_itself_and_one_failure_among_two_is_not_reported() -> None:
    made = assembler()
    packets = refresh((4, 50), (9, 50))
    events_of(made, A, *packets[:2])
    assert events_of(made, B, *packets[:3]) == [SnapshotBegan(CHANNEL, 50)]
    assert events_of(made, A, packets[3]) == []
    assert isinstance(events_of(made, B, packets[3])[-1], Snapshot)


@pytest.mark.parametrize(
    "wrong",
    [
        b"", packet(3, order(4, 1), flag=FURTHER)[:-1], packet(3, flag=FURTHER) + b"x",
        packet(3, order(4, 1), flag=FURTHER), packet(3, mapping(5), flag=FURTHER),
        packet(3, head(1, 2, 50), order(5, 1), flag=FURTHER),
        packet(3, head(3, 3), order(4, 1), flag=FURTHER),
        packet(3, head(2, 3), order(4, 1), flag=FURTHER),
        packet(3, head(2, 2), order(5, 1), flag=FURTHER),
        packet(3, struct.pack("<HHH", 6, 35, 2), flag=FURTHER),
    ],
)  # fmt: skip
def test_what_makes_no_sense_in_an_answer_fails_it(wrong: bytes) -> None:
    made = assembler()
    events_of(made, A, refresh((4, 50), (9, 50))[0])
    assert events_of(made, A, wrong) == [SnapshotFailed(CHANNEL, "malformed")]


def test_an_answer_that_ends_amid_a_symbol_fails() -> None:
    made = assembler()
    cut = packet(1, head(1, 2, 50), order(4, 1), flag=ONLY)
    assert events_of(made, A, cut)[-1] == SnapshotFailed(CHANNEL, "malformed")
    names_and_books = (
        packet(1, mapping(4), flag=FIRST), packet(2, head(1, 1, 5), order(4, 1), flag=LAST),
    )  # fmt: skip
    assert events_of(made, A, *names_and_books)[-1] == SnapshotFailed(CHANNEL, "malformed")


def test_heartbeats_and_other_packets_are_passed_over_and_size_and_epoch_bound_an_answer() -> None:
    made = assembler(snapshot_bytes_max=1 << 10)
    packets = refresh((4, 50), (9, 50))
    beat = packet(0, flag=1)
    assert isinstance(
        events_of(made, A, packets[0], beat, packet(9, order(4, 1)), *packets[1:])[-1], Snapshot
    )
    large = refresh(*((symbol, 50) for symbol in range(1, 30)))
    assert SnapshotFailed(CHANNEL, "too_large") in events_of(made, A, *large)
    events_of(made, A, packets[0])
    made.reset(0)
    assert made.pop_events() == [SnapshotFailed(CHANNEL, "reset")]
    events_of(made, A, packets[0])
    made.idle()
    assert made.deadline_ns > 1 << 62


@drawn(24)
def test_behind_a_refresh_each_symbol_goes_on_behind_its_own_number(seed: int) -> None:
    """Orders applied once each, whatever number each symbol's state reaches."""
    draw = random.Random(seed)
    count = draw.randint(20, 80)
    sent = {number: draw.randint(1, 6) for number in range(1, count + 1)}
    store, first = PacketStore(1 << 16), 1
    while first <= count:
        end = min(first + draw.randint(1, 7), count + 1)
        keep(FEED, store, packet(first, *(order(sent[n], n) for n in range(first, end))))
        first = end
    reaches = {symbol: draw.randint(count // 2, count) for symbol in range(1, 6)}
    last, highest = min(reaches.values()), max(reaches.values())
    snapshot = Snapshot(CHANNEL, last, (), 0, 0, highest, reaches)
    pieces = XdpSnapshots(FEED, RecoverySettings()).since(snapshot, store, count + 1)
    came = []
    for low, high, data in pieces:
        assert high <= highest + 1 or low > highest, "a piece lies on one side of the highest"
        orders = [int.from_bytes(each[16:24], "little") for each in FEED.messages_of(data)]
        assert orders == list(range(low, high))
        came += orders
    assert came == [n for n in range(last + 1, count + 1) if n > reaches.get(sent[n], last)]


@drawn(24)
def test_mutated_datagrams_never_raise(seed: int) -> None:
    draw = random.Random(seed)
    made = assembler()
    for turn in range(20):
        at = 1 + turn * 10
        for each in [packet(at, mapping(4), mapping(9), flag=ONLY), *refresh((4, 50), (9, 50))]:
            made.datagram(draw.choice([A, B]), draw.choice([each, mutated(each, draw)]), turn)
    assert made.counts["packets"] == 100
    assert all(
        isinstance(each, SnapshotBegan | Snapshot | SnapshotFailed) for each in made.pop_events()
    )


# -- the server -----------------------------------------------------------------------------------


def served(orders: int, **settings: int) -> tuple[XdpServer, Lines]:
    """A server of two symbols with so many orders each, as of number 12."""
    lines = Lines(CHANNEL)
    messages = [mapping(4), mapping(9), *(order(s, n) for n in range(orders) for s in (4, 9))]
    setup = ServerSetup(
        FEED, {CHANNEL: stored(FEED, [packet(12, order(4, 1), sent_ns=77)])},
        ServerSettings(**settings), lambda service: (12, tuple(messages)) if orders else None,
        refresh=lines, product=PRODUCT,
    )  # fmt: skip
    return XdpServer(setup), lines


def asked(code: int, symbol: int = 0) -> bytes:
    body = struct.pack("<I10sBB", symbol, b"US", PRODUCT, CHANNEL) + (b"\0" if code == 13 else b"")
    return packet(1, struct.pack("<HH", 4 + len(body), code) + body)


@pytest.mark.parametrize("orders", [1, 100])
def test_a_servers_refresh_comes_whole_and_its_mapping_too(orders: int) -> None:
    serving, lines = served(orders)
    session, made = serving.session("c", 0), assembler()
    assert session.feed(asked(13), 0)[-1:] == b"0"
    (names,) = lines.drain()
    assert names == packet(1, mapping(4), mapping(9), flag=ONLY, sent_ns=77)
    assert session.feed(asked(15), 0)[-1:] == b"0"
    answer = lines.drain()
    assert all(len(each) <= 1400 for each in answer)
    assert [each[2] for each in answer] == [FIRST, *[FURTHER] * (len(answer) - 2), LAST]
    whole = events_of(made, A, names, *answer)[-1]
    assert isinstance(whole, Snapshot)
    assert (whole.last, whole.highest, whole.send_time) == (12, 12, 77)
    assert sorted(held(whole)) == sorted(
        [mapping(4), mapping(9)] * 2 + [order(s, n) for n in range(orders) for s in (4, 9)]
    )
    assert (serving.counts["snapshots"], serving.counts["mappings"]) == (1, 1)


def test_a_server_answers_for_one_symbol_and_refuses_what_it_has_not() -> None:
    serving, lines = served(1, requests_per_day=3)
    session = serving.session("c", 0)
    assert session.feed(asked(15, 9), 0)[-1:] == b"0"
    (answer,) = lines.drain()
    assert answer == packet(1, head(1, 1, 12), mapping(9), order(9, 0), flag=ONLY, sent_ns=77)
    assert session.feed(asked(15, 8), 0)[-1:] == b"6"
    assert session.feed(asked(15), 0)[-1:] == b"0"
    assert session.feed(asked(15), 0)[-1:] == b"5"
    assert served(0)[0].session("c", 0).feed(asked(15), 0)[-1:] == b"6"


# -- what is configured ---------------------------------------------------------------------------


def test_the_form_is_the_feeds() -> None:
    for name in ("nyse-integrated-xdp", "nyse-integrated-pillar"):
        form = snapshots_of(load_feed(name), RecoverySettings())
        assert isinstance(form, XdpSnapshots)
        (made,) = form.assemblers(CHANNEL)
        assert isinstance(made, XdpRefreshAssembler)
    with pytest.raises(UsageError):
        XdpSnapshots(load_feed("nyse-openbook-ultra"), RecoverySettings())


REFRESHED = """
[gateway]
feed = "nyse-integrated-pillar"

[[server]]
name = "requests"
address = "127.0.0.1:7"
source_id = "US"
product = 7

[[channel]]
service = 3
refresh = "requests"

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104
"""
LINE = """
[[channel.refresh_line]]
name = "A"
group = "239.101.4.4"
port = 32104
"""


def test_a_channel_that_asks_for_refreshes_names_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    path.write_text(REFRESHED + LINE)
    (channel,) = open_config(path)[0].channels
    assert channel.refreshes
    path.write_text(REFRESHED)
    message = "channel[0].refresh: snapshots of nyse-integrated-pillar come by multicast lines"
    assert message in refusal(open_config, path)
