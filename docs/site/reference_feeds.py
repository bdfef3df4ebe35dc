"""`docs/feeds.md`: which feed has what, from the capabilities, the descriptions and the tests.

Nothing is listed here by hand: what can be done with a feed says `gateway/capabilities.py`; its
recovery and its books say its description; whether real packets of it are read says the tests' own
table of them (`tests/support/venues.py`).
"""

import sys
from pathlib import Path

from markdown_table import table

from feedhandler.codecs import Feed, list_feeds, load_feed
from feedhandler.codecs.book_rules import BY_POSITION, CHANGES, OF_QUOTES
from feedhandler.gateway import CAPABILITIES, capabilities_of

CHECKOUT = Path(__file__).resolve().parents[2]
if str(CHECKOUT) not in sys.path:
    sys.path.append(str(CHECKOUT))
from tests.support.venues import FOLDERS, OWN_CAPTURES  # noqa: E402

_HEAD = """\
# Feeds, and what each has

Written by `make docs` from `feedhandler/gateway/capabilities.py`, which asks the parts of the
program; `feedhandler feeds` prints the same. A feed is a description, and a description is enough
for what every feed has. The rest asks for tables of it: servers and refreshes for `[recovery]`,
books, records and trading states for `[book]`, names for `[reference]`.
"""

_FOOT = """\
A line's own losses are made good by the other line, for every feed. What no line brought is
announced to all subscribers with its exact range (`STALE`); without retransmission it is not asked
for, and without refresh it stays so until the next sequence epoch. `feedhandler config check`
refuses a configuration that asks for what its feed has not: `[[server]]`, `retransmission`,
`refresh`, `[[channel.refresh_line]]`, `[[channel.retransmission_line]]`; and settings of a server
that its protocol has no use for: `source_id`, `product`, `session`, a password. `snapshot=1` is
answered with `amqp:not-implemented` there, and where books are not kept, orders that wait for a
slow subscriber wait as they came ([flow-control.md](flow-control.md)).

To try a feed's recovery: `feedhandler exchange --feed FEED --loss 2% --write-config gateway.toml`
sends a generated session on lossy lines, has the servers of the feed's `[recovery]` table, and
writes the configuration of a gateway of it ([exchange.md](exchange.md#a-gateway-beside-it)).

Where the exchange's server answers by multicast (`nyse-xdp`, `cboe-grp`), each channel that is
recovered names the lines of the answers:

```toml
[gateway]
feed = "nyse-integrated-pillar"

[[server]]
name = "requests"
address = "10.0.0.1:7001"
source_id = "YOURS"        # as the exchange has registered it: 9 characters at most
product = 7                # the ProductID that the feed's client specification lists

[[channel]]
service = 3                # the ChannelID
retransmission = "requests"
refresh = "requests"

[[channel.line]]
name = "A"
group = "239.101.1.4"
port = 30104

[[channel.retransmission_line]]
name = "A"
group = "239.101.3.4"
port = 32104

[[channel.refresh_line]]
name = "A"
group = "239.101.4.4"
port = 32204
```

NYSE's request server is asked for refreshes, too: `refresh` names it, and each such channel names
its refresh lines. A refresh is requested with the mapping of the symbols, so that a late joiner
has their names, and is for all symbols of the channel: two requests each, of which an exchange
allows some hundred a day. A channel of one symbol is not refreshed: its answer looks
like one to another client. [FORMAT.md](../codecs/FORMAT.md) lists what of this is inferred.

IEX's gap fill servers (`iex-tp`) answer over UDP; a server needs its address alone, and one serves
any number of channels, whose service is the ChannelID.

CME's TCP replay (`cme-replay`) is connected to only while something is asked for: `source_id` is
the username, `password_file` or `password_env` has the password, and a service is the MDP channel,
as CME numbers it. Its market recovery feed loops the books: each channel names those lines, on
which nothing is requested, and a loop heals what was lost before its oldest book. A loop may take
longer than `refresh_timeout_us`; a service is STALE then, and healed all the same:

```toml
[gateway]
feed = "cme-mdp3"

[[server]]
name = "replay"
address = "10.0.0.1:10000"
source_id = "USER"
password_file = "/etc/feedhandler/cme"

[[channel]]
service = 310
retransmission = "replay"

[[channel.line]]
name = "A"
group = "224.0.31.1"
port = 14310

[[channel.refresh_line]]
name = "A"
group = "224.0.31.22"
port = 15310
```

Cboe's servers are logged in to: `session` is the SessionSubId, `source_id` the username, and
`password_file` or `password_env` has the password. A service is a unit. Gap requests and spins are
two servers, and a Spin Server serves one unit:

```toml
[[server]]
name = "grp"
address = "10.0.0.1:7001"
session = "0001"
source_id = "USER"
password_file = "/etc/feedhandler/cboe"

[[server]]
name = "spin-1"
address = "10.0.0.1:7101"
session = "0002"
source_id = "USER"
password_file = "/etc/feedhandler/cboe"

[[channel]]
service = 1
retransmission = "grp"
refresh = "spin-1"
```

Nasdaq's GLIMPSE is logged in to for each snapshot, by `source_id` and password, and left behind it:
the gateway has no connection to it meanwhile. Each channel has a server of its own for either:

```toml
[gateway]
feed = "nasdaq-totalview-itch"

[recovery]
snapshot_bytes_max = 268435456   # all open orders: some 40 bytes each

[amqp]
queue_bytes = 402653184          # such a snapshot waits for a link as a whole

[[server]]
name = "requests"
address = "10.0.0.1:7001"        # MoldUDP64, over UDP

[[server]]
name = "glimpse"
address = "10.0.0.1:7101"
source_id = "USER01"
password_file = "/etc/feedhandler/nasdaq"

[[channel]]
service = 1
retransmission = "requests"
refresh = "glimpse"
```
@ALIKE@

A description of your own has what its messages are named for, as the built-in ones do:
`feedhandler feeds mine.toml` shows it. How to make one is [own-feeds.md](own-feeds.md); its keys
are [FORMAT.md](../codecs/FORMAT.md).
"""

