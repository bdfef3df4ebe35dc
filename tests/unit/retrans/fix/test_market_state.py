"""Books from published FIX messages (`market_state.py`, `replay/translation/fix_book.py`)."""

import random

import pytest

from feedhandler.codecs.fix.dictionary import Member, load_dictionary
from feedhandler.replay.translation.book import BUY, SELL, Book
from feedhandler.replay.translation.fix_book import book_of
from feedhandler.retrans.fix import market_state as module
from feedhandler.retrans.fix.market_data import MarketDataFormat
from feedhandler.retrans.fix.market_state import X_ONLY, MarketState
from tests.support.fix_market import Flow, full, refresh
from tests.support.fix_messages import sealed

FORMAT = MarketDataFormat()


def after(*messages: bytes, **settings: int) -> MarketState:
    state = MarketState(**settings)
    for number, each in enumerate(messages, 1):
        state.apply(each, number)
    return state


def texts(state: MarketState, symbol: bytes = b"A", depth: int = 0) -> list[str]:
    """The entries that stand, with `|` for SOH."""
    found = state.securities[symbol].texts((), depth)
    return [each.replace(b"\x01", b"|").decode().rstrip("|") for each in found]


NEW_A = "279=0|269=0|278=a|55=A|270=10|271=5"
NEW_B = "279=0|269=0|278=b|55=A|270=10|271=7"
TRADE_A = "279=0|269=2|278=t1|55=A|270=9|271=1"
TRADE_B = "279=0|269=2|278=t2|55=A|270=8|271=2"
LEVELS = tuple(f"279=0|269=0|55=A|1023={at}|270={20 - at}|271=1" for at in (1, 2, 3))
BID_AT = "269=0|270={}|271=1|1023={}".format
STANDING = ["269=0|278=a|270=10|271=5", "269=0|278=b|270=10|271=7"]


@pytest.mark.parametrize(
    ("entries", "standing"),
    [
        ((NEW_A, NEW_B), STANDING),
        ((NEW_A, "279=1|278=a|55=A|271=3", NEW_B), ["269=0|278=a|270=10|271=3", STANDING[1]]),
        # One that grows, or changes its price, goes behind the others.
        ((NEW_A, NEW_B, "279=1|278=a|55=A|271=6"), [STANDING[1], "269=0|278=a|270=10|271=6"]),
        (
            (NEW_A, NEW_B, "279=1|278=a|55=A|270=9|271=5"),
            [STANDING[1], "269=0|278=a|270=9|271=5"],
        ),
        ((NEW_A, NEW_B, "279=1|278=a|55=A|271=5"), STANDING),
        # A change may give it another id.
        ((NEW_A, NEW_B, "279=1|280=a|278=c|55=A|271=5"), [STANDING[1], "269=0|278=c|270=10|271=5"]),
        ((NEW_A, NEW_B, "279=2|278=a|55=A"), STANDING[1:]),
        ((NEW_A, NEW_B, "279=2|280=a|55=A"), STANDING[1:]),
        ((NEW_A, NEW_B, "279=0|269=J|55=A"), []),
        # Without ids, books are known by price, other types by their type.
        (
            (
                "279=0|269=0|55=A|270=10|271=5",
                "279=0|269=0|55=A|270=9|271=5",
                "279=1|269=0|55=A|270=10|271=8",
                "279=0|269=2|55=A|270=9|271=1",
                "279=0|269=2|55=A|270=10|271=2",
            ),
            ["269=0|270=9|271=5", "269=0|270=10|271=8", "269=2|270=10|271=2"],
        ),
        # The last of these stands, whatever their ids; changes of one before it change nothing.
        ((TRADE_A, NEW_A, TRADE_B), [STANDING[0], "269=2|278=t2|270=8|271=2"]),
        ((TRADE_A, TRADE_B, "279=2|269=2|278=t1|55=A"), ["269=2|278=t2|270=8|271=2"]),
        ((TRADE_A, TRADE_B, "279=1|278=t2|55=A|271=4"), ["269=2|278=t2|270=8|271=4"]),
        ((TRADE_A, TRADE_B, "279=2|280=t2|55=A"), []),
        (("279=0|269=0|55=A|270=10|271=5", "279=2|269=0|55=A|270=10"), []),
        (LEVELS, [BID_AT(19, 1), BID_AT(18, 2), BID_AT(17, 3)]),
        ((*LEVELS, "279=0|269=0|55=A|1023=1|270=21"), [
            "269=0|270=21|1023=1", BID_AT(19, 2), BID_AT(18, 3), BID_AT(17, 4)
        ]),
        ((*LEVELS, "279=2|269=0|55=A|1023=2"), [BID_AT(19, 1), BID_AT(17, 2)]),
        ((*LEVELS, "279=3|269=0|55=A|1023=2"), ["269=0|270=17|271=1|1023=1"]),
        ((*LEVELS, "279=4|269=0|55=A|1023=2"), ["269=0|270=19|271=1|1023=1"]),
        ((*LEVELS[:1], "279=1|269=0|55=A|1023=1|271=4"), ["269=0|270=19|271=4|1023=1"]),
        ((*LEVELS[:1], "279=5|269=0|55=A|1023=1|270=3"), ["269=0|270=3|1023=1"]),
    ],
)  # fmt: skip
def test_entries_stand_as_their_actions_say(entries: tuple[str, ...], standing: list[str]) -> None:
    assert texts(after(*(refresh(each) for each in entries))) == standing
    assert texts(after(refresh(*entries))) == standing
    assert not after(*(refresh(each) for each in entries)).problems


