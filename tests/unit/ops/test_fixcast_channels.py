"""Recording and reports of `fixcast`, without sockets (`ops.fixcast.channels`)."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.fixcast.receiver import ReceiverSettings
from feedhandler.fixcast.receiving import ChannelReceiver
from feedhandler.fixcast.reception import Deliver, ReceptionSettings
from feedhandler.ops.fixcast import channels as ops


class Receiver:
    """A receiver of one channel that hands on a message as soon as it begins."""

    def __init__(self, channels: Any, ids: Any, settings: Any, on_events: Any, notice: Any) -> None:
        self.on_events = on_events
        self.counts = Counter(foreign_sources=1_234)
        channel = ChannelReceiver("c1", b"", ReceptionSettings(), None, 0, 0)
        channel.datagram(b"no FIX message", 0, 0)
        channel.reception.counts["older_epoch"] += 5
        self.receivers = {"c1": channel}
        self.openers: dict[str, Any] = {}

    async def __aenter__(self) -> "Receiver":
        self.on_events("c1", [Deliver(1, b"one")])
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def received(path: Path, as_json: bool) -> tuple[int, bytes]:
    """The exit code of a receiver that has had one message, and what was in its file then."""
    seen: list[bytes] = []

    class Looking(Receiver):
        async def __aexit__(self, *_: object) -> None:
            seen.append(path.read_bytes())

    with pytest.MonkeyPatch.context() as patch, path.open("wb") as file:
        patch.setattr(ops, "Receiver", Looking)
        channels: Any = None
        code = ops._receive(channels, (), file, 1, as_json, ReceiverSettings())
    return code, seen[0]


def test_a_message_is_in_the_file_as_soon_as_it_has_come(tmp_path: Path) -> None:
    assert received(tmp_path / "out.fix", False) == (0, b"one")


def test_what_was_dropped_is_printed_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    received(tmp_path / "out.fix", False)
    assert capsys.readouterr().err.splitlines() == [
        "feedhandler: datagrams from sources that the definition does not name: 1,234"
        " (compare the lines' source)",
        "feedhandler: channel c1: dropped: older_epoch 5, wrong_no_begin_string 1",
        "1 messages, 0 lost",
    ]
    received(tmp_path / "again.fix", True)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events == [
        {"event": "dropped", "reasons": {"foreign_sources": 1234}},
        {
            "event": "dropped",
            "channel": "c1",
            "reasons": {"older_epoch": 5, "wrong_no_begin_string": 1},
        },
    ]


async def test_what_is_not_sent_is_complained_of_at_once_for_each_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ops, "NOTICE_SECONDS", 0)
    publisher: Any = SimpleNamespace(counts=Counter(no_key=1))
    noticing = asyncio.create_task(ops._notice_unsent(publisher))
    for reason in ("no_key", "EPERM"):
        publisher.counts[reason] += 1
        for _ in range(3):
            await asyncio.sleep(0)
    noticing.cancel()
    assert capsys.readouterr().err.splitlines() == [
        "feedhandler: datagrams were not sent: no_key"
        " (no key is valid now: feedhandler fixcast keys list)",
        "feedhandler: datagrams were not sent: EPERM",
    ]
