"""The history of one service: where a tag stands in it, and what is said where it does not."""

import struct

import pytest

from feedhandler.amqp.framing import QUALITY_NOTE, SNAPSHOT_BIT, WHOLE_PACKET
from feedhandler.amqp.history import EPOCHS_MAX, Found, History, HistoryPosition
from feedhandler.amqp.routing import AddressError, parse_address, without_tags
from feedhandler.ingest.records import RecordKind
from feedhandler.retrans.store import PacketStore
from tests.support.amqp import FEED, Rig, order, packet, prefix_of
from tests.support.unsequenced import UTP as UNSEQUENCED

DAY = prefix_of(FEED, 104)
TOMORROW = struct.pack(">I", 20261122) + DAY[4:]


def tag(sequence: int, number: int = WHOLE_PACKET, prefix: bytes = DAY) -> bytes:
    return prefix + struct.pack(">QH", sequence, number)


class Service:
    """A history that is written by hand: packets of `size` bytes with `count` numbers each."""

    def __init__(self, bytes_max: int = 1 << 20, notes_bytes_max: int = 1 << 16) -> None:
        self.history = History(PacketStore(bytes_max), notes_bytes_max, DAY)
        self.next = 0
        self.prefix = DAY

    def packets(self, first: int, last: int, count: int = 1, messages: int = 5) -> None:
        for sequence in range(first, last + 1, count):
            data = bytes(100)
            self.history.store.append(sequence, sequence + count, data, 0, 100, 7, 0, messages)
            self.next = sequence + count

    def begin(self, prefix: bytes, first: int) -> None:
        end, self.prefix, self.next = self.history.store.end, prefix, first
        self.history.begin(prefix, first, end)
        self.history.store.clear()

    def note(self, text: bytes = b"{}", **block: object) -> None:
        self.history.note(self.prefix, self.next, text, **block)  # type: ignore[arg-type]

    def find(self, *where: object) -> Found:
        return self.history.find(tag(*where), self.next)  # type: ignore[arg-type]


@pytest.fixture
def service() -> Service:
    """A day from number 1, with a note before packet 11."""
    made = Service()
    made.begin(DAY, 1)
    made.packets(1, 10)
    made.note(b"ten")
    made.packets(11, 20)
    return made


def test_behind_a_whole_packet_comes_the_next_and_what_was_announced_before_it(
    service: Service,
) -> None:
    assert service.find(5) == Found(HistoryPosition(5, 0), 6)
    assert service.find(10) == Found(HistoryPosition(10, 0), 11)
    assert service.find(11) == Found(HistoryPosition(11, 1), 12)
    assert service.find(20) == Found(HistoryPosition(20, 1), 21)


def test_number_nought_is_the_beginning_of_the_day(service: Service) -> None:
    assert service.find(0) == Found(HistoryPosition(0, 0), 1)


def test_behind_a_message_comes_the_rest_of_its_packet(service: Service) -> None:
    assert service.find(10, 2) == Found(HistoryPosition(9, 0, skip=3), 10)
    assert service.find(10, 4) == Found(HistoryPosition(10, 0), 11)
    assert service.find(11, 0) == Found(HistoryPosition(10, 1, skip=1), 11)


def test_a_quality_messages_tag_is_the_position_before_the_packet_that_follows(
    service: Service,
) -> None:
    assert service.find(11, QUALITY_NOTE) == service.find(10)
    assert service.find(0, QUALITY_NOTE) == service.find(0)


def test_a_number_that_was_lost_is_followed_by_what_came_after_it(service: Service) -> None:
    service.note(b"gap")
    service.packets(25, 30)
    assert service.find(22) == Found(HistoryPosition(20, 1), 25)
    assert service.find(22, 3) == Found(HistoryPosition(20, 1), 25)


def test_where_numbers_count_messages_any_of_them_is_a_position() -> None:
    service = Service()
    service.begin(DAY, 1)
    service.packets(1, 20, count=5)
    assert service.find(6) == Found(HistoryPosition(2, 0), 11)
    assert service.find(8) == Found(HistoryPosition(1, 0, skip=3), 6)
    assert service.find(10) == Found(HistoryPosition(2, 0), 11)
    assert service.find(6, 1) == Found(HistoryPosition(1, 0, skip=2), 6)


def test_a_packet_that_overlaps_the_one_before_is_found_by_its_own_number() -> None:
    service = Service()
    service.begin(DAY, 1)
    service.packets(1, 5, count=5)
    assert service.history.store.append(4, 9, bytes(50), 0, 50, 7, 2, 5) == 1
    service.next = 9
    assert service.find(4) == Found(HistoryPosition(2, 0), 9)
    assert service.find(1) == Found(HistoryPosition(1, 0), 4)


