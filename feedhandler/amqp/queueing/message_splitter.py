# cython: language_level=3, boundscheck=True, wraparound=False
"""AMQP messages split into market messages, and joined again without some of them.

What it is for: the queue of a receiver that is behind is conflated by market messages, but it is
filled with packets, batches, or single messages. `MessageSplitter.split` makes `Waiting` entries of
one AMQP message: one of a packet or a single message, one for each packet of a batch.
`MessageSplitter.join` is the way back. The mode of each market message comes from the feed
description: where books are kept, its `[book]` table says which messages change them (BOOK), or
concern all (FENCE), and `conflate` speaks for the rest.

Where a change of an order does not name the symbol, the book cache knows it. A message about an
order that it does not know, or not any more, waits (NEVER): that order is in no book
that is sent later, so a receiver that has the book drops the message. Changes of a symbol whose
prices have no scale yet wait at their position, and so do messages that carry scales: no book
is sent past them (FENCE).

What it promises: an entry from which nothing was taken is joined to the very bytes it came with,
but for a batch, of which each packet becomes a message of its own. What cannot be scanned, quality
messages, resets, packets outside the sequence and snapshot blocks stay whole.

No I/O, no engine.
"""

from typing import TYPE_CHECKING, Any, Literal

import cython
from cython.cimports.feedhandler.amqp.framing import Template, write_uint
from cython.cimports.feedhandler.amqp.queueing.conflation import Waiting
from cython.cimports.feedhandler.amqp.queueing.unsettled_map import OutgoingMessage
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, MessageIndex, PacketHeader
from cython.cimports.feedhandler.codecs.scanner import (
    frame_length,
    parse_header,
    patch_header,
    scan_messages,
    symbol_of,
)

from feedhandler.amqp import framing
from feedhandler.amqp.queueing.conflation import BOOK, FENCE, LATEST, NEVER
from feedhandler.amqp.sender_queue import MESSAGES_MAX
from feedhandler.codecs.kinds import UNSEQUENCED_BIT, PacketKind

if TYPE_CHECKING:
    from feedhandler.amqp.queueing.book_cache import BookCache
    from feedhandler.codecs import Feed
    from feedhandler.codecs.book_rules import BookRules

#: A byte order.
Order = Literal["big", "little"]

_DATA_KIND = cython.declare(cython.int, int(PacketKind.DATA))
_UNSEQUENCED = cython.declare(cython.ulonglong, UNSEQUENCED_BIT)
_MODES = {"never": NEVER, "latest": LATEST, "book": BOOK}


class Rule:
    """Conflation rule of one message type.

    Its mode, and where the key stands: the symbol (`symbol_at`, `symbol_size`; 0 bytes: none) and
    further `parts`; without a symbol the order ids (`orders`: first byte, size and byte order of
    the parts of each). Messages shorter than `least` bytes are never conflated. `describes_book`:
    the symbol that the scanner finds is all that need be known; `symbol_is_plain`: it is an integer
    in the feed's byte order.
    """

    def __init__(
        self, layouts: list[Any], books: bool, table: "BookRules | None", needs_scales: bool
    ) -> None:
        layout = layouts[0]
        self.mode: int = _MODES[layout.conflate]
        self.least: int = layout.size
        symbol = layout.by_name[layout.symbol] if layout.symbol else None
        self.symbol_at: int = symbol.at if symbol else 0
        self.symbol_size: int = symbol.size if symbol else 0
        fields = [layout.by_name[name] for name in layout.conflate_by]
        self.parts: list[tuple[int, int]] = [(field.at, field.at + field.size) for field in fields]
        self.orders: list[list[tuple[int, int, Order]]] = []
        if self.mode == BOOK and not books:
            self.mode = NEVER
        elif books and table is not None:
            self._judge(table, layout.code)
        if self.mode == BOOK and symbol is None and layout.symbols is None and not self.orders:
            self.mode = FENCE
        self.code: int = layout.code
        self.symbol_is_plain = symbol is not None and symbol.kind != "c" and not symbol.byte_order
        self.describes_book = symbol is not None and not needs_scales

    def _judge(self, table: "BookRules", code: int) -> None:
        """Set the mode by what messages of the type do to books, and where they name orders."""
        effect = table.effect_of(code)
        if effect == "all":
            self.mode = FENCE
        elif effect == "changes":
            self.mode = BOOK
        elif self.mode == BOOK:
            self.mode = NEVER
        for rule in table.rules_of(code) if self.mode == BOOK and not self.symbol_size else ():
            for references in (rule.order, (rule.new_order,)):
                parts: list[tuple[int, int, Order]] = [
                    (each.at, each.size, "big" if each.big else "little")
                    for each in references
                    if each is not None
                ]
                if parts:
                    self.orders.append(parts)

    def symbol_of(self, piece: bytes, service: int, known: "BookCache | None") -> int | None:
        """Return the symbol of the first order that a message names and that is known."""
        for parts in self.orders if known is not None else ():
            order_id = 0
            for at, size, order in parts:
                order_id = order_id << 8 * size | int.from_bytes(piece[at : at + size], order)
            symbol = known.symbol_of_order(service, order_id)
            if symbol is not None:
                return symbol
        return None


