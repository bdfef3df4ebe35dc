"""Tables and figures of a report, before they are printed, drawn or written."""

from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | int | float | None
#: By name: what is across, and what upwards.
Curves = dict[str, tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True)
class Table:
    """A table; `key` is how `--table` names it."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    note: str = ""

    def record(self) -> dict[str, object]:
        """The table as JSON has it."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"table": self.key, "title": self.title, "note": self.note, "rows": rows}

    def markdown(self) -> str:
        """The table in Markdown, with its note below."""
        lines = [f"### {self.title}", "", _line(self.columns), _line(["---"] * len(self.columns))]
        lines += [_line([_cell(each) for each in row]) for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])

    def text(self) -> str:
        """The table for a terminal."""
        cells = [list(self.columns), *([_cell(each) for each in row] for row in self.rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(self.columns))]
        lines = [
            "  ".join(each.rjust(width) for each, width in zip(row, widths, strict=True))
            for row in cells
        ]
        return "\n".join([self.title, *lines, *([self.note] if self.note else []), ""])


@dataclass(frozen=True)
class Chart:
    """Curves of a figure."""

    title: str
    across: str
    upwards: str
    curves: Curves


@dataclass
class Report:
    """Everything of a run."""

    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value
