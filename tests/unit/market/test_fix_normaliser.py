"""FIX market data normalised: order events, and the books and trades that follow from them."""

from collections import defaultdict
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import feedhandler
from feedhandler.codecs import load_feed
from feedhandler.codecs.dbn import UNDEFINED_TIME
from feedhandler.fixcast.exchange_plan import symbols_of
from feedhandler.market import fix_normaliser
from feedhandler.market.stream_market import Market
from feedhandler.market.views import Trade
from feedhandler.replay.generating.fix_market import PRICE_PLACES, FixMarket
from feedhandler.replay.translation.book import BUY, SELL
from feedhandler.replay.translation.fix_book import standing_of
from feedhandler.retrans.fix.market_state import MarketState
from tests.support.fix_market import full, refresh
from tests.support.fix_messages import sealed
from tests.support.twins import twins_of
from tests.unit.replay.generating.test_fix_market import EPOCH, HEADER, OPENING_NS

FEED = load_feed("fix-marketdata")
TWINS = twins_of(fix_normaliser)
UNIT = 10**9
ORDERS = (
    "279=0|269=0|278=1|55=ABC|270=10.25|271=5",
    "279=0|269=0|278=2|55=ABC|270=10.25|271=7",
    "279=0|269=1|278=3|55=ABC|270=10.5|271=3.9",
)


def after(*messages: bytes) -> Market:
    """A market that was given these messages of service 1."""
    market = feedhandler.Market(FEED)
    assert isinstance(market, Market)
    for message in messages:
        market.apply_message(message, 1)
    return market


def handed_out(content: str, body: bytes = b"", **more: Any) -> Any:
    """A message of a subscription."""
    return SimpleNamespace(content=content, body=body, service=1, **more)


def test_books_of_datagrams_are_the_generated_markets_own(seed: int) -> None:
    symbols = symbols_of(1)[:4]
    made, market = FixMarket(seed, symbols), feedhandler.Market(FEED)
    numbered = [
        HEADER.application(made.next_message(OPENING_NS + n), n, EPOCH) for n in range(1, 2001)
    ]
    datagrams = [b"".join(numbered[at : at + 5]) for at in range(0, len(numbered), 5)]
    assert sum(market.apply(each, 1) for each in datagrams) == 2000
    unit = 10 ** (9 - PRICE_PLACES)
    for symbol in symbols:
        security, book = made.securities[symbol], market.books[symbol]
        for side, view in ((security.bids, book.bids), (security.asks, book.asks)):
            levels = sorted(side.items(), reverse=side is security.bids)
            assert view.top(10) == [(price * unit, size, 0) for price, (size, _) in levels]
            assert view.orders == []
        assert not book.crossed
        trade = market.trades[symbol]
        assert trade.size > 0
        assert OPENING_NS < trade.time_ns <= OPENING_NS + 2000
    assert sorted(market.books) == sorted(symbols)
    assert not market.problems


def test_a_change_without_a_price_keeps_it_and_one_of_another_id_replaces_the_order() -> None:
    book = after(refresh(*ORDERS), refresh("279=1|278=2|55=ABC|271=4")).books["ABC"]
    assert book.bids.orders == [(1, 10_250_000_000, 5), (2, 10_250_000_000, 4)]
    market = after(refresh(*ORDERS), refresh("279=1|278=9|280=1|55=ABC|271=8"))
    assert market.books["ABC"].bids.orders == [(2, 10_250_000_000, 7), (9, 10_250_000_000, 8)]
    market.apply_message(refresh("279=0|269=J|55=ABC"), 1)
    assert market.books["ABC"].bids.orders == market.books["ABC"].asks.orders == []


