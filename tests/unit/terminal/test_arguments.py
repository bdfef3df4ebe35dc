"""Arguments as typed: what is understood, and what is refused with a reason."""

import datetime
from collections.abc import Callable

import pytest
import typer

from feedhandler.codecs.errors import UsageError
from feedhandler.lab import plan
from feedhandler.replay.playing.pace import Pace, PaceKind
from feedhandler.terminal import arguments
from feedhandler.terminal.arguments import LineAddress


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
    ("text", "pace"),
    [
        ("1", Pace(PaceKind.ORIGINAL, 1)),
        ("100x", Pace(PaceKind.ORIGINAL, 100)),
        ("0.5x", Pace(PaceKind.ORIGINAL, 0.5)),
        ("40mbps", Pace(PaceKind.FRAME_BITS, 40e6)),
        ("5000pps", Pace(PaceKind.PACKETS, 5000)),
        ("flat", Pace(PaceKind.FLAT_OUT)),
    ],
)
def test_a_speed_is_a_factor_a_rate_or_flat(text: str, pace: Pace) -> None:
    assert arguments.pace(text) == pace


@pytest.mark.parametrize("text", ["fast", "0", "0x", "-1x", "", "1e3"])
def test_what_is_no_speed_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        arguments.pace(text)


def test_a_line_address_is_a_group_and_a_port() -> None:
    assert arguments.line_address("239.1.1.1:5001") == LineAddress("239.1.1.1", 5001)


@pytest.mark.parametrize("text", ["239.1.1.1", "10.0.0.1:5001", "239.1.1.1:0", "host:1", "a"])
def test_what_is_no_line_address_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        arguments.line_address(text)


RATES = [
    ("200", 200e6), ("200mbps", 200e6), ("1.5gbps", 1.5e9), ("250kbps", 250e3),
]  # fmt: skip


@pytest.mark.parametrize(("text", "bits"), RATES)
def test_a_rate_in_bits_has_one_unit_everywhere(text: str, bits: float) -> None:
    assert arguments.megabits(text) == bits / 1e6
    assert plan.parse_rate(text) == bits
    assert text.isdigit() or arguments.pace(text).value == bits


@pytest.mark.parametrize(
    ("read", "text", "forms"),
    [
        (arguments.megabits, "10kpps", "counts datagrams a second"),
        (arguments.megabits, "quick", "is no rate"),
        (arguments.megabits, "0", "is no rate"),
        (arguments.messages_per_second, "40mbps", "counts Ethernet frame bits"),
        (arguments.pace, "20kmps", "is no pace"),
        (plan.parse_own_pace, "40mbps", "counts Ethernet frame bits"),
    ],
)
def test_a_rate_of_another_kind_is_refused_with_the_forms_it_takes(
    read: Callable[[str], object], text: str, forms: str
) -> None:
    with pytest.raises(UsageError, match=forms) as refused:
        read(text)
    assert refused.value.hint


def test_messages_a_second_are_a_number_or_have_a_unit() -> None:
    assert [arguments.messages_per_second(each) for each in (20_000.0, "20kmps")] == [20_000.0] * 2


def test_days_and_lists_are_read() -> None:
    assert arguments.date("2026-11-20") == datetime.date(2026, 11, 20)
    assert arguments.date(None) is None
    assert arguments.words("230, 240") == ("230", "240")
    assert arguments.words(None) == ()
    with pytest.raises(typer.BadParameter):
        arguments.date("yesterday")


def test_spans_of_time_and_sizes_have_units() -> None:
    spans = {"90": 90, "90s": 90, "15min": 900, "2m": 120, "1h": 3600, "0": 0, "1.5 s": 1.5}
    for text, seconds in spans.items():
        assert arguments.span_ns(text) == seconds * 10**9
    assert arguments.span_ns("250ms") == 250_000_000
    sizes = {"100mb": 10**8, "64MiB": 64 << 20, "1000": 1000, "1.5k": 1500, "2g": 2 * 10**9}
    for text, size in sizes.items():
        assert arguments.size_bytes(text) == size
    for wrong in ("soon", "-1s", "5 weeks", "", "9" * 20, "9" * 400):
        with pytest.raises(typer.BadParameter):
            arguments.span_ns(wrong)
        with pytest.raises(typer.BadParameter):
            arguments.size_bytes(wrong)


def test_a_captures_line_may_have_a_name_and_an_interface() -> None:
    line = arguments.capture_line("A=239.1.1.1:5001@eth1")
    assert (line.name, line.interface) == ("A", "eth1")
    assert line.address == arguments.line_address("239.1.1.1:5001")
    assert arguments.capture_line("239.1.1.1:5001") == arguments.CaptureLine(line.address)
    for wrong in ("=239.1.1.1:5001", "239.1.1.1:5001@", "A=10.0.0.1:1", "A"):
        with pytest.raises(typer.BadParameter):
            arguments.capture_line(wrong)
