"""Quality of a stream as subscribers learn it: the table, pair by pair, and the messages."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from feedhandler.ingest.records import RecordKind
from feedhandler.retrans.quality import (
    RANGES_IN_CHANGE_MAX,
    RANGES_REPORTED_MAX,
    TABLE,
    Input,
    Quality,
    QualityState,
    State,
)
from feedhandler.retrans.ranges import RANGES_MAX
from tests.support.checkout import CHECKOUT

Step = Callable[[QualityState], bytes]


def control_event(kind: RecordKind, line: int, sequence: int, next_sequence: int) -> Step:
    return lambda quality: quality.control_event(kind, line, sequence, next_sequence)


START, GAP = control_event(RecordKind.START, 0, 10, 10), control_event(RecordKind.GAP, 0, 12, 14)
SILENT = [control_event(RecordKind.LINE_SILENT, line, 10, 10) for line in (0, 1)]


def missing(quality: QualityState) -> bytes:
    return quality.recovering([(16, 19)], 16)


def snapshot_begin(quality: QualityState) -> bytes:
    return quality.snapshot_begin(13, 40)


def snapshot_end(quality: QualityState) -> bytes:
    quality.snapshot_begin(13, 40)
    return quality.snapshot_end(14)


#: Steps that bring a fresh service of two lines into each state.
ROADS: dict[State, list[Step]] = {
    State.WAITING: [],
    State.OK: [START],
    State.RECOVERING: [START, missing],
    State.REFRESHED: [START, GAP, snapshot_end],
    State.STALE: [START, GAP],
    State.SILENT: [START, *SILENT],
}
#: Steps that are each input in any of those states.
STEPS: dict[Input, list[Step]] = {
    Input.START: [control_event(RecordKind.START, 0, 20, 20)],
    Input.GAP: [control_event(RecordKind.GAP, 0, 20, 22)],
    Input.RESET: [control_event(RecordKind.RESET, 0, 0, 1)],
    Input.ALL_SILENT: [control_event(RecordKind.LINE_SILENT, line, 20, 20) for line in (0, 1)],
    Input.SOME_BACK: [control_event(RecordKind.LINE_BACK, 0, 20, 20)],
    Input.MISMATCH: [control_event(RecordKind.MISMATCH, 1, 20, 21)],
    Input.MISSING: [missing],
    Input.RECOVERED: [lambda quality: quality.recovered(19)],
    Input.SNAPSHOT_BEGIN: [snapshot_begin],
    Input.SNAPSHOT_END: [snapshot_end],
    Input.DOUBT: [lambda quality: quality.stale("overflow")],
    Input.WITHDRAWN: [control_event(RecordKind.WITHDRAWN, 0, 14, 12)],
}
#: What each input leads to, in the order of `Input`, from each state.
EXPECTED: dict[State, str] = {
    State.WAITING: "OK STALE OK WAITING WAITING WAITING RECOVERING WAITING WAITING OK STALE "
    "WAITING",
    State.OK: "OK STALE OK SILENT OK OK RECOVERING OK OK OK STALE STALE",
    State.RECOVERING: "OK STALE OK SILENT RECOVERING RECOVERING RECOVERING OK RECOVERING "
    "RECOVERING STALE STALE",
    State.REFRESHED: "OK STALE OK SILENT REFRESHED REFRESHED RECOVERING REFRESHED REFRESHED "
    "REFRESHED STALE OK",
    State.STALE: "OK STALE OK SILENT STALE STALE STALE STALE STALE REFRESHED STALE OK",
    State.SILENT: "OK SILENT SILENT SILENT OK SILENT SILENT SILENT SILENT SILENT SILENT SILENT",
}


def in_state(state: State) -> QualityState:
    quality = QualityState(104, ["A", "B"])
    for step in ROADS[state]:
        step(quality)
    assert quality.state is state
    return quality


def test_the_table_has_every_pair_and_no_other() -> None:
    assert set(TABLE) == {(state, happened) for state in State for happened in Input}


@pytest.mark.parametrize("happened", Input)
@pytest.mark.parametrize("state", State)
def test_every_input_in_every_state_leads_where_it_should(state: State, happened: Input) -> None:
    quality = in_state(state)
    body = b""
    for step in STEPS[happened]:
        body = step(quality)
    expected = dict(zip(Input, EXPECTED[state].split(), strict=True))[happened]
    assert quality.state.value == expected
    assert json.loads(body)["state"] == expected
    assert json.loads(quality.attached())["state"] == expected


def test_after_silence_a_service_is_as_complete_as_it_was() -> None:
    quality = in_state(State.STALE)
    quality.control_event(RecordKind.LINE_SILENT, 0, 14, 14)
    assert quality.state is State.STALE, "one line still speaks"
    quality.control_event(RecordKind.LINE_SILENT, 1, 14, 14)
    assert quality.state is State.SILENT
    quality.control_event(RecordKind.LINE_BACK, 1, 14, 14)
    assert quality.state is State.STALE


def test_a_service_that_never_spoke_waits_again_after_silence() -> None:
    quality = QualityState(104, ["A"])
    quality.control_event(RecordKind.LINE_SILENT, 0, 0, 0)
    quality.control_event(RecordKind.LINE_BACK, 0, 0, 0)
    assert quality.state is State.WAITING


def test_a_new_epoch_forgets_what_was_lost_before() -> None:
    quality = in_state(State.STALE)
    body = json.loads(quality.control_event(RecordKind.RESET, 0, 0, 1))
    assert body == {
        "state": "OK",
        "reason": "reset",
        "service": 104,
        "since": 1,
        "next": 1,
        "missing": [],
        "stale": [],
        "doubt": None,
        "lost_ranges": 0,
        "lost_total": 0,
        "silent": [],
    }


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ((RecordKind.START, 0, 30, 30), {"reason": "start", "since": 30, "next": 30}),
        (
            (RecordKind.GAP, 0, 20, 25),
            {"reason": "gap", "lost": [[20, 24]], "next": 25, "lost_ranges": 1, "lost_total": 5},
        ),
        (
            (RecordKind.LINE_SILENT, 1, 17, 17),
            {"reason": "silent", "line": "B", "silent": ["B"], "next": 17},
        ),
        ((RecordKind.LINE_BACK, 0, 17, 17), {"reason": "back", "line": "A", "silent": []}),
        ((RecordKind.MISMATCH, 0, 16, 17), {"reason": "mismatch", "line": "A", "sequence": 16}),
    ],
)
def test_each_control_event_says_what_happened(
    event: tuple[RecordKind, int, int, int], expected: dict[str, Any]
) -> None:
    body = json.loads(in_state(State.OK).control_event(*event))
    assert expected.items() <= body.items()
    assert body["service"] == 104


def test_a_new_link_is_told_the_state_and_all_known_lost_ranges() -> None:
    quality = in_state(State.OK)
    for first, after in ((20, 22), (30, 31), (31, 35)):
        quality.control_event(RecordKind.GAP, 0, first, after)
    assert json.loads(quality.attached(40)) == {
        "state": "STALE",
        "reason": "attached",
        "service": 104,
        "since": 10,
        "next": 40,
        "missing": [],
        "stale": [[20, 21], [30, 34]],
        "doubt": None,
        "lost": [[20, 21], [30, 34]],
        "refreshed": [],
        "lost_ranges": 3,
        "lost_total": 7,
        "silent": [],
    }


def test_a_new_link_is_told_the_latest_ranges_only_and_how_many_there_were() -> None:
    quality = in_state(State.OK)
    for n in range(RANGES_REPORTED_MAX + 50):
        quality.control_event(RecordKind.GAP, 0, 100 + 10 * n, 101 + 10 * n)
    body = json.loads(quality.attached())
    assert len(body["lost"]) == RANGES_REPORTED_MAX
    assert body["lost"][-1] == [100 + 10 * (RANGES_REPORTED_MAX + 49)] * 2
    assert body["lost_ranges"] == RANGES_REPORTED_MAX + 50


def test_a_message_of_a_change_has_what_changed_and_few_other_ranges() -> None:
    quality = in_state(State.OK)
    for n in range(RANGES_REPORTED_MAX):
        body = json.loads(quality.control_event(RecordKind.GAP, 0, 100 + 10 * n, 101 + 10 * n))
    last = 100 + 10 * (RANGES_REPORTED_MAX - 1)
    assert body["lost"] == [[last, last]]
    assert len(body["stale"]) == RANGES_IN_CHANGE_MAX
    assert body["stale"][-1] == [last, last]
    assert body["lost_ranges"] == RANGES_REPORTED_MAX
    missing = [(first, first + 1) for first in range(5000, 6000, 10)]
    body = json.loads(quality.recovering(missing, 6000))
    assert body["missing"] == [[5990 - 10 * n] * 2 for n in reversed(range(RANGES_IN_CHANGE_MAX))]
    body = json.loads(quality.snapshot_begin(4000, 1))
    assert (len(body["missing"]), len(body["stale"])) == (len(missing), RANGES_REPORTED_MAX)


def test_a_link_before_the_start_is_told_that_nothing_came_yet() -> None:
    body = json.loads(QualityState(104, ["A", "B"]).attached())
    assert (body["state"], body["since"], body["next"]) == ("WAITING", None, None)


# -- what recovery reports ----------------------------------------------------------------------


def test_ranges_that_are_asked_for_are_listed_until_they_are_there() -> None:
    quality = in_state(State.OK)
    body = json.loads(quality.recovering([(20, 22), (30, 31)], 20))
    assert (body["state"], body["reason"], body["next"]) == ("RECOVERING", "missing", 20)
    assert body["missing"] == [[20, 21], [30, 30]]
    body = json.loads(quality.recovering([(30, 31)], 30))
    assert body["missing"] == [[30, 30]]
    assert json.loads(quality.attached())["missing"] == [[30, 30]]
    body = json.loads(quality.recovered(31))
    assert (body["state"], body["reason"], body["next"]) == ("OK", "recovered", 31)
    assert body["missing"] == []


def test_nothing_missing_is_as_good_as_recovered() -> None:
    quality = in_state(State.RECOVERING)
    assert json.loads(quality.recovering([], 19))["reason"] == "recovered"
    assert quality.state is State.OK


def test_what_is_given_up_is_lost_and_no_longer_missing() -> None:
    quality = in_state(State.OK)
    quality.recovering([(20, 30), (40, 41)], 20)
    body = json.loads(quality.control_event(RecordKind.GAP, 0, 20, 25))
    assert (body["state"], body["lost"]) == ("STALE", [[20, 24]])
    assert (body["stale"], body["missing"]) == ([[20, 24]], [[25, 29], [40, 40]])
    body = json.loads(quality.recovered(41))
    assert (body["state"], body["stale"], body["missing"]) == ("STALE", [[20, 24]], [])


def test_a_stale_service_that_recovers_something_else_tells_of_both() -> None:
    quality = in_state(State.STALE)
    body = json.loads(quality.recovering([(20, 21)], 20))
    assert (body["state"], body["stale"], body["missing"]) == ("STALE", [[12, 13]], [[20, 20]])
    body = json.loads(quality.snapshot_begin(19, 3))
    assert (body["state"], body["last"], body["packets"]) == ("STALE", 19, 3)
    body = json.loads(quality.snapshot_end(20))
    assert (body["state"], body["stale"], body["missing"]) == ("RECOVERING", [], [[20, 20]])
    assert (body["refreshed"], body["last"], body["next"]) == ([[12, 13]], 19, 20)
    assert json.loads(quality.recovered(21))["state"] == "REFRESHED"


def test_a_snapshot_makes_good_what_was_lost_up_to_its_last_number_only() -> None:
    quality = in_state(State.OK)
    for first, after in ((20, 22), (30, 35), (40, 41)):
        quality.control_event(RecordKind.GAP, 0, first, after)
    quality.snapshot_begin(31, 1)
    body = json.loads(quality.snapshot_end(50))
    assert body["state"] == "STALE"
    assert body["refreshed"] == [[20, 21], [30, 31]]
    assert body["stale"] == [[32, 34], [40, 40]]
    quality.snapshot_begin(60, 1)
    body = json.loads(quality.snapshot_end(61))
    assert (body["state"], body["stale"]) == ("REFRESHED", [])
    assert body["refreshed"] == [[20, 21], [30, 34], [40, 40]]
    assert (body["lost_ranges"], body["lost_total"]) == (3, 8)


def test_a_block_for_some_links_only_heals_nothing() -> None:
    quality = in_state(State.STALE)
    quality.snapshot_begin(20, 1)
    body = json.loads(quality.snapshot_end(21, heals=False))
    assert (body["state"], body["stale"], body["refreshed"]) == ("STALE", [[12, 13]], [])


def test_a_snapshot_at_the_start_covers_what_was_before_the_stream() -> None:
    quality = in_state(State.OK)
    quality.recovering([(1, 10)], 10)
    quality.snapshot_begin(9, 5)
    body = json.loads(quality.snapshot_end(10))
    assert (body["state"], body["refreshed"], body["missing"]) == ("REFRESHED", [[1, 9]], [])


def test_a_stream_declared_stale_stays_so_until_a_snapshot_or_a_new_epoch() -> None:
    for ending in (snapshot_end, control_event(RecordKind.RESET, 0, 0, 1)):
        quality = in_state(State.OK)
        body = json.loads(quality.stale("overflow"))
        assert (body["state"], body["reason"], body["doubt"]) == ("STALE", "overflow", "overflow")
        quality.recovering([(20, 21)], 20)
        assert json.loads(quality.recovered(21))["state"] == "STALE"
        assert json.loads(quality.attached())["doubt"] == "overflow"
        body = json.loads(ending(quality))
        assert (body["state"], body["doubt"]) == ("OK", None)


def test_in_silence_the_ranges_are_still_listed_and_hold_afterwards() -> None:
    quality = in_state(State.SILENT)
    quality.control_event(RecordKind.GAP, 0, 20, 22)
    body = json.loads(quality.recovering([(30, 31)], 22))
    assert (body["state"], body["stale"], body["missing"]) == ("SILENT", [[20, 21]], [[30, 30]])
    assert json.loads(quality.control_event(RecordKind.LINE_BACK, 0, 22, 22))["state"] == "STALE"


@pytest.mark.parametrize("state", State)
def test_every_message_is_a_quality_and_complete_where_it_says_so(state: State) -> None:
    quality = in_state(state)
    for body in (quality.attached(5), missing(quality), snapshot_end(quality)):
        found = msgspec.json.decode(body, type=Quality)
        assert msgspec.json.decode(msgspec.json.encode(found)).items() >= json.loads(body).items()
        assert found.complete is (found.state in ("OK", "REFRESHED"))


def test_a_mismatch_of_what_recovery_brought_names_no_line() -> None:
    quality = QualityState(104, ["A", "B"])
    quality.control_event(RecordKind.START, 0, 10, 10)
    body = json.loads(quality.control_event(RecordKind.MISMATCH, 2, 12, 13))
    assert (body["line"], body["sequence"], body["state"]) == ("R", 12, "OK")


def test_skipped_numbers_are_announced_and_change_no_state() -> None:
    quality = QualityState(104, ["A", "B"])
    quality.control_event(RecordKind.START, 0, 10, 10)
    body = json.loads(quality.control_event(RecordKind.SKIPPED, 0, 10, 15))
    assert (body["reason"], body["skipped"]) == ("skipped", [[10, 14]])
    assert (body["state"], body["next"], body["lost_total"]) == ("OK", 15, 0)


def test_every_key_that_the_page_names_is_a_field_of_the_typed_form() -> None:
    page = (CHECKOUT / "docs/addresses.md").read_text()
    table = page[page.index("The body is one JSON object") :]
    rows = table[
        table.index("| key | holds |") : table.index("\n\n", table.index("| key | holds |"))
    ]
    named = {
        word.strip(" `") for row in rows.splitlines()[2:] for word in row.split("|")[1].split(",")
    }
    assert named == set(Quality.__struct_fields__)


def test_losses_that_fill_their_set_are_halved_and_none_is_forgotten() -> None:
    quality = QualityState(104, ["A", "B"])
    START(quality)
    numbers = range(20, 20 + 2 * (RANGES_MAX + 1), 2)
    for number in numbers:
        control_event(RecordKind.GAP, 0, number, number + 1)(quality)
    assert len(quality.lost) == RANGES_MAX // 2
    assert all(number in quality.lost for number in numbers)
    assert (quality.lost_ranges, quality.lost_total) == (len(numbers), len(numbers))


def test_of_losses_that_fill_their_set_the_latest_can_be_withdrawn_exactly() -> None:
    quality = QualityState(104, ["A", "B"])
    START(quality)
    numbers = range(20, 20 + 3 * (RANGES_MAX + 1), 3)
    for number in numbers[:-2]:
        control_event(RecordKind.GAP, 0, number, number + 1)(quality)
    at = numbers[-2]
    # Number `at` + 1 was published, by somebody else than the exchange: the narrowest of all gaps.
    for number in (at, at + 2):
        control_event(RecordKind.GAP, 0, number, number + 1)(quality)
    assert len(quality.lost) == RANGES_MAX // 2, "halved by the last one"
    body = json.loads(control_event(RecordKind.WITHDRAWN, 0, at + 3, at)(quality))
    assert body["withdrawn"] == [[at, at], [at + 2, at + 2]]
    assert body["doubt"] == "withdrawn"
    assert body["lost_ranges"] == body["lost_total"] == len(numbers) - 2


def test_losses_that_are_withdrawn_in_part_healed_leave_no_doubt() -> None:
    quality = QualityState(104, ["A", "B"])
    START(quality)
    GAP(quality)
    quality.snapshot_begin(13, 1)
    quality.snapshot_end(14)
    control_event(RecordKind.GAP, 0, 14, 16)(quality)
    body = json.loads(control_event(RecordKind.WITHDRAWN, 0, 16, 12)(quality))
    assert body["withdrawn"] == [[12, 15]]
    assert body["doubt"] is None
