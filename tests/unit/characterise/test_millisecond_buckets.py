"""Millisecond buckets in few bytes are the same millisecond buckets again, whatever they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedhandler.characterise import millisecond_buckets
from feedhandler.characterise.millisecond_buckets import FRAMING_BYTES, compact, expanded

ANY = st.integers(-(1 << 63), (1 << 63) - 1)
USUAL = st.integers(0, 300)
ROWS = st.lists(st.tuples(*[USUAL | ANY] * 4), max_size=80)


def rows_of(*rows: tuple[int, ...]) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, 4).T


@given(ROWS)
def test_whatever_rows_come_back(rows: list[tuple[int, ...]]) -> None:
    given_rows = rows_of(*rows)
    made = compact(given_rows)
    assert tuple(made) == millisecond_buckets.NAMES
    assert millisecond_buckets.count(made) == len(rows)
    back = expanded(made)
    assert back.dtype == np.int64
    assert back.tolist() == given_rows.tolist()


def usual(count: int) -> np.ndarray:
    """Milliseconds in a row, two packets of 100 bytes each."""
    packets = np.full(count, 2, np.int64)
    times = 1_300_176_000_000 + np.arange(count)
    return np.array([times, packets, 100 * packets, (100 + FRAMING_BYTES) * packets])


def test_what_is_usual_takes_a_byte_a_column_or_none() -> None:
    made = compact(usual(1_000))
    assert {made[name].dtype for name in ("steps", "packets", "payload", "beyond")} == {
        np.dtype(np.uint8)
    }
    assert made["steps_aside"].tolist() == [1_300_176_000_000]
    assert made["beyond"].tolist() == [0]
    assert sum(column.nbytes for column in made.values()) == 8 + 3_000 + 12 + 1


@pytest.mark.parametrize(
    ("large", "value", "kind", "aside"),
    [
        (80, 256, np.uint8, 80),
        (90, 256, np.uint16, 0),
        (300, 1 << 16, np.uint32, 0),
        (10, 1 << 16, np.uint8, 10),
        (90, 1 << 32, np.uint8, 90),
        (700, 1 << 32, np.int64, 0),
        (10, -1, np.uint8, 10),
        (900, -1, np.int64, 0),
    ],
)
def test_a_column_takes_the_form_that_has_fewest_bytes(
    large: int, value: int, kind: type, aside: int
) -> None:
    rows = usual(1_000)
    rows[2, :large] = value
    made = compact(rows)
    assert made["payload"].dtype == kind
    assert len(made["payload_at"]) == len(made["payload_aside"]) == aside
    assert (expanded(made) == rows).all()


def test_rows_are_left_as_they_were() -> None:
    rows = usual(10)
    before = rows.copy()
    compact(rows)
    assert (rows == before).all()
