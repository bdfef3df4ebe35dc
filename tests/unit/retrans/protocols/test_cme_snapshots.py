"""CME's market recovery feed: loops assembled line by line, whatever a line loses, repeats or turns
into, and how far a loop reaches."""

import random
from pathlib import Path

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.gateway import open_config
from feedhandler.retrans.events import RefreshSnapshot
from feedhandler.retrans.line_assembly import COUNTS
from feedhandler.retrans.protocols.cme_snapshots import LoopAssembler, LoopSnapshots
from feedhandler.retrans.protocols.registry import REGISTRY, snapshots_of
from feedhandler.retrans.refresh import COUNTS as REFRESH_COUNTS
from feedhandler.retrans.refresh import RefreshEvent, Snapshot, SnapshotBegan, SnapshotFailed
from feedhandler.retrans.settings import RecoverySettings
from feedhandler.retrans.store import PacketStore
from tests.support.cme_books import FEED, Levels, apply, key, packet, snapshot, update
from tests.support.line_answers import keep, mutated
from tests.support.refusal import refusal
from tests.support.seeds import drawn

CHANNEL = 310
A, B = 0, 1
MS = 1_000_000


def book(instrument: int, last: int, total: int = 3, size: int = 1) -> bytes:
    """The snapshot of a book with one bid."""
    levels = {key(instrument, b"0", 0): size.to_bytes(4, "big")}
    return snapshot(instrument, levels, last, total)


def loop(*lasts: int, at: int = 0) -> list[bytes]:
    """A loop of as many packets, of one book each, as of these live numbers."""
    total = len(lasts)
    return [
        packet(number, book(100 + number, last, total), send_time=at + number)
        for number, last in enumerate(lasts, 1)
    ]


def assembler(**settings: int) -> LoopAssembler:
    return LoopAssembler(FEED, CHANNEL, RecoverySettings(**settings))


def events_of(
    made: LoopAssembler, line: int, *packets: bytes, now_ns: int = 0
) -> list[RefreshEvent]:
    for each in packets:
        made.datagram(line, each, now_ns)
    return made.pop_events()


def test_a_loop_is_whole_when_the_books_it_has_have_come_and_reaches_to_the_lowest() -> None:
    made = assembler()
    began, whole = events_of(made, A, *loop(50, 52, 57))
    assert began == SnapshotBegan(CHANNEL, 50)
    assert isinstance(whole, Snapshot)
    assert (whole.last, whole.highest, whole.messages, whole.send_time) == (50, 57, 3, 1)
    levels: Levels = {}
    for each in whole.packets:
        assert int.from_bytes(each[:4], "little") == 50
        for message in FEED.messages_of(each):
            apply(levels, message)
    assert set(levels) == {key(n, b"0", 0) for n in (101, 102, 103)}
    assert made.deadline_ns > 1 << 62


def test_several_books_a_packet_and_what_is_no_book_are_taken_as_they_come() -> None:
    made = assembler()
    beat, other = FEED.encode_message("admin_heartbeat"), FEED.encode_message(53)
    events = events_of(
        made, A,
        packet(1, beat, book(1, 9), other, send_time=1),
        packet(2, beat, send_time=2),
        packet(3, book(2, 8), book(3, 8), send_time=3),
    )  # fmt: skip
    whole = events[-1]
    assert isinstance(whole, Snapshot)
    assert (whole.last, whole.highest, whole.send_time, len(whole.packets)) == (8, 9, 3, 1)


def test_a_book_that_comes_twice_is_the_later_one_and_counts_once() -> None:
    made = assembler()
    events = events_of(
        made, A, packet(1, book(1, 5), book(1, 6, size=7), send_time=1),
        packet(2, book(2, 6), send_time=2), packet(3, book(3, 6), send_time=3),
    )  # fmt: skip
    whole = events[-1]
    assert isinstance(whole, Snapshot)
    assert whole.messages == 3
    levels: Levels = {}
    for each in whole.packets:
        for message in FEED.messages_of(each):
            apply(levels, message)
    assert levels[key(1, b"0", 0)] == (7).to_bytes(4, "big")


