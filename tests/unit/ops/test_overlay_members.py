"""A sender's rate and its end, without sockets of a tree (`ops.overlay.members`)."""

import itertools
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.ops.overlay import members
from feedhandler.overlay.topology import make_topology
from feedhandler.overlay.topology_file import write_topology
from feedhandler.overlay.tree import Shape
from feedhandler.ports import free_udp_port

S = 1_000_000_000


def test_a_rate_holds_after_a_time_without_input(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    now_ns, sent = [S], []
    os.write(write_end, b"first\n")

    def poll() -> None:
        """Let ten seconds go by when the first line was sent; then more lines come, and the end."""
        if sent and now_ns[0] < 10 * S:
            now_ns[0] += 10 * S
            os.write(write_end, b"more\n" * 1_000)
            os.close(write_end)

    def turn(most_ns: int) -> None:
        now_ns[0] += most_ns

    clock = SimpleNamespace(monotonic_ns=lambda: now_ns[0], time_ns=lambda: now_ns[0])
    monkeypatch.setattr(members, "time", clock)
    one, other = socket.socketpair()
    with one, other, os.fdopen(read_end, "rb", 0) as file:
        loop: Any = SimpleNamespace(
            sock=one, poll=poll, turn=turn, send=lambda each: sent.append(each)
        )
        member: Any = SimpleNamespace(send=lambda payload, at_ns: at_ns)
        signals: Any = SimpleNamespace(over=lambda member: False)
        members._send_all(member, loop, file, True, 100, signals)
    assert len(sent) == 1_001
    begun_ns = sent[1]
    soon = sum(at_ns < begun_ns + S for at_ns in sent[1:])
    assert 100 <= soon <= 111, "a second's messages, and those of a tenth that is caught up"


def test_a_signal_just_before_a_named_pipe_is_opened_ends_the_sender(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sending = members.Sending(pipe, "", "", 0, True, 0, False)
    signals: Any = SimpleNamespace(stopped=True)
    with pytest.raises(KeyboardInterrupt), members._messages(sending, signals):
        pass


def test_a_line_that_does_not_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "LINE_BYTES_MAX", 100_000)
    path, sent = tmp_path / "lines", []
    path.write_bytes(b"one\n" + bytes(200_000))
    one, other = socket.socketpair()
    with one, other, path.open("rb") as file:
        loop: Any = SimpleNamespace(sock=one, poll=lambda: None, send=sent.append)
        member: Any = SimpleNamespace(send=lambda payload, at_ns: payload)
        signals: Any = SimpleNamespace(over=lambda member: False)
        with pytest.raises(UsageError, match="a line has more than 100,000 bytes"):
            members._send_all(member, loop, file, True, 0, signals)
    assert sent == [b"one"]


def test_a_sender_says_that_it_is_there_before_its_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sent = tmp_path / "tree.toml", []
    addresses = [("127.0.0.1", port) for port in (free_udp_port(), free_udp_port())]
    write_topology(make_topology(Shape(1, 1, 1), 1, addresses, itertools.repeat(b"k" * 32)), path)

    def send_all(member: Any, loop: Any, *_: Any) -> None:
        sent.append((loop.port.sent, member.deadline_ns > 0))

    monkeypatch.setattr(members, "_send_all", send_all)
    monkeypatch.setattr(members, "Signals", lambda paths: SimpleNamespace(stopped=False))
    running = members.Running((path,), "sender", 1, False, None, False, False)
    messages = Path(os.devnull)
    assert members.send(running, members.Sending(messages, "", "", 0, True, 0, False)) == 0
    assert sent == [(1, True)]
