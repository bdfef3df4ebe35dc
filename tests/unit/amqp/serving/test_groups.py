"""Groups: links that share a stream, one that dies, one that gives back; no socket."""

import random
from itertools import pairwise
from typing import Any

import pytest

from feedhandler.amqp import proton
from feedhandler.amqp.routing import AddressError, parse_address
from feedhandler.amqp.sender_queue import Peer
from feedhandler.amqp.serving.groups import (
    ATTEMPTS_MAX,
    HEADER_AGAIN,
    MEMBERS_MAX,
    NOTES_MAX,
    Group,
    Groups,
    Member,
    group_name,
)
from feedhandler.ingest.records import RecordKind
from tests.support.amqp import FEED, FakeLink, Rig, decoded, order, packet
from tests.support.seeds import drawn


class Consumer(FakeLink):
    """A member's link; `settles`: at least once, what is accepted is said by `say`."""

    def __init__(self, grants: int = 1_000_000, settles: bool = True) -> None:
        super().__init__(grants)
        self.settles = settles
        self.confirmed: list[int] = []
        self.returned: list[tuple[int, int, str]] = []

    @property
    def settled(self) -> bool:
        return not self.settles


class GroupRig(Rig):
    """A fan-out with one group behind it."""

    def __init__(self, address: str, queue_bytes: int = 1 << 20, **options: Any) -> None:
        super().__init__(**options)
        subscription = parse_address(address, FEED.type_code)
        self.group = Group("g", subscription, self.fanout.dirty_peers, queue_bytes, 65_536)
        self.fanout.add(self.group)

    def member(self, grants: int = 1_000_000, settles: bool = True) -> tuple[Member, Consumer]:
        link = Consumer(grants, settles)
        return self.group.join(Peer(self.fanout.dirty_peers), link), link

    def accept(self, member: Member, count: int = 1_000_000) -> None:
        """The member accepts the oldest messages that it has."""
        for number in list(member.unsettled)[:count]:
            member.sender.confirmed.append(number)
        member.process_outcomes()


def keys(link: FakeLink) -> set[str]:
    return {each.key for each in link.data}


def tags(*links: FakeLink) -> list[bytes]:
    return sorted(each.tag for link in links for each in link.data)


@pytest.mark.parametrize("settles", [True, False])
def test_each_message_goes_to_one_member_and_a_symbols_messages_to_the_same(settles: bool) -> None:
    rig = GroupRig("euronext.104?as=message")
    _, alone = rig.attach("euronext.104?as=message")
    members = [rig.member(settles=settles) for _ in range(3)]
    rig.packets(1, 100)
    rig.pump()
    links = [link for _, link in members]
    assert tags(*links) == tags(alone)
    assert sum(bool(keys(link)) for link in links) > 1
    for one in links:
        for other in links:
            assert one is other or not keys(one) & keys(other)
        assert [each.group_sequence for each in one.sent] == list(range(len(one.sent)))


@pytest.mark.parametrize("grain", ["packet", "batch"])
def test_packets_of_a_service_go_to_the_services_member(grain: str) -> None:
    rig = GroupRig(f"euronext.*?as={grain}", services=(104, 105, 106, 107))
    links = [rig.member()[1] for _ in range(2)]
    for channel in range(4):
        rig.packets(1, 10, channel)
    rig.pump()
    assert set.union(*map(keys, links)) == {f"euronext.{n}" for n in range(104, 108)}
    assert not keys(links[0]) & keys(links[1])


def test_what_a_dead_member_had_not_settled_goes_to_the_others_first_in_order() -> None:
    rig = GroupRig("euronext.104?as=message")
    (dying, dead), (living, link) = rig.member(), rig.member()
    rig.packets(1, 20)
    rig.pump()
    rig.accept(dying, 3)
    lost = dead.data[3:]
    rig.packets(21, 21)
    link.grants = dead.grants = 0
    rig.pump()
    before = len(link.frames)
    rig.group.leave(dying)
    assert len(link.frames) == before
    link.grants = 1_000
    living.drain()
    again = link.frames[before : before + len(lost)]
    assert [frame[: len(HEADER_AGAIN)] for frame in again] == [HEADER_AGAIN] * len(lost)
    assert [frame[len(HEADER_AGAIN)] for frame in again] == [1] * len(lost)
    lost_at = [each.tag for each in dead.data[3:]]
    assert [decoded(frame).tag for frame in again][: len(lost)] == lost_at
    rest = [decoded(frame) for frame in link.frames[before + len(lost) :]]
    assert {each.sequence for each in rest} == {21}
    assert rig.group.resent == len(lost)
    rig.accept(living)
    assert (rig.group.unsettled_bytes, rig.group.waiting_bytes) == (0, 0)


