"""`[[queue]]`: the settings of a durable queue of the embedded node."""

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from feedhandler.codecs.errors import ConfigError, UsageError
from feedhandler.codecs.toml_text import WrongKey, within
from feedhandler.codecs.toml_text import setting as _setting
from feedhandler.codecs.trading_day import TradingDay
from feedhandler.journal.layout import Geometry
from feedhandler.journal.settings import BLOCKS_LIMIT, QueueSettings, item_bytes_max
from feedhandler.keyed.definition import Definition
from feedhandler.keyed.envelope import overhead
from feedhandler.keyed.settings import TRIES_MAX, Wrong

#: Queues of one node: each has a thread that writes, and blocks on the disk.
MAX_QUEUES = 64
#: The default of the largest message; a block's data area bounds it, too.
MESSAGE_BYTES_DEFAULT = 1 << 20
#: A `day_end` that follows the trading day; and a trading day to check a `day_end` with.
TRADING_DAY = "trading-day"
_ANY_DAY = TradingDay("UTC")

NAME = re.compile(r"[A-Za-z0-9_\-]{1,64}")
_Name = Annotated[str, Meta(pattern=rf"^{NAME.pattern}$")]


class DurableQueueConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[queue]]`: one durable queue, its address `queue.<name>`."""

    name: Annotated[_Name, _setting("names the queue: its address is queue.<name>")]
    folder: Annotated[str, _setting("where it is kept; made where it is not there")]
    durability: Annotated[
        Literal["durable", "fast"],
        _setting("accepted after fdatasync (durable), or after write (fast: not over a power cut)"),
    ] = "durable"
    message_bytes_max: Annotated[int, _setting("largest message taken", ge=1024, le=2**30)] = (
        MESSAGE_BYTES_DEFAULT
    )
    block_bytes: Annotated[
        int, _setting("bytes of each block; counts when the queue is made", ge=2**20, le=2**34)
    ] = 64 * 2**20
    blocks: Annotated[
        int, _setting("blocks it is made with, filled with zeros", ge=2, le=BLOCKS_LIMIT)
    ] = 2
    blocks_max: Annotated[
        int, _setting("blocks it may grow to; then producers wait", ge=2, le=BLOCKS_LIMIT)
    ] = 64
    paths: Annotated[
        tuple[str, ...], _setting("folders that blocks are spread over in turn; none: its own")
    ] = ()
    checkpoint_bytes: Annotated[
        int, _setting("journalled between two checkpoints: what a start reads", ge=0, le=2**40)
    ] = 32 * 2**20
    waiting_bytes_max: Annotated[
        int,
        _setting("what may wait in memory for the disk; then producers wait", ge=2**16, le=2**32),
    ] = 16 * 2**20
    credit: Annotated[
        int, _setting("messages that one producer may have on their way", ge=1, le=10_000)
    ] = 256
    redeliveries_max: Annotated[
        int,
        _setting("failed deliveries a message may have before it is dead; 0: any", ge=0, le=255),
    ] = 20
    dead: Annotated[
        str, _setting("the queue that dead messages go to; empty: they are cancelled and logged")
    ] = ""
    day_end: Annotated[
        str,
        _setting(
            "when a day ends, and with it what is undelivered: HH:MM, trading-day (when that "
            "turns); empty: it stays"
        ),
    ] = ""
    day_zone: Annotated[
        str, _setting("where it ends at HH:MM; empty: where the trading day does")
    ] = ""
    key: Annotated[
        Definition | None,
        _setting("makes it a queue that is serial per key, and parallel across keys"),
    ] = None

    def resolved(self, trading_day: TradingDay) -> "DurableQueueConfig":
        """Replace zone and time of the day's end by the trading day's, where it follows that."""
        if self.day_end == TRADING_DAY:
            zone, end = trading_day.zone, trading_day.begins_at
        else:
            zone, end = self.day_zone or trading_day.zone, self.day_end
        return structs.replace(self, day_zone=zone, day_end=end) if end else self

    def settings(self) -> QueueSettings:
        """Make the persistent queue's settings. Raises `ConfigError`."""
        return QueueSettings(
            block_bytes=self.block_bytes,
            blocks=self.blocks,
            blocks_max=self.blocks_max,
            paths=self.paths,
            checkpoint_bytes=self.checkpoint_bytes,
            waiting_bytes_max=self.waiting_bytes_max,
            durability=self.durability,
            day_zone=self.day_zone if self.day_end else "",
            day_end=self.day_end,
        )


def check_queues(queues: tuple[DurableQueueConfig, ...]) -> None:
    """Check the `[[queue]]` tables. Raises `WrongKey`, whose path begins with the number."""
    names = [queue.name for queue in queues]
    folders: set[str] = set()
    for number, queue in enumerate(queues):
        if queue.name in names[:number]:
            raise WrongKey((number, "name"), f"a second queue {queue.name!r}")
        if not queue.folder:
            raise WrongKey(
                (number, "folder"), "empty", "a folder of its own, on a disk that keeps it"
            )
        if queue.folder in folders:
            raise WrongKey(
                (number, "folder"), f"{queue.folder} is another queue's", "a folder of its own"
            )
        folders.add(queue.folder)
        if queue.dead and (queue.dead == queue.name or queue.dead not in names):
            others = ", ".join(name for name in names if name != queue.name) or "there is none"
            raise WrongKey((number, "dead"), f"no other queue is named {queue.dead!r}", others)
        with_keys = {each.name for each in queues if each.key is not None}
        if queue.dead in with_keys:
            raise WrongKey((number, "dead"), f"{queue.dead!r} has keys", "a queue without")
        with within(number):
            _check_bounds(queue)
    by_name = {queue.name: queue for queue in queues}
    for number, queue in enumerate(queues):
        if queue.dead:
            with within(number):
                _check_dead(queue, by_name[queue.dead])


def _check_dead(queue: DurableQueueConfig, dead: DurableQueueConfig) -> None:
    """Check that the queue of dead messages can hold the largest one."""
    most = item_bytes_max(Geometry(dead.block_bytes))
    largest = queue.message_bytes_max + (0 if queue.key is None else overhead(0))
    if largest > most:
        reason = f"a block of {dead.name!r} holds {most} bytes, and a message may have {largest}"
        hint = "a larger block_bytes there, or a smaller message_bytes_max here"
        raise WrongKey(("dead",), reason, hint)


def _check_bounds(queue: DurableQueueConfig) -> None:
    if queue.day_zone and not queue.day_end:
        raise WrongKey(
            ("day_end",), "empty, though there is a day_zone", f"HH:MM, or {TRADING_DAY}"
        )
    if queue.key is not None:
        _check_key(queue.key, queue.redeliveries_max)
    if queue.key is not None and queue.key.wrong is Wrong.DEAD and not queue.dead:
        raise WrongKey(
            ("dead",), "empty, though key.wrong is dead", "a queue that dead messages go to"
        )
    if queue.blocks > queue.blocks_max:
        raise WrongKey(
            ("blocks_max",), f"{queue.blocks_max} is less than blocks", f"at least {queue.blocks}"
        )
    try:
        queue.resolved(_ANY_DAY).settings()
        most = item_bytes_max(Geometry(queue.block_bytes))
    except ConfigError as error:
        key = "day_end" if "day_end" in str(error) else "block_bytes"
        raise WrongKey((key,), error.message, error.hint) from None
    if queue.message_bytes_max > most:
        reason = f"{queue.message_bytes_max} is more than a block of {queue.block_bytes} holds"
        raise WrongKey(("message_bytes_max",), reason, f"at most {most}, or a larger block_bytes")


def _check_key(key: Definition, redeliveries_max: int) -> None:
    try:
        key.structure()
    except UsageError as error:
        raise WrongKey(("key",), error.message, error.hint) from None
    if redeliveries_max >= TRIES_MAX:
        reason = f"redeliveries_max is {redeliveries_max}"
        raise WrongKey(("key",), reason, f"at most {TRIES_MAX - 1} with a key")
