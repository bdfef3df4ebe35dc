"""Keys, senders and receivers of a sealed channel for tests, with random bytes of a seed."""

import random
from collections.abc import Callable, Iterable

from feedhandler.fixcast.crypto import PrivateKey, private_key, public_bytes
from feedhandler.fixcast.keys import FOREVER, ChannelKey, KeyRing
from feedhandler.fixcast.signing import (
    Event,
    Plain,
    SealedReceiver,
    SigningSealer,
    SigningSettings,
    VerificationSettings,
)

CHANNEL = "equities-1"
SECOND = 1_000_000_000
#: Where tests' wall clock begins.
START = 1_700_000_000 * SECOND
PUBLISHER = private_key(bytes(32))


def bytes_of(seed: int) -> Callable[[int], bytes]:
    """In the place of `os.urandom`."""
    return random.Random(seed).randbytes


def key(id: int = 1, begin: int = 0, end: int = FOREVER, channel: str = CHANNEL) -> ChannelKey:
    """A key whose secret follows from its id."""
    return ChannelKey(channel, id, bytes([id]) * 32, begin, end)


def ring(*keys: ChannelKey) -> KeyRing:
    """A ring with these keys, or with one that is always valid."""
    return KeyRing(CHANNEL, keys or [key()])


def sender(
    seed: int = 1,
    signer: PrivateKey | None = PUBLISHER,
    batch: int = 4,
    keys: KeyRing | None = None,
) -> SigningSealer:
    """A publisher that signs every `batch` datagrams."""
    return SigningSealer(
        ring() if keys is None else keys, signer, SigningSettings(batch, SECOND), bytes_of(seed)
    )


def receiver(
    settings: VerificationSettings | None = None, keys: KeyRing | None = None
) -> SealedReceiver:
    """A receiver that believes `PUBLISHER`."""
    return SealedReceiver(ring() if keys is None else keys, [public_bytes(PUBLISHER)], settings)


def payloads(events: Iterable[Event], line: int | None = None) -> list[bytes]:
    """Return the payloads that these events let be read, of one line or of all."""
    return [
        each.payload for each in events if isinstance(each, Plain) and line in (None, each.line)
    ]
