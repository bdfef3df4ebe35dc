"""A session's tables while its recordings are written: what is counted is kept, batch by batch.

A `Following` keeps the blobs of each batch (`tally_blobs`) in a file named by the batch's number,
so that a batch that is done again replaces its predecessor and counts once; after a restart, even a
`kill -9`, all that was counted is found again. Blobs have an order, by recording and byte, and the
digest is made of them in that order, whatever batches brought them: it equals the digest of the job
over the same files. `offset` is how far each recording is read.

A batch may end amid a fragmented datagram. The pieces that wait then (`SliceReport.waiting`) are
kept with the blobs, and passed to the recording's next slice: `waiting` says which they are,
`batch_of` and `fitted` pass them on.

Batches are made outside of it: by `batches_here` in this process, or by Spark's stream. Two writers
into one folder would count twice, so a folder keeps the request that it was begun with (`asked`),
and a piece that another batch has counted is refused.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from feedhandler.characterise.channels import ChannelMap
from feedhandler.characterise.digest import Digest
from feedhandler.characterise.files import shown
from feedhandler.characterise.growing import ContentEnds, Offset, located, news, reach, recordings
from feedhandler.characterise.job import FileAccount, Outcome, Request, note, tally_slice
from feedhandler.characterise.reading import SliceReader, given_up
from feedhandler.characterise.slices import SLICE_BYTES_MAX, CaptureFile, Slice, SliceReport
from feedhandler.characterise.tally_blobs import (
    TallyBlob,
    packed,
    read_blobs,
    write_blobs,
    write_whole,
)
from feedhandler.codecs.errors import DISK_FAULTS, PeerError, UsageError, unwritable

_BATCH = "batch-{:010}.tallies"
_PATTERN = "batch-*.tallies"
_ASKED = "asked.json"


class Following:
    """The tallies of recordings that are still being written; see the module's text.

    `folder` is where batches are kept, made where it is missing; `asked` identifies what is
    counted, in bytes of the caller's choice; `channels`: which lines carry one channel, where
    packets do not say. Raises `UsageError` for a folder that keeps something else or cannot be
    used. `ends`: what `reach` has found of compressed recordings.
    """

    def __init__(self, folder: Path, asked: bytes, channels: ChannelMap | None = None) -> None:
        self.ends = ContentEnds()
        self._folder = folder
        self._channels = channels
        self._digest = Digest(channels)
        #: Whether the digest is to be made anew, of all batches.
        self._stale = False
        self._latest: tuple[str, int] | None = None
        self._batches: dict[int, list[tuple[tuple[str, int], SliceReport]]] = {}
        try:
            self._claim(asked)
            self._read_all()
        except OSError as error:
            if error.errno in DISK_FAULTS:
                raise unwritable(f"to {folder}", error) from None
            raise UsageError(f"cannot use {folder}: {error.strerror}", "check --out") from None

    def _claim(self, asked: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        about = self._folder / _ASKED
        if not about.exists():
            write_whole(about, asked)
        elif about.read_bytes() != asked:
            raise UsageError(
                f"{self._folder.parent} follows something else, or in another way",
                "give another --out, or the same feed, captures, master, choice and version",
            )

    @property
    def last(self) -> int:
        """The highest number of a batch; -1 where there is none."""
        return max(self._batches, default=-1)

    @property
    def offset(self) -> Offset:
        """Bytes read so far of each recording."""
        return _ends_of(self._last_in(self._batches))

    def waiting(self, number: int) -> dict[str, bytes]:
        """Return by recording the pieces of datagrams that wait where batch `number` begins."""
        last = self._last_in(batch for batch in self._batches if batch < number)
        return {name: report.waiting for name, report in last.items() if report.waiting}

    def _last_in(self, numbers: Iterable[int]) -> dict[str, SliceReport]:
        """Return by recording the report of the last slice that these batches have of it."""
        last: dict[str, SliceReport] = {}
        for number in numbers:
            for (name, _), report in self._batches[number]:
                if name not in last or report.ended >= last[name].ended:
                    last[name] = report
        return last

    def store(self, number: int, blobs: Sequence[TallyBlob]) -> None:
        """Store a batch's blobs, in place of an earlier batch of that number; return once on disk.

        Raises `UsageError` where another batch has counted some of it, or the folder cannot be
        written.
        """
        blobs = sorted(blobs, key=lambda each: each.position)
        others = _ends_of(self._last_in(batch for batch in self._batches if batch != number))
        for each in blobs:
            if each.report.began < others.get(each.name, 0):
                raise UsageError(
                    f"{shown(each.name)}: byte {each.report.began:,} was counted before",
                    "another process follows into this folder: give another --out",
                )
        try:
            write_blobs(self._folder / _BATCH.format(number), blobs)
        except OSError as error:
            raise unwritable(f"to {self._folder}", error) from None
        again = number in self._batches
        self._batches[number] = [(blob.position, blob.report) for blob in blobs]
        self._stale = self._stale or again or not self._add(blobs)

    def _add(self, blobs: Sequence[TallyBlob]) -> bool:
        """Add blobs that come behind all that is in the digest; return whether they did."""
        if not blobs:
            return True
        if self._latest is not None and blobs[0].position <= self._latest:
            return False
        for blob in blobs:
            self._digest.add(blob.columns)
            self._digest.resolve()
        self._latest = blobs[-1].position
        return True

    def _read_all(self) -> None:
        """Rebuild the digest from all batches."""
        blobs = []
        self._batches = {}
        for path in sorted(self._folder.glob(_PATTERN)):
            found = read_blobs(path)
            self._batches[int(path.stem[6:])] = [(each.position, each.report) for each in found]
            blobs += found
        self._digest, self._latest = Digest(self._channels), None
        self._add(sorted(blobs, key=lambda each: each.position))
        self._stale = False

    def outcome(self, paths: Sequence[str], *, complete: bool = False) -> Outcome:
        """Return what the job would find in what is read by now.

        `complete`: nothing is being written any more, so an incomplete last record is a fault also
        in the latest file.
        """
        if self._stale:
            self._read_all()
        last = self._last_in(self._batches)
        offset = _ends_of(last)
        accounts = {name: FileAccount(shown(name)) for name in recordings(paths, offset)}
        for reports in self._batches.values():
            for (name, _), report in reports:
                account = accounts.setdefault(name, FileAccount(shown(name)))
                note(account, report)
                account.slices += 1
        names = sorted(accounts)
        for name in names:
            growing = not complete and name == names[-1]
            account = accounts[name]
            _look_behind(account, name, offset.get(name, 0), growing=growing)
            waiting = last[name].waiting if name in last else b""
            if waiting and (account.problem or not growing):
                end = SliceReport(offset[name], offset[name], skipped=given_up(waiting))
                note(account, end)
        return Outcome(self._digest, [accounts[name] for name in names])


def _ends_of(reports: Mapping[str, SliceReport]) -> Offset:
    return {name: report.ended for name, report in reports.items()}


def _look_behind(account: FileAccount, name: str, read: int, *, growing: bool) -> None:
    """Note in the account what keeps the rest of a recording from being read."""
    try:
        file = located(name)
    except (PeerError, UsageError) as error:
        if not account.slices and not growing:
            account.problem = error.message
        return  # the part that was read of a recording that is gone counts
    account.kind, account.size = file.kind, file.size
    if account.slices and file.path == name and not account.problem:
        account.problem = _changed(file, read)
    if file.kind in ("pcap", "content") and not account.problem:
        record = _record_at(file, max(read, len(file.header)))
        account.problem = record.damage or ("" if growing else record.cut)


def _changed(file: CaptureFile, read: int) -> str:
    """Describe what has become of a file that was read up to a byte and is no longer the one that
    was read; empty where it is."""
    if file.kind == "content" or file.size == read:
        return ""
    if file.size < read:
        return f"it has {file.size:,} bytes, but {read:,} were read: another file took its place"
    if file.kind == "pcap":
        return ""
    return f"it grew after it was read whole: what is behind byte {read:,} is not counted"


@functools.lru_cache(maxsize=4_096)
def _record_at(file: CaptureFile, offset: int) -> SliceReport:
    """Read the record at a position of a cuttable capture; return the report."""
    reader = SliceReader(Slice(file, 0, offset, offset + 1))
    for _ in reader.batches():
        pass
    return reader.report


def blob_of(part: Slice, request: Request) -> TallyBlob:
    """Tally one slice as a piece."""
    tallied = tally_slice(part, request)
    return TallyBlob(part.file.path, part.start, tallied.report, packed(tallied.columns))


def batch_of(
    slices: Iterable[Slice], waiting: dict[str, bytes], request: Request
) -> list[TallyBlob]:
    """Tally slices in their order, each with the pieces of datagrams that wait before it.

    `waiting`: as `Following.waiting` has it; it is brought up to the end of the slices.
    """
    blobs = []
    for part in slices:
        name = part.file.path
        blob = blob_of(structs.replace(part, waiting=waiting.get(name, b"")), request)
        waiting[name] = blob.report.waiting
        blobs.append(blob)
    return blobs


def fitted(
    blobs: Iterable[TallyBlob], waiting: dict[str, bytes], request: Request
) -> list[TallyBlob]:
    """Tally again what was tallied without the pieces that wait before it, as workers do; the other
    blobs stay.

    `waiting`: as in `batch_of`. Raises `UsageError` where a recording is gone meanwhile.
    """
    made = []
    for blob in sorted(blobs, key=lambda each: each.position):
        if blob.report.began_with != waiting.get(blob.name, b""):
            part = Slice(located(blob.name), 0, blob.start, blob.report.ended, growing=True)
            (blob,) = batch_of([part], waiting, request)
        waiting[blob.name] = blob.report.waiting
        made.append(blob)
    return made


def batches_here(
    following: Following, paths: Sequence[str], request: Request, *, complete: bool = False
) -> Iterator[int]:
    """Take what is new, batch by batch, until nothing new is there; yield each batch's number."""
    while True:
        known = following.offset
        reached = reach(paths, known, complete=complete, ends=following.ends)
        slices = news(known, reached, SLICE_BYTES_MAX)
        if not slices:
            return
        number = following.last + 1
        following.store(number, batch_of(slices, following.waiting(number), request))
        yield number
