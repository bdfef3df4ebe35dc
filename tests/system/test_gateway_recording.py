"""A whole gateway that records and is asked: real multicast in, files and answers out."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_gateway_loopback import QUICK, configured, running

from feedhandler.codecs import ConfigError
from feedhandler.config import Config, ControlConfig
from feedhandler.config.recording import RecordConfig
from feedhandler.gateway import Gateway
from feedhandler.ops import status
from feedhandler.ops.replay import playing as replay
from feedhandler.replay.captures.reading import Capture, Datagram
from feedhandler.replay.playing.pace import Pace
from feedhandler.rpc import ask
from tests.support.amqp import packet as packet_of
from tests.support.node import PATIENCE_S


def recorded(folder: Path, series: str) -> list[Datagram]:
    return [one for path in sorted(folder.glob(f"{series}-*.pcap")) for one in Capture(path)]


async def asked_until(endpoint: str, fact: Any) -> dict[str, Any]:
    """The first answer of the control socket for which `fact` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            snapshot = await asyncio.to_thread(ask, endpoint)
            if fact(snapshot):
                return dict(snapshot)


@pytest.mark.gateways_loop
async def test_what_came_in_and_what_went_out_are_recorded(tmp_path: Path) -> None:
    record = RecordConfig(dir=str(tmp_path), what="both", disk_free_min_share=0.0)
    control = ControlConfig(bind=f"ipc://{tmp_path}/gate.ipc")
    config = configured(record=record, control=control)
    async with running(config) as (gateway, exchange, _):
        await exchange.packets(1, 200)
        exchange.send(b"no packet at all", "B")
        snapshot = await asked_until(
            control.bind,
            lambda s: (
                s["recorder"]["series"]["lines"]["packets"] == 401
                and s["recorder"]["series"]["published"]["packets"] == 200
            ),
        )
        assert snapshot["channels"][0]["packets"] == 200
        assert snapshot["recorder"]["state"] == "recording"
        assert status.verdict(snapshot) == 0
    assert gateway.snapshot()["recorder"]["state"] == "ended"
    lines = config.channels[0].lines
    came = recorded(tmp_path, "lines")
    for line in lines:
        of_line = [one.payload for one in came if (one.group, one.port) == (line.group, line.port)]
        wanted = [packet_of(sequence) for sequence in range(1, 201)]
        assert of_line == (wanted if line is lines[0] else [*wanted, b"no packet at all"])
    assert {one.source for one in came} == {"127.0.0.1"}
    went = recorded(tmp_path, "published")
    assert [one.payload for one in went] == [packet_of(sequence) for sequence in range(1, 201)]
    assert {(one.group, one.port) for one in went} == {(lines[0].group, lines[0].port)}
    stamps = {one.time_ns for one in came}
    assert {one.time_ns for one in went} <= stamps


async def test_a_recording_that_stops_leaves_the_stream_alone(tmp_path: Path) -> None:
    record = RecordConfig(dir=str(tmp_path), disk_free_min_share=0.0)
    control = ControlConfig(bind="tcp://127.0.0.1:0")
    async with running(configured(record=record, control=control)) as (gateway, exchange, _):
        for path in tmp_path.iterdir():
            path.unlink()
        tmp_path.rmdir()
        await exchange.packets(1, 50)
        endpoint = gateway.control.endpoint
        snapshot = await asked_until(endpoint, lambda s: s["recorder"]["state"] == "stopped")
        assert "no such file or directory" in snapshot["recorder"]["reason"]
        assert status.verdict(snapshot) == 1
        await exchange.packets(51, 100)
        snapshot = await asked_until(endpoint, lambda s: s["channels"][0]["packets"] == 100)
        assert snapshot["channels"][0]["quality"] == "OK"
        await asked_until(endpoint, lambda s: s["recorder"]["series"]["lines"]["dropped"] == 200)


async def test_what_cannot_be_recorded_or_asked_is_reported_at_the_start(tmp_path: Path) -> None:
    async def refusal(**sections: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            await Gateway(configured(**sections)).run(lambda: pytest.fail("is ready"))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    record = RecordConfig(dir=str(tmp_path), disk_free_min_share=0.0)
    missing = RecordConfig(dir=str(tmp_path / "missing"))
    assert "no such folder" in await refusal(record=missing)
    control = ControlConfig(bind=f"ipc://{tmp_path}/missing/gate.ipc")
    assert "control.bind: cannot bind" in await refusal(record=record, control=control)
    async with running(configured(record=record)):
        assert "another gateway records there" in await refusal(record=record)


def test_a_recorded_incident_replays_to_the_same_stream(tmp_path: Path) -> None:
    """Losses on either line and on both: what was published then is published again."""
    first, second = tmp_path / "then", tmp_path / "again"
    control = ControlConfig(bind=f"ipc://{tmp_path}/gate.ipc")
    # What one line lost is waited for longer than a busy machine leaves the other line unread.
    patient = msgspec.structs.replace(QUICK, gap_wait_us=3_000_000)
    base = configured(services=(104, 105), control=control, arbitration=patient)

    def recording(folder: Path) -> Config:
        folder.mkdir()
        record = RecordConfig(dir=str(folder), what="both", disk_free_min_share=0.0)
        return msgspec.structs.replace(base, record=record)

    async def then() -> None:
        draw = random.Random(41)
        async with running(recording(first)) as (_, exchange, _):
            for sequence in range(1, 301):
                for service in (104, 105):
                    lines = "AB" if sequence in (1, 300) else draw.choice(["A", "B", "AB", ""])
                    exchange.send(packet_of(sequence, service=service), lines, service)
                await asyncio.sleep(0)
            await asked_until(control.bind, lambda s: all(c["next"] == 301 for c in s["channels"]))

    async def again() -> None:
        options = replay.Options(
            captures=tuple(sorted(first.glob("lines-*.pcap"))),
            lines=(),
            pace=Pace(),
            losses=(0.0, 0.0),
        )
        async with running(recording(second)):
            assert await asyncio.to_thread(replay.run, options) == 0
            await asked_until(control.bind, lambda s: all(c["next"] == 301 for c in s["channels"]))

    asyncio.run(then())
    asyncio.run(again())
    for service in (104, 105):
        group = next(c for c in base.channels if c.service == service).lines[0].group
        streams = [
            [one.payload for one in recorded(folder, "published") if one.group == group]
            for folder in (first, second)
        ]
        assert len(streams[0]) < 300
        assert streams[0] == streams[1]
