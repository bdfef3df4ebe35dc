"""Reactions to each reason for which a server refuses a request.

Two tables, one for each server. Whatever the reason, only the request's own channel is affected,
except for the quota, which belongs to the server. What is abandoned is announced lost, and then a
snapshot heals it; so "abandon" below always means "refresh" where a refresh server is configured.
"""

from enum import Enum
from typing import NamedTuple

from feedhandler.retrans.protocol import RefreshReject, RetransReject


class Reaction(Enum):
    """Reactions to a refused retransmission; the values are the words of the documentation."""

    ABANDON = "abandon the range"
    DISPROVE = (
        "report to arbitration that its last number was not sent yet; ask again after a back-off, "
        "as long as there are tries and few ranges wait, for the server may lag; else abandon the "
        "range"
    )
    NARROW = (
        "ask for half as much at a time, from now on; abandon everything if that was one packet"
    )
    PAUSE = "wait once; if refused again, abandon everything and ask no more today, unless told to"
    ALERT = "alert the operator once, abandon the range"


class RefreshReaction(Enum):
    """Reactions to a refused refresh; the values are the words of the documentation."""

    PAUSE = "ask again after a pause, as long as there are tries"
    REST = "alert the operator once; stale until the next turn"
    REST_TODAY = (
        "alert the operator once; stale until the next day, but for unasked snapshots, unless told "
        "to ask"
    )


class Reply(NamedTuple):
    """A reaction, and the text for the operator where it alerts him."""

    reaction: Reaction
    text: str


class RefreshReply(NamedTuple):
    """A reaction of the refresh table, and the text for the operator where it alerts him."""

    reaction: RefreshReaction
    text: str


RETRANSMISSION: dict[int, Reply] = {
    RetransReject.PERMISSION: Reply(
        Reaction.ALERT, "no permission; compare source_id with what the exchange has registered"
    ),
    # A server that is a moment behind the lines has the packets a moment later; and where two lines
    # have shown what follows them, arbitration does not believe that they were not sent.
    RetransReject.INVALID_RANGE: Reply(Reaction.DISPROVE, "numbers that were not sent yet"),
    # Its limit lies below our request_packets_max. Half as much costs one more round trip, a
    # refresh a whole snapshot; ten halvings reach a single packet.
    RetransReject.OVER_THRESHOLD: Reply(Reaction.NARROW, "range over the threshold"),
    RetransReject.TOO_MANY_TODAY: Reply(Reaction.PAUSE, "too many requests today"),
    RetransReject.NO_LONGER_AVAILABLE: Reply(Reaction.ABANDON, "no longer available"),
    RetransReject.BADLY_FORMED: Reply(
        Reaction.ALERT, "badly formed request; compare the feed description with the server"
    ),
    RetransReject.WRONG_SERVICE: Reply(
        Reaction.ALERT, "not its service; compare the channel's retransmission server"
    ),
}

REFRESH: dict[int, RefreshReply] = {
    RefreshReject.PERMISSION: RefreshReply(
        RefreshReaction.REST,
        "no permission; compare source_id with what the exchange has registered",
    ),
    RefreshReject.WRONG_SERVICE: RefreshReply(
        RefreshReaction.REST, "not its service; compare the channel's refresh server"
    ),
    RefreshReject.BADLY_FORMED: RefreshReply(
        RefreshReaction.REST, "badly formed request; compare the feed description with the server"
    ),
    RefreshReject.WRONG_PACKET_TYPE: RefreshReply(
        RefreshReaction.REST, "wrong packet type; is it the retransmission server's address?"
    ),
    RefreshReject.TOO_MANY_TODAY: RefreshReply(
        RefreshReaction.REST_TODAY, "too many requests today"
    ),
    RefreshReject.NO_DATA: RefreshReply(RefreshReaction.PAUSE, "no snapshot available"),
    RefreshReject.SECONDARY: RefreshReply(
        RefreshReaction.REST, "this is the secondary server; configure the primary"
    ),
}

#: The reactions to reasons that the tables do not have.
UNKNOWN = Reply(Reaction.ALERT, "a reason unknown to us")
UNKNOWN_REFRESH = RefreshReply(RefreshReaction.REST, "a reason unknown to us")
