"""Links that are not detached when behind: what gives way, how it is announced, what is held."""

import random

import msgspec
import pytest

from feedhandler.amqp.routing import AddressError, parse_address
from feedhandler.amqp.sender_queue import QUEUE_ENTRY_BYTES
from feedhandler.amqp.serving.backlogged_link import BackloggedLink
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import FEED, FakeLink, Rig, packet, prefix_of


class SlowLink:
    """A fan-out of one link that drops the oldest; `grants` is the credit."""

    def __init__(
        self,
        address: str = "#",
        queue_bytes: int = 20_000,
        services: tuple[int, ...] = (104,),
        history_bytes: int = 0,
    ) -> None:
        self.rig = Rig(services, history_bytes=history_bytes)
        self.link = FakeLink(0)
        self.now_ns = 0
        asked = parse_address(
            address, self.rig.feed.type_code, snapshots=True, history=history_bytes > 0
        )
        self.sender_queue = BackloggedLink(
            self.rig.peer, self.link, asked, self.rig.fanout.streams, queue_bytes, 2000,
            lambda: self.now_ns,
        )  # fmt: skip
        self.rig.fanout.add(self.sender_queue)

    def begin(self, channel: int = 0) -> None:
        self.rig.control_event(RecordKind.START, channel=channel, sequence=0, next_sequence=1)
        self.rig.pump()

    def stream(self, first: int, last: int, channel: int = 0) -> None:
        self.rig.packets(first, last, channel)
        self.rig.pump()

    def stream_by_fives(self, count: int, channel: int) -> None:
        """Packets as of a feed that counts messages."""
        for sequence in range(1, 5 * count, 5):
            assert self.rig.ring.put(
                RecordKind.PACKET, channel=channel, count=5, sequence=sequence,
                next_sequence=sequence + 5, payload=packet(sequence, service=105),
            )  # fmt: skip
        self.rig.pump()

    def grant(self, count: int) -> None:
        self.link.grants += count
        self.sender_queue.drain()

    @property
    def notes(self) -> list[dict]:
        return [msgspec.json.decode(m.body) for m in self.link.sent if "quality" in m.content]

    def check_numbers(self) -> None:
        """A client of ours ends the stream at a hole in the link's group-sequence."""
        numbers = [message.group_sequence for message in self.link.sent]
        assert numbers == list(range(len(numbers)))


def test_a_link_that_keeps_up_gets_what_an_ordinary_one_gets() -> None:
    slow = SlowLink("euronext.104")
    slow.grant(1000)
    _, ordinary = slow.rig.attach("euronext.104")
    slow.begin()
    slow.stream(1, 50)
    assert slow.link.frames == ordinary.frames
    assert slow.sender_queue.waited == 0
    assert slow.rig.peer.backlog == 0


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_a_range_is_announced_whole_while_another_service_is_read_from_its_history(
    grain: str,
) -> None:
    tag = prefix_of(FEED, 104) + (1).to_bytes(8) + b"\xff\xff"
    slow = SlowLink(f"#?as={grain}&from={tag.hex()}", services=(104, 105), history_bytes=1 << 20)
    rig, sender_queue = slow.rig, slow.sender_queue
    slow.begin(0)
    slow.begin(1)
    slow.stream(1, 3)
    rig.fanout.remove(sender_queue)
    found = rig.resumption.find(sender_queue.subscription)
    rig.fanout.add(sender_queue, list(found))
    rig.resumption.join(sender_queue, found)
    assert sender_queue.catching
    slow.stream_by_fives(300, 1)
    slow.grant(10_000)
    first = next(m.sequence for m in slow.link.data if m.key.startswith("euronext.105"))
    (overflow,) = [each for each in slow.notes if each["reason"] == "overflow"]
    assert overflow["service"] == 105
    # Of a packet of which a part was dropped all is named.
    assert overflow["lost"] in ([[1, first - 1]], [[1, first + 4]])


