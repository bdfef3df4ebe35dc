"""Arguments as typed: what is understood, and what is refused with a reason."""

import datetime

import pytest
import typer

from feedhandler.ops import arguments
from feedhandler.ops.arguments import LineAddress, Speed


@pytest.mark.parametrize(
    ("text", "value"), [("5%", 0.05), ("0.05", 0.05), (0.02, 0.02), ("0", 0), ("100%", 1)]
)
def test_a_share_is_a_percentage_or_a_fraction(text: str | float, value: float) -> None:
    assert arguments.share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["x", "101%", "-1%", "1.5", "%", "nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        arguments.share(text)


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("1", Speed("times", 1)),
        ("100x", Speed("times", 100)),
        ("0.5x", Speed("times", 0.5)),
        ("40mbps", Speed("bits", 40e6)),
        ("1Gbps", Speed("bits", 1e9)),
        ("5000pps", Speed("packets", 5000)),
        ("flat", Speed("flat")),
    ],
)
def test_a_speed_is_a_factor_a_rate_or_flat(text: str, speed: Speed) -> None:
    assert arguments.speed(text) == speed


@pytest.mark.parametrize("text", ["fast", "0", "0x", "-1x", "5 pps", "", "1e3"])
def test_what_is_no_speed_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        arguments.speed(text)


def test_a_line_address_is_a_group_and_a_port() -> None:
    assert arguments.line_address("239.1.1.1:5001") == LineAddress("239.1.1.1", 5001)


@pytest.mark.parametrize("text", ["239.1.1.1", "10.0.0.1:5001", "239.1.1.1:0", "host:1", "a"])
def test_what_is_no_line_address_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        arguments.line_address(text)


def test_days_and_lists_are_read() -> None:
    assert arguments.date("2026-11-20") == datetime.date(2026, 11, 20)
    assert arguments.date(None) is None
    assert arguments.words("230, 240") == ("230", "240")
    assert arguments.words(None) == ()
    with pytest.raises(typer.BadParameter):
        arguments.date("yesterday")
