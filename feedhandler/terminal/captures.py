"""Captures as the commands open them: a file that is no capture is the caller's mistake."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from feedhandler.codecs.errors import PeerError, UsageError
from feedhandler.replay.captures.reading import Capture, Datagram, DatagramBatch
from feedhandler.terminal.console import complain


def open_capture(path: Path) -> Capture:
    """Open the capture at `path`. Raises `UsageError` where it is missing or no capture."""
    try:
        return Capture(path)
    except PeerError as error:
        raise UsageError(error.message, error.hint) from None


def open_captures(paths: Sequence[Path]) -> list[Capture]:
    """Open all captures. Raises as `open_capture` does."""
    return [open_capture(path) for path in paths]


def read_slowly(captures: Sequence[Capture]) -> dict[str, int]:
    """Count the datagrams that dpkt has read, by what made them slow (`slow_frames`)."""
    slowly: dict[str, int] = {}
    for capture in captures:
        for how, count in capture.statistics.slowly.items():
            slowly[how] = slowly.get(how, 0) + count
    return slowly


def not_read(captures: Sequence[Capture]) -> dict[str, int]:
    """Count the records that held no readable datagram, by reason."""
    reasons: dict[str, int] = {}
    for capture in captures:
        for skip, count in capture.statistics.skipped.items():
            name = skip.name.lower().replace("_", " ")
            reasons[name] = reasons.get(name, 0) + count
    return reasons


def held_in_part(captures: Sequence[Capture]) -> int:
    """Count the datagrams of which the captures hold only the beginning."""
    return sum(capture.statistics.cut_payloads for capture in captures)


def complain_of_parts(count: int, prefix: str = "") -> None:
    """Report on stderr so many datagrams that were not recorded to their end, if there are any."""
    if count:
        complain(
            f"{prefix}datagrams of which only the beginning was recorded: {count:,}",
            "record whole packets: tcpdump -s 0",
        )


def report_reading(capture: Capture) -> None:
    """Report on stderr what of the capture was read slowly, in part, and what not at all."""
    slowly, skipped = read_slowly([capture]), not_read([capture])
    if slowly:
        text = ", ".join(f"{count:,} {how}" for how, count in slowly.items())
        complain(f"{capture.path}: datagrams read slowly, by what they were in: {text}")
    complain_of_parts(held_in_part([capture]), f"{capture.path}: ")
    if skipped:
        text = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        complain(f"{capture.path}: records without a datagram that can be read: {text}")


def complain_if_cut(capture: Capture) -> bool:
    """Report a capture that is cut short; return whether it is."""
    if capture.truncation is None:
        return False
    complain(f"{capture.path}: {capture.truncation}", "all before it was read")
    return True


class ReadablePart:
    """The datagrams of a capture up to its damage, if it has any; moves a progress bar along."""

    def __init__(self, capture: Capture, advance: Any) -> None:
        self._capture = capture
        self._advance = advance
        self._damage: PeerError | None = None

    def __iter__(self) -> Iterator[Datagram]:
        for batch in self.batches():
            yield from batch.datagrams()

    def batches(self) -> Iterator[DatagramBatch]:
        """Yield the datagrams in batches."""
        try:
            for batch in self._capture.batches():
                self._advance(completed=self._capture.share_done)
                yield batch
        except PeerError as error:
            self._damage = error

    def complain_of_rest(self) -> bool:
        """Report a capture that is cut short or damaged; return whether it is."""
        if self._damage is not None:
            complain(self._damage.message, "all before it was read")
            return True
        return complain_if_cut(self._capture)
