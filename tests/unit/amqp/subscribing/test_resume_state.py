"""A subscriber's reading of a node's first messages after a lost connection."""

from typing import Any

import msgspec
import pytest

from feedhandler.amqp.subscribing.resume_state import (
    BEHIND,
    BROKEN_BLOCK,
    NEW_EPOCH,
    TAGS_MAX,
    ResumeState,
)


def tag(sequence: int, service: int = 104) -> bytes:
    return b"".join(
        (
            (20261121).to_bytes(4),
            (1).to_bytes(2),
            service.to_bytes(2),
            sequence.to_bytes(8),
            b"\xff\xff",
        )
    )


def quality(reason: str, following: int | None = None, **more: Any) -> bytes:
    body = {"state": "OK", "reason": reason, "service": 104, "next": following, "stale": []}
    return msgspec.json.encode({**body, "doubt": None, "lost_ranges": 0, "lost_total": 0, **more})


def heard(resume: ResumeState, body: bytes, service: int = 104) -> list[Any]:
    """Return (reason, state, lost, stale, doubt) of each message that is handed out."""
    answer = resume.process_quality(body, service)
    return [
        (x["reason"], x["state"], x.get("lost"), x["stale"], x["doubt"])
        for x in map(msgspec.json.decode, [body] if answer is None else answer)
    ]


def after_loss(last: int = 50, *, resumed: bool = False) -> ResumeState:
    resume = ResumeState()
    assert resume.process_quality(quality("attached", 1), 104) is None
    resume.lose({104: tag(last)})
    asked = resume.ask({104: tag(last)})
    assert asked == [tag(last)]
    resume.attached(asked if resumed else [])
    return resume


def test_a_node_that_goes_on_from_the_tag_leaves_nothing_to_tell() -> None:
    for reason in ("resume", "attached"):  # a node need not say that all is well
        resume = after_loss(resumed=True)
        assert resume.process_quality(quality(reason, 51, lost=[]), 104) is None
        assert resume.process_quality(quality("silent", 9000), 104) is None


def test_a_node_that_stands_where_the_stream_was_left_leaves_nothing_to_tell() -> None:
    assert after_loss().process_quality(quality("attached", 51), 104) is None


def test_what_lies_between_is_announced_and_makes_what_follows_worse_until_a_snapshot() -> None:
    resume = after_loss()
    assert heard(resume, quality("attached", 61)) == [
        ("resume", "STALE", [[51, 60]], [[51, 60]], None),
        ("attached", "STALE", None, [[51, 60]], None),
    ]
    assert heard(resume, quality("silent", 70, state="SILENT")) == [
        ("silent", "SILENT", None, [[51, 60]], None)
    ]
    assert heard(resume, quality("snapshot-begin", 70, last=55))[0][1] == "STALE"
    assert heard(resume, quality("snapshot-end", 70, last=55))[0][3] == [[56, 60]]
    (last,) = resume.process_quality(quality("snapshot-end", 90, last=80), 104) or []
    answer = msgspec.json.decode(last)
    assert (answer["state"], answer["stale"]) == ("REFRESHED", [])
    assert answer["refreshed"] == [[56, 60]]
    assert (answer["lost_ranges"], answer["lost_total"]) == (1, 10)
    assert heard(resume, quality("reset", 1)) == [("reset", "OK", None, [], None)]


def test_where_a_link_begins_with_the_present_state_that_makes_good_what_was_lost() -> None:
    resume = after_loss()
    resume.attached([], begins_with_state=True)
    assert heard(resume, quality("attached", 61)) == [
        ("resume", "STALE", [[51, 60]], [[51, 60]], None),
        ("attached", "REFRESHED", None, [], None),
    ]
    resume.lose({104: tag(70)})
    resume.attached([], begins_with_state=True)
    assert heard(resume, quality("attached", 5))[0][4] == NEW_EPOCH
    assert heard(resume, quality("silent", 6)) == [("silent", "REFRESHED", None, [], None)]
    resume.lose({104: tag(5)})
    resume.attached([])  # the next link has no such beginning
    assert heard(resume, quality("attached", 9))[1][1] == "STALE"


def test_a_gateway_that_has_received_nothing_yet_is_judged_by_its_start() -> None:
    resume = after_loss()
    assert resume.process_quality(quality("attached", None, state="WAITING"), 104) is None
    assert [x[0] for x in heard(resume, quality("start", 61))] == ["resume", "start"]


def test_a_node_that_counts_anew_leaves_a_doubt() -> None:
    resume = after_loss()
    assert heard(resume, quality("attached", 7)) == [
        ("resume", "STALE", [], [], NEW_EPOCH),
        ("attached", "STALE", None, [], NEW_EPOCH),
    ]


def test_a_node_that_says_too_late_is_believed() -> None:
    resume = after_loss(resumed=True)
    late = quality("resume", 90, state="STALE", lost=[[51, 80]], stale=[[51, 80]])
    assert heard(resume, late) == [("resume", "STALE", [[51, 80]], [[51, 80]], None)]
    assert heard(resume, quality("back", 95)) == [("back", "STALE", None, [[51, 80]], None)]
    resume = after_loss(resumed=True)
    other_day = quality("resume", 90, state="STALE", doubt="another day", lost=[])
    assert heard(resume, other_day)[0][4] == "another day"
    assert heard(resume, quality("back", 95))[0][1:] == ("STALE", None, [], "another day")


