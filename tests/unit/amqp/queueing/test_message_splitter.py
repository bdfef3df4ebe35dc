"""AMQP messages taken apart and put together again; what cannot be stays whole."""

import msgspec
import pytest

from feedhandler.amqp.framing import CONTENT_BATCH, CONTENT_MESSAGE, CONTENT_PACKET, Frame, Template
from feedhandler.amqp.policies import DESTINATION_POLICIES, fault_of_policy
from feedhandler.amqp.queueing.conflation import BOOK, FENCE, LATEST, NEVER, Conflation
from feedhandler.amqp.queueing.loss_tracker import BROKEN_BLOCK, LossTracker
from feedhandler.amqp.queueing.message_splitter import MessageSplitter
from feedhandler.amqp.queueing.unsettled_map import OutgoingMessage
from feedhandler.codecs import load_feed
from feedhandler.codecs.kinds import UNSEQUENCED_BIT
from tests.support.amqp import FEED, order, packet, prefix_of, quote
from tests.support.flow import ConflatedLink


def outgoing(content: str, body: bytes, sequence: int = 7, feed: object = FEED) -> OutgoingMessage:
    """One AMQP message as the fan-out frames it."""
    template = Template(f"{FEED.key}.104", content, prefix_of(feed, 104))
    frame = Frame(1 << 16)
    frame.begin(template, sequence, 0xFFFF, 0)
    frame.append(body, 0, len(body))
    frame.finish(0)
    made = OutgoingMessage(frame.snapshot(), 104, sequence, sequence + 5)
    made.template = template
    made.number_at = template.sequence_at
    return made


@pytest.mark.parametrize(
    ("content", "body"),
    [(CONTENT_PACKET, packet(7)), (CONTENT_MESSAGE, quote(5)), (CONTENT_BATCH, packet(7))],
)
def test_what_nothing_was_taken_from_is_what_it_was(content: str, body: bytes) -> None:
    splitter, whole = MessageSplitter(FEED, True), outgoing(content, body)
    (waiting,) = splitter.split(whole)
    joined = splitter.join(waiting)
    assert joined.data == whole.data
    assert (joined.service, joined.sequence, joined.following) == (104, 7, 12)
    assert joined.number_at == whole.number_at


def test_each_packet_of_a_batch_is_a_message_with_its_own_number() -> None:
    splitter = MessageSplitter(FEED, True)
    whole = outgoing(CONTENT_BATCH, packet(7) + packet(8) + packet(10))
    joined = [splitter.join(waiting) for waiting in splitter.split(whole)]
    assert [(each.sequence, each.following) for each in joined] == [(7, 8), (8, 10), (10, 12)]
    size = whole.template.size
    assert [each.data[size:] for each in joined] == [packet(7), packet(8), packet(10)]


def test_what_is_left_of_a_packet_is_a_packet() -> None:
    splitter = MessageSplitter(FEED, True)
    kept = [order(1), quote(2), order(3)]
    (waiting,) = splitter.split(outgoing(CONTENT_PACKET, packet(7, kept)))
    assert waiting.modes == [BOOK, LATEST, BOOK]
    conflation = Conflation(1 << 20, lambda service, symbol: 100)
    conflation.put(waiting)
    (newer,) = splitter.split(outgoing(CONTENT_PACKET, packet(8, [quote(2)]), 8))
    conflation.put(newer)
    joined = splitter.join(conflation.pop())
    assert joined.data[joined.template.size :] == packet(7, [kept[0], kept[2]])


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (CONTENT_PACKET, b"nonsense"),
        (CONTENT_PACKET, packet(7)[:-3]),
        (CONTENT_PACKET, FEED.encode_packet(sequence=7, service=104, kind="heartbeat")),
        (CONTENT_PACKET, FEED.encode_packet(sequence=7, service=104, kind="reset")),
        (CONTENT_BATCH, packet(7) + b"\0\0"),
        (CONTENT_BATCH, packet(7) + packet(8)[:20]),
        (CONTENT_BATCH, b""),
        (CONTENT_MESSAGE, b"\0\1"),
    ],
)
def test_what_cannot_be_read_stays_whole_and_at_its_position(content: str, body: bytes) -> None:
    splitter, whole = MessageSplitter(FEED, True), outgoing(content, body)
    (waiting,) = splitter.split(whole)
    assert waiting.modes == [FENCE]
    assert splitter.join(waiting).data == whole.data