def test_a_tag_from_ahead_means_the_live_stream(service: Service) -> None:
    assert service.find(25) == Found(HistoryPosition(20, 1), 21)


def test_before_anything_was_published_nothing_is_known() -> None:
    service = Service()
    assert service.find(5) == Found(HistoryPosition(0, 0), 0, "nothing was published yet")


def test_a_tag_before_the_join_is_too_late_by_what_was_before_it() -> None:
    service = Service()
    service.begin(DAY, 500)
    service.packets(500, 510)
    assert service.find(400) == Found(HistoryPosition(0, 0), 500, "too late", ((401, 499),))
    assert service.find(499) == Found(HistoryPosition(0, 0), 500)


def test_what_is_evicted_is_announced_from_the_tag_to_the_oldest_that_is_left() -> None:
    service = Service(bytes_max=1000)
    service.begin(DAY, 1)
    service.packets(1, 30)
    assert service.find(5) == Found(HistoryPosition(20, 0), 21, "too late", ((6, 20),))
    assert service.find(5, 1) == Found(HistoryPosition(20, 0), 21, "too late", ((5, 20),))
    assert service.find(20) == Found(HistoryPosition(20, 0), 21)
    assert service.find(20, 2) == Found(HistoryPosition(20, 0), 21, "too late", ((20, 20),))
    assert service.find(25) == Found(HistoryPosition(25, 0), 26)


def test_where_numbers_count_messages_the_last_evicted_packet_is_known_by_its_first() -> None:
    service = Service(bytes_max=1000)
    service.begin(DAY, 1)
    service.packets(1, 150, count=5)
    assert service.find(96) == Found(HistoryPosition(20, 0), 101)
    assert service.find(100) == Found(HistoryPosition(20, 0), 101)
    assert service.find(98).why == "too late"


def test_another_day_goes_on_with_the_oldest_that_is_held(service: Service) -> None:
    assert service.find(5, WHOLE_PACKET, TOMORROW) == Found(HistoryPosition(0, 0), 1, "another day")
    small = Service(bytes_max=1000)
    small.begin(TOMORROW, 1)
    small.packets(1, 30)
    assert small.find(5) == Found(HistoryPosition(20, 0), 21, "another day", ((1, 20),))


def test_a_tag_of_the_day_before_that_is_still_held_leads_across(service: Service) -> None:
    service.begin(TOMORROW, 1)
    service.packets(1, 5)
    assert service.find(15) == Found(HistoryPosition(15, 1), 16)
    assert service.find(3, WHOLE_PACKET, TOMORROW) == Found(HistoryPosition(23, 1), 4)
    assert service.history.prefix_at(19) == DAY
    assert service.history.prefix_at(20) == TOMORROW


def test_a_day_that_turns_while_numbers_go_on_leaves_no_tag_behind(service: Service) -> None:
    service.history.begin(TOMORROW, service.next, service.history.store.end, goes_on=True)
    service.packets(21, 30)
    assert service.find(20) == Found(HistoryPosition(20, 1), 21)
    assert service.find(25, WHOLE_PACKET, TOMORROW) == Found(HistoryPosition(25, 1), 26)
    # Tags of a gateway whose day turned a little earlier, and a little later, than ours.
    assert service.find(18, WHOLE_PACKET, TOMORROW) == Found(HistoryPosition(18, 1), 19)
    assert service.find(22).why == ""


def test_of_two_epochs_of_a_day_the_oldest_that_holds_the_number_is_meant(
    service: Service,
) -> None:
    service.begin(DAY, 1)
    service.packets(1, 5)
    assert service.find(3) == Found(HistoryPosition(3, 0), 4)
    assert service.find(50) == Found(HistoryPosition(25, 1), 6, "another epoch")


def test_a_tag_of_an_epoch_that_is_gone_is_answered_by_the_next_one_that_is_not() -> None:
    service = Service(bytes_max=1000)
    service.begin(DAY, 1)
    service.packets(1, 40)
    service.begin(TOMORROW, 1)
    service.packets(1, 15)
    assert service.find(39) == Found(HistoryPosition(45, 0), 6, "another epoch", ((1, 5),))


def test_an_epoch_in_which_nothing_was_published_is_none() -> None:
    service = Service()
    service.begin(DAY, 1)
    service.begin(TOMORROW, 1)
    assert len(service.history.epochs) == 1