@cython.cclass
class MessageSplitter:
    """Splits and joins the messages of one feed. `books`: the feed's books are kept, so that
    changes of them may be conflated; else they wait at their position. `known`: what is known of
    symbols and orders; it may be left out for feeds whose messages carry it."""

    table: FeedTable
    order: str
    known: object
    header: PacketHeader
    index: MessageIndex
    rules: dict

    def __init__(self, feed: "Feed", books: bool, known: "BookCache | None" = None) -> None:
        self.table = feed.table
        self.order = feed.byte_order
        self.known = known
        self.header = PacketHeader()
        self.index = MessageIndex(MESSAGES_MAX)
        self.rules = {
            code: Rule(layouts, books, feed.book, feed.needs_reference_scales)
            for code, layouts in feed.layouts.items()
        }
        if books and feed.needs_reference_scales:
            for code in feed.references:
                self.rules[code].mode = FENCE

    @cython.ccall
    def split(self, outgoing: OutgoingMessage) -> list[Waiting]:
        """Split one message into entries, in order."""
        template: Template = outgoing.template
        if outgoing.reason or outgoing.block or outgoing.sequence >= _UNSEQUENCED:
            return [Waiting(outgoing, [b""], [FENCE], [None])]
        if template.content == framing.CONTENT_BATCH:
            return self._batch(outgoing, template)
        if template.content == framing.CONTENT_PACKET or self.table.type_in_packet:
            return [self._packet(outgoing, template.size, len(outgoing.data))]
        return [self._single(outgoing, template.size)]

    @cython.cfunc
    def _packet(
        self, outgoing: OutgoingMessage, start: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> Waiting:
        """Split the packet at `start` of the message, behind the message's own head."""
        data: bytes = outgoing.data
        view: cython.const_uchar[::1] = data
        number: cython.Py_ssize_t
        if (
            parse_header(self.table, view, start, end - start, self.header) != 0
            or self.header.kind != _DATA_KIND
            or scan_messages(self.table, view, start, self.header, self.index) != 0
            or self.index.count == 0
        ):
            return Waiting(outgoing, [b""], [FENCE], [None])
        pieces: list = []
        modes: list = []
        keys: list = []
        for number in range(self.index.count):
            at: cython.Py_ssize_t = start + self.index.offsets[number]
            piece: bytes = data[at : at + self.index.sizes[number]]
            pieces.append(piece)
            symbol: object = self.index.symbols[number]
            self._classify(outgoing.service, self.index.types[number], symbol, piece, modes, keys)
        lead: cython.Py_ssize_t = self.header.body
        head: OutgoingMessage = outgoing.cut(data[: start + lead])
        return Waiting(head, pieces, modes, keys, lead)

    @cython.cfunc
    def _batch(self, outgoing: OutgoingMessage, template: Template) -> list:
        """Split a batch into messages of one packet each, each with its own packet's tag."""
        data: bytes = outgoing.data
        view: cython.const_uchar[::1] = data
        at: cython.Py_ssize_t = template.size
        end: cython.Py_ssize_t = len(data)
        found: list = []
        while at < end:
            size: cython.Py_ssize_t = frame_length(self.table, view, at, end - at)
            if size <= 0 or size > end - at:
                found.clear()
                break
            found.append((at, size))
            at += size
        if not found:
            return [Waiting(outgoing, [b""], [FENCE], [None])]
        packets: list = []
        for at, size in found:
            head = bytearray(data[: template.size])
            sequence: cython.ulonglong = outgoing.sequence
            if packets and parse_header(self.table, view, at, size, self.header) == 0:
                sequence = self.header.sequence
                packets[len(packets) - 1].following = sequence
            write_uint(head, template.tag_at + 8, 8, sequence)
            write_uint(head, template.size - 4, 4, size)
            part: OutgoingMessage = outgoing.cut(bytes(head) + data[at : at + size])
            part.sequence = sequence
            packets.append(part)
        return [self._packet(part, template.size, len(part.data)) for part in packets]

    @cython.cfunc
    def _single(self, outgoing: OutgoingMessage, start: cython.Py_ssize_t) -> Waiting:
        """Make the entry of a single market message."""
        data: bytes = outgoing.data
        table: FeedTable = self.table
        piece: bytes = data[start:]
        modes: list = []
        keys: list = []
        at: cython.Py_ssize_t = table.message_type_at
        if len(piece) < table.message_header_size:
            return Waiting(outgoing, [b""], [FENCE], [None])
        code: int = int.from_bytes(piece[at : at + table.message_type_size], self.order)
        if table.type_second_size:
            code = code << 8 | piece[table.type_second_at]
        self._classify(outgoing.service, code, None, piece, modes, keys)
        return Waiting(outgoing.cut(data[:start]), [piece], modes, keys, 0)

    def _classify(
        self,
        service: int,
        code: int,
        symbol: int | None,
        piece: bytes,
        modes: list[int],
        keys: list[Any],
    ) -> None:
        """Append a message's mode and key. `symbol`: from the scanner; None: read from the
        bytes."""
        rule = self.rules.get(code)
        mode = NEVER if rule is None or len(piece) < rule.least else rule.mode
        key: Any = None
        if mode == LATEST:
            assert rule is not None
            named = piece[rule.symbol_at : rule.symbol_at + rule.symbol_size]
            parts = [piece[begin:end] for begin, end in rule.parts]
            key = (service, code, named, *parts)
        elif mode == BOOK:
            assert rule is not None
            if symbol is None or not rule.describes_book:
                symbol, mode = self._symbol_of(service, rule, symbol, piece)
            if mode == BOOK:
                key = (service, symbol)
        modes.append(mode)
        keys.append(key)

    def _symbol_of(
        self, service: int, rule: Rule, symbol: int | None, piece: bytes
    ) -> tuple[int | None, int]:
        """Return the symbol whose book a message changes, and the message's mode."""
        if symbol is None and rule.symbol_is_plain:
            named = piece[rule.symbol_at : rule.symbol_at + rule.symbol_size]
            symbol = int.from_bytes(named, self.order)
        elif symbol is None:
            symbol = symbol_of(self.table, piece, rule.code)
        if rule.describes_book:
            return symbol, BOOK
        if rule.orders:
            symbol = rule.symbol_of(piece, service, self.known)
        if symbol is None:
            return None, NEVER
        knows = self.known is None or self.known.prices_known(service, symbol)
        return symbol, BOOK if knows and symbol != self.table.several_symbols else FENCE

    @cython.ccall
    def join(self, waiting: Waiting) -> OutgoingMessage:
        """Join what is left of an entry to a message, with its packet header patched."""
        outgoing: OutgoingMessage = waiting.outgoing
        if waiting.lead < 0:
            return outgoing
        template: Template = outgoing.template
        left: list = [piece for piece in waiting.pieces if piece is not None]
        data = bytearray(b"".join([outgoing.data, *left]))
        body: cython.Py_ssize_t = len(data) - template.size
        write_uint(data, template.size - 4, 4, body)
        if waiting.lead > 0:
            patch_header(self.table, data, template.size, cython.cast(cython.uint, body), len(left))
        return outgoing.cut(bytes(data))
