"""`feedhandler queue`: show and verify a queue's contents, cancel or move items, repair.

`stat`, `list` and `verify` only read and may run beside the queue's owner; what they find is as of
some moment while they read. The others open the queue, so its owner has to be stopped.
"""

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from feedhandler.amqp.durable.sections import shown
from feedhandler.amqp.durable.values import SectionError
from feedhandler.codecs.errors import FeedhandlerError, PeerError, UsageError, unwritable
from feedhandler.journal import BlockingQueue, Item
from feedhandler.journal.block import pending_slots
from feedhandler.journal.files import Files
from feedhandler.journal.layout import Status
from feedhandler.journal.owner import Owner, owner_of
from feedhandler.journal.reading import SegmentReader
from feedhandler.journal.recovery import Recovered, read_control, recover
from feedhandler.journal.repair import repair as mend
from feedhandler.journal.settings import QueueSettings
from feedhandler.journal.verify import Verified
from feedhandler.journal.verify import verify as check
from feedhandler.keyed.envelope import message_in
from feedhandler.keyed.kept import read_definition
from feedhandler.terminal.console import ExitCode, complain, host_faults, print_json, progress

#: Times that a queue is read: one that is being written may look wrong for a moment.
LOOKS = 5
#: Items that are drained between two syncs of the file they go to.
DRAINED = 256

Answer = TypeVar("Answer", Recovered, Verified)


@contextlib.contextmanager
def _file_faults() -> Iterator[None]:
    """Make files that cannot be used a finding (`FOUND`): a queue's folder is no other side."""
    try:
        yield
    except PeerError as error:
        raise FeedhandlerError(error.message, error.hint) from error


@_file_faults()
def stat(path: Path, as_json: bool) -> int:
    """Print a queue's figures; `FOUND` where its files have problems."""
    found = _settled(path, lambda files, advance: recover(files, str(path), advance), _problems)
    figures = _figures(path, found)
    if as_json:
        print_json(figures)
    else:
        for name, value in figures.items():
            print(f"{name:16}{value:,}" if isinstance(value, int) else f"{name:16}{value}")
    return _report(found.report.problems)


@_file_faults()
def list_items(path: Path, limit: int, as_json: bool) -> int:
    """Print the items that are pending, oldest first; `FOUND` where files have problems."""
    found = _settled(path, lambda files, advance: recover(files, str(path), advance), _problems)
    left = limit
    whole = _whole_of(path)
    for item in map(whole, _pending(found)):
        if left <= 0:
            break
        left -= 1
        print_json(_readable(item)) if as_json else print(f"{item.id:>12}  {_text(item.content)}")
    return _report(found.report.problems)


@_file_faults()
def verify(path: Path, as_json: bool) -> int:
    """Check whether every byte in use verifies; `FOUND` where one does not."""
    found = _settled(
        path, lambda files, advance: check(files, str(path), advance), lambda one: one.problems
    )
    if as_json:
        fields = dataclasses.asdict(dataclasses.replace(found, recovered=None))  # type: ignore
        del fields["recovered"]
        print_json(fields)
    else:
        print(
            f"{found.blocks} blocks, {found.segments:,} segments, {found.items:,} items"
            f" ({found.pending:,} pending), {found.bytes:,} bytes: "
            + (f"{len(found.problems)} things do not verify" if found.problems else "all verify")
        )
    return _report(found.problems)


@_file_faults()
def cancel(path: Path, numbers: Sequence[int], everything: bool) -> int:
    """Cancel items by their ids, or all that are pending."""
    if everything == bool(numbers):
        raise UsageError("cancel what?", "name ids, or --all")
    with _opened(path) as queue, host_faults():
        if everything:
            cancelled, forward = queue.cancel_all()
            print(f"{len(cancelled):,} cancelled, {len(forward):,} delivered ones to be forwarded")
            return ExitCode.OK
        answers = {number: queue.cancel(number).name.lower() for number in numbers}
    for number, answer in answers.items():
        print(f"{number:>12}  {answer}")
    return ExitCode.OK if set(answers.values()) == {"cancelled"} else ExitCode.FOUND


@_file_faults()
def drain(path: Path, out: Path) -> int:
    """Move every pending item into a file of JSON lines.

    An item is marked as delivered once the file has it on disk.
    """
    total, whole = 0, _whole_of(path)
    with _opened(path) as queue, _appended(out) as file, host_faults():
        Files().sync_folder(str(out.parent))  # the file's name may be new
        pending = queue.statistics()["pending"]
        with progress(f"draining {path}", total=pending) as advance:
            while items := queue.get_many(DRAINED, 0):
                file.writelines(json.dumps(_readable(whole(item))) + "\n" for item in items)
                file.flush()
                os.fsync(file.fileno())
                queue.delivered(*(item.id for item in items))
                total += len(items)
                advance(completed=total)
    print(f"{total:,} items moved to {out}")
    return ExitCode.OK


@_file_faults()
def repair(path: Path, folders: Sequence[Path]) -> int:
    """Repair control file, headers and tails, then recover; print what was lost."""
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder")
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder", "--path names folders that have blocks")
    candidates = list(_candidates(path, folders))
    if not candidates and not (path / "control").is_file():
        raise UsageError(f"{path}: no queue here", "name all its folders with --path")
    owner = Owner(str(path))
    files = Files()
    try:
        with host_faults():
            done = mend(files, str(path), candidates)
    finally:
        files.close()
        owner.release()
    for line in done:
        print(line)
    with _opened(path) as queue, host_faults():
        report = queue.engine.report
        pending = queue.statistics()["pending"]
    print(
        f"{pending:,} items pending; {report.items_damaged} items and {report.changes_damaged}"
        " status records could not be read"
    )
    return _report(report.problems)


