"""Markdown for the generated pages of `docs/`."""

from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table; the cells are Markdown themselves."""
    lines = ["| " + " | ".join(cells) + " |\n" for cells in (head, *rows)]
    return lines[0] + "|---" * len(head) + "|\n" + "".join(lines[1:])
