"""Multicast groups and the senders to them, checked as configurations have them."""

import ipaddress

from feedhandler.codecs.toml_text import WrongKey

#: Upper limit on senders of one line: a server and its stand-ins.
SOURCES_MAX = 4


def check_group(group: str, source: str = "") -> None:
    """Check that a group is IPv4 multicast, and that its sources are IPv4 hosts.

    `source` has them with commas between; "": any sender. Raises `WrongKey` for the key `group` or
    `source`.
    """
    if not _is_group(group):
        hint = "groups lie in 224.0.0.0 to 239.255.255.255"
        raise WrongKey(("group",), f"{group!r} is no multicast group", hint)
    words = [word.strip() for word in source.split(",")] if source else []
    if len(words) > SOURCES_MAX:
        raise WrongKey(("source",), f"{len(words)} senders", f"at most {SOURCES_MAX}")
    for word in words:
        if _is_group(word):
            raise WrongKey(("source",), f"{word} is a group", "the sender's own address")
        try:
            ipaddress.IPv4Address(word)
        except ValueError:
            hint = "give the sender's address, or leave it out to accept any"
            raise WrongKey(("source",), f"{word!r} is no IPv4 address", hint) from None


def _is_group(text: str) -> bool:
    try:
        return ipaddress.IPv4Address(text).is_multicast
    except ValueError:
        return False
