"""A destination with a journal: order, bound, what survives, what is announced."""

from dataclasses import replace
from pathlib import Path

import pytest

from feedhandler.amqp.publishing.spill_queue import State, Where
from feedhandler.amqp.queueing.unsettled_map import Outcome
from feedhandler.ingest.records import RecordKind
from feedhandler.journal.layout import Status
from tests.support.amqp import packet
from tests.support.simulated_disk import Fault
from tests.support.spill import QUEUE_BYTES, SMALL, WAIT_NS, WALL_NS, SpillRig, tag_of


@pytest.fixture
def rig(tmp_path: Path) -> SpillRig:
    made = SpillRig(tmp_path, address="#?quality=0")
    made.begin()
    return made


def test_a_broker_that_keeps_up_gets_messages_from_memory_and_the_journal_empties(rig) -> None:
    link = rig.connect()
    rig.stream(1, 50)
    assert link.sequences == [*range(1, 51)], "sent before they are on the disk"
    rig.wait()
    assert rig.disk.engine.statistics()["pending"] == 50, "unconfirmed: in the journal"
    rig.settle()
    assert rig.disk.engine.statistics()["pending"] == 0
    assert rig.spill.state is State.MEMORY
    assert rig.spill.spilled == 0


def test_what_is_confirmed_before_its_turn_is_never_written(rig) -> None:
    rig.connect()
    rig.stream(1, 50)
    rig.confirm()
    rig.settle()
    assert rig.spill.written == 0


def test_what_a_broker_does_not_take_goes_to_disk_and_comes_back_in_order(rig) -> None:
    last = 2000
    rig.stream_for_long(last)
    assert rig.spill.state is State.SPILLING
    assert rig.spill.on_disk > 1000
    link = rig.connect(grants=500)
    rig.stream(last + 1, last + 100)
    for _ in range(400):
        link.grants = 100
        rig.confirm(100)
        rig.wait()
    assert link.sequences == [*range(1, last + 101)]
    assert rig.spill.state is State.MEMORY
    assert 1000 < rig.spill.drained <= rig.spill.spilled
    rig.settle()
    assert rig.disk.engine.statistics()["pending"] == 0
    assert rig.destination.dropped == 0
    assert rig.high_bytes <= QUEUE_BYTES


def test_a_killed_gateway_loses_nothing_that_was_written(tmp_path: Path) -> None:
    rig = SpillRig(tmp_path, address="#?quality=0")
    rig.begin()
    first = rig.connect(grants=100)
    rig.stream_for_long(1000)
    rig.confirm(40)
    rig.wait()
    rig.work()
    again = SpillRig(tmp_path, rig.kill(), address="#?quality=0")
    again.begin(1001)
    again.stream(1001, 1010)
    second = again.connect()
    again.settle()
    assert first.sequences == [*range(1, 101)]
    assert second.sequences == [*range(41, 1011)], "unconfirmed first, then what was to come"
    assert dict(zip(map(tag_of, first.sent[40:]), first.frames[40:], strict=True)).keys() == set(
        map(tag_of, second.sent[:60])
    )
    assert [data for _, data in second.frames[:60]] == [data for _, data in first.frames[40:]]


def test_a_clean_end_puts_everything_unconfirmed_into_the_journal(tmp_path: Path) -> None:
    rig = SpillRig(tmp_path, address="#?quality=0")
    rig.begin()
    rig.stream(1, 100)
    rig.close()
    again = SpillRig(tmp_path, rig.files, address="#?quality=0")
    assert again.disk.pending == 100
    link = again.connect()
    again.settle()
    assert link.sequences == [*range(1, 101)]


def test_a_full_journal_refuses_the_newest_and_tells_where(tmp_path: Path) -> None:
    rig = SpillRig(tmp_path, settings=replace(SMALL, blocks_max=4))
    rig.begin()
    rig.stream_for_long(1500)
    assert rig.spill.stalled
    assert rig.destination.dropped > 200
    assert rig.destination.overflows == 1
    link = rig.connect()
    rig.settle()
    rig.stream(1501, 1510)
    rig.settle()
    came = link.sequences
    missing = sorted(set(range(1, 1511)) - set(came))
    assert came == sorted(came)
    assert missing == [*range(missing[0], 1501)]
    (note,) = [each for each in link.notes if each["reason"] == "overflow"]
    assert note["lost"] == [[missing[0], missing[-1]]]
    numbers = [tag_of(message)[3] for message in link.sent]
    notice_at = next(at for at, message in enumerate(link.sent) if b"overflow" in message.body)
    assert max(numbers[:notice_at]) < missing[0], "announced where it is missing"
    assert numbers[notice_at + 1] == 1501


