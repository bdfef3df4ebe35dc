from typing import Any

from feedhandler.histogram import Histogram

NAMED_MAX: int
SERVICES_MAX: int

class Tally:
    histogram: Histogram
    deliveries: int
    body_bytes: int
    announced: int
    misplaced: int
    strangers: int
    clock_from_ns: int
    named: list[str]
    checking: bool
    thinned: bool
    def forget(self) -> None: ...
    def expect(
        self, services: Any, bases: Any, sizes: Any, timed_from: Any, thinned: bool = False
    ) -> None: ...
    def take(self, batch: Any, now_ns: int) -> int: ...
    def verdict(self, expected: Any) -> dict[str, int]: ...
    def first_lost(self, expected: Any, services: Any) -> list[str]: ...
