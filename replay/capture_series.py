"""Several captures as one: the files of a recorder that rotates, played or read in turn.

`CaptureSeries` has what a player needs of a `Capture`. Files come in the order given; a cut file
(its writer was killed) is read to its last whole record, and the next one follows. `endpoints`
tells to which groups and ports a capture's datagrams went.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from feedhandler.replay.capture import (
    Capture,
    Datagram,
    DatagramBatch,
    Truncation,
    address_text,
)


class CaptureSeries:
    """`captures` one after the other; each iteration is a new pass from the beginning."""

    def __init__(self, captures: Sequence[Capture]) -> None:
        self.captures = tuple(captures)
        self._current = 0

    def __iter__(self) -> Iterator[Datagram]:
        for batch in self.batches():
            yield from batch.datagrams()

    @property
    def share_done(self) -> float:
        """How much of all files the running pass has read, 0.0 to 1.0."""
        return (self._current + self.captures[self._current].share_done) / len(self.captures)

    @property
    def truncation(self) -> Truncation | None:
        """Where the latest pass found the first cut file cut."""
        return next((each.truncation for each in self.captures if each.truncation), None)

    def batches(self) -> Iterator[DatagramBatch]:
        """All datagrams in batches. Raises as `Capture.batches` does."""
        for number, capture in enumerate(self.captures):
            self._current = number
            yield from capture.batches()


def endpoints(source: Capture | CaptureSeries) -> list[tuple[str, int]]:
    """The groups and ports that datagrams went to, in rising order: one pass over everything."""
    found: set[int] = set()
    for batch in source.batches():
        place: np.ndarray[Any, Any] = batch.destination.astype(np.int64) << 16
        found.update(np.unique(place | batch.destination_port).tolist())
    return [(address_text(number >> 16), number & 0xFFFF) for number in sorted(found)]
