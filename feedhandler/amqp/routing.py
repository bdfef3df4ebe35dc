"""Addresses: routing keys, patterns, and the options of a link.

A routing key is `<feed>.<service>` for a packet and `<feed>.<service>.<symbol>` for a market
message; a message without symbol has `-` there. A pattern is a key in which `*` stands for one
word and `#` for any number of words, none included: without wildcards the source paper's direct
exchange, with them its topic exchange (paper, section 4).

An address is `<pattern>[,<pattern>...][?as=<content>][&types=...][&quality=0][&stamp=1]
[&snapshot=1][&from=<tag in hex>[,...]][&full=detach|drop_oldest|conflate]`. The content is packet,
batch or message; or, where books are kept, normalised records (`codecs.dbn.SCHEMAS`). `snapshot`
where there are no snapshots, `from` where no history is kept, and policies that the node does not
have are known options that are not offered; they are refused as such, and anything else as an
invalid field.

No I/O, no engine: text in, decisions out.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from feedhandler.amqp import conditions
from feedhandler.amqp.framing import TAG_BYTES
from feedhandler.amqp.patterns import WILDCARDS, PatternTrie
from feedhandler.amqp.policies import CONFLATE, DETACH, JOURNAL, LINK_POLICIES, POLICIES
from feedhandler.codecs.dbn import LEVEL_SCHEMAS, SCHEMAS
from feedhandler.codecs.errors import UsageError

if TYPE_CHECKING:
    from feedhandler.amqp.users import Entitlement

#: Longest address (room for a thousand keys, or a tag of each of 256 services), most patterns in
#: one, most words in a pattern (a key has three): bounds on invalid input.
ADDRESS_CHARS_MAX = 24_576
PATTERNS_MAX = 2048
WORDS_MAX = 16
#: Most patterns with wildcards in one address: each may name a symbol in every service, and what an
#: attach costs is the number of (service, symbol) pairs.
WILDCARD_PATTERNS_MAX = 256
#: Message types are unsigned 16-bit numbers in every feed.
TYPE_MAX = 0xFFFF

#: The first word of addresses that are reserved for durable queues.
RESERVED_WORD = "queue"


class Grain(IntEnum):
    """Content of one AMQP message; of normalised records it is a batch."""

    PACKET = 0
    BATCH = 1
    MESSAGE = 2


class AddressError(UsageError):
    """An address that cannot be served; `condition` is the AMQP error to answer with."""

    def __init__(self, message: str, condition: str = conditions.INVALID_FIELD) -> None:
        super().__init__(message)
        self.condition = condition


@dataclass(frozen=True, slots=True)
class Subscription:
    """A link's request, within its user's `entitlement` (None: everything).

    `schema` names normalised records, "" the feed's own messages. `types` is None for all message
    types; `resume` are tags, one a service at most, after which it
    goes on; `full` is None for the policy that the node has for links that do not name one.
    """

    patterns: tuple[tuple[str, ...], ...]
    grain: Grain = Grain.PACKET
    types: frozenset[int] | None = None
    quality: bool = True
    stamp: bool = False
    snapshot: bool = False
    resume: tuple[bytes, ...] = ()
    entitlement: "Entitlement | None" = None
    full: str | None = None
    schema: str = ""
    _named: dict[tuple[str, str], frozenset[str] | None] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _trie: PatternTrie | None = field(init=False, repr=False, compare=False, default=None)

    def named(self, feed: str, service: str) -> frozenset[str] | None:
        """Return the symbols of the service that it takes, by name; None where it takes any, or
        where `wants_symbol` has to be asked for each.

        Within one service every pattern comes to one or the other: a word of a pattern names a
        symbol, and a wildcard takes any. So no symbol has to be matched against patterns.
        """
        key = (feed, service)
        if key not in self._named:
            if self._trie is None:
                object.__setattr__(self, "_trie", PatternTrie(self.patterns))
            assert self._trie is not None
            named = self._trie.named(key)
            if self.entitlement is not None:
                named = self.entitlement.within(feed, service, named)
            self._named[key] = named
        return self._named[key]

    def wants_service(self, feed: str, service: str) -> bool:
        """Return whether it takes all of the service: every packet, whatever its symbols."""
        return self.named(feed, service) is None and (
            self.entitlement is None or self.entitlement.whole(feed, service)
        )

    def wants_symbol(self, feed: str, service: str, symbol: str) -> bool:
        """Return whether it takes the messages of this symbol."""
        named = self.named(feed, service)
        if named is not None:
            return symbol in named
        return self.entitlement is None or self.entitlement.allows(feed, service, symbol)

    def concerns(self, feed: str, service: str) -> bool:
        """Return whether any key of the service could match."""
        named = self.named(feed, service)
        return named is None or bool(named)


def parse_address(
    address: str,
    message_type: Callable[[str], int],
    snapshots: bool = False,
    history: bool = False,
    policies: tuple[str, ...] = LINK_POLICIES,
    records: bool = False,
) -> Subscription:
    """Parse a source address.

    `message_type` turns a word of `types` into a type's number; `snapshots`: `snapshot=` is
    offered; `history`: `from=` is; `policies`: what `full=` may be; `records`: normalised records
    are offered. Raises AddressError, with the AMQP condition to answer.
    """
    if not address or len(address) > ADDRESS_CHARS_MAX:
        raise AddressError("an address is a routing key or pattern, such as euronext.104")
    text, _, query = address.partition("?")
    if text.count(",") >= PATTERNS_MAX:
        raise AddressError(f"more than {PATTERNS_MAX} patterns in one address")
    patterns = tuple(_pattern(part) for part in text.split(","))
    if sum(not WILDCARDS.isdisjoint(words) for words in patterns) > WILDCARD_PATTERNS_MAX:
        raise AddressError(f"more than {WILDCARD_PATTERNS_MAX} patterns with wildcards")
    options = _options(query)
    grain, schema = _content(options, records)
    if schema in LEVEL_SCHEMAS:
        policies = tuple(dict.fromkeys((*policies, CONFLATE)))
    types = None
    if (listed := options.pop("types", None)) is not None:
        types = frozenset(_type(word, message_type) for word in listed.split(","))
    quality = _flag(options, "quality", True)
    stamp = _flag(options, "stamp", False)
    snapshot = (snapshots or bool(schema)) and _flag(options, "snapshot", False)
    if snapshot and not quality and not schema:
        raise AddressError("snapshot=1 needs the quality messages that mark its begin and end")
    resume = _tags(options.pop("from")) if history and "from" in options else ()
    full = _full(options, quality, policies)
    for known in ("snapshot", "from"):
        if known in options:
            raise AddressError(f"{known}= is not offered by this node", conditions.NOT_IMPLEMENTED)
    if options:
        raise AddressError(
            f"unknown key {next(iter(options))!r}: "
            "known are as, types, quality, stamp, snapshot, from, full"
        )
    return Subscription(
        patterns, grain, types, quality, stamp, snapshot, resume, full=full, schema=schema
    )


def _content(options: dict[str, str], records: bool) -> tuple[Grain, str]:
    """Take what one AMQP message is to hold: the grain, and the schema of normalised records or "".
    Raises AddressError."""
    name = options.pop("as", "packet")
    if name in ("packet", "batch", "message"):
        return Grain[name.upper()], ""
    if name not in SCHEMAS:
        known = ", ".join(("packet", "batch", "message", *SCHEMAS))
        raise AddressError(f"as={name}: it is one of {known}")
    if not records:
        reason = f"as={name} is not offered by this node: records = true of its [amqp] does so"
        raise AddressError(reason, conditions.NOT_IMPLEMENTED)
    if "types" in options:
        raise AddressError(f"types= chooses among the feed's messages, not records of {name}")
    if "from" in options:
        raise AddressError(f"from= is not offered for as={name}: snapshot=1 gives the state")
    if options.get("full") == CONFLATE and name not in LEVEL_SCHEMAS:
        known = " and ".join(LEVEL_SCHEMAS)
        raise AddressError(f"full=conflate: only records of {known} are replaced by newer ones")
    return Grain.BATCH, name


def without_tags(address: str) -> str:
    """Remove `from=` from an address: the rest stays the same when a link resumes."""
    text, question, query = address.partition("?")
    kept = "&".join(part for part in query.split("&") if not part.startswith("from="))
    return f"{text}{question}{kept}" if kept else text


def _pattern(text: str) -> tuple[str, ...]:
    """Split one pattern into its words. Raises AddressError."""
    words = tuple(text.split("."))
    if not all(words):
        raise AddressError(f"pattern {text!r} has an empty word")
    if len(words) > WORDS_MAX:
        raise AddressError(f"a pattern has at most {WORDS_MAX} words; a key has three")
    if words[0] == RESERVED_WORD:
        raise AddressError("addresses that start with 'queue.' are reserved", conditions.NOT_FOUND)
    for word in words:
        if len(word) > 1 and ("*" in word or "#" in word):
            raise AddressError(f"pattern {text!r}: a wildcard stands for whole words")
    # Two # in a row are one, which is quicker to match.
    return tuple(
        word
        for word, before in zip(words, ("", *words), strict=False)
        if (word, before) != ("#", "#")
    )


def _options(query: str) -> dict[str, str]:
    """Parse the `key=value` pairs of an address. Raises AddressError."""
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not equals or key in options:
            raise AddressError(f"{part!r} is no single key=value")
        options[key] = value
    return options


def _tags(listed: str) -> tuple[bytes, ...]:
    """Parse the tags of `from=`; their bytes 6 and 7 are the service. Raises AddressError."""
    tags: dict[bytes, bytes] = {}
    for word in listed.split(","):
        if not re.fullmatch(f"[0-9A-Fa-f]{{{2 * TAG_BYTES}}}", word):
            raise AddressError(f"from={word}: a tag is {2 * TAG_BYTES} hexadecimal digits")
        tag = bytes.fromhex(word)
        if tag[6:8] in tags:
            raise AddressError(f"from={word}: two tags of one service")
        tags[tag[6:8]] = tag
    return tuple(tags.values())


def _type(word: str, message_type: Callable[[str], int]) -> int:
    try:
        number = message_type(word)
    except (ValueError, KeyError, UsageError):
        number = -1
    if not 0 <= number <= TYPE_MAX:
        raise AddressError(f"types={word}: no such message type")
    return number


def _full(options: dict[str, str], quality: bool, offered: tuple[str, ...]) -> str | None:
    """Take the policy that a link asks for; None where it leaves that to the node. Raises
    AddressError."""
    word = options.pop("full", None)
    if word is None:
        return None
    if word not in offered:
        known = word in (*POLICIES, JOURNAL)
        condition = conditions.NOT_IMPLEMENTED if known else conditions.INVALID_FIELD
        raise AddressError(f"full={word}: this node offers {', '.join(offered)}", condition)
    if word != DETACH and not quality:
        raise AddressError(f"full={word} needs the quality messages that announce what was dropped")
    return word


def _flag(options: dict[str, str], key: str, default: bool) -> bool:
    value = options.pop(key, "1" if default else "0")
    if value not in ("0", "1"):
        raise AddressError(f"{key}={value}: it is 0 or 1")
    return value == "1"
