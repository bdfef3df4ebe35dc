"""Policies for a subscriber or a broker whose queue is full, by name.

    detach       the link is closed with the reason; what waited is dropped
    drop_oldest  what has waited longest is dropped, and the range announced before any later data
    conflate     of messages with one key the newest is kept, books are sent anew; announced, too
    journal      nothing is dropped: what waits goes to disk. For brokers only: a subscriber has
                 `from=` to go on from where it was, and durable queues

No I/O, no engine: words in, decisions out.
"""

DETACH, DROP_OLDEST, CONFLATE, JOURNAL = "detach", "drop_oldest", "conflate", "journal"
#: Policies that a configuration may have for links, and for brokers.
POLICIES = (DETACH, DROP_OLDEST, CONFLATE)
DESTINATION_POLICIES = (*POLICIES, JOURNAL)
#: Policies that a link may ask for where the gateway keeps no books.
LINK_POLICIES = (DETACH, DROP_OLDEST)
_NO_JOURNAL = (
    "journal is a policy of [[publish]] only: a subscriber goes on where it was with from=, "
    "and what must not be lost is put into a durable queue"
)


def fault_of_policy(word: str, quality: bool, offered: tuple[str, ...] = POLICIES) -> str | None:
    """Return why a configuration cannot have this policy, in one line; None where it can.
    `quality`: quality messages are sent, without which drops could not be announced."""
    if word == JOURNAL and JOURNAL not in offered:
        return _NO_JOURNAL
    if word not in offered:
        return f"there is no policy {word!r}"
    if word == CONFLATE and not quality:
        return "conflate announces what it drops by quality messages, which are turned off"
    return None