def test_levels_beyond_the_depth_that_is_set_go_without_a_word() -> None:
    state = after(refresh(*LEVELS), refresh("279=0|269=0|55=A|1023=1|270=21"), levels_max=3)
    assert [each[6:11] for each in texts(state)] == ["270=2", "270=1", "270=1"]
    assert state.entries == 3


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("279=2|278=z|55=A", "unknown_entry"),
        ("279=1|278=z|55=A|269=0", "unknown_entry"),
        ("279=1|278=z|55=A", "no_type"),
        ("279=9|278=a|55=A", "unknown_action"),
        ("279=2|269=0|55=A|1023=1", "unknown_level"),
        ("279=0|269=0|55=A|1023=x", "unknown_level"),
        ("279=0|269=0|270=1", "no_security"),
    ],
)
def test_what_does_not_fit_is_counted_and_changes_nothing_else(entry: str, problem: str) -> None:
    state = after(refresh(entry), refresh(NEW_A))
    assert state.problems[problem] == 1
    assert STANDING[0] in texts(state)


def test_an_entry_without_an_instrument_has_that_of_the_one_before_it() -> None:
    state = after(
        refresh(NEW_A, "279=0|269=1|278=b|270=11|271=7", "279=0|269=0|278=c|48=X|22=8|270=1")
    )
    assert texts(state) == [STANDING[0], "269=1|278=b|270=11|271=7"]
    assert texts(state, b"X") == ["269=0|278=c|270=1"]
    assert state.securities[b"X"].instrument == b"55=[N/A]\x0148=X\x0122=8\x01"


def test_a_full_refresh_takes_the_place_of_a_securitys_entries() -> None:
    state = after(refresh(NEW_A), full("A", "269=1|278=z|270=11|271=2"), full("B", "269=J"))
    assert texts(state) == ["269=1|278=z|270=11|271=2"]
    assert texts(state, b"B") == []
    assert state.entries == 1


def test_the_best_prices_of_each_side_are_taken() -> None:
    bids = [f"279=0|269=0|278=b{at}|55=A|270={at}|271=1" for at in (3, 9, 5, 9)]
    bids[3] = bids[3].replace("b9", "c9")
    offers = [f"279=0|269=1|278=o{at}|55=A|270={at}|271=1" for at in (12, 11)]
    state = after(refresh(*bids, *offers, "279=0|269=2|55=A|270=10"))
    ids = ["278=b9", "278=b5", "278=c9", "278=o12", "278=o11"]
    assert [each.split("|")[1] for each in texts(state, depth=2)][:5] == ids
    assert [each.split("|")[1] for each in texts(state, depth=1)] == [
        "278=b9", "278=c9", "278=o11", "270=10",
    ]  # fmt: skip


def test_a_lost_message_makes_states_unknown_until_a_full_refresh() -> None:
    state = after(refresh(NEW_A))
    assert state.whole
    state.lost()
    assert not state.whole
    assert not state.knows(b"A")
    state.apply(full("A", "269=J"), 5)
    assert state.knows(b"A")
    assert not state.knows(b"B")
    assert not state.whole
    state.clear()
    assert state.whole


def test_what_is_no_message_makes_states_unknown() -> None:
    state = after(b"nothing")
    assert state.problems["unreadable"] == 1
    assert not state.whole


