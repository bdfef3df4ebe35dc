"""A loop's turns without a loop: what is to be done soon is done when a test says so."""

from collections.abc import Callable


class Loop:
    """Callbacks of the next turn; `turns` counts turns."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.turns = 0

    def call_soon(self, work: Callable[[], None]) -> None:
        """As the event loop's."""
        self.soon.append(work)

    def turn(self) -> None:
        """Do what is due."""
        self.turns += 1
        due, self.soon = self.soon, []
        for each in due:
            each()
