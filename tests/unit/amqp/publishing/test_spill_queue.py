"""The spill's states, its bounds, and the bytes of a message in the journal."""

from pathlib import Path

import pytest

from feedhandler.amqp.framing import BODY_HEAD
from feedhandler.amqp.publishing.spill_disk import SpillDisk
from feedhandler.amqp.publishing.spill_items import pack_item, parse_item
from feedhandler.amqp.publishing.spill_queue import (
    LATE_NS,
    STALL_NS,
    TABLE,
    Bounds,
    Input,
    Job,
    Result,
    SpillQueue,
    State,
    Where,
    bounds_of,
)
from feedhandler.amqp.queueing.unsettled_map import WHOLE, OutgoingMessage
from feedhandler.codecs.errors import ConfigError
from tests.support.spill import SMALL, WAIT_NS, SpillRig

MEMORY, SPILLING, DRAINING, FAILED = State


def message(number: int, size: int = 100, **more: object) -> OutgoingMessage:
    return OutgoingMessage(b"x" * size, 104, number, number + 1, key="euronext.104", **more)


@pytest.fixture
def spill() -> SpillQueue:
    """Room for ten messages of a hundred bytes in front, for five unwritten."""
    return SpillQueue(Bounds(front=1700, unwritten=900, slack=400, job=820), WAIT_NS)


def test_every_state_knows_every_input() -> None:
    assert {state: set(row) for state, row in TABLE.items()} == {s: set(Input) for s in State}
    reached = {next_state for row in TABLE.values() for next_state in row.values()}
    assert reached == set(State)


@pytest.mark.parametrize(
    ("state", "what", "then"),
    [
        (MEMORY, Input.FOUND, DRAINING),
        (MEMORY, Input.CROWDED, SPILLING),
        (MEMORY, Input.ROOM, MEMORY),
        (MEMORY, Input.LEVEL, MEMORY),
        (SPILLING, Input.FOUND, SPILLING),
        (SPILLING, Input.CROWDED, SPILLING),
        (SPILLING, Input.ROOM, DRAINING),
        (SPILLING, Input.LEVEL, MEMORY),
        (DRAINING, Input.FOUND, DRAINING),
        (DRAINING, Input.CROWDED, SPILLING),
        (DRAINING, Input.ROOM, DRAINING),
        (DRAINING, Input.LEVEL, MEMORY),
        *((state, Input.FAULT, FAILED) for state in State),
        *((FAILED, what, FAILED) for what in Input),
    ],
)
def test_what_leads_from_one_state_to_another(state: State, what: Input, then: State) -> None:
    assert TABLE[state][what] is then


@pytest.mark.parametrize("queue_bytes", [1 << 21, 64 << 20, 1 << 32])
def test_the_shares_are_no_more_than_the_bound(queue_bytes: int) -> None:
    bounds = bounds_of(queue_bytes)
    written_and_ended = 2 * bounds.job
    assert bounds.front + bounds.unwritten + bounds.slack + written_and_ended <= queue_bytes


@pytest.mark.parametrize(
    "outgoing",
    [
        message(7),
        message(1 << 63 | 5, block=True),
        message(7, reason="overflow"),
        OutgoingMessage(b"\0", 65_535, 0, 0, False, "é" * 20, "k" * 300),
    ],
)
def test_a_message_comes_back_from_the_journal_as_it_was(outgoing: OutgoingMessage) -> None:
    outgoing.came_ns = 1_795_000_000_000_000_001
    again = parse_item(pack_item(outgoing))
    assert again is not None
    for name in ("data", "service", "sequence", "following", "block", "reason", "key", "came_ns"):
        assert getattr(again, name) == getattr(outgoing, name), name
    assert again.number_at == (WHOLE if outgoing.reason else 0), "it is not made whole again"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"8=FIX.4.2\x019=178\x0135=D\x0149=TRADER\x0156=EXCHANGE\x01",
        pack_item(message(7))[:40],
        b"\2" + pack_item(message(7))[1:],
        b"\1\2" + pack_item(message(7))[2:],
        pack_item(message(7)).replace(b"euronext", b"euro\xff\xffxt"),
    ],
)
def test_what_is_no_message_of_a_gateway_is_told_apart(content: bytes) -> None:
    assert parse_item(content) is None