def test_orders_are_known_by_their_ids_and_have_their_priority() -> None:
    market = after(refresh(*ORDERS), refresh("279=1|269=0|278=1|55=ABC|270=10.25|271=9"))
    book = market.books["ABC"]
    assert book.bids.top(5) == [(1025 * UNIT // 100, 16, 2)]
    assert book.bids.orders == [(2, 10_250_000_000, 7), (1, 10_250_000_000, 9)]
    assert book.asks.top(5) == [(10_500_000_000, 3, 1)], "sizes are cut to whole units"
    market.apply_message(full("ABC", "269=0|278=z|270=11|271=1", "269=1|278=y|270=11|271=1"), 1)
    assert book.crossed, "a view is of the book as it is"
    (odd,) = [order for order, _, _ in book.bids.orders]
    assert odd >> 63, "an id that is no number is a digest"
    assert dict(market.trades) == dict(market.states) == market.names == {}
    with pytest.raises(KeyError):
        market.books["NONE"]
    assert 7 not in market.books


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("272=20260105|273=09:00:01.5", Trade(10 * UNIT, 4, "N", 1_767_603_601_500_000_000)),
        ("60=20260105-09:00:02", Trade(10 * UNIT, 4, "N", 1_767_603_602_000_000_000)),
        ("2446=1", Trade(10 * UNIT, 4, "B", UNDEFINED_TIME)),
        ("2446=2", Trade(10 * UNIT, 4, "A", UNDEFINED_TIME)),
    ],
)
def test_the_last_new_trade_is_kept(fields: str, expected: Trade) -> None:
    earlier = "279=0|269=2|55=ABC|270=9|271=1"
    market = after(refresh(earlier, f"279=0|269=2|270=10|271=4|{fields}"))
    gone, nameless = "279=2|269=2|55=ABC|270=11|271=1", "279=0|269=2|270=12|271=1"
    market.apply_message(refresh(gone, "279=0|269=2|55=ABC|271=1"), 1)
    market.apply_message(refresh(nameless), 1)
    assert dict(market.trades) == {"ABC": expected}


@pytest.mark.parametrize(
    ("code", "state"),
    [("2", "halted"), ("3", "trading"), ("17", "trading"), ("21", "auction"), ("18", "closed")],
)
def test_security_status_messages_tell_states(code: str, state: str) -> None:
    market = after(sealed(f"35=f|34=1|55=ABC|326={code}|".encode()))
    market.apply_message(sealed(b"35=f|34=2|55=ABC|326=20|"), 1)
    assert dict(market.states) == {"ABC": state}


def test_what_a_subscription_hands_out_is_applied() -> None:
    market = feedhandler.Market(FEED)
    market.update(handed_out("message", refresh(*ORDERS)))
    market.update(handed_out("packet", refresh("279=0|269=0|278=4|55=X|270=1|271=1")))
    assert sorted(market.books) == ["ABC", "X"]
    held = market.books["ABC"]
    market.update(handed_out("quality", quality={"reason": "gap"}))
    assert held.bids.top(1)
    for reason in ("snapshot-begin", "reset"):
        market.update(handed_out("message", refresh(*ORDERS)))
        market.update(handed_out("quality", quality={"reason": reason}))
        assert held.bids.top(1) == []
    market.update(handed_out("packet", b"nonsense"))
    market.update(handed_out("message", refresh("279=2|269=0|278=1|55=ABC")))
    assert market.problems == {"bad_packet": 1, "unknown_orders": 1}
    market.update(handed_out("message", b"nonsense"))
    assert market.problems["short"] == 1
    market.clear(2)


@pytest.mark.parametrize(
    "body", ["35=f|34=1|55=ABC|x=1|", "35=X|34=1|268=1|279=0|269=2|55=ABC|x=1|"]
)
def test_a_message_with_a_wrong_field_is_counted(body: str) -> None:
    market = after(sealed(body.encode()))
    assert market.problems == {"short": 1}
    assert list(market.states) == list(market.trades) == []


def test_without_clearing_a_reset_leaves_books() -> None:
    market = feedhandler.Market(FEED, clears_on_reset=False)
    market.update(handed_out("message", refresh(*ORDERS)))
    market.update(handed_out("quality", quality={"reason": "reset"}))
    assert market.books["ABC"].bids.top(1)


STYLES = ("order", "position", "price")


