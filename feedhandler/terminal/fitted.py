"""Tables on a terminal: where there is no room, whole columns are dropped, never digits.

What it is for: `FittedTable` is drawn at the width that it is given. A column of figures is shown
whole or not at all; one of words folds between words first. The dropped columns are named below.
"""

import copy
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

#: Between two columns.
GAP = 1


def kept(ranks: Sequence[int], widths: Sequence[int], room: int) -> list[int]:
    """Choose the columns of these widths that fit into `room`, `GAP` between them; keep the order.

    For lines that are written one at a time. Those of the highest rank go first, of two with the
    same rank the right one; one always stays.
    """
    left = list(range(len(ranks)))
    while len(left) > 1 and sum(widths[at] + GAP for at in left) - GAP > room:
        left.remove(max(left, key=lambda at: (ranks[at], at)))
    return left


class FittedTable(Table):
    """A plain table: columns of words, then of figures.

    `drop_first` names the columns that are dropped first, in that order, where there is no room;
    after them go the others, the last one first. The first column always stays.
    """

    def __init__(
        self, words: Iterable[str], figures: Iterable[str] = (), drop_first: Iterable[str] = ()
    ) -> None:
        super().__init__(box=None, pad_edge=False, collapse_padding=True)
        for heading in words:
            self.add_column(heading, overflow="fold")
        for heading in figures:
            self.add_column(heading, justify="right", no_wrap=True)
        self._drop_first = tuple(drop_first)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._shown(console, options)
        fitted = copy.copy(self)
        fitted.columns = []
        for index, (column, width) in enumerate(
            zip(shown, self._widths(console, options, shown), strict=True)
        ):
            placed = copy.copy(column)
            placed._index = index
            fitted.columns.append(placed)
            placed.width = max(1, width)
        yield from Table.__rich_console__(fitted, console, options)
        hidden = [str(column.header) for column in self.columns if column not in shown]
        if hidden:
            yield console.render_str(f"(no room for {', '.join(hidden)})", style="dim")

    def _shown(self, console: Console, options: ConsoleOptions) -> list[Column]:
        """Return the columns there is room for, in their order."""
        needs = {id(column): self._need(console, options, column)[0] for column in self.columns}
        shown = list(self.columns)
        for column in self._by_worth():
            if sum(needs[id(each)] + GAP for each in shown) - GAP <= options.max_width:
                break
            shown.remove(column)
        return shown

    def _widths(self, console: Console, options: ConsoleOptions, shown: list[Column]) -> list[int]:
        """Return the columns' widths: what each needs, then what is left to those that want it.

        Columns get the rest from the left.
        """
        wanted = [self._need(console, options, column) for column in shown]
        left = max(0, options.max_width + GAP - sum(least + GAP for least, _ in wanted))
        widths = []
        for least, most in wanted:
            more = min(left, most - least)
            left -= more
            widths.append(least + more)
        return widths

    def _need(self, console: Console, options: ConsoleOptions, column: Column) -> tuple[int, int]:
        """Return the least and the greatest width of a column.

        The least is all of a figure, or the longest word.
        """
        unbounded = options.update(max_width=10 * options.max_width + 1000)
        measured = self._measure_column(console, unbounded, column)
        least = measured.maximum if column.no_wrap else measured.minimum
        padding = self._get_padding_width(column._index)
        return least - padding, measured.maximum - padding

    def _by_worth(self) -> list[Column]:
        """Return all columns but the first, those that are dropped first in front."""
        named = {str(column.header): column for column in self.columns[1:]}
        first = [named[heading] for heading in self._drop_first if heading in named]
        return first + [column for column in self.columns[:0:-1] if column not in first]
