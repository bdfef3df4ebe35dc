"""The commands' shared behaviour: exit codes, one-line errors, JSON lines, signals that end them.

Results go to stdout, everything else (progress, warnings, errors) to stderr, so that a command's
output can be piped. A reader that goes away (`| head`) ends a command quietly, with exit code 0;
any other output that cannot be written (a full disk, a closed stdout) is an error.
"""

import asyncio
import contextlib
import enum
import errno
import functools
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from feedhandler._compiled import build_fault
from feedhandler.codecs.errors import (
    DISK_FAULTS,
    ConfigError,
    FeedhandlerError,
    HostFault,
    PeerError,
    UsageError,
    reason_of,
)

if TYPE_CHECKING:
    from rich.console import Console

_Result = TypeVar("_Result")


class ExitCode(enum.IntEnum):
    """The meaning of a command's exit code.

    Ctrl-C and SIGTERM are the usual end of a command that goes on until it is stopped: `OK`. A job
    that they end before it is done answers with `INTERRUPTED` (`feedhandler.__main__` decides
    which).
    """

    OK = 0  #: done as asked
    FOUND = 1  #: ran, and found something wrong: loss unannounced, a damaged file, a failed check
    USAGE = 2  #: wrong arguments, configuration or input file, reported before the work began
    PEER = 3  #: the other side could not be reached, refused, or ended it
    BUG = 70  #: this program's or the host's fault; FEEDHANDLER_DEBUG=1 shows the traceback
    INTERRUPTED = 130  #: a job was ended by Ctrl-C or SIGTERM before it was done


#: Signals that end a command. A shell starts background jobs with SIGINT ignored; a command
#: ends in order on it all the same.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Remedies of operating-system errors other than a disk's.
_REMEDIES = {
    errno.EACCES: "check its rights",
    errno.EBADF: "standard input or output is closed: open it, on /dev/null if need be",
    errno.EROFS: "mounted for reading only: name another path",
}
#: The name of standard input.
STDIN = Path("-")
#: Bytes that `read_next` reads at most.
_READ_BYTES = 256 << 10
#: Width of tables where stdout is no terminal and has none: a row is a line.
PIPE_WIDTH = 500


def stderr_console() -> "Console":
    """Return a console on stderr, for progress and warnings."""
    from rich.console import Console  # when something is drawn: a gateway never does

    return Console(stderr=True, highlight=False, soft_wrap=True)


def stdout_console() -> "Console":
    """Return a console on stdout, for tables; wide enough not to fold where it is no terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, width=width)


def complain(message: str, hint: str = "") -> None:
    """Print one line on stderr: what went wrong, and the remedy in brackets."""
    text = f"{message} ({hint})" if hint else message
    print(f"feedhandler: {' '.join(text.split())}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON object on a line of its own; dates and the like as their text."""
    sys.stdout.write(json.dumps(value, default=_json_fallback, ensure_ascii=False) + "\n")


def _json_fallback(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)


@contextmanager
def progress(title: str, total: float | None, unit: str = "") -> Iterator[Callable[..., None]]:
    """Show a bar on stderr where that is a terminal; yield `update(completed=..., total=...)`."""
    if not sys.stderr.isatty():
        yield lambda **changes: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}" + (f" {unit}" if unit else "")),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr_console(), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda **changes: bar.update(task, **changes)


@contextmanager
def reading(path: Path, hint: str) -> Iterator[IO[bytes]]:
    """Open a file, or standard input for `-`. Raises `UsageError` with the hint."""
    if path == STDIN:
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason_of(error)}", hint) from None
    with file:
        yield file


def run_guarded(work: Callable[[], int | None], interrupted: int = ExitCode.INTERRUPTED) -> int:
    """Run a command's work; turn what it raises into one line on stderr and an exit code.

    `interrupted`: the exit code after KeyboardInterrupt; with `OK` nothing is printed.
    """
    try:
        code = work()
        sys.stdout.flush()
        return int(code or ExitCode.OK)
    except KeyboardInterrupt:
        if interrupted != ExitCode.OK:
            complain("interrupted")
        return interrupted
    except BrokenPipeError:
        _forget_stdout()
        return ExitCode.OK
    except SystemExit as end:
        # Tables and the parser's help end the process by themselves where the reader has gone.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        _forget_stdout()
        return ExitCode.OK
    except Exception as error:
        if os.environ.get("FEEDHANDLER_DEBUG") == "1":
            raise
        code = report(error)
        try:
            sys.stdout.flush()
        except OSError:
            _forget_stdout()
        return code


@contextmanager
def host_faults() -> Iterator[None]:
    """Turn an `OSError` of work that has begun into a `HostFault`: it is no operator's mistake.

    A lost connection (`ConnectionError`, `TimeoutError`) passes unchanged.
    """
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        raise HostFault(_system_text(error), _remedy(error)) from error


