"""The built-in feed that datagrams fit, for complaints that name it."""

from collections.abc import Sequence

from feedhandler.codecs import Feed, list_feeds, load_feed
from feedhandler.codecs.bad_packet import BadPacket
from feedhandler.codecs.fit import Fit


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


def is_packet(feed: Feed, payload: bytes) -> bool:
    """Return whether a datagram is a packet of the feed, with whole messages."""
    try:
        feed.decode_packet(payload)
    except BadPacket:
        return False
    return True
