"""`feedhandler replay --dry-run` and `--write`: what would be sent, printed or as a capture."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedhandler.replay.captures.writer import CaptureWriter
from feedhandler.replay.playing.block_records import RecordMaker
from feedhandler.replay.playing.blocks import Block, Preparer, all_blocks
from feedhandler.replay.playing.forecast import Forecast, Outlook
from feedhandler.replay.playing.frame_headers import Destination
from feedhandler.replay.playing.pipeline import Pipeline
from feedhandler.replay.playing.sender_lines import MulticastLine, number_lines
from feedhandler.replay.playing.senders import FrameSettings
from feedhandler.replay.playing.source import Chunk, chunks_of
from feedhandler.replay.playing.time_spec import rfc3339_text
from feedhandler.terminal.captures import held_in_part, not_read, read_slowly
from feedhandler.terminal.console import host_faults, print_json, progress, stdout_console
from feedhandler.terminal.fitted import FittedTable
from feedhandler.terminal.outputs import refuse_existing, refuse_input


@dataclasses.dataclass
class Plan:
    """A replay that is not sent.

    `keeps_times`: a written file begins when the recording did, not now.
    """

    source: Pipeline
    lines: list[MulticastLine]
    preparer: Preparer
    title: str
    as_json: bool
    keeps_times: bool = True

    def report(self) -> None:
        """Print what would be sent."""
        numbered = number_lines(self.lines)
        forecast = Forecast(numbered, [line.name for line in self.lines])
        for block in self._blocks(time.time_ns()):
            forecast.add(block)
        outlook = forecast.outlook()
        if self.as_json:
            print_json(self._as_json(outlook))
        else:
            self._print(outlook)

    def write(self, path: Path, settings: FrameSettings, overwrite: bool) -> None:
        """Write what would be sent to `path`. Raises `UsageError` where that would lose a file."""
        refuse_input(path, *(Path(capture.path) for capture in self.source.captures))
        refuse_existing(overwrite, path)
        maker = RecordMaker(
            [
                Destination(group, port, settings.source_mac, settings.source_ip)
                for _, group, port in number_lines(self.lines).destinations
            ]
        )
        chunks = self._chunks()
        first = next(chunks, None)
        begins_ns = time.time_ns()
        if self.keeps_times and first is not None:
            begins_ns = int(first.time_ns[0])
        with host_faults(), CaptureWriter(path) as writer:
            for block in self._blocks(begins_ns):
                if len(block):
                    writer.write_records(maker.records(block, begins_ns), len(block))
        report = {"written": str(path), "datagrams": writer.records, "left_out": self._left_out()}
        report["read_slowly"] = read_slowly(self.source.captures)
        report["held_in_part"] = held_in_part(self.source.captures)
        if self.as_json:
            print_json(report)
            return
        print(f"replay: {writer.records:,} datagrams written to {path}")
        self._print_left_out()

    def _chunks(self) -> Iterator[Chunk]:
        channels = number_lines(self.lines).channels
        return chunks_of(self.source, None, channels, [line.name for line in self.lines])

    def _blocks(self, begins_ns: int) -> Iterator[Block]:
        with progress(f"planning {self.title}", total=1.0) as advance:
            for block in all_blocks(self.preparer, self._chunks(), begins_ns):
                advance(completed=block.share_done)
                yield block

    def _left_out(self) -> dict[str, int]:
        return left_out(self.source, self.preparer.unmapped)

    def _faults(self) -> dict[str, dict[str, int]]:
        return {
            line.name: {
                "dropped": counts.dropped,
                "duplicated": counts.duplicated,
                "reordered": counts.reordered,
            }
            for line, counts in zip(self.lines, self.preparer.injector.counts, strict=True)
        }

    def _as_json(self, outlook: Outlook) -> dict[str, Any]:
        report = dataclasses.asdict(outlook)
        if not self._has_schedule:
            report["duration_ns"] = None
            report["peaks"] = report["peaks_of"] = {}
        return {
            "captures": [str(capture.path) for capture in self.source.captures],
            "pace": str(self.preparer.pace),
            **report,
            "faults": self._faults(),
            "left_out": self._left_out(),
            "read_slowly": read_slowly(self.source.captures),
            "held_in_part": held_in_part(self.source.captures),
        }

    @property
    def _has_schedule(self) -> bool:
        return self.preparer.pace.has_schedule

    def _print(self, outlook: Outlook) -> None:
        seconds = outlook.duration_ns / 1e9
        long = f"in {seconds:,.3f} s" if self._has_schedule else "as fast as it goes"
        print(
            f"replay of {self.title}: {outlook.datagrams:,} datagrams, {outlook.payload_bytes:,} "
            f"payload bytes, {outlook.frame_bytes:,} as frames, {long} ({self.preparer.pace})"
        )
        if outlook.datagrams:
            begins, ends = outlook.recorded_from_ns, outlook.recorded_until_ns
            print(f"  recorded {rfc3339_text(begins)} to {rfc3339_text(ends)}")
        if self._has_schedule:
            for window, peak in outlook.peaks.items():
                print(
                    f"  peak within {window}: {peak.datagrams_per_second:,.0f} datagrams/s, "
                    f"{peak.frame_bits_per_second / 1e6:,.1f} Mbit/s"
                )
        self._print_rows(outlook)
        for name, faults in self._faults().items():
            if any(faults.values()):
                text = ", ".join(f"{count:,} {fault}" for fault, count in faults.items() if count)
                print(f"  line {name}: {text}")
        self._print_left_out()

    def _print_rows(self, outlook: Outlook) -> None:
        table = FittedTable(
            ("line", "group:port"),
            ("service", "datagrams", "bytes", "first s", "last s", "peak/s in 10ms", "in 1s"),
            drop_first=("first s", "last s", "bytes"),
        )
        for row in outlook.rows:
            where = f"{row.group}:{row.port}"
            peaks = [
                f"{peak.datagrams_per_second:,.0f}" for peak in outlook.peaks_of[where].values()
            ]
            table.add_row(
                row.line,
                where,
                "-" if row.service is None else str(row.service),
                f"{row.datagrams:,}",
                f"{row.payload_bytes:,}",
                f"{row.first_ns / 1e9:.6f}",
                f"{row.last_ns / 1e9:.6f}",
                *(peaks if self._has_schedule else ("-", "-")),
            )
        stdout_console().print(table)

    def _print_left_out(self) -> None:
        print_left_out(self.source, self.preparer.unmapped)


def left_out(source: Pipeline, unmapped: int) -> dict[str, int]:
    """Count what of the captures is not sent, by reason; `unmapped` of it belong to no line."""
    reasons = {reason.value: count for reason, count in source.left_out.items()}
    if source.dropped_resets:
        reasons["resets that a loop does not repeat"] = source.dropped_resets
    if unmapped:
        reasons["on no line"] = unmapped
    reasons |= {f"no datagram: {why}": count for why, count in not_read(source.captures).items()}
    return reasons


def print_left_out(source: Pipeline, unmapped: int) -> None:
    """Print `left_out`, what was read slowly or in part, and what could not be put in order."""
    for how, count in read_slowly(source.captures).items():
        print(f"  read slowly: {count:,} {how}")
    if cut := held_in_part(source.captures):
        print(f"  only their beginning was recorded, and goes on: {cut:,}")
    for reason, count in left_out(source, unmapped).items():
        print(f"  left out: {count:,} {reason}")
    if source.late:
        print(f"  too far out of order to be merged in place: {source.late:,}")
