"""From capture files to the selected datagrams: the source that a player reads.

A `Pipeline` is a source like a `Capture`: `batches()` yields batches, from the beginning. On its
way a batch goes through stages, functions from batch to batch that work on columns and never on
single datagrams: datagrams are selected (`selection`), captures are merged by time if asked
(`merge`), times are moved so that captures and passes follow one another (`timeline`), and numbers
go on from pass to pass (`renumbering`).

Memory is bounded by a batch, and for a merge by what `merge` holds. A pipeline may be read again
and again; what it counted is of the latest reading.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.codecs.feed import Feed
from feedhandler.replay.captures.reading import (
    Capture,
    Datagram,
    DatagramBatch,
    Truncation,
    address_text,
)
from feedhandler.replay.playing.merge import Merger
from feedhandler.replay.playing.renumbering import Renumberer
from feedhandler.replay.playing.selection import LeftOut, Selection, Selector, with_headers
from feedhandler.replay.playing.timeline import Timeline

#: How far behind the end of its window a recording is read on: so much later a datagram may stand
#: in the file than its time says.
WINDOW_SLACK_NS = 1_000_000_000


class BatchSource(Protocol):
    """Source that a player plays without looking at single datagrams."""

    @property
    def share_done(self) -> float:
        """Share of everything that the running reading has read, 0.0 to 1.0."""
        ...

    @property
    def truncation(self) -> Truncation | None:
        """Position at which the latest reading found the source cut short."""
        ...

    def batches(self) -> Iterator[DatagramBatch]:
        """Yield all datagrams, from the beginning."""
        ...


class Pipeline:
    """Captures, and the processing of their datagrams before sending; see the module's text.

    `captures`: at least one, played in turn, or with `merge` together, by their times. `selection`:
    criteria for datagrams. `passes`: how often all that is played, 0: for ever. `feed`: whose
    packets they hold; needed to choose by service or number and to play several times, and then
    every batch has `headers`, as it has with `headers` True. `left_out` counts what the latest
    reading has not taken, by reason; `passes_begun` says in which pass it is, `share_before` what
    `share_done` was before what was read last, `late` how many datagrams stood too far out of
    order for the merge, `dropped_resets` how many resets were not repeated. A capture that is
    damaged in the middle is played up to there; `damages` has the error by its path.
    Raises `UsageError` for what needs a feed and has none.
    """

    def __init__(
        self,
        captures: Sequence[Capture],
        *,
        selection: Selection | None = None,
        feed: Feed | None = None,
        merge: bool = False,
        passes: int = 1,
        headers: bool = False,
        from_ns: int | None = None,
    ) -> None:
        if not captures:
            raise UsageError("there is nothing to play", "give at least one capture")
        if passes != 1 and feed is None:
            raise UsageError(
                "a loop goes on with the feed's sequence numbers", "name the feed with --feed"
            )
        if passes != 1 and feed is not None and feed.table.fix:
            raise UsageError(
                "a loop goes on with the sequence numbers, and those of FIX messages are text",
                "play it once, or publish the capture: `feedhandler fixcast publish`",
            )
        self.captures = tuple(captures)
        self.selection = selection or Selection()
        self.feed = feed
        self.merge = merge
        self.passes = passes
        self.passes_begun = 0
        self.share_before = 0.0
        self.late = 0
        self.dropped_resets = 0
        self.damages: dict[Path, PeerError] = {}
        self._headers = headers
        # Where the first pass begins, after a seek; later ones begin at the selection's own.
        self._from_ns = from_ns
        self._table = feed.table if feed is not None else None
        self._selector = Selector(self.selection, self._table)
        self._current = 0

    def __iter__(self) -> Iterator[Datagram]:
        for batch in self.batches():
            yield from batch.datagrams()

    @property
    def left_out(self) -> dict[LeftOut, int]:
        """Counts of what the latest reading skipped."""
        return self._selector.left_out

    @property
    def share_done(self) -> float:
        """Share of all passes that has been read, 0.0 to 1.0; for ever: of this one."""
        shares = [capture.share_done for capture in self.captures]
        if not self.merge:
            shares = [1.0] * self._current + [shares[self._current]]
        share = sum(shares) / len(self.captures)
        if self.passes <= 1:
            return share
        return (max(0, self.passes_begun - 1) + share) / self.passes

    @property
    def truncation(self) -> Truncation | None:
        """Position at which the latest reading found the first cut file cut."""
        return next((capture.truncation for capture in self.captures if capture.truncation), None)

    def starting_at(self, time_ns: int, pass_number: int | None = None) -> "Pipeline":
        """Return a copy that begins at the recorded time `time_ns` of the pass `pass_number`.

        The default is the pass that is being read; the passes after it follow."""
        begun = pass_number or max(1, self.passes_begun)
        left = self.passes and self.passes - begun + 1
        return Pipeline(
            [Capture(capture.path) for capture in self.captures],
            selection=self.selection,
            feed=self.feed,
            merge=self.merge,
            passes=left,
            headers=self._headers,
            from_ns=time_ns,
        )

    def once(self) -> "Pipeline":
        """Return a copy of a single pass, in order to examine the content."""
        return Pipeline(self.captures, selection=self.selection, feed=self.feed, merge=self.merge)

    def batches(self) -> Iterator[DatagramBatch]:
        """Yield the selected datagrams; no batch is empty."""
        selector = Selector(self._selection_of_pass(True), self._table)
        timeline = Timeline()
        renumberer = self._renumberer()
        self.passes_begun, self._selector, self.late, self.dropped_resets = 1, selector, 0, 0
        self.share_before = 0.0
        while True:
            any_left = False
            for batch in self._chosen(timeline):
                placed = timeline(batch)
                if renumberer is not None:
                    placed = renumberer(placed)
                    self.dropped_resets = renumberer.dropped_resets
                any_left = any_left or len(batch) > 0
                if len(placed):
                    yield dataclasses.replace(placed, pass_number=self.passes_begun)
            if self.passes_begun == self.passes or not any_left:
                return
            renumberer = self._begin_again(timeline, renumberer)

    def _renumberer(self) -> Renumberer | None:
        return Renumberer(self._table) if self.passes != 1 and self._table is not None else None

    def _begin_again(self, timeline: Timeline, renumberer: Renumberer | None) -> Renumberer | None:
        """End one pass and begin the next, with the numbering that it needs."""
        left_out = self._selector.left_out
        self._selector = Selector(self._selection_of_pass(False), self._table)
        if self.passes_begun == 1 and self._from_ns is not None:
            # The first pass was not a whole one: what numbers a whole one has is still to be seen.
            renumberer = self._renumberer()
            for batch in self._chosen(Timeline()):
                if renumberer is not None:
                    renumberer.learn(batch)
        self._selector.left_out = left_out
        self.passes_begun += 1
        timeline.begin(again=True)
        if renumberer is not None:
            renumberer.next_pass()
        return renumberer

    def _selection_of_pass(self, first: bool) -> Selection:
        asked = self.selection
        if not first or self._from_ns is None:
            return asked
        begins = [each for each in (asked.from_ns, self._from_ns) if each is not None]
        return dataclasses.replace(asked, from_ns=max(begins))

    def _chosen(self, timeline: Timeline) -> Iterator[DatagramBatch]:
        """Yield one pass: the selected part of the captures, in turn or together."""
        if self.merge:
            timeline.begin()
            merger = Merger([self._of_capture(capture) for capture in self.captures])
            for batch in merger:
                yield batch
            self.late += merger.late
            return
        found = False
        for number, capture in enumerate(self.captures):
            self._current = number
            timeline.begin()
            if found and self._from_ns is not None:
                # The time that was sought is passed: what follows is meant from its beginning.
                before = self._selector.left_out
                self._selector = Selector(self.selection, self._table)
                self._selector.left_out = before
            for batch in self._of_capture(capture):
                found = True
                yield batch

    def _of_capture(self, capture: Capture) -> Iterator[DatagramBatch]:
        """Yield the selected datagrams of one capture, up to damage or past the window."""
        for batch in self._readable(capture):
            chosen = self._selector(batch)
            if len(chosen):
                if self._headers and self._table is not None:
                    chosen = with_headers(chosen, self._table)
                yield chosen
            elif self._is_past(batch):
                break

    def _readable(self, capture: Capture) -> Iterator[DatagramBatch]:
        try:
            for batch in capture.batches():
                yield batch
                self.share_before = self.share_done
        except PeerError as error:
            self.damages[capture.path] = error

    def _is_past(self, batch: DatagramBatch) -> bool:
        """Return whether no later batch can be before the window's end."""
        until_ns = self.selection.until_ns
        return until_ns is not None and int(batch.time_ns.min()) >= until_ns + WINDOW_SLACK_NS


def first_time_ns(captures: Sequence[Capture]) -> int:
    """Return the earliest of the captures' first times (ns since 1970 UTC), 0 for none."""
    firsts = []
    for capture in captures:
        with contextlib.suppress(PeerError):  # a later reader reports the damage
            batch = next(capture.batches(), None)
            if batch is not None:
                firsts.append(int(batch.time_ns[0]))
    return min(firsts, default=0)


def endpoints(source: BatchSource) -> list[tuple[str, int]]:
    """Return the groups and ports of all datagrams, in rising order; reads the whole source."""
    found: set[int] = set()
    for batch in source.batches():
        endpoint: np.ndarray[Any, Any] = batch.destination.astype(np.int64) << 16
        found.update(np.unique(endpoint | batch.destination_port).tolist())
    return [(address_text(number >> 16), number & 0xFFFF) for number in sorted(found)]
