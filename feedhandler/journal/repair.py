"""Repair of a queue that cannot be opened: control file, headers and tails.

What it is for: `feedhandler queue repair`. A control file that is missing or does not verify is
rebuilt from the blocks that are found; a header or tail that does not verify is written again from
the other. Everything else is recovery's task: opening a queue skips what is damaged and reports it.

What it promises: only blocks of one queue are put together; where blocks of two queues are found it
refuses. No I/O but through `Files`.
"""

import os
from collections.abc import Sequence

from feedhandler.codecs.errors import PeerError
from feedhandler.journal.files import Files, Replace, Step, Sync, Write, carry_out
from feedhandler.journal.layout import (
    CONTROL_BYTES_MAX,
    HEADER,
    HEADER_MAGIC,
    PAGE,
    TAIL_MAGIC,
    BlockEntry,
    BlockHeader,
    Control,
    Geometry,
    Reading,
    pack_control,
    pack_header,
    parse_control,
    parse_header,
)
from feedhandler.journal.recovery import block_path, control_path


def repair(files: Files, folder: str, blocks: Sequence[tuple[str, int]]) -> list[str]:
    """Repair control file, headers and tails; return a line for each thing done.

    `blocks`: path (absolute, or relative to the folder) and size in bytes of every file that may be
    a block. Raises `PeerError`, `OSError`.
    """
    done = []
    control = _control(files, folder)
    if control is None:
        control = _control_from(files, folder, blocks)
        carry_out(files, [Replace(control_path(folder), pack_control(control))])
        done.append(f"control file made from {len(control.blocks)} blocks")
    for entry in control.blocks:
        path = block_path(folder, entry)
        if files.exists(path):
            done += _mend(files, path, control, entry)
    return done


def _control(files: Files, folder: str) -> Control | None:
    path = control_path(folder)
    if not files.exists(path):
        return None
    reading, control = parse_control(files.pread(path, CONTROL_BYTES_MAX, 0))
    if reading is Reading.NEWER:
        raise PeerError(f"{path}: was written by a later version", "use that version")
    return control


def _control_from(files: Files, folder: str, blocks: Sequence[tuple[str, int]]) -> Control:
    """Rebuild the control file from the blocks. Raises `PeerError` where none or several queues'
    are found."""
    found: dict[int, str] = {}
    headers: set[tuple[bytes, int]] = set()
    created_ns = version = 0
    for path, size in blocks:
        header = _header_of(files, os.path.join(folder, path), size)
        if header is not None:
            found[header.block] = path
            headers.add((header.queue_id, header.geometry.block_bytes))
            created_ns = max(created_ns, header.created_ns)
            version = max(version, header.version)
    if not found:
        raise PeerError(f"{folder}: no block of a queue found", "name all folders with --path")
    if len(headers) > 1:
        raise PeerError(
            f"{folder}: blocks of {len(headers)} queues", "take those that do not belong away"
        )
    ((queue_id, block_bytes),) = headers
    entries = tuple(BlockEntry(number, found[number]) for number in sorted(found))
    return Control(queue_id.hex(), block_bytes, created_ns, entries, version)


def _header_of(files: Files, path: str, size: int) -> BlockHeader | None:
    """Return the header of the block at `path`, else its tail; None where neither verifies."""
    for offset, magic in ((0, HEADER_MAGIC), (size - PAGE, TAIL_MAGIC)):
        page = files.pread(path, PAGE, offset) if offset >= 0 else b""
        if len(page) < HEADER.size:
            continue
        number, queue_id = HEADER.unpack_from(page)[3:5]
        _, header = parse_header(page, queue_id, number, magic)
        if header is not None and header.geometry.block_bytes == size:
            return header
    return None


def _mend(files: Files, path: str, control: Control, entry: BlockEntry) -> list[str]:
    """Write a block's header and tail again where they do not verify; return a line for each."""
    geometry = Geometry(control.block_bytes)
    queue_id = bytes.fromhex(control.queue_id)
    wanted = BlockHeader(queue_id, entry.number, geometry, control.created_ns, control.version)
    bad: list[tuple[int, bytes, str]] = []
    for offset, magic, name in ((0, HEADER_MAGIC, "header"), (geometry.tail, TAIL_MAGIC, "tail")):
        reading, header = parse_header(
            files.pread(path, PAGE, offset), queue_id, entry.number, magic
        )
        if header is not None:
            wanted = header
        elif reading in (Reading.DAMAGED, Reading.BLANK):
            bad.append((offset, magic, name))
    steps: list[Step] = [Write(path, at, pack_header(wanted, magic)) for at, magic, _ in bad]
    if steps:
        carry_out(files, [*steps, Sync(path)])
    return [f"{path}: {name} written again" for _, _, name in bad]
