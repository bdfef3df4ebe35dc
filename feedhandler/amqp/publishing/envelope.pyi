from collections.abc import Callable

from feedhandler.amqp.proton import PublisherLink

HEADER: bytes
ADDRESSES_MAX: int

class Envelope:
    def __init__(
        self, annotations: bytes = b"", address: Callable[[str], str] | None = None
    ) -> None: ...
    def send(self, link: PublisherLink, number: int, key: str, data: bytes) -> int: ...
