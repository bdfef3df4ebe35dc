"""The `feedhandler` command, and `python -m feedhandler`: signals first, then everything else.

Standard streams that are closed are opened on `/dev/null`, before a socket or a file takes their
place: the event loop would abort, and a message could end up in a file of data. Standard input is
opened for writing and standard output for reading, so that using them fails as it does where they
are closed: what cannot be read or written is no success. Messages on a closed stderr are lost.

Compiled units that are missing beside others, or do not fit one another, are reported here in one
line where not even the command line can be imported.

A command's imports take some tenths of a second. A signal during that time ends the process at
once, with the exit code that it has at any later time: there is nothing to shut down yet, and an
exception in the middle of an import would print a traceback.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence

from feedhandler._compiled import build_fault

TYPE_CHECKING = False  # `typing` is not imported: see `feedhandler/__init__.py`
if TYPE_CHECKING:
    from typing import NoReturn

#: Commands that run until they are stopped (`ledger-client` is one of the demo's processes), and
#: options that make another command run so: a signal is their usual end, exit code 0.
UNTIL_STOPPED = (
    "run",
    "exchange",
    "replay",
    "capture",
    "subscribe",
    "ledger-client",
    "keyed work",
    "fixcast publish",
    "fixcast receive",
    "fixcast keys serve",
    "overlay send",
    "overlay proxy",
    "overlay receive",
    "overlay echo",
)
UNTIL_STOPPED_WITH = ("--follow", "--watch")
#: Options that make such a command a job: a replay that sends nothing but makes a file or a table,
#: the end of a session that was followed.
JOB_WITH = ("--write", "--dry-run", "--once")
#: The exit code of a job that a signal ended before it was done.
INTERRUPTED = 130
#: The exit code where the compiled units do not fit one another.
BADLY_BUILT = 2
#: How each closed standard stream is opened on `/dev/null`, by its descriptor.
_CLOSED = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_RDWR}


def interrupted_code(words: Sequence[str]) -> int:
    """Return the exit code of the command `words` after Ctrl-C or SIGTERM.

    It is 0 where a signal is the command's usual end, else `INTERRUPTED`.
    """
    options = {word.partition("=")[0] for word in words}
    line = " ".join((*words, ""))
    named = any(line.startswith(f"{command} ") for command in UNTIL_STOPPED)
    goes_on = named or not options.isdisjoint(UNTIL_STOPPED_WITH)
    return 0 if goes_on and options.isdisjoint(JOB_WITH) else INTERRUPTED


def main() -> None:
    """Run the command named on the command line; exit with its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    _open_streams()
    # What imports make stays: looking for garbage among it is a tenth of a command's start.
    gc.disable()
    words = sys.argv[1:]
    try:
        from feedhandler.cli.app import main as run
    except Exception as error:
        fault = build_fault(error)
        if not fault or os.environ.get("FEEDHANDLER_DEBUG") == "1":
            raise
        _refuse(fault)
    run(interrupted_code(words))


def _open_streams() -> None:
    """Open closed standard streams on `/dev/null`: descriptors, and Python's files of them."""
    for descriptor, flags in _CLOSED.items():
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor is this one: those below it are open by now.
            os.open(os.devnull, flags)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


def _refuse(fault: str) -> "NoReturn":
    print(f"feedhandler: {fault} (run `make build`)", file=sys.stderr)
    sys.exit(BADLY_BUILT)


def _leave(_number: int, _frame: object) -> None:
    code = interrupted_code(sys.argv[1:])
    if code:
        os.write(2, b"feedhandler: interrupted\n")
    os._exit(code)


if __name__ == "__main__":
    main()
