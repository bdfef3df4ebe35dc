"""Keys of a channel: secrets, each with an id and the time span in which it is valid.

A `KeyRing` has the keys of one channel. Times are wall-clock ns, because publisher and receivers
must agree on them. Keys overlap: the publisher changes to a key at its `from_ns`, receivers accept
the preceding one until its `until_ns`, so that datagrams in flight are not lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from feedhandler.codecs.errors import UsageError

#: Bytes of a secret: AES-256.
SECRET_BYTES = 32
#: The highest key id: u32 in the header of a datagram.
KEY_ID_MAX = (1 << 32) - 1
#: Upper limit on a channel's keys: two overlap at a change, more only where keys are given ahead.
KEYS_MAX = 16
#: A time that never comes.
FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ChannelKey:
    """One key: valid at times t with `from_ns <= t < until_ns`. The secret is never shown.

    Raises `UsageError` where id, secret or times are invalid.
    """

    channel: str
    id: int
    secret: bytes = field(repr=False)
    from_ns: int = 0
    until_ns: int = FOREVER

    def __post_init__(self) -> None:
        if not 0 < self.id <= KEY_ID_MAX:
            raise UsageError(f"{self.id} is no key id", f"1 to {KEY_ID_MAX}")
        if len(self.secret) != SECRET_BYTES:
            raise UsageError(
                f"a secret of {len(self.secret)} bytes cannot be a key", f"{SECRET_BYTES} bytes"
            )
        if self.from_ns >= self.until_ns:
            raise UsageError(f"key {self.id} is never valid", "it ends after it begins")

    def valid(self, now_ns: int) -> bool:
        """Return whether it may be used now."""
        return self.from_ns <= now_ns < self.until_ns


class KeyRing:
    """The keys of one channel, `KEYS_MAX` at most.

    changes  grows by one with each key that is added, changed or removed
    """

    def __init__(self, channel: str, keys: Iterable[ChannelKey] = ()) -> None:
        self.channel = channel
        self.changes = 0
        self._keys: dict[int, ChannelKey] = {}
        for key in keys:
            self.add(key)

    def __len__(self) -> int:
        return len(self._keys)

    def listed(self) -> list[ChannelKey]:
        """Return all keys, by the time from which they are valid."""
        return sorted(self._keys.values(), key=lambda key: (key.from_ns, key.id))

    def get(self, id: int) -> ChannelKey | None:
        """Return the key with this id; None where there is none."""
        return self._keys.get(id)

    def add(self, key: ChannelKey) -> bool:
        """Add a key; return False where it is known already.

        A known key may come again with an earlier end, which counts from now on. Raises
        `UsageError` for another channel's key, for another key of the same id, and where there is
        no room.
        """
        if key.channel != self.channel:
            raise UsageError(
                f"a key of channel {key.channel} is none of {self.channel}", "give its own keys"
            )
        known = self._keys.get(key.id)
        if known == key:
            return False
        if known is not None and _ends_earlier(key, known):
            self._keys[key.id] = key
            self.changes += 1
            return True
        if known is not None:
            raise UsageError(
                f"channel {self.channel} has another key {key.id}", "ids are used once"
            )
        if len(self._keys) >= KEYS_MAX:
            raise UsageError(
                f"channel {self.channel} has {KEYS_MAX} keys", "remove those that have expired"
            )
        self._keys[key.id] = key
        self.changes += 1
        return True

    def expire(self, now_ns: int) -> None:
        """Remove the keys that are no longer valid."""
        for key in [key for key in self._keys.values() if key.until_ns <= now_ns]:
            del self._keys[key.id]
            self.changes += 1

    def sending(self, now_ns: int) -> tuple[ChannelKey, int]:
        """Return the key to send with now, the latest that is valid, and until when that holds.

        Raises `UsageError` where none is valid: nothing is ever sent in clear instead.
        """
        valid = [key for key in self.listed() if key.valid(now_ns)]
        if not valid:
            raise UsageError(
                f"channel {self.channel} has no key that is valid now",
                "make one: feedhandler fixcast keys rotate",
            )
        later = (key.from_ns for key in self._keys.values() if key.from_ns > now_ns)
        return valid[-1], min(valid[-1].until_ns, *later, FOREVER)


def _ends_earlier(key: ChannelKey, known: ChannelKey) -> bool:
    """Return whether a key is the known one except for an earlier end."""
    same = (key.secret, key.from_ns) == (known.secret, known.from_ns)
    return same and key.until_ns < known.until_ns