def overflowing_rig(tmp_path: Path, **options: object) -> SpillRig:
    """A broker that is away, and enough packets that some are on the disk only."""
    rig = SpillRig(tmp_path, **options)
    rig.begin()
    rig.stream_for_long(1000)
    assert rig.spill.on_disk > 20
    return rig


def test_a_disk_that_fails_is_announced_in_the_stream_and_the_feed_goes_on(tmp_path: Path) -> None:
    rig = overflowing_rig(tmp_path)
    rig.files.fault = Fault(rig.files.calls + 1, "EIO", for_good=True)
    rig.stream(1001, 1010)
    rig.wait()
    rig.work()
    assert rig.spill.failed
    on_disk = rig.spill.on_disk
    assert rig.destination.dropped == on_disk
    link = rig.connect()
    rig.stream(1011, 1020)
    rig.settle()
    missing = sorted(set(range(1, 1021)) - set(link.sequences))
    assert len(missing) == on_disk
    (note,) = [each for each in link.notes if each["reason"] == "overflow"]
    assert note["lost"] == [[missing[0], missing[-1]]]
    assert note["lost_total"] == on_disk
    assert link.sequences == sorted(link.sequences)
    again = SpillRig(tmp_path, rig.kill())
    late = again.connect()
    again.settle()
    assert set(missing) <= set(late.sequences), "they stayed on the disk"


def test_without_a_disk_the_oldest_give_way_in_memory(tmp_path: Path) -> None:
    rig = overflowing_rig(tmp_path)
    rig.files.fault = Fault(rig.files.calls + 1, "EIO", for_good=True)
    rig.stream(1001, 2000)
    rig.wait()
    rig.stream(2001, 2500)
    rig.begin(2501)
    rig.stream(2501, 2510)
    link = rig.connect()
    rig.settle()
    assert link.sequences[-1] == 2510
    assert link.sequences == sorted(link.sequences)
    assert rig.destination.queued_bytes_high <= QUEUE_BYTES


def test_what_is_on_a_failed_disk_is_announced_though_the_start_gives_way_behind_it(
    tmp_path: Path,
) -> None:
    rig = overflowing_rig(tmp_path)
    on_disk = rig.spill.on_disk
    rig.files.fault = Fault(rig.files.calls + 1, "EIO", for_good=True)
    rig.stream(1001, 1010)
    rig.wait()
    rig.work()
    assert rig.spill.failed
    rig.stream(1011, 1600)
    assert rig.destination.dropped > on_disk
    link = rig.connect()
    rig.settle()
    lost = [tuple(each) for note in link.notes if "lost" in note for each in note["lost"]]
    missing = set(range(1, 1601)) - set(link.sequences)
    assert len(missing) > on_disk
    assert all(any(first <= number <= last for first, last in lost) for number in missing)
    assert link.notes[-1]["lost_total"] == len(missing)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_what_was_read_back_from_a_disk_before_it_failed_is_not_announced_as_lost(
    tmp_path: Path, calls: int
) -> None:
    rig = overflowing_rig(tmp_path)
    on_disk = rig.spill.on_disk
    link = rig.connect(grants=0)
    while rig.spill.on_disk > on_disk // 2:
        link.grants = 100
        rig.confirm(100)
        rig.wait()
    rig.files.fault = Fault(rig.files.calls + calls, "EIO", for_good=True)
    link.grants = 1_000_000
    rig.stream(1001, 1010)
    rig.settle()
    assert rig.spill.failed
    rig.stream(1011, 1020)
    rig.settle()
    missing = sorted(set(range(1, 1021)) - set(link.sequences))
    assert missing
    (note,) = [each for each in link.notes if each["reason"] == "overflow"]
    assert note["lost"] == [[missing[0], missing[-1]]]
    assert note["lost_total"] == len(missing)
    notice_at = next(at for at, message in enumerate(link.sent) if b"overflow" in message.body)
    assert tag_of(link.sent[notice_at - 1])[3] == missing[0] - 1, "announced where it is missing"
    assert tag_of(link.sent[notice_at + 1])[3] == missing[-1] + 1


def test_of_an_epoch_that_is_over_a_failed_disk_has_lost_nothing_that_matters(
    tmp_path: Path,
) -> None:
    rig = overflowing_rig(tmp_path)
    rig.files.fault = Fault(rig.files.calls + 1, "EIO", for_good=True)
    rig.rig.control_event(RecordKind.RESET, sequence=1001, next_sequence=1)
    rig.stream(1, 10)
    rig.wait()
    rig.work()
    assert rig.spill.failed
    link = rig.connect()
    rig.settle()
    assert [note["reason"] for note in link.notes] == ["start", "reset"]
    assert link.sequences[-10:] == [*range(1, 11)]
    assert rig.destination.loss_trackers[104].lost_total == 0


