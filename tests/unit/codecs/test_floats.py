"""Floating point in messages: records, columns, descriptions, and schemas that have it."""

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

from feedhandler.codecs import Feed, UsageError
from feedhandler.codecs import columns as compiled_columns
from tests.support.descriptions import FRAMING, check_refused, described, head
from tests.support.scanners import index_of
from tests.support.twins import twins_of

GREEKS = (
    FRAMING
    + """
[[messages]]
type = 1
name = "greeks"
symbol = "Instrument"
fields = [
    { type = "u32", name = "Instrument" },
    { type = "f64", name = "Delta" },
    { type = "f32", name = "Volatility" },
]
"""
)
TWINS = twins_of(compiled_columns)


@pytest.fixture(params=["little", "big"])
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> Feed:
    return described(tmp_path, head(request.param) + GREEKS)


VALUES = [
    {"instrument": 7, "delta": -0.1, "volatility": 0.25},
    {"instrument": 8, "delta": None, "volatility": None},
    {"instrument": 9, "delta": math.inf, "volatility": -0.0},
]


@pytest.mark.parametrize("values", VALUES)
def test_what_was_encoded_is_decoded_and_nan_is_no_value(
    feed: Feed, values: dict[str, Any]
) -> None:
    message = feed.encode_message("greeks", **values)
    record = feed.decode_message(message)
    assert record.to_dict() == values
    assert feed.encode_message(record) == message
    assert record.wire()["Delta"] == values["delta"]


def test_fields_that_are_left_out_have_no_value(feed: Feed) -> None:
    record = feed.decode_message(feed.encode_message("greeks", instrument=7))
    assert (record.delta, record.volatility) == (None, None)


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_columns_are_of_floating_point(feed: Feed, twin: ModuleType) -> None:
    messages = [feed.encode_message("greeks", **values) for values in VALUES]
    data = feed.encode_packet(sequence=1, messages=messages)
    columns = twin.Columns(feed, "greeks")
    assert columns.decode(data, index_of(feed, data)) == 3
    assert columns.arrays["delta"].dtype == numpy.float64
    assert columns.arrays["volatility"].dtype == numpy.float32
    batch = columns.to_arrow()
    assert batch["delta"].to_pylist() == [-0.1, None, math.inf]
    assert batch["volatility"].to_pylist() == [0.25, None, 0.0]


@pytest.mark.parametrize("value", ["much", 1e300])
def test_a_value_that_does_not_fit_is_one_clear_line(feed: Feed, value: object) -> None:
    with pytest.raises(UsageError, match="volatility = "):
        feed.encode_message("greeks", volatility=value)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (", price = 4", "only an integer can be a price"),
        (", null = 0", "only an integer can be null"),
        (", byte_order = 'big'", "only an integer can be in another byte order"),
    ],
)
def test_what_floating_point_cannot_be_is_refused(tmp_path: Path, more: str, reason: str) -> None:
    name = 'name = "Delta"'
    check_refused(tmp_path, head() + GREEKS, name, name + more, "messages[1].Delta", reason)
