"""Whole frames in an order without a meaning, at the node: each well-formed, their sequence not.

A model of sessions and links draws the frames of several clients: `begin`, `attach`, `flow`,
`transfer`, `disposition`, `detach`, `end`, `open` and `close`, now with the channels and handles
that the client has, now with those that it has not, has ended, or has twice. The clients' bytes
are cut anywhere and take turns. What must hold is what holds of `node_fuzz`, whose run this is: no
crash, no exception, nothing kept, and a well-behaved subscriber gets every packet.

    python -m tests.fuzz.sequence_fuzz --count 1000000 --seed 1

A frame counts when the node's engine has taken it.
"""

import random
import socket
import sys
from pathlib import Path
from typing import Any

from tests.fuzz import node_fuzz
from tests.fuzz.command import Command
from tests.fuzz.frame_mutator import Part
from tests.support import amqp_wire as wire

#: Channels and handles that are drawn from: few, so that they meet.
CHANNELS, HANDLES = 4, 4
#: Out of so many frames one is of a channel, a handle or a moment that the model says is wrong.
WRONG_EVERY = 24
#: Frames of one client before it leaves, at most, and clients at a time.
FRAMES_MAX, CLIENTS = 40, 6
ADDRESSES = (
    "euronext.104", "euronext.#", "euronext.104?as=batch", "euronext.104?quality=0", "nonsense",
    "", "queue.none", "$management", "euronext.104?from=1",
)  # fmt: skip


class Client:
    """Client that knows the sessions and links that it has begun and attached."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sessions: dict[int, dict[int, bool]] = {}
        self.names = 0

    def frame(self) -> bytes:
        """The next frame: mostly one that may come now."""
        rng = self.rng
        if rng.randrange(WRONG_EVERY) == 0:
            channel, handle = rng.randrange(CHANNELS), rng.randrange(HANDLES)
        elif not self.sessions:
            return self._begin(0, 0)
        else:
            channel = rng.choice(sorted(self.sessions))
            if not self.sessions[channel]:
                return self._attach(channel, 0)
            handle = rng.choice(sorted(self.sessions[channel]))
        made: bytes = rng.choices(
            [self._begin, self._attach, self._flow, self._transfer, self._disposition,
             self._detach, self._end, self._open, self._close],
            [4, 6, 5, 4, 2, 3, 3, 0.1, 0.2],
        )[0](channel, handle)  # fmt: skip
        return made

    def _begin(self, _channel: int, _handle: int) -> bytes:
        rng = self.rng
        channel = rng.randrange(CHANNELS)
        if rng.randrange(WRONG_EVERY):
            channel = next((at for at in range(CHANNELS) if at not in self.sessions), channel)
        remote = wire.ushort(rng.randrange(CHANNELS)) if rng.randrange(16) == 0 else None
        if remote is None and channel not in self.sessions:
            self.sessions[channel] = {}
        return wire.frame(
            wire.BEGIN, remote, 0, rng.choice((0, 1, 2048)), rng.choice((0, 1, 2048)),
            rng.choice((0, 3, 255)), channel=channel,
        )  # fmt: skip

    def _attach(self, channel: int, _handle: int) -> bytes:
        rng = self.rng
        handle = rng.randrange(HANDLES)
        receiving = rng.random() < 0.7
        self.sessions.get(channel, {})[handle] = receiving
        self.names += rng.randrange(8) > 0  # a name twice is the same link again
        address = rng.choice(ADDRESSES)
        return wire.frame(
            wire.ATTACH, f"l{self.names}", handle, receiving, wire.ubyte(rng.randrange(3)),
            wire.ubyte(rng.randrange(2)), wire.described(wire.SOURCE, address),
            wire.described(wire.TARGET, None if receiving else address), None, None,
            None if receiving else 0, channel=channel,
        )  # fmt: skip

    def _flow(self, channel: int, handle: int) -> bytes:
        rng = self.rng
        if rng.randrange(6) == 0:
            return wire.frame(wire.FLOW, 0, 2048, 0, rng.choice((0, 2048)), channel=channel)
        return wire.flow(
            handle, rng.choice((0, 1, 10, 2**31)), channel, rng.choice((0, 1, 2**32 - 1)),
            rng.random() < 0.3,
        )  # fmt: skip

    def _transfer(self, channel: int, handle: int) -> bytes:
        rng = self.rng
        sending = [at for at, receiving in self.sessions.get(channel, {}).items() if not receiving]
        if sending and rng.randrange(WRONG_EVERY):
            handle = rng.choice(sending)
        elif rng.randrange(WRONG_EVERY):
            return self._flow(channel, handle)
        tag = wire.Value(0xA0, bytes([rng.randrange(4)]))
        return wire.frame(
            wire.TRANSFER, handle, rng.choice((0, 1, 2, 2**32 - 1)), tag, 0, rng.random() < 0.3,
            rng.random() < 0.3, None, None, None, rng.random() < 0.1,
            channel=channel, payload=rng.randbytes(rng.choice((0, 8, 300))),
        )  # fmt: skip

    def _disposition(self, channel: int, _handle: int) -> bytes:
        rng = self.rng
        first = rng.choice((0, 1, 5, 2**32 - 1))
        state = wire.described(rng.choice((0x24, 0x25, 0x26, 0x27, 0x23)))
        return wire.frame(
            wire.DISPOSITION, rng.random() < 0.7, first, first + rng.choice((0, 3)) & 2**32 - 1,
            rng.random() < 0.5, state, channel=channel,
        )  # fmt: skip

    def _detach(self, channel: int, handle: int) -> bytes:
        self.sessions.get(channel, {}).pop(handle, None)
        return wire.frame(wire.DETACH, handle, self.rng.random() < 0.7, channel=channel)

    def _end(self, channel: int, _handle: int) -> bytes:
        self.sessions.pop(channel, None)
        return wire.frame(wire.END, channel=channel)

    def _open(self, _channel: int, _handle: int) -> bytes:
        return wire.opening()[len(wire.AMQP_HEADER) :]

    def _close(self, _channel: int, _handle: int) -> bytes:
        return wire.frame(wire.CLOSE)


class Model:
    """Endless conversations, the same for the same seed; `node_fuzz.Run`'s mutator."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sequence = 0

    def conversation(self) -> list[Part]:
        """One client's frames, from its opening on."""
        client = Client(self.rng)
        frames = [wire.opening()]
        frames += [client.frame() for _ in range(self.rng.randrange(3, FRAMES_MAX))]
        return [Part(each, True) for each in frames]


