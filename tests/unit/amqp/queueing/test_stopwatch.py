"""The stopwatch: sums of times."""

from feedhandler.amqp.queueing.stopwatch import Stopwatch


def test_times_add_up_and_what_runs_is_included() -> None:
    watch = Stopwatch()
    assert watch.total_ns(50) == 0
    watch.set(False, 60)
    watch.set(True, 100)
    watch.set(True, 150)
    assert watch.total_ns(160) == 60
    watch.set(False, 200)
    watch.set(False, 900)
    assert watch.total_ns(1000) == 100
    watch.set(True, 1000)
    assert watch.total_ns(1001) == 101
