"""The durable queues of one node: opened, found by address, closed.

What it is for: `queue.<name>` is a queue; as a target it takes messages, as a source it gives them.
`queue.<name>/$management` takes requests; answers go to a link of the same connection, whose source
the node names (dynamic), or whose target has the address that the request has as its reply-to.

What it promises: a link that cannot be served is refused with a reason: there is no such queue, the
user is not entitled, the queue has stopped, it asks for what queues do not have (browsing,
filters).
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from feedhandler.amqp import conditions, proton
from feedhandler.amqp.durable.coordinator import Coordinator
from feedhandler.amqp.durable.links import (
    Answers,
    Consumer,
    Forget,
    Producer,
    QueueEnd,
    Requests,
)
from feedhandler.amqp.durable.management import Management
from feedhandler.amqp.durable.transactions import Transactions
from feedhandler.amqp.routing import AddressError
from feedhandler.amqp.sender_queue import Peer
from feedhandler.amqp.users import User
from feedhandler.codecs.errors import ConfigError, FeedhandlerError, UsageError
from feedhandler.config.queues import DurableQueueConfig
from feedhandler.operator_log import log_event

if TYPE_CHECKING:
    from feedhandler.amqp.durable.stored import StoredQueue

PREFIX = "queue."
MANAGEMENT = "/$management"
#: Prefix of the addresses of links for answers.
REPLY_PREFIX = "$reply."

AnyLink = Producer | Consumer | Requests | Answers | Coordinator


def kind_of(sending: bool, address: str) -> type[proton.Link] | None:
    """Return the engine's class for a link to this address; None where it is not a queue's.
    `sending`: the node sends on it."""
    if address == proton.COORDINATOR and not sending:
        return proton.IntakeLink
    if not address.startswith(PREFIX):
        return None
    if not sending:
        return proton.IntakeLink
    return None if address.endswith(MANAGEMENT) else proton.HandoutLink


class DurableQueues:
    """All durable queues of a node; see the module. `flush` has connections written to; `options`
    are for tests."""

    def __init__(
        self,
        configs: tuple[DurableQueueConfig, ...],
        flush: Callable[[], None],
        folder: str = "",
        **options: Any,
    ) -> None:
        self._flush = flush
        self._folder = folder
        self._options = options
        #: Names of queues that are being created.
        self._making: set[str] = set()
        if folder:
            configs = (*configs, *_created_in(folder))
        self.all: dict[str, "StoredQueue"] = {}
        self.transactions = Transactions()
        for config in configs:
            self.all[config.name] = self._made(config)

    def _made(self, config: DurableQueueConfig) -> "StoredQueue":
        """Make a queue, which is not open yet."""
        queue = _queue(config, self._flush, self.all.get, **self._options)
        queue.transactions = self.transactions
        return queue

    @property
    def message_bytes_max(self) -> int:
        """Size of the largest message that any of them takes; 0 without queues."""
        return max((each.message_bytes_max for each in self.all.values()), default=0)

    async def create(self, name: str, arguments: dict[str, Any]) -> tuple[str, str]:
        """Create a queue as a client asks; return the answer (`created`, `exists` or `different`),
        and a reason.

        Raises `NotCreated`, and what opening a queue raises.
        """
        from feedhandler.amqp.durable.creation import (
            NotCreated,
            config_of,
            fault_of,
            same,
            write_config,
        )

        config = config_of(self._folder, name, arguments)
        if name in self.all:
            others = same(self.all[name].config, config)
            return ("different", f"it was created with {others}") if others else ("exists", "")
        if name in self._making:
            raise NotCreated("invalid", "another client is creating it just now; ask again")
        existing = tuple(queue.config for queue in self.all.values())
        if refusal := fault_of(existing, config):
            raise refusal
        self._making.add(name)
        try:
            await asyncio.to_thread(write_config, config)
            queue = self._made(config)
            await queue.open()
        finally:
            self._making.discard(name)
        self.all[name] = queue
        return "created", ""

    async def open(self) -> None:
        """Open every queue. Raises `ConfigError` or `UsageError` for what the operator has to
        change.

        A queue that cannot be opened for another reason is refused to its clients, and reported.
        """
        try:
            for queue in self.all.values():
                try:
                    await queue.open()
                except (ConfigError, UsageError):
                    raise
                except (FeedhandlerError, OSError) as error:
                    text = f"queue {queue.name}: cannot be opened: {error}"
                    log_event("queue_stopped", text, logging.ERROR, queue=queue.name)
            for queue in self.all.values():
                if not queue.fault:
                    queue.send_outbox()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every queue."""
        await asyncio.gather(*(queue.close() for queue in self.all.values()))

    def stop_taking(self) -> None:
        """Give producers no more credit, as the node stops."""
        for queue in self.all.values():
            queue.closing = True

    @property
    def busy(self) -> bool:
        """Whether anything is on its way to the disk."""
        return any(queue.busy for queue in self.all.values())

    def snapshot(self) -> list[dict[str, Any]]:
        """Return figures of each queue."""
        return [queue.snapshot() for queue in self.all.values()]

    # -- links ------------------------------------------------------------------------------

    def concerns(self, link: Any) -> bool:
        """Return whether a link that a client attaches is a queue's, or for answers of one."""
        if isinstance(link, proton.IntakeLink | proton.HandoutLink):
            return True
        if isinstance(link, proton.ReceiverLink):
            return False
        return bool((self.all or self._folder) and link.dynamic) or link.source_address.startswith(
            PREFIX
        )

    def attach(
        self,
        peer: Peer,
        link: Any,
        user: User,
        forget: Forget,
        answers: Callable[[str], Answers | None],
        others: Callable[[], Iterable[QueueEnd]],
    ) -> AnyLink:
        """Accept a link; `others` returns all of its connection's. Raises AddressError where it
        cannot be served."""
        if link.coordinator:
            self._demand_transactions(user)
            return Coordinator(peer, link, forget, self.transactions, others)
        if isinstance(link, proton.IntakeLink):
            return self._taking(peer, link, user, forget, answers)
        if isinstance(link, proton.HandoutLink):
            queue = self._find(link.source_address)
            _demand(user, user.queues.get, queue, "get messages of")
            _plain(link, queue)
            return queue.consumer(peer, link, forget)
        if link.dynamic:
            return Answers(peer, link, forget, REPLY_PREFIX + os.urandom(12).hex())
        self._find(link.source_address.removesuffix(MANAGEMENT))
        if not link.target_address:
            raise AddressError("a link for answers wants a target address, or a dynamic source")
        return Answers(peer, link, forget, link.target_address)

    def _taking(
        self,
        peer: Peer,
        link: Any,
        user: User,
        forget: Forget,
        answers: Callable[[str], Answers | None],
    ) -> AnyLink:
        """Accept a link on which the client sends: to a queue, or to its management. Raises
        AddressError."""
        address = link.target_address
        name = address.removesuffix(MANAGEMENT).removeprefix(PREFIX)
        if address.endswith(MANAGEMENT) and name not in self.all and self._folder:
            if not grants(user.queues.create, name):
                reason = f"user {user.name} may not create queue {name}"
                raise AddressError(reason, conditions.UNAUTHORIZED_ACCESS)
            from feedhandler.amqp.durable.creation import CreationManagement

            may_cancel = grants(user.queues.cancel, name)
            making = CreationManagement(self, name, self._flush, may_cancel)
            return Requests(peer, link, forget, making, answers)
        queue = self._find(address.removesuffix(MANAGEMENT))
        if not address.endswith(MANAGEMENT):
            _demand(user, user.queues.put, queue, "put messages into")
            return Producer(peer, link, forget, queue)
        rights = user.queues
        asked = (rights.put, rights.get, rights.cancel, rights.create)
        may = any(grants(each, queue.name) for each in asked)
        if not may:
            _demand(user, frozenset(), queue, "ask about")
        management = Management(queue, grants(rights.cancel, queue.name))
        return Requests(peer, link, forget, management, answers)

    def _demand_transactions(self, user: User) -> None:
        """Check that the user can use transactions at all. Raises AddressError."""
        if not self.all:
            raise AddressError(
                "this node has no durable queues, and so no transactions",
                conditions.NOT_IMPLEMENTED,
            )
        rights = user.queues.put | user.queues.get
        if not any(grants(rights, name) for name in self.all):
            raise AddressError(
                f"user {user.name} may not put messages into a queue or get any, and so has nothing"
                " that a transaction could be of",
                conditions.UNAUTHORIZED_ACCESS,
            )

    def _find(self, address: str) -> "StoredQueue":
        """Return the open queue with this address. Raises AddressError."""
        name = address.removeprefix(PREFIX)
        queue = self.all.get(name)
        if queue is None:
            raise AddressError(f"no queue is named {name!r}", conditions.NOT_FOUND)
        if queue.fault:
            raise AddressError(
                f"queue {name} has stopped: {queue.fault}", conditions.INTERNAL_ERROR
            )
        return queue


