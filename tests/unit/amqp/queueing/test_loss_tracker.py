"""Notices to a destination that lacks more than the others."""

import json

from feedhandler.amqp.framing import SNAPSHOT_BIT
from feedhandler.amqp.queueing.loss_tracker import BROKEN_BLOCK, OVERFLOW, LossTracker
from feedhandler.amqp.queueing.unsettled_map import OutgoingMessage
from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from feedhandler.ingest.records import RecordKind
from feedhandler.retrans.quality import RANGES_IN_CHANGE_MAX, RANGES_REPORTED_MAX, QualityState
from feedhandler.retrans.ranges import RANGES_MAX, RangeSet


def begun() -> tuple[QualityState, LossTracker]:
    """A service that has begun at 1, and a destination that was told so."""
    quality, loss_tracker = QualityState(104, ["A", "B"]), LossTracker()
    loss_tracker.outgoing(quality.control_event(RecordKind.START, 0, 0, 1))
    return quality, loss_tracker


def data(sequence: int, block: bool = False) -> OutgoingMessage:
    sequence |= SNAPSHOT_BIT if block else 0
    return OutgoingMessage(b"x", 104, sequence, sequence + 1, block)


class OnlyTheLatest:
    """Losses of which nobody may look at all."""

    def __init__(self, ranges: RangeSet) -> None:
        self.latest_with = ranges.latest_with

    def __bool__(self) -> bool:
        return True


def quality_message(body: bytes) -> OutgoingMessage:
    return OutgoingMessage(body, 104, 0, 0, False, str(json.loads(body)["reason"]))


def notice(loss_tracker: LossTracker) -> dict[str, object]:
    """The one message that tells of what was dropped."""
    ((reason, body),) = loss_tracker.notices()
    assert reason == OVERFLOW
    return json.loads(body)


def test_a_destination_that_lacks_nothing_gets_the_services_own_messages() -> None:
    quality, loss_tracker = begun()
    body = quality.control_event(RecordKind.GAP, 0, 5, 7)
    assert loss_tracker.outgoing(body) is body
    assert not loss_tracker.lacks


def test_what_was_dropped_is_announced_as_ranges_and_makes_the_state_stale() -> None:
    _, loss_tracker = begun()
    for sequence in (4, 5, 6, 9):
        loss_tracker.drop(data(sequence))
    assert loss_tracker.unannounced
    body = notice(loss_tracker)
    assert body["state"] == "STALE"
    assert body["lost"] == [[4, 6], [9, 9]]
    assert body["stale"] == [[4, 6], [9, 9]]
    assert (body["lost_ranges"], body["lost_total"]) == (2, 4)
    assert not loss_tracker.unannounced


def test_thousands_of_scattered_drops_are_counted_exactly_and_joined_many_at_a_time() -> None:
    _, loss_tracker = begun()
    for number in range(10_000):
        loss_tracker.drop(data(2 * number + 1))
        if number == RANGES_MAX:
            assert len(loss_tracker.fresh) == RANGES_MAX // 2
    body = notice(loss_tracker)
    assert (body["lost_ranges"], body["lost_total"]) == (10_000, 10_000)
    assert len(body["stale"]) == RANGES_REPORTED_MAX
    assert body["stale"][-1] == [19_999, 19_999]


def test_of_thousands_of_losses_a_message_takes_the_latest_beside_the_services_own() -> None:
    quality, loss_tracker = begun()
    for number in range(1, 2 * RANGES_MAX, 2):
        loss_tracker.drop(data(number))
    loss_tracker.notices()
    lost, last = loss_tracker.lost, 2 * RANGES_MAX
    loss_tracker.lost = OnlyTheLatest(lost)  # type: ignore[assignment]
    body = json.loads(
        loss_tracker.outgoing(quality.control_event(RecordKind.GAP, 0, last, last + 9))
    )
    expected = RangeSet([*lost, (last, last + 8)]).latest(RANGES_IN_CHANGE_MAX)
    assert body["stale"] == [list(pair) for pair in expected]


