"""Normalised records of single messages, as text that a test can state."""

from types import ModuleType
from typing import Any

import numpy

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.dbn import UNDEFINED_PRICE
from feedhandler.market import normaliser
from tests.support.twins import twins_of

#: The module compiled and interpreted, for `twins.either`.
NORMALISERS = twins_of(normaliser)
SENT_NS = 1_700_000_000_000_000_000
CHANNEL = 3


class NormalisedRecords:
    """The records that a normaliser makes of messages given by name."""

    def __init__(self, twin: ModuleType, feed: str | Feed) -> None:
        self.feed = load_feed(feed) if isinstance(feed, str) else feed
        self.normaliser = twin.Normaliser(self.feed)

    def of(self, name: str, **fields: Any) -> numpy.ndarray:
        message = self.feed.encode_message(name, **fields)
        self.normaliser.clear()
        count = self.normaliser.message(
            message, 0, len(message), self.feed.layout(name).code,
            SENT_NS, SENT_NS + 5000, 7, CHANNEL,
        )  # fmt: skip
        assert count == len(self.normaliser.records)
        return self.normaliser.records

    def __call__(self, name: str, **fields: Any) -> str:
        """`A B 77 100@12.34 | ...`: action, side, order id, size and price of each record."""
        return " | ".join(map(shown, self.of(name, **fields)))


def shown(record: Any) -> str:
    """`A B 77 100@12.34`: action, side, order id, size and price of a record."""
    price = int(record["price"])
    text = "-" if price == UNDEFINED_PRICE else f"{price / 1e9:g}"
    action, side = record["action"].decode(), record["side"].decode()
    return f"{action} {side} {record['order_id']} {record['size']}@{text}"
