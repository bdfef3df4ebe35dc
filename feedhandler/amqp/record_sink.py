"""The interface by which the fan-out has normalised records made of published packets.

`record_fanout` is what makes them; it stands apart, so that a gateway without records needs none of
its parts. No I/O.
"""

from collections.abc import Iterable
from typing import Any

import cython
from cython.cimports.feedhandler.amqp.stream import Stream
from cython.cimports.feedhandler.codecs.feed_table import MessageIndex, PacketHeader

from feedhandler.codecs.visibility import Readonly


@cython.cclass
class RecordSink:
    """A maker of records. `opened` are links that have records in an open batch since it was last
    emptied."""

    opened: Readonly[list]

    def __init__(self) -> None:
        self.opened = []

    def packet(
        self,
        stream: Stream,
        sequence: cython.ulonglong,
        received_ns: cython.longlong,
        data: cython.const_uchar[::1],
        start: cython.Py_ssize_t,
        header: PacketHeader,
        index: MessageIndex,
        skip: cython.Py_ssize_t,
    ) -> cython.int:
        """Take the packet at `start`, which is published, but for its first `skip` messages."""
        raise AssertionError("a sink by itself takes nothing")

    def add(self, link: Any) -> None:
        """Take a new link's schema into account."""
        raise AssertionError("a sink by itself has no links")

    def remove(self, link: Any) -> None:
        """Forget a link."""
        raise AssertionError("a sink by itself has no links")

    def present(self, link: Any, streams: Iterable[Stream], received_ns: int) -> None:
        """Send a link the present state of these services."""
        raise AssertionError("a sink by itself has no books")

    def heard(self, stream: Stream, body: bytes) -> None:
        """Take a quality message that is published."""
        raise AssertionError("a sink by itself gets nothing")

    def reset(self, stream: Stream, sequence: int, received_ns: int) -> None:
        """Empty a service's books: its numbers begin anew, or a snapshot of all follows."""
        raise AssertionError("a sink by itself has no books")

    def renamed(self, symbols: Iterable[int]) -> None:
        """Look anew at these symbols, whose names have changed."""
        raise AssertionError("a sink by itself knows no symbols")
