"""FIX messages for tests: written with `|` for SOH, with the right BodyLength and CheckSum."""

BEGIN = b"FIXT.1.1"


def sealed(body: bytes, begin: bytes = BEGIN) -> bytes:
    """A whole message around `body` (`35=...` up to the last field), with `|` for SOH."""
    body = body.replace(b"|", b"\x01")
    return summed(b"8=%s\x019=%d\x01%s" % (begin, len(body), body))


def summed(text: bytes) -> bytes:
    """`text` with a CheckSum that is right, whatever else is wrong; `|` stands for SOH."""
    text = text.replace(b"|", b"\x01")
    return text + b"10=%03d\x01" % (sum(text) % 256)