# -- reading ----------------------------------------------------------------------------------


def _settled(
    path: Path,
    look: Callable[[Files, Callable[[int], None]], Answer],
    problems: Callable[[Answer], list[str]],
) -> Answer:
    """Return what `look` finds; look again where a queue that is open seems wrong.

    A problem counts only if every look finds it: any other was a write in progress.
    """
    _check_there(path)
    steady: list[str] | None = None
    for turn in range(1, LOOKS + 1):
        files = Files(read_only=True)
        try:
            total = len(read_control(files, str(path)).blocks)
            with progress(f"reading {path}", total=total) as advance, host_faults():
                done = itertools.count(1)
                show: Callable[..., None] = advance
                found = look(files, lambda _: show(completed=next(done)))  # noqa: B023
            if not owner_of(str(path)):
                return found
            wrong = problems(found)
            steady = [text for text in wrong if steady is None or text in steady]
            if turn == LOOKS or not steady:
                wrong[:] = steady
                return found
        except FeedhandlerError:
            if turn == LOOKS or not owner_of(str(path)):
                raise
        finally:
            files.close()
    raise AssertionError("the last look answers or raises")


def _check_there(path: Path) -> None:
    if not (path / "control").is_file():
        raise UsageError(f"{path}: no queue here", "name the folder with the file `control`")


def _problems(found: Recovered) -> list[str]:
    return found.report.problems


def _figures(path: Path, found: Recovered) -> dict[str, Any]:
    """Return a queue's figures, read from its files."""
    counts = {status.name.lower(): 0 for status in Status}
    for block in found.live:
        for status in Status:
            counts[status.name.lower()] += block.statuses.count(status)
    return {
        "owner": owner_of(str(path)) or "nobody",
        **counts,
        "next_id": found.next_id,
        "blocks": len(found.blocks),
        "blocks_free": sum(not block.active for block in found.blocks),
        "block_bytes": found.geometry.block_bytes,
        "format": found.control.version,
        "marked": sum(block.marked for block in found.live),
        "producers": len(found.producers.latest),
        "forgotten": found.producers.forgotten,
        "segments": found.sequence,
        "rolled_forward": found.report.segments,
    }


def _pending(found: Recovered) -> Iterator[Item]:
    """Yield pending items; skip slots that the owner has reused meanwhile."""
    files = Files(read_only=True)
    reader = SegmentReader(files)
    try:
        for number, block, slot in pending_slots(found.live, found.numbers):
            content = reader.content(block, slot)
            if content is not None:
                yield Item(number, content)
    finally:
        files.close()


def _whole_of(path: Path) -> Callable[[Item], Item]:
    """Return a function that restores an item as it was put.

    A keyed queue stores its keys' digests with each item.
    """
    files = Files(read_only=True)
    try:
        if read_definition(files, str(path)) is None:
            return lambda item: item
    finally:
        files.close()
    return lambda item: Item(item.id, message_in(item.content))


def _readable(item: Item) -> dict[str, Any]:
    """Return an item for JSON: its text, or its bytes in hex where they are not text.

    Of an AMQP message also its message-id and its body's text.
    """
    try:
        message_id, body = shown(item.content)
        return {
            "id": item.id,
            "message_id": message_id,
            "body": body.decode(errors="replace"),
            "hex": item.content.hex(),
        }
    except SectionError:
        pass
    try:
        return {"id": item.id, "text": item.content.decode()}
    except UnicodeDecodeError:
        return {"id": item.id, "hex": item.content.hex()}


def _text(content: bytes) -> str:
    """Format an item's bytes on one line, with FIX's field separator as `|`.

    Of an AMQP message its message-id and its body.
    """
    lead = ""
    with contextlib.suppress(SectionError):
        lead, content = shown(content)
    text = content.decode("utf-8", errors="backslashreplace").replace("\x01", "|")
    text = f"{lead}  {text}" if lead else text
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[:160])
    return line + (f" ... ({len(content):,} bytes)" if len(text) > 160 else "")


def _opened(path: Path) -> BlockingQueue:
    """Open the queue as its owner. Raises `UsageError` where there is none."""
    _check_there(path)
    files = Files(read_only=True)
    try:
        control = read_control(files, str(path))
    finally:
        files.close()
    settings = QueueSettings(blocks_max=max(len(control.blocks), 2))
    return BlockingQueue(path, settings)


def _appended(out: Path) -> IO[str]:
    """Open the file that items are added to.

    Raises `UsageError` where it cannot be written, or is no file: a pipe keeps nothing.
    """
    if out.exists() and not out.is_file():
        raise UsageError(f"{out} is no file", "what is moved must be on a disk: name a file")
    try:
        return open(out, "a", encoding="utf-8")
    except OSError as error:
        raise unwritable(out, error, "check --out") from error


def _candidates(path: Path, folders: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """Yield the files that may be blocks, with their sizes."""
    for folder in (path, *folders):
        for file in sorted(folder.glob("block-*.queue")):
            name = file.name if folder == path else str(file.resolve())
            yield name, file.stat().st_size


def _report(problems: Sequence[str]) -> int:
    for text in problems:
        complain(text)
    return ExitCode.FOUND if problems else ExitCode.OK