def test_later_messages_of_the_service_keep_what_the_destination_lacks() -> None:
    quality, loss_tracker = begun()
    loss_tracker.drop(data(4))
    loss_tracker.notices()
    body = json.loads(loss_tracker.outgoing(quality.control_event(RecordKind.GAP, 0, 8, 10)))
    assert body["reason"] == "gap"
    assert body["lost"] == [[8, 9]]
    assert body["stale"] == [[4, 4], [8, 9]]
    assert (body["lost_ranges"], body["lost_total"]) == (2, 3)
    body = json.loads(loss_tracker.outgoing(quality.control_event(RecordKind.LINE_SILENT, 0, 0, 0)))
    assert body["state"] == "STALE"
    quality.control_event(RecordKind.LINE_SILENT, 0, 0, 0)
    body = json.loads(loss_tracker.outgoing(quality.control_event(RecordKind.LINE_SILENT, 1, 0, 0)))
    assert body["state"] == "SILENT"


def test_a_snapshot_that_arrives_whole_heals() -> None:
    quality, loss_tracker = begun()
    loss_tracker.drop(data(4))
    loss_tracker.notices()
    assert json.loads(loss_tracker.outgoing(quality.snapshot_begin(9, 3)))["stale"] == [[4, 4]]
    body = json.loads(loss_tracker.outgoing(quality.snapshot_end(12)))
    assert body["refreshed"] == [[4, 4]]
    assert body["stale"] == []
    assert body["state"] == "REFRESHED"
    assert not loss_tracker.lacks
    body = json.loads(loss_tracker.outgoing(quality.control_event(RecordKind.LINE_SILENT, 0, 0, 0)))
    assert body["state"] == "REFRESHED", "until the next epoch"


def test_a_new_epoch_ends_what_the_old_one_lacked() -> None:
    quality, loss_tracker = begun()
    loss_tracker.drop(data(4))
    loss_tracker.notices()
    body = json.loads(loss_tracker.outgoing(quality.control_event(RecordKind.RESET, 0, 0, 1)))
    assert body["stale"] == []
    assert body["state"] == "OK"


def test_a_new_epoch_that_was_dropped_is_announced_again_before_the_loss() -> None:
    quality, loss_tracker = begun()
    loss_tracker.drop(data(400))
    reset = quality.control_event(RecordKind.RESET, 0, 0, 1)
    loss_tracker.drop(quality_message(reset))
    loss_tracker.drop(data(1))
    first, (reason, body) = loss_tracker.notices()
    assert first == ("reset", reset)
    assert reason == OVERFLOW
    assert json.loads(body)["lost"] == [[1, 1]], "of the old epoch nothing is worth telling"
    assert json.loads(body)["since"] == 1


def test_what_will_not_come_after_all_is_announced_before_what_was_dropped_later() -> None:
    quality, loss_tracker = begun()
    loss_tracker.drop(data(9))
    reset = quality.control_event(RecordKind.RESET, 0, 0, 1)
    first, (reason, body) = loss_tracker.miss(
        RangeSet([(4, 6)]), RangeSet([(7, 7)]), False, epoch_began=reset
    )
    assert first == ("reset", reset)
    assert (reason, json.loads(body)["lost"]) == (OVERFLOW, [[4, 7]])
    assert json.loads(body)["lost_total"] == 3, "7 was counted as it was announced first"
    assert loss_tracker.unannounced
    assert notice(loss_tracker)["lost"] == [[9, 9]]


def test_what_dropped_quality_messages_said_is_said_with_the_overflow() -> None:
    quality, loss_tracker = begun()
    loss_tracker.drop(quality_message(quality.control_event(RecordKind.GAP, 0, 5, 7)))
    body = notice(loss_tracker)
    assert body["stale"] == [[5, 6]]
    assert body["lost"] == [[5, 6]]
    assert body["state"] == "STALE"


