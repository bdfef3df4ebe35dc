"""`feedhandler overlay status`: the state that a running member reports."""

from collections.abc import Iterator, Mapping
from typing import Any

from feedhandler.ops.console import ExitCode, print_json
from feedhandler.rpc import ask


def status(endpoint: str, timeout_s: float, as_json: bool) -> int:
    """Ask the member and print its answer; `verdict` is the exit code."""
    told = ask(endpoint, "status", timeout_s, who="member", setting="--control")
    if as_json:
        print_json(told)
    else:
        for line in lines_of(told):
            print(line)
    return verdict(told)


def verdict(told: Mapping[str, Any]) -> int:
    """Return `FOUND` where a member is not ready, misses messages, or has set a child apart."""
    missing = any(tree.get("missing") for tree in told["trees"])
    unwell = told["not_ready"] or told["set_apart"] or missing
    return ExitCode.FOUND if unwell else ExitCode.OK


def lines_of(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield the member's state, then a line for each tree with what is not zero."""
    ready = "; ".join(told["not_ready"])
    yield f"{told['member']} at {told['address']}: {'not ready: ' + ready if ready else 'ready'}"
    if told["set_apart"]:
        yield f"set apart: {', '.join(told['set_apart'])}"
    for tree in told["trees"]:
        values = [
            f"{key.removesuffix('_seconds').replace('_', ' ')} {_text(key, value)}"
            for key, value in tree.items()
            if value and key != "tree"
        ]
        yield f"tree {tree['tree']}: {', '.join(values)}"


def _text(key: str, value: float) -> str:
    return f"{value * 1e6:,.1f} us" if key.endswith("_seconds") else f"{value:,}"
