"""Segments, built and read back by the compiled module and by its interpreted twin alike."""

import random

from feedhandler.journal import segments
from tests.support.twins import either, twins_of

PAGE = 4096
QUEUE = bytes(range(16))
TWINS = twins_of(segments)
twin = either(TWINS)


#: What a record may say, and what none says.
KINDS = [0, 1, 4, 5, 0x80, 0xFF, 0x100, 0x10, 0x310, 0x11, 0x511, 0x8011, 0x12]


def built(twin, contents, statuses=(), sequence=7, previous=5, identity=None, version=1):
    """A segment's bytes."""
    identity = identity or twin.BlockIdentity(QUEUE, 1, 2)
    data, crc = twin.build_segment(
        identity,
        sequence,
        1000,
        previous,
        40,
        list(contents),
        list(statuses),
        bytearray(),
        version,
    )
    return bytearray(data), crc


def parsed(twin, data, at=0, identity=None):
    """Return the segment that is parsed at `at`, or None where there is none."""
    identity = identity or twin.BlockIdentity(QUEUE, 1, 2)
    return twin.parse_segment(memoryview(bytes(data)), at, identity)


def test_both_twins_build_the_same_bytes() -> None:
    draw = random.Random(1)
    contents = [draw.randbytes(draw.randrange(3000)) for _ in range(20)]
    first, second = (built(twin, contents, [(3, 2, 1), (9, 1, 2)]) for twin in TWINS.values())
    assert first == second


def test_memory_that_was_used_before_leaves_no_trace(twin) -> None:
    used = bytearray(b"\xff" * 3 * PAGE)
    identity = twin.BlockIdentity(QUEUE, 1, 2)
    data, crc = twin.build_segment(identity, 7, 1000, 5, 40, [b"a", b"bc"], [(3, 2, 1)], used)
    assert (bytes(data), crc) == built(twin, [b"a", b"bc"], [(3, 2, 1)])
    assert data.obj is used


def test_records_have_the_sizes_that_the_format_document_says(twin) -> None:
    assert twin.HEAD.size == twin.HEAD_BYTES == 64
    assert twin.STATUS.size == twin.STATUS_BYTES == 24
    assert twin.ENTRY.size == twin.ENTRY_BYTES == 16
    assert twin.segment_bytes(1, PAGE - 64 - 64 - 16, 0) == PAGE
    assert twin.segment_bytes(1, PAGE - 64 - 64 - 15, 0) == 2 * PAGE


def test_a_segment_says_what_was_put_into_it(twin) -> None:
    contents = [b"one", b"", b"three" * 1000]
    data, crc = built(twin, contents, [(3, 2, 1), (30, 1, 3)])
    segment = parsed(twin, bytes(PAGE) + data, PAGE)
    assert segment.whole
    assert not segment.repaired
    assert (segment.sequence, segment.stamp_ns, segment.first_id) == (7, 1000, 40)
    assert (segment.previous, segment.crc, segment.length) == (5, crc, len(data))
    assert segment.statuses == [(3, 2, 1), (30, 1, 3)]
    whole = bytes(PAGE) + data
    assert [bytes(whole[a:b]) for a, b in segment.spans] == contents


def test_an_item_that_was_moved_verifies_by_its_own_id_alone(twin) -> None:
    move = (7, 1, segments.MOVE | 3 << 8)
    data, _ = built(twin, [b"new", b"moved"], [move, (9, 1, 0x85)], version=2)
    segment = parsed(twin, data)
    assert segment.is_sound()
    assert segment.statuses == [move, (9, 1, 0x85)]
    data[70] ^= 1  # a bit of the move's record
    segment = parsed(twin, data)
    assert (segment.damaged, segment.statuses_lost) == ([1], 1)


def test_a_segment_of_version_1_has_ends_alone(twin) -> None:
    data, _ = built(twin, [b"x"], [(9, 1, 0x85), (9, 1, 1)])
    assert parsed(twin, data).statuses == [(9, 1, 1)]