def test_an_epoch_ends_though_the_store_was_cleared_before_the_history_hears_of_it(
    service: Service,
) -> None:
    service.history.store.clear()
    service.begin(TOMORROW, 1)
    service.packets(1, 5)
    assert service.history.epochs[0].end == 21


def test_a_tag_from_ahead_of_a_day_that_is_over_is_followed_by_the_next_day() -> None:
    service = Service(bytes_max=1000)
    service.begin(DAY, 1)
    service.packets(1, 5)
    service.begin(TOMORROW, 1)
    service.note(b"reset")
    service.packets(1, 3)
    assert service.find(8) == Found(HistoryPosition(5, 0), 1)
    service.packets(4, 20)
    assert service.find(8) == Found(HistoryPosition(15, 1), 11, "another epoch", ((1, 10),))
    twice = Service()
    twice.begin(DAY, 1)
    twice.packets(1, 5)
    twice.begin(DAY, 1)
    twice.packets(1, 5)
    twice.begin(TOMORROW, 1)
    twice.packets(1, 5)
    assert twice.find(8) == Found(HistoryPosition(0, 0), 1, "another epoch")


def test_epochs_are_bounded_and_what_is_older_is_not_found() -> None:
    service = Service()
    for number in range(EPOCHS_MAX + 5):
        service.begin(struct.pack(">I", number) + DAY[4:], 1)
        service.packets(1, 1)
    assert len(service.history.epochs) == EPOCHS_MAX
    assert service.history.find(tag(1, WHOLE_PACKET, struct.pack(">I", 2) + DAY[4:]), 2) == Found(
        HistoryPosition(5, 0), 1, "another day"
    )


def test_notes_are_bounded_and_what_was_published_before_them_goes_with_them() -> None:
    service = Service(notes_bytes_max=3000)
    service.begin(DAY, 1)
    for sequence in range(1, 21):
        service.note(b"x" * 244)
        service.packets(sequence, sequence)
    history = service.history
    assert history.notes_bytes <= 3000
    assert (history.gone, len(history.notes)) == (14, 6)
    assert history.floor == 13
    assert service.find(14) == Found(HistoryPosition(14, 14), 15)
    assert service.find(13) == Found(HistoryPosition(13, 14), 14, "too late")
    assert service.find(14, 2) == Found(HistoryPosition(13, 14, skip=3), 14)
    assert service.find(12) == Found(HistoryPosition(13, 14), 14, "too late", ((13, 13),))
    assert history.quality_before(HistoryPosition(13, 14)) == b"x" * 244


def test_notes_before_the_oldest_packet_go_with_it() -> None:
    service = Service(bytes_max=1000)
    service.begin(DAY, 1)
    service.note(b"first")
    service.packets(1, 5)
    service.note(b"second")
    service.packets(6, 30)
    service.note(b"third")
    assert [note.body for note in service.history.notes] == [b"third"]
    assert service.history.quality_before(service.history.find_end()) == b"third"
    assert service.history.quality_before(HistoryPosition(20, 2)) == b"second"
    assert service.history.held_bytes == 1000 + service.history.notes_bytes


def test_a_block_is_found_by_its_packets_tags(service: Service) -> None:
    block = (b"a", b"b", b"c")
    service.note(b"begin", packets=block, last=20, end=b"end")
    service.packets(21, 25)
    in_block = SNAPSHOT_BIT | 20 << 24
    assert service.find(in_block) == Found(HistoryPosition(20, 1, block=1), 21)
    assert service.find(in_block | 2) == Found(HistoryPosition(20, 1, block=3), 21)
    assert service.find(in_block | 1, 0) == Found(HistoryPosition(20, 1, skip=1, block=1), 21)
    assert service.find(in_block | 3).why == "a snapshot that is not kept"
    other = SNAPSHOT_BIT | 22 << 24
    kept = "a snapshot that is not kept"
    assert service.find(other) == Found(HistoryPosition(25, 2), 26, kept, ((23, 25),))
    assert service.find(other, 0, TOMORROW) == Found(HistoryPosition(25, 2), 26, kept, ((1, 25),))
    assert service.history.quality_before(HistoryPosition(25, 2)) == b"end"


def test_packets_that_a_snapshot_made_needless_are_left_out(service: Service) -> None:
    history = service.history
    history.close()
    history.close()
    service.packets(21, 30)
    service.note(b"begin")
    assert history.end == 20
    assert history.find(tag(20), 21) == Found(HistoryPosition(20, 1), 21)
    history.open(26)
    history.open(28)
    service.packets(31, 32)
    assert history.find(tag(20), 33) == Found(HistoryPosition(25, 1), 26)
    assert history.find(tag(22), 33) == Found(HistoryPosition(25, 1), 26)
    assert history.find(tag(26), 33) == Found(HistoryPosition(26, 2), 27)
    assert history.published_until(10, None) == 20
    assert history.published_until(25, None) == 32
    history.close()
    history.open(33)
    assert history.published_from(32) == 32


