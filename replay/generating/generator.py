"""Generated UTP-MD sessions step by step: what an exchange sends, packet by packet, without an end.

A `SessionGenerator` is a sans-IO machine: seeded, fed with simulated time, answering with the
packets that fall due. Two generators with the same description, seed and settings give the same
packets whatever the steps in which time advances; a real-time exchange, a capture writer and a
simulation all draw from it.

It runs a `Session` after the built-in profile `market`, at a rate and with instruments of
its own and without refreshes, which a user makes of the packets. So everything that the
profile promises of bursts, mix, sizes and repeats holds here as well: it is one generator. A
session begins with a sequence reset on each service (packet 1; the next is 2), the reference data
on 101 (550, a 553 for each instrument, 551) and the books, as orders of the day before. Then
the market goes on until it is closed, and services idle for `heartbeat_ns` send heartbeats.
"""

from collections.abc import Iterable, Iterator
from datetime import date

from feedhandler.codecs import Feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating.packets import ORDERS, SERVICES, Outgoing
from feedhandler.replay.generating.profile import load_profile
from feedhandler.replay.generating.profile_plan import endless_of
from feedhandler.replay.generating.session import Block, Session

#: What the session looks like, and the messages of its mean packet, without refreshes.
PROFILE, MESSAGES_A_PACKET = "market", 4.78
#: A trading day of the month whose figures the source paper printed.
DEFAULT_DAY = date(2011, 3, 15)
NINE_O_CLOCK_NS = 9 * 3_600_000_000_000
#: The market's events do not come closer than at this rate.
RATE_MAX = 200_000


class SessionGenerator:
    """One session of all seven services; see the module for what it is made of.

    `instruments` counts equities, warrants and indices together; `day` and `opening_ns` (after
    midnight, exchange time) date the messages. `session` is what generates. Raises `UsageError`
    for settings out of bounds.
    """

    #: The channels, and the one that carries orders.
    services, orders = SERVICES, ORDERS

    def __init__(
        self,
        feed: Feed,
        seed: int,
        *,
        instruments: int = 300,
        messages_per_s: float = 20_000.0,
        heartbeat_ns: int = 1_000_000_000,
        day: date = DEFAULT_DAY,
        opening_ns: int = NINE_O_CLOCK_NS,
    ) -> None:
        if not 0 < messages_per_s <= RATE_MAX:
            raise UsageError(f"{messages_per_s} messages a second", f"use up to {RATE_MAX:,}")
        if heartbeat_ns < 1_000_000:
            raise UsageError(f"heartbeats every {heartbeat_ns} ns", "use 1 ms or more")
        settings = endless_of(
            load_profile(PROFILE),
            feed,
            packets_per_s=messages_per_s / MESSAGES_A_PACKET,
            instruments=instruments,
            heartbeat_ns=heartbeat_ns,
            start_ns=opening_ns,
        )
        self.session = Session(feed, seed, settings, day)
        self.instruments = self.session.instruments
        self._opening_ns = opening_ns
        #: Market messages in the packets given so far.
        self.messages = 0

    def step(self, until_ns: int) -> list[Outgoing]:
        """Return the packets of all bursts that begin by `until_ns`, in order of `due_ns`.

        A burst is given whole, so its last packets may be due a fraction of a millisecond after
        `until_ns`; nothing given later is due earlier. Times count from the session's start. After
        the close these are heartbeats.
        """
        return self._outgoing(self._blocks(until_ns))

    def packets(self, duration_ns: int, step_ns: int = 10_000_000) -> Iterator[Outgoing]:
        """Yield all packets of the bursts of the first `duration_ns` of the session."""
        for until in range(step_ns, duration_ns + step_ns, step_ns):
            yield from self.step(min(until, duration_ns))

    def close(self, now_ns: int) -> list[Outgoing]:
        """Close the market: closing prices, books cleared, last quotes, then heartbeats.

        Every service gets at least one packet of messages, so that receivers notice a loss just
        before the end; senders should not drop these packets on purpose. The rest of the opening
        comes first. `now_ns` counts as in `step`.
        """
        return self._outgoing(self.session.close(self._opening_ns + now_ns))

    def next_sequences(self) -> dict[int, int]:
        """Return the number that the next packet of each service will carry."""
        numbers = self.session.tape.tables["sequences"].tolist()
        return dict(zip(SERVICES, numbers, strict=False))

    def _blocks(self, until_ns: int) -> Iterator[Block]:
        yield self.session.block(self._opening_ns + until_ns)
        while self.session.full:
            yield self.session.block(self._opening_ns + until_ns)

    def _outgoing(self, blocks: Iterable[Block]) -> list[Outgoing]:
        """Split blocks into packets."""
        found = []
        for block in blocks:
            data = memoryview(block.data)
            columns = (block.columns[name].tolist() for name in
                       ("time_a_ns", "channel", "offset", "length", "messages"))  # fmt: skip
            for time_ns, channel, at, size, messages in zip(*columns, strict=True):
                self.messages += messages
                found.append(Outgoing(
                    time_ns - self._opening_ns, SERVICES[channel], bytes(data[at : at + size]),
                    messages,
                ))  # fmt: skip
        return found
