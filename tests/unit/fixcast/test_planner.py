"""The planner of channels (`feedhandler/fixcast/planner.py`)."""

import itertools
import random
from fractions import Fraction
from pathlib import Path

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast import planner
from feedhandler.fixcast.channels import holds, parse_channels
from feedhandler.fixcast.planner import (
    SHARE_MAX,
    Plan,
    Volume,
    definition,
    plan,
    read_volumes,
)

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def symbols(rng: random.Random, count: int) -> list[str]:
    found: set[str] = set()
    while len(found) < count:
        found.add("".join(rng.choices(LETTERS + ".", k=rng.randint(1, 5))))
    return sorted(found)


def day(rng: random.Random, instruments: int, skew: float) -> list[Volume]:
    """A day's volumes: few instruments have most of it."""
    contents = ["equities", "options", "bonds", ""][: rng.randint(1, 4)]
    ranks = list(range(1, instruments + 1))
    rng.shuffle(ranks)
    return [
        Volume(rng.choice(contents), symbol, int(10**7 / rank**skew))
        for symbol, rank in zip(symbols(rng, instruments), ranks, strict=True)
    ]


def check(planned: Plan, volumes: list[Volume], channels: int) -> None:
    """Each instrument is in one channel, whose volume is that of its instruments."""
    assert len(planned.shares) == channels
    totals = [0] * channels
    for each in volumes:
        listed = [
            at for at, share in enumerate(planned.shares)
            if each.symbol in share.symbols.get(each.content, ())
        ]  # fmt: skip
        ranged = [
            at for at, share in enumerate(planned.shares)
            if any(holds(r, each.symbol) for r in share.ranges.get(each.content, ()))
        ]  # fmt: skip
        found = listed or ranged
        assert len(found) == 1, each
        totals[found[0]] += each.volume
    assert totals == [share.volume for share in planned.shares]


def test_no_channel_is_above_its_share(seed: int) -> None:
    rng = random.Random(seed)
    steps = set()
    for _ in range(40):
        channels = rng.randint(1, 12)
        instruments = rng.randint(channels, rng.choice([3 * channels, 300]))
        volumes = day(rng, instruments, rng.choice([0, 0.3, 0.5, 0.8, 1.1]))
        planned = plan(volumes, channels)
        check(planned, volumes, channels)
        steps.add(planned.step)
        mean = Fraction(sum(each.volume for each in volumes), channels)
        # An instrument cannot be split: what weighs less than a fifth of the mean always fits.
        if max(each.volume for each in volumes) <= (SHARE_MAX - 1) * mean:
            assert planned.is_even, (planned.heaviest, planned.step)
    assert steps == {1, 2, 3}


def test_a_generated_day_goes_on_ten_channels(seed: int) -> None:
    rng = random.Random(seed)
    volumes = day(rng, 4000, 0.7)
    planned = plan(volumes)
    check(planned, volumes, 10)
    assert planned.heaviest <= SHARE_MAX


def test_contents_stay_apart_and_letters_contiguous_where_that_is_even() -> None:
    volumes = [Volume(content, s, 10) for content in ("bonds", "equities") for s in LETTERS]
    planned = plan(volumes, 4)
    assert planned.step == 1
    assert [dict(share.ranges) for share in planned.shares] == [
        {"bonds": [("", "N")]},
        {"bonds": [("N", "")]},
        {"equities": [("", "N")]},
        {"equities": [("N", "")]},
    ]


def test_a_channel_may_carry_the_end_of_one_content_and_the_beginning_of_the_next() -> None:
    volumes = [Volume("bonds", s, 10) for s in LETTERS]
    volumes += [Volume("equities", s, 10) for s in LETTERS[:13]]
    planned = plan(volumes, 2)
    assert planned.step == 2
    assert [share.contents for share in planned.shares] == [["bonds"], ["bonds", "equities"]]


def test_the_heaviest_go_where_there_is_room() -> None:
    weights = {"A": 50, "B": 90, "C": 50, "D": 90}
    planned = plan([Volume("", symbol, weight) for symbol, weight in weights.items()], 3)
    assert planned.step == 3
    assert sorted(share.volume for share in planned.shares) == [90, 90, 100]
    assert [share.symbols[""] for share in planned.shares] == [["B"], [], []]
    assert planned.is_even


