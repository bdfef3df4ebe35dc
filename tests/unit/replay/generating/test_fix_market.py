"""The simulated FIX market: its messages are its books, and are as long as they should be."""

from decimal import Decimal

import pytest

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.dictionary import load_dictionary
from feedhandler.codecs.fix.framing import Frame
from feedhandler.codecs.fix.index import FieldIndex, read_message
from feedhandler.codecs.fix.reasons import FixReject
from feedhandler.fixcast.exchange_plan import channel_id, symbols_of
from feedhandler.fixcast.messages import Header
from feedhandler.replay.generating.fix_market import (
    LEVELS_MAX,
    PRICE_PLACES,
    SNAPSHOT_EVERY,
    FixMarket,
    Security,
)
from feedhandler.replay.translation.book import BUY, SELL
from feedhandler.replay.translation.fix_book import book_of
from feedhandler.retrans.fix.market_state import MarketState

#: 2026-01-05 09:00:00 UTC.
OPENING_NS = 1_767_603_600_000_000_000
MESSAGES = 5_000
HEADER = Header(sender=b"SIM", target=channel_id(1).encode())
#: An epoch is the time when it began, as the publisher draws it.
EPOCH = OPENING_NS


def published(seed: int, count: int, symbols: int = 100) -> list[bytes]:
    """The first messages of a market with a channel's header."""
    market = FixMarket(seed, symbols_of(1)[:symbols])
    return [
        HEADER.application(market.next_message(OPENING_NS + n), n, EPOCH)
        for n in range(1, count + 1)
    ]


def levels(security: Security) -> dict[int, list[tuple[int, int]]]:
    """Price and size of each level by side, best first, as the market has them."""
    return {
        BUY: sorted(((p, size) for p, (size, _) in security.bids.items()), reverse=True),
        SELL: sorted((p, size) for p, (size, _) in security.asks.items()),
    }


def test_books_made_of_the_messages_are_the_markets_own(seed: int) -> None:
    symbols = symbols_of(1)[:5]
    market, state = FixMarket(seed, symbols), MarketState()
    for number in range(1, MESSAGES + 1):
        message = market.next_message(OPENING_NS)
        state.apply(HEADER.application(message, number, EPOCH), number)
        if number < len(symbols):  # the first messages tell each book once
            continue
        for symbol in symbols if number % 50 == 0 else ():
            made = book_of(state, symbol.encode())
            unit = Decimal(10) ** (PRICE_PLACES - made.price_places)
            for side, expected in levels(market.securities[symbol]).items():
                rows = made.book.side(side).top(LEVELS_MAX)
                assert [(price * unit, size) for price, size, _ in rows] == expected
            bids, asks = made.book.bids.top(1), made.book.asks.top(1)
            assert not bids or not asks or bids[0][0] < asks[0][0]
    assert not state.problems


def test_published_messages_have_150_to_400_bytes(seed: int) -> None:
    sizes = [len(each) for each in published(seed, MESSAGES)]
    assert min(sizes) >= 150
    assert max(sizes) <= 400


def test_every_message_is_right_by_the_dictionary(seed: int) -> None:
    dictionary = load_dictionary("fix50sp2")
    frame, index = Frame(), FieldIndex(dictionary.table)
    for message in published(seed, 1_000):
        reason = read_message(dictionary.table, message, 0, len(message), frame, index)
        assert FixReject(reason) == FixReject.FINE, message


def test_books_are_sent_whole_first_and_then_in_turn(seed: int) -> None:
    market = FixMarket(seed, symbols_of(1))
    types = [
        market.next_message(OPENING_NS).split(b"\x01")[2] for _ in range(100 + 10 * SNAPSHOT_EVERY)
    ]
    assert types[:100] == [b"35=W"] * 100
    assert types[100:].count(b"35=W") == 10


def test_a_seed_says_all(seed: int) -> None:
    assert published(seed, 500) == published(seed, 500)
    assert published(seed, 500) != published(seed + 1, 500)


@pytest.mark.parametrize("count", [0, 10_001])
def test_a_market_of_no_or_too_many_securities_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match="securities"):
        FixMarket(1, [str(number) for number in range(count)])