def test_a_line_that_is_joined_in_a_loop_waits_for_the_next() -> None:
    made = assembler()
    first, second = loop(50, 50, 50), loop(60, 60, 60, at=10)
    events = events_of(made, A, *first[1:], *second)
    assert [each.last for each in events if not isinstance(each, SnapshotFailed)] == [60, 60]
    assert made.counts["outside"] == 2


def test_a_loop_that_lacks_a_packet_fails_and_copies_are_passed_over() -> None:
    made = assembler()
    one, _, three = loop(50, 50, 50)
    assert events_of(made, A, one, one, three)[-1] == SnapshotFailed(CHANNEL, "gap")
    assert made.counts["failed_gap"] == 1
    later = loop(60, 60, 60, at=10)
    events = events_of(made, A, later[0], later[1], later[0], later[1], one, later[2])
    assert isinstance(events[-1], Snapshot)
    assert made.counts["started_over"] == 1, "the copy that came at once began the loop again"


def test_each_line_is_assembled_by_itself_and_one_failure_among_two_is_not_reported() -> None:
    made = assembler()
    a, b = loop(50, 50, 50), loop(51, 52, 53, at=5)
    assert events_of(made, A, a[0]) == [SnapshotBegan(CHANNEL, 50)]
    assert events_of(made, B, b[0], b[1]) == [SnapshotBegan(CHANNEL, 51)]
    assert events_of(made, A, a[2]) == []
    (whole,) = events_of(made, B, b[2])
    assert isinstance(whole, Snapshot)
    assert (made.counts["failed_gap"], made.counts["snapshots"]) == (1, 1)


@pytest.mark.parametrize(
    "wrong", [b"", b"x" * 11, packet(2, book(2, 50))[:-1], packet(2, book(2, 50)) + b"x"]
)
def test_a_datagram_that_is_no_packet_fails_its_lines_loop(wrong: bytes) -> None:
    made = assembler()
    events_of(made, A, loop(50, 50, 50)[0])
    assert events_of(made, A, wrong) == [SnapshotFailed(CHANNEL, "malformed")]
    assert events_of(made, A, wrong) == []
    assert made.counts["malformed"] == 2


def test_a_loop_that_is_too_large_or_stands_still_or_is_of_an_epoch_that_ended_fails() -> None:
    made = assembler(snapshot_bytes_max=1 << 10)
    packets = [packet(n, book(n, 5, 99), send_time=n) for n in range(1, 20)]
    assert SnapshotFailed(CHANNEL, "too_large") in events_of(made, A, *packets)
    made = assembler(refresh_timeout_us=1_000)
    one, two, _ = loop(50, 50, 50)
    events_of(made, A, one)
    events_of(made, A, two, now_ns=MS - 1)
    assert made.deadline_ns == 2 * MS - 1
    made.tick(2 * MS - 2)
    assert made.pop_events() == []
    made.tick(2 * MS - 1)
    assert made.pop_events() == [SnapshotFailed(CHANNEL, "timed_out")]
    events_of(made, A, *loop(60, 60, 60, at=9)[:1], now_ns=3 * MS)
    made.gap(3 * MS)
    made.reset(3 * MS)
    assert made.pop_events() == [SnapshotFailed(CHANNEL, "reset")]
    assert isinstance(events_of(made, A, *loop(1, 1, 1), now_ns=4 * MS)[-1], Snapshot)


def test_a_clock_that_was_set_back_far_does_not_stop_the_loops() -> None:
    made = assembler(refresh_timeout_us=1_000)
    assert isinstance(events_of(made, A, *loop(50, 50, 50, at=10**12))[-1], Snapshot)
    assert isinstance(events_of(made, A, *loop(60, 60, 60))[-1], Snapshot)


def test_what_is_not_waited_for_is_forgotten() -> None:
    made = assembler()
    one, two, three = loop(50, 50, 50)
    events_of(made, A, one)
    made.idle()
    assert events_of(made, A, two, three) == []
    assert made.deadline_ns > 1 << 62
    with pytest.raises(AssertionError):
        made.packet(one, 1, 0)


