"""Settings of a persistent queue, with the reason for each default and limit."""

from dataclasses import dataclass

from feedhandler.codecs.errors import ConfigError
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.journal.layout import PAGE, Geometry

DURABLE, FAST = "durable", "fast"
#: No folder of blocks grows beyond so many: their status maps are in memory.
BLOCKS_LIMIT = 4096
#: Two segments of that size are in memory at a time.
JOURNAL_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of one queue; raises `ConfigError` where a value or a combination is invalid.

    `block_bytes`: size of each block; used when the queue is created. `blocks`: how many blocks are
    created then. `blocks_max`: the number of blocks the queue may grow to; beyond it `put` waits.
    `paths`: folders over which blocks are spread in turn; empty: the queue's own folder.
    `journal_bytes`: upper limit on the items of one segment, plus a 64th for their table, and never
    more than half a block, unless a single item is larger. `journal_max_us`: how long an item waits
    for others at most while the disk is idle; it does not wait at all once the preceding sync has
    returned. `waiting_bytes_max`: how many bytes may wait in memory for the disk; beyond it `put`
    waits. `checkpoint_bytes`: bytes journalled between two checkpoints, which is what recovery has
    to read. `durability`: "durable" acknowledges after fdatasync; "fast" acknowledges after write,
    which survives the end of the process but not of the machine. `day_zone`: the time zone in which
    trading days end (at `day_end`, "HH:MM"); undelivered items expire then. "": items never expire.
    """

    block_bytes: int = 64 << 20
    blocks: int = 2
    blocks_max: int = 64
    paths: tuple[str, ...] = ()
    journal_bytes: int = 1 << 20
    journal_max_us: int = 500
    waiting_bytes_max: int = 16 << 20
    checkpoint_bytes: int = 32 << 20
    durability: str = DURABLE
    day_zone: str = ""
    day_end: str = "00:00"

    def __post_init__(self) -> None:
        Geometry(self.block_bytes)
        if self.durability not in (DURABLE, FAST):
            raise ConfigError(f"durability = {self.durability!r}", f'take "{DURABLE}" or "{FAST}"')
        if not 2 <= self.blocks <= self.blocks_max <= BLOCKS_LIMIT:
            raise ConfigError(
                f"blocks = {self.blocks}, blocks_max = {self.blocks_max}",
                f"2 <= blocks <= blocks_max <= {BLOCKS_LIMIT}",
            )
        if not PAGE <= self.journal_bytes <= JOURNAL_BYTES_MAX:
            raise ConfigError(
                f"journal_bytes = {self.journal_bytes:,}", f"take {PAGE:,} to {JOURNAL_BYTES_MAX:,}"
            )
        for name in ("journal_max_us", "waiting_bytes_max", "checkpoint_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}", "take 0 or more")
        if self.day_zone:
            self._check_day()

    def _check_day(self) -> None:
        try:
            TradingDay(self.day_zone, self.day_end)
        except ConfigError as error:
            raise ConfigError(
                f"day_zone = {self.day_zone!r}, day_end = {self.day_end!r}: {error.message}",
                'take a zone as "Europe/Paris" and a time as "17:40"',
            ) from None

    @property
    def durable(self) -> bool:
        """Whether an item is acknowledged only when it is on the disk."""
        return self.durability == DURABLE

    def day_began_ns(self, now_ns: int) -> int:
        """Return when the trading day of `now_ns` began, ns since 1970; 0 where days do not end."""
        if not self.day_zone:
            return 0
        return TradingDay(self.day_zone, self.day_end).since_ns(now_ns)


def item_bytes_max(geometry: Geometry) -> int:
    """Return the largest size of an item, in bytes: one that is alone in its block's data area."""
    # Imported here: a gateway without queues loads their settings but not their segments.
    from feedhandler.journal.segments import segment_bytes

    return geometry.tail - geometry.data - segment_bytes(1, 0, 0)
