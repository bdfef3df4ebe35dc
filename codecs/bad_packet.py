"""The error of a packet that cannot be decoded.

Its text says what `explain` finds: the field, its value and what it should be. That takes a slow
second look at the bytes, which is taken when somebody asks for the text, and not before: many
callers count the reason alone.
"""

from collections.abc import Callable

from feedhandler.codecs.errors import PeerError
from feedhandler.codecs.kinds import REJECT_TEXT, Reject

#: Largest body that a compressed packet may inflate to, so that the packet's length fits a u16.
INFLATED_SIZE_MAX = 65_535 - 16


def _nothing() -> str:
    return ""


class BadPacket(PeerError):
    """A packet that cannot be decoded; `reason` is the scanner's.

    `find` returns the fault in words, "" where it finds none; it is called at most once.
    """

    def __init__(
        self, reason: Reject, where: str = "packet", find: Callable[[], str] = _nothing
    ) -> None:
        super().__init__(f"{where}: {REJECT_TEXT[reason]}", "the sender's bytes are at fault")
        self.reason = reason
        self._find = find

    @property
    def message(self) -> str:
        """The reason in words, and the fault: field, value and what is wanted."""
        find, self._find = self._find, _nothing
        if fault := find():
            self._message += f": {fault}"
        return self._message

    @message.setter
    def message(self, text: str) -> None:
        self._message = text
