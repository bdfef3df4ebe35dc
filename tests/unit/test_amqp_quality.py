"""What subscribers are told about completeness: the table, pair by pair, and the messages."""

import json
from typing import Any

import pytest

from feedhandler.amqp.quality import RANGES_TOLD_MAX, TABLE, Input, QualityState, State
from feedhandler.ingest.ring import RecordKind

#: Marks that bring a fresh service of two lines into each state.
ROADS: dict[State, list[tuple[RecordKind, int, int, int]]] = {
    State.WAITING: [],
    State.OK: [(RecordKind.START, 0, 10, 10)],
    State.STALE: [(RecordKind.START, 0, 10, 10), (RecordKind.GAP, 0, 12, 14)],
    State.SILENT: [
        (RecordKind.START, 0, 10, 10),
        (RecordKind.LINE_SILENT, 0, 10, 10),
        (RecordKind.LINE_SILENT, 1, 10, 10),
    ],
}
#: Marks that are each input in any of those states.
MARKS: dict[Input, list[tuple[RecordKind, int, int, int]]] = {
    Input.START: [(RecordKind.START, 0, 20, 20)],
    Input.GAP: [(RecordKind.GAP, 0, 20, 22)],
    Input.RESET: [(RecordKind.RESET, 0, 0, 1)],
    Input.ALL_SILENT: [(RecordKind.LINE_SILENT, 0, 20, 20), (RecordKind.LINE_SILENT, 1, 20, 20)],
    Input.SOME_BACK: [(RecordKind.LINE_BACK, 0, 20, 20)],
    Input.MISMATCH: [(RecordKind.MISMATCH, 1, 20, 21)],
}
EXPECTED: dict[State, dict[Input, State]] = {
    State.WAITING: {
        Input.START: State.OK,
        Input.GAP: State.STALE,
        Input.RESET: State.OK,
        Input.ALL_SILENT: State.WAITING,
        Input.SOME_BACK: State.WAITING,
        Input.MISMATCH: State.WAITING,
    },
    State.OK: {
        Input.START: State.OK,
        Input.GAP: State.STALE,
        Input.RESET: State.OK,
        Input.ALL_SILENT: State.SILENT,
        Input.SOME_BACK: State.OK,
        Input.MISMATCH: State.OK,
    },
    State.STALE: {
        Input.START: State.OK,
        Input.GAP: State.STALE,
        Input.RESET: State.OK,
        Input.ALL_SILENT: State.SILENT,
        Input.SOME_BACK: State.STALE,
        Input.MISMATCH: State.STALE,
    },
    State.SILENT: {
        Input.START: State.OK,
        Input.GAP: State.SILENT,
        Input.RESET: State.SILENT,
        Input.ALL_SILENT: State.SILENT,
        Input.SOME_BACK: State.OK,
        Input.MISMATCH: State.SILENT,
    },
}


def in_state(state: State) -> QualityState:
    quality = QualityState(104, ["A", "B"])
    for mark in ROADS[state]:
        quality.mark(*mark)
    assert quality.state is state
    return quality


def told(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)
    return found


def test_the_table_has_every_pair_and_no_other() -> None:
    assert set(TABLE) == {(state, happened) for state in State for happened in Input}


@pytest.mark.parametrize("happened", Input)
@pytest.mark.parametrize("state", State)
def test_every_input_in_every_state_leads_where_it_should(state: State, happened: Input) -> None:
    quality = in_state(state)
    body = b""
    for mark in MARKS[happened]:
        body = quality.mark(*mark)
    assert quality.state is EXPECTED[state][happened]
    assert told(body)["state"] == EXPECTED[state][happened].value


def test_after_silence_a_service_is_as_complete_as_it_was() -> None:
    quality = in_state(State.STALE)
    quality.mark(RecordKind.LINE_SILENT, 0, 14, 14)
    assert quality.state is State.STALE, "one line still speaks"
    quality.mark(RecordKind.LINE_SILENT, 1, 14, 14)
    assert quality.state is State.SILENT
    quality.mark(RecordKind.LINE_BACK, 1, 14, 14)
    assert quality.state is State.STALE


def test_a_service_that_never_spoke_waits_again_after_silence() -> None:
    quality = QualityState(104, ["A"])
    quality.mark(RecordKind.LINE_SILENT, 0, 0, 0)
    quality.mark(RecordKind.LINE_BACK, 0, 0, 0)
    assert quality.state is State.WAITING


def test_a_new_numbering_forgets_what_was_lost_before() -> None:
    quality = in_state(State.STALE)
    body = told(quality.mark(RecordKind.RESET, 0, 0, 1))
    assert body == {
        "state": "OK",
        "reason": "reset",
        "service": 104,
        "since": 1,
        "next": 1,
        "lost_ranges": 0,
        "lost_total": 0,
        "silent": [],
    }


@pytest.mark.parametrize(
    ("mark", "expected"),
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
def test_each_kind_of_mark_says_what_happened(
    mark: tuple[RecordKind, int, int, int], expected: dict[str, Any]
) -> None:
    body = told(in_state(State.OK).mark(*mark))
    assert expected.items() <= body.items()
    assert body["service"] == 104


def test_a_new_link_is_told_the_state_and_all_known_lost_ranges() -> None:
    quality = in_state(State.OK)
    for first, after in ((20, 22), (30, 31), (31, 35)):
        quality.mark(RecordKind.GAP, 0, first, after)
    assert told(quality.attached(40)) == {
        "state": "STALE",
        "reason": "attached",
        "service": 104,
        "since": 10,
        "next": 40,
        "lost": [[20, 21], [30, 34]],
        "lost_ranges": 3,
        "lost_total": 7,
        "silent": [],
    }


def test_a_new_link_is_told_the_latest_ranges_only_and_how_many_there_were() -> None:
    quality = in_state(State.OK)
    for n in range(RANGES_TOLD_MAX + 50):
        quality.mark(RecordKind.GAP, 0, 100 + 10 * n, 101 + 10 * n)
    body = told(quality.attached())
    assert len(body["lost"]) == RANGES_TOLD_MAX
    assert body["lost"][-1] == [100 + 10 * (RANGES_TOLD_MAX + 49)] * 2
    assert body["lost_ranges"] == RANGES_TOLD_MAX + 50


def test_a_link_before_the_start_is_told_that_nothing_came_yet() -> None:
    body = told(QualityState(104, ["A", "B"]).attached())
    assert (body["state"], body["since"], body["next"]) == ("WAITING", None, None)
