"""State that decoding a stream needs: names of symbols, scales of prices, the clock.

Some feeds give a price's decimal places only in the message that names the symbol, or count a
message's time from a moment that an earlier message gave. A reader of a stream keeps one
`ReferenceData` and passes it to each `Feed.decode_packet`, `to_dicts` or `decode_message` as
`known`: it learns from the messages that are decoded, so later prices and times are complete.
"""

from typing import Any

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.feed_table import MessageIndex


class ReferenceData:
    """Names and price scales by symbol, as far as they were received, and clocks by service.

    The owner may add to all of them. `clocks`: the moment that the last clock message gave, ns
    since 1970. `all_scales`: by the use that prices name (`reference.USE`); `scales`: of the first
    use.
    """

    def __init__(self, feed: Feed) -> None:
        self.names: dict[int, str] = {}
        self.all_scales: dict[str, dict[int, int]] = {name: {} for name in feed.scale_names}
        self.scales: dict[int, int] = next(iter(self.all_scales.values()), {})
        self.clocks: dict[int, int] = {}
        #: How many names were new or changed.
        self.changes = 0
        #: The feed's reference messages by type; empty where it has none.
        self.references = feed.references

    def learn(self, code: int, message: bytes) -> None:
        """Learn from a whole message of type `code`, which is one of `references`; one that is too
        short is ignored."""
        reference = self.references[code]
        if len(message) < reference.least_size:
            return
        symbol = reference.symbol(message)
        if (named := reference.read(message)) and self.names.get(symbol) != named[1]:
            self.names[symbol] = named[1]
            self.changes += 1
        for name, scale in reference.read_scales(message).items():
            self.all_scales[name][symbol] = scale

    def scales_of(self, symbol: int) -> dict[str, int | None]:
        """Return the decimal places of a symbol's prices, as far as they are known."""
        return {name: scales.get(symbol) for name, scales in self.all_scales.items()}

    def learn_packet(self, data: bytes, begin: int, index: MessageIndex) -> None:
        """Learn from the reference messages of the packet at `begin`, whose messages are found."""
        if not self.references:
            return
        for i in range(index.count):
            code = index.types[i]
            if code in self.references:
                at = begin + index.offsets[i]
                self.learn(code, data[at : at + index.sizes[i]])

    def learn_columns(self, data: Any, columns: dict[str, Any]) -> None:
        """Learn from the reference messages among many, whose `columns` are `MessageIndex.arrays`
        of `data`, in their order."""
        found = []
        for code in self.references:
            rows = (columns["types"] == code).nonzero()[0].tolist()
            found += [(index, code) for index in rows]
        for index, code in sorted(found):
            at, size = int(columns["offsets"][index]), int(columns["sizes"][index])
            self.learn(code, bytes(data[at : at + size]))