def test_the_oldest_give_way_and_the_range_is_announced_before_what_follows() -> None:
    slow = SlowLink()
    slow.begin()
    slow.stream(1, 300)
    assert slow.sender_queue.queued_bytes <= 20_000
    slow.grant(1000)
    first = next(m.sequence for m in slow.link.sent if m.content == "packet")
    quality = slow.notes[-1]
    assert quality["reason"] == "overflow"
    assert quality["lost"] == [[1, first - 1]]
    assert quality["state"] == "STALE"
    assert [m.sequence for m in slow.link.sent if m.content == "packet"] == [*range(first, 301)]
    assert [m.content for m in slow.link.sent].index("packet") == len(slow.notes)
    assert {m.sequence for m in slow.link.sent if "quality" in m.content} == {first}
    slow.check_numbers()
    assert slow.sender_queue.dropped == first
    assert not slow.sender_queue.behind


def test_one_credit_at_a_time_brings_data_and_not_only_news_of_loss() -> None:
    slow = SlowLink(queue_bytes=200_000)
    slow.begin()
    for sequence in range(1, 2501):
        slow.stream(sequence, sequence)
        if sequence % 3 == 0:
            slow.grant(1)
    kinds = [message.content for message in slow.link.sent]
    assert slow.sender_queue.dropped > 1000
    assert kinds.count("packet") > 9 * (len(kinds) - kinds.count("packet"))
    slow.check_numbers()


@pytest.mark.parametrize("grain", ["packet", "batch", "message"])
def test_whatever_credit_comes_the_bound_holds_and_every_gap_is_announced(
    grain: str, seed: int
) -> None:
    chance = random.Random(seed)
    slow = SlowLink(f"#?as={grain}", 30_000, (104, 105))
    following = [1, 1]
    for index in (0, 1):
        slow.begin(index)
    for _ in range(150):
        index, count = chance.randrange(2), chance.randrange(1, 30)
        slow.stream(following[index], following[index] + count - 1, index)
        following[index] += count
        grants = chance.choice([0, 0, 1, 1, 5, 40, 5000])
        slow.grant(grants)
        if chance.random() < 0.5:
            slow.link.grants = 0
        held = sum(len(outgoing.data) + QUEUE_ENTRY_BYTES for outgoing in slow.sender_queue.queue)
        assert held == slow.sender_queue.queued_bytes <= 30_000
    slow.grant(100_000)
    slow.check_numbers()
    assert slow.sender_queue.queued_bytes == 0
    got = {f"euronext.{service}": set() for service in (104, 105)}
    lost = {f"euronext.{service}": set() for service in (104, 105)}
    for message in slow.link.sent:
        service = ".".join(message.key.split(".")[:2])
        if "quality" in message.content:
            body = msgspec.json.decode(message.body)
            if body["reason"] == "overflow":
                for first, last in body["lost"]:
                    lost[service].update(range(first, last + 1))
                # Whoever resumes from its number, or merges, takes all before it for said.
                assert set(range(1, message.sequence)) <= got[service] | lost[service]
            continue
        if grain == "batch":
            at = 0
            while at < len(message.body):
                size = int.from_bytes(message.body[at : at + 2], "big")
                sequence = int.from_bytes(message.body[at + 4 : at + 8], "big")
                got[service].add(sequence)
                at += size
        else:
            got[service].add(message.sequence)
    for index, service in enumerate(got):
        assert got[service] | lost[service] == set(range(1, following[index]))
        if grain != "message":  # a packet's messages may fall on both sides of a loss
            assert not got[service] & lost[service]


def test_drop_oldest_needs_quality_messages() -> None:
    with pytest.raises(AddressError, match="needs the quality messages"):
        parse_address("#?full=drop_oldest&quality=0", int)
    assert parse_address("#?full=detach&quality=0", int).full == "detach"
    assert parse_address("#?full=drop_oldest", int).full == "drop_oldest"
    assert parse_address("#", int).full is None


@pytest.mark.parametrize(
    ("word", "condition"),
    [("journal", "amqp:not-implemented"), ("conflate", "amqp:not-implemented"),
     ("sometimes", "amqp:invalid-field")],
)  # fmt: skip
def test_a_policy_that_is_not_offered_is_refused_by_name(word: str, condition: str) -> None:
    with pytest.raises(AddressError, match=f"full={word}: this node offers detach, drop") as caught:
        parse_address(f"#?full={word}", int)
    assert caught.value.condition == condition
