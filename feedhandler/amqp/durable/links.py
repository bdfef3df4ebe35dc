"""The links of durable queues on one connection: producers, consumers, management, answers.

What it is for: each stands between one of the engine's links and a queue. `work` is called in the
connection's turns, after the engine's events: it takes what the client has sent. `flow` is called
when the client has given credit, or drains it. `blocked`: something could be sent once the socket
takes more. `leave` is called when the link has ended.

What it promises: a producer never has more messages in flight than its queue's `credit`; what it
sends is accepted once durable, or rejected with a reason; when a consumer goes away everything that
was not settled goes to another one. An internal error while a queue calls a link ends that link's
connection (`Peer.fail`), not the queue, nor the connection whose turn it was.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

from feedhandler.amqp import conditions, proton
from feedhandler.amqp.durable.management import Management, Steps
from feedhandler.amqp.durable.sections import head_of, look, read_request, write_reply
from feedhandler.amqp.durable.transactions import (
    Transaction,
    TransactionError,
    read_outcome,
    read_put_state,
    write_accepted,
)
from feedhandler.amqp.durable.values import (
    SectionError,
)
from feedhandler.amqp.framing import BODY_HEAD
from feedhandler.amqp.sender_queue import Peer
from feedhandler.counters import QueueCounter

if TYPE_CHECKING:
    from feedhandler.amqp.durable.creation import CreationManagement, Unmade
    from feedhandler.amqp.durable.stored import StoredQueue

#: Management requests that one link may have in flight.
REQUESTS_MAX = 64
#: Answers that may wait for one link's credit, and bytes of them: past that, requests for it wait.
#: Answers beyond that in spite of it (to requests that took long) are dropped.
ANSWERS_MAX = 1024
ANSWERS_BYTES_MAX = 4 << 20
#: Bytes of requests that may wait at one queue, of all its clients; further ones are rejected.
REQUESTS_BYTES_MAX = 4 << 20
#: A producer's mean message size is taken over about this many messages.
MEAN_OF = 8
#: Bytes of a management request at most.
REQUEST_BYTES_MAX = 16 << 10

Forget = Callable[[Any], None]


def contained(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a link's method that a queue calls: an exception ends the link's connection only."""

    @wraps(method)
    def contained(self: "QueueEnd", *arguments: Any, **named: Any) -> None:
        try:
            method(self, *arguments, **named)
        except Exception as error:  # whatever it is: the queue's other links go on
            self.peer.fail(error)

    return contained


class QueueEnd:
    """Base of the links of queues; `forget` removes the link from its connection."""

    blocked = False
    #: Whether transactions are declared and discharged on it.
    coordinates = False

    def __init__(
        self, peer: Peer, link: Any, forget: Forget, queue: "StoredQueue | Unmade | None"
    ) -> None:
        self.peer = peer
        self.link = link
        self._forget = forget
        self._soon = (lambda: None) if queue is None else queue.flush_soon
        self.over = False

    def _schedule_flush(self) -> None:
        """Schedule a write to the link's connection."""
        self.peer.schedule_flush()
        self._soon()

    def end(self, condition: str, reason: str) -> None:
        """Detach the client, with the reason."""
        if not self.over:
            self._forget(self.link)
            self.leave()
            self.link.close(condition, reason)
            self._schedule_flush()

    def work(self) -> None:
        """Process what the client has sent."""

    def flow(self) -> None:
        """Act on credit that the client has given, or drains."""

    def leave(self, orderly: bool = False) -> None:
        """End the link; `orderly`: its client closed it, or the connection."""
        self.over = True


