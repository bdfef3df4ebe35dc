"""Encoding and decoding of Resend Requests of a multicast channel, which name channel and numbers.

Numbers alone are ambiguous, since each channel has its own. The channel stands in TargetSubID (57),
or in another tag that both ends are set to. EndSeqNo 0 means all that were sent.
"""

import re
from typing import NamedTuple

from feedhandler.codecs.errors import UsageError
from feedhandler.codecs.fix.datagram import RESEND_REQUEST, TEST_REQUEST
from feedhandler.codecs.fix.envelope import envelope
from feedhandler.codecs.fix.framing import SEQUENCE_MAX, Frame, frame_message

#: TargetSubID.
CHANNEL_TAG = 57
#: Tags that a request has already, so that they cannot carry the channel.
_TAKEN = {8, 9, 10, 34, 35, 7, 16}
_BEGIN = re.compile(rb"\x017=(\d{1,20})\x01")
_TEST_ID = re.compile(rb"\x01112=([^\x01]{1,64})\x01")
_END = re.compile(rb"\x0116=(\d{1,20})\x01")


class ResendRequest(NamedTuple):
    """A request for the messages `begin` to `end` (0: to the last) of a channel."""

    channel: str
    begin: int
    end: int


class RequestFormat:
    """Encodes and decodes requests, with the set tag of the channel and BeginString.

    Raises `UsageError` for a tag that has another meaning.
    """

    def __init__(self, channel_tag: int = CHANNEL_TAG, begin_string: str = "FIXT.1.1") -> None:
        if not 0 < channel_tag < 10**9 or channel_tag in _TAKEN:
            raise UsageError(
                f"tag {channel_tag} cannot say the channel", f"such as {CHANNEL_TAG}, TargetSubID"
            )
        self._tag = channel_tag
        self._begin_string = begin_string.encode()
        self._channel = re.compile(rb"\x01%d=([^\x01]+)\x01" % channel_tag)

    def encode(self, request: ResendRequest) -> bytes:
        """Encode a request. It is not numbered: its MsgSeqNum is 0."""
        header = b"35=2\x0134=0\x01%d=%b\x01" % (self._tag, request.channel.encode())
        body = b"7=%d\x0116=%d\x01" % (request.begin, request.end)
        return envelope(self._begin_string, header + body)

    def test(self) -> bytes:
        """Encode a TestRequest, which a server that understands it answers with a Heartbeat."""
        return envelope(self._begin_string, b"35=1\x0134=0\x01112=alive\x01")

    def reply(self, data: bytes) -> bytes | None:
        """Encode the Heartbeat that answers a TestRequest; return None where `data` is none."""
        frame = Frame()
        if frame_message(data, 0, len(data), frame) or frame.message_type != TEST_REQUEST:
            return None
        found = _TEST_ID.search(data, frame.body)
        said = b"112=%b\x01" % found[1] if found else b""
        return envelope(self._begin_string, b"35=0\x0134=0\x01" + said)

    def decode(self, data: bytes) -> ResendRequest | None:
        """Decode a request; return None where the message is none, or lacks a field."""
        frame = Frame()
        if frame_message(data, 0, len(data), frame) or frame.message_type != RESEND_REQUEST:
            return None
        found = [each.search(data, frame.body) for each in (self._channel, _BEGIN, _END)]
        if None in found:
            return None
        channel, begin, end = (each[1] for each in found if each)
        try:
            request = ResendRequest(channel.decode(), int(begin), int(end))
        except UnicodeDecodeError:
            return None
        return request if max(request.begin, request.end) <= SEQUENCE_MAX else None
