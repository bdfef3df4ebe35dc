"""Generated UTP-MD traffic after a profile: blocks of packets, and both lines' datagrams in time.

    traffic = Traffic(load_profile("market"), seed=7, scale=5, duration_s=60)
    for datagrams in traffic.datagrams():
        ...  # columns: data, time_ns, destination, offset, length

`Traffic.blocks` gives what the exchange sends, packet by packet in columns; `Traffic.datagrams`
what arrives on the two lines, merged in time, without what was lost. `traffic_capture` writes
captures. The same profile, seed, scale and duration give the same messages in the same packets on
every machine, compiled or not; how refreshes are compressed is the machine's zlib's.

The contents are a market's own: reference data, order books that never cross, quotes and trades
that follow them, numbered packets. A fresh `Market` takes all of it without a problem.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from feedhandler.codecs import Feed, load_feed
from feedhandler.codecs.errors import UsageError
from feedhandler.replay.generating import destinations
from feedhandler.replay.generating.destinations import LINES
from feedhandler.replay.generating.packets import SERVICES
from feedhandler.replay.generating.profile import Profile, load_profile
from feedhandler.replay.generating.profile_plan import (
    RATE_MBPS_MAX,
    SCALE_MAX,
    SCALE_MIN,
    midnight_ns,
    settings_of,
)
from feedhandler.replay.generating.session import Block, Session
from feedhandler.replay.generating.tape import CHANNELS, REALTIME

Array = np.ndarray[Any, Any]

#: Beyond any session's end.
NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Datagrams:
    """Datagrams in the order of arrival: payloads in `data` (uint8) at `offset` (uint32) of
    `length` (uint16); `time_ns` (int64) counts from 1970 UTC; `destination` (uint8) is a number
    into `Traffic.destinations`; `messages` (uint16) as the packet header counts them."""

    data: Array
    time_ns: Array
    destination: Array
    offset: Array
    length: Array
    messages: Array

    def __len__(self) -> int:
        return len(self.time_ns)

    def payload(self, row: int) -> bytes:
        """Return one datagram's payload."""
        start = int(self.offset[row])
        return self.data[start : start + int(self.length[row])].tobytes()


class Traffic:
    """One generated session; see the module. Use it once.

    `scale` multiplies instruments and bursts (a stationary profile's rate); `duration_s` is the
    length of a stationary stretch after its prelude, or ends a day early; `rate_mbps` sets a
    stationary profile's scale so that it has this rate. `refresh=False` leaves the refresh
    channels out. `loss` overrides the profile's, as (A, B). Raises `UsageError`.
    """

    def __init__(
        self,
        profile: Profile,
        seed: int = 1,
        *,
        scale: float = 1.0,
        duration_s: float | None = None,
        rate_mbps: float | None = None,
        refresh: bool = True,
        loss: tuple[float, float] | None = None,
        feed: Feed | None = None,
    ) -> None:
        if seed < 0:
            raise UsageError(f"a seed of {seed}", "seeds are not negative")
        if rate_mbps is not None:
            if not profile.stationary:
                raise UsageError(
                    f"profile {profile.name} is a day: it has no rate", "give a scale instead"
                )
            scale = rate_mbps / profile.rate_mbps
            if not SCALE_MIN <= scale <= SCALE_MAX:
                least, most = (profile.rate_mbps * each for each in (SCALE_MIN, SCALE_MAX))
                raise UsageError(
                    f"a rate of {rate_mbps:g} Mbit/s",
                    f"profile {profile.name} goes from {least:.3g} to "
                    f"{min(most, RATE_MBPS_MAX):.3g}",
                )
        self.profile, self.seed, self.scale = profile, seed, scale
        self.feed = feed or load_feed(profile.feed)
        self.settings = settings_of(profile, self.feed, seed, scale, duration_s)
        if not refresh:
            self.settings.shares_ppm[REALTIME] = 0
        lines = profile.lines
        self._loss = loss or (lines.loss_a, lines.loss_b)
        self.session = Session(
            self.feed,
            seed,
            self.settings,
            date.fromisoformat(profile.day),
            losses=_loss_of(self._loss),
            skew_ns=(lines.skew_us[0] * 1000, (lines.skew_us[1] - lines.skew_us[0]) * 1000),
        )
        self.midnight_ns = midnight_ns(profile, self.feed)
        self.instruments, self.market = self.session.instruments, self.session.market
        self.tape, self.flow = self.session.tape, self.session.flow
        #: Called with every block: its data and its columns.
        self.on_block: Callable[[Array, dict[str, Array]], object] | None = None
        #: Group and port by number: services' line A and B, then refreshes' A and B.
        self.destinations = _destinations()

    def blocks(self) -> Iterator[Block]:
        """Yield what the exchange sends, a block at a time; a block owns its arrays."""
        while not self.flow.ended:
            block = self.session.block(NEVER_NS)
            if self.on_block is not None:
                self.on_block(block.data, block.columns)
            yield block

    @property
    def share_done(self) -> float:
        """Share of the session that is generated, 0 to 1."""
        return min(1.0, self.flow.due / max(int(self.settings.plan.packets[-1]), 1))

    def datagrams(self) -> Iterator[Datagrams]:
        """Yield the datagrams that arrive on both lines, merged by time, some thousand each."""
        waiting: Datagrams | None = None
        for block in self.blocks():
            if not len(block):
                continue
            horizon = int(block.columns["time_a_ns"][-1]) + self.midnight_ns
            ready, waiting = _split(self._arrivals(block, waiting), horizon)
            if len(ready):
                yield ready
        if waiting is not None and len(waiting):
            yield waiting

    def _arrivals(self, block: Block, waiting: Datagrams | None) -> Datagrams:
        """Return both lines' copies of a block, and those still waiting, by time."""
        columns = block.columns
        kept = [(columns["lost"] & bit) == 0 for bit in (1, 2)]
        data, base = block.data, 0
        parts: list[tuple[Array, ...]] = []
        if waiting is not None and len(waiting):
            base = len(waiting.data)
            data = np.concatenate([waiting.data, data])
            parts.append((waiting.time_ns, waiting.destination, waiting.offset, waiting.length,
                          waiting.messages))  # fmt: skip
        for line, name in enumerate(("time_a_ns", "time_b_ns")):
            keep = kept[line]
            parts.append((
                columns[name][keep] + self.midnight_ns,
                (columns["channel"][keep] + line * CHANNELS).astype(np.uint8),
                columns["offset"][keep] + np.uint32(base),
                columns["length"][keep],
                columns["messages"][keep],
            ))  # fmt: skip
        merged = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        order = np.argsort(merged[0], kind="stable")
        return Datagrams(data, *(column[order] for column in merged))


