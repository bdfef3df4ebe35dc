"""The line that a long command shows of itself, on a terminal and elsewhere."""

import io
import re

import pytest
from rich.console import Console

from feedhandler.terminal.live import PLAIN_EVERY_NS, duration_text, live_line, size_text


def test_on_a_terminal_the_line_is_written_anew_with_a_bar() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with live_line("working", True, console) as show:
        show("10 packets", None)
        show("20 packets", 0.5)
    text = out.getvalue()
    assert "working" in text
    assert "20 packets" in text


@pytest.mark.parametrize(
    ("width", "shown"),
    [(60, "1,234,567 packets, 89.1 MB"), (50, "1,234,567 packets"), (40, ""), (10, "")],
)
def test_on_a_narrow_terminal_whole_parts_go_and_figures_stay_whole(width: int, shown: str) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width)
    with live_line("working", True, console) as show:
        show("1,234,567 packets, 89.1 MB", 0.5)
    # The bar's line carries no other digits.
    figures = re.findall(r"\d[\d,.]* \w+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue()))
    assert set(figures) == set(filter(None, shown.split(", ")))


def test_elsewhere_it_is_a_plain_line_now_and_then() -> None:
    out, now_ns = io.StringIO(), [0]
    console = Console(file=out, force_terminal=False, width=40)
    with live_line("working", False, console, lambda: now_ns[0]) as show:
        for number in range(25):
            now_ns[0] = number * PLAIN_EVERY_NS // 10
            show(f"{number} packets and [more] of what makes a line too long to fit", number / 25)
    lines = out.getvalue().splitlines()
    assert [line.split(" packets")[0] for line in lines] == ["working: 40%, 10", "working: 80%, 20"]
    assert all("[more]" in line for line in lines)


def test_programs_that_want_json_get_no_lines_in_between() -> None:
    out, now_ns = io.StringIO(), [0]
    with live_line("working", True, Console(file=out), lambda: now_ns[0]) as show:
        now_ns[0] = PLAIN_EVERY_NS
        show("told", None)
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (-5, "0:00"), (61.9, "1:01"), (3_723, "1:02:03")]
)
def test_spans_are_shown_as_clocks_show_them(seconds: float, text: str) -> None:
    assert duration_text(round(seconds * 10**9)) == text


def test_sizes_are_shown_in_units_that_fit() -> None:
    texts = [size_text(size) for size in (0, 999, 1_500, 142e6, 2.5e9, 3e12)]
    assert texts == ["0 B", "999 B", "1.5 kB", "142.0 MB", "2.5 GB", "3.0 TB"]
