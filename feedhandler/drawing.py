"""Figures of reports as SVG: sizes, colours, ticks, and the file itself.

matplotlib is imported where it is used. A figure is as wide as a telephone or a column of text, so
that its words are legible there; its text stays text, and its colours are variables that follow the
reader's light or dark mode, in a page as in a file of its own.

Colours are from a scale that keeps its order for the colour-blind and in grey (viridis, without its
lightest part). The paper's results are red, with shapes that ours do not use.
"""

import colorsys
import importlib
import importlib.util
import io
import re
import textwrap
from typing import Any

#: Inches of 96 pixels: 500 pixels, and as high as the panels below one another need.
WIDTH = 5.2
SIZE, TALL = (WIDTH, 3.5), (WIDTH, 6.4)
#: Variables that every figure has: colour in light and in dark mode.
_PLAIN = {
    "ink": ("#1b1f24", "#e6edf3"),
    "paper": ("#ffffff", "#0d1117"),
    "rule": ("#b0b0b0", "#4a5563"),
}
_PLAIN_OF = {
    "#000000": "ink",
    "#262626": "ink",
    "#ffffff": "paper",
    "#b0b0b0": "rule",
}
#: The range of lightness on a light page, and the range it is mapped to on a dark one: all are
#: light enough to see, and of two colours of one hue the lighter one stays the lighter.
_LIGHTNESS, _DARK_LIGHTNESS = (0.2, 0.7), (0.62, 0.78)
#: Dashes of lines that may cross, the first for few clients; a figure with more lines repeats them.
DASHES = ("-", "--", "-.", ":")
#: The paper's points, lines and bands.
PAPER_COLOUR = "#b3424a"
GREY = "#555555"

STYLE: dict[str, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "figure.titlesize": 10.5,
    "font.size": 9.5,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "font.family": "sans-serif",
}
#: The reader's own font, no background, and the same file for the same figure.
_FILE_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "feedhandler",
    "savefig.transparent": True,
}


def available() -> bool:
    """Check whether figures can be drawn: matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def colours(count: int) -> list[Any]:
    """Return so many colours, dark to light but never too light to see."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * index / max(1, count - 1)) for index in range(count)]


def titled(figure: Any, title: str) -> None:
    """Set the figure's title, above its panels to the left."""
    figure.suptitle(wrapped(title), x=0.01, ha="left", fontweight="bold")


def wrapped(title: str) -> str:
    """Wrap a title to a figure's width."""
    return "\n".join(textwrap.wrap(title, 62))


def clients_words(count: int) -> str:
    """Format a number of clients for a legend."""
    return "1 client" if count == 1 else f"{count} clients"


def plain(value: float, position: int) -> str:
    """Format a tick without a power of ten: 0.01, 1, 100."""
    return f"{value:g}"


def logarithmic(axis: Any, fine: bool = False) -> None:
    """Format a logarithmic axis with plain numbers; `fine`: at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if fine else (1,)))
    axis.set_major_formatter(plain)
    axis.set_minor_formatter(NullFormatter())


_DIGITS = re.compile(r"(\.\d\d)\d+")
_PATH = re.compile(r'(?<=\sd=")[^"]*')
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def svg_of(figure: Any) -> str:
    """Render the figure as one SVG element that can stand in a page or in a file of its own."""
    matplotlib: Any = importlib.import_module("matplotlib")
    target = io.StringIO()
    with matplotlib.rc_context(_FILE_STYLE):
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = compacted(_METADATA.sub("", text[text.index("<svg") :]))
    found = sorted({colour.lower() for colour in _COLOUR.findall(text)} - _PLAIN_OF.keys())
    text = _COLOUR.sub(lambda colour: f"var(--{_variable(colour[0])})", text)
    # Text without a colour of its own is black.
    text = text.replace("<svg ", '<svg fill="var(--ink)" ', 1)
    start = text.index(">") + 1
    return f"{text[:start]}\n<style>{_variables(found)}</style>{text[start:]}"


def compacted(svg: str) -> str:
    """Compact an SVG: each path in one line, its coordinates to a hundredth of a point, steps as
    lines along one axis."""
    return _PATH.sub(lambda path: _along(_DIGITS.sub(r"\1", path[0])), svg)


def _variable(colour: str) -> str:
    return _PLAIN_OF.get(colour.lower(), f"c{colour[1:].lower()}")


def _variables(colours_found: list[str]) -> str:
    """Make the style sheet that defines the figure's colour variables in both modes.

    The colour scheme is for a figure opened by itself: without it the page stays white in dark
    mode.
    """
    pairs = {**_PLAIN, **{_variable(each): (each, lighter(each)) for each in colours_found}}
    light = "".join(f"--{name}:{pair[0]};" for name, pair in pairs.items())
    dark = "".join(f"--{name}:{pair[1]};" for name, pair in pairs.items())
    words = "svg{color-scheme:light dark}svg text{fill:var(--ink)}"
    return f"svg{{{light}}}{words}@media (prefers-color-scheme:dark){{svg{{{dark}}}}}"


def lighter(colour: str) -> str:
    """Convert a colour for a dark page: the same hue, light enough to see."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    hue, lightness, saturation = colorsys.rgb_to_hls(*parts)
    least, most = _LIGHTNESS
    share = min(1.0, max(0.0, (lightness - least) / (most - least)))
    least, most = _DARK_LIGHTNESS
    made = colorsys.hls_to_rgb(hue, least + share * (most - least), saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in made)


def _along(path: str) -> str:
    """Write a path with `H` and `V` for lines along one axis, and without those that go nowhere."""
    made, before = [], ("", "")
    for line in path.split("\n"):
        words = line.split()
        if len(words) != 3 or words[0] not in "ML":
            before = ("", "")
            made.append(" ".join(words))
            continue
        here = (words[1], words[2])
        if words[0] == "M" or not before[0]:
            made.append(" ".join(words))
        elif before == here and made[-1][0] != "M":  # a dot is drawn behind a move
            continue
        elif before[1] == here[1]:
            made.append(f"H{here[0]}")
        elif before[0] == here[0]:
            made.append(f"V{here[1]}")
        else:
            made.append(" ".join(words))
        before = here
    return "".join(made)
