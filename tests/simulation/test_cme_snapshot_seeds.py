"""A gateway that heals a CME channel by its market recovery feed, behind a bad network: nothing
lost unmarked, nothing invented, and its books are true whenever it says so.

What a seed draws, and what is checked, `line_world` says. Here lines A and B of the market recovery
feed loop, each by itself, and lose, double and delay packets as the live lines do; a replay server
is there as well. `SEEDS=n` plays n seeds (`make simulate`: 10,000), `SEED=s` just one.
"""

import random
import struct
from collections import Counter

import msgspec
import pytest
from channel_world import HEAL_NS, MS, play_seeds
from line_world import REFRESH_LINES, Venue, World, bites, play, story

from feedhandler.config import Config
from tests.support.cme_books import FEED, active, apply, packet, snapshot, update


def nonsense(draw: random.Random) -> bytes:
    """Return bytes that no good replay server sends: garbage, a refusal, numbers far away."""
    own = draw.choice([FEED.encode_message("admin_logout", text="no"), update(1, draw, {})])
    data = struct.pack("<IQ", 1 << 30, 0) + own
    framed = struct.pack("<H", len(data)) + data
    return draw.choice([draw.randbytes(draw.randrange(1, 60)), framed])


def harmed(data: bytes, draw: random.Random) -> bytes:
    """The bytes with an end missing."""
    return data[: draw.randrange(len(data))]


VENUE = Venue(
    FEED, "cme-replay", update, {"source_id": "SIM", "password_env": "CME_REPLAY_PASSWORD"},
    nonsense, harmed=harmed, batch=1,
)  # fmt: skip


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


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CME_REPLAY_PASSWORD", "SIM")


def seen_in(seed: int) -> Counter[str]:
    """A seed, played and checked; what was seen in it, the loops too."""
    made: list[LoopWorld] = []

    def make(venue: Venue, seed: int) -> World:
        made.append(LoopWorld(venue, seed))
        return made[0]

    seen = play(VENUE, apply, seed, make)
    loops = made[0].core.recovery.snapshot(0)["refresh"]
    seen.update({f"loops {name}": count for name, count in loops.items()})
    return seen


@pytest.mark.timeout(7200)
def test_what_comes_out_of_a_channel_with_loops_is_what_went_in_or_is_marked_and_healed() -> None:
    wanted = {
        "gap", "MISSING", "snapshot-begin", "rts packets", "loops snapshots",
        "loops failed_gap", "loops malformed", "loops outside", "loops began",
    }  # fmt: skip
    play_seeds(seen_in, wanted, rare=(13, 37))


def test_a_seed_does_the_same_again() -> None:
    assert story(VENUE, 3, LoopWorld) == story(VENUE, 3, LoopWorld)


@pytest.mark.parametrize("seed_", range(2))
def test_the_ledger_finds_what_was_lost_doubled_moved_or_changed(seed_: int) -> None:
    assert bites(VENUE, apply, seed_, LoopWorld) == []
