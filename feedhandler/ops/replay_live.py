"""A replay while it runs: what it shows of itself, who may control it, and how it is ended.

The first Ctrl-C (or SIGTERM) ends the run in good order, so that its account can be told; a second
one does not wait for that.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from feedhandler.ops.console import host_faults, interrupt, signal_handlers
from feedhandler.ops.live import Show, duration_text, live_line
from feedhandler.replay.moments import moment_text
from feedhandler.replay.player import Player, PlayResult
from feedhandler.replay.player_progress import PlayProgress
from feedhandler.replay_control import ReplayControl, ReplayVerbs

#: How often the line that shows the progress is made.
PROGRESS_S = 0.25


def play(player: Player, verbs: ReplayVerbs, title: str, control: str, quiet: bool) -> PlayResult:
    """Play to the end, or until somebody ends it; the account.

    `control`: the endpoint of the control socket; empty for none. `quiet`: no lines but on a
    terminal.
    """
    with _controlled(control, verbs), live_line(title, quiet) as show, host_faults():
        with signal_handlers(_ending(player)):
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


def _ending(player: Player) -> Any:
    """A handler of signals that ends the run, and at the second signal the waiting for that."""
    signals = 0

    def on_signal(number: int, frame: Any) -> None:
        nonlocal signals
        signals += 1
        player.stop()
        if signals > 1:
            interrupt(number, frame)

    return on_signal


def _show(show: Show, told: PlayProgress) -> None:
    show(progress_text(told), told.share_done)


def progress_text(told: PlayProgress) -> str:
    """The moment that is being played, rate, lateness and time left; or that it pauses."""
    position = moment_text(told.position_ns)[11:19] if told.position_ns is not None else "--:--:--"
    left = f"{duration_text(told.left_ns)} left" if told.left_ns is not None else ""
    if told.paused:
        return f"at {position}  PAUSED  {told.sent:,} sent  {left}".rstrip()
    late = f"{told.lateness_ns / 1e3:,.0f} us late  " if told.lateness_max_ns else ""
    rate = f"{told.datagrams_per_second:,.0f}/s"
    return f"at {position}  {told.sent:,} sent  {rate}  {late}{left}".rstrip()
