"""The definition of a keyed queue, kept in a file of its folder.

What it is for: the client that creates a queue defines it once (`definition`); that holds over
restarts, and a second creation with another definition is refused. The file `keyed.json` also has
the queue's secret (`structure.Digester`), and counts its openings, so that fences rise.
"""

import os
import secrets

import msgspec
from msgspec import Struct

from feedhandler.codecs.errors import UsageError
from feedhandler.journal.files import Files, Replace, carry_out
from feedhandler.keyed.definition import Definition, differences

FILE_NAME = "keyed.json"
FILE_BYTES_MAX = 1 << 20
SECRET_BYTES = 32


class _Kept(Struct, kw_only=True):
    definition: Definition
    secret: str
    openings: int


class Opened(Struct, frozen=True):
    """A queue's definition, its secret, and the number of this opening, from 1."""

    definition: Definition
    secret: bytes
    openings: int


def read_definition(files: Files, folder: str) -> Definition | None:
    """Read the definition of the queue in this folder; None where it is no keyed queue. Raises
    `OSError`, `UsageError`."""
    kept = _read(files, os.path.join(folder, FILE_NAME))
    return None if kept is None else kept.definition


def open_definition(files: Files, folder: str, wanted: Definition) -> Opened:
    """Count an opening of the queue as `wanted`; write that definition where the queue is new.
    Raises `OSError`, and `UsageError` where it was created differently."""
    path = os.path.join(folder, FILE_NAME)
    kept = _read(files, path)
    if kept is None:
        kept = _Kept(definition=wanted, secret=secrets.token_hex(SECRET_BYTES), openings=0)
    elif others := differences(kept.definition, wanted):
        raise UsageError(
            f"{folder}: the queue was created with {others}",
            "say the same, or make another queue",
        )
    kept.openings += 1
    carry_out(files, [Replace(path, msgspec.json.encode(kept))])
    return Opened(kept.definition, bytes.fromhex(kept.secret), kept.openings)


def _read(files: Files, path: str) -> _Kept | None:
    if not files.exists(path):
        return None
    try:
        return msgspec.json.decode(files.pread(path, FILE_BYTES_MAX, 0), type=_Kept)
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(
            f"{path}: not what a keyed queue was created as: {error}",
            "restore the file from a copy; without it the keys of what waits are unknown",
        ) from None
