"""`feedhandler feeds new`: the beginning of a description, which loads as it is.

The packet headers of framings that several exchanges use stand here, for `feeds_import`, too.
"""

import re
import sys
from pathlib import Path

import msgspec

from feedhandler.codecs.errors import UsageError, unwritable
from feedhandler.terminal.console import ExitCode, complain

#: The number of a description that has no other one; the built-in feeds stay below.
NUMBER = 1000

_MOLDUDP64 = """\
# MoldUDP64: a datagram is one packet. Numbers count messages, from 1 in each session. A packet
# without messages is a heartbeat, one of 65,535 ends the session: both carry the next number.
[packet]
header_size = 20
sequence = { field = "SequenceNumber", counts = "messages", heartbeat = "next" }
heartbeat_when_empty = true
count = "MessageCount"
end_of_session = 65535
session = "Session"
fields = [
    { type = "c10", name = "Session" },
    { type = "u64", name = "SequenceNumber" },
    { type = "u16", name = "MessageCount" },
]
"""

_CME = """\
# A datagram is one packet: its number, its send time, then messages to its end. Numbers count
# packets.
[packet]
header_size = 12
sequence = { field = "PacketSequenceNumber", counts = "packets", first = 1 }
heartbeat_when_empty = true
send_time = { field = "SendingTime", unit = "ns", since = "epoch" }
fields = [
    { type = "u32", name = "PacketSequenceNumber" },
    { type = "u64", name = "SendingTime", doc = "nanoseconds since 1970" },
]
"""

_B3 = """\
# A datagram is one packet: channel, number and send time, then messages to its end. Numbers count
# packets, from 1 in each SequenceVersion; number 0 is outside the sequence.
[packet]
header_size = 16
sequence = { field = "SequenceNumber", counts = "packets", first = 1, unsequenced = 0 }
heartbeat_when_empty = true
service = "ChannelId"
session = "SequenceVersion"
send_time = { field = "SendingTime", unit = "ns", since = "epoch" }
fields = [
    { type = "u8", name = "ChannelId" },
    { type = "x1" },
    { type = "u16", name = "SequenceVersion" },
    { type = "u32", name = "SequenceNumber" },
    { type = "u64", name = "SendingTime", doc = "nanoseconds since 1970" },
]
"""

_MEMX = """\
# A datagram is one packet: heartbeat, end of session, or messages. Numbers count messages.
[packet]
header_size = 20
sequence = { field = "SequenceNumber", counts = "messages", first = 1, heartbeat = "next" }
count = "MessageCount"
kind = { field = "MessageType", data = [2], heartbeat = [0, 1], header_size = 18 }
session = "SessionId"
fields = [
    { type = "u8", name = "MessageType", values = { 0 = "heartbeat", \
1 = "end of session", 2 = "sequenced messages" } },
    { type = "u8", name = "HeaderLength", constant = 18, doc = "without MessageCount" },
    { type = "u64", name = "SessionId" },
    { type = "u64", name = "SequenceNumber" },
    { type = "u16", name = "MessageCount", doc = "of sequenced packets only" },
]
"""

#: Packet headers in front of SBE messages.
SBE_PACKETS = {"cme": _CME, "b3": _B3, "memx": _MEMX, "moldudp64": _MOLDUDP64}


class Framing(msgspec.Struct, frozen=True):
    """The headers of a framing, as TOML; `type` is that of the example message."""

    byte_order: str
    pad: str
    packet: str
    message: str
    type: str


_TEXT_TYPE = """\
# A message's length leaves out its own two bytes.
[message]
header_size = 3
length = { at = 0, type = "u16" }
length_add = 2
type = { at = 2, type = "c1" }
fields = [{ type = "u16", name = "MessageLength" }, { type = "c1", name = "MessageType" }]
"""