def test_who_is_overtaken_goes_on_in_the_middle() -> None:
    service = Service(bytes_max=1000)
    service.begin(DAY, 1)
    service.packets(1, 30)
    found = service.history.overtaken(HistoryPosition(3, 0), 4, service.next)
    assert found == Found(HistoryPosition(25, 0), 26, "too slow", ((4, 25),))
    service.begin(TOMORROW, 1)
    service.packets(1, 12)
    found = service.history.overtaken(HistoryPosition(3, 0), 4, service.next)
    assert found == Found(HistoryPosition(37, 0), 8, "too slow", ((1, 7),))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("01" * 18, (b"\x01" * 18,)),
        (f"{'01' * 18},{'02' * 18}", (b"\x01" * 18, b"\x02" * 18)),
        (f"{'aB' * 18}", (b"\xab" * 18,)),
        (f"{'01' * 18},{'01' * 18}", None),
        ("01" * 17, None),
        ("0g" * 18, None),
        ("", None),
    ],
)
def test_tags_are_read_from_an_address(words: str, wanted: tuple[bytes, ...] | None) -> None:
    address = f"euronext.104?as=batch&from={words}"
    if wanted is None:
        with pytest.raises(AddressError, match="from="):
            parse_address(address, FEED.type_code, history=True)
    else:
        assert parse_address(address, FEED.type_code, history=True).resume == wanted
    assert without_tags(address) == "euronext.104?as=batch"
    assert without_tags(f"euronext.104?from={words}") == "euronext.104"


def test_a_link_with_snapshots_that_cannot_have_everything_is_sent_one_instead() -> None:
    rig = Rig(history_bytes=2_000)
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.packets(1, 30)
    rig.pump()
    tags = f"from={tag(2).hex()}"
    sender_queue, link = rig.attach(f"euronext.104?snapshot=1&{tags}")
    stream = rig.streams[0]
    assert rig.resumption.refused == 1
    assert sender_queue in stream.concerned
    assert [each.sequence for each in link.sent] == [31]
    assert b'"lost":[[3,30]]' in bytes(link.sent[0].body)
    slow, other = rig.attach(f"euronext.104?snapshot=1&from={tag(28).hex()}", grants=1)
    rig.packets(31, 60)
    rig.pump()
    other.grants = 5
    rig.catch_up()
    assert rig.snapshots_asked == [(slow, [stream])]
    assert slow.catching == 0
    assert b'"lost":[[29,60]]' in bytes(other.sent[-1].body)


def test_packets_of_the_past_are_thinned_by_names_as_they_are_known_now() -> None:
    rig = Rig(history_bytes=1 << 16)
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    for sequence in (1, 2):
        rig.put(packet(sequence, [order(1003), order(1004)]), sequence, 2)
    rig.pump()
    address = f"euronext.104.ABC?as=message&from={tag(0).hex()}"
    _, before = rig.attach(address)
    rig.catch_up()
    assert before.data == []
    rig.names[1003] = "ABC"
    rig.streams[0].forget_routes()
    _, link = rig.attach(address)
    rig.catch_up()
    assert [(each.key, each.sequence) for each in link.data] == [
        ("euronext.104.ABC", 1),
        ("euronext.104.ABC", 2),
    ]


def test_a_link_without_quality_messages_is_given_up_where_it_is_overtaken() -> None:
    rig = Rig(history_bytes=4_000)
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.packets(1, 8)
    rig.pump()
    sender_queue, link = rig.attach(f"euronext.104?quality=0&from={tag(3).hex()}", grants=0)
    rig.packets(9, 40)
    rig.pump()
    link.grants = 100
    rig.catch_up()
    assert sender_queue.overrun
    assert (sender_queue.catching, link.frames) == (0, [])
    assert sender_queue in rig.peer.overruns


def test_a_link_without_quality_messages_gets_the_packets_between_them() -> None:
    rig = Rig(history_bytes=1 << 16)
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.packets(1, 2)
    rig.control_event(RecordKind.GAP, sequence=3, next_sequence=5)
    rig.packets(5, 6)
    rig.pump()
    rig.block([packet(6, [order(1003)])], last=6)
    _, link = rig.attach(f"euronext.104?quality=0&from={tag(0).hex()}")
    rig.catch_up()
    assert [each.sequence for each in link.sent] == [1, 2, 5, 6]