class Producer(QueueEnd):
    """A link that puts messages into `queue`."""

    def __init__(self, peer: Peer, link: Any, forget: Forget, queue: "StoredQueue") -> None:
        super().__init__(peer, link, forget, queue)
        self._queue = queue
        self._credit = self._held = 0
        self._mean_bytes = 0.0
        link.open_for(queue.message_bytes_max)
        queue.links[self] = None
        queue.intake.producers += 1
        self._grant()

    def work(self) -> None:
        """Put the messages that have come, and grant credit again."""
        link: proton.IntakeLink = self.link
        if not link.arrived and not link.aborted:
            return
        came = len(link.arrived) + link.aborted
        self._credit -= came
        self._queue.intake.granted -= came
        fatal = None
        for number, data, settled, state in link.arrived:
            if state is None:
                self._process(number, data)
            elif (refusal := self._put_in_transaction(number, data, state)) is not None:
                fatal = refusal if settled else fatal
        link.clear()
        self._queue.push()
        self._grant()
        if fatal is not None:
            self.end(fatal.condition, fatal.reason)

    def _put_in_transaction(
        self, number: int, data: bytes | None, state: bytes
    ) -> TransactionError | None:
        """Put one message in its transaction; return why there is none, None where there is.

        An invalid message dooms the transaction, so that its discharge fails.
        """
        queue, transactions = self._queue, self._queue.transactions
        transaction = None
        try:
            name = read_put_state(state)
            transaction = transactions.find(self.peer, name)
            if data is None:
                raise TransactionError(conditions.MESSAGE_SIZE_EXCEEDED, self._too_large)
            reason = queue.accepts(data, home=True)
            if reason:
                raise TransactionError(conditions.PRECONDITION_FAILED, reason)
            transactions.put(transaction, queue, data)
        except TransactionError as refusal:
            self._reject(number, refusal.condition, refusal.reason)
            if transaction is None:
                return refusal
            transaction.doom(f"a message to queue {queue.name}: {refusal.reason}")
        else:
            self._mean_bytes += (len(data) - self._mean_bytes) / MEAN_OF
            self.link.answer(number, proton.TRANSACTIONAL, write_accepted(name))
        return None

    @property
    def _too_large(self) -> str:
        queue = self._queue
        return f"queue {queue.name} takes messages of {queue.message_bytes_max} bytes at most"

    def _process(self, number: int, data: bytes | None) -> None:
        """Offer one message to the queue, or reject it."""
        queue = self._queue
        if data is None:
            self._reject(number, conditions.MESSAGE_SIZE_EXCEEDED, self._too_large)
            return
        if queue.intake.overfull:
            queue.counts[QueueCounter.FULL] += 1
            self._reject(number, conditions.RESOURCE_LIMIT_EXCEEDED, f"queue {queue.name} is full")
            return
        self._mean_bytes += (len(data) - self._mean_bytes) / MEAN_OF
        self._held += queue.intake.offer(self, number, data)

    def _reject(self, number: int, condition: str, reason: str) -> None:
        self._queue.counts[QueueCounter.REFUSED] += 1
        self.link.give_back(number, proton.REJECTED, condition, reason)

    def refused(self, number: int, condition: str, reason: str, again: bool = False) -> None:
        """Refuse a message; `again`: release it, for it may be sent again."""
        if again:
            self._queue.counts[QueueCounter.FULL] += 1
            self.link.give_back(number, proton.RELEASED, condition, reason)
        else:
            self._reject(number, condition, reason)

    @contained
    def refused_late(self, number: int, condition: str, reason: str) -> None:
        """Reject a message that was taken."""
        self._held -= 1
        self._reject(number, condition, reason)

    def _grant(self) -> None:
        """Give the client credit, as long as the queue has room."""
        if self.over:
            return
        intake = self._queue.intake
        window = intake.window(self._mean_bytes)
        more = min(window - self._credit - self._held, intake.free)
        if more <= window // 4 and self._credit:
            return
        if not self._queue.accepts_more:
            intake.wait_for_room(self)
        elif more > 0:
            self.link.flow(more)
            self._credit += more
            intake.granted += more

    @contained
    def accepted(self, number: int) -> None:
        """Accept a message, which is durable."""
        self._held -= 1
        self.link.accept(number)

    @contained
    def settled(self) -> None:
        """Grant credit, after a flush or as there is room again."""
        if not self.over:
            self._grant()
            self._schedule_flush()

    def leave(self, orderly: bool = False) -> None:
        """End the link once what came before is put; its credit is free for others."""
        super().leave()
        try:
            self.work()  # what came before the close still counts
        finally:
            self._queue.links.pop(self, None)
            self._queue.intake.producers -= 1
            self._queue.intake.granted -= self._credit


