"""A keyed queue's changes of its journal, and its notices once they are durable."""

from types import SimpleNamespace
from typing import Any

import pytest

from feedhandler.journal import QueueStopped
from feedhandler.journal.engine import Committed
from feedhandler.journal.layout import Status
from feedhandler.keyed.envelope import OutboxEntry
from feedhandler.keyed.journal_store import JournalStore


class Journal:
    """A persistent queue in which everything is durable at once; `ends` are those of each group."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(
            next_id=1, has_committed=lambda group: True, report_committed=lambda group: None
        )
        self.ends: list[list[tuple[int, Status]]] = []
        self.stopped = False

    def commit_soon(self, puts: list[bytes], ends: Any, *_: Any) -> Committed:
        if self.stopped:
            raise QueueStopped("its disk failed", "")
        self.ends.append(ends)
        first = self.engine.next_id
        self.engine.next_id += len(puts)
        return Committed(first, self.engine.next_id, 0, 0, {}, [])


class Rules:
    """A queue's rules, which note what they hear."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def durable(self, number: int) -> None:
        """Said of messages that were put."""

    def ended(self, number: int) -> None:
        self.heard.append(number)


def test_the_end_of_an_entry_of_the_outbox_is_recorded_and_is_no_messages_end() -> None:
    journal, rules = Journal(), Rules()
    store = JournalStore(journal, "dead", lambda number, then: None)  # type: ignore[arg-type]
    store.queue = rules  # type: ignore[assignment]
    message = store.add(b"a", b"", None)
    store.send(OutboxEntry("out", "", b"b"))
    store.push()
    assert not list(store.settled())
    ((entry, _),) = store.outbox
    store.deliver(message)
    store.arrived(entry)
    assert store.busy
    store.push()
    assert not list(store.settled())
    assert journal.ends == [[], [(message, Status.DELIVERED), (entry, Status.DELIVERED)]]
    assert rules.heard == [message]


def test_a_change_that_finds_the_journal_stopped_raises_nothing_where_a_group_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changes are asked for by timers and by other queues; `push` tells the owner."""
    monkeypatch.setattr("feedhandler.keyed.journal_store.GROUP_CHANGES_MAX", 2)
    journal = Journal()
    store = JournalStore(journal, "dead", lambda number, then: None)  # type: ignore[arg-type]
    journal.stopped = True
    for number in range(1, 6):
        store.deliver(number)
        store.arrived(100 + number)
        store.mark(200 + number, 1)
        store.add(b"a", b"", None)
    with store.unit():
        store.expire(6)
    with pytest.raises(QueueStopped):
        store.push()
    assert journal.ends == []