def test_a_reset_that_a_failed_disk_has_is_told_though_its_announcement_gives_way(
    tmp_path: Path,
) -> None:
    rig = overflowing_rig(tmp_path)
    rig.rig.control_event(RecordKind.RESET, sequence=1001, next_sequence=1)
    rig.stream_for_long(100)
    rig.files.fault = Fault(rig.files.calls + 1, "EIO", for_good=True)
    rig.stream(101, 110)
    rig.wait()
    rig.work()
    assert rig.spill.failed
    rig.stream(111, 1500)
    link = rig.connect()
    rig.settle()
    assert [note["reason"] for note in link.notes][-2:] == ["reset", "overflow"]
    missing = sorted(set(range(1, 1501)) - set(link.sequences))
    assert link.notes[-1]["lost"] == [[missing[0], missing[-1]]]


def test_a_block_in_memory_gives_way_whole_where_the_disk_has_failed(tmp_path: Path) -> None:
    rig = SpillRig(tmp_path)
    rig.begin()
    rig.rig.block([packet(n) for n in range(1, 4)], 3)
    rig.files.fault = Fault(rig.files.calls + 1, "EIO", for_good=True)
    rig.wait()
    assert rig.spill.failed
    rig.stream(1, 900)
    assert rig.destination.dropped > 10
    link = rig.connect()
    rig.settle()
    assert not [message for message in link.sent if message.block_position is not None]
    assert not {"snapshot-begin", "snapshot-end"} & {note["reason"] for note in link.notes}
    assert link.notes[-1]["doubt"]


def test_a_quality_message_that_gives_way_counts_the_destinations_losses_once(
    tmp_path: Path,
) -> None:
    rig = SpillRig(tmp_path)
    rig.begin()
    link = rig.connect()
    rig.stream(1, 5)
    (number,) = [n for n, p in rig.destination.unsettled.held.items() if p.sequence == 3]
    outgoing = rig.destination.unsettled.come_back(number, Outcome.UNDELIVERABLE, rig.now_ns)
    link.unconfirmed.remove(number)
    rig.destination.abandon(outgoing)
    rig.settle()
    assert link.notes[-1]["lost_total"] == 1
    rig.disconnect()
    rig.rig.control_event(RecordKind.GAP, sequence=6, next_sequence=8)
    rig.rig.pump()
    rig.files.fault = Fault(rig.files.calls + 1, "EIO", for_good=True)
    rig.wait()
    assert rig.spill.failed
    rig.stream(8, 900)
    link = rig.connect()
    rig.settle()
    dropped = set(range(8, 901)) - set(link.sequences)
    note = link.notes[-1]
    assert (note["reason"], note["lost_total"]) == ("overflow", 1 + 2 + len(dropped))
    assert note["lost_ranges"] == 3


def test_what_the_broker_gives_up_is_announced_behind_what_waits_and_leaves_the_journal(
    rig,
) -> None:
    link = rig.connect()
    rig.stream(1, 5)
    rig.wait()
    (number,) = [n for n, p in rig.destination.unsettled.held.items() if p.sequence == 3]
    outgoing = rig.destination.unsettled.come_back(number, Outcome.UNDELIVERABLE, rig.now_ns)
    link.unconfirmed.remove(number)
    rig.destination.abandon(outgoing)
    rig.settle()
    assert rig.destination.abandoned == 1
    assert rig.disk.engine.statistics()["pending"] == 0
    assert rig.disk.engine.status(3) is Status.CANCELLED


def test_a_block_that_is_refused_is_refused_whole(tmp_path: Path) -> None:
    rig = overflowing_rig(tmp_path, settings=replace(SMALL, blocks_max=4))
    while rig.destination.dropped == 0:
        rig.stream(rig.rig.streams[0].next_sequence, rig.rig.streams[0].next_sequence)
    before = rig.destination.dropped
    rig.rig.block([packet(n) for n in range(1, 4)], 3)
    assert rig.destination.dropped >= before + 5
    link = rig.connect()
    rig.settle()
    rig.stream(5000, 5001)
    rig.settle()
    assert not [message for message in link.sent if message.block_position is not None]
    assert not [note for note in link.notes if note["reason"] == "snapshot-begin"]
    assert link.notes[-1]["doubt"]


def test_batches_are_closed_whether_the_broker_has_room_or_not(tmp_path: Path) -> None:
    rig = SpillRig(tmp_path, address="#?as=batch&quality=0")
    rig.begin()
    rig.stream(1, 10)
    assert not rig.destination.has_open_batch()
    assert rig.destination.front_bytes > 0


