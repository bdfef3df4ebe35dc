"""A destination with a journal: order, bound, what survives, what is told."""

from dataclasses import replace
from pathlib import Path

import pytest
from spill_kit import QUEUE_BYTES, SMALL, SpillRig, tag_of

from feedhandler.amqp.publishing.spill import State


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
    last = 3000
    for sequence in range(1, last + 1):
        rig.stream(sequence, sequence)
        if sequence % 20 == 0:
            rig.wait()
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
    for sequence in range(1, 1001):
        rig.stream(sequence, sequence)
        if sequence % 20 == 0:
            rig.wait()
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
    for sequence in range(1, 3001):
        rig.stream(sequence, sequence)
        if sequence % 20 == 0:
            rig.wait()
    assert rig.spill.stalled
    assert rig.destination.dropped > 500
    assert rig.destination.overflows == 1
    link = rig.connect()
    rig.settle()
    rig.stream(3001, 3010)
    rig.settle()
    came = link.sequences
    missing = sorted(set(range(1, 3011)) - set(came))
    assert came == sorted(came)
    assert missing == [*range(missing[0], 3001)]
    (note,) = [each for each in link.notes if each["reason"] == "overflow"]
    assert note["lost"] == [[missing[0], missing[-1]]]
    numbers = [tag_of(message)[3] for message in link.sent]
    told = next(at for at, message in enumerate(link.sent) if b"overflow" in message.body)
    assert max(numbers[:told]) < missing[0], "told where it is missing"
    assert numbers[told + 1] == 3001
