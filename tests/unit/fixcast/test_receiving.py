"""One channel's way in (`feedhandler/fixcast/receiving.py`)."""

from feedhandler.codecs.fix.envelope import envelope
from feedhandler.fixcast.messages import Header
from feedhandler.fixcast.receiving import ChannelReceiver, described
from feedhandler.fixcast.reception import (
    RETRANSMISSION,
    Active,
    Deliver,
    Event,
    Joined,
    Missing,
    NewEpoch,
    ReceptionSettings,
    Skipped,
)
from feedhandler.fixcast.session import NEVER
from feedhandler.fixcast.values import Kind, Message
from feedhandler.retrans.fix.client import RequesterSettings
from feedhandler.retrans.fix.request import ResendRequest

HEADER = Header(target=b"T")
SETTINGS = ReceptionSettings(gap_wait_ns=0)
REQUESTS = RequesterSettings(receivers=1)


def message(number: int, epoch: int = 1, header: Header = HEADER) -> bytes:
    return header.application(envelope(b"FIX.4.4", b"35=X\x0158=a\x01"), number, epoch)


def receiver(asks: bool = True, topic: bytes = b"T") -> ChannelReceiver:
    return ChannelReceiver("c", topic, SETTINGS, REQUESTS if asks else None, 1, 0)


def numbers(events: list[Event]) -> list[int]:
    return [event.number for event in events if isinstance(event, Deliver)]


def test_what_is_missing_is_asked_for_until_it_comes() -> None:
    made = receiver()
    assert numbers(made.datagram(message(1) + message(2), 0, 0)) == [1, 2]
    assert made.datagram(message(5), 0, 0) == [Missing(3, 4)]
    assert made.deadline_ns == 0
    assert made.requests(0) == [ResendRequest("c", 3, 4)]
    assert numbers(made.datagram(message(3), RETRANSMISSION, 1)) == [3]
    assert numbers(made.datagram(message(4), 1, 1)) == [4, 5]
    assert made.requests(10**12) == []


def test_what_is_given_up_is_no_longer_asked_for() -> None:
    made = receiver()
    made.datagram(message(1) + message(3), 0, 0)
    made.tick(SETTINGS.recovery_wait_ns)
    assert made.requests(SETTINGS.recovery_wait_ns) == []


def test_another_epoch_is_asked_for_by_itself() -> None:
    made = receiver()
    made.datagram(message(1) + message(9), 0, 0)
    events = made.datagram(message(3, epoch=2), 0, 0)
    assert NewEpoch(2, False) in events
    assert made.requests(0) == [ResendRequest("c", 1, 2)]


def test_without_a_server_nothing_is_requested() -> None:
    made = receiver(asks=False)
    made.datagram(message(1) + message(3), 0, 0)
    assert made.requests(0) == []
    assert NEVER > made.deadline_ns > 0


def test_messages_of_other_topics_are_passed_over() -> None:
    made = receiver()
    other = message(1, header=Header(target=b"U"))
    assert numbers(made.datagram(other + message(1) + other, 0, 0)) == [1]
    assert made.counts["other_topic"] == 2
    assert numbers(receiver(topic=b"").datagram(other, 0, 0)) == [1]


def test_a_datagram_that_is_wrong_is_read_up_to_what_is_wrong() -> None:
    made = receiver()
    assert numbers(made.datagram(message(1) + b"rubbish", 0, 0)) == [1]
    assert made.datagram(b"", 0, 0) == []
    assert made.counts == {"wrong_no_begin_string": 1, "wrong_no_messages": 1}


def test_events_are_described_for_json() -> None:
    assert described(Deliver(7, b"abc")) == {"event": "message", "number": 7, "bytes": 3}
    assert described(Skipped(1, 2)) == {"event": "skipped", "first": 1, "last": 2}
    assert described(NewEpoch(5, True)) == {"event": "new-epoch", "epoch": 5, "ended": True}
    assert described(Active()) == {"event": "active"}
    assert described(Joined(4)) == {"event": "joined", "number": 4}


def test_a_receiver_that_stops_gives_up_what_is_missing() -> None:
    made = receiver()
    made.datagram(message(1) + message(3), 0, 0)
    fill = HEADER.administrative(Message(Kind.GAP_FILL, 4, b"", 6, 1))
    assert made.datagram(fill, 0, 0) == []
    assert numbers(made.finish()) == [3]


def test_a_sealed_datagram_is_counted_and_not_read() -> None:
    made = receiver()
    assert made.datagram(b"FS\x01\0" + message(1), 0, 0) == []
    assert made.counts == {"sealed": 1}
    assert numbers(made.datagram(message(1), 0, 0)) == [1]
