"""`feedhandler fixcast` on the command line, publisher and receiver in processes of their own."""

import asyncio
import json
import os
import random
import re
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from feedhandler.fixcast.channels import parse_channels
from feedhandler.replay.captures.writer import CaptureWriter
from tests.support.commands import run_here
from tests.support.fix_messages import sealed
from tests.support.fix_translation import Wire
from tests.support.fixcast import SECONDS, definition, text_of, update

#: Publishers that are killed; `KILLS=100` is the campaign.
KILLS = int(os.environ.get("KILLS", "2"))


@pytest.fixture
def channels(tmp_path: Path) -> Path:
    path = tmp_path / "channels.toml"
    path.write_text(definition(count=2))
    return path


#: Processes of the test that runs.
_started: list[asyncio.subprocess.Process] = []


async def start(*words: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "feedhandler", "fixcast", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _started.append(process)
    return process


@pytest.fixture(autouse=True)
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test; no process of it is left behind."""

    async def scenario(test: Coroutine[Any, Any, None]) -> None:
        try:
            await test
        finally:
            for process in _started:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            _started.clear()

    return lambda test: asyncio.run(scenario(test))


async def lines_until(process: asyncio.subprocess.Process, event: str) -> list[dict]:
    """Return the events that a receiver prints as JSON, up to the first one named `event`."""
    assert process.stdout is not None
    found: list[dict] = []
    async with asyncio.timeout(SECONDS):
        while not found or found[-1]["event"] != event:
            line = await process.stdout.readline()
            assert line, f"the receiver has ended: {found}"
            found.append(json.loads(line))
    return found


def captured(path: Path, messages: list[bytes]) -> None:
    """A capture of both lines of a channel, each of which lost every third datagram."""
    wire = Wire()
    list(wire.publish(messages))
    list(wire.end())
    with CaptureWriter(path) as writer:
        for number, datagram in enumerate(wire.datagrams):
            for line, group in enumerate(("239.9.9.1", "239.9.9.2")):
                if number % 3 != line:
                    writer.write(number * 1_000_000, group, 9_000, datagram)


@pytest.mark.parametrize("kind", ["file", "capture"])
async def test_messages_of_a_file_are_received_and_recorded_in_order(
    channels: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "received.fix"
    messages = [update(f"{n}", symbol="S1" if n % 3 else "T2") for n in range(300)]
    given = tmp_path / "given"
    if kind == "file":
        given.write_bytes(b"\n".join(messages) + b"\n")
    else:
        captured(given, messages)
    receiver = await start("receive", str(channels), "--json", "--out", str(out))
    first = await start("publish", str(channels), "-", "--heartbeat-ms", "50")
    # It has joined when it is told of both channels.
    seen = await lines_until(receiver, "joined")
    seen += await lines_until(receiver, "joined")
    assert {each["channel"] for each in seen} == {"c1", "c2"}
    assert await first.communicate(b"") == (b"", b"")
    assert first.returncode == 0
    second = await start("publish", str(channels), str(given))
    output, wrong = await asyncio.wait_for(second.communicate(b""), SECONDS)
    assert (output.decode(), wrong) == (
        "channel c1: 200 messages\nchannel c2: 100 messages\n",
        b"",
    )
    for _ in range(4):
        await lines_until(receiver, "ended")
    receiver.send_signal(signal.SIGINT)
    _, wrong = await asyncio.wait_for(receiver.communicate(b""), SECONDS)
    assert wrong == b"300 messages, 0 lost\n"
    assert receiver.returncode == 0
    received = re.findall(rb"8=FIX.*?\x0110=\d{3}\x01", out.read_bytes())
    for topic in ("c1", "c2"):
        texts = [text_of(each) for each in received if f"\x0156={topic}\x01".encode() in each]
        assert texts == [str(n) for n in range(300) if (n % 3 == 0) == (topic == "c2")]


async def test_a_receiver_stops_after_so_many_messages_and_prints_them(channels: Path) -> None:
    receiver = await start("receive", str(channels), "--channel", "c1", "--count", "2")
    publisher = await start("publish", str(channels), "-", "--channel", "c1")
    assert publisher.stdin is not None
    assert receiver.stdout is not None
    number = 0
    # Published until the receiver has joined and heard two of them.
    while receiver.returncode is None:
        number += 1
        publisher.stdin.write(update(f"text {number}"))
        try:
            async with asyncio.timeout(0.02):
                await receiver.wait()
        except TimeoutError:
            assert number < SECONDS * 50
    lines = (await receiver.stdout.read()).decode().splitlines()
    await publisher.communicate(b"")
    found = [line for line in lines if "58=text" in line]
    assert len(found) == 2
    assert re.match(r"c1 (\d+) 8=FIXT.1.1\|9=\d+\|35=X\|34=\1\|50=", found[0])


async def test_a_reader_that_goes_away_ends_a_receiver_quietly(channels: Path) -> None:
    publisher = await start(
        "publish", str(channels), "-", "--channel", "c1", "--heartbeat-ms", "20"
    )
    reading, writing = os.pipe()
    os.close(reading)
    receiver = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "feedhandler", "fixcast", "receive", str(channels),
        "--channel", "c1", stdout=writing, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _started.append(receiver)
    os.close(writing)
    _, wrong = await asyncio.wait_for(receiver.communicate(), SECONDS)
    assert (receiver.returncode, wrong) == (0, b"")
    await publisher.communicate(b"")


async def test_publishers_that_are_killed_and_replaced_lose_nothing_unmarked(
    channels: Path, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    state = str(tmp_path / "epochs")

    def check(events: list[dict]) -> None:
        epochs, expected = [0], 1
        for event in events:
            if event["event"] == "new-epoch":
                assert event["epoch"] > epochs[-1]
                assert not event["ended"]
                epochs.append(event["epoch"])
                expected = 1
            elif event["event"] == "message":
                assert event["number"] == expected
                expected += 1
            elif event["event"] in ("lost", "skipped"):
                raise AssertionError(event)
        assert len(epochs) == KILLS + 1
        assert events[-1]["next"] == expected

    receiver = await start("receive", str(channels), "--channel", "c1", "--json")
    events: list[dict] = []
    for turn in range(KILLS + 1):
        publisher = await start(
            "publish", str(channels), "-", "--channel", "c1", "--state", state,
            "--heartbeat-ms", "20",
        )  # fmt: skip
        assert publisher.stdin is not None
        # A Logon, or a Heartbeat, tells that the publisher is there.
        events += await lines_until(receiver, "joined" if turn == 0 else "new-epoch")
        for number in range(rng.randint(1, 300)):
            publisher.stdin.write(update(f"{turn} {number}"))
        await publisher.stdin.drain()
        if turn < KILLS:
            events += await lines_until(receiver, "message")
            publisher.kill()
            await publisher.wait()
        else:
            await publisher.communicate(b"")
            events += await lines_until(receiver, "ended")
    receiver.send_signal(signal.SIGINT)
    await receiver.communicate(b"")
    check(events)


def test_a_plan_is_printed_and_read_again(tmp_path: Path) -> None:
    volumes = tmp_path / "volumes.csv"
    rows = [f"{a}{b},equities,{ord(a) * ord(b)}" for a in "ABCDEFG" for b in "ABCDEFG"]
    volumes.write_text("symbol,content,volume\n" + "\n".join(rows) + "\n")
    done = run_here("fixcast", "plan", str(volumes), "--channels", "4", "--source-a", "10.1.0.5")
    assert done.returncode == 0
    planned = parse_channels(done.stdout, "plan")
    assert list(planned.channels) == [f"equities-{number}" for number in (1, 2, 3, 4)]
    assert "heaviest channel: 1." in done.stderr
    assert all("line B: no source" in warning for warning in planned.warnings)


def test_a_plan_that_is_not_even_is_exit_code_1(tmp_path: Path) -> None:
    volumes = tmp_path / "volumes.csv"
    volumes.write_text("symbol,volume\nA,1000\nB,1\n")
    done = run_here("fixcast", "plan", str(volumes), "--channels", "2")
    assert done.returncode == 1
    assert "has 2.00 of the mean, more than 1.2" in done.stderr


async def test_a_sealed_channel_without_and_with_wrong_keys_is_one_line_and_exit_code_1(
    channels: Path, tmp_path: Path
) -> None:
    right_keys, wrong_keys = str(tmp_path / "right"), str(tmp_path / "wrong")
    for words in (
        ("new", right_keys, "c1", "c2"),
        ("new", wrong_keys, "c1"),
        ("give", right_keys, "c2", "--to", wrong_keys),
    ):
        assert run_here("fixcast", "keys", *words).returncode == 0
    words = ["receive", str(channels), "--channel", "c1", "--json"]
    bare = await start(*words)
    wrong = await start("receive", str(channels), "--json", "--keys", wrong_keys)
    right = await start(*words, "--keys", right_keys)
    publisher = await start(
        "publish", str(channels), "-", "--keys", right_keys, "--heartbeat-ms", "20",
    )  # fmt: skip
    await lines_until(bare, "sealed")
    # It has the key of c2 only, and has joined c1 before.
    await lines_until(wrong, "joined")
    await lines_until(right, "joined")
    await publisher.communicate(update("one"))
    assert publisher.returncode == 0
    await lines_until(right, "ended")
    outcomes = []
    for process in (bare, wrong, right):
        process.send_signal(signal.SIGINT)
        _, error = await asyncio.wait_for(process.communicate(b""), SECONDS)
        outcomes.append((process.returncode, error.decode()))
    assert [code for code, _ in outcomes] == [1, 1, 0]
    assert "channel c1 is sealed (give a folder with its keys: --keys)" in outcomes[0][1]
    assert "no datagram could be read with these keys" in outcomes[1][1]


async def test_a_late_receiver_says_what_state_it_began_from(tmp_path: Path) -> None:
    path = tmp_path / "channels.toml"
    path.write_text(definition(market_data=True))
    entry = b"35=X|268=1|279=0|269=0|278=o%d|55=S1|270=10|271=5|"
    publisher = await start("publish", str(path), "-", "--heartbeat-ms", "50")
    early = await start("receive", str(path), "--json", "--count", "20", "--no-states")
    await lines_until(early, "joined")
    assert publisher.stdin is not None
    publisher.stdin.write(b"".join(sealed(entry % number) for number in range(20)))
    await asyncio.wait_for(early.wait(), SECONDS)
    late = await start("receive", str(path), "--json")
    seen = await lines_until(late, "state")
    assert seen[-1]["as_of"] == seen[-1]["number"] == 20
    (state,) = seen[-1]["messages"]
    assert "|35=W|" in state
    assert "|369=20|" in state
    assert state.count("|278=o") == 20
    late.send_signal(signal.SIGINT)
    _, wrong = await asyncio.wait_for(late.communicate(b""), SECONDS)
    assert wrong == b"0 messages, 0 lost, 1 states\n"
    await publisher.communicate(b"")


async def test_a_publisher_that_waits_for_standard_input_ends_in_order_when_it_is_interrupted(
    channels: Path,
) -> None:
    receiver = await start("receive", str(channels), "--channel", "c1", "--json")
    publisher = await start(
        "publish", str(channels), "-", "--channel", "c1", "--heartbeat-ms", "20"
    )
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    assert publisher.stderr is not None
    await lines_until(receiver, "joined")
    publisher.stdin.write(update("one"))
    await lines_until(receiver, "message")
    publisher.send_signal(signal.SIGTERM)
    async with asyncio.timeout(SECONDS):
        assert await publisher.stdout.read() == b"channel c1: 1 messages\n"
        assert await publisher.stderr.read() == b""
        assert await publisher.wait() == 0
    await lines_until(receiver, "ended")
