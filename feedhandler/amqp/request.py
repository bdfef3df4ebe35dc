"""What is asked of a node, in the words that it takes: the URL and the link's source address.

No I/O: text in, text out. What the words mean is the node's part (`routing`).
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from msgspec import Struct

from feedhandler.codecs.errors import UsageError

DEFAULT_PORT = 5672
#: Messages granted ahead of consumption, by grain: some hundred KB to a few MB on their way.
CREDIT = {"packet": 4096, "message": 16_384, "batch": 64}


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


class Request(Struct, frozen=True, kw_only=True):
    """What one subscription wants; `quality`: whoever consumes wants to see quality messages."""

    pattern: str
    grain: str = "packet"
    types: tuple[int | str, ...] | None = None
    quality: bool = True
    stamp: bool = False
    snapshot: bool = False

    def check(self) -> None:
        """Raises UsageError for what no node could make sense of."""
        if self.grain not in CREDIT:
            raise UsageError(f"as_={self.grain!r}: it is packet, batch or message")
        if self.snapshot and not self.quality:
            raise UsageError("snapshots come between quality messages", "leave quality=False out")

    def address(
        self, tags: Iterable[bytes] = (), *, snapshot: bool = False, quality: bool = False
    ) -> str:
        """The source address that asks for all this, going on behind `tags`, the last of each
        service; `snapshot`, `quality`: asked for in any case."""
        options = []
        if self.grain != "packet":
            options.append(f"as={self.grain}")
        if self.types is not None:
            options.append("types=" + ",".join(str(word) for word in self.types))
        if not (self.quality or quality or snapshot):
            options.append("quality=0")
        if self.stamp:
            options.append("stamp=1")
        if self.snapshot or snapshot:
            options.append("snapshot=1")
        pattern = self.pattern
        if words := [tag.hex() for tag in tags]:
            pattern = _without(pattern, "from")
            options.append("from=" + ",".join(words))
        if not options:
            return pattern
        return pattern + ("&" if "?" in pattern else "?") + "&".join(options)


def _without(pattern: str, key: str) -> str:
    """The pattern without an option that its writer put there."""
    text, _, query = pattern.partition("?")
    kept = "&".join(part for part in query.split("&") if not part.startswith(f"{key}="))
    return f"{text}?{kept}" if kept else text
