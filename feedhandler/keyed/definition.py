"""Definition of a keyed queue: its messages' structure, its key, its rules."""

from typing import Annotated

from msgspec import Struct, structs

from feedhandler.codecs.toml_text import setting as _setting
from feedhandler.keyed.settings import (
    NEVER,
    PRODUCERS_MAX,
    RUN_MAX,
    Format,
    Full,
    KeyedSettings,
    Poison,
    Rule,
    Wrong,
)
from feedhandler.keyed.structure import Structure

#: By default one key may take half of the room: the others always have the other half.
KEY_SHARE = 2


class Definition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[queue.key]`, or what a client creates: a queue that is serial per key."""

    fields: Annotated[
        tuple[str, ...],
        _setting("where the key's values stand: JSON paths (account.id), FIX tags, AMQP's names"),
    ]
    format: Annotated[Format, _setting("what messages are: json, fix, feed, amqp")] = Format.JSON
    feed: Annotated[str, _setting("of format feed: a built-in feed, or a description's path")] = ""
    rule: Annotated[
        Rule,
        _setting(
            "how values make keys: composite (all as one), pair (two, either way round), any "
            "(each by itself: messages that share one value are served one after the other)"
        ),
    ] = Rule.COMPOSITE
    run: Annotated[
        int,
        _setting("messages of one key that one consumer may have at a time", ge=1, le=RUN_MAX),
    ] = 1
    poison: Annotated[
        Poison,
        _setting("what failed too often: dead (its key goes on), park (its key waits behind it)"),
    ] = Poison.DEAD
    wrong: Annotated[
        Wrong, _setting("what is not of the structure, or has no key: reject, dead (queue)")
    ] = Wrong.REJECT
    full: Annotated[Full, _setting("answer to producers where there is no room: wait, reject")] = (
        Full.WAIT
    )
    timeout_ms: Annotated[
        int,
        _setting("a consumer may have a message so long; then another one gets it; 0: any", ge=0),
    ] = 0
    messages_max: Annotated[
        int, _setting("messages it may hold, 28 to 64 bytes of memory each", ge=1, le=1 << 26)
    ] = 4_000_000
    keys_max: Annotated[
        int, _setting("keys that messages may have; 0: as many as there can be", ge=0, le=1 << 26)
    ] = 0
    key_messages_max: Annotated[
        int, _setting("messages of one key; 0: half of messages_max", ge=0, le=1 << 26)
    ] = 0
    producers_max: Annotated[
        int, _setting("producers whose sequence numbers are known", ge=1, le=PRODUCERS_MAX)
    ] = 100_000

    def structure(self) -> Structure:
        """Build the structure by which keys are read. Raises `UsageError`."""
        return Structure(self.format, self.fields, self.rule, self.feed)

    def settings(self, redeliveries_max: int) -> KeyedSettings:
        """Build the queue's settings; `redeliveries_max`: failed tries before the last, 0 for any
        number."""
        return KeyedSettings(
            messages_max=self.messages_max,
            keys_max=self.keys_max,
            key_messages_max=self.key_messages_max or -(-self.messages_max // KEY_SHARE),
            run=self.run,
            tries_max=redeliveries_max + 1 if redeliveries_max else NEVER,
            poison=self.poison,
            wrong=self.wrong,
            full=self.full,
            timeout_ns=self.timeout_ms * 1_000_000 or NEVER,
            producers_max=self.producers_max,
        )


def differences(one: Definition, other: Definition) -> str:
    """Return the settings of the first definition that the other does not share, for display; ""
    where they are equal."""
    theirs = structs.asdict(other)
    return ", ".join(
        f"{name} = {value}" for name, value in structs.asdict(one).items() if value != theirs[name]
    )
