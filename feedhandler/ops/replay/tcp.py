"""`feedhandler replay --tcp`: captures served as a line by TCP, at their pace.

The first message is sent when the first client is there, the others at the pace from then on. The
server stays until a signal, since a later client may ask for all that was sent.
"""

import asyncio
import sys
import time
from collections.abc import Iterator

import numpy as np

from feedhandler.codecs import UsageError
from feedhandler.replay.playing.pace import Pace, Schedule
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.tcp_line import TcpFrames, TcpLineServer
from feedhandler.retrans.settings import ServerSettings
from feedhandler.retrans.tcp import serve
from feedhandler.terminal.arguments import TcpAddress
from feedhandler.terminal.console import ExitCode, complain, print_json, run_async

#: A client that was silent, or took nothing, for so long is gone (SoupBinTCP).
DEAD_US = 15_000_000
#: How long a wait is at most before a signal is heeded.
STEP_S = 0.05
#: So many late datagrams are sent at most before clients and signals have a turn.
BURST = 64

#: When frames are due, in ns after the start, and the frames.
Due = Iterator[tuple[int, list[bytes]]]


def run(source: Pipeline, pace: Pace, address: TcpAddress, as_json: bool) -> int:
    """Serve until a signal; print the account. Raises `UsageError` where nothing can be sent."""
    notes = sys.stderr if as_json else sys.stdout
    assert source.feed is not None, "a line by TCP is one of a feed"
    frames = TcpFrames(source.feed, address.framing)
    due = _due(source, pace, frames)
    first = next((each for each in due if each[1]), None)
    if first is None:
        raise UsageError("there is nothing to send", "see what the capture has: --dry-run")

    async def main(stop: asyncio.Event) -> int:
        server = TcpLineServer(frames, address.framing, ServerSettings(dead_us=DEAD_US))
        listener = await serve(server, address.host, address.port)
        host, port = listener.address[:2]
        named = f", session {frames.session} from number {frames.first} on"
        print(
            f"replay: {address.framing}{named if frames.session else ''} at {host}:{port}",
            file=notes,
            flush=True,
        )
        try:
            if await _send(server, first, due, stop):
                print(f"replay: all {len(server.sent):,} frames sent", file=notes, flush=True)
                await stop.wait()
        finally:
            await listener.close()
        _account(server, as_json)
        return ExitCode.OK

    return run_async(main)


def _due(source: Pipeline, pace: Pace, frames: TcpFrames) -> Due:
    """Yield frames with the times at which they are due; none at a batch's end.

    So clients and signals have a turn in a capture that brings nothing of the line for long.
    """
    schedule = Schedule(pace)
    for batch in source.batches():
        moments = schedule.due_ns(batch.time_ns, np.asarray(batch.length, np.int64)).tolist()
        for due_ns, datagram in zip(moments, batch.datagrams(), strict=True):
            if made := frames.of(bytes(datagram.payload)):
                yield due_ns, made
        yield moments[-1], []


async def _send(
    server: TcpLineServer, first: tuple[int, list[bytes]], due: Due, stop: asyncio.Event
) -> bool:
    """Send everything from when a client is there; return whether no signal came before the end."""
    while not server.followed:
        if await _stopped(stop, STEP_S):
            return False
    start_ns = time.monotonic_ns() - first[0]
    server.publish(first[1])
    for number, (due_ns, frames) in enumerate(due, 1):
        while (wait_ns := start_ns + due_ns - time.monotonic_ns()) > 0:
            if await _stopped(stop, min(wait_ns / 1e9, STEP_S)):
                return False
        server.publish(frames)
        if not frames or not number % BURST:
            await asyncio.sleep(0)
        if stop.is_set():
            return False
    return True


async def _stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Wait so long at most; return whether a signal came."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False


def _account(server: TcpLineServer, as_json: bool) -> None:
    counts, frames = server.counts, server.frames
    account = {
        "session": frames.session, "first": frames.first, "frames": len(server.sent),
        "connections": counts["clients"], "logins": counts["logins"], "lacking": frames.lacking,
        "others": frames.others,
    }  # fmt: skip
    if as_json:
        print_json(account)
    else:
        print(
            f"replay: {len(server.sent):,} frames to {counts['clients']:,} connections, "
            f"{counts['logins']:,} logins"
        )
    if frames.others:
        complain(
            f"{frames.others:,} packets of other services than {frames.service} were left out",
            "a line by TCP has one service: --service names another",
        )
    if frames.lacking:
        complain(
            f"{frames.lacking:,} sequence numbers are in no datagram of the capture",
            "messages behind them have lower numbers in a SoupBinTCP session",
        )
