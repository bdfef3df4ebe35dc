"""`feedhandler.Market` of FIX: books, trades and trading states of a channel's messages."""

from types import SimpleNamespace
from typing import Any

import pytest

import feedhandler
from feedhandler.codecs import UsageError, load_feed
from feedhandler.codecs.dbn import UNDEFINED_TIME
from feedhandler.fixcast.exchange_plan import symbols_of
from feedhandler.market.venue_market import Trade
from feedhandler.replay.generating.fix_market import PRICE_PLACES, FixMarket
from feedhandler.replay.state.fix_books import FixBooks
from tests.support.fix_market import full, refresh
from tests.support.fix_messages import sealed
from tests.unit.test_fix_market_generator import HEADER, NUMBERING, OPENING_NS

FEED = load_feed("fix-marketdata")
UNIT = 10**9
ORDERS = (
    "279=0|269=0|278=a|55=ABC|270=10.25|271=5",
    "279=0|269=0|278=b|55=ABC|270=10.25|271=7",
    "279=0|269=1|278=c|55=ABC|270=10.5|271=3.9",
)


def after(*messages: bytes) -> FixBooks:
    """A market that was given these messages of service 1."""
    market = feedhandler.Market(FEED)
    assert isinstance(market, FixBooks)
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
        HEADER.application(made.next_message(OPENING_NS + n), n, NUMBERING) for n in range(1, 2001)
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


def test_orders_are_known_by_their_ids_and_have_their_priority() -> None:
    market = after(refresh(*ORDERS), refresh("279=1|269=0|278=a|55=ABC|270=10.25|271=9"))
    book = market.books["ABC"]
    assert book.bids.top(5) == [(1025 * UNIT // 100, 16, 2)]
    assert book.bids.orders == [("b", 10_250_000_000, 7), ("a", 10_250_000_000, 9)]
    assert book.asks.top(5) == [(10_500_000_000, 3, 1)], "sizes are cut to whole units"
    market.apply_message(full("ABC", "269=0|278=z|270=11|271=1", "269=1|278=y|270=11|271=1"), 1)
    assert book.crossed, "a view is of the book as it is"
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
    market.update(handed_out("packet", refresh("279=0|269=0|278=d|55=X|270=1|271=1")))
    assert sorted(market.books) == ["ABC", "X"]
    held = market.books["ABC"]
    market.update(handed_out("quality", quality={"reason": "gap"}))
    assert held.bids.top(1)
    for reason in ("snapshot-begin", "reset"):
        market.update(handed_out("message", refresh(*ORDERS)))
        market.update(handed_out("quality", quality={"reason": reason}))
        assert held.bids.top(1) == []
    market.update(handed_out("records"))
    market.update(handed_out("packet", b"nonsense"))
    market.update(handed_out("message", refresh("279=2|269=0|278=a|55=ABC")))
    assert market.problems == {"other_records": 1, "bad_packet": 1, "unknown_entry": 1}
    market.clear(2)


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        ("35=f|34=1|55=ABC|x=1|", {"bad_message": 1}),
        ("35=X|34=1|268=1|279=0|269=2|55=ABC|x=1|", {"bad_message": 1, "unreadable": 1, "lost": 1}),
    ],
)
def test_a_message_with_a_wrong_field_is_counted(body: str, problems: dict[str, int]) -> None:
    market = after(sealed(body.encode()))
    assert market.problems == problems
    assert list(market.states) == list(market.trades) == []


def test_without_clearing_a_reset_leaves_books() -> None:
    market = feedhandler.Market(FEED, clears_on_reset=False)
    market.update(handed_out("message", refresh(*ORDERS)))
    market.update(handed_out("quality", quality={"reason": "reset"}))
    assert market.books["ABC"].bids.top(1)
    with pytest.raises(UsageError, match="not framed by FIX"):
        FixBooks(load_feed("iex-deep"))
