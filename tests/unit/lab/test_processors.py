"""Processors of a laboratory's roles, and their priorities."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.lab import processors
from feedhandler.lab.feeder import FAST_BPS
from feedhandler.lab.laboratory import Laboratory
from feedhandler.lab.plan import Plan
from feedhandler.lab.view import View


class Placed:
    """Record of the processors that a laboratory pinned its processes to, by role."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
        self.where: dict[str, set[int]] = {}
        names = ["replayer", "gateway", "client-1", "client-2"]
        self.laboratory = Laboratory(plan, View(quiet=True))
        children: Any = self.laboratory.supervisor.children
        children += [
            SimpleNamespace(name=name, process=SimpleNamespace(pid=at))
            for at, name in enumerate(names)
        ]

        monkeypatch.setattr(processors, "split", lambda: ({0}, {1, 2}))
        monkeypatch.setattr(processors, "put_first", lambda pid: True)
        monkeypatch.setattr(
            processors, "pin", lambda pid, where: self.where.update({names[pid]: set(where)})
        )
        self.laboratory._arrange(next(plan.steps()))

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = self.laboratory.run.configuration["processors"]
        return found


def test_clients_have_processors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Placed(monkeypatch, Plan(out=Path("unused")))
    assert placed.where == {"replayer": {0}, "gateway": {0}, "client-1": {1, 2}, "client-2": {1, 2}}
    assert placed.record["apart"] is True


def test_where_one_processor_is_too_little_for_sender_and_gateway_the_scheduler_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placed = Placed(monkeypatch, Plan(out=Path("unused"), rate_bps=FAST_BPS))
    assert set(map(frozenset, placed.where.values())) == {frozenset({0, 1, 2})}
    assert placed.record["apart"] is False


def test_a_process_may_go_first() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        if not processors.set_real_time(child.pid):
            pytest.skip("real-time priority takes CAP_SYS_NICE")
        assert os.sched_getscheduler(child.pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO
    finally:
        child.communicate(b"\n")
    assert not processors.set_real_time(child.pid), "it has ended"


def test_a_process_that_has_ended_is_passed_over() -> None:
    """Its end is the supervisor's to tell."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    processors.pin(child.pid, os.sched_getaffinity(0))
    assert processors.put_first(child.pid)
