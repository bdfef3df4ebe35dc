"""The reading side of a player: blocks prepared ahead on a thread of their own.

`BlockPrefetcher` keeps a few blocks (`PREFETCH_BLOCKS`) ready for the sender. A *turn* is the
source read from some position to its end; `turn_to` ends it and begins another one with other
chunks. The schedule's anchor is set once a turn, when its first chunk has been read. Each block in
the queue carries its turn's number, so that the sender can skip those of an earlier turn.
"""

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator

from feedhandler.replay.playing.blocks import Block, Preparer
from feedhandler.replay.playing.source import Chunk

#: Blocks prepared ahead of the sender.
PREFETCH_BLOCKS = 4
#: From the anchor being set to the first datagram, so that it is not late already: in between the
#: first block is prepared and handed over.
START_LEAD_NS = 30_000_000
#: How often the reading thread looks for an end or another turn while the sender is busy.
POLL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Ready:
    """Input of the sender: a block of a turn; after the last one None; or the error."""

    turn: int
    anchor_ns: int
    block: Block | None = None
    error: BaseException | None = None


class BlockPrefetcher:
    """Prepares blocks of `chunks` on a thread; see the module's text.

    `shift_ns` returns how long the sender's clock has stood still so far (its pauses): due times
    are after an anchor on the monotonic clock less that.
    """

    def __init__(
        self, preparer: Preparer, chunks: Iterator[Chunk], shift_ns: Callable[[], int]
    ) -> None:
        self.turn = 0
        self._preparer = preparer
        self._chunks = chunks
        self._shift_ns = shift_ns
        self._ready: queue.Queue[Ready] = queue.Queue(PREFETCH_BLOCKS)
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="replay-read", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def end(self) -> None:
        """Read no further; returns when the thread has ended."""
        self._ended = True
        self._news.set()
        self._thread.join()

    def turn_to(self, chunks: Iterator[Chunk]) -> int:
        """Go on with these chunks, under a new anchor; answers with the new turn's number."""
        with self._lock:
            self.turn += 1
            self._chunks = chunks
            self._news.set()
            return self.turn

    def next(self, timeout_s: float) -> Ready | None:
        """Return what is to be sent next; None where nothing is ready within the time."""
        try:
            return self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _work(self) -> None:
        while not self._ended:
            with self._lock:
                self._news.clear()
                turn, chunks = self.turn, self._chunks
            # An end that came in between has set the event for nothing.
            if not self._ended:
                self._read(turn, chunks)
                self._news.wait()

    def _read(self, turn: int, chunks: Iterator[Chunk]) -> None:
        """Read one turn to its end, or until there is another one."""
        anchor_ns = 0
        try:
            for chunk in chunks:
                shift_ns = self._shift_ns()
                if not anchor_ns:
                    anchor_ns = time.monotonic_ns() + START_LEAD_NS - shift_ns
                    self._preparer.begin(time.time_ns() + START_LEAD_NS - shift_ns)
                if not self._put(Ready(turn, anchor_ns, self._preparer.block(chunk, shift_ns))):
                    return
            anchor_ns = anchor_ns or time.monotonic_ns() - self._shift_ns()
            if self._put(Ready(turn, anchor_ns, self._preparer.last_block())):
                self._put(Ready(turn, anchor_ns))
        except BaseException as error:
            self._put(Ready(turn, anchor_ns, error=error))

    def _put(self, ready: Ready) -> bool:
        """Hand it to the sender; return False where the reading has ended or turned."""
        while not self._ended and self.turn == ready.turn:
            try:
                self._ready.put(ready, timeout=POLL_S)
                return True
            except queue.Full:
                continue
        return False
