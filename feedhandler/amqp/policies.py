"""What gives way when too much waits for a subscriber or a broker: the policies by name.

    detach       the link is closed and told why; what waited is gone with it
    drop_oldest  what has waited longest is dropped, and the range told before any later data
    conflate     of messages with one key the newest is kept, books are sent anew; told, too

`journal`, which would let what waits go to disk, is known by name and not offered.

No I/O, no engine: words in, decisions out.
"""

DETACH, DROP_OLDEST, CONFLATE = "detach", "drop_oldest", "conflate"
#: Known, but not offered.
JOURNAL = "journal"
#: What a configuration may say.
POLICIES = (DETACH, DROP_OLDEST, CONFLATE)
#: What a link gets by asking for it, where the gateway keeps no books.
LINK_POLICIES = (DETACH, DROP_OLDEST)
_NO_JOURNAL = "journal (letting what waits go to disk) is not offered"


def fault_of_policy(word: str, quality: bool) -> str | None:
    """Why a configuration cannot have this policy, in one line; None where it can. `quality`:
    quality messages are sent, without which nobody could be told what gave way."""
    if word == JOURNAL:
        return _NO_JOURNAL
    if word not in POLICIES:
        return f"{word!r} is none of {', '.join(POLICIES)}"
    if word == CONFLATE and not quality:
        return "conflate tells what gave way by quality messages, which are turned off"
    return None
