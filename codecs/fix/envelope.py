"""Writes the envelope around the fields of a FIX message: BeginString, BodyLength and CheckSum."""


def envelope(begin_string: bytes, fields: bytes) -> bytes:
    """Return a whole message of its `fields`, from MsgType (35) on, each with its SOH."""
    head = b"8=%b\x019=%d\x01%b" % (begin_string, len(fields), fields)
    return b"%b10=%03d\x01" % (head, sum(head) & 0xFF)