def test_the_form_is_that_of_the_feed_and_judges_by_send_times() -> None:
    form = snapshots_of(FEED, RecoverySettings())
    assert isinstance(form, LoopSnapshots)
    (made,) = form.assemblers(CHANNEL)
    assert isinstance(made, LoopAssembler)
    assert set(COUNTS) == set(made.counts) <= set(REFRESH_COUNTS)
    store = PacketStore(1 << 16)
    for number in range(1, 9):
        message = FEED.encode_message(39, transact_time=number)
        keep(FEED, store, packet(number, message, send_time=number * 1_000 * MS))

    def whole(last: int, sent_s: int) -> Snapshot:
        return Snapshot(CHANNEL, last, (), 0, sent_s * 1_000 * MS)

    assert form.fit(whole(5, 6), store)
    assert not form.fit(whole(5, 3), store), "sent before what it holds"
    assert not form.fit(whole(5, 60), store), "long after what it does not hold"
    assert [first for first, _, _ in form.since(whole(5, 6), store, 8)] == [6, 7]
    with pytest.raises(AssertionError):
        form.whole(RefreshSnapshot(1, CHANNEL, 1, ()))
    assert REGISTRY["cme-snapshots"].client is None
    for name in ("b3-umdf", "iex-deep"):
        with pytest.raises(UsageError):
            LoopSnapshots(load_feed(name), RecoverySettings())


@drawn(6)
def test_updates_that_are_in_some_books_already_change_nothing_in_the_end(seed: int) -> None:
    """Whole loops, cut amid updates: what came behind the lowest is applied over all."""
    draw = random.Random(seed)
    truth: Levels = {}
    made, updates, events = assembler(), [], []
    updates += [update(n, draw, truth) for n in range(1, 60)]
    instruments = sorted({each // 2_000 for each in truth})
    for number, instrument in enumerate(instruments, 1):
        said = packet(
            number, snapshot(instrument, truth, len(updates), len(instruments)), send_time=number
        )
        events += events_of(made, A, said)
        updates += [update(len(updates) + 1, draw, truth) for _ in range(draw.randint(0, 9))]
    whole = events[-1]
    assert isinstance(whole, Snapshot)
    levels: Levels = {}
    for each in whole.packets:
        for message in FEED.messages_of(each):
            apply(levels, message)
    for message in updates[whole.last :]:
        apply(levels, message)
    assert levels == truth, f"seed {seed}"


@drawn(6)
def test_mutated_datagrams_never_raise(seed: int) -> None:
    draw = random.Random(seed)
    made = assembler()
    for turn in range(20):
        for each in loop(50, 51, 52, at=turn * 10):
            made.datagram(draw.choice([A, B]), draw.choice([each, mutated(each, draw)]), turn)
    assert made.counts["packets"] == 60
    assert all(
        isinstance(each, SnapshotBegan | Snapshot | SnapshotFailed) for each in made.pop_events()
    )


LOOPS = """
[gateway]
feed = "cme-mdp3"

[[channel]]
service = 310

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104

[[channel.refresh_line]]
name = "A"
group = "239.101.3.4"
port = 32104
"""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("", "", ""),
        (
            "[[channel]]\n",
            '[[server]]\nname = "rts"\naddress = "127.0.0.1:7"\nsource_id = "U"\n'
            '[[channel]]\nrefresh = "rts"\n',
            "channel[0].refresh: snapshots of cme-mdp3 come by lines, and are not asked for",
        ),
        (
            'group = "239.101.3.4"\nport = 32104',
            'topology = "t.toml"\nmember = "receiver-0"',
            "channel[0].refresh_line[0].topology: these lines are read one by one",
        ),
    ],
)
def test_lines_of_loops_are_configured_as_refresh_lines(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    path = tmp_path / "gw.toml"
    path.write_text(LOOPS.replace(old, new) if old else LOOPS)
    if not reason:
        (channel,) = open_config(path)[0].channels
        assert channel.refreshes
        return
    assert reason in refusal(open_config, path)