def test_what_is_given_back_goes_to_another_member_and_after_some_times_to_none() -> None:
    rig = GroupRig("euronext.104?as=message")
    members = [rig.member() for _ in range(2)]
    rig.put(packet(1, [order(1003)]), 1, 1)
    rig.pump()
    holders = []
    for _ in range(ATTEMPTS_MAX):
        (holder,) = [member for member, _ in members if member.unsettled]
        holders.append(holder)
        holder.sender.returned.append((next(iter(holder.unsettled)), proton.RELEASED, ""))
        holder.process_outcomes()
    assert all(one is not other for one, other in pairwise(holders))
    assert [member.unsettled for member, _ in members] == [{}, {}]
    assert (rig.group.abandoned, rig.group.resent) == (1, ATTEMPTS_MAX - 1)
    assert rig.group.unsettled_bytes == 0


def test_a_single_member_gets_again_what_it_gave_back_and_a_rejected_message_is_done_with() -> None:
    rig = GroupRig("euronext.104?as=message")
    member, link = rig.member()
    rig.put(packet(1, [order(1003), order(1004)]), 1, 2)
    rig.pump()
    member.sender.returned += [(1, proton.MODIFIED, ""), (2, proton.REJECTED, "no")]
    member.process_outcomes()
    assert len(link.frames) == 3
    assert list(member.unsettled) == [3]
    rig.accept(member)
    assert rig.group.unsettled_bytes == 0


def test_where_a_symbols_member_has_no_credit_another_takes_its_messages() -> None:
    rig = GroupRig("euronext.104?as=message")
    (_, first), (_, second) = rig.member(grants=5), rig.member(grants=5)
    for sequence in range(1, 11):
        rig.put(packet(sequence, [order(1003)]), sequence, 1)
    rig.pump()
    assert {first.grants, second.grants} == {0}
    assert len(tags(first, second)) == 10


def test_quality_messages_go_to_every_member_ahead_of_later_data() -> None:
    rig = GroupRig("euronext.104?as=message")
    (_, full), (waiting, empty) = rig.member(), rig.member(grants=0)
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.packets(1, 2)
    rig.control_event(RecordKind.GAP, sequence=3, next_sequence=5)
    rig.packets(5, 6)
    rig.pump()
    assert [e.content for e in full.sent].count("quality+json") == 2
    assert len(waiting.notes) == 2
    assert waiting.behind
    empty.grants = 1_000
    waiting.drain()
    assert [e.content for e in empty.sent] == ["quality+json"] * 2
    assert not waiting.behind


def test_of_many_quality_messages_the_latest_of_each_service_waits() -> None:
    rig = GroupRig("euronext.*?as=message", services=(104, 105))
    member, link = rig.member(grants=0)
    for number in range(NOTES_MAX):
        for channel in range(2):
            rig.control_event(RecordKind.START, channel=channel, next_sequence=number + 1)
    rig.pump()
    assert 2 <= len(member.notes) <= NOTES_MAX
    link.grants = 1_000
    member.drain()
    assert {each.key for each in link.sent[-2:]} == {"euronext.104.quality", "euronext.105.quality"}


def test_a_quality_message_waits_behind_the_data_before_it() -> None:
    rig = GroupRig("euronext.104?as=message")
    member, link = rig.member(grants=0)
    rig.packets(1, 1)
    rig.control_event(RecordKind.GAP, sequence=2, next_sequence=5)
    rig.packets(5, 5)
    rig.pump()
    link.grants = 1_000
    member.drain()
    assert [e.content for e in link.sent] == ["message"] * 5 + ["quality+json"] + ["message"] * 5


def test_a_batch_grows_while_no_member_has_credit_and_goes_to_the_first_that_has() -> None:
    rig = GroupRig("euronext.104?as=batch")
    member, link = rig.member(grants=0)
    data = rig.packets(1, 5)
    rig.pump()
    assert member.has_open_batch()
    assert member.behind
    link.grants = 1
    member.drain()
    assert [each.body for each in link.data] == [b"".join(data)]
    assert not member.behind


def test_a_group_that_overruns_its_bound_is_over_for_every_member() -> None:
    rig = GroupRig("euronext.104?as=message", queue_bytes=20_000)
    members = [rig.member(grants=3) for _ in range(2)]
    rig.packets(1, 100)
    rig.pump()
    for peer in rig.fanout.flush():
        if peer is rig.group.peer:
            peer.attend()
    assert all(member.overrun for member, _ in members)
    assert all(member.peer.overruns == [member] for member, _ in members)
    assert rig.group.waiting_bytes == 0
    rig.packets(101, 101)
    rig.pump()
    with pytest.raises(AddressError, match="more than 20000 bytes waited"):
        rig.member()  # it would never get anything
    for member, _ in members:
        rig.group.leave(member)
    assert sum(len(link.frames) for _, link in members) == 6


def test_what_is_unsettled_counts_for_the_bound() -> None:
    rig = GroupRig("euronext.104?as=message", queue_bytes=20_000)
    rig.member(grants=50)
    rig.packets(1, 10)
    rig.pump()
    assert not rig.group.overrun
    assert 10_000 < rig.group.unsettled_bytes < 20_000
    rig.packets(11, 20)
    rig.pump()
    assert rig.group.overrun


