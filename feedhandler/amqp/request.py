"""A subscription's request in the node's terms: the URL and the link's source address.

No I/O: text in, text out. What the words mean is the node's part (`routing`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from feedhandler.amqp.policies import CONFLATE, DETACH
from feedhandler.codecs.dbn import SCHEMAS
from feedhandler.codecs.errors import UsageError

DEFAULT_PORT = 5672
TLS_PORT = 5671
#: Messages granted ahead of consumption, by grain: some hundred KB to a few MB on their way.
CREDIT = {"packet": 4096, "message": 16_384, "batch": 64, **dict.fromkeys(SCHEMAS, 64)}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A node's host and port, with the user and password of the URL. `encrypted`: amqps."""

    host: str
    port: int
    encrypted: bool = False
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """URL for display: without user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp{'s' * self.encrypted}://{host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """Parse an `amqp[s]://[user[:password]@]host[:port]` URL.

    Raises UsageError, with nothing in it that stands before the host.
    """
    shown = without_credentials(url)
    try:
        parts = urlsplit(url if "://" in url else f"amqp://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        reason = str(error) if shown == url else "cannot be read"
        raise UsageError(f"{shown!r} is no URL: {reason}", "write amqp://host:port") from None
    if parts.scheme not in ("amqp", "amqps") or not host or parts.path not in ("", "/"):
        raise UsageError(f"{shown!r} is no AMQP URL", "write amqp://host:port")
    if parts.query or parts.fragment:
        raise UsageError(f"{shown!r} is no AMQP URL", "write # ? / in a password as %23 %3F %2F")
    encrypted = parts.scheme == "amqps"
    return Endpoint(
        host,
        port or (TLS_PORT if encrypted else DEFAULT_PORT),
        encrypted,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
    )


def without_credentials(url: str) -> str:
    """Remove user and password from a URL, or a malformed one, for display."""
    scheme, slashes, rest = url.rpartition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


class Request(Struct, frozen=True, kw_only=True):
    """Request of one subscription; `grain`: packets, batches, messages, or a schema of
    normalised records; `quality`: the consumer wants quality messages."""

    pattern: str
    grain: str = "packet"
    types: tuple[int | str, ...] | None = None
    quality: bool = True
    stamp: bool = False
    snapshot: bool = False
    full: str | None = None

    def check(self) -> None:
        """Check the combination of options. Raises UsageError where no node could serve it."""
        if self.grain not in CREDIT:
            raise UsageError(f"as_={self.grain!r}: it is one of {', '.join(CREDIT)}")
        if self.holds_records and self.types is not None:
            raise UsageError("types choose among the feed's messages", "leave types out")
        if self.snapshot and not self.quality and not self.holds_records:
            raise UsageError("snapshots come between quality messages", "leave quality=False out")

    def of_several(self) -> "Request":
        """Return the request as each of several gateways is asked: what one of them drops, the
        others have, so that a link is to be detached, and to resume, where nothing else is asked.

        Raises UsageError for what cannot be merged.
        """
        if self.holds_records:
            raise UsageError(
                "normalised records come from one gateway: their batches are each gateway's own",
                "subscribe to one of them",
            )
        _, _, query = self.pattern.partition("?")
        asked = [part for part in query.split("&") if part.startswith("full=")]
        policy = self.full or "".join(asked).removeprefix("full=")
        if policy == CONFLATE:
            raise UsageError(
                "what gateways conflate cannot be merged: each leaves out something else",
                "subscribe to one of them, or leave full=conflate out",
            )
        return self if policy else replace(self, full=DETACH)

    @property
    def holds_records(self) -> bool:
        """Whether normalised records are asked for: the node has no history of those."""
        return self.grain in SCHEMAS

    @property
    def holds_state(self) -> bool:
        """Whether a snapshot gives the whole present state of what is asked for, as it does of
        books and not of trades."""
        return self.holds_records and self.grain != "trades"

    def address(
        self, tags: Iterable[bytes] = (), *, snapshot: bool = False, quality: bool = False
    ) -> str:
        """Build the source address, to resume behind `tags`, the last of each service; `snapshot`
        and `quality` are asked for even where the request does not."""
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
        if self.full is not None:
            options.append(f"full={self.full}")
        pattern = self.pattern
        if self.holds_records:
            tags = ()
        if words := [tag.hex() for tag in tags]:
            pattern = _without(pattern, "from")
            options.append("from=" + ",".join(words))
        if not options:
            return pattern
        return pattern + ("&" if "?" in pattern else "?") + "&".join(options)


def _without(pattern: str, key: str) -> str:
    """Remove an option from a pattern that a user has written with options."""
    text, _, query = pattern.partition("?")
    kept = "&".join(part for part in query.split("&") if not part.startswith(f"{key}="))
    return f"{text}?{kept}" if kept else text
