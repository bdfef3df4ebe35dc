"""Settings of a keyed queue, beside its structure."""

from dataclasses import dataclass
from enum import StrEnum

#: Messages of one key that one consumer may have at a time.
RUN_MAX = 64
#: Tries that a mark can count.
TRIES_MAX = 126
NEVER = 1 << 63
#: Producers that a journal keeps the states of (`journal.producer_states`): no queue may know more.
PRODUCERS_MAX = 1 << 17


class Format(StrEnum):
    """The format of messages."""

    JSON = "json"
    FIX = "fix"
    AMQP = "amqp"
    FEED = "feed"


class Rule(StrEnum):
    """Rule by which values make keys."""

    COMPOSITE = "composite"
    PAIR = "pair"
    ANY = "any"


class Poison(StrEnum):
    """Treatment of a message that has failed too often."""

    DEAD = "dead"
    PARK = "park"


class Wrong(StrEnum):
    """Treatment of a message that is not of the structure, or has no key."""

    DEAD = "dead"
    REJECT = "reject"


class Full(StrEnum):
    """The answer to a producer where there is no room."""

    WAIT = "wait"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class KeyedSettings:
    """Settings that are declared when a queue is created, beside its structure."""

    messages_max: int = 4_000_000
    keys_max: int = 0
    key_messages_max: int = 0
    run: int = 1
    tries_max: int = 5
    poison: Poison = Poison.DEAD
    wrong: Wrong = Wrong.DEAD
    full: Full = Full.WAIT
    timeout_ns: int = NEVER
    producers_max: int = 100_000
