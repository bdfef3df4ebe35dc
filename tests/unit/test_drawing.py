"""Figures as SVG: small, the same each time, right in light and dark; lengths of time in words."""

import itertools
import re

import pytest

from feedhandler.characterise.figures import SERVICE_COLOURS
from feedhandler.drawing import compacted, lighter, svg_of
from feedhandler.page import page_figure, whole_page
from feedhandler.spans import span_text


def test_paths_of_pictures_have_no_digits_that_cannot_be_seen() -> None:
    svg = '<use transform="scale(0.015625)"/><path id="0.1234" d="M 1.23456 2\nL 0.005 17.1234"/>'
    assert compacted(svg) == (
        '<use transform="scale(0.015625)"/><path id="0.1234" d="M 1.23 2L 0.00 17.12"/>'
    )
    steps = "M 1 2 \nL 1 2 \nL 5 2 \nL 5 7 \nL 5 7 \nL 6 8 \nC 1 2 3 4 5 8 \nL 9 8 \nz"
    assert compacted(f'<path d="{steps}"/>') == ('<path d="M 1 2H1H5V7L 6 8C 1 2 3 4 5 8L 9 8z"/>')


def figure() -> str:
    figures = pytest.importorskip("matplotlib.figure")
    made = figures.Figure(figsize=(5.2, 3.5))
    made.add_subplot().plot([1, 2, 3], [3, 1, 2], color="#0072b2", label="ours")
    return svg_of(made)


def test_every_colour_of_a_figure_has_one_for_light_and_one_for_dark() -> None:
    svg = figure()
    sheet = re.search(r"<style>(.*?)</style>", svg)
    assert sheet is not None
    light, dark = sheet[1].split("@media (prefers-color-scheme:dark)")
    used = set(re.findall(r"var\(--(\w+)\)", svg))
    assert {"c0072b2", "ink"} <= used
    for name in used:
        assert f"--{name}:#" in light
        assert f"--{name}:#" in dark
    assert "--c0072b2:#0072b2" in light
    assert "--c0072b2:#0072b2" not in dark
    assert "color-scheme:light dark" in light, "opened by itself, its page is dark as well"
    assert not re.findall(r"#[0-9a-f]{6}", svg.replace(sheet[0], ""))


def test_a_figure_is_the_same_file_each_time_and_fits_a_page() -> None:
    svg = figure()
    assert svg == figure()
    assert svg.startswith("<svg ")
    page = whole_page("<title>", page_figure(svg, "a 'title'", "<caption>"))
    assert "prefers-color-scheme: dark" in page
    assert "&lt;caption&gt;" in page
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)


@pytest.mark.parametrize("colour", ["#000080", "#0072b2", "#b3424a", "#440154"])
def test_colours_on_a_dark_page_are_light(colour: str) -> None:
    parts = [int(lighter(colour)[index : index + 2], 16) for index in (1, 3, 5)]
    assert (max(parts) + min(parts)) / 2 / 255 >= 0.61


def test_colours_that_differ_on_a_light_page_differ_on_a_dark_one() -> None:
    dark = [lighter(each) for each in SERVICE_COLOURS if each not in ("#000000", "#8c8c8c")]
    for one, other in itertools.combinations(dark, 2):
        apart = [abs(int(one[at : at + 2], 16) - int(other[at : at + 2], 16)) for at in (1, 3, 5)]
        assert max(apart) > 35, (one, other)


@pytest.mark.parametrize(
    ("span_ns", "text"),
    [
        (0, "0 ns"),
        (250, "250 ns"),
        (12_345, "12.3 µs"),
        (999_900, "1 ms"),
        (175_112_192, "175 ms"),
        (2_415_919_104, "2.42 s"),
        (59_990_000_000, "1 min 0 s"),
        (1_520_418_422_784, "25 min 20 s"),
        (12_000_000_000_000, "3 h 20 min"),
        (-1_500, "-1.5 µs"),
    ],
)
def test_lengths_of_time_read_as_times(span_ns: int, text: str) -> None:
    assert span_text(span_ns) == text
