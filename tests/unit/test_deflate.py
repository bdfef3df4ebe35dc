"""Our zlib streams: whatever goes in comes out of zlib's own inflate."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedhandler._compiled import load_interpreted
from feedhandler.replay.generating.deflate import BYTES_MAX, Deflater

TWIN = load_interpreted("feedhandler.replay.generating.deflate").Deflater()
COMPILED = Deflater()


@given(st.one_of(st.binary(max_size=600), st.lists(st.sampled_from([b"ab", b"\0" * 9, b"xyz1"]),
                                                   max_size=90).map(b"".join)))  # fmt: skip
def test_what_was_compressed_inflates_to_what_it_was(data: bytes) -> None:
    packed = COMPILED.compress(data)
    assert zlib.decompress(packed) == data
    assert TWIN.compress(data) == packed


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 257, 258, 259, 4_095, 4_097, BYTES_MAX])
@pytest.mark.parametrize("kind", ["same", "random", "far"])
def test_sizes_at_the_edges(size: int, kind: str) -> None:
    rng = random.Random(size)
    data = {
        "same": b"\xff" * size,
        "random": rng.randbytes(size),
        # The same stretch again just within and just beyond reach.
        "far": (b"%04000d" % 7 + rng.randbytes(90)) * (size // 4_090 + 1),
    }[kind][:size]
    packed = COMPILED.compress(data)
    assert zlib.decompress(packed) == data
    assert len(packed) <= size * 9 // 8 + 16


def test_messages_alike_take_less_than_two_thirds() -> None:
    rng = random.Random(1)
    message = bytearray(rng.randbytes(64))
    messages = []
    for _ in range(14):
        for place in rng.sample(range(0, 64, 4), 4):
            message[place : place + 4] = rng.randbytes(4)
        messages.append(bytes(message))
    whole = b"".join(messages)
    assert len(COMPILED.compress(whole)) < len(whole) * 2 // 3


def test_more_than_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="too many"):
        COMPILED.compress(b"a" * (BYTES_MAX + 1))
