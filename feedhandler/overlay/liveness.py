"""Liveness of neighbours: heard lately, silent, or gone.

    state    input      next
    NEW      heard      ALIVE      silence: GONE
    ALIVE    heard      ALIVE      silence: SILENT
    SILENT   heard      ALIVE      silence: GONE
    GONE     heard      ALIVE      silence: GONE

A NEW neighbour has been given the benefit of the doubt since the start: a child is served before it
has said that it is there, as its first message may be the one that counts. A child that is GONE is
sent nothing, as its address may be somebody else's by now, until it says again that it is there.
"""

import enum
from collections.abc import Iterable
from typing import NamedTuple

#: Nothing heard for so long, of three hellos, makes a neighbour silent.
SILENT_NS = 1_500_000_000
#: Nothing heard for so long makes it gone.
GONE_NS = 10_000_000_000


class State(enum.Enum):
    """States of a neighbour."""

    NEW = "new"
    ALIVE = "alive"
    SILENT = "silent"
    GONE = "gone"


class Change(NamedTuple):
    """A neighbour's state has changed."""

    name: str
    state: State


#: Next state after silence, and after how much of it since the neighbour was last heard.
AFTER_SILENCE = {
    State.NEW: (State.GONE, GONE_NS),
    State.ALIVE: (State.SILENT, SILENT_NS),
    State.SILENT: (State.GONE, GONE_NS),
}
_NEVER = 1 << 62


class Liveness:
    """The states of a member's neighbours."""

    def __init__(self, names: Iterable[str], now_ns: int) -> None:
        self._heard_ns = dict.fromkeys(names, now_ns)
        self._states = dict.fromkeys(self._heard_ns, State.NEW)
        self.deadline_ns = 0
        self._plan()

    def adopt(self, names: Iterable[str], now_ns: int, anew: Iterable[str] = ()) -> None:
        """Take another set of neighbours; those in `anew` are others than before."""
        fresh = set(anew)
        names = list(names)
        kept = {each for each in names if each in self._states and each not in fresh}
        self._heard_ns = {n: self._heard_ns[n] if n in kept else now_ns for n in names}
        self._states = {n: self._states[n] if n in kept else State.NEW for n in names}
        self._plan()

    def state(self, name: str) -> State:
        """A neighbour's state."""
        return self._states[name]

    def is_gone(self, name: str) -> bool:
        """Whether a neighbour is gone."""
        return self._states[name] is State.GONE

    def heard(self, name: str, now_ns: int) -> list[Change]:
        """Something valid came from a neighbour."""
        self._heard_ns[name] = now_ns
        if self._states[name] is State.ALIVE:
            return []
        self._states[name] = State.ALIVE
        self._plan()
        return [Change(name, State.ALIVE)]

    def tick(self, now_ns: int) -> list[Change]:
        """Apply silence; answers with what has changed."""
        changes = []
        for name, state in self._states.items():
            if state is State.GONE:
                continue
            after, silence_ns = AFTER_SILENCE[state]
            if now_ns - self._heard_ns[name] >= silence_ns:
                self._states[name] = after
                changes.append(Change(name, after))
        self._plan()
        return changes

    def _plan(self) -> None:
        self.deadline_ns = min(
            (
                self._heard_ns[name] + AFTER_SILENCE[state][1]
                for name, state in self._states.items()
                if state is not State.GONE
            ),
            default=_NEVER,
        )
