"""FIX messages for tests: written with `|` for SOH, with the right BodyLength and CheckSum."""

BEGIN = b"FIXT.1.1"
#: How a dictionary of a user's own begins: the fields that every message has.
DICTIONARY_HEAD = """name = "OWN"
header = "8 9 35 34"
trailer = "10"
[fields]
8 = "BeginString STRING"
9 = "BodyLength LENGTH"
10 = "CheckSum STRING"
34 = "MsgSeqNum SEQNUM"
35 = "MsgType STRING"
"""


def sealed(body: bytes, begin: bytes = BEGIN) -> bytes:
    """A whole message around `body` (`35=...` up to the last field), with `|` for SOH."""
    body = body.replace(b"|", b"\x01")
    return summed(b"8=%s\x019=%d\x01%s" % (begin, len(body), body))


def summed(text: bytes) -> bytes:
    """`text` with a CheckSum that is right, whatever else is wrong; `|` stands for SOH."""
    text = text.replace(b"|", b"\x01")
    return text + b"10=%03d\x01" % (sum(text) % 256)
