"""The state of a session in messages: each kind of message, and sessions against a book."""

from typing import Any

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.market.venue_market import VenueMarket
from feedhandler.replay.generating.order_session import OrderSession
from feedhandler.replay.generating.order_state import OrderState
from feedhandler.replay.generating.order_writers import WRITERS

FEED = load_feed("nasdaq-totalview-itch")


def made(name: str, **fields: Any) -> bytes:
    return FEED.encode_message(name, stock_locate=1, **fields)


def added(order: int, shares: int = 100, price: int = 10_000, attributed: bool = False) -> bytes:
    more = {"attribution": "MPID"} if attributed else {}
    name = f"add_order_{'with' if attributed else 'no'}_mpid_attribution"
    return made(
        name, order_reference_number=order, buy_sell_indicator="B", shares=shares, stock="ZVZZT",
        price=price, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "left"),
    [
        ([added(1), added(2)], [added(1), added(2)]),
        ([added(1), made("order_cancel", order_reference_number=1, canceled_shares=40)],
         [added(1, 60)]),
        ([added(1), made("order_executed", order_reference_number=1, executed_shares=100)], []),
        ([added(1, attributed=True), made("order_executed_with_price", order_reference_number=1,
                                          executed_shares=99)], [added(1, 1)]),
        ([added(1), added(2), made("order_delete", order_reference_number=1)], [added(2)]),
        ([added(1), added(2), made("order_replace", original_order_reference_number=1,
                                   new_order_reference_number=3, shares=7, price=9)],
         [added(2), added(3, 7, 9)]),
        ([made("order_delete", order_reference_number=9),
          made("order_cancel", order_reference_number=9, canceled_shares=1),
          made("order_replace", original_order_reference_number=9)], []),
        ([made("non_cross_trade", shares=5, price=7)], []),
    ],
)  # fmt: skip
def test_each_message_leaves_what_it_should(messages: list[bytes], left: list[bytes]) -> None:
    state, directory = OrderState(FEED), made("stock_directory", stock="ZVZZT")
    for message in (directory, *messages):
        state.apply(message)
    assert state.messages() == (directory, *left)


def test_of_states_the_latest_of_each_stock_stands_in_front_of_the_orders() -> None:
    halted, trading = (
        made("stock_trading_action", stock="ZVZZT", trading_state=each) for each in "HT"
    )
    event, directory = made("system_event", event_code="Q"), made("stock_directory", stock="ZVZZT")
    state = OrderState(FEED)
    for message in (added(1), halted, directory, trading, event, event):
        state.apply(message)
    assert state.messages() == (event, directory, trading, added(1))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_a_fresh_book_of_the_state_is_the_book_of_the_session(seconds: float, name: str) -> None:
    feed = load_feed(name)
    state, whole, joined = OrderState(feed), VenueMarket(feed), VenueMarket(feed)
    session = OrderSession(feed, 8, instruments=5, messages_per_s=2_000.0)
    for each in session.step(int(seconds * 1e9)):
        whole.apply(each.packet)
        for message in feed.messages_of(each.packet):
            state.apply(message)
    for message in state.messages():
        joined.apply_message(message)
    assert len(whole.books) == 5
    for name, book in whole.books.items():
        assert joined.books[name].bids.orders == book.bids.orders
        assert joined.books[name].asks.orders == book.asks.orders
    assert dict(joined.states) == dict(whole.states)
    assert not joined.problems


def test_a_feed_of_other_messages_is_refused() -> None:
    with pytest.raises(UsageError, match="no state is kept of cme-mdp3"):
        OrderState(load_feed("cme-mdp3"))
