"""Fields of Market Data messages (W, X) as text: the root, each entry, names, numbers, times.

An entry begins with its first tag, whatever it is, since venues order an entry's fields as they
like. Nothing here knows the state of a book.
"""

import re
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

#: Symbol (55) that stands for all securities, or for one that only SecurityID (48) names.
ALL_SECURITIES = b"[N/A]"
#: Fields of a published message, as the codec's own bound.
MESSAGE_FIELDS_MAX = 16_384
#: Types of entries (269): bid, offer, trade, and that a book is empty.
BID, OFFER, TRADE, EMPTY_BOOK = b"0", b"1", b"2", b"J"
#: What an entry of X does (279).
NEW, CHANGE, DELETE, DELETE_THRU, DELETE_FROM, OVERLAY = b"0", b"1", b"2", b"3", b"4", b"5"
ACTIONS = frozenset((NEW, CHANGE, DELETE, DELETE_THRU, DELETE_FROM, OVERLAY))
_TIME = re.compile(
    rb"(\d{4})(\d\d)(\d\d)-([01]\d|2[0-3]):([0-5]\d):([0-5]\d|60)(?:\.(\d{1,12}))?\Z"
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
#: The last day of which all moments are ns since 1970 in 63 bits; a year of 2262.
_LAST_DAY = _EPOCH_DAY + 106_750
_SECOND_NS = 1_000_000_000

Pairs = list[tuple[int, bytes]]


def split(found: Pairs) -> tuple[dict[int, bytes], list[Pairs]]:
    """Return the fields of a W or X in front of its entries, by tag, and those of each entry."""
    root: dict[int, bytes] = {}
    entries: list[Pairs] = []
    delimiter = 0
    for tag, value in found:
        if not delimiter and not entries and 268 not in root:
            root[tag] = value
        else:
            delimiter = delimiter or tag
            if tag == delimiter:
                entries.append([])
            entries[-1].append((tag, value))
    return root, entries


def name_of(said: dict[int, bytes]) -> bytes:
    """Return the security that fields name: Symbol, else SecurityID; b"" for none."""
    symbol = said.get(55, b"")
    return said.get(48, b"") if symbol in (b"", ALL_SECURITIES) else symbol


def decimal_of(text: bytes) -> Decimal | None:
    """Return a price or size; None where the text is no number as FIX writes it.

    An exponent is refused: a few bytes of it would be a number of a million digits.
    """
    if b"e" in text.lower():
        return None
    try:
        value = Decimal(text.decode("ascii", "replace"))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def entry_time_ns(root: dict[int, bytes], said: dict[int, bytes]) -> int:
    """Return when an entry was made, ns since 1970: its MDEntryDate and MDEntryTime (272, 273),
    else TransactTime (60) of the entry or of the root; -1 where none is given."""
    if 273 in said and (272 in said or 272 in root):
        return utc_ns(said.get(272, root.get(272, b"")) + b"-" + said[273])
    return utc_ns(said.get(60, root.get(60, b"")))


def utc_ns(text: bytes) -> int:
    """Return a UTCTimestamp in ns since 1970; -1 where it is none.

    As the compiled `values.utc_ns`: decimals beyond nine are cut off, and a leap second counts as
    the next one.
    """
    matched = _TIME.match(text)
    if matched is None:
        return -1
    *clock, fraction = matched.groups(b"0")
    year, month, day, hours, minutes, seconds = map(int, clock)
    try:
        number = date(year, month, day).toordinal()
    except ValueError:
        return -1
    if not _EPOCH_DAY <= number <= _LAST_DAY:
        return -1
    whole = (number - _EPOCH_DAY) * 86_400 + hours * 3_600 + minutes * 60 + seconds
    return whole * _SECOND_NS + int(fraction.ljust(9, b"0")[:9])


def utc_text(time_ns: int) -> bytes:
    """Return ns since 1970 as a UTCTimestamp with nine decimals."""
    seconds, fraction = divmod(time_ns, _SECOND_NS)
    moment = datetime.fromtimestamp(seconds, UTC)
    return b"%b.%09d" % (moment.strftime("%Y%m%d-%H:%M:%S").encode(), fraction)