def test_quality_messages_and_blocks_stay_whole() -> None:
    splitter = MessageSplitter(FEED, True)
    for one in (
        OutgoingMessage(b"{}", 104, 1, 1, False, "gap"),
        OutgoingMessage(packet(7), 104, 1, 1, True),
    ):
        (waiting,) = splitter.split(one)
        assert waiting.modes == [FENCE]
        assert splitter.join(waiting) is one


def test_unknown_and_short_messages_are_never_conflated() -> None:
    splitter = MessageSplitter(FEED, True)
    for body in (b"\x00\x06\x27\x0f\0\0\0\0", quote(1)[:2] + quote(1)[2:20]):
        (waiting,) = splitter.split(outgoing(CONTENT_MESSAGE, body))
        assert waiting.modes == [NEVER]


def test_without_books_orders_stay_at_their_position() -> None:
    (waiting,) = MessageSplitter(FEED, False).split(outgoing(CONTENT_PACKET, packet(7, [order(1)])))
    assert waiting.modes == [NEVER]


def test_a_message_that_is_nothing_without_its_header_is_a_packet() -> None:
    feed = load_feed("nyse-openbook-ultra")
    body = feed.encode_packet(
        sequence=7, messages=[feed.encode_message(231, symbol_index=3)], packet_type=231
    )
    splitter = MessageSplitter(feed, False)
    (waiting,) = splitter.split(outgoing(CONTENT_MESSAGE, body, feed=feed))
    assert waiting.lead == feed.table.header_size
    assert splitter.join(waiting).data.endswith(body)


def test_policies_that_cannot_be_are_reported_in_one_line() -> None:
    assert "is a policy of [[publish]] only" in (fault_of_policy("journal", True) or "")
    assert fault_of_policy("journal", False, DESTINATION_POLICIES) is None
    assert fault_of_policy("sometimes", True) == "there is no policy 'sometimes'"
    assert "turned off" in fault_of_policy("conflate", False)
    assert fault_of_policy("detach", False) is None


@pytest.mark.parametrize("reason", ["books-begin", "books-end"])
def test_books_that_are_dropped_or_refused_leave_a_doubt(reason: str) -> None:
    dropped, refused = LossTracker(), LossTracker()
    outgoing = OutgoingMessage(msgspec.json.encode({"reason": reason}), 104, 7, 7, False, reason)
    dropped.drop(outgoing)
    assert dropped.skipping is (reason == "books-begin")
    assert dropped.skips(OutgoingMessage(b"", 104, 7, 7, True)) is dropped.skipping
    end = OutgoingMessage(b"{}", 104, 7, 7, False, "books-end")
    assert dropped.skips(end) is (reason == "books-begin")
    assert not dropped.skipping
    refused.refuse(outgoing)
    assert dropped.doubt == refused.doubt == BROKEN_BLOCK


def test_no_more_books_than_one_block_takes_go_at_a_time() -> None:
    made = ConflatedLink(services=(104,))
    number = 0
    for symbol in range(1, 4):
        for _ in range(60):
            orders = []
            for _ in range(10):
                number += 1
                orders.append(
                    FEED.encode_message(
                        230, symbol_index=symbol, action_type="A", order_id=number, price=1,
                        volume=1, side="1",
                    )
                )  # fmt: skip
            made.put(orders)
        made.put(
            [FEED.encode_message(230, symbol_index=symbol, action_type="M", order_id=number,
                                 price=2, volume=1, side="1")] * 2
        )  # fmt: skip
    made.rig.pump()
    made.grant(1_000_000)
    begins = [note for note in made.notes if note["reason"] == "books-begin"]
    assert [len(note["symbols"]) for note in begins] == [1, 1, 1]


@pytest.mark.parametrize(
    ("content", "body"),
    [(CONTENT_PACKET, packet(0)), (CONTENT_MESSAGE, quote(5)), (CONTENT_BATCH, packet(0))],
)
def test_what_stands_outside_the_sequence_gives_way_to_nothing(content: str, body: bytes) -> None:
    splitter, whole = MessageSplitter(FEED, True), outgoing(content, body, UNSEQUENCED_BIT | 5)
    (waiting,) = splitter.split(whole)
    assert waiting.modes == [FENCE]
    assert splitter.join(waiting) is whole