class Consumer(QueueEnd):
    """A link that gets messages of `queue`.

    `unsettled` are those that it has; those for which its client has sent an outcome in an open
    transaction are in `_enlisted` (the value: whether the client has settled them).
    """

    def __init__(self, peer: Peer, link: Any, forget: Forget, queue: Any) -> None:
        super().__init__(peer, link, forget, queue)
        self._queue = queue
        self.unsettled: dict[int, None] = {}
        self._enlisted: dict[int, bool] = {}
        self._transaction_of: dict[int, Transaction] = {}
        self._refused: TransactionError | None = None
        self._draining = False
        link.open()
        link.wants_flow = True
        queue.links[self] = None
        self._queue.join(self)

    # -- as the dispatch sees it ------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the consumer, for display: the client's address, and the link's name."""
        return f"{getattr(self.peer, 'peer', '')} {self.link.name}"

    def ready(self) -> bool:
        """Return whether one more may be sent now; where not, `flow` is called once it may."""
        link: proton.HandoutLink = self.link
        if self.over:
            return False
        if link.ready():
            return True
        self.blocked = link.credit() > 0
        link.wants_flow = True
        return False

    def wants(self) -> int:
        """Return its credit, as far as more can be sent to it now."""
        link: proton.HandoutLink = self.link
        return link.credit() if self.ready() else 0

    def hand_out(self, number: int, content: bytes, first: bool, failures: int) -> None:
        """Send a message; where that fails, the connection ends and another consumer gets it."""
        self.unsettled[number] = None
        try:
            self._send(number, content, first, failures)
        except Exception as error:  # whatever it is: the queue's other links go on
            self.peer.fail(error)

    def _send(self, number: int, content: bytes, first: bool, failures: int) -> None:
        link: proton.HandoutLink = self.link
        try:
            found = look(content)
            head, skip = head_of(found, first, failures), found.passed_on
        except SectionError:
            # Put by other means than AMQP: it travels as data.
            head, skip = head_of_bytes(content, first, failures), 0
        link.hand_out(number, head, content, skip)
        if link.settled:
            del self.unsettled[number]
            self._queue.deliver(self, [number])
        self._schedule_flush()

    # -- as the connection sees it ----------------------------------------------------------

    def work(self) -> None:
        """Record the outcomes that the client has sent."""
        link: proton.HandoutLink = self.link
        if not link.dispositions:
            return
        dispositions = link.dispositions.copy()
        link.dispositions.clear()
        accepted: list[int] = []
        released: list[int] = []
        failed: list[int] = []
        refused: list[int] = []
        for number, outcome, is_failure, state, settled in dispositions:
            if number not in self.unsettled:
                self._say_more(number, outcome, settled)
                continue
            del self.unsettled[number]
            if state is not None:
                self._enlist(number, state, settled)
            elif outcome == proton.ACCEPTED:
                accepted.append(number)
            elif outcome in (proton.REJECTED, proton.UNDELIVERABLE):
                refused.append(number)
            else:
                (failed if is_failure or outcome == proton.UNTOLD else released).append(number)
        if not self._queue.fault:
            self._settle(accepted, refused, released, failed)
        if self._refused is not None and not self.over:
            self.end(self._refused.condition, self._refused.reason)

    def _settle(
        self, accepted: list[int], refused: list[int], released: list[int], failed: list[int]
    ) -> None:
        """Pass the outcomes of messages to the queue."""
        queue = self._queue
        if accepted:
            queue.deliver(self, accepted)
        if refused:
            queue.bury(self, refused, "was rejected by its consumer")
        for numbers, is_failure in ((released, False), (failed, True)):
            if numbers:
                self.finished(numbers)
                queue.give_back(numbers, failed=is_failure)
        queue.offer(self)
        queue.serve()

    # -- as transactions see it -------------------------------------------------------------

    def _enlist(self, number: int, state: bytes, settled: bool) -> None:
        """Add a message's outcome to its transaction. Where that is impossible the link is ended,
        for nothing else answers the outcome."""
        self._enlisted[number] = settled
        transactions = self._queue.transactions
        try:
            name, outcome = read_outcome(state)
            transaction = transactions.find(self.peer, name)
        except TransactionError as refusal:
            self._refused = self._refused or refusal
            return
        self._transaction_of[number] = transaction
        transactions.answer(transaction, self._queue, self, number, outcome)

    def _say_more(self, number: int, outcome: int, settled: bool) -> None:
        """Process a further state of a message in a transaction: its settlement; a different
        outcome dooms the transaction."""
        if number not in self._enlisted:
            return
        self._enlisted[number] |= settled
        if outcome != proton.TRANSACTIONAL:
            transaction = self._transaction_of.get(number)
            if transaction is not None:
                transaction.doom("a message of it was disposed of outside of it")

    def enlists(self, number: int) -> bool:
        """Return whether it still has this message, in a transaction."""
        return number in self._enlisted and not self._queue.fault

    def committing(self, numbers: list[int]) -> None:
        """Hand these over to the queue, which ends them; it calls `finished` once they have
        ended."""
        for number in numbers:
            self._release(number)

    @contained
    def rolled_back(self, numbers: list[int], *, failed: bool) -> None:
        """Take these out of their transaction; those that the client has settled are given back."""
        mine = {number: self._release(number) for number in numbers if number in self._enlisted}
        self.unsettled |= dict.fromkeys(number for number, settled in mine.items() if not settled)
        self._give_back([number for number, settled in mine.items() if settled], failed)

    @contained
    def returned(self, numbers: list[int], *, failed: bool) -> None:
        """Return these messages to the queue, as their durable transaction says."""
        mine = [number for number in numbers if number in self._enlisted]
        for number in mine:
            self._release(number)
        self._give_back(mine, failed)

    def _release(self, number: int) -> bool:
        """Take a message out of its transaction; return whether the client has settled it."""
        self._transaction_of.pop(number, None)
        return self._enlisted.pop(number, False)

    def _give_back(self, numbers: list[int], failed: bool) -> None:
        if numbers and not self._queue.fault:
            for number in numbers:
                self.link.disown(number)
            self._settle([], [], [] if failed else numbers, numbers if failed else [])
            self._schedule_flush()

    @contained
    def finished(self, numbers: Iterable[int]) -> None:
        """Settle these messages, whose outcome is recorded."""
        for number in numbers:
            self.link.finish(number)
        self._schedule_flush()

    def flow(self) -> None:
        """Serve the link, which has credit; return what is left of it where it is drained."""
        link: proton.HandoutLink = self.link
        self.work()  # messages that came back are sent before newer ones
        link.wants_flow = self.blocked = False
        self._draining = True
        self._queue.offer(self)
        self._queue.serve()
        self.settle_drain()
        if self._draining:
            self._queue.drain(self)

    @contained
    def settle_drain(self) -> None:
        """Return unused credit where the client drains it, once nothing can be handed out."""
        if self._draining and (self._queue.idle or self.link.credit() == 0):
            self._draining = False
            self.link.drained(asked=True)
            self._schedule_flush()

    def leave(self, orderly: bool = False) -> None:
        """End the link once outcomes are recorded; the queue gets back what it had."""
        super().leave()
        try:
            self.work()  # outcomes sent before the close still count
        finally:
            self._queue.links.pop(self, None)
            numbers = [*self.unsettled, *self._enlisted]
            self.unsettled, self._enlisted = {}, {}
            self._queue.leave(self, numbers, failed=not orderly)