def test_members_are_bounded_and_have_to_ask_for_the_same() -> None:
    rig = GroupRig("euronext.104?as=message")
    for _ in range(MEMBERS_MAX):
        rig.member()
    with pytest.raises(AddressError, match="64 members"):
        rig.member()
    groups = Groups()
    groups.add(rig.group)
    same = parse_address("euronext.104?as=message", FEED.type_code)
    assert groups.find("g", same) is rig.group
    assert groups.find("h", same) is None
    for other in ("euronext.105?as=message", "euronext.104", "euronext.104?as=message&types=230"):
        with pytest.raises(AddressError, match="another address"):
            groups.find("g", parse_address(other, FEED.type_code))
    for option in ("snapshot=1", f"from={'0' * 36}"):
        asked = parse_address(f"euronext.104?{option}", FEED.type_code, True, True)
        with pytest.raises(AddressError, match="shared"):
            groups.find("h", asked)
    groups.remove(rig.group)
    assert groups.find("g", same) is None
    assert group_name("ann", "prices|consumer 2") == group_name("ann", "prices")
    assert group_name("ann", "prices") != group_name("bob", "prices")


@drawn(4)
def test_members_that_come_go_settle_and_give_back_lose_nothing_together(seed: int) -> None:
    print(f"python -m pytest {__file__} -k 'together and {seed}'")
    chance = random.Random(seed)
    rig = GroupRig("euronext.104?as=message", queue_bytes=1 << 24)
    _, alone = rig.attach("euronext.104?as=message")
    members = [rig.member(chance.randint(0, 20))]
    accepted: set[bytes] = set()

    def settle(member: Member, link: Consumer, count: int) -> None:
        for number in list(member.unsettled)[:count]:
            message = member.unsettled[number]
            if chance.random() < 0.05 and message.attempts < ATTEMPTS_MAX - 1:
                link.returned.append((number, proton.RELEASED, ""))
            else:
                link.confirmed.append(number)
                accepted.add(decoded(bytes(message.data)).tag)
        member.process_outcomes()

    for sequence in range(1, 61):
        rig.packets(sequence, sequence)
        rig.pump()
        if chance.random() < 0.2 and len(members) < 5:
            members.append(rig.member(chance.randint(0, 20)))
        if chance.random() < 0.1 and len(members) > 1:
            rig.group.leave(members.pop(chance.randrange(len(members)))[0])
        for member, link in members:
            link.grants += chance.randint(0, 8)
            member.drain()
            settle(member, link, chance.randint(0, 10))
    while len(accepted) < len(alone.data):
        for member, link in members:
            link.grants += 10
            member.drain()
            settle(member, link, 100)
    assert accepted == {each.tag for each in alone.data}
    assert (rig.group.waiting_bytes, rig.group.unsettled_bytes) == (0, 0)


def test_a_message_for_one_member_and_settlements_of_nothing_do_no_harm() -> None:
    rig = GroupRig("euronext.104?as=message")
    (member, link), (settled, other) = rig.member(grants=0), rig.member(settles=False)
    rig.fanout.quality(rig.streams[0], b"{}", [member])
    assert member.queued_bytes > 0
    link.grants = 10
    member.drain()
    link.confirmed.append(1)
    link.returned.append((77, proton.RELEASED, ""))
    member.process_outcomes()
    settled.process_outcomes()
    member.close_batch(0)
    assert (len(link.frames), other.frames, member.queued_bytes) == (1, [], 0)
    rig.fanout.quality(rig.streams[0], b"{}", [member])
    rig.group.leave(member)
    assert rig.group.unsettled_bytes == 0
    peer = rig.group.peer
    peer.attend()
    assert not settled.overrun


def test_the_members_of_many_keys_are_worked_out_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("feedhandler.amqp.serving.groups.KEYS_MAX", 2)
    rig = GroupRig("euronext.104?as=message")
    links = [rig.member()[1] for _ in range(2)]
    rig.packets(1, 20)
    rig.pump()
    assert len(tags(*links)) == 100
    assert len(rig.group.homes) <= 2
    assert not keys(links[0]) & keys(links[1])


def test_groups_count_for_those_that_are_over() -> None:
    rig, groups = GroupRig("euronext.104"), Groups()
    groups.add(rig.group)
    rig.group.resent, rig.group.abandoned = 3, 2
    assert (groups.resent, groups.abandoned) == (3, 2)
    groups.remove(rig.group)
    groups.remove(rig.group)
    assert (groups.resent, groups.abandoned) == (3, 2)


def test_after_an_overrun_nothing_is_queued_again() -> None:
    rig = GroupRig("euronext.104?as=message", queue_bytes=4_000)
    member, _ = rig.member(grants=3)
    rig.packets(1, 20)
    rig.pump()
    assert rig.group.overrun
    rig.group.leave(member)
    rig.group.drain()
    assert rig.group.waiting_bytes == 0
