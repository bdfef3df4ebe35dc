"""Work that is done in shares, so that no client keeps the event loop from the others and the feed.

What it is for: what clients ask for costs units. `try_spend` spends some of what a turn of the loop
has, `spend` charges for work whose cost is known only afterwards; a caller that gets none calls
`wait` and is called again in a later turn, in rotation.

What it promises: a turn spends `units_max` and one more piece of work at most; no caller waits for
ever, whatever others ask for; nothing is scheduled while there is no work.

What it leaves to others: sockets and clocks; `call_soon` is the loop's.
"""

from collections import deque
from collections.abc import Callable

#: What all connections of a node may spend in one turn: some milliseconds' work.
TURN_UNITS = 256
#: What one connection may spend before the others have their share.
CONNECTION_UNITS = 128
#: What a link that attaches costs: it is checked and gets a quality message of every service; its
#: address is parsed and matched, by its length.
ATTACH_UNITS = 4
ADDRESS_CHARS_PER_UNIT = 64
#: What it costs to accept a client, to read from it, and to end its connection.
ACCEPT_UNITS = 16
READ_UNITS = 2
END_UNITS = 8
#: Frames that are read for one unit.
FRAMES_PER_UNIT = 2
#: What reading costs during the TLS handshake: a signature takes a millisecond.
HANDSHAKE_UNITS = 32
#: Sessions that are freed with their connection for one unit.
SESSIONS_PER_UNIT = 8


def attach_units(address: str) -> int:
    """Return what attaching to this address costs, in units."""
    return ATTACH_UNITS + len(address) // ADDRESS_CHARS_PER_UNIT


def read_units(frames: int, agreeing: bool) -> int:
    """Return what reading so many frames has cost, in units; `agreeing`: during the TLS
    handshake."""
    return READ_UNITS + (HANDSHAKE_UNITS if agreeing else frames // FRAMES_PER_UNIT)


class WorkBudget:
    """Units of work for each turn of the loop, and what waits for units; see the module."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], units_max: int) -> None:
        self.left = units_max
        self._call_soon = call_soon
        self._units_max = units_max
        self._waiting: deque[Callable[[], None]] = deque()
        self._first: list[Callable[[], None]] = []
        self._due = False

    def try_spend(self, units: int) -> bool:
        """Spend units of this turn; return False, and spend none, where it has none left."""
        if self.left <= 0:
            return False
        self.left -= units
        self._have_another()
        return True

    def spend(self, units: int) -> None:
        """Charge units for work that was done already."""
        if units > 0:
            self.left -= units
            self._have_another()

    def wait(self, work: Callable[[], None]) -> None:
        """Schedule `work` for the next turn that has units left, behind those that wait."""
        self._waiting.append(work)
        self._have_another()

    @property
    def half_left(self) -> bool:
        """Whether this turn has more than half of its units left."""
        return 2 * self.left > self._units_max

    def wait_first(self, work: Callable[[], None]) -> None:
        """Schedule `work` for the start of the next turn; it takes units while `half_left`."""
        self._first.append(work)
        self._have_another()

    def _have_another(self) -> None:
        if not self._due:
            self._due = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        """Begin the next turn: call what waits, as far as its units last."""
        self._due = False
        self.left = self._units_max
        first, self._first = self._first, []
        for work in first:
            work()
        for _ in range(len(self._waiting)):
            if self.left <= 0:
                break
            self._waiting.popleft()()
        if self._waiting:
            self._have_another()