def packets(
    seed: int,
    messages: int,
    *,
    rate_mbps: float = 40.0,
    feed: Feed | None = None,
    opening: bool = True,
) -> tuple[Array, Array, Array]:
    """Return packets of the `market` profile, one line's, without refreshes: until there are so
    many messages. (data uint8, offset int64, length int64), in the order in which they are sent.
    `opening=False` leaves out the resets, the reference data and the first books."""
    traffic = Traffic(load_profile("market"), seed, rate_mbps=rate_mbps, refresh=False, feed=feed)
    parts, offsets, lengths, at, so_far = [], [], [], 0, 0
    for block in traffic.blocks():
        parts.append(block.data)
        offsets.append(block.columns["offset"].astype(np.int64) + at)
        lengths.append(block.columns["length"].astype(np.int64))
        at += len(block.data)
        so_far += int(block.columns["messages"].sum(dtype=np.int64))
        opened = traffic.flow.opened
        before = 0 if opening or opened is None else int(opened["messages"].sum())
        if so_far - before >= messages and (opening or opened is not None):
            break
    first = 0 if opening or opened is None else int(opened["packets"].sum())
    return np.concatenate(parts), np.concatenate(offsets)[first:], np.concatenate(lengths)[first:]


def _split(all_: Datagrams, horizon: int) -> tuple[Datagrams, Datagrams]:
    """Split at the horizon; packets after it get payloads of their own."""
    at = int(np.searchsorted(all_.time_ns, horizon, "right"))
    columns = (all_.time_ns, all_.destination, all_.offset, all_.length, all_.messages)
    ready = Datagrams(all_.data, *(column[:at] for column in columns))
    lengths = all_.length[at:].astype(np.int64)
    data = np.concatenate([
        all_.data[start : start + length]
        for start, length in zip(all_.offset[at:].tolist(), lengths.tolist(), strict=True)
    ] or [np.empty(0, np.uint8)])  # fmt: skip
    offset = (np.cumsum(lengths) - lengths).astype(np.uint32)
    return ready, Datagrams(
        data, all_.time_ns[at:], all_.destination[at:], offset, all_.length[at:],
        all_.messages[at:],
    )  # fmt: skip


def _loss_of(loss: tuple[float, float]) -> tuple[int, int]:
    """Return the loss shares as the tape counts them."""
    a, b = (min(int(share * (1 << 32)), (1 << 32) - 1) for share in loss)
    return a, b


def _destinations() -> list[tuple[str, int]]:
    """Return by line the services' groups and ports, then their refresh channels'; the defaults of
    the simulated exchange."""
    return [
        channels.of(line, service)
        for line in LINES
        for channels in (destinations.REALTIME, destinations.RECOVERY)
        for service in SERVICES
    ]