def fill(spill: SpillQueue, first: int, last: int, front_bytes: int = 0) -> list[Where]:
    """Messages come; where each went. Those in front stay there."""
    admitted = []
    for number in range(first, last + 1):
        outgoing = message(number)
        where = spill.admit(100, front_bytes)
        if where is not Where.NOWHERE:
            spill.add(outgoing, where, 0)
        front_bytes += 164 if where is Where.FRONT else 0
        admitted.append(where)
    return admitted


def test_messages_gather_for_their_time_and_are_written_together(spill: SpillQueue) -> None:
    assert spill.settled
    assert spill.next_job(0, 0) is None
    fill(spill, 1, 3)
    assert spill.due_ns == WAIT_NS
    assert spill.next_job(WAIT_NS - 1, 0) is None
    job = spill.next_job(WAIT_NS, 0)
    assert [outgoing.sequence for outgoing in job.messages] == [1, 2, 3]
    assert spill.due_ns is None, "one job at a time"
    assert spill.next_job(WAIT_NS, 0) is None
    assert spill.done(Result(first_id=5, durable_id=7), WAIT_NS, 0) == []
    assert [outgoing.item for outgoing in job.messages] == [5, 6, 7]
    assert spill.settled


def test_a_job_takes_no_more_than_its_bound_and_the_next_one_is_due_at_once(
    spill: SpillQueue,
) -> None:
    fill(spill, 1, 8)
    job = spill.next_job(WAIT_NS, 0)
    assert len(job.messages) == 5
    spill.done(Result(first_id=1, durable_id=5), WAIT_NS, 0)
    assert spill.due_ns == WAIT_NS
    assert len(spill.next_job(WAIT_NS, 0).messages) == 3


def test_what_ended_before_it_was_written_is_left_out_and_let_go(spill: SpillQueue) -> None:
    messages = [message(number) for number in range(1, 9)]
    for outgoing in messages:
        spill.add(outgoing, Where.FRONT, 0)
        if outgoing.sequence < 6:
            spill.end(outgoing, 0)
    assert spill.extra_bytes <= 820
    assert len(spill._unwritten) < 8, "what ended takes no more than its slack"
    job = spill.next_job(WAIT_NS, 0)
    assert [outgoing.sequence for outgoing in job.messages] == [6, 7, 8]


def test_what_ends_while_it_is_written_is_marked_afterwards(spill: SpillQueue) -> None:
    fill(spill, 1, 2)
    job = spill.next_job(WAIT_NS, 0)
    spill.end(job.messages[0], WAIT_NS)
    spill.end(job.messages[1], WAIT_NS, given_up=True)
    spill.done(Result(first_id=1, durable_id=2), WAIT_NS, 0)
    assert spill.next_job(2 * WAIT_NS, 0).ended == [1, 2]


def test_what_ends_afterwards_is_marked_for_what_it_was(spill: SpillQueue) -> None:
    fill(spill, 1, 2)
    job = spill.next_job(WAIT_NS, 0)
    spill.done(Result(first_id=1, durable_id=2), WAIT_NS, 0)
    spill.end(job.messages[0], WAIT_NS)
    spill.end(job.messages[1], WAIT_NS, given_up=True)
    job = spill.next_job(2 * WAIT_NS, 0)
    assert (job.ended, job.given_up) == ([1], [2])


def test_a_full_front_lets_messages_go_to_disk_and_a_full_way_refuses_them(
    spill: SpillQueue,
) -> None:
    admitted = fill(spill, 1, 20)
    assert admitted[:11] == [Where.FRONT] * 10 + [Where.DISK]
    assert admitted.count(Where.DISK) == 5
    assert admitted[15:] == [Where.NOWHERE] * 5
    assert spill.refusing
    assert spill.state is SPILLING
    front = 10 * 164
    job = spill.next_job(WAIT_NS, front)
    spill.done(Result(first_id=1, durable_id=5), WAIT_NS, front)
    assert spill.on_disk == 0, "those were in front, too"
    for first_id in (6, 11):
        job = spill.next_job(2 * WAIT_NS, front)
        spill.done(Result(first_id=first_id, durable_id=first_id + 4), WAIT_NS, front)
    assert job is not None
    assert spill.on_disk == 5
    assert spill.admit(100, front) is Where.DISK
    assert not spill.refusing


