"""A producer or a consumer of a keyed queue, as a process that may be killed at any moment.

    python -m tests.support.keyed_client produce URL FOLDER NAME MESSAGES KEYS SEED
    python -m tests.support.keyed_client consume URL FOLDER NAME
    python -m tests.support.keyed_client transform URL FOLDER NAME

The producer sends its messages with their numbers as sequence, and notes now and then how far it is
sure to have come: that is where it begins when it is started again. The consumer has an effect
outside: a row of a SQLite database, in one transaction with the message's token, and only if the
fence is none that its key has passed. The transformer puts a message into another queue for each,
in one with its end.
"""

import json
import os
import random
import sqlite3
import sys
from pathlib import Path

import uvloop

from feedhandler import keyed

#: Messages between two notes.
NOTE_EVERY = 200
WORKERS = 16
QUEUE, OUT = "orders", "out"


def open_effects(folder: Path) -> sqlite3.Connection:
    """The outside store, made where it is not there."""
    database = sqlite3.connect(folder / "effects.db", isolation_level=None, timeout=60)
    database.execute("pragma journal_mode = wal")
    database.execute("pragma synchronous = off")  # processes die here, not the machine
    database.execute(
        "create table if not exists effects "
        "(place integer primary key, token text unique, key text, producer text, number integer)"
    )
    database.execute("create table if not exists fences (key text primary key, fence integer)")
    return database


def key_of(seed: int, number: int, keys: int) -> str:
    """The key of a producer's message: some keys are much more frequent than others."""
    return str(int(keys * random.Random(seed * 1_000_003 + number).random() ** 2))


async def produce(url: str, folder: Path, name: str, messages: int, keys: int, seed: int) -> None:
    """Send everything that is not sure to be there."""
    note = folder / f"{name}.note"
    done = int(note.read_text()) if note.exists() else 0
    async with keyed.producer(url, QUEUE, id=name, epoch=1, sequence=done + 1) as producer:
        for number in range(done + 1, messages + 1):
            content = {"key": key_of(seed, number, keys), "p": name, "n": number}
            sent = await producer.put_soon(json.dumps(content).encode())
            if number % NOTE_EVERY == 0 or number == messages:
                await sent
                new = note.with_suffix(".new")
                new.write_text(str(number))
                os.replace(new, note)


def effect(database: sqlite3.Connection, message: keyed.Message) -> None:
    """The effect of a message, once, and only of who has its key. Raises `RuntimeError`."""
    content = json.loads(message.body)
    database.execute("begin immediate")
    row = database.execute("select fence from fences where key = ?", (content["key"],)).fetchone()
    if row is not None and row[0] > message.fence:
        database.execute("rollback")
        raise RuntimeError("another worker has had this key since")
    database.execute("replace into fences values (?, ?)", (content["key"], message.fence))
    database.execute(
        "insert or ignore into effects (token, key, producer, number) values (?, ?, ?, ?)",
        (message.token, content["key"], content["p"], content["n"]),
    )
    database.execute("commit")


async def consume(url: str, folder: Path) -> None:
    """Have an effect for each message, until told to end."""
    database = open_effects(folder)

    async def handler(message: keyed.Message) -> None:
        effect(database, message)

    async with keyed.consume(url, QUEUE, handler, workers=WORKERS) as consumption:
        await consumption.wait()


async def transform(url: str) -> None:
    """Put each message into another queue, until told to end."""

    async def handler(message: keyed.Message) -> keyed.Output:
        return keyed.Output(OUT, message.body)

    async with keyed.consume(url, QUEUE, handler, workers=WORKERS) as consumption:
        await consumption.wait()


def main() -> None:
    """Run the client that the command line asks for."""
    what, url, folder, name, *numbers = sys.argv[1:]
    if what == "produce":
        messages, keys, seed = map(int, numbers)
        uvloop.run(produce(url, Path(folder), name, messages, keys, seed))
    elif what == "transform":
        uvloop.run(transform(url))
    else:
        uvloop.run(consume(url, Path(folder)))


if __name__ == "__main__":
    main()
