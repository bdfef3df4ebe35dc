"""`feedhandler keyed`: a client of a node's keyed queues."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

from feedhandler import keyed
from feedhandler.amqp.identity import Login
from feedhandler.codecs.errors import HostFault, PeerError, UsageError, reason_of
from feedhandler.keyed.definition import Definition
from feedhandler.terminal.console import (
    ExitCode,
    complain,
    host_faults,
    print_json,
    read_next,
    reading,
    run_async,
    until_stopped,
)

#: Exit code of a command that rejects its message (EX_DATAERR).
NO_GOOD = 65
#: Management's status codes from here on are refusals.
REFUSALS = 400
#: How long an interrupted `put` waits until what it has put is accepted.
STOP_SECONDS = 5.0
#: Refusals that are kept, to be printed.
REFUSED_SHOWN = 10
#: Upper limit on a line, which is a message: above what a queue's block can hold.
LINE_BYTES_MAX = 64 << 20


def create(url: str, name: str, definition: Definition, dead: str, login: Login) -> int:
    """Create a queue."""

    async def main(stop: asyncio.Event) -> int:
        made = await keyed.create(url, name, definition, dead=dead, login=login)
        print(f"queue {name}: {'created' if made else 'is there already, and the same'}")
        return ExitCode.OK

    return run_async(main)


def put(url: str, name: str, path: Path, id: str, epoch: int | None, login: Login) -> int:
    """Put the lines of a file, each as a message; `FOUND` where any was refused."""

    producer = keyed.producer(url, name, id=id, epoch=epoch, login=login)
    refused: list[str] = []

    # A named pipe opens once it has a writer: in the loop, signals would wait for that, too.
    with reading(path, "give a file of lines, or -") as file:

        async def main(stop: asyncio.Event) -> int:
            done = await until_stopped(_put_lines(producer, file, refused), stop)
            print(f"queue {name}: {producer.accepted:,} accepted, {producer.refused:,} refused")
            for text in refused:
                complain(text)
            if not done:
                return ExitCode.INTERRUPTED
            return ExitCode.FOUND if refused else ExitCode.OK

        return run_async(main, "uvloop")


async def _put_lines(producer: keyed.Producer, file: IO[bytes], refused: list[str]) -> bool:
    """Put each line of a file, wait until all are accepted or refused, and return True.

    Cancelled, it waits `STOP_SECONDS` at most for what has been put: a node that is gone says
    nothing.
    """
    async with producer:
        try:
            async for line in _lines(file):
                sent = await producer.put_soon(line)
                sent.add_done_callback(lambda future: _note(future, refused))
            with contextlib.suppress(keyed.Refused):
                await producer.flush()
        except asyncio.CancelledError:
            with contextlib.suppress(keyed.Refused, TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await producer.flush()
            raise
    return True


async def _lines(file: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a file without their ends, each as soon as it is whole.

    Raises `UsageError` for a line that is too long.
    """
    held = bytearray()
    while data := await read_next(file):
        held += data
        if b"\n" in data:
            *lines, held = held.split(b"\n")
            for line in lines:
                yield bytes(line)
        if len(held) > LINE_BYTES_MAX:
            raise UsageError(
                f"a line has more than {LINE_BYTES_MAX >> 20} MiB", "give a file of lines"
            )
    if held:
        yield bytes(held)


def _note(future: asyncio.Future[int], refused: list[str]) -> None:
    error = future.exception()
    if isinstance(error, keyed.Refused) and len(refused) < REFUSED_SHOWN:
        refused.append(error.message)


def work(url: str, name: str, command: list[str], workers: int, count: int, login: Login) -> int:
    """Run a command for each message, which it reads on stdin, until `count` are done.

    Raises `UsageError` before a message is taken where the command cannot be run. Where that is so
    later, the messages in hand are given back, and `HostFault` is raised.
    """
    _check_command(command[0])
    faults: list[OSError] = []

    async def main(stop: asyncio.Event) -> int:
        left = count

        async def handler(message: keyed.Message) -> None:
            nonlocal left
            report = {
                "FEEDHANDLER_TOKEN": message.token,
                "FEEDHANDLER_FENCE": str(message.fence),
                "FEEDHANDLER_TRIES": str(message.tries),
            }
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.PIPE, env={**os.environ, **report},
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                # No fault of the message: cancelled work gives it back, and does not count as a try
                faults.append(error)
                stop.set()
                raise asyncio.CancelledError from error
            await process.communicate(message.body)
            if process.returncode == NO_GOOD:
                raise keyed.Reject(f"{command[0]} said so")
            if process.returncode:
                raise PeerError(f"{command[0]} ended with {process.returncode}", "")
            left -= 1
            if count and left <= 0:
                stop.set()

        async with keyed.consume(url, name, handler, workers=workers, login=login) as consumption:
            await until_stopped(consumption.wait(), stop)
        print(
            f"queue {name}: {consumption.done:,} done, {consumption.failed:,} failed, "
            f"{consumption.rejected:,} rejected"
        )
        if faults:
            raise HostFault(
                f"cannot run {command[0]}: {reason_of(faults[0])}", "its message was given back"
            )
        return ExitCode.OK

    with host_faults():
        return run_async(main)


def _check_command(name: str) -> None:
    """Raise `UsageError` where no command of that name or path can be run."""
    if shutil.which(name) is not None:
        return
    if os.sep not in name:
        raise UsageError(f"{name}: no such command", "give its path")
    reason = "it is not executable" if Path(name).is_file() else "no such command"
    hint = f"chmod +x {name}" if Path(name).is_file() else "check the path"
    raise UsageError(f"{name}: {reason}", hint)


def look(operation: str, url: str, name: str, login: Login, as_json: bool) -> int:
    """Send a request to a queue's management, and print the answer."""

    async def main(stop: asyncio.Event) -> int:
        answer, body = await keyed.ask(url, name, login=login, operation=operation)
        if answer.get("status-code", 0) >= REFUSALS:
            raise PeerError(f"queue {name}: {answer.get('status-description')}", "")
        if operation == "stat":
            print_json(body) if as_json else _print_figures(body)
            return ExitCode.OK
        while rows := body[operation]:
            for row in rows:
                print_json(row) if as_json else _print_row(row)
            if operation != "list" or stop.is_set():
                break
            _, body = await keyed.ask(
                url, name, login=login, operation=operation, after=rows[-1]["id"]
            )
        return ExitCode.OK

    return run_async(main)


def _print_figures(figures: dict[str, Any]) -> None:
    for name, value in figures.items():
        print(f"{name:18}{value:,}" if isinstance(value, int) else f"{name:18}{value}")


def _print_row(row: dict[str, Any]) -> None:
    number = row.get("id", row.get("first"))
    waiting = f"  {row['messages']:>9,} messages" if "messages" in row else ""
    tries = f"  {row['tries']} failed" if row.get("tries") else ""
    consumer = f"  {row['consumer']}" if row.get("consumer") else ""
    print(f"{number:>12}{waiting}  {row['standing']:8}  {row['key']}{tries}{consumer}")
