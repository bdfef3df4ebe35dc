"""Reference data of a feed's symbols: their names and the scales of their prices.

Some feeds give a price's decimal places only in the message that names the symbol. A reader of a
stream keeps one `ReferenceData` and gives it to each `Feed.decode_packet`, `to_dicts` or
`decode_message` as `known`: it learns from the reference messages that are decoded, and prices
after them have their scale.
"""

from feedhandler.codecs.feed import Feed


class ReferenceData:
    """Names and price scales by symbol, as far as they were received; the owner may add to both."""

    def __init__(self, feed: Feed) -> None:
        self.names: dict[int, str] = {}
        self.scales: dict[int, int] = {}
        self._reference = feed.reference
        #: The type of reference messages; -1 where the feed has none.
        self.code = -1 if feed.reference is None else feed.reference.code

    def learn(self, message: bytes) -> None:
        """Learn from a whole message of type `code`; one that is too short is ignored."""
        reference = self._reference
        if reference is None or len(message) < reference.least_size:
            return
        symbol = reference.symbol(message)
        if named := reference.read(message):
            self.names[symbol] = named[1]
        scale = reference.read_scale(message)
        if scale is not None:
            self.scales[symbol] = scale