def head_of_bytes(content: bytes, first: bool, failures: int) -> bytes:
    """Build the header and the start of a data section for bytes that are no AMQP message."""
    head = head_of(look(b"\x00\x53\x70\x45"), first, failures)
    return head + BODY_HEAD + len(content).to_bytes(4, "big")


class Answers(QueueEnd):
    """A link on which answers to management requests are sent; `address` is their reply-to."""

    def __init__(self, peer: Peer, link: Any, forget: Forget, address: str) -> None:
        super().__init__(peer, link, forget, None)
        self.address = address
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._held: list[Callable[[], None]] = []
        self.dropped = 0
        link.wants_flow = True
        if link.dynamic:
            link.open_at(address)
        else:
            link.open()

    def send(self, data: bytes) -> None:
        """Send an answer, or let it wait for credit; it is dropped where `ANSWERS_MAX` wait."""
        if self.over:
            return
        if len(self._waiting) >= ANSWERS_MAX:
            self.dropped += 1
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.flow()

    @property
    def full(self) -> bool:
        """Whether requests for this link must wait."""
        return len(self._waiting) >= ANSWERS_MAX // 2 or self._waiting_bytes > ANSWERS_BYTES_MAX

    def hold(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once it is not full any more, or has ended."""
        self._held.append(go_on)

    def _release(self) -> None:
        held, self._held = self._held, []
        for go_on in held:
            go_on()

    def leave(self, orderly: bool = False) -> None:
        """End the link: answers that wait are dropped, requests need not wait."""
        super().leave()
        self._waiting.clear()
        self._release()

    def flow(self) -> None:
        """Send the answers that wait, as many as there is credit for."""
        link: proton.SenderLink = self.link
        while self._waiting and link.ready():
            data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            link.send(data, 0, len(data))
        if self._held and not self.full:
            self._release()
        self.blocked = bool(self._waiting) and link.credit() > 0
        link.wants_flow = True
        if not self._waiting:
            link.drained(asked=True)
        self._schedule_flush()


class Requests(QueueEnd):
    """A link on which management requests come in. `answers` finds a link by its reply-to."""

    def __init__(
        self,
        peer: Peer,
        link: Any,
        forget: Forget,
        management: "Management | CreationManagement",
        answers: Callable[[str], Answers | None],
    ) -> None:
        super().__init__(peer, link, forget, management.queue)
        self._management = management
        self._answers = answers
        self._asked: deque[tuple[int, bytes | None]] = deque()
        self._working = False
        link.open_for(REQUEST_BYTES_MAX)
        management.queue.links[self] = None
        link.flow(REQUESTS_MAX)

    def work(self) -> None:
        """Take the requests that have come; those that are none, or too many, are rejected."""
        link: proton.IntakeLink = self.link
        if not link.arrived and not link.aborted:
            return
        if link.aborted:
            link.flow(link.aborted)
        queue = self._management.queue
        for number, data, _, state in link.arrived:
            if state is not None:
                self._reject(
                    number, conditions.NOT_IMPLEMENTED, "requests are part of no transaction"
                )
                continue
            size = len(data or b"")
            if queue.asked_bytes + size > REQUESTS_BYTES_MAX:
                self._reject(
                    number,
                    conditions.RESOURCE_LIMIT_EXCEEDED,
                    "too many requests wait; ask again later",
                )
                continue
            queue.asked_bytes += size
            self._asked.append((number, data))
        link.clear()
        if self._asked and not self._working:
            self._working = True
            self._management.run(self._steps())

    def _steps(self) -> Steps:
        """Process the requests that wait, one after the other."""
        try:
            while self._asked:
                number, data = self._asked.popleft()
                self._management.queue.asked_bytes -= len(data or b"")
                yield from self._process(number, data)
        except Exception as error:  # whatever it is: the queue's other links go on
            self.peer.fail(error)
        finally:
            self._working = False

    def _reject(self, number: int, condition: str, reason: str) -> None:
        self.link.give_back(number, proton.REJECTED, condition, reason)
        if not self.over:
            self.link.flow(1)

    def _process(self, number: int, data: bytes | None) -> Steps:
        """Process one request, and send the answer."""
        try:
            if data is None:
                raise SectionError(f"more than {REQUEST_BYTES_MAX} bytes")
            request = read_request(data)
        except SectionError as error:
            self._reject(number, conditions.DECODE_ERROR, f"no request: {error}")
            return
        answers = self._answers(request.reply_to) if request.reply_to else None
        if request.reply_to and answers is None:
            reason = "reply-to is the address of no receiver on this connection"
            self._reject(number, conditions.PRECONDITION_FAILED, reason)
            return
        self.link.accept(number)
        if not self.over:
            self._schedule_flush()

        def reply(arguments: dict[str, Any], body: Any) -> None:
            try:
                if answers is not None:
                    answers.send(write_reply(request, arguments, body))
                if not self.over:
                    self.link.flow(1)
                    self._schedule_flush()
            except Exception as error:  # whatever it is: the queue's other links go on
                self.peer.fail(error)

        while answers is not None and answers.full and not answers.over:
            yield answers.hold
        yield from self._management.do(
            request.arguments, reply, lambda: answers is not None and not answers.over
        )
        yield None

    def leave(self, orderly: bool = False) -> None:
        """End the link once what came before is taken."""
        try:
            self.work()
        finally:
            super().leave()
            self._management.queue.links.pop(self, None)