def grants(names: frozenset[str], name: str) -> bool:
    """Return whether the queue is among those named; `*` is every one."""
    return name in names or "*" in names


def _created_in(folder: str) -> tuple[DurableQueueConfig, ...]:
    """Return the configurations of queues that clients have created. Raises `ConfigError`."""
    from feedhandler.amqp.durable.creation import configs_in

    return tuple(configs_in(folder))


def _queue(
    config: DurableQueueConfig,
    flush: Callable[[], None],
    find: Callable[[str], "StoredQueue | None"],
    **options: Any,
) -> "StoredQueue":
    """Make a queue. Its module is imported here: a gateway without queues does not load the
    journal."""
    if config.key is not None:
        from feedhandler.amqp.durable.keyed import KeyedDurableQueue

        return KeyedDurableQueue(config, flush, find, **options)
    from feedhandler.amqp.durable.queue import DurableQueue

    return DurableQueue(config, flush, find, **options)


def _plain(link: Any, queue: "StoredQueue") -> None:
    """Refuse links that browse or filter. Raises AddressError.

    Such a client expects that messages, or the others, stay in the queue; to ignore that would take
    them away.
    """
    if link.browsing:
        raise AddressError(
            f"queue {queue.name} cannot be browsed (distribution-mode copy): what is got is taken; "
            "ask its management, or feedhandler queue list",
            conditions.NOT_IMPLEMENTED,
        )
    if link.filters:
        raise AddressError(
            f"queue {queue.name} has no filters or selectors: {', '.join(link.filters)}",
            conditions.NOT_IMPLEMENTED,
        )


def _demand(user: User, names: frozenset[str], queue: "StoredQueue", what: str) -> None:
    if not grants(names, queue.name):
        raise AddressError(
            f"user {user.name} may not {what} queue {queue.name}", conditions.UNAUTHORIZED_ACCESS
        )
