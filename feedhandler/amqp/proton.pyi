from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

from feedhandler.amqp.security import TlsSession
from feedhandler.amqp.serving.sasl import SaslServer

CONNECTION_REMOTE_OPEN: int
CONNECTION_REMOTE_CLOSE: int
SESSION_REMOTE_OPEN: int
LINK_REMOTE_OPEN: int
LINK_REMOTE_CLOSE: int
LINK_REMOTE_DETACH: int
LINK_FLOW: int
TRANSPORT_ERROR: int
MESSAGE_TOO_LARGE: int
CREDIT_EXCEEDED: int
PARTIAL_EXCEEDED: int

ACCEPTED: int
REJECTED: int
RELEASED: int
MODIFIED: int
UNDELIVERABLE: int
UNTOLD: int
DECLARED: int
TRANSACTIONAL: int
COORDINATOR: str

ENCODED_BYTES_MAX: int
SESSION_OUTGOING_BYTES_MAX: int
UNSETTLED_MAX: int
PARTIAL_BYTES_MAX: int
CONNECTION_OUTGOING_BYTES_MAX: int
SESSION_OUTGOING_BYTES_MIN: int
DESCRIPTION_CHARS_MAX: int

class Connection:
    fd: int
    server: bool
    links: dict[int, Link]
    broken: bool
    session_condition: tuple[str, str] | None
    owner: Any
    kind_of: Callable[[bool, str], type[Link] | None] | None
    def __init__(
        self,
        fd: int,
        *,
        server: bool,
        container: str,
        hostname: str = "",
        max_frame_bytes: int = 65536,
        idle_timeout_ms: int = 0,
        user: str = "",
        password: str = "",
        external: bool = False,
        tls: TlsSession | None = None,
        sasl: SaslServer | None = None,
        sessions_max: int = 0,
        unsettled_max: int = ...,
        receive_bytes_max: int = ...,
        partial_bytes_max: int = ...,
        properties: dict[str, str] | None = None,
        capabilities: tuple[str, ...] = (),
    ) -> None: ...
    partial_bytes: int
    owed_bytes: int
    lingering_links: int
    @property
    def held_bytes(self) -> int: ...
    def welcome(self) -> None: ...
    def receive(self) -> int: ...
    def flush(self) -> int: ...
    def quiet(self) -> bool: ...
    news: list[tuple[int, Any]]
    def turn(self) -> int: ...
    def events(self) -> list[tuple[int, Any]]: ...
    def open(self) -> None: ...
    def close(self, condition: str = "", description: str = "") -> None: ...
    def tick(self, now_ms: int) -> int: ...
    def receiver(
        self,
        name: str,
        address: str,
        *,
        settled: bool,
        credit: int,
        message_bytes_max: int = 0,
        beside: "Link | None" = None,
    ) -> ReceiverLink: ...
    def taker(
        self, name: str, address: str, *, credit: int, message_bytes_max: int
    ) -> IntakeLink: ...
    def putter(self, name: str, address: str) -> HandoutLink: ...
    def publisher(
        self,
        name: str,
        address: str,
        capability: str = "",
        durable: bool = False,
        outcomes: bool = False,
    ) -> PublisherLink: ...
    @property
    def frames_received(self) -> int: ...
    @property
    def session_count(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def remote_properties(self) -> dict[str, str]: ...
    @property
    def remote_max_frame_bytes(self) -> int: ...
    @property
    def remote_condition(self) -> tuple[str, str]: ...
    @property
    def transport_condition(self) -> tuple[str, str]: ...

class Link:
    connection: Connection
    name: str
    owner: Any
    @property
    def dynamic(self) -> bool: ...
    @property
    def coordinator(self) -> bool: ...
    @property
    def browsing(self) -> bool: ...
    @property
    def filters(self) -> tuple[str, ...]: ...
    @property
    def source_address(self) -> str: ...
    @property
    def target_address(self) -> str: ...
    @property
    def target_given(self) -> bool: ...
    @property
    def target_capabilities(self) -> tuple[str, ...]: ...
    @property
    def remote_condition(self) -> tuple[str, str]: ...
    def open(self) -> None: ...
    def refuse(self, condition: str, description: str) -> None: ...
    def close(self, condition: str = "", description: str = "") -> None: ...
    def release(self) -> None: ...

class SenderLink(Link):
    settled: bool
    unsettled: int
    wants_flow: bool
    accepted: int
    refused: int
    def credit(self) -> int: ...
    def ready(self) -> bool: ...
    def send(self, data: Buffer, start: int, size: int) -> int: ...
    @property
    def shared(self) -> bool: ...
    def drained(self, asked: bool = False) -> None: ...
    def open_at(self, address: str) -> None: ...

class PublisherLink(SenderLink):
    confirmed: list[int]
    returned: list[tuple[int, int, str]]
    def send_parts(
        self, number: int, lead: Buffer, data: bytes, skip: int, cut: int, to: bytes
    ) -> int: ...

class ReceiverLink(Link):
    arena: bytearray
    bounds: bytearray
    used: int
    count: int
    def clear(self) -> None: ...
    def flow(self, credit: int) -> None: ...
    def drain(self, credit: int = 0) -> None: ...
    def drained(self) -> int: ...

class IntakeLink(Link):
    arrived: list[tuple[int, bytes | None, bool, bytes | None]]
    aborted: int
    partial: int
    message_bytes_max: int
    def open_for(self, message_bytes_max: int) -> None: ...
    def clear(self) -> None: ...
    def flow(self, credit: int) -> None: ...
    def accept(self, number: int) -> None: ...
    def answer(self, number: int, state: int, fields: bytes) -> None: ...
    def enlist(self, number: int, fields: bytes) -> None: ...
    def give_back(
        self, number: int, outcome: int, condition: str = "", description: str = ""
    ) -> None: ...

class HandoutLink(SenderLink):
    dispositions: list[tuple[int, int, bool, bytes | None, bool]]
    def hand_out(
        self, number: int, head: Buffer, data: bytes, skip: int, state: bytes | None = None
    ) -> int: ...
    def finish(self, number: int) -> None: ...
    def reason(self, number: int) -> tuple[str, str]: ...
    def disown(self, number: int) -> None: ...