def report(error: Exception) -> int:
    """Print one line for `error`, and return the exit code that goes with it."""
    if isinstance(error, FeedhandlerError):
        complain(error.message, error.hint)
        if isinstance(error, ConfigError | UsageError):
            return ExitCode.USAGE
        if isinstance(error, HostFault):
            return ExitCode.BUG
        return ExitCode.PEER if isinstance(error, PeerError) else ExitCode.FOUND
    if isinstance(error, ConnectionError | TimeoutError):
        complain(str(error) or type(error).__name__)
        return ExitCode.PEER
    if isinstance(error, OSError) and error.strerror:
        complain(_system_text(error), _remedy(error))
        return ExitCode.BUG if error.errno in DISK_FAULTS else ExitCode.USAGE
    if fault := build_fault(error):
        complain(fault, "run `make build`")
        return ExitCode.USAGE
    complain(
        f"internal error: {type(error).__name__}: {error}",
        "please report it; FEEDHANDLER_DEBUG=1 shows where it happened",
    )
    return ExitCode.BUG


def _system_text(error: OSError) -> str:
    """Return the operating system's message, behind the name of the file that it is about."""
    prefix = f"{error.filename}: " if error.filename else ""
    return f"{prefix}{reason_of(error)}"


def _remedy(error: OSError) -> str:
    """Return the remedy of an error of the operating system; empty where none is known."""
    return DISK_FAULTS.get(error.errno or 0, "") or _REMEDIES.get(error.errno or 0, "")


def _forget_stdout() -> None:
    """Point stdout at `/dev/null`, so that the interpreter's last flush cannot fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def _report_at_work(error: Exception) -> int:
    """Report an error of a command's running loop: an `OSError` is then the host's fault."""
    try:
        with host_faults():
            raise error
    except Exception as fault:
        return report(fault)


@contextmanager
def signal_handlers(handler: Any) -> Iterator[None]:
    """Handle SIGINT and SIGTERM by `handler` while the block runs; then restore the handlers.

    Python takes signals on the main thread only: on any other thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.getsignal(number) for number in ENDING_SIGNALS]
    try:
        for number in ENDING_SIGNALS:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in zip(ENDING_SIGNALS, before, strict=True):
            # None: not installed from Python, so it cannot be restored.
            signal.signal(number, signal.SIG_DFL if old is None else old)


def interrupt(_number: int, _frame: Any) -> None:
    """Raise KeyboardInterrupt on SIGTERM, too: the handler of a command without an event loop."""
    raise KeyboardInterrupt


def run_command(
    choose: Callable[[], Callable[[], int]], interrupted: int = ExitCode.INTERRUPTED
) -> int:
    """Call `choose`, then the work that it returns; return the exit code.

    Until the work begins, the handlers of signals stay (`feedhandler.__main__` ends at once); after
    it, signals are ignored, so that nothing interrupts the end of the process. `interrupted`: the
    exit code after a signal that the work itself does not take as its end.
    """

    def chosen_work() -> int:
        work = choose()
        with signal_handlers(interrupt):
            return work()

    code = run_guarded(chosen_work, interrupted)
    with contextlib.suppress(KeyboardInterrupt), signal_handlers(interrupt):
        # Output that still waits for a reader may be interrupted once more, the rest may not.
        code = run_guarded(lambda: code, interrupted)
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return code


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block signals while the block runs: amid an import one would leave a traceback on stderr."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_async(
    main: Callable[[asyncio.Event], Coroutine[Any, Any, int]], loop_kind: str = "asyncio"
) -> int:
    """Run `main(stop)` in an event loop of `loop_kind`; SIGINT and SIGTERM set `stop`.

    An exception in a callback of the loop, or of a task that is not awaited, sets `stop` too, and
    is reported. Afterwards the signals' handlers are restored: the loops would not do that.
    """

    async def with_signals() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        codes: list[int] = []

        def on_stray_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            if os.environ.get("FEEDHANDLER_DEBUG") == "1":
                loop.default_exception_handler(context)
            error = context.get("exception") or RuntimeError(context["message"])
            codes.append(_report_at_work(error))
            stop.set()

        loop.set_exception_handler(on_stray_exception)
        code = await main(stop)
        return codes[0] if codes else code

    with _signals_held():
        run = importlib.import_module(loop_kind).run
    with signal_handlers(interrupt):
        return int(run(with_signals()))


async def until_stopped(
    work: Coroutine[Any, Any, Any], stop: asyncio.Event, timeout_s: float | None = None
) -> Any:
    """Return what `work` returns; where `stop` is set first, or the time is up, cancel it and
    return None."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    first = asyncio.FIRST_COMPLETED
    await asyncio.wait({working, stopping}, timeout=timeout_s, return_when=first)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    return None


async def in_daemon_thread(work: Callable[[], _Result]) -> _Result:
    """Return what `work` returns, called on a thread that keeps no process from ending.

    A thread of `asyncio.to_thread` does, even where the one who waits for it is cancelled.
    """
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[_Result] = loop.create_future()

    def settle(give: Callable[[], None]) -> None:
        if not coming.done():
            give()

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            give = functools.partial(coming.set_exception, error)
        else:
            give = functools.partial(coming.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, give)

    threading.Thread(target=run, daemon=True).start()
    return await coming


async def read_next(file: IO[bytes]) -> bytes:
    """Read what comes next, 256 KiB at most, without keeping the loop; b"" at the end of the file.

    Standard input may bring nothing for ever, so a daemon thread reads. It reads past Python's
    buffer, whose lock it would hold at the end: an interpreter that cannot take that lock aborts.
    """
    return await in_daemon_thread(lambda: os.read(file.fileno(), _READ_BYTES))