def test_a_snapshot_that_broke_off_is_asked_for_again_and_announced() -> None:
    for resumed in (True, False):
        resume = ResumeState()
        resume.process_quality(quality("attached", 1), 104)
        resume.process_quality(quality("snapshot-begin", 40, last=39), 104)
        resume.lose({104: tag(50), 105: tag(7, 105)})
        assert resume.wants_snapshot
        asked = resume.ask({104: tag(50), 105: tag(7, 105)})
        assert asked == [tag(7, 105)]
        resume.attached([tag(50), *asked] if resumed else asked)
        story = heard(resume, quality("attached", 51))
        assert not resume.wants_snapshot
        assert story[0] == ("resume", "STALE", [], [], BROKEN_BLOCK)
        assert resume.process_quality(quality("attached", 8), 105) is None
        assert heard(resume, quality("snapshot-begin", 51, last=50))[0][1] == "STALE"
        assert heard(resume, quality("snapshot-end", 51, last=50))[0][1] == "REFRESHED"


def test_a_link_that_was_conflated_as_it_broke_does_not_go_on_but_wants_a_snapshot() -> None:
    for caught_up in (False, True):
        resume = ResumeState()
        resume.process_quality(quality("attached", 1), 104)
        resume.process_quality(quality("conflated", 1), 104)
        if caught_up:
            resume.process_quality(quality("caught-up", 51), 104)
        resume.lose({104: tag(50)})
        assert resume.wants_snapshot is not caught_up
        assert resume.ask({104: tag(50)}) == ([tag(50)] if caught_up else [])
        resume.attached([])
        expected = [] if caught_up else [("resume", "STALE", [], [], BEHIND)]
        assert heard(resume, quality("attached", 51))[:-1] == expected
        assert not resume.wants_snapshot


def test_a_snapshot_is_asked_for_until_one_has_come() -> None:
    resume = ResumeState()
    resume.process_quality(quality("attached", 1), 104)
    resume.process_quality(quality("snapshot-begin", 40, last=39), 104)
    for first_word in (False, True):  # the next link ends before it says anything, or after that
        resume.lose({104: tag(50)})
        assert resume.wants_snapshot
        assert resume.ask({104: tag(50)}) == []
        resume.attached([], snapshot=True)
        if first_word:
            heard(resume, quality("attached", 51))
    heard(resume, quality("snapshot-begin", 51, last=50))
    assert heard(resume, quality("snapshot-end", 51, last=50))[0][1] == "REFRESHED"
    assert not resume.wants_snapshot
    resume.process_quality(quality("snapshot-begin", 60, last=59), 104)
    resume.lose({104: tag(50)})
    resume.attached([], snapshot=True)
    heard(resume, quality("no snapshot", 61))
    resume.lose({104: tag(60)})
    assert resume.ask({104: tag(60)}) == [tag(60)]


def test_a_second_loss_before_the_first_word_does_not_move_the_position() -> None:
    resume = after_loss(50)
    resume.lose({104: tag(50)})
    resume.attached([])
    assert heard(resume, quality("attached", 61))[0][2] == [[51, 60]]


def test_no_more_tags_are_asked_for_than_an_address_holds() -> None:
    resume = ResumeState()
    tags = {service: tag(1, service) for service in range(2 * TAGS_MAX)}
    assert len(resume.ask(tags)) == TAGS_MAX


@pytest.mark.parametrize("body", [b"no json", b"[]", b"{}"])
def test_what_is_no_quality_message_is_an_error(body: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, KeyError)):
        ResumeState().process_quality(body, 104)


def test_a_node_that_was_overtaken_while_it_caught_up_makes_what_follows_worse_once_more() -> None:
    resume = after_loss(resumed=True)
    late = {"state": "STALE", "doubt": "too late", "stale": [[51, 60]], "lost": [[51, 60]]}
    slow = {"state": "STALE", "doubt": "too slow", "stale": [[61, 80]], "lost": [[61, 80]]}
    resume.process_quality(quality("resume", 61, **late), 104)
    assert heard(resume, quality("resume", 81, **slow))[0][3] == [[51, 80]]
    (later,) = resume.process_quality(quality("silent", 90), 104) or []
    answer = msgspec.json.decode(later)
    assert (answer["state"], answer["stale"]) == ("STALE", [[51, 80]])
    assert (answer["lost_ranges"], answer["lost_total"]) == (2, 30)


@pytest.mark.parametrize(
    ("following", "lost", "doubt"),
    [(51, [], None), (61, [[51, 60]], None), (1, [], NEW_EPOCH)],
)
def test_a_node_that_has_nothing_to_resume_from_yet_is_judged_by_its_start(
    following: int, lost: list[Any], doubt: str | None
) -> None:
    resume = after_loss(resumed=True)
    nothing = {"state": "STALE", "doubt": "nothing was published yet", "lost": []}
    assert resume.process_quality(quality("resume", 0, **nothing), 104) is None
    assert heard(resume, quality("start", following))[-1][3:] == (lost, doubt)
