"""The small parts of ingest: counters, tables, fingerprints."""

import pytest

from feedhandler.codecs.kinds import Reject
from feedhandler.counters import ChannelCounter, LineCounter, as_dict, counter_array
from feedhandler.ingest import columns, fingerprint
from feedhandler.ingest.settings import ArbitrationSettings
from feedhandler.ingest.states import TABLE, Action, Input, State, flat_table
from tests.support.ingest import TWINS, Channel, _interpreted_stack


def test_every_reject_reason_has_its_line_counter_in_order():
    for reason in Reject:
        if reason:
            assert LineCounter[reason.name] == columns.LINE_TRUNCATED + reason - 1


@pytest.mark.parametrize("scope", [LineCounter, ChannelCounter])
def test_counters_have_a_meaning_and_fill_their_columns(scope):
    assert [int(member) for member in scope] == list(range(len(scope)))
    assert all(member.meaning for member in scope)
    row = counter_array(scope, 1)[0]
    row[:] = range(len(scope))
    assert as_dict(scope, row) == {member.name.lower(): int(member) for member in scope}


def test_the_table_answers_every_input_in_every_state():
    assert {state: set(row) for state, row in TABLE.items()} == {
        state: set(Input) for state in State
    }
    assert len(flat_table()) == len(State) * len(Input)
    assert {action for row in TABLE.values() for action in row.values()} == set(Action)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("what", Input)
def test_each_state_meets_each_input(twin, state, what):
    """The channel does what the state table says, judged by its verdict afterwards."""
    channel = Channel(twin)
    numbers = {Input.OLD: 2, Input.NEXT: 4, Input.AHEAD: 6, Input.JUMP: 1000}
    if state == State.JOINING:
        numbers[Input.NEXT] = 1
    else:
        channel.data(0, 1, 2, 3)
    if state == State.WAITING:
        channel.data(0, 9)
    if state in (State.BLOCKED, State.RESETTING):
        channel.reading = False
        while channel.ring.put(6):
            pass
    if state == State.BLOCKED:
        channel.data(0, 9)
        channel.wait(10)
    if state == State.RESETTING:
        channel.reset(0)
    assert channel.arbiter.state_name == state.name
    if what >= Input.HEARTBEAT_OLD:
        number = numbers[Input(what - Input.HEARTBEAT_OLD)]
        verdict = channel.heartbeat(1, number)
    else:
        verdict = channel.data(1, numbers[what])[0]
    expected = {
        Action.NOTHING: {"HEARD"}, Action.AGREE: {"HEARD"}, Action.REVEAL: {"HEARD"},
        Action.HINT: {"HEARD"}, Action.START: {"PUBLISHED", "HEARD"}, Action.PUBLISH: {"PUBLISHED"},
        Action.HOLD: {"HELD"}, Action.DROP: {"DUPLICATE"}, Action.QUARANTINE: {"QUARANTINED"},
        Action.REFUSE: {"REFUSED"},
    }  # fmt: skip
    assert verdict.name in expected[TABLE[state][what]]


def whole(data, module=fingerprint):
    """The fingerprint of all of it."""
    return module.fingerprint(memoryview(data), 0, len(data))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 31, 32, 33, 64, 100, 336])
def test_fingerprints_agree_between_twins_and_tell_any_changed_bit(size):
    (twin,) = _interpreted_stack("fingerprint")
    data = bytes((7 * i + size) % 251 for i in range(size))
    ours = whole(data)
    assert ours == whole(data, twin)
    changed = {ours}
    for bit in range(8 * size):
        other = bytearray(data)
        other[bit // 8] ^= 1 << bit % 8
        changed.add(whole(bytes(other)))
    assert len(changed) == 8 * size + 1
    assert whole(data + b"\0") != ours


def test_swapped_words_and_paired_top_bits_change_the_fingerprint():
    data = bytearray(range(128))
    seen = {whole(bytes(data))}
    data[:8], data[32:40] = data[32:40], data[:8]
    seen.add(whole(bytes(data)))
    data[7] ^= 0x80
    data[39] ^= 0x80
    seen.add(whole(bytes(data)))
    assert len(seen) == 3


def test_windows_are_sized_in_the_feeds_own_numbers():
    settings = ArbitrationSettings(hold_packets=100, compare_packets=10)
    assert settings.jump_numbers(False) == 200
    assert settings.jump_numbers(True) == 6400
    assert ArbitrationSettings(max_jump=7).jump_numbers(True) == 7
    assert (settings.compare_numbers(False), settings.compare_numbers(True)) == (10, 160)
