"""The progress of a long command while it works: one line, on stderr.

On a terminal the line has a bar, where there is a share to show, and is redrawn several times a
second. Elsewhere (a log, a pipe) it is a plain line now and then, or nothing with `--json`; stdout
never has any of it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from feedhandler.terminal.console import stderr_console

#: How often a plain line is written where stderr is no terminal.
PLAIN_EVERY_NS = 10_000_000_000

BAR_WIDTH = 20

#: Shows a line, and the share of the work that is done, 0.0 to 1.0, where that is known.
Show = Callable[[str, float | None], None]


@contextmanager
def live_line(
    title: str,
    quiet: bool,
    console: Console | None = None,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> Iterator[Show]:
    """Yield a function that shows a line under `title`; with `quiet` only on a terminal."""
    console = console or stderr_console()
    if not console.is_terminal:
        yield _plain(title, quiet, console, clock_ns)
        return
    # A folded line would leave older ones on the screen.
    columns = (
        TextColumn("{task.description}"),
        BarColumn(BAR_WIDTH),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, text="")

        def show(text: str, share: float | None) -> None:
            # A blank on each side of the bar.
            text = whole_parts(text, console.width - cell_len(title) - BAR_WIDTH - 2)
            if share is None:
                bar.update(task, text=text)
            else:
                bar.update(task, text=text, total=1.0, completed=share)

        yield show


def _plain(title: str, quiet: bool, console: Console, clock_ns: Callable[[], int]) -> Show:
    reported_ns = clock_ns()

    def show(text: str, share: float | None) -> None:
        nonlocal reported_ns
        now_ns = clock_ns()
        if quiet or now_ns - reported_ns < PLAIN_EVERY_NS:
            return
        reported_ns = now_ns
        done = f"{share:.0%}, " if share is not None else ""
        console.print(f"{title}: {done}{text}", markup=False, soft_wrap=True)

    return show


def whole_parts(text: str, room: int) -> str:
    """Keep as many parts of `a, b, c` as fit into the room, from the left: no figure is cut."""
    while text and cell_len(text) > room:
        text = text.rpartition(", ")[0]
    return text


def duration_text(span_ns: int) -> str:
    """Format nanoseconds as `1:02:03` or `2:03`: hours only where there are some."""
    minutes, seconds = divmod(max(0, span_ns) // 1_000_000_000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def size_text(size_bytes: float) -> str:
    """Format bytes as `12.3 MB`, in powers of ten, as file managers and disks count."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:,.0f} B" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} TB"