_TESTED = """\
How each feed is tested: *real packets* of @VENUES@ feeds are compared, field by field, with what an
independent dissector makes of them (`tests/unit/codecs/feeds/test_venues.py`), and those of @OWN@
more with values that came with them or were read by hand (beside it); *generated sessions* are
made, sent, lost and recovered (`tests/simulation`). Beside that, every message of every feed is
encoded and decoded with random values (`tests/unit/codecs/test_roundtrip.py`), and mutated packets
of every feed go through the compiled scanner and its interpreted twin (`tests/fuzz`).
"""

_SOME = """\
What is not in the next table is there for every feed.
"""


def feeds() -> str:
    """Return the text of `docs/feeds.md`."""
    known = [load_feed(name) for name in list_feeds()]
    meanings = table(("what", "that is"), [(each.title, each.meaning) for each in CAPABILITIES])
    some = [each for each in CAPABILITIES if not all(map(each.has, known))]
    cells = [
        (f"`{feed.name}`", *("yes" if each.has(feed) else "no" for each in some)) for feed in known
    ]
    heads = ("feed", "what it is", "messages", "recovery", "books", "records", "tested by")
    tested = _TESTED.replace("@VENUES@", str(len(FOLDERS))).replace("@OWN@", str(len(OWN_CAPTURES)))
    parts = [
        _HEAD, meanings, "", table(heads, map(_row, known)), tested, _SOME,
        table(("feed", *(each.title for each in some)), cells), _foot(known),
    ]  # fmt: skip
    return "\n".join(parts)


def _row(feed: Feed) -> tuple[str, ...]:
    """Return what a feed is, and what its description says of recovery and books."""
    has = capabilities_of(feed)
    protocols = ", ".join(f"`{name}`" for name in protocols_of(feed))
    return (
        f"`{feed.name}`",
        feed.title,
        str(len(feed.layouts) or len(feed.message_types)),
        protocols or "none",
        books_of(feed),
        "yes" if has["records"] else "no",
        tested_by(feed),
    )


def protocols_of(feed: Feed) -> list[str]:
    """Return the names of a feed's recovery protocols, each once."""
    if feed.recovery is None:
        return []
    facts = (feed.recovery.retransmission, feed.recovery.snapshots, feed.recovery.form)
    return list(dict.fromkeys(each.name for each in facts if each is not None))


def books_of(feed: Feed) -> str:
    """Return what a feed's books are kept by: `by order`, `by level`, both or `none`."""
    if feed.book is None:
        return "none"
    if feed.description.framing == "fix":
        return "by order or by level, as each entry says"
    does = {rule.does for message in feed.book.messages for rule in message.rules}
    if not does & CHANGES:
        return "none: trades alone"
    of_quotes = " (quotes)" if does & OF_QUOTES else ""
    by_level = " or by level" if feed.book.by == "order" and does & BY_POSITION else ""
    return f"by {feed.book.by}{of_quotes}{by_level}"


def tested_by(feed: Feed) -> str:
    """Return what tests put a feed through, beside random values."""
    has = capabilities_of(feed)
    ways = []
    if feed.name in FOLDERS or feed.name in OWN_CAPTURES:
        ways.append("real packets")
    if has["generate"] or has["exchange"]:
        ways.append("generated sessions")
    return ", ".join(ways) or "random values"


def _foot(known: list[Feed]) -> str:
    """Return the end of the page, with the feeds whose servers are configured as Nasdaq's are."""
    nasdaq = "nasdaq-totalview-itch"
    protocols = protocols_of(load_feed(nasdaq))
    alike = [
        f"`{feed.name}`"
        for feed in known
        if feed.name != nasdaq and protocols_of(feed) == protocols
    ]
    said = f"\nServers of {', '.join(alike)} are configured in the same way.\n" if alike else ""
    return _FOOT.replace("@ALIKE@\n", said)