def random_entry(random: Random, style: str, is_full: bool) -> str:
    """Return an entry of a security whose entries are orders, levels by position, or by price."""
    action = random.choice("00001112" + ("345" if style == "position" else ""))
    # Of levels by position no two have one price.
    side, price = random.choice("01"), random.randrange(10**9 if style == "position" else 10)
    words = [] if is_full else [f"279={action}"]
    words += [f"269={side}"]
    if style == "order":
        words += [f"278={random.choice(['A', ''])}{random.randrange(1, 12)}"]
        if not is_full and random.random() < 0.1:
            words += [f"280={random.randrange(1, 12)}"]
    if style == "position":
        words += [f"1023={random.randrange(0, 6)}"]
    if style != "position" or is_full or random.random() < 0.8 or action in "05":
        words += [f"270={price / 4}"]
    if random.random() < 0.95:
        words += [f"271={random.choice([0, *range(1, 30)])}"]
    return "|".join(words)


def random_message(random: Random) -> bytes:
    """Return a W or an X; security i has entries of style i."""
    if random.random() < 0.1:
        style = random.choice(STYLES)
        return full(style, *(random_entry(random, style, True) for _ in range(random.randrange(4))))
    entries = []
    for _ in range(random.randrange(1, 4)):
        style = random.choice(STYLES)
        first, *rest = random_entry(random, style, False).split("|")
        entries.append("|".join([first, f"55={style}", *rest]))
    return refresh(*entries)


def standing(state: MarketState, security: str) -> dict[int, dict[int, int]]:
    """Return the total size by price, by side, of the entries that stand."""
    found: dict[int, dict[int, int]] = {BUY: defaultdict(int), SELL: defaultdict(int)}
    for each in standing_of(state, security.encode())[0]:
        found[each.side][int(each.price.scaleb(9))] += int(each.size)
    return found


def test_books_are_those_of_the_entries_that_stand_after_each_random_message(seed: int) -> None:
    random, state, market = Random(seed), MarketState(), feedhandler.Market(FEED)
    for number in range(1, 1500):
        message = random_message(random)
        state.apply(message, number)
        market.apply_message(message, 1)
        for style in STYLES:
            wanted = standing(state, style)
            if style not in market.books:
                assert not any(wanted.values())
                continue
            book = market.books[style]
            for side, view in ((BUY, book.bids), (SELL, book.asks)):
                levels = sorted(wanted[side].items(), reverse=side == BUY)
                assert [row[:2] for row in view.top(1000)] == levels, (number, style)


def test_both_twins_make_the_same_events(seed: int) -> None:
    random, made = Random(seed), {name: twin.FixNormaliser(FEED) for name, twin in TWINS.items()}
    for number in range(1, 800):
        message = random_message(random)
        for each in made.values():
            code = FEED.message_code(message)
            each.message(message, 0, len(message), code, 5, 7, number, 1)
    compiled, interpreted = made.values()
    assert len(compiled.records) > 800
    assert compiled.records.tobytes() == interpreted.records.tobytes()
    for name in ("unknown_orders", "short", "sideless", "unscaled", "clamped", "unnamed"):
        assert getattr(compiled, name) == getattr(interpreted, name)


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize(
    ("entry", "counter"),
    [
        ("279=0|269=0|278=1|270=99999999999|271=1", "unscaled"),
        ("279=0|269=0|278=1|270=1|271=99999999999", "clamped"),
        ("279=9|269=0|278=1|270=1|271=1", "short"),
        ("279=1|278=1|270=1|271=1", "sideless"),
        ("279=2|269=0|1023=1", "unknown_orders"),
        ("279=2|269=0|278=7", "unknown_orders"),
    ],
)
def test_an_entry_that_does_not_fit_is_counted(twin: ModuleType, entry: str, counter: str) -> None:
    normaliser = twin.FixNormaliser(FEED)
    first, *rest = entry.split("|")
    for words in ([first, "55=ABC", *rest], [first, *rest]):
        message = refresh("|".join(words))
        code = FEED.message_code(message)
        normaliser.message(message, 0, len(message), code, 5, 7, 1, 1)
    assert getattr(normaliser, counter) == 1
    assert normaliser.unnamed == 1, "an entry without a security"


def test_long_symbols_have_their_text() -> None:
    market = after(refresh("279=0|269=0|278=1|55=LONGER-THAN-8|270=1|271=1"))
    assert list(market.books) == ["LONGER-THAN-8"]
