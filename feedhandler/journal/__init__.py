"""The persistent queue: journalled, cancellable, recovered in milliseconds."""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.journal.blocking import BlockingQueue
    from feedhandler.journal.cancels import CancelAnswer
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

__getattr__ = lazy_names(
    __name__,
    {
        "BlockingQueue": "blocking",
        "CancelAnswer": "cancels",
        "Item": "reading",
        "PersistentQueue": "queue",
        "QueueClosed": "engine",
        "QueueSettings": "settings",
        "QueueStopped": "engine",
        "Status": "layout",
    },
)