def test_a_reader_whose_next_note_is_gone_is_overtaken_though_its_packet_is_there() -> None:
    rig = Rig(history_bytes=20_000)
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.packets(1, 2)
    rig.pump()
    sender_queue, link = rig.attach(f"euronext.104?from={tag(1).hex()}", grants=0)
    sender_queue.drain()
    for line in (0, 1) * 20:
        rig.control_event(RecordKind.LINE_SILENT, line=line, sequence=3)
        rig.control_event(RecordKind.LINE_BACK, line=line, sequence=3)
    rig.packets(3, 4)
    rig.pump()
    link.grants = 1_000
    sender_queue.drain()
    rig.catch_up()
    assert b'"too slow"' in bytes(link.sent[1].body)
    assert rig.resumption.catch_ups.overtaken == 1
    assert sender_queue.catching == 0


def test_a_link_without_quality_messages_is_given_up_where_a_note_is_gone() -> None:
    rig = Rig((104, 105), history_bytes=20_000)
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.packets(1, 2)
    rig.pump()
    other = tag(1, prefix=prefix_of(FEED, 105)).hex()
    address = f"euronext.104?quality=0&from={other},{tag(1).hex()}"
    sender_queue, link = rig.attach(address, grants=0)
    for line in (0, 1) * 20:
        rig.control_event(RecordKind.LINE_SILENT, line=line, sequence=3)
        rig.control_event(RecordKind.LINE_BACK, line=line, sequence=3)
    rig.pump()
    link.grants = 1_000
    rig.catch_up()
    assert sender_queue.overrun
    assert link.frames == []


def test_links_take_turns_and_a_turn_ends_whatever_is_left() -> None:
    rig = Rig(history_bytes=1 << 20)
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.packets(1, 100)
    rig.pump()
    links = [rig.attach(f"euronext.104?from={tag(0).hex()}")[1] for _ in range(3)]
    for _ in range(3):
        assert rig.resumption.catch_ups.turn(2_000)
    counts = {len(link.data) for link in links}
    assert len(counts) == 1
    assert 0 < counts.pop() < 10
    rig.catch_up()
    assert {len(link.data) for link in links} == {100}


# -- packets outside the sequence -----------------------------------------------------------

ASIDE = 1 << 62 | 77


def aside(service: Service) -> None:
    service.history.store.append_unsequenced(ASIDE, service.next, b"aside", 0, 5, 7, 3)


def test_what_came_outside_the_sequence_follows_the_packet_before_it(service: Service) -> None:
    aside(service)
    service.packets(21, 22)
    assert service.find(20) == Found(HistoryPosition(20, 1), 21)
    assert service.find(21) == Found(HistoryPosition(22, 1), 22)


def test_a_tag_from_outside_the_sequence_is_a_position_as_long_as_it_is_held(
    service: Service,
) -> None:
    aside(service)
    service.note(b"behind")
    service.packets(21, 22)
    assert service.find(ASIDE) == Found(HistoryPosition(21, 1), 21)
    assert service.find(ASIDE, 2) == Found(HistoryPosition(21, 1), 21)
    assert service.find(ASIDE, 0) == Found(HistoryPosition(20, 1, skip=1), 21)
    unknown = service.find(ASIDE + 1)
    assert (unknown.why, unknown.lost) == (
        "a packet outside the sequence that is not kept", (),
    )  # fmt: skip
    assert service.find(ASIDE, WHOLE_PACKET, TOMORROW).why


def test_a_resumed_link_gets_what_came_outside_the_sequence_after_its_tag() -> None:
    rig = Rig(feed=UNSEQUENCED, history_bytes=1 << 20)
    rig.control_event(RecordKind.START, sequence=1, next_sequence=1)
    rig.packets(1, 2)
    sequence = rig.outside(packet(0), 1, 5)
    rig.packets(3, 4)
    rig.pump()
    for grain, number, following in (("packet", 2, 3), ("batch", 2, 3), ("message", 2, 3)):
        word = tag(number).hex()
        _, link = rig.attach(f"euronext.104?as={grain}&from={word}")
        rig.catch_up()
        sequences = list(dict.fromkeys(each.sequence for each in link.data))
        assert sequences == ([sequence, 3] if grain == "batch" else [sequence, following, 4])
    _, link = rig.attach(f"euronext.104?from={tag(sequence).hex()}")
    rig.catch_up()
    assert [each.sequence for each in link.data] == [3, 4]