def test_an_instrument_that_weighs_too_much_is_reported() -> None:
    planned = plan([Volume("", "A", 1000), Volume("", "B", 1), Volume("", "C", 1)], 2)
    assert not planned.is_even
    assert planned.heaviest == Fraction(2000, 1002)


def test_volumes_of_nothing_are_a_plan_too() -> None:
    planned = plan([Volume("", s, 0) for s in LETTERS], 3)
    assert planned.is_even
    assert all(share.ranges for share in planned.shares)


@pytest.mark.parametrize(
    ("volumes", "channels", "reason"),
    [
        ([Volume("", "A", 1)], 2, "1 instruments cannot fill 2"),
        ([Volume("", "A", 1), Volume("", "A", 2)], 1, "A comes twice"),
        ([Volume("", "A", -1)], 1, "negative"),
        ([Volume("", "A", 1)], 0, "cannot plan 0 channels"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    volumes: list[Volume], channels: int, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        plan(volumes, channels)


def test_a_plan_is_a_definition_that_can_be_read(seed: int) -> None:
    rng = random.Random(seed)
    volumes = day(rng, 500, 0.9)
    planned = plan(volumes)
    text = definition(planned, "239.10", 31001, ("10.1.0.5", "10.2.0.5"))
    channels = parse_channels(text, "plan")
    assert channels.warnings == []
    names = list(channels.channels)
    for each in volumes:
        found = channels.of(each.symbol, each.content)
        assert found is not None
        share = planned.shares[names.index(found.id)]
        assert each.content in share.contents
    # What was not measured has a channel too.
    for content, symbol in itertools.product({each.content for each in volumes}, ("", "ZZZZZ")):
        assert channels.of(symbol, content) is not None or planned.step == 3


def test_volumes_are_read_from_a_table(tmp_path: Path) -> None:
    path = tmp_path / "volumes.csv"
    path.write_text("symbol,content,volume\nIBM,equities,120\nT,equities,7\n")
    assert read_volumes(path) == [Volume("equities", "IBM", 120), Volume("equities", "T", 7)]
    path.write_text("volume,symbol\n5,A\n")
    assert read_volumes(path) == [Volume("", "A", 5)]
    path.write_text("symbol,volume\nA,5\n", encoding="utf-8-sig")  # as spreadsheets write it
    assert read_volumes(path) == [Volume("", "A", 5)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("symbol,content\nA,b\n", "no columns symbol and volume"),
        ("", "no columns"),
        ("symbol,volume\nA,1\nB,x\n", ":3: B: 'x' is no volume"),
        ("symbol,volume\n,1\n", ":2: no symbol"),
        ("symbol,volume\nA\n", ":2: A: '' is no volume"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_line(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "volumes.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason):
        read_volumes(path)


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    volumes = [Volume("", symbol, 1) for symbol in LETTERS]
    planned = plan(volumes, 3)
    monkeypatch.setattr(planner, "GROUPS_MAX", 2)
    with pytest.raises(UsageError, match="more than 2 channels"):
        definition(planned, "239.10", 1, ("", ""))
    monkeypatch.setattr(planner, "INSTRUMENTS_MAX", 20)
    with pytest.raises(UsageError, match="more than 20 instruments"):
        plan(volumes, 3)


def test_a_plan_that_lists_the_heaviest_is_a_definition_too() -> None:
    volumes = [Volume("", s, 90 if s in "BD" else 50) for s in "ABCD"]
    planned = plan(volumes, 3)
    # One of the heavy ones is alone in its channel, and busier than all others together.
    assert planned.heaviest_of([each._replace(volume=each.symbol == "B") for each in volumes]) == 3
    channels = parse_channels(definition(planned, "239.10", 31001, ("", "")), "plan")
    found = [channels.of(s) for s in "ABCD"]
    assert None not in found
    assert found[1].id != found[3].id  # type: ignore[union-attr]


@pytest.mark.parametrize("instruments", [1, 2, 30, 10**6])
def test_few_numbers_of_heaviest_instruments_are_tried_and_all_of_them_last(
    instruments: int,
) -> None:
    counts = list(planner._counts(instruments))
    assert counts == sorted(set(counts))
    assert counts[-1] == instruments
    assert len(counts) <= planner._STEPS + 1
