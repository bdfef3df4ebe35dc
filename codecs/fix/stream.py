"""Cutting of a byte stream (TCP) into FIX messages, however its bytes arrive.

`FixStream.receive` takes bytes as they come and returns the messages that are whole by then. A
stream in which something is wrong cannot be read on, since nothing shows where the next message
begins: `fault` has the reason then, and every later call raises `PeerError`.
"""

from feedhandler.codecs.errors import PeerError
from feedhandler.codecs.fix.framing import MESSAGE_BYTES_MAX, Frame, frame_message
from feedhandler.codecs.fix.reasons import REJECT_TEXT, FixReject

#: Reasons that more bytes can mend.
_UNFINISHED = (FixReject.TRUNCATED, FixReject.BODY_LENGTH_BEYOND)


class FixStream:
    """Cuts one direction of a connection into messages.

    Holds at most the bytes of one message, and what came with it. `fault` is the fault found,
    `fault_at` its byte in the stream; `framings` counts how often the beginning of a message was
    examined: a message of n bytes that comes byte by byte is examined a few dozen times, not n
    times.
    """

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self.fault = FixReject.FINE
        self.fault_at = 0
        self.framings = 0
        self._frame = Frame(bytes_max)
        self._held = bytearray()
        self._wanted = 1
        self._gone = 0

    @property
    def held(self) -> int:
        """Bytes held of an incomplete message."""
        return len(self._held)

    def receive(self, data: bytes) -> list[bytes]:
        """Take in received bytes and return the messages that they complete.

        Raises `PeerError` after a fault, once the messages before it have been returned.
        """
        if self.fault:
            raise PeerError(
                f"the FIX stream is wrong at byte {self.fault_at}: {REJECT_TEXT[self.fault]}",
                "close the connection and begin anew",
            )
        self._held += data
        if len(self._held) < self._wanted:
            return []
        held = bytes(self._held)
        messages: list[bytes] = []
        at = self._cut(held, messages)
        del self._held[:at]
        self._gone += at
        return messages

    def _cut(self, held: bytes, messages: list[bytes]) -> int:
        """Append the whole messages; return where the first one that is not whole begins."""
        at, frame = 0, self._frame
        while at < len(held):
            self.framings += 1
            reason = FixReject(frame_message(held, at, len(held) - at, frame))
            if reason != FixReject.FINE:
                self._note(reason, at, len(held))
                return at
            messages.append(held[frame.begin : frame.end])
            at = frame.end
        self._wanted = 1
        return at

    def _note(self, reason: FixReject, at: int, size: int) -> None:
        """Record the fault, or how many bytes are needed before the next attempt."""
        if reason not in _UNFINISHED:
            self.fault, self.fault_at = reason, self._gone + self._frame.fault_at
        elif reason == FixReject.TRUNCATED:
            self._wanted = size - at + 1
        else:
            self._wanted = self._frame.end - at
