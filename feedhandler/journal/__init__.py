"""The persistent queue: journalled, cancellable, recovered in milliseconds."""

from typing import TYPE_CHECKING

from feedhandler._lazy import lazy_names

if TYPE_CHECKING:
    from feedhandler.journal.blocking import BlockingQueue as BlockingQueue
    from feedhandler.journal.cancels import CancelAnswer as CancelAnswer
    from feedhandler.journal.engine import QueueClosed as QueueClosed
    from feedhandler.journal.engine import QueueStopped as QueueStopped
    from feedhandler.journal.layout import Status as Status
    from feedhandler.journal.queue import PersistentQueue as PersistentQueue
    from feedhandler.journal.reading import Item as Item
    from feedhandler.journal.settings import QueueSettings as QueueSettings

__getattr__ = lazy_names(__name__)