def test_a_message_larger_than_half_the_way_is_taken_once_the_way_is_free(
    spill: SpillQueue,
) -> None:
    fill(spill, 1, 20)
    spill._only_bytes = 0
    assert spill.refusing
    assert spill.admit(800, 1640) is Where.DISK


def test_a_journal_without_room_is_tried_again_after_a_while(spill: SpillQueue) -> None:
    fill(spill, 1, 2)
    spill.next_job(WAIT_NS, 0)
    spill.done(Result(first_id=1, durable_id=0), WAIT_NS, 0)
    assert spill.stalled
    assert not spill.settled
    assert spill.unwritten == 2
    fill(spill, 3, 3)
    assert spill.due_ns == WAIT_NS + STALL_NS
    job = spill.next_job(WAIT_NS + STALL_NS, 0)
    assert job.contents == [], "what the journal has not taken is still with it"
    spill.done(Result(durable_id=2), WAIT_NS + STALL_NS, 0)
    assert not spill.stalled
    assert [p.sequence for p in spill.next_job(2 * STALL_NS, 0).messages] == [3]


def test_a_disk_that_takes_long_is_counted(spill: SpillQueue) -> None:
    fill(spill, 1, 3)
    spill.next_job(WAIT_NS, 0)
    spill.done(Result(first_id=1, durable_id=3), LATE_NS + 1, 0)
    assert spill.late == 3


def test_what_is_on_the_disk_is_read_back_as_soon_as_half_of_front_is_free(
    spill: SpillQueue,
) -> None:
    spill.find(3, 0)
    assert spill.state is DRAINING
    assert spill.poll(1700, 0) == []
    assert spill.state is SPILLING, "front is full"
    assert spill.next_job(0, 1700) is None
    assert spill.poll(851, 0) == []
    assert spill.state is SPILLING
    assert spill.poll(850, 0) == []
    assert spill.state is DRAINING
    job = spill.next_job(0, 850)
    assert (job.after, job.read_bytes) == (0, 820)
    items = [(number, pack_item(message(number))) for number in (1, 2)]
    found = spill.done(Result(items), 0, 850)
    assert [outgoing.item for outgoing in found] == [1, 2]
    assert spill.poll(0, 0) == []
    job = spill.next_job(0, 0)
    assert job.after == 2
    found = spill.done(Result([(4, b"nonsense"), (5, pack_item(message(5)))], True), 0, 0)
    assert [outgoing.item for outgoing in found] == [5]
    assert (spill.state, spill.damaged, spill.drained) == (MEMORY, 1, 3)
    assert spill.next_job(WAIT_NS, 0).given_up == [4]


def test_what_is_still_in_memory_joins_front_without_the_disk(spill: SpillQueue) -> None:
    fill(spill, 1, 13)
    assert [outgoing.sequence for outgoing in spill.poll(0, 0)] == [11, 12, 13]
    assert spill.state is MEMORY
    assert not spill.disk_only


def test_what_does_not_fit_into_front_waits_for_the_disk(spill: SpillQueue) -> None:
    fill(spill, 1, 13)
    spill._step(Input.ROOM, 0)
    assert spill.poll(1300, 0) == []
    assert spill.state is DRAINING


def gap(first: int, last: int) -> OutgoingMessage:
    """A quality message, encoded already."""
    body = b'{"reason":"gap","lost":[[%d,%d]]}' % (first, last)
    data = BODY_HEAD + len(body).to_bytes(4, "big") + body
    outgoing = OutgoingMessage(data, 104, last + 1, last + 1, key="euronext.104", reason="gap")
    outgoing.number_at = WHOLE
    return outgoing


def write(spill: SpillQueue, *messages: OutgoingMessage) -> None:
    """Have these written to the disk alone."""
    for outgoing in messages:
        spill.add(outgoing, Where.DISK, 0)
        spill.next_job(WAIT_NS, 1700)
        spill.done(Result(first_id=1, durable_id=1), WAIT_NS, 1700)


