# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Symbols of one message, one after the other: of messages that name several, or a long one.

`MessageIndex` has one number for a message's symbol. Where that says SEVERAL_SYMBOLS, or is the
digest of a long text, the message itself has to be read again: `begin_symbols` finds it,
`next_symbol` each symbol in it. The text of one is found as well, for callers that make a name of
it.
"""

import cython
from cython.cimports.feedhandler.codecs.feed_table import FeedTable, PacketHeader
from cython.cimports.feedhandler.codecs.fix_scanning import begin_symbols_of, next_symbol_of
from cython.cimports.feedhandler.codecs.scanner import open_group, symbol_at

from feedhandler.codecs.visibility import Public


@cython.cclass
class SymbolWalk:
    """The state of a walk: which message, which element comes next, and the last symbol's bytes.

    `text_at` and `text_size` are where the symbol that `next_symbol` returned last stands.
    """

    slot: Public[cython.int]
    left: Public[cython.int]
    at: Public[cython.Py_ssize_t]
    text_at: Public[cython.Py_ssize_t]
    text_size: Public[cython.Py_ssize_t]

    def __init__(self) -> None:
        self.slot = self.left = 0
        self.at = self.text_at = self.text_size = 0


@cython.ccall
@cython.nogil
def begin_symbols(
    table: FeedTable,
    data: cython.const_uchar[::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    message_type: cython.ushort,
    header: PacketHeader,
    walk: SymbolWalk,
) -> cython.int:
    """Begin to read the symbols of the message `data[at:end]`; return 0 where it has none.

    `header` is scratch for the walk, too; it must be the same in `next_symbol`.
    """
    walk.left = 0
    if table.fix:
        return begin_symbols_of(data, at, end, header)
    if at < 0 or end > len(data) or at >= end:
        return 0
    walk.slot = table.slots[message_type]
    walk.at = at
    if table.symbol_size[walk.slot]:
        if at + table.symbol_at[walk.slot] + table.symbol_size[walk.slot] > end:
            return 0
        walk.left = 1
    elif table.group[walk.slot][8]:
        walk.left = open_group(table, data, at, end - at, message_type, header)
    return 1 if walk.left else 0


@cython.ccall
@cython.nogil
@cython.exceptval(6148914691236517205, check=True)
def next_symbol(
    table: FeedTable, data: cython.const_uchar[::1], header: PacketHeader, walk: SymbolWalk
) -> cython.ulonglong:
    """Return the next symbol of the message; NO_SYMBOL behind the last.

    A symbol that is named twice comes twice.
    """
    if table.fix:
        symbol: cython.ulonglong = next_symbol_of(table, data, header)
        walk.text_at = header.run.symbol_at
        walk.text_size = header.run.symbol_size
        return symbol
    if walk.left <= 0:
        return table.no_symbol
    walk.left -= 1
    if table.symbol_size[walk.slot]:
        walk.text_at = walk.at + table.symbol_at[walk.slot]
        walk.text_size = table.symbol_size[walk.slot]
    else:
        walk.text_at = header.element_at + table.group[walk.slot][7]
        walk.text_size = table.group[walk.slot][8]
        header.element_at += header.element_size
    return symbol_at(
        table,
        data,
        walk.text_at,
        cython.cast(cython.int, walk.text_size),
        table.symbol_big[walk.slot],
    )
