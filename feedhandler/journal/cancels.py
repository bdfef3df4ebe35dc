"""Answers to cancels: the outcome for one item, and the items whose cancel is to be forwarded."""

from dataclasses import dataclass
from enum import Enum, auto

from feedhandler.journal.layout import Status


class CancelAnswer(Enum):
    """Outcome of cancelling an item.

    CANCELLED: it was pending, and will never be delivered. DELIVERED: too late, it went to its
    destination (the cancel-forward hook is called). DELIVERING: a consumer has it; it is cancelled
    if it comes back, and forwarded if it is delivered. EXPIRED: its day was over. DAMAGED: its
    bytes were lost. UNKNOWN: no item has had this id yet.
    """

    CANCELLED = auto()
    DELIVERED = auto()
    DELIVERING = auto()
    EXPIRED = auto()
    DAMAGED = auto()
    UNKNOWN = auto()


ANSWERS: dict[Status, CancelAnswer] = {
    Status.PENDING: CancelAnswer.CANCELLED,
    Status.DELIVERED: CancelAnswer.DELIVERED,
    Status.CANCELLED: CancelAnswer.CANCELLED,
    Status.EXPIRED: CancelAnswer.EXPIRED,
    Status.DAMAGED: CancelAnswer.DAMAGED,
    Status.MOVED: CancelAnswer.DELIVERED,
}


@dataclass(frozen=True, slots=True)
class ForwardPage:
    """A page of the items whose cancel is to be forwarded.

    `items`: ids in order, each with whether it was delivered (else a consumer has it); all are
    below `until`. `more`: whether there are further ones.
    """

    items: list[tuple[int, bool]]
    until: int
    more: bool