def test_holes_know_packets_from_blocks_and_quality_messages(spill: SpillQueue) -> None:
    write(spill, message(9), message(7), message(1 << 63 | 5, block=True), gap(8, 8))
    (missed,) = spill.disk_only.values()
    assert (list(missed.packets), missed.blocks, missed.messages) == ([(7, 7), (9, 9)], 1, 4)
    assert list(missed.told) == [(8, 8)]
    reset = message(1, reason="reset")
    write(spill, reset, message(2))
    (missed,) = spill.disk_only.values()
    assert (list(missed.packets), missed.blocks, missed.messages) == ([(2, 2)], 0, 6)
    assert (missed.epoch_began, missed.epochs) == (reset.body, 1), "numbers begin anew"
    assert not missed.told


def test_holes_lack_what_is_not_on_the_disk_yet_and_what_was_read_back(spill: SpillQueue) -> None:
    before = [message(4), message(1 << 63 | 5, block=True)]
    after = [message(1, reason="reset"), message(4), gap(5, 6), message(1 << 63 | 5, block=True)]
    write(spill, *before, *after)
    spill.add(message(7), Where.DISK, 0)
    (missed,) = spill.disk_only.values()
    left = []
    for number, outgoing in enumerate([*before, *after], 1):
        spill.in_flight = Job(read_bytes=820)
        spill.done(Result([(number, pack_item(outgoing))]), 0, 1700)
        ranges = [*missed.packets], [*missed.told]
        left.append((missed.messages, missed.epochs, *ranges, missed.blocks))
    assert left == [
        (5, 1, [(4, 4)], [(5, 6)], 1),
        (4, 1, [(4, 4)], [(5, 6)], 1),
        (3, 0, [(4, 4)], [(5, 6)], 1),
        (2, 0, [], [(5, 6)], 1),
        (1, 0, [], [], 1),
        (0, 0, [], [], 0),
    ]


def test_what_the_run_before_left_on_the_disk_belongs_to_no_hole(spill: SpillQueue) -> None:
    spill.find(2, 0)
    write(spill, message(1, reason="start"), message(1), message(2))
    (missed,) = spill.disk_only.values()
    for number, outgoing in enumerate((message(1, reason="start"), message(1)), 1):
        spill.in_flight = Job(read_bytes=820)
        spill.done(Result([(number, pack_item(outgoing))]), 0, 1700)
    assert (missed.messages, missed.epochs, list(missed.packets)) == (3, 1, [(1, 2)])


def test_a_disk_that_fails_gives_back_what_it_has_not_got(spill: SpillQueue) -> None:
    fill(spill, 1, 12)
    spill.next_job(WAIT_NS, 1640)
    kept = spill.done(Result(error="no disk"), WAIT_NS, 1640)
    assert [outgoing.sequence for outgoing in kept] == [11, 12]
    assert spill.failed
    assert spill.settled
    assert fill(spill, 13, 40, 10_000) == [Where.FRONT] * 28, "the destination's own bound counts"
    spill.end(kept[0], 0)
    assert spill.next_job(10 * WAIT_NS, 0) is None
    assert spill.due_ns is None


def test_a_job_is_answered_whatever_becomes_of_it(tmp_path: Path) -> None:
    disk = SpillDisk(tmp_path, SMALL, 8192)
    assert disk.carry_out(Job(contents=[b"a", b"b"])) == Result(first_id=1, durable_id=2)
    disk.engine._files.pread = None  # type: ignore[assignment, method-assign]
    disk.engine.stop(OSError(5, "Input/output error"))
    result = disk.carry_out(Job(contents=[b"c"]))
    assert "disk failed: Input/output error" in result.error
    assert result.durable_id == 2
    disk.close()


def test_another_queues_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    disk = SpillDisk(tmp_path, SMALL, 8192)
    disk.carry_out(Job(contents=[b"an order"]))
    disk.close()
    for _ in range(2):
        with pytest.raises(ConfigError, match="something else than a gateway's messages"):
            SpillDisk(tmp_path, SMALL, 8192)


def test_messages_of_a_service_that_is_published_no_more_are_sent_all_the_same(
    tmp_path: Path,
) -> None:
    before = SpillRig(tmp_path, services=(104, 105), address="#?quality=0")
    before.begin()
    before.stream(1, 5, 1)
    before.wait()
    after = SpillRig(tmp_path, before.kill(), services=(104,), address="#?quality=0")
    link = after.connect()
    after.wait()
    assert link.sequences == [*range(1, 6)]
    (number, *_) = after.destination.unsettled.held
    after.destination.abandon(after.destination.unsettled.held[number])
    after.settle()
    assert after.destination.abandoned == 1
