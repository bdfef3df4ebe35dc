"""`feedhandler overlay status`: the state that a running member reports."""

from collections.abc import Iterator, Mapping
from typing import Any

from feedhandler.rpc import ask
from feedhandler.terminal.console import ExitCode, print_json


def status(endpoint: str, timeout_s: float, as_json: bool) -> int:
    """Ask the member and print its answer; `verdict` is the exit code."""
    answer = ask(endpoint, "status", timeout_s, who="member", setting="--control")
    if as_json:
        print_json(answer)
    else:
        for line in lines_of(answer):
            print(line)
    return verdict(answer)


def verdict(status: Mapping[str, Any]) -> int:
    """Return `FOUND` where a member is not ready, misses messages, or has set a child apart."""
    missing = any(tree.get("missing") for tree in status["trees"])
    unwell = status["not_ready"] or status["set_apart"] or missing
    return ExitCode.FOUND if unwell else ExitCode.OK


def lines_of(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the member's state, then a line for each tree with what is not zero."""
    missing = "; ".join(status["not_ready"])
    state = f"not ready: {missing}" if missing else "ready"
    yield f"{status['member']} at {status['address']}: {state}"
    if status["set_apart"]:
        yield f"set apart: {', '.join(status['set_apart'])}"
    for tree in status["trees"]:
        values = [
            f"{key.removesuffix('_seconds').replace('_', ' ')} {_text(key, value)}"
            for key, value in tree.items()
            if value and key != "tree"
        ]
        yield f"tree {tree['tree']}: {', '.join(values)}"


def _text(key: str, value: float) -> str:
    return f"{value * 1e6:,.1f} us" if key.endswith("_seconds") else f"{value:,}"
