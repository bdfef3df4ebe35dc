"""The persistent queue: journalled, cancellable, recovered in milliseconds."""

from feedhandler.journal.blocking import BlockingQueue
from feedhandler.journal.delivery import CancelAnswer
from feedhandler.journal.engine import QueueClosed, QueueStopped
from feedhandler.journal.layout import Status
from feedhandler.journal.queue import PersistentQueue
from feedhandler.journal.reading import Item
from feedhandler.journal.settings import QueueSettings

__all__ = [
    "BlockingQueue",
    "CancelAnswer",
    "Item",
    "PersistentQueue",
    "QueueClosed",
    "QueueSettings",
    "QueueStopped",
    "Status",
]
