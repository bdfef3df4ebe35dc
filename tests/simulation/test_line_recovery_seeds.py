"""Gateways that recover channels of several venues, behind a bad network: nothing lost unmarked,
nothing invented, and the state of the market is true whenever they say so.

What a seed draws, and what is checked, `line_world` says; what is a venue's own, its module.
`SEEDS=n` plays n seeds (`make simulate`: 10,000), `SEED=s` just one.
"""

import cboe_venue
import cme_loops_venue
import cme_replay_venue
import iex_venue
import itch_venue
import nyse_venue
import pytest
from channel_world import SEEDS_USUAL, play_seeds
from line_world import PASSWORD, Venue, bites, play, played

from tests.support.checkout import CHECKOUT

MODULES = (cboe_venue, cme_loops_venue, cme_replay_venue, iex_venue, itch_venue, nyse_venue)


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "SECRET")


@pytest.fixture(params=MODULES, ids=lambda module: module.__name__.removesuffix("_venue"))
def venue(request: pytest.FixtureRequest) -> Venue:
    found: Venue = request.param.VENUE
    return found


@pytest.mark.timeout(7200)
def test_what_comes_out_of_a_channel_is_what_went_in_or_is_marked(venue: Venue) -> None:
    play_seeds(lambda seed: play(venue, seed), venue.wanted, venue.rare)


def test_a_seed_does_the_same_again(venue: Venue) -> None:
    assert played(venue, 3).link.frames == played(venue, 3).link.frames


def test_the_page_of_faults_says_how_many_seeds_are_played() -> None:
    page = CHECKOUT / "docs" / "reliability.md"
    rows = [
        row for row in page.read_text().splitlines() if "(../tests/simulation/test_line_" in row
    ]
    told = [int(row.split(" | ")[-2].removesuffix(" seeds")) for row in rows]
    assert told == [SEEDS_USUAL + len(module.VENUE.rare) for module in MODULES]


@pytest.mark.parametrize("seed_", range(2))
def test_the_ledger_finds_what_was_lost_doubled_moved_or_changed(venue: Venue, seed_: int) -> None:
    assert bites(venue, seed_) == []