class Run(node_fuzz.Run):
    """Clients whose bytes take turns, cut anywhere."""

    def __init__(self, seed: int, keep: Path | None = None) -> None:
        super().__init__(seed, keep)
        self.model = Model(seed)
        self.talking: list[tuple[socket.socket, Any, bytes, list[bool]]] = []

    def conversation(self) -> None:
        """A piece of one client's bytes; now and then a new client, or one that leaves."""
        rng = self.model.rng
        while len(self.talking) < CLIENTS:
            parts = self.model.conversation()
            theirs, ours = socket.socketpair()
            theirs.setblocking(False)
            data = b"".join(part.data for part in parts)
            self.talking.append((theirs, self.welcome(ours), data, [True] * len(parts)))
        index = rng.randrange(len(self.talking))
        theirs, connection, data, mutated = self.talking[index]
        size = rng.choice((len(data), rng.randrange(1, 40), rng.randrange(1, 400)))
        if self.keep is not None:  # whose piece, and the piece
            note = index.to_bytes(1, "big") + data[:size]
            self.keep[: len(note) + 4] = len(note).to_bytes(4, "big") + note
        over = connection.gone
        try:
            theirs.send(data[:size])
        except OSError:  # the node has closed, or reads no more
            over = True
        if not connection.gone:
            connection.on_readable()
        self.loop.turn()
        self.talking[index] = (theirs, connection, data[size:], mutated)
        if over or size >= len(data):
            del self.talking[index]
            self.finish(theirs, connection, mutated)

    def part(self) -> None:
        """Those who still talk leave."""
        while self.talking:
            theirs, connection, _, mutated = self.talking.pop()
            self.finish(theirs, connection, mutated)


def problems(outcome: node_fuzz.Outcome, _count: int) -> list[str]:
    """Return the broken promises, a line each; which conditions come is another campaign's."""
    return node_fuzz.problems(outcome, 0)


if __name__ == "__main__":
    command = Command(
        "sequence_fuzz", "frames", lambda n, seed, keep: Run(seed, keep).frames(n, progress=True),
        problems, keeps=True,
    )  # fmt: skip
    sys.exit(command.main())
