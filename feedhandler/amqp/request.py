"""What is asked of a node, in the words that it takes: the URL and the link's source address.

No I/O: text in, text out. What the words mean is the node's part (`routing`).
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from feedhandler.codecs.errors import UsageError

DEFAULT_PORT = 5672
#: Grains by name.
GRAINS = ("packet", "batch", "message")


def parse_url(url: str) -> tuple[str, int]:
    """Host and port of an `amqp://host[:port]` URL."""
    try:
        parts = urlsplit(url if "://" in url else f"amqp://{url}")
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL: {error}", "write amqp://host:port") from None
    if parts.scheme != "amqp" or not host or parts.path not in ("", "/"):
        raise UsageError(f"{url!r} is no AMQP URL", "write amqp://host:port")
    return host, port


def build_address(
    pattern: str,
    *,
    grain: str = "packet",
    types: Iterable[int | str] | None = None,
    quality: bool = True,
    stamp: bool = False,
    snapshot: bool = False,
    resume: Iterable[bytes] = (),
) -> str:
    """The source address that asks for all this. `resume`: the last tag of each service."""
    options = []
    if grain != "packet":
        options.append(f"as={grain}")
    if types is not None:
        options.append("types=" + ",".join(str(word) for word in types))
    if not quality:
        options.append("quality=0")
    if stamp:
        options.append("stamp=1")
    if snapshot:
        options.append("snapshot=1")
    if tags := [tag.hex() for tag in resume]:
        options.append("from=" + ",".join(tags))
    if not options:
        return pattern
    return pattern + ("&" if "?" in pattern else "?") + "&".join(options)
