"""A generated order session as a capture: both lines' datagrams, and a ledger of what is in it."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.generating.destinations import LINES, REALTIME
from feedhandler.replay.generating.order_session import CHANNEL, OrderSession
from feedhandler.replay.generating.prng import Prng
from feedhandler.replay.generating.traffic_capture import write_with_ledger

#: Line B is this much behind line A.
LINE_B_NS = 5_000


def write_session(
    session: OrderSession,
    duration_ns: int,
    path: str | os.PathLike[str],
    *,
    seed: int,
    losses: tuple[float, float] = (0.0, 0.0),
) -> dict[str, Any]:
    """Write the session's first `duration_ns` and its close to `path`, its ledger beside it.

    `losses` are the shares of data packets that the lines lose. Returns the ledger's document.
    Raises as `unwritable` says where the file cannot be written; what was written of it is then
    removed.
    """
    return write_with_ledger(
        Path(path), lambda file: _written(session, duration_ns, file, seed, losses)
    )


def _written(
    session: OrderSession,
    duration_ns: int,
    file: CaptureWriter,
    seed: int,
    losses: tuple[float, float],
) -> dict[str, Any]:
    """Write the capture; return its ledger's document."""
    types, prng = Counter[str](), Prng(seed)
    addresses = [REALTIME.of(line, CHANNEL) for line in LINES]
    lost, packets, size = [0, 0], 0, 0
    for outgoing in session.packets(duration_ns):
        packets, size = packets + 1, size + len(outgoing.packet)
        decoded = session.feed.decode_packet(outgoing.packet)
        types.update(message.layout.name for message in decoded.messages)
        for line, (group, port) in enumerate(addresses):
            # Drawn for every packet, so that a rate of one line does not shift the other.
            drawn = prng.next_u32()
            if outgoing.messages and drawn < losses[line] * (1 << 32):
                lost[line] += 1
                continue
            time_ns = session.start_ns + outgoing.due_ns + line * LINE_B_NS
            file.write(time_ns, group, port, outgoing.packet)
    return {
        "feed": session.feed.name,
        "seed": seed,
        "duration_s": duration_ns / 1e9,
        "packets": packets,
        "payload_bytes": size,
        "messages": session.messages,
        "types": dict(sorted(types.items())),
        "lost": dict(zip(LINES, lost, strict=True)),
        "destinations": [f"{group}:{port}" for group, port in addresses],
    }
