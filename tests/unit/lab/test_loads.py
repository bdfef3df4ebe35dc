"""Loads of the roles during a step: which processes are a role, what the measured part cost."""

import asyncio
import os

import numpy
import pytest

from feedhandler.lab.loads import LoadWatch, by_role, counted, traffic_of
from feedhandler.lab.results import Loads, Sent, Step


def test_all_clients_are_one_role() -> None:
    pids = {"replayer": 1, "client-1": 3, "client-2": 4, "stamper": 5, "gateway": 2}
    found = {"replayer": [1], "gateway": [2], "clients": [3, 4], "stamper": [5]}
    assert list(by_role(pids).items()) == list(found.items())


def test_what_the_replayer_tells_is_its_output_and_the_gateways_input() -> None:
    assert counted({"share": 0.0}) == {}
    counts = counted({"frame_bytes": 500, "at_ns": 2_000_000_000})
    assert counts == {"replayer": (2.0, 0, 500), "gateway": (2.0, 500, 0)}


async def test_loads_are_sampled_from_the_end_of_the_warm_up() -> None:
    async def started(watch: LoadWatch) -> None:
        while not watch._started:
            await asyncio.sleep(0)

    async with LoadWatch({"us": [os.getpid()]}, 0.0, dict) as watch:
        await asyncio.sleep(0)
        await asyncio.wait_for(started(watch), 60)
    assert [each.role for each in watch.loads] == ["us"]
    async with LoadWatch({"us": [os.getpid()]}, 60.0, dict) as watch:
        pass
    assert watch.loads == [], "it ended before the warm-up did"


async def test_a_failure_within_leaves_no_sampling_behind() -> None:
    with pytest.raises(RuntimeError, match="no"):
        async with LoadWatch({"us": [os.getpid()]}, 0.0, dict):
            raise RuntimeError("no")


def test_traffic_is_of_the_measured_part() -> None:
    def loads(role: str, t_s: list[float], received: list[float]) -> Loads:
        some = numpy.array(received)
        return Loads(role=role, t_s=numpy.array(t_s), net_in_bytes=some, net_out_bytes=2 * some)

    step = Step(scenario="messages", exchange="topic", clients=2, grain="message")
    step.sent = Sent(duration_ns=10 * 10**9)
    step.loads = [
        loads("replayer", [10.0], [1.0]),
        loads("gateway", [4.0, 8.0], [10.0, 800.0]),
        loads("clients", [10.0], [2000.0]),
        loads("broker", [], []),
    ]
    found = [(each.where, each.grain, each.bytes_in, each.bytes_out) for each in traffic_of(step)]
    assert found == [("gateway", "message", 1000, 2000), ("client", "message", 2000, 4000)]
