"""The state of an order session in messages: each kind of message, and sessions against a book."""

from typing import Any

import pytest

from feedhandler.codecs import load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.market.stream_market import Market
from feedhandler.replay.generating.order_session import OrderSession
from feedhandler.replay.generating.order_state import OrderState

FEED, PITCH = load_feed("nasdaq-totalview-itch"), load_feed("cboe-byx-pitch")


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
                                          executed_shares=99)], [added(1, 1, attributed=True)]),
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
    state = OrderState(FEED)
    for message in messages:
        state.apply(message)
    assert state.messages() == tuple(left)


@pytest.mark.parametrize(
    ("price", "volume", "left"),
    [
        (100, 60, [(1, 100, 60), (2, 100, 80)]),
        (100, 90, [(2, 100, 80), (1, 100, 90)]),
        (101, 60, [(2, 100, 80), (1, 101, 60)]),
        (100, 0, [(2, 100, 80)]),
    ],
)
def test_a_modified_order_keeps_its_priority_where_it_only_shrinks(
    price: int, volume: int, left: list[tuple[int, int, int]]
) -> None:
    xdp = load_feed("nyse-integrated-xdp")

    def encoded(name: str, order: int, price: int, volume: int) -> bytes:
        return xdp.encode_message(name, order_id=order, price=price, volume=volume)

    state = OrderState(xdp)
    for message in (
        encoded("add_order", 1, 100, 80), encoded("add_order", 2, 100, 80),
        encoded("modify_order", 1, price, volume), encoded("modify_order", 9, price, volume),
    ):  # fmt: skip
        state.apply(message)
    assert state.messages() == tuple(encoded("add_order", *each) for each in left)


def test_of_states_the_latest_of_each_stock_stands_in_front_of_the_orders() -> None:
    halted, trading = (
        made("stock_trading_action", stock="ZVZZT", trading_state=each) for each in "HT"
    )
    event, directory = made("system_event", event_code="Q"), made("stock_directory", stock="ZVZZT")
    state = OrderState(FEED)
    for message in (added(1), halted, directory, trading, event, event):
        state.apply(message)
    assert state.messages() == (event, directory, trading, added(1))


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("nasdaq-totalview-itch", 0.3),
        ("nasdaq-totalview-itch", 2.0),
        ("asx-ntp-itch", 2.0),
        ("cboe-byx-pitch", 2.0),
        ("cboe-c1-options-pitch", 2.0),
        ("nyse-integrated-xdp", 2.0),
        ("nyse-integrated-pillar", 2.0),
    ],
)
def test_a_fresh_book_of_the_state_is_the_book_of_the_session(name: str, seconds: float) -> None:
    feed = load_feed(name)
    state, whole, joined = OrderState(feed), Market(feed), Market(feed)
    session = OrderSession(feed, 8, instruments=5, messages_per_s=1_000.0)
    for each in session.packets(int(seconds * 1e9)):
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
    assert joined.names == whole.names
    assert not joined.problems


def pitch(name: str, **fields: Any) -> bytes:
    return PITCH.encode_message(name, **fields)


def placed(order: int, size: int = 100) -> bytes:
    return pitch("add_order_expanded", order_id=order, quantity=size, symbol_extended="ZVZZT")


def test_clock_messages_stand_where_they_were_in_force_and_the_latest_last() -> None:
    first, second, third = (pitch("time", time=each) for each in (1, 2, 3))
    halted = pitch("trading_status", symbol_extended="ZVZZT", trading_status="H")
    state = OrderState(PITCH)
    for message in (first, placed(1), placed(2), second, placed(3), halted, third):
        state.apply(message)
    assert state.messages() == (
        second, halted, first, placed(1), placed(2), second, placed(3), third,
    )  # fmt: skip
    for message in (pitch("delete_order", order_id=2), pitch("delete_order", order_id=3)):
        state.apply(message)
    assert state.messages() == (second, halted, first, placed(1), third)


def test_an_execution_may_tell_what_is_left_and_a_unit_clear_leaves_nothing() -> None:
    state = OrderState(PITCH)
    execution = pitch("order_executed_at_price_size", order_id=1, remaining_quantity=30)
    for message in (placed(1), placed(2), execution):
        state.apply(message)
    assert state.messages() == (placed(1, 30), placed(2))
    state.apply(pitch("unit_clear"))
    assert state.messages() == ()


def test_what_is_not_kept_is_refused_not_passed_over() -> None:
    xdp = load_feed("nyse-integrated-xdp")
    with pytest.raises(UsageError, match="kept behind symbol_clear"):
        OrderState(xdp).apply(xdp.encode_message("symbol_clear", symbol_index=1))
    with pytest.raises(UsageError, match="no state is kept of cme-mdp3"):
        OrderState(load_feed("cme-mdp3"))
