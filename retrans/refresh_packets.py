# cython: annotation_typing=False
"""Reading of one packet of a snapshot: checked, inflated within a bound, its messages indexed.

Two callers read such packets here: the client of a refresh server, which closes the connection of a
server that sends unreadable ones, and the assembler of snapshots, which fails the snapshot. A
compressed packet is one header and one zlib stream behind it; nothing is inflated beyond
`inflated_bytes_max`, whatever the stream would come to.

Compiled.
"""

import zlib

import cython
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, MessageIndex, PacketHeader
from cython.cimports.feedhandler.codecs.kinds import COMPRESSED, DATA, FINE
from cython.cimports.feedhandler.codecs.scanner import parse_header, scan_messages

from feedhandler.codecs.feed import Feed
from feedhandler.codecs.visibility import Public, Readonly
from feedhandler.retrans.snapshots import MESSAGES_MAX

#: Key of `RefreshReader.fault`: what is wrong with the packet just read.
FAULTS: dict[str, str] = {
    "malformed": "does not fit: it is cut off, its zlib stream is broken, or its messages are",
    "too_large_inflated": "inflates to more than the bound",
}


@cython.final
@cython.cclass
class RefreshReader:
    """Reads snapshot packets of `feed`, one at a time, into `header` and `index`."""

    _table: FeedTable
    _most: object
    header: Readonly[PacketHeader]
    index: Readonly[MessageIndex]
    fault: Public[str]

    def __init__(self, feed: Feed, inflated_bytes_max: int) -> None:
        self._table = feed.table
        self._most = inflated_bytes_max
        self.header = PacketHeader()
        #: The messages of the packet just read, with offsets into what `read` returned.
        self.index = MessageIndex(MESSAGES_MAX)
        #: The fault of the packet just read: a key of `FAULTS`, or "".
        self.fault = ""

    @cython.locals(data=bytes)
    @cython.returns(bytes)
    @cython.ccall
    def read(self, data: bytes) -> bytes | None:
        """Return the packet, its body inflated; None without messages or where bad (`fault`).

        The header's bytes are unchanged. `index` has the messages, with offsets into what is
        returned.
        """
        self.fault = ""
        header = self.header
        verdict = parse_header(self._table, data, 0, len(data), header)
        if verdict == FINE:
            if header.kind != DATA:
                return None
            verdict = scan_messages(self._table, data, 0, header, self.index)
        if verdict == COMPRESSED:
            inflated = self._inflate(data)
            if inflated is None:
                return None
            data = data[: header.body] + inflated
            # The length need not fit into the header's field.
            header.length, header.flags = len(data), 0
            verdict = scan_messages(self._table, data, 0, header, self.index)
        if verdict != FINE:
            self.fault = "malformed"
            return None
        return data

    @cython.locals(data=bytes)
    @cython.returns(bytes)
    @cython.cfunc
    def _inflate(self, data: bytes) -> bytes | None:
        """Return the packet's body inflated; None, with `fault` set, where that fails."""
        inflater = zlib.decompressobj()
        try:
            inflated = inflater.decompress(data[self.header.body :], self._most + 1)
        except zlib.error:
            self.fault = "malformed"
            return None
        if len(inflated) > self._most:
            self.fault = "too_large_inflated"
            return None
        if not inflater.eof or inflater.unused_data:
            self.fault = "malformed"
            return None
        return inflated
