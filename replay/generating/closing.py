"""The end of a generated session: closing prices, empty books, blank quotes, everything halted.

`Closing` takes the instruments one by one and puts what is said of each on the tape: the closing
price (247) and, for a share, that it is halted (505) and that its book is cleared (230 with
ActionType F); its quotes go blank. At last the indices are sent once more. So every service gets a
packet of messages, and a receiver notices what it lost just before. It happens once, so this is
plain Python.
"""

from collections.abc import Iterator
from typing import Any

from feedhandler.codecs import Feed
from feedhandler.replay.generating.books import SHARE_SYSTEM
from feedhandler.replay.generating.issuers import ISSUER_SYSTEM
from feedhandler.replay.generating.tape import MESSAGES_MAX, REALTIME
from feedhandler.replay.generating.times import MessageTime, clock

#: Channels of trades, orders, warrants' trades.
TRADES, ORDERS, WARRANT_TRADES = 1, 3, 4


class Closing:
    """See the module; `market` is what a `Flow` drives, `byte_ps` the time that a byte of
    the close takes."""

    def __init__(self, feed: Feed, market: Any, time: MessageTime, byte_ps: int) -> None:
        self._feed, self._market, self._time, self._byte_ps = feed, market, time, byte_ps
        self._tape = market.tape

    def steps(self) -> Iterator[None]:
        """Close one instrument a step; the last step cuts the open packets."""
        market, tape = self._market, self._tape
        for channel in range(REALTIME):
            tape.set_limit(channel, MESSAGES_MAX)
        sent = self._sent()
        for share, instrument in enumerate(market.listed_shares):
            market.notices.halt(share)
            last = market.books.clear(share)
            number = market.books.number
            self._price(TRADES, instrument, last, number, SHARE_SYSTEM)
            self._cleared(instrument, number)
            before, sent = sent, self._sent()
            tape.now_ns += (sent - before) * self._byte_ps // 1000
            yield
        for warrant, instrument in enumerate(market.listed_warrants):
            last = market.issuers.clear(warrant)
            self._price(WARRANT_TRADES, instrument, last, market.issuers.number, ISSUER_SYSTEM)
            yield
        market.indices.show(market.indices.indices)
        for channel in range(REALTIME):
            tape.cut(channel)
        yield

    def _sent(self) -> int:
        return int(self._tape.tables["bytes"].sum())

    def _price(self, channel: int, instrument: Any, last: int, number: int, system: int) -> None:
        """Put a 247: the price of the day's last trade."""
        self._time.set(self._tape.now_ns)
        self._put(channel, self._feed.encode_message(
            247, symbol_index=instrument.symbol, source_time=self._time.milliseconds,
            source_time_micro_secs=self._time.microseconds, source_seq_num=number, price=last,
            price_scale_code=instrument.price_scale, system_id=system,
        ))  # fmt: skip

    def _cleared(self, instrument: Any, number: int) -> None:
        """Put a 230 with ActionType F: the instrument's book is cleared."""
        time = self._time
        self._put(ORDERS, self._feed.encode_message(
            230, symbol_index=instrument.symbol, source_time=time.milliseconds,
            source_time_micro_secs=time.microseconds, source_seq_num=number, system_id=SHARE_SYSTEM,
            side=" ", order_type=" ", action_type="F", price_scale_code=instrument.price_scale,
            order_priority_date=time.date, order_priority_time=clock(self._tape.now_ns),
            order_priority_micro_secs=time.microseconds,
        ))  # fmt: skip

    def _put(self, channel: int, message: bytes) -> None:
        self._tape.put(channel, memoryview(bytearray(message)), 0, len(message), -1)