def test_bytes_of_another_queue_block_or_use_are_no_segment(twin) -> None:
    data, _ = built(twin, [b"x"])
    for other in ((bytes(16), 1, 2), (QUEUE, 2, 2), (QUEUE, 1, 3)):
        assert parsed(twin, data, identity=twin.BlockIdentity(*other)) is None
    assert parsed(twin, bytes(PAGE)) is None
    assert parsed(twin, data[: PAGE - 1]) is None
    assert parsed(twin, b"") is None


def test_every_flipped_bit_costs_one_record_at_most(twin) -> None:
    contents = [bytes([65 + n]) * 100 for n in range(5)]
    data, _ = built(twin, contents, [(3, 2, 1), (30, 1, 3)])
    used = 64 + 2 * 24 + 5 * 16 + 500
    step = 1 if twin is segments else 7
    for bit in [*range(0, used * 8, step), *range((len(data) - 64) * 8, len(data) * 8, step)]:
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        segment = parsed(twin, wrong)
        assert segment is not None, bit
        lost = len(segment.damaged) + segment.statuses_lost
        assert lost == (64 <= bit // 8 < used), bit
        good = [n for n in range(5) if n not in segment.damaged]
        assert all(bytes(wrong[slice(*segment.spans[n])]) == contents[n] for n in good), bit
        if bit // 8 < 64:
            assert segment.repaired


def test_a_long_segment_without_its_header_is_found_by_its_trailer(twin) -> None:
    data, _ = built(twin, [b"x" * 10_000])
    after, _ = built(twin, [b"y"], sequence=8)
    data[:64] = bytes(64)
    segment = parsed(twin, bytes(data) + bytes(after))
    assert segment.repaired
    assert segment.sequence == 7
    broken = bytearray(data)
    broken[-64:] = bytes(64)
    assert parsed(twin, bytes(broken) + bytes(after)) is None
    assert parsed(twin, broken) is None


def test_a_header_that_another_wrote_is_not_believed_even_if_the_trailer_agrees(twin) -> None:
    data, _ = built(twin, [b"x" * 100])
    for at in (40, 44, 48, 4):
        wrong = bytearray(data)
        wrong[at] ^= 1
        wrong[len(data) - 64 + at] ^= 1
        assert parsed(twin, wrong) is None


def test_the_next_good_segment_is_found_behind_damage(twin) -> None:
    identity = twin.BlockIdentity(QUEUE, 1, 2)
    old, _ = built(twin, [b"old"], sequence=3)
    data = bytes(PAGE) + bytes(old) + b"\xff" * PAGE + bytes(built(twin, [b"new"], sequence=9)[0])
    found = twin.find_segment(memoryview(data), 0, identity, 7)
    assert found.sequence == 9
    assert found.at == 3 * PAGE
    assert twin.find_segment(memoryview(data), 0, identity, 9) is None


def test_random_bytes_are_read_the_same_by_both_twins(seed: int) -> None:
    """Mutated segments: the same answer from both, and never a read past the end."""
    draw = random.Random(seed)
    for _ in range(500):
        data, _ = built(
            segments, [draw.randbytes(draw.randrange(600)) for _ in range(draw.randrange(9))],
            [(draw.randrange(99), draw.randrange(4), draw.choice(KINDS))
             for _ in range(draw.randrange(4))], version=draw.choice((1, 2)),
        )  # fmt: skip
        for _ in range(draw.randrange(1, 6)):
            at = draw.choice((draw.randrange(len(data)), draw.randrange(200)))
            data[at] = draw.randrange(256)
        answers = []
        for twin in TWINS.values():
            segment = parsed(twin, data)
            answers.append(
                segment
                and (segment.whole, segment.repaired, segment.statuses, segment.spans,
                     segment.damaged, segment.statuses_lost)
            )  # fmt: skip
        assert answers[0] == answers[1], f"seed {seed}"
