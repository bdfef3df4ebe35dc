"""The market of any feed: what `feedhandler.Market` opens."""

from typing import Any

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.market.venue_market import VenueMarket
from feedhandler.replay.state.market import Market


def open_market(
    feed: Feed | None = None, *, records: bool = False, **options: Any
) -> Market | VenueMarket:
    """Return the market of a feed: books, trades and trading states from its stream.

    Of UTP-MD, and without a feed, it is a `Market`, which keeps quotes, reference data and indices,
    too, and cuts snapshots; of FIX market data, and of any other feed that has a `[book]` table, a
    `VenueMarket`. With `records` it is a `VenueMarket` of UTP-MD, too: what is given to it may be
    normalised records (`as_="mbo"`), so that one program serves all feeds. `options` are those of
    the class. Raises `UsageError` for other feeds.
    """
    if records and feed is not None:
        return VenueMarket(feed, **options)
    try:
        return Market(feed, **options)
    except UsageError:
        if feed is None or feed.book is None:
            raise
    return VenueMarket(feed, **options)
