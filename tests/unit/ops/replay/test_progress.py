"""Progress of a replay while it runs, and its end by signals."""

import dataclasses
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.ops.replay import control as replay_control
from feedhandler.ops.replay.playing import _print_account
from feedhandler.ops.replay.progress import IMPATIENT_NS, ending, play, progress_text
from feedhandler.replay.playing.player import LineTotals, PlayResult
from feedhandler.replay.playing.rates import PlayProgress

PROGRESS = PlayProgress(
    elapsed_ns=60 * 10**9,
    paused=False,
    sent=1_234_567,
    payload_bytes=10**8,
    datagrams_per_second=20_576.4,
    share_done=0.5,
    left_ns=61 * 10**9,
    lateness_ns=12_345,
    lateness_max_ns=99_999,
    position_ns=1_795_168_800 * 10**9,
)
STATUS = {
    "state": "playing", "playing": "day.pcap", "position": "2026-11-20T10:00:00.000000000Z",
    "elapsed_ns": 3_661 * 10**9, "left_ns": 61 * 10**9, "share_done": 0.25, "sent": 1_234_567,
    "datagrams_per_second": 20_576.4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "at 10:00:00  1,234,567 sent  20,576/s  12 us late  1:01 left"),
        ({"left_ns": None}, "at 10:00:00  1,234,567 sent  20,576/s  12 us late"),
        ({"lateness_max_ns": 0}, "at 10:00:00  1,234,567 sent  20,576/s  1:01 left"),
        ({"paused": True}, "at 10:00:00  PAUSED  1,234,567 sent  1:01 left"),
        ({"position_ns": None}, "at --:--:--  1,234,567 sent  20,576/s  12 us late  1:01 left"),
    ],
)  # fmt: skip
def test_the_line_tells_moment_rate_lateness_and_time_left(
    changes: dict[str, Any], text: str
) -> None:
    assert progress_text(dataclasses.replace(PROGRESS, **changes)) == text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {},
            "day.pcap: playing, at 2026-11-20T10:00:00.000000000Z, 1,234,567 sent in 1:01:01, "
            "25% done, 1:01 left, 20,576/s",
        ),
        (
            {"state": "paused", "position": None, "left_ns": None},
            "day.pcap: paused, nothing sent yet, 1,234,567 sent in 1:01:01, 25% done",
        ),
    ],
)
def test_the_status_is_one_line(changes: dict[str, Any], text: str) -> None:
    assert replay_control.status_text({**STATUS, **changes}) == text


def test_seek_alone_takes_a_moment() -> None:
    for verb, to in (("seek", None), ("pause", "+1")):
        options = replay_control.Options(endpoint="ipc:///nowhere", verb=verb, to=to)
        with pytest.raises(UsageError):
            replay_control.run(options)


class Run:
    """A player that ends when it is told to, or not even then."""

    def __init__(self, signals: int, obeys: bool) -> None:
        self.signals = signals
        self.obeys = obeys
        self.stops = 0
        self.started = False

    def start(self) -> None:
        self.started = True

    def stop(self) -> None:
        self.stops += 1

    def wait(self, _timeout_s: float) -> bool:
        if self.obeys and self.stops:
            return True
        if self.signals:
            self.signals -= 1
            signal.raise_signal(signal.SIGINT)
        return False

    def progress(self) -> PlayProgress:
        return PROGRESS

    def result(self) -> str:
        return "the account"


def played(run: Run) -> Any:
    return play(run, None, "replaying", "", True)  # type: ignore[arg-type]


def test_one_signal_ends_the_run_and_its_account_is_printed() -> None:
    run = Run(2, True)
    before = signal.getsignal(signal.SIGINT)
    assert played(run) == "the account"
    assert (run.started, run.stops) == (True, 1)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_on_another_thread_leaves_signals_alone() -> None:
    run, results = Run(0, True), []
    run.stops = 1
    thread = threading.Thread(target=lambda: results.append(played(run)))
    thread.start()
    thread.join(10)
    assert results == ["the account"]


def test_a_later_signal_does_not_wait_for_a_run_that_does_not_end() -> None:
    run, now_ns = Run(0, False), [5]
    on_signal = ending(run, lambda: now_ns[0])  # type: ignore[arg-type]
    for _ in range(3):
        on_signal(signal.SIGINT, None)
        now_ns[0] += IMPATIENT_NS // 3
    assert run.stops == 3
    now_ns[0] = 5 + IMPATIENT_NS
    with pytest.raises(KeyboardInterrupt):
        on_signal(signal.SIGINT, None)


@pytest.mark.parametrize(
    ("complete", "is_sought", "text"),
    [
        (True, False, "replay: 16,352 datagrams in 2.00 s (8,176/s), seed 1\n"),
        (False, False, "replay: 1,746 datagrams sent in 2.00 s (873/s), seed 1, ended early\n"),
        (True, True, "replay: 1,746 datagrams sent in 2.00 s (873/s), seed 1\n"),
    ],
)
def test_the_account_counts_what_was_sent_where_that_is_not_all(
    complete: bool, is_sought: bool, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = LineTotals("recorded", 16_352, 1_746, 0, 0, 0, 0)
    result = PlayResult([line], 16_352, 0, 0, 2 * 10**9, 0, 0, 0, complete)
    source: Any = SimpleNamespace(captures=(), left_out={}, dropped_resets=0, late=0)
    options: Any = SimpleNamespace(as_json=False, seed=1)
    _print_account(result, source, options, is_sought)
    assert capsys.readouterr().out == f"{text}  line recorded: 1,746 sent, 0 dropped\n"
