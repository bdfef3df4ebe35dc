# What Python code sees of the flow; the meanings stand in generator_flow.py.

from typing import Any

from feedhandler.replay.generating.generator_tape import Tape

class Flow:
    tape: Tape
    ended: bool
    trading: bool
    next_ns: int
    phase: int
    rounds: int
    due: int
    opened: dict[str, Any] | None
    def __init__(self, market: Any, settings: Any) -> None: ...
    def run(self, until_ns: int) -> int: ...
    def close(self) -> int: ...
