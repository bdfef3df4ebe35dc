"""Files that commands write: what is there already, or is being read, is not written over."""

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
