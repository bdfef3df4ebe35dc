"""Values of a channel's session: kinds of messages, numbers, sequence epochs."""

import enum
from typing import NamedTuple

from feedhandler.codecs.fix.framing import SEQUENCE_MAX

#: The highest MsgSeqNum, of 20 digits. The Logout behind it carries the next one, and the codec
#: reads numbers up to that.
NUMBER_MAX = SEQUENCE_MAX - 1
#: The first MsgSeqNum of a sequence epoch, as in every FIX session.
NUMBER_FIRST = 1


class Kind(enum.IntEnum):
    """Kinds of message that the session distinguishes."""

    APPLICATION = 0  #: takes a number
    HEARTBEAT = 1  #: carries the next number, as the following three do
    LOGON = 2
    LOGOUT = 3
    GAP_FILL = 4  #: carries the first number that is skipped
    BEACON = 5  #: has no number


class Message(NamedTuple):
    """One message of a channel.

    number      its own (APPLICATION), the next one, or of a GAP_FILL the first one skipped
    body        the whole message; b"" of an administrative one that is not encoded yet
    new_number  of a GAP_FILL: the number after the last one skipped
    epoch       the sequence epoch that it belongs to; 0: it does not say
    poss_dup    whether it is marked as a possible duplicate
    topic       TargetCompID, where it has one
    """

    kind: Kind
    number: int = 0
    body: bytes = b""
    new_number: int = 0
    epoch: int = 0
    poss_dup: bool = False
    topic: bytes = b""
