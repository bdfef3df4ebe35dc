"""The envelope: what goes around a message, as proton's own codec reads it."""

import random
from typing import Any

import pytest
from proton import Message

from feedhandler.amqp import framing
from feedhandler.amqp.brokers import way_to
from feedhandler.amqp.framing import Frame, Template
from feedhandler.amqp.proton import PublisherLink
from feedhandler.amqp.publishing.envelope import ADDRESSES_MAX, HEADER, Envelope
from tests.support.amqp import FEED, prefix_of


class Parts(PublisherLink):
    """A link that joins what it is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def send_parts(
        self, number: int, lead: Any, data: bytes, skip: int, cut: int, to: bytes
    ) -> int:
        rest = data[skip:cut] + to + data[cut + 1 :] if to else data
        self.sent.append((number, bytes(lead) + rest))
        return 0


def message(
    key: str, body: bytes, content: str = framing.CONTENT_PACKET, stamp: int = 0, sent: int = 0
) -> bytes:
    """A message of ours as it waits; `stamp`, `sent`: with this receive stamp, this send time."""
    frame = Frame(70_000)
    template = Template(key, content, prefix_of(FEED, 104), stamp > 0, sent > 0)
    frame.begin(template, 7, framing.WHOLE_PACKET, stamp)
    frame.set_send_time(sent)
    frame.append(body, 0, len(body))
    frame.finish(3)
    return frame.snapshot()


def enveloped(envelope: Envelope, key: str, data: bytes) -> Message:
    link = Parts()
    envelope.send(link, 5, key, data)
    ((number, sent),) = link.sent
    assert number == 5
    made = Message()
    made.decode(sent)
    return made


def test_without_an_address_a_header_goes_before_the_message() -> None:
    data = message("euronext.104", b"body")
    link = Parts()
    Envelope().send(link, 1, "euronext.104", data)
    assert link.sent == [(1, HEADER + data)]


@pytest.mark.parametrize("length", [1, 40, 255, 256, 1000])
def test_an_address_of_any_length_stands_at_its_offset(length: int, seed: int) -> None:
    chance = random.Random(seed)
    body = chance.randbytes(chance.randrange(1500))
    key = "a" * chance.randrange(1, 300)
    data = message(key, body)
    made = enveloped(Envelope(b"", lambda subject: "t" * length), key, data)
    plain = enveloped(Envelope(), key, data)
    assert made.address == "t" * length
    assert made.durable
    for field in ("id", "subject", "content_type", "group_sequence", "body"):
        assert getattr(made, field) == getattr(plain, field)
    assert bytes(made.body) == body


def test_artemis_is_told_that_the_address_is_a_topics() -> None:
    way = way_to("artemis", "topic", "md", True)
    made = enveloped(
        Envelope(way.annotations, way.to), "euronext.104", message("euronext.104", b"")
    )
    assert made.address == "md.euronext.104"
    assert made.annotations == {"x-opt-jms-dest": 1}


#: Brokers whose messages say where they go, and that annotate nothing.
OTHERS: tuple[tuple[str, Any, dict[str, int]], ...] = (("rabbitmq-4", "exchange", {}),)
STAMP = 1_790_000_000_123_456_789


def test_without_an_address_a_stamped_message_goes_as_it_is() -> None:
    made = enveloped(Envelope(), "euronext.104", message("euronext.104", b"body", stamp=STAMP))
    assert made.annotations == {"x-opt-received-ns": STAMP}
    assert (made.subject, bytes(made.body), made.durable) == ("euronext.104", b"body", True)


def test_a_stamp_and_a_send_time_stand_beside_what_the_envelope_annotates() -> None:
    key = "euronext.104"
    for kind, form, own in (("artemis", "topic", {"x-opt-jms-dest": 1}), *OTHERS):
        way = way_to(kind, form, "md", True)
        envelope = Envelope(way.annotations, way.to)
        stamped = enveloped(envelope, key, message(key, b"body", stamp=STAMP))
        plain = enveloped(envelope, key, message(key, b"body"))
        again = enveloped(envelope, key, message(key, b"body", stamp=STAMP + 1))
        assert stamped.annotations == {**own, "x-opt-received-ns": STAMP}
        assert again.annotations == {**own, "x-opt-received-ns": STAMP + 1}
        assert (plain.annotations or {}) == own
        both = enveloped(envelope, key, message(key, b"body", stamp=STAMP, sent=STAMP - 9))
        timed = enveloped(envelope, key, message(key, b"body", sent=STAMP - 9))
        assert timed.annotations == {**own, "x-opt-send-time": STAMP - 9}
        assert both.annotations == {**timed.annotations, "x-opt-received-ns": STAMP}
        for made in (stamped, timed, both):
            for field in ("id", "subject", "address", "group_sequence", "body"):
                assert getattr(made, field) == getattr(plain, field)


def test_addresses_are_made_once_and_remembered_within_a_bound() -> None:
    asked: list[str] = []

    def address(subject: str) -> str:
        asked.append(subject)
        return subject

    envelope = Envelope(b"", address)
    data = message("k", b"")
    link = Parts()
    for _ in range(3):
        envelope.send(link, 1, "k", data)
    assert asked == ["k"]
    for number in range(ADDRESSES_MAX):
        envelope.send(link, 1, f"k{number}", data)
    envelope.send(link, 1, "k", data)
    assert len(asked) == ADDRESSES_MAX + 2
