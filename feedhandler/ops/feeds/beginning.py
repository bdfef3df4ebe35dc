"""`feedhandler feeds new`: the beginning of a description, which loads as it is.

Headers of packets and messages are those of built-in descriptions.
"""

import re
import sys
from pathlib import Path

import msgspec

from feedhandler.codecs.errors import UsageError, unwritable
from feedhandler.codecs.loader import FEEDS_FOLDER
from feedhandler.terminal.console import ExitCode, complain

#: The number of a description that has no other one; the built-in feeds stay below.
NUMBER = 1000


def _table(feed: str, name: str, note: str) -> str:
    """Return a table of a built-in description, as it stands there, below a note of ours."""
    text = (FEEDS_FOLDER / f"{feed}.toml").read_text()
    found = re.search(rf"(?ms)^\[{name}\].*?(?=^\[|\Z)", text)
    assert found is not None
    return f"{note}{found[0].rstrip()}\n"


_CME = """\
# A datagram is one packet: its number, its send time, then messages to its end. Numbers count
# packets.
"""
_MOLDUDP64 = """\
# MoldUDP64: a datagram is one packet. Numbers count messages, from 1 in each session. A packet
# without messages is a heartbeat, one of 65,535 ends the session: both carry the next number.
"""
#: Built-in feeds whose packets are in front of SBE messages, and notes on them.
_SBE = {
    "cme": ("cme-mdp3", _CME),
    "b3": (
        "b3-umdf",
        """\
# A datagram is one packet: channel, number and send time, then messages to its end. Numbers count
# packets, from 1 in each SequenceVersion; number 0 is outside the sequence.
""",
    ),
    "memx": (
        "memx-memoir",
        "# A packet is a heartbeat, an end of session, or messages. Numbers count messages.\n",
    ),
    "moldudp64": ("shared/moldudp64", _MOLDUDP64),
}


def sbe_packet(framing: str) -> str:
    """Return the header of packets of SBE messages."""
    feed, note = _SBE[framing]
    return _table(feed, "packet", note)


class Framing(msgspec.Struct, frozen=True):
    """A framing: the built-in feeds that have its tables, notes, the example message's type."""

    byte_order: str
    pad: str
    feed: str
    packet: str
    message: str
    type: str
    message_feed: str = ""


_TEXT_TYPE = "# A message's length leaves out its own two bytes.\n"
#: Framings by the word for `--framing`.
FRAMINGS = {
    "moldudp64": Framing("big", "space", "shared/moldudp64", _MOLDUDP64, _TEXT_TYPE, '"A"'),
    "xdp": Framing(
        "little",
        "nul",
        "nyse-integrated-xdp",
        """\
# NYSE XDP: a packet's length includes its header. Numbers count messages. DeliveryFlag gives the
# packet's kind. Whether a heartbeat's number is the last or the next one, the exchange's own
# specification says.
""",
        "# A message's size includes itself.\n",
        "100",
    ),
    "sbe": Framing(
        "little",
        "nul",
        "cme-mdp3",
        _CME,
        """\
# A message is its size, which includes itself, and an SBE header; its block of fields may be longer
# in a later version. SchemaId and Version are those of the exchange's schema, from which
# `feedhandler feeds import` writes all messages.
""",
        "1",
        "shared/cme-mdp3",
    ),
    "iex-tp": Framing(
        "little",
        "space",
        "shared/iex-tp",
        """\
# IEX-TP: a datagram's length leaves out its header. Numbers count messages. A datagram without
# messages is a heartbeat and carries the next number. A feed has its own MessageProtocolID: add
# `constants = { Version = 1, MessageProtocolID = ... }`, and packets of others are rejected.
""",
        _TEXT_TYPE,
        '"A"',
    ),
    "pitch": Framing(
        "little",
        "space",
        "shared/cboe-pitch",
        """\
# Cboe's sequenced unit header. A unit numbers its messages from 1 a day; number 0 is outside the
# sequence. A packet without messages is a heartbeat and carries the next number.
""",
        "# A message's length includes itself.\n",
        "0x21",
    ),
}

_SKELETON = """\
# {name}: a description of a feed, begun for {framing}. It loads as it is.
#
# codecs/FORMAT.md lists every key; `feedhandler feeds NAME` shows a built-in feed as a model.
# What to fill in next, from the exchange's specification:
#   1. title, zone and source below, and a number of your own, 1000 or above;
#   2. what the comments on [packet] and [message] leave open;
#   3. the messages, in place of the example: begin with those that come most often.
# After each step hold the description against real packets:
#
#   feedhandler feeds check {path} CAPTURE

name = "{name}"
title = "{name}"
key = "{name}" # first word of routing keys
number = {number} # of the feed in message tags: one that no other feed in use has
zone = "UTC" # of the exchange, as "America/New_York": what midnight and the trading day mean
byte_order = "{byte_order}"
pad = "{pad}" # what text is padded with: "nul" or "space"
source = "" # where the facts come from, one line

{packet}
{message}
# An example: put the exchange's messages in its place. A field without `at` follows the one before
# it, the first one the message's header.
[[messages]]
type = {type}
name = "add_order"
title = "Add order"
symbol = "Symbol" # the field that names the instrument
conflate = "never" # "latest" where a newer one carries all that the older one did
fields = [
    {{ type = "u64", name = "Timestamp", doc = "nanoseconds since 1970" }},
    {{ type = "u64", name = "OrderId" }},
    {{ type = "c1", name = "Side", values = {{ B = "buy", S = "sell" }} }},
    {{ type = "c8", name = "Symbol" }},
    {{ type = "u32", name = "Quantity" }},
    {{ type = "i64", name = "Price", price = 4 }}, # four decimals
    {{ type = "x3" }}, # reserved bytes
]

# The full time of messages with this field, as the attribute event_time_ns.
[[times]]
name = "event_time_ns"
since = "epoch" # or "midnight"
nanoseconds = "Timestamp"
"""


def run(name: str, framing: str, out: str) -> int:
    """Write the beginning of a description called `name`. Raises `UsageError`."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(f"{name!r} is no name of a feed", "lower-case words with hyphens")
    path = out or f"{name}.toml"
    chosen = FRAMINGS[framing]
    text = _SKELETON.format(
        name=name,
        framing=framing,
        path="FILE" if out == "-" else path,
        number=NUMBER,
        byte_order=chosen.byte_order,
        pad=chosen.pad,
        packet=_table(chosen.feed, "packet", chosen.packet),
        message=_table(chosen.message_feed or chosen.feed, "message", chosen.message),
        type=chosen.type,
    )
    write_description(text, path)
    return ExitCode.OK


def write_description(text: str, out: str) -> None:
    """Write a description to a new file, or for `-` to stdout, and say how to check it.

    Raises `UsageError` where the file exists, is no `.toml`, or cannot be written, and `HostFault`
    where the disk fails.
    """
    if out == "-":
        sys.stdout.write(text)
        return
    if not out.endswith(".toml"):
        raise UsageError(f"{out}: a description's name ends with .toml", f"--out {out}.toml")
    try:
        with Path(out).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{out} is there already", "name another file with --out") from None
    except OSError as error:
        raise unwritable(out, error) from error
    complain(f"{out} written", f"next: feedhandler feeds check {out} CAPTURE")
