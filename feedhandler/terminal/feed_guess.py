"""The built-in feed that datagrams fit, for complaints that name it."""

import itertools
from collections.abc import Iterable, Sequence

from feedhandler.codecs import Feed, list_feeds, load_feed
from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.fit import Fit
from feedhandler.replay.captures.reading import Datagram
from feedhandler.terminal.console import complain

#: Datagrams that are decoded to check whether a capture is of a feed, or which feed fits.
PROBE_DATAGRAMS = 200


def first_payloads(datagrams: Iterable[Datagram]) -> list[bytes]:
    """Return the payloads of the datagrams to decode."""
    return [each.payload for each in itertools.islice(datagrams, PROBE_DATAGRAMS)]


def fitting_feed(payloads: Sequence[bytes]) -> str:
    """Return the built-in feed that fits most of the payloads, more than half; "" for none.

    Some framings have so little in them that other feeds' packets pass: of those that fit as many,
    it is the one that checks most of a header, and leaves fewest bytes unread.
    """
    best, most = "", (len(payloads) // 2, 99, 0)
    for name in list_feeds():
        fit = Fit(load_feed(name))
        for payload in payloads:
            fit.examine(payload)
        unread = sum(use.beyond for use in fit.types.values())
        good = (fit.fitting, _checked(fit.feed), -unread)
        if good > most:
            best, most = name, good
    return best


def fitting_hint(payloads: Sequence[bytes]) -> str:
    """Return a hint about datagrams that are not of the feed that was named."""
    name = fitting_feed(payloads)
    return f"they fit --feed {name}" if name else "no built-in feed fits: see --feed"


def _checked(feed: Feed) -> int:
    """Return how many things of a packet's header a feed checks."""
    packet, table = feed.description.packet, feed.table
    fields = (table.length_size, table.count_size, packet.kind)
    return sum(map(bool, fields)) + len(packet.constants)


def complain_if_foreign(payloads: Sequence[bytes], feed: Feed, count: int, where: str = "") -> bool:
    """Report a capture of `count` datagrams whose first ones are no packets of the feed, with the
    feed that fits; return whether that is so."""
    if any(_is_packet(feed, payload) for payload in payloads):
        return False  # the choice of a part has left them out
    text = f"{where}none of {count:,} datagrams is a packet of {feed.name}"
    complain(text, fitting_hint(payloads))
    return True


def _is_packet(feed: Feed, payload: bytes) -> bool:
    """Return whether a datagram is a packet of the feed, with whole messages."""
    try:
        feed.decode_packet(payload)
    except BadPacket:
        return False
    return True
