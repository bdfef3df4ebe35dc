"""Queues that clients create while the node runs, kept in a folder of the operator's.

What it is for: a management request `create` at the address of a queue that does not exist makes
one; its table of configuration is written to `queue.json` in its folder, and found there again when
the node starts. The definition of a queue does not change: a second creation must be the same, or
is refused.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from feedhandler.amqp.durable.management import (
    STEPS_A_TURN,
    Management,
    Reply,
    Steps,
    answer_of,
    run_steps,
)
from feedhandler.amqp.work_budget import WorkBudget
from feedhandler.codecs import list_feeds
from feedhandler.codecs.errors import ConfigError, FeedhandlerError
from feedhandler.codecs.toml_text import WrongKey, path_text
from feedhandler.config.queues import MAX_QUEUES, NAME, DurableQueueConfig, check_queues
from feedhandler.journal.files import Files, Replace, carry_out
from feedhandler.keyed.definition import Definition, differences
from feedhandler.private_files import make_folder

if TYPE_CHECKING:
    from feedhandler.amqp.durable.links import QueueEnd
    from feedhandler.amqp.durable.queues import DurableQueues

FILE_NAME = "queue.json"
#: Bytes of a client's definition at most.
DEFINITION_BYTES_MAX = 16 << 10
#: Size of the blocks of a queue that a client creates.
BLOCK_BYTES = 8 << 20


class NotCreated(Exception):
    """Refusal to create a queue: the answer's word (a key of `CODES`), and the reason."""

    def __init__(self, word: str, reason: str) -> None:
        super().__init__(reason)
        self.word = word
        self.reason = reason


def configs_in(folder: str) -> Iterator[DurableQueueConfig]:
    """Yield the configurations of the queues in a folder, by name. Raises `ConfigError` for one
    that cannot be read."""
    if not folder or not os.path.isdir(folder):
        return
    for path in sorted(Path(folder).glob(f"*/{FILE_NAME}")):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=DurableQueueConfig)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"{path}: no queue can be made of it: {error}", "restore it, or remove the folder"
            ) from None


def config_of(folder: str, name: str, arguments: dict[str, Any]) -> DurableQueueConfig:
    """Build the configuration of a queue from a client's request. Raises `NotCreated`."""
    if not NAME.fullmatch(name):
        raise NotCreated("invalid", f"the name {name!r} is not 1 to 64 letters, digits, _ or -")
    text = arguments.get("definition")
    if not isinstance(text, str | bytes) or len(text) > DEFINITION_BYTES_MAX:
        raise NotCreated("invalid", "definition is no JSON text, as feedhandler keyed sends it")
    try:
        definition = msgspec.json.decode(text, type=Definition)
        if definition.feed and definition.feed not in list_feeds():
            raise NotCreated("invalid", f"feed: {definition.feed!r} is no built-in feed")
        table = {
            "name": name,
            "folder": str(Path(folder, name)),
            "block_bytes": BLOCK_BYTES,
            "key": msgspec.to_builtins(definition),
        }
        for key in ("dead", "redeliveries_max", "message_bytes_max", "block_bytes", "durability"):
            if key.replace("_", "-") in arguments:
                table[key] = arguments[key.replace("_", "-")]
        return msgspec.convert(table, type=DurableQueueConfig)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise NotCreated("invalid", f"definition: {error}") from None


def same(existing: DurableQueueConfig, wanted: DurableQueueConfig) -> str:
    """Compare an existing queue's definition with a second creation; return the differences, "" for
    none."""
    if existing.key is None or wanted.key is None:
        return "no key"
    others = differences(existing.key, wanted.key)
    if existing.dead != wanted.dead:
        others = ", ".join(filter(None, (others, f"dead = {existing.dead}")))
    return others


def write_config(config: DurableQueueConfig) -> None:
    """Write a queue's configuration durably, to be found when the node starts. Raises `OSError`."""
    make_folder(config.folder)
    files = Files()
    try:
        path = os.path.join(config.folder, FILE_NAME)
        carry_out(files, [Replace(path, msgspec.json.encode(config))])
    finally:
        files.close()


class Unmade:
    """The queue of a management address whose queue does not exist yet."""

    fault = ""

    def __init__(self, name: str, flush: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.links: dict[QueueEnd, None] = {}
        self.asked_bytes = 0
        self.budget = WorkBudget(loop.call_soon, STEPS_A_TURN)
        self.flush = flush

    def flush_soon(self) -> None:
        """Schedule writing to connections."""
        asyncio.get_running_loop().call_soon(self.flush)


class CreationManagement:
    """Handles the request that creates a queue, and once it is there those about it. `may_cancel`:
    as of `Management`."""

    def __init__(
        self, queues: "DurableQueues", name: str, flush: Callable[[], None], may_cancel: bool
    ) -> None:
        self.queue = Unmade(name, flush)
        self._queues = queues
        self._may_cancel = may_cancel
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, steps: Steps) -> None:
        """Run these steps, as `Management` does."""
        run_steps(self.queue.budget, steps)

    def do(self, arguments: dict[str, Any], reply: Reply, heard: Callable[[], bool]) -> Steps:
        """Create the queue, or ask it; `reply` is called once, later."""
        name = self.queue.name
        made = self._queues.all.get(name)
        if arguments.get("operation") != "create" and made is not None:
            yield from Management(made, self._may_cancel).do(arguments, reply, heard)
        elif arguments.get("operation") != "create":
            reply(answer_of("unknown", f"no queue is named {name!r}: create it first"), None)
        else:
            making = self._make(arguments, reply)
            task = asyncio.get_running_loop().create_task(making)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        yield None

    async def _make(self, arguments: dict[str, Any], reply: Reply) -> None:
        try:
            word, reason = await self._queues.create(self.queue.name, arguments)
        except NotCreated as refusal:
            word, reason = refusal.word, refusal.reason
        except (FeedhandlerError, OSError) as error:
            word, reason = "stopped", str(error)
        reply(answer_of(word, reason), None)
        self.queue.flush()


def fault_of(
    configs: tuple[DurableQueueConfig, ...], wanted: DurableQueueConfig
) -> NotCreated | None:
    """Return why a queue cannot be created beside these; None where it can."""
    if len(configs) >= MAX_QUEUES:
        return NotCreated("invalid", f"a node has {MAX_QUEUES} queues at most")
    try:
        check_queues((*configs, wanted))
    except WrongKey as wrong:
        hint = f" ({wrong.hint})" if wrong.hint else ""
        return NotCreated("invalid", f"{path_text(wrong.path[1:])}: {wrong.reason}{hint}")
    return None
