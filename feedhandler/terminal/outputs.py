"""Files that commands write: what is there already, or is being read, is not written over.

What cannot be written is refused before the work, which may take long.
"""

import os
from pathlib import Path

from feedhandler.codecs.errors import UsageError


def refuse_existing(overwrite: bool, *paths: Path) -> None:
    """Raise `UsageError` where one of the files to be written exists, unless `overwrite` is set.

    A pipe or a device such as `/dev/null` has nothing to lose and passes.
    """
    for path in () if overwrite else paths:
        if path.is_file():
            raise UsageError(f"{path} is there already", "name another file, or --overwrite")


def refuse_input(out: Path, *read: Path) -> None:
    """Raise `UsageError` where the file to be written is one of those that are read.

    Two names of one file are the same; a name that no file has passes.
    """
    for path in read:
        if out.exists() and path.exists() and out.samefile(path):
            raise UsageError(f"{out} is what is read", "write to another file")


def refuse_filled(path: Path) -> None:
    """Raise `UsageError` where a file to be written has content, for commands without --overwrite.

    A pipe, a device and an empty file have nothing to lose and pass.
    """
    if path.is_file() and path.stat().st_size:
        raise UsageError(f"{path} is there already", "name another file, or remove it")


def refuse_no_file(path: Path) -> None:
    """Raise `UsageError` where a file to be written is a folder."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "name a file in it")


def refuse_nowhere(path: Path, option: str) -> None:
    """Raise `UsageError` where the folder of a file to be written does not exist."""
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: no such folder", f"make it, or see {option}")


def refuse_folder(path: Path, option: str) -> None:
    """Raise `UsageError` where a folder of results cannot be made, or nothing be written to it."""
    stands_on = existing_part(path.absolute())
    if not stands_on.is_dir() or not os.access(stands_on, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(f"{stands_on} cannot be written to", f"name another folder: {option}")


def existing_part(path: str | Path) -> Path:
    """Return the existing part of a path: itself, or the folder that the rest would be made in."""
    part = Path(path)
    while not os.path.exists(part) and part != part.parent:
        part = part.parent
    return part