def test_messages_of_other_types_change_nothing() -> None:
    state = after(sealed(b"35=B|34=1|148=news|"))
    assert state.number == 1
    assert not state.contents()


def test_without_room_a_securitys_state_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    state = after(refresh(NEW_A, NEW_B), entries_max=1)
    assert state.problems["no_room"] == 1
    assert not state.knows(b"A")
    state.apply(full("A", "269=0|278=a|270=1"), 2)
    assert state.knows(b"A")
    monkeypatch.setattr(module, "SECURITIES_MAX", 1)
    state.apply(refresh("279=0|269=0|278=q|55=B|270=1"), 3)
    assert not state.whole
    assert b"B" not in state.securities


def test_snapshots_rebuild_what_they_were_made_of(seed: int) -> None:
    flow = Flow(random.Random(seed))
    state = after(*(flow.message() for _ in range(300)))
    again = MarketState()
    for each in state.securities.values():
        again.apply(FORMAT.snapshot(b"r", 300, 7, each.instrument, each.texts()), 300)
    assert again.contents() == state.contents()
    assert again.entries == state.entries
    assert not state.problems
    # And the two go on alike: priorities included.
    for number in range(301, 400):
        message = flow.message()
        for each in (state, again):
            each.apply(message, number)
    assert again.contents() == state.contents()


def test_a_book_of_entries_is_the_book_of_the_orders(seed: int) -> None:
    rng = random.Random(seed)
    state, book = MarketState(), Book()
    for number in range(1, 400):
        keys = list(book.by_key)
        kind = rng.choice("aamd") if keys else "a"
        price, size = rng.randint(90, 110), rng.randint(1, 50)
        if kind == "a":
            side = rng.choice([BUY, SELL])
            book.add((b"o%d" % number, 0), side, price, size)
            type = 0 if side == BUY else 1
            entry = f"279=0|269={type}|278=o{number}|55=A|270={price / 10:.1f}|271={size}"
        else:
            key = rng.choice(keys)
            assert isinstance(key, tuple)
            if kind == "m":
                book.modify(key, price, size)
                entry = f"279=1|278={key[0].decode()}|55=A|270={price / 10:.1f}|271={size}"
            else:
                book.remove(key)
                entry = f"279=2|278={key[0].decode()}|55=A"
        state.apply(refresh(entry), number)
    found = book_of(state, b"A")
    assert found.unread == 0
    for ours, theirs in ((found.book.bids, book.bids), (found.book.asks, book.asks)):
        assert ours.keys == theirs.keys
        assert found.price_places == 1
        for price, level in theirs.levels.items():
            assert list(ours.levels[price].orders) == list(level.orders)


def test_entries_without_price_or_size_are_in_no_book() -> None:
    state = after(refresh(NEW_A, "279=0|269=1|278=x|55=A|271=4", "279=0|269=2|55=A|270=1"))
    found = book_of(state, b"A")
    assert (found.unread, len(found.book.by_key)) == (1, 1)
    assert not book_of(state, b"other").book.by_key


def test_what_a_refresh_has_and_a_snapshot_has_not_is_left_out() -> None:
    def tags(members: tuple[Member, ...]) -> set[int]:
        return {tag for each in members for tag in ({each.tag} | tags(each.group))}

    def entries(type: str) -> tuple[Member, ...]:
        messages = load_dictionary("fix50sp2").messages
        return next(each.group for each in messages[type].members if each.tag == 268)

    assert tags(entries("X")) - tags(entries("W")) <= X_ONLY
    assert not tags(entries("W")) & X_ONLY - {1500}


def test_a_long_day_of_trades_with_ids_takes_no_more_room() -> None:
    trades = (f"279=0|269=2|278=t{number}|55=A|270=9|271=1" for number in range(50))
    state = after(*(refresh(each) for each in trades), entries_max=4)
    assert (state.entries, state.knows(b"A"), dict(state.problems)) == (1, True, {})
    assert state.securities[b"A"].types == {b"t49": b"2"}


@pytest.mark.parametrize("price", ["1e999999", "9E5", "inf", "nan", "one"])
def test_a_price_that_fix_does_not_write_is_none(price: str) -> None:
    state = after(refresh(f"279=0|269=0|278=a|55=A|270={price}|271=5"), refresh(NEW_B))
    assert module.decimal_of(price.encode()) is None
    assert module.price_of(state.securities[b"A"].entries[b"a",]) == 0
    assert len(texts(state)) == 2