#: Framings by the word for `--framing`.
FRAMINGS = {
    "moldudp64": Framing("big", "space", _MOLDUDP64, _TEXT_TYPE, '"A"'),
    "xdp": Framing(
        "little",
        "nul",
        """\
# NYSE XDP: a packet's length includes its header. Numbers count messages. DeliveryFlag tells what a
# packet is for. Whether a heartbeat's number is the last or the next one, the exchange's own
# specification tells.
[packet]
header_size = 16
length = { field = "PktSize", add = 0 }
sequence = { field = "SeqNum", counts = "messages", first = 1, heartbeat = "none" }
kind = { field = "DeliveryFlag", data = [11, 10, 13, 15, 17, 18, 19, 20], heartbeat = [1], \
reset = [12], control = [21] }
heartbeat_when_empty = true
count = "NumberMsgs"
flags = "DeliveryFlag"
send_time = { field = "SendTime", unit = "s", since = "epoch", nanoseconds = "SendTimeNS" }
fields = [
    { type = "u16", name = "PktSize", doc = "bytes of the whole packet" },
    { type = "u8", name = "DeliveryFlag", values = { 1 = "heartbeat", \
10 = "after a failover", 11 = "original", 12 = "sequence reset", \
13 = "retransmission, only packet", 15 = "retransmission, one of several", \
17 = "refresh, only packet", 18 = "refresh, first", 19 = "refresh, going on", \
20 = "refresh, last", 21 = "message unavailable" } },
    { type = "u8", name = "NumberMsgs" },
    { type = "u32", name = "SeqNum", doc = "of the first message" },
    { type = "u32", name = "SendTime", doc = "seconds since 1970" },
    { type = "u32", name = "SendTimeNS" },
]
""",
        """\
# A message's size includes itself.
[message]
header_size = 4
length = { at = 0, type = "u16" }
type = { at = 2, type = "u16" }
fields = [{ type = "u16", name = "MsgSize" }, { type = "u16", name = "MsgType" }]
""",
        "100",
    ),
    "sbe": Framing(
        "little",
        "nul",
        _CME,
        """\
# A message is its size, which includes itself, and an SBE header; its block of fields may be longer
# in a later version. `feedhandler feeds import` writes all messages from the exchange's schema.
[message]
header_size = 10
length = { at = 0, type = "u16" }
type = { at = 4, type = "u16" }
block_length = { at = 2, type = "u16" }
fields = [
    { type = "u16", name = "MessageSize" },
    { type = "u16", name = "BlockLength" },
    { type = "u16", name = "TemplateId" },
    { type = "u16", name = "SchemaId", constant = 1 },
    { type = "u16", name = "Version", constant = 0 },
]
""",
        "1",
    ),
    "iex-tp": Framing(
        "little",
        "space",
        """\
# IEX-TP: a datagram's length leaves out its header. Numbers count messages. A datagram without
# messages is a heartbeat and carries the next number. A feed has its own MessageProtocolID: add
# `constants = { Version = 1, MessageProtocolID = ... }`, and packets of others are rejected.
[packet]
header_size = 40
length = { field = "PayloadLength", add = 40 }
sequence = { field = "FirstMessageSequenceNumber", counts = "messages", heartbeat = "next" }
heartbeat_when_empty = true
count = "MessageCount"
service = "ChannelID"
session = "SessionID"
send_time = { field = "SendTime", unit = "ns", since = "epoch" }
fields = [
    { type = "u8", name = "Version" },
    { type = "x1" },
    { type = "u16", name = "MessageProtocolID" },
    { type = "u32", name = "ChannelID" },
    { type = "u32", name = "SessionID" },
    { type = "u16", name = "PayloadLength" },
    { type = "u16", name = "MessageCount" },
    { type = "u64", name = "StreamOffset" },
    { type = "u64", name = "FirstMessageSequenceNumber" },
    { type = "u64", name = "SendTime", doc = "nanoseconds since 1970" },
]
""",
        _TEXT_TYPE,
        '"A"',
    ),
    "pitch": Framing(
        "little",
        "space",
        """\
# Cboe's sequenced unit header. A unit numbers its messages from 1 a day; number 0 is outside the
# sequence. A packet without messages is a heartbeat and carries the next number.
[packet]
header_size = 8
length = { field = "Length", add = 0 }
sequence = { field = "Sequence", counts = "messages", heartbeat = "next", unsequenced = 0 }
heartbeat_when_empty = true
count = "Count"
service = "Unit"
fields = [
    { type = "u16", name = "Length", doc = "bytes of the whole packet" },
    { type = "u8", name = "Count" },
    { type = "u8", name = "Unit" },
    { type = "u32", name = "Sequence", doc = "of the first message" },
]
""",
        """\
# A message's length includes itself.
[message]
header_size = 2
length = { at = 0, type = "u8" }
type = { at = 1, type = "u8" }
fields = [{ type = "u8", name = "MessageLength" }, { type = "u8", name = "MessageType" }]
""",
        "0x21",
    ),
}

_SKELETON = """\
# {name}: a description of a feed, begun for {framing}. It loads as it is.
#
# codecs/FORMAT.md tells every key; `feedhandler feeds NAME` shows a built-in feed as a model.
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
conflate = "never" # "latest" where a newer one tells all that the older one did
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
        packet=chosen.packet,
        message=chosen.message,
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
