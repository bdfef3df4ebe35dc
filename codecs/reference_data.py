"""State that decoding a stream needs: names of symbols, scales of prices, the clock.

Some feeds give a price's decimal places only in the message that names the symbol, or a message's
time only as counted from what an earlier message told. A reader of a stream keeps one
`ReferenceData` and gives it to each `Feed.decode_packet`, `to_dicts` or `decode_message` as
`known`: it learns from the messages that are decoded, and prices and times after them are whole.
"""

from feedhandler.codecs.feed import Feed


class ReferenceData:
    """Names and price scales by symbol, as far as they were received, and clocks by service.

    The owner may add to all. `clocks` are ns since 1970, of the last clock message.
    """

    def __init__(self, feed: Feed) -> None:
        self.names: dict[int, str] = {}
        self.scales: dict[int, int] = {}
        self.clocks: dict[int, int] = {}
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