def test_the_overflow_says_all_that_the_service_has_lost_and_its_messages_say_less() -> None:
    quality, loss_tracker = begun()
    gaps = [(first, first) for first in range(10, 10 + 10 * RANGES_REPORTED_MAX + 50, 10)]
    for number, (first, last) in enumerate(gaps):
        body = quality.control_event(RecordKind.GAP, 0, first, last + 1)
        if number % 2:
            loss_tracker.outgoing(body)
        else:
            loss_tracker.drop(quality_message(body))
    loss_tracker.drop(data(9000))
    body = notice(loss_tracker)
    assert body["lost"] == [*map(list, gaps[::2]), [9000, 9000]]
    assert body["stale"] == [list(pair) for pair in [*gaps, (9000, 9000)][-RANGES_REPORTED_MAX:]]
    assert body["lost_ranges"] == len(gaps) + 1


def test_a_refused_announcement_of_a_gap_is_repeated_by_the_overflow() -> None:
    quality, loss_tracker = begun()
    body = loss_tracker.outgoing(quality.control_event(RecordKind.GAP, 0, 10, 12))
    loss_tracker.refuse(OutgoingMessage(b"encoded", 104, 12, 12, False, "gap"))
    assert loss_tracker.unannounced
    body = notice(loss_tracker)
    assert (body["lost"], body["lost_total"]) == ([[10, 11]], 2)
    loss_tracker.drop(data(15))
    assert notice(loss_tracker)["lost"] == [[15, 15]]
    loss_tracker.refuse(OutgoingMessage(b"encoded", 104, 16, 16, False, OVERFLOW))
    assert notice(loss_tracker)["lost"] == [[10, 11], [15, 15]]
    assert notice(loss_tracker)["lost"] == []


def test_an_overflow_that_was_dropped_itself_is_said_by_the_next() -> None:
    _, loss_tracker = begun()
    loss_tracker.drop(data(4))
    ((_, body),) = loss_tracker.notices()
    loss_tracker.drop(quality_message(body))
    loss_tracker.drop(data(6))
    again = notice(loss_tracker)
    assert again["lost"] == [[4, 4], [6, 6]]
    assert (again["lost_ranges"], again["lost_total"]) == (2, 2)


def test_the_number_behind_what_was_dropped_is_known_until_it_is_announced() -> None:
    quality, loss_tracker = begun()
    assert loss_tracker.dropped_to == 0
    loss_tracker.drop(data(4))
    gap = quality.control_event(RecordKind.GAP, 0, 5, 9)
    loss_tracker.drop(OutgoingMessage(gap, 104, 9, 9, False, "gap"))
    loss_tracker.drop(data(4, block=True))
    assert loss_tracker.dropped_to == 9
    loss_tracker.refuse(data(20))
    assert loss_tracker.dropped_to == 9, "what was sent already"
    reset = quality.control_event(RecordKind.RESET, 0, 0, 1)
    loss_tracker.skipping = False
    loss_tracker.drop(OutgoingMessage(reset, 104, 1, 1, False, "reset"))
    assert loss_tracker.dropped_to == 1
    loss_tracker.notices()
    assert loss_tracker.dropped_to == 0


def test_no_drop_is_left_out_where_there_are_more_than_a_message_names() -> None:
    _, loss_tracker = begun()
    for number in range(1, 2 * RANGES_REPORTED_MAX + 21, 2):
        loss_tracker.drop(data(number))
    lost = notice(loss_tracker)["lost"]
    assert isinstance(lost, list)
    assert (len(lost), lost[0], lost[1]) == (RANGES_REPORTED_MAX, [1, 21], [23, 23])


def test_what_the_service_has_withdrawn_is_not_in_the_overflow() -> None:
    quality, loss_tracker = begun()
    for first in (10, 20, 30):
        gap = quality.control_event(RecordKind.GAP, 0, first, first + 2)
        loss_tracker.drop(quality_message(gap))
    withdrawn = quality.control_event(RecordKind.WITHDRAWN, 0, 32, 20)
    assert json.loads(withdrawn)["withdrawn"] == [[20, 21], [30, 31]]
    loss_tracker.drop(quality_message(withdrawn))
    body = notice(loss_tracker)
    assert (body["stale"], body["lost"]) == ([[10, 11]], [[10, 11]])
    assert "withdrawn" not in body


