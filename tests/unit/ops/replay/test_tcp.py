"""`feedhandler replay --tcp`: what is sent while clients and signals wait for their turn."""

import asyncio
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.codecs import load_feed
from feedhandler.ops.replay import tcp
from feedhandler.replay.captures.reading import Capture
from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.pace import parse_pace
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.tcp_line import TcpFrames
from feedhandler.terminal.console import ExitCode
from tests.support.commands import run_here

UTP = load_feed("euronext-utp-md")


class Followed:
    """A line with a client."""

    followed = True

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def publish(self, frames: list[bytes]) -> None:
        self.sent += frames


async def test_a_signal_is_heeded_while_everything_is_late() -> None:
    server: Any = Followed()
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    frames = 100 * tcp.BURST
    due = zip(itertools.repeat(0, frames), itertools.repeat([b"frame"]), strict=False)
    assert not await tcp._send(server, next(due), due, stop)
    assert len(server.sent) <= tcp.BURST + 1


def capture(path: Path, *services: int) -> Path:
    """A capture with a packet of each service in turn."""
    with CaptureWriter(path) as writer:
        for number, service in enumerate(services, 1):
            message = UTP.encode_message(230)
            packet = UTP.encode_packet(sequence=number, service=service, messages=[message])
            writer.write(number * 1_000, "239.1.1.1", 5_001, packet)
    return path


async def test_a_signal_is_heeded_while_nothing_of_the_line_comes(tmp_path: Path) -> None:
    mine, other = (
        next(Capture(capture(tmp_path / f"{service}.pcap", service)).batches())
        for service in (101, 102)
    )
    source: Any = SimpleNamespace(batches=lambda: itertools.chain([mine], [other] * 1_000))
    due = tcp._due(source, parse_pace("flat"), TcpFrames(UTP, "length"))
    server: Any = Followed()
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    assert not await tcp._send(server, next(due), due, stop)
    assert len(server.sent) == 1


@pytest.mark.parametrize(("cut", "code"), [(3, ExitCode.FOUND), (0, ExitCode.OK)])
def test_a_capture_that_is_cut_short_is_reported_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int, code: ExitCode
) -> None:
    def served(source: Pipeline, *_: Any) -> int:
        for _batch in source.batches():
            pass
        return ExitCode.OK

    monkeypatch.setattr(tcp, "run", served)
    path = capture(tmp_path / "day.pcap", 101, 101)
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    done = run_here("replay", str(path), "--feed", UTP.name, "--tcp", "length:127.0.0.1:0")
    assert done.returncode == code
    assert ("cut short after 1 records" in done.stderr) is (cut > 0)


def test_with_json_the_account_alone_is_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sent(server: Any, first: Any, *_: Any) -> bool:
        server.publish(first[1])
        return False

    monkeypatch.setattr(tcp, "_send", sent)
    path = str(capture(tmp_path / "day.pcap", 101))
    words = ("replay", path, "--feed", UTP.name, "--tcp", "length:127.0.0.1:0", "--json")
    done = run_here(*words)
    assert json.loads(done.stdout) == {
        "session": "", "first": 1, "frames": 1, "connections": 0, "logins": 0, "lacking": 0,
        "others": 0,
    }  # fmt: skip
    assert "replay: length at 127.0.0.1:" in done.stderr


def test_packets_of_other_services_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sent(server: Any, first: Any, due: Any, _stop: Any) -> bool:
        for frames in (first, *due):
            server.publish(frames[1])
        return False

    monkeypatch.setattr(tcp, "_send", sent)
    path = str(capture(tmp_path / "day.pcap", 101, 102, 102))
    done = run_here("replay", path, "--feed", UTP.name, "--tcp", "length:127.0.0.1:0")
    assert done.returncode == ExitCode.OK
    assert "replay: 1 frames to" in done.stdout
    assert "2 packets of other services than 101 were left out" in done.stderr