def test_quality_messages_are_whole_and_come_back_as_they_were(tmp_path: Path) -> None:
    rig = SpillRig(tmp_path)
    rig.begin()
    rig.stream(1, 3)
    rig.rig.control_event(RecordKind.GAP, sequence=4, next_sequence=6)
    rig.rig.pump()
    rig.wait()
    (data,) = [p.data for p in rig.destination.queue if p.reason == "gap"]
    again = SpillRig(tmp_path, rig.kill())
    link = again.connect()
    again.wait()
    again.settle()
    assert [frame for _, frame in link.frames if frame.endswith(data)]
    assert again.destination.oldest_ns == 0
    assert [note["reason"] for note in link.notes[:2]] == ["start", "gap"]


def test_the_age_of_the_oldest_is_known_over_a_restart(tmp_path: Path) -> None:
    rig = SpillRig(tmp_path, now_ns=5_000_000_000)
    rig.begin()
    rig.wait()
    again = SpillRig(tmp_path, rig.kill(), now_ns=9_000_000_000)
    again.wait()
    assert again.destination.oldest_ns == WALL_NS + 5_000_000_000
    again.connect()
    assert again.destination.oldest_ns == WALL_NS + 5_000_000_000, "unconfirmed"
    again.settle()
    assert again.destination.oldest_ns == 0


def test_a_message_too_large_for_the_room_that_news_of_a_loss_has_is_lost_as_well(
    rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rig.spill, "admit", lambda size, _: Where.DISK if size == 4096 else Where.NOWHERE
    )
    rig.stream(1, 3)
    assert (rig.destination.dropped, rig.destination.overflows) == (3, 1)
    assert rig.destination.lacking


def test_what_was_not_on_the_disk_yet_leaves_from_memory_after_all(rig) -> None:
    rig.frozen = True
    rig.stream(1, 300)
    assert rig.spill.state is State.SPILLING
    link = rig.connect()
    rig.confirm()
    assert link.sequences == [*range(1, 301)]
    assert rig.spill.state is State.MEMORY
    rig.frozen = False
    rig.settle()
    assert rig.spill.drained == 0


def test_a_disk_that_fails_with_nothing_on_it_alone_loses_nothing(rig) -> None:
    rig.frozen = True
    rig.stream(1, 300)
    rig.files.fault = Fault(rig.files.calls + 1, "ENOSPC", for_good=True)
    rig.frozen = False
    rig.wait()
    assert rig.spill.failed
    link = rig.connect()
    rig.confirm()
    assert link.sequences == [*range(1, 301)]
    assert rig.destination.dropped == 0


def test_the_journal_is_not_asked_while_it_is_looked_after(rig) -> None:
    link = rig.connect()
    rig.destination.attended = True
    rig.now_ns += 10 * WAIT_NS
    rig.stream(1, 3)
    rig.now_ns += 10 * WAIT_NS
    rig.stream(4, 5)
    link.confirmed.append(999)
    rig.confirm(1)
    assert rig.job is None
    rig.destination.attended = False
    rig.stream(6, 6)
    assert rig.job is not None


def test_a_full_way_is_reported_once_and_taken_again_when_half_is_free(tmp_path: Path) -> None:
    rig = SpillRig(tmp_path)
    rig.begin()
    rig.frozen = True
    rig.stream(1, 1000)
    assert rig.destination.overflowing
    assert rig.destination.overflows == 1
    rig.stream(1001, 1100)
    assert rig.destination.overflows == 1
    rig.frozen = False
    for _ in range(5):
        rig.wait()
    rig.stream(1101, 1101)
    assert not rig.destination.overflowing
    assert not rig.destination.lacking
    link = rig.connect()
    rig.settle()
    assert link.sequences[-1] == 1101
    assert [note["reason"] for note in link.notes] == ["start", "overflow"]


def test_a_failed_disk_leaves_a_doubt_of_blocks_and_drops_services_of_before(
    tmp_path: Path,
) -> None:
    before = SpillRig(tmp_path, services=(104, 105))
    before.begin(channel=1)
    before.stream(1, 300, 1)
    for _ in range(10):
        before.wait()
    rig = SpillRig(tmp_path, before.kill(), services=(104, 106))
    rig.begin(channel=1)
    rig.wait()
    rig.work()
    rig.begin()
    rig.rig.block([packet(n) for n in range(1, 4)], 3)
    rig.stream(1, 50)
    for _ in range(5):
        rig.wait()
    assert rig.spill.on_disk
    rig.files.fault = Fault(rig.files.calls + 1, "EIO", for_good=True)
    for sequence in range(51, 61):
        rig.stream(sequence, sequence)
        rig.wait(30 * WAIT_NS)
    assert rig.spill.failed
    dropped = rig.destination.dropped
    rig.stream(61, 900)
    assert rig.destination.dropped > dropped + 100, "the oldest, those of the run before, too"
    link = rig.connect()
    rig.settle()
    assert link.sequences[-1] == 900
    assert "overflow" in [note["reason"] for note in link.notes]
    assert any(note["doubt"] for note in link.notes)
