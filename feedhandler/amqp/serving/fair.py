"""A bounded pool of waiting items that no single address can fill.

What it is for: clients that have not logged in share bounded resources: connections before log-in,
passwords that wait to be checked. Where the pool is full, the address that has most items loses its
newest to another address.

What it promises: the address with fewer items gets room as long as another has at least two more;
`pop` serves the addresses in rotation, each in the order in which its items came.

No I/O, no clock.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairPool(Generic[Item]):
    """At most `items_max` items, each of an address."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._rows: OrderedDict[str, dict[Item, None]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, item: Item) -> bool:
        return any(item in row for row in self._rows.values())

    def room_for(self, address: str) -> tuple[bool, Item | None]:
        """Make room for one more of this address; return whether there is, and the item that was
        removed for it: the newest of the address that has most."""
        if self._count < self._items_max:
            return True, None
        crowded = max(self._rows, key=lambda each: len(self._rows[each]), default=address)
        most, mine = (len(self._rows.get(each, ())) for each in (crowded, address))
        if mine + 1 >= most:
            return False, None
        out = next(reversed(self._rows[crowded]))
        self.remove(crowded, out)
        return True, out

    def add(self, address: str, item: Item) -> None:
        """Add an item; `room_for` must have let it in."""
        self._rows.setdefault(address, {})[item] = None
        self._count += 1

    def remove(self, address: str, item: Item) -> None:
        """Remove an item, if it is there."""
        row = self._rows.get(address)
        if row is None or item not in row:
            return
        del row[item]
        self._count -= 1
        if not row:
            del self._rows[address]

    def pop(self) -> Item | None:
        """Remove and return the next item, of the address whose turn it is; None where there is
        none."""
        if not self._rows:
            return None
        address, row = next(iter(self._rows.items()))
        item = next(iter(row))
        self.remove(address, item)
        if row:
            self._rows.move_to_end(address)
        return item
