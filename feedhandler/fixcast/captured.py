"""Application messages of a captured FIX channel, each once and in order, for publishing again.

A capture has a channel's one or two lines. `CapturedChannel` reads its datagrams as a receiver does
(`fixcast.receiving`), with the capture's times as the clock: copies of the other line are dropped,
what one line lost comes from the other, and what neither has is counted in `lost`. Administrative
messages are left out, because a publisher sends its own.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from feedhandler.codecs.errors import UsageError
from feedhandler.fixcast.receiving import ChannelReceiver
from feedhandler.fixcast.reception import Deliver, Event, Lost, ReceptionSettings

if TYPE_CHECKING:
    from feedhandler.replay.captures.reading import Datagram

#: Upper limit on a channel's lines; datagrams on more groups and ports are of several channels.
LINES_MAX = 2
#: Wait for the other line; generous, because the capture is not live and the wait is bounded.
GAP_WAIT_NS = 2_000_000_000


class CapturedChannel:
    """Iterable of the messages' bytes.

    `lost`: how many numbers no line had; `wrong`: how many datagrams were not whole FIX messages.
    Raises `UsageError`, while it is read, for a capture of several channels.
    """

    def __init__(self, datagrams: "Iterable[Datagram]") -> None:
        self.lost = 0
        self._datagrams = datagrams
        self._lines: dict[tuple[str, int], int] = {}
        self._receiver: ChannelReceiver | None = None

    @property
    def wrong(self) -> int:
        """Number of faulty datagrams."""
        return self._receiver.counts.total() if self._receiver else 0

    def __iter__(self) -> Iterator[bytes]:
        now_ns = 0
        for datagram in self._datagrams:
            now_ns = max(now_ns, datagram.time_ns)
            if self._receiver is None:
                settings = ReceptionSettings(gap_wait_ns=GAP_WAIT_NS)
                self._receiver = ChannelReceiver("", b"", settings, None, 0, now_ns)
            line = self._line((datagram.group, datagram.port))
            yield from self._bodies(self._receiver.tick(now_ns))
            yield from self._bodies(self._receiver.datagram(datagram.payload, line, now_ns))
        if self._receiver is not None:
            # Nothing else comes: what is kept of a new epoch that no message states is one.
            now_ns += self._receiver.reception.settings.epoch_wait_ns
            yield from self._bodies(self._receiver.tick(now_ns))
            yield from self._bodies(self._receiver.finish())

    def _line(self, address: tuple[str, int]) -> int:
        line = self._lines.setdefault(address, len(self._lines))
        if line >= LINES_MAX:
            raise UsageError(
                "the capture is of several channels, for it has more than two groups and ports",
                "take one channel's lines: `feedhandler replay --group ... --write one.pcap`",
            )
        return line

    def _bodies(self, events: list[Event]) -> Iterator[bytes]:
        for event in events:
            if isinstance(event, Deliver):
                yield event.body
            elif isinstance(event, Lost):
                self.lost += event.last - event.first + 1
