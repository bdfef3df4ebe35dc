"""The link on which a client declares and discharges transactions (AMQP 1.0, 4.1).

What it promises: each transaction belongs to its link: what is not discharged when the link, its
session or its connection ends is rolled back. A discharge is answered once its effect is durable:
accepted, or rejected with `amqp:transaction:rollback` and the reason, where nothing was done. Where
the home queue has stopped meanwhile, the outcome is unknown: then the link is ended.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from feedhandler.amqp import conditions, proton
from feedhandler.amqp.durable.links import Forget, QueueEnd
from feedhandler.amqp.durable.transactions import (
    Declare,
    Fate,
    Transaction,
    TransactionError,
    Transactions,
    read_order,
    write_declared,
)
from feedhandler.amqp.sender_queue import Peer

#: Declares and discharges that one link may have in flight.
ORDERS_MAX = 64
#: Bytes of a declare or discharge at most.
ORDER_BYTES_MAX = 4096


class Coordinator(QueueEnd):
    """A controller's link; see the module. `others` returns all links of its connection that are
    queues'."""

    coordinates = True

    def __init__(
        self,
        peer: Peer,
        link: Any,
        forget: Forget,
        transactions: Transactions,
        others: Callable[[], Iterable[QueueEnd]],
    ) -> None:
        super().__init__(peer, link, forget, None)
        self._transactions = transactions
        self._others = others
        self._open: dict[bytes, Transaction] = {}
        link.open_for(ORDER_BYTES_MAX)
        link.flow(ORDERS_MAX)

    def work(self) -> None:
        """Process declarations and discharges, behind what other links have sent before."""
        link: proton.IntakeLink = self.link
        if not link.arrived and not link.aborted:
            return
        if link.aborted:
            link.flow(link.aborted)
        for other in list(self._others()):
            if not other.coordinates:
                other.work()  # messages on the other links precede a discharge
        arrived = list(link.arrived)
        link.clear()
        for number, data, settled, _ in arrived:
            if self.over:
                return
            if settled:
                self.end(
                    conditions.NOT_ALLOWED, "a declare or discharge that is settled: no answer"
                )
                return
            try:
                self._process(number, data)
            except TransactionError as refusal:
                self._reject(number, refusal.condition, refusal.reason)

    def _process(self, number: int, data: bytes | None) -> None:
        if data is None:
            raise TransactionError(
                conditions.MESSAGE_SIZE_EXCEEDED, f"more than {ORDER_BYTES_MAX} bytes"
            )
        order = read_order(data)
        if isinstance(order, Declare):
            transaction = self._transactions.declare(self.peer)
            self._open[transaction.id] = transaction
            self.link.answer(number, proton.DECLARED, write_declared(transaction.id))
            self._answered()
            return
        transaction = self._transactions.find(self.peer, order.name)
        if self._open.pop(order.name, None) is None:
            raise TransactionError(
                conditions.NOT_ALLOWED, "another coordinator link has declared this transaction"
            )
        self._transactions.discharge(transaction, order.fail, partial(self._discharged, number))

    def _discharged(self, number: int, fate: Fate, reason: str) -> None:
        try:
            if fate is Fate.UNCERTAIN:
                text = f"{reason}: whether the transaction counts is known when it is open again"
                self.end(conditions.INTERNAL_ERROR, text)
            elif fate is Fate.ROLLED_BACK:
                self._reject(number, conditions.TRANSACTION_ROLLBACK, reason)
            else:
                self.link.accept(number)
                self._answered()
        except Exception as error:  # whatever it is: the queue's other links go on
            self.peer.fail(error)

    def _reject(self, number: int, condition: str, reason: str) -> None:
        self.link.give_back(number, proton.REJECTED, condition, reason)
        self._answered()

    def _answered(self) -> None:
        if not self.over:
            self.link.flow(1)
            self._schedule_flush()

    def leave(self, orderly: bool = False) -> None:
        """End the link, and roll back the transactions that it has open."""
        if not self.over:
            self.work()  # what came before the close still counts
        super().leave()
        opened, self._open = self._open, {}
        for transaction in opened.values():
            self._transactions.abandon(transaction, failed=not orderly)
