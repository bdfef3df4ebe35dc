"""Books of CME MDP 3.0 for tests: updates of price levels, snapshots of whole books, and loops of
them, with a calculation of the books that is independent of the product's."""

import functools
import random
import struct
from collections.abc import Iterable

from feedhandler.codecs import load_feed

FEED = load_feed("cme-mdp3")
#: Templates.
UPDATE, SNAPSHOT = 46, 52
NEW, CHANGE, DELETE = 0, 1, 2
INSTRUMENTS = tuple(range(101, 106))
PRICES = 6
PRICE = 10**9

#: Levels by instrument, side and price, as one number; the size of each.
Levels = dict[int, bytes]
_ENTRY = struct.Struct("<qiiIiBBc5x")
#: Where a snapshot has the live packet that it is as of, and behind it the number of snapshots.
_LAST_AT = 10
_BOOK_ENTRY = struct.Struct("<qiibHBBc")


def key(instrument: int, side: bytes, price: int) -> int:
    """A level as one number."""
    return (instrument * 2 + int(side)) * 1_000 + price // PRICE


def update(number: int, draw: random.Random, levels: Levels) -> bytes:
    """An update of one level, which it is applied to as well; its time is its number."""
    instrument, side = draw.choice(INSTRUMENTS), draw.choice([b"0", b"1"])
    price = draw.randrange(PRICES) * PRICE
    known = key(instrument, side, price) in levels
    action = draw.choice([CHANGE, DELETE]) if known else NEW
    entry = {
        "md_entry_px_optional_ex": price, "md_entry_size_short_optional": draw.randint(1, 99),
        "security_id": instrument, "md_update_action": action,
        "md_entry_type_book": side.decode(),
    }  # fmt: skip
    made = FEED.encode_message(UPDATE, transact_time=number, entries=[entry])
    apply(levels, made)
    return made


def apply(levels: Levels, message: bytes) -> None:
    """Take an update, or a snapshot, into the levels; others are left alone."""
    (template,) = struct.unpack_from("<H", message, 4)
    if template == UPDATE:
        for at in _entries(message, 21, _ENTRY.size):
            price, size, instrument, _, _, _, action, side = _ENTRY.unpack_from(message, at)
            if action == DELETE:
                levels.pop(key(instrument, side, price), None)
            else:
                levels[key(instrument, side, price)] = size.to_bytes(4, "big")
    elif template == SNAPSHOT:
        (instrument,) = struct.unpack_from("<i", message, 18)
        for each in [each for each in levels if each // 2_000 == instrument]:
            del levels[each]
        for at in _entries(message, 69, _BOOK_ENTRY.size):
            price, size, _, _, _, _, _, side = _BOOK_ENTRY.unpack_from(message, at)
            levels[key(instrument, side, price)] = size.to_bytes(4, "big")


def _entries(message: bytes, root: int, size: int) -> Iterable[int]:
    block, count = struct.unpack_from("<HB", message, root)
    assert block == size
    return range(root + 3, root + 3 + count * size, size)


def active(levels: Levels, seen: set[int]) -> list[int]:
    """The instruments that a loop has: those that have ever had a level."""
    seen.update(each // 2_000 for each in levels)
    return sorted(seen)


def snapshot(instrument: int, levels: Levels, last: int, total: int) -> bytes:
    """The snapshot of an instrument's book, as of live packet `last`, one of `total` in a loop."""
    book = _book(instrument, *(each for each in levels.items() if each[0] // 2_000 == instrument))
    return book[:_LAST_AT] + struct.pack("<II", last, total) + book[_LAST_AT + 8 :]


@functools.lru_cache(1 << 12)
def _book(instrument: int, *levels: tuple[int, bytes]) -> bytes:
    """A book's snapshot of no packet: loops say the same book again and again."""
    entries = [
        {
            "md_entry_px_optional_ex": each % 1_000 * PRICE,
            "md_entry_size_short_optional": int.from_bytes(size, "big"),
            "md_entry_type": str(each // 1_000 % 2),
        }
        for each, size in levels
    ]
    return FEED.encode_message(SNAPSHOT, security_id=instrument, entries=entries)


def packet(number: int, *messages: bytes, send_time: int = 0) -> bytes:
    """A packet of the lines, or of a loop."""
    return FEED.encode_packet(sequence=number, messages=messages, send_time=send_time)
