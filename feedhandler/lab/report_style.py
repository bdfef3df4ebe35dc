"""How the report's figures look: sizes, colours, ticks. matplotlib is imported where it is used.

Colours are of a scale that stays in order for the colour-blind and in grey (viridis, without its
lightest part), the paper's a red of its own, with shapes that nothing of ours has.
"""

import importlib.util
from typing import Any

DPI = 110
#: Inches.
SIZE, WIDE = (7.2, 4.4), (11.0, 4.6)
#: Of lines that may cross, the first for few clients; a figure with more repeats them.
DASHES = ("-", "--", "-.", ":")
#: The paper's points, lines and bands.
PAPER_COLOUR = "#b3424a"
GREY = "#555555"
#: Panels side by side at most.
PANELS_MAX = 3

STYLE: dict[str, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "figure.titlesize": 11,
    "font.size": 9,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
}


def available() -> bool:
    """Whether figures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def colours(count: int) -> list[Any]:
    """So many colours, dark to light but never too light to see."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * place / max(1, count - 1)) for place in range(count)]


def titled(figure: Any, title: str) -> None:
    """The figure's title, above its panels to the left."""
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")


def clients_words(count: int) -> str:
    """For a legend."""
    return "1 client" if count == 1 else f"{count} clients"


def plain(value: float, place: int) -> str:
    """A tick without a power of ten: 0.01, 1, 100."""
    return f"{value:g}"


def logarithmic(axis: Any, fine: bool = False) -> None:
    """A logarithmic axis with plain numbers; `fine`: at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if fine else (1,)))
    axis.set_major_formatter(plain)
    axis.set_minor_formatter(NullFormatter())
