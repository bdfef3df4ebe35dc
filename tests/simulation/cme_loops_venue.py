"""A channel of CME MDP 3.0 that is healed by its market recovery feed: lines A and B loop, each by
itself, and lose, double and delay packets as the live lines do. A replay server is there as well.
"""

import random
import struct

import msgspec
from channel_world import HEAL_NS, MS
from cme_replay_venue import harmed
from line_world import PASSWORD, REFRESH_LINES, Venue, World

from feedhandler.config import Config
from tests.support.cme_books import FEED, active, apply, packet, snapshot, update


def nonsense(draw: random.Random) -> bytes:
    """Return bytes that no good replay server sends: garbage, a refusal, numbers far away."""
    own = draw.choice([FEED.encode_message("admin_logout", text="no"), update(1, draw, {})])
    data = struct.pack("<IQ", 1 << 30, 0) + own
    framed = struct.pack("<H", len(data)) + data
    return draw.choice([draw.randbytes(draw.randrange(1, 60)), framed])


class LoopWorld(World):
    """A world whose snapshots come by two lines of loops."""

    healed_by_lines = True

    def _configuration(self) -> Config:
        config = super()._configuration()
        channel = msgspec.structs.replace(
            config.channels[0], retransmission_lines=(), refresh_lines=REFRESH_LINES
        )
        return msgspec.structs.replace(config, channels=(channel,))

    def _plan_session(self) -> None:
        self.active: set[int] = set()
        self.pace_ns = self.rng.choice([200_000, 2 * MS, 8 * MS])
        super()._plan_session()
        for line in (0, 1):
            self.schedule(self.rng.randrange(50 * MS), self._loop, line, 1, [])

    def _packet(self, first: int, end: int) -> bytes:
        return packet(first, *self.published[first - 1 : end - 1], send_time=self.now)

    def _loop(self, now_ns: int, line: int, number: int, left: list[int]) -> None:
        """The next packet of a line's loop: one or two books, as they are now."""
        if number == 1:
            left = active(self.open, self.active)
        count = self.rng.randint(1, 2)
        last, total = len(self.published), len(self.active)
        books = [snapshot(each, self.open, last, total) for each in left[:count]]
        if books:
            data = packet(number, *books, send_time=now_ns)
            if now_ns < HEAL_NS and self.rng.random() < 0.02:
                data = harmed(data, self.rng)
            if not self.happens(self.plan.lost[line], now_ns):
                for _ in range(1 + self.happens(self.plan.doubled, now_ns)):
                    at = now_ns + self.delay_ns(line, now_ns)
                    self.schedule(at, self._refresh_came, line, data)
        left = left[count:]
        pause_ns = self.pace_ns if left else self.rng.randrange(5 * MS, 60 * MS)
        self.schedule(now_ns + pause_ns, self._loop, line, number + 1 if left else 1, left)


VENUE = Venue(
    FEED, "cme-replay", update, apply, {"source_id": "SIM", "password_env": PASSWORD},
    nonsense, harmed=harmed, batch=1, world=LoopWorld,
    wanted={
        "gap", "MISSING", "snapshot-begin", "rts packets", "refresh snapshots",
        "refresh failed_gap", "refresh malformed", "refresh outside", "refresh began",
    },
)  # fmt: skip
