"""A command of ours run in the test's own process: what it prints, and its exit code.

The same path as `python -m feedhandler`, without the second that a new interpreter takes. What is
about a process (signals, a reader that goes away, what is loaded) starts one instead.
"""

import contextlib
import io
from dataclasses import dataclass

from feedhandler.cli.app import chosen
from feedhandler.ops.console import run_guarded


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*words: str) -> Done:
    """Run the command to its end."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_guarded(lambda: chosen([*words])())
    return Done(code, out.getvalue(), err.getvalue())
