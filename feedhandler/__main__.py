"""The `feedhandler` command, and `python -m feedhandler`: signals first, then everything else.

What a command needs takes some tenths of a second to load. A signal that comes meanwhile ends the
process at once, without a word and with exit code 0 as at any later time: nothing has begun that
would have to be ended in order, and an exception in the middle of an import leaves its traces.
"""

import os
import signal
from typing import Any


def main() -> None:
    """Run the command named on the command line; exits with its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    from feedhandler.cli import main as run

    run()


def _leave(_number: int, _frame: Any) -> None:
    os._exit(0)


if __name__ == "__main__":
    main()
