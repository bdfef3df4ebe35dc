"""A replay while it runs: its progress line, its control socket, and its end by a signal.

The first Ctrl-C (or SIGTERM) ends the run in good order, so that its account can be printed;
another one a little later does not wait for that. (Programs that pass a signal on, `timeout` for
one, may do so twice at once.)
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from feedhandler.ops.replay.verbs import ReplayControl, ReplayVerbs
from feedhandler.replay.playing.player import Player, PlayResult
from feedhandler.replay.playing.rates import PlayProgress
from feedhandler.replay.playing.time_spec import rfc3339_text
from feedhandler.terminal.console import host_faults, interrupt, signal_handlers
from feedhandler.terminal.live import Show, duration_text, live_line

#: Interval of the progress line.
PROGRESS_S = 0.25
#: A signal this long after the first one ends the wait.
IMPATIENT_NS = 1_000_000_000


def play(player: Player, verbs: ReplayVerbs, title: str, control: str, quiet: bool) -> PlayResult:
    """Play to the end, or until a signal or a request ends it; return the account.

    `control`: the endpoint of the control socket; empty for none. `quiet`: no progress lines but on
    a terminal.
    """
    with _controlled(control, verbs), live_line(title, quiet) as show, host_faults():
        with signal_handlers(ending(player)):
            player.start()
            while not player.wait(PROGRESS_S):
                _show(show, player.progress())
        return player.result()


@contextlib.contextmanager
def _controlled(endpoint: str, verbs: ReplayVerbs) -> Iterator[None]:
    if not endpoint:
        yield
        return
    with ReplayControl(endpoint, verbs.table()) as control:
        print(f"replay: controlled at {control.endpoint}", file=sys.stderr, flush=True)
        yield


def ending(player: Player, clock_ns: Callable[[], int] = time.monotonic_ns) -> Any:
    """Return a signal handler that ends the run, and at a later signal the wait for that."""
    first_ns = 0

    def on_signal(number: int, frame: Any) -> None:
        nonlocal first_ns
        first_ns = first_ns or clock_ns()
        player.stop()
        if clock_ns() - first_ns >= IMPATIENT_NS:
            interrupt(number, frame)

    return on_signal


def _show(show: Show, progress: PlayProgress) -> None:
    show(progress_text(progress), progress.share_done)


def progress_text(progress: PlayProgress) -> str:
    """Format the moment that is being played, rate, lateness and time left; or the pause."""
    position = (
        rfc3339_text(progress.position_ns)[11:19]
        if progress.position_ns is not None
        else "--:--:--"
    )
    left = f"{duration_text(progress.left_ns)} left" if progress.left_ns is not None else ""
    if progress.paused:
        return f"at {position}  PAUSED  {progress.sent:,} sent  {left}".rstrip()
    late = f"{progress.lateness_ns / 1e3:,.0f} us late  " if progress.lateness_max_ns else ""
    rate = f"{progress.datagrams_per_second:,.0f}/s"
    return f"at {position}  {progress.sent:,} sent  {rate}  {late}{left}".rstrip()
