"""A gateway that recovers an IEX channel by gap fill, behind a bad network: nothing lost unmarked,
nothing invented.

What a seed draws, and what is checked, `line_world` says; here requests and answers are datagrams,
each of which may be lost, doubled, late or wrong. `SEEDS=n` plays n seeds (`make simulate`:
10,000), `SEED=s` just one.
"""

import os
import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from gateway_cores import Outward
from line_world import HEAL_NS, MS, SERVICE, Port, Venue, World, bites, play, story

from feedhandler.codecs import load_feed
from feedhandler.config import Config

SEEDS = int(os.environ.get("SEEDS", "50"))
ONE = os.environ.get("SEED")
SESSION = 0x41000001
#: Bytes of a message.
SIZE = 40


def message(number: int, draw: random.Random, trades: dict[int, bytes]) -> bytes:
    """A trade report, whose trade id is its number."""
    return struct.pack("<HccQ8sIqq", 38, b"T", b"\0", number, b"ZVZZT   ", 100, 5, number)


def apply(trades: dict[int, bytes], message: bytes) -> None:
    """Take a trade into the state: it is only added."""
    trades[int.from_bytes(message[-8:], "little")] = message


def nonsense(draw: random.Random) -> bytes:
    """What no good server says: garbage, another session's segment, messages far away."""
    number, session = draw.choice([(1, SESSION + 1), (1 << 30, SESSION)])
    body = message(number, draw, {})
    segment = struct.pack(
        "<BxHIIHHqqq", 1, 0x8004, SERVICE, session, len(body), 1, 0, number, 0
    ) + body  # fmt: skip
    return draw.choice([draw.randbytes(draw.randrange(1, 90)), segment])


VENUE = Venue(load_feed("iex-deep"), "iex-tp", message, {}, nonsense)


class Datagrams:
    """A client's socket: what it sends and gets may be lost, doubled, late or wrong."""

    def __init__(
        self, world: World, kind: str, server: Any, to_client: Callable[..., None]
    ) -> None:
        self.world, self.kind, self.server = world, kind, server
        self.to_client = to_client
        self.session = server.session("sim", world.now)

    def send(self, data: bytes, now_ns: int) -> None:
        """A datagram of the client."""
        self._carry(data, now_ns, self._asked)

    def close(self, now_ns: int) -> None:
        """The client closes its socket: what is under way reaches nobody."""
        self.to_client = lambda data, now_ns: None
        self.session.end()

    def _carry(self, data: bytes, now_ns: int, to: Callable[..., None]) -> None:
        world, rng = self.world, self.world.rng
        if world.happens(world.plan.answers_lost, now_ns):
            return
        for _ in range(1 + world.happens(world.plan.doubled, now_ns)):
            late = self.kind == "late" and now_ns < HEAL_NS
            at = now_ns + world.delay_ns(0, now_ns) + (rng.randrange(100 * MS) if late else 0)
            world.schedule(at, to, data)

    def _asked(self, now_ns: int, data: bytes) -> None:
        self._say(self.session.feed(data, now_ns), now_ns)
        while self.session.waiting:
            self._say(self.session.tick(now_ns), now_ns)

    def _say(self, data: bytes, now_ns: int) -> None:
        world, rng = self.world, self.world.rng
        if not data or (self.kind == "silent" and now_ns < HEAL_NS):
            return
        if self.kind == "wrong" and world.happens(0.3, now_ns):
            data = rng.choice([nonsense(rng), data[: rng.randrange(len(data))], data + b"\0"])
        self._carry(data, now_ns, self._answered)

    def _answered(self, now_ns: int, data: bytes) -> None:
        self.to_client(data, now_ns)


class DatagramPort(Port):
    """A server that answers datagrams."""

    def connect(  # type: ignore[override]
        self, now_ns: int, to_client: Callable[..., None]
    ) -> Datagrams:
        """A socket; nothing is refused."""
        self.world.now = now_ns
        return Datagrams(self.world, self.kind, self.server, to_client)


class DatagramOutward(Outward):
    """The gateway's socket for one server."""

    def flush(self) -> None:
        """Send every datagram that waits."""
        self.asked = False
        while data := self.server.take_output():
            if self.connection is not None:
                self.connection.send(data, self.gateway.now)


class DatagramWorld(World):
    """A world whose server answers the gateway alone, by datagrams."""

    def _make_servers(self) -> None:
        super()._make_servers()
        port = self.ports["rts"]
        self.ports["rts"] = DatagramPort(self, port.kind, port.server)

    def _make_gateway(self, seed: int) -> None:
        super()._make_gateway(seed)
        self.outward = {
            name: DatagramOutward(self, server, self.ports[name])  # type: ignore[arg-type]
            for name, server in self.core.servers.items()
        }

    def _configuration(self) -> Config:
        config = super()._configuration()
        channel = msgspec.structs.replace(config.channels[0], retransmission_lines=())
        return msgspec.structs.replace(config, channels=(channel,))

    def _packet(self, first: int, end: int) -> bytes:
        return self.venue.feed.encode_packet(
            sequence=first, service=SERVICE, session=SESSION,
            messages=self.published[first - 1 : end - 1],
            header={"stream_offset": (first - 1) * SIZE},
        )  # fmt: skip


@pytest.mark.timeout(7200)
def test_what_comes_out_of_an_iex_channel_is_what_went_in_or_is_marked() -> None:
    seen: Counter[str] = Counter()
    for seed in [int(ONE)] if ONE else range(SEEDS):
        try:
            seen += play(VENUE, apply, seed, DatagramWorld)
        except Exception as error:
            raise AssertionError(f"SEED={seed}: {error}") from error
    if not ONE:
        wanted = {
            "gap", "MISSING", "CLOSED", "rts packets", "rts others_packets", "rts bad_packets",
            "rts wrong_session", "rts tests", "rts tests_answered", "rts broken", "rts cancelled",
            "a silent server",
        }  # fmt: skip
        assert wanted <= set(seen), f"no seed brought {wanted - set(seen)}"


def test_a_seed_does_the_same_again() -> None:
    assert story(VENUE, 3, DatagramWorld) == story(VENUE, 3, DatagramWorld)


@pytest.mark.parametrize("seed_", range(5))
def test_the_ledger_finds_what_was_lost_doubled_moved_or_changed(seed_: int) -> None:
    assert bites(VENUE, apply, seed_, DatagramWorld) == []