def test_a_dropped_snapshot_leaves_the_destination_all_that_the_service_had_lost() -> None:
    quality, loss_tracker = begun()
    gaps = [[first, first] for first in range(10, 400, 10)]
    for first, last in gaps:
        loss_tracker.outgoing(quality.control_event(RecordKind.GAP, 0, first, last + 1))
    loss_tracker.drop(quality_message(quality.snapshot_begin(500, 2)))
    assert loss_tracker.skips(quality_message(quality.snapshot_end(501)))
    body = notice(loss_tracker)
    assert (body["stale"], body["state"], body["doubt"]) == (gaps, "STALE", BROKEN_BLOCK)


def test_of_a_block_whose_end_never_comes_the_next_block_loses_nothing() -> None:
    quality, loss_tracker = begun()
    loss_tracker.drop(quality_message(quality.snapshot_begin(9, 2)))
    assert loss_tracker.skips(data(9, block=True))
    assert not loss_tracker.skips(quality_message(quality.snapshot_begin(20, 2)))
    assert not loss_tracker.skips(data(20, block=True))


def test_a_snapshot_is_dropped_whole_and_the_destination_stays_stale() -> None:
    quality, loss_tracker = begun()
    gap = quality.control_event(RecordKind.GAP, 0, 5, 7)
    loss_tracker.outgoing(gap)
    loss_tracker.drop(quality_message(quality.snapshot_begin(9, 2)))
    end = quality.snapshot_end(12)
    assert loss_tracker.skips(data(9, block=True))
    assert not loss_tracker.skips(data(10))
    assert loss_tracker.skips(quality_message(end))
    assert not loss_tracker.skipping
    body = notice(loss_tracker)
    assert body["state"] == "STALE"
    assert body["stale"] == [[5, 6]], "the others are healed, this destination is not"
    assert body["doubt"] == BROKEN_BLOCK
    loss_tracker.outgoing(quality.snapshot_begin(20, 2))
    assert json.loads(loss_tracker.outgoing(quality.snapshot_end(22)))["state"] == "REFRESHED"
    assert not loss_tracker.lacks


def test_a_snapshots_message_that_was_refused_leaves_the_destination_in_doubt() -> None:
    quality, loss_tracker = begun()
    last = 9
    loss_tracker.outgoing(quality.snapshot_begin(last, 2))
    tag = SNAPSHOT_BIT | last << 24
    loss_tracker.refuse(OutgoingMessage(b"x", 104, tag, tag + 1, True))
    body = json.loads(loss_tracker.outgoing(quality.snapshot_end(12)))
    assert body["state"] == "STALE"
    assert body["doubt"] == BROKEN_BLOCK
    assert not loss_tracker.skipping


def test_data_that_was_refused_is_announced_like_data_that_was_dropped() -> None:
    _, loss_tracker = begun()
    loss_tracker.refuse(data(7))
    assert notice(loss_tracker)["lost"] == [[7, 7]]


def test_a_quality_message_that_was_refused_is_repeated_with_the_next() -> None:
    quality, loss_tracker = begun()
    body = loss_tracker.outgoing(quality.control_event(RecordKind.GAP, 0, 5, 7))
    loss_tracker.refuse(quality_message(body))
    assert notice(loss_tracker)["stale"] == [[5, 6]]
    loss_tracker.refuse(OutgoingMessage(b"encoded", 104, 0, 0, False, "snapshot-end"))
    assert notice(loss_tracker)["doubt"] == BROKEN_BLOCK


def test_packets_outside_the_sequence_are_counted_and_are_part_of_no_range() -> None:
    _, loss_tracker = begun()
    for number in (1, 2):
        sequence = UNSEQUENCED_BIT | number
        loss_tracker.drop(OutgoingMessage(b"x", 104, sequence, sequence))
    body = notice(loss_tracker)
    assert (body["state"], body["lost"], body["unsequenced"]) == ("OK", [], 2)
    loss_tracker.drop(data(4))
    assert "unsequenced" not in notice(loss_tracker)
