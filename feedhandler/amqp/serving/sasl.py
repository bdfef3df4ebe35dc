"""The server's side of SASL: how a client logs in, before the engine gets any bytes.

What it is for: proton without Cyrus checks no passwords, so what comes ahead of AMQP's own header
is read here: the SASL header, the client's choice of a mechanism, its response (AMQP 1.0, part 5.3;
PLAIN is RFC 4616, EXTERNAL RFC 4422 appendix A, ANONYMOUS RFC 4505). `receive` takes bytes,
`data_to_send` returns those to send, `asked` holds the credentials to decide on, `decide` takes the
decision.

    HEADER    nothing read yet
    INIT      the mechanisms are offered
    RESPONSE  a mechanism was chosen without a response, and the response is asked for
    ASKED     the credentials are there and wait for a decision
    DONE      welcome: what follows (`rest`) is the engine's
    FAILED    refused; what follows is not read

What it promises: bounded memory whatever is sent; every input in every state has an answer (the
table below); a password is in `asked` and nowhere else, and not in its repr.

What it leaves to others: whether the password is right (`users`, `login`).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from feedhandler.amqp.durable.values import SectionError, decode, fields_of

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
HEADER_BYTES = len(SASL_HEADER)
#: A SASL frame has at most MIN-MAX-FRAME-SIZE bytes (AMQP 1.0, 5.3.1); some clients send larger
#: tokens, none so large.
FRAME_BYTES_MAX = 4096
#: What a client may send ahead of the decision: its opening frames, nothing that needs an answer.
REST_BYTES_MAX = 1 << 16

#: Descriptors of the frames (AMQP 1.0, 5.3.3).
_MECHANISMS, _INIT, _CHALLENGE, _RESPONSE, _OUTCOME = 0x40, 0x41, 0x42, 0x43, 0x44
#: Outcome codes (5.3.3.6): success, refused, and not checked for now.
_OK, _AUTH, _SYS_TEMP = 0, 1, 4


class State(Enum):
    """State of a log-in; the module says what each means."""

    HEADER = "HEADER"
    INIT = "INIT"
    RESPONSE = "RESPONSE"
    ASKED = "ASKED"
    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The client's credentials: `name` may be empty where the mechanism needs none."""

    mechanism: str
    name: str = ""
    password: str = field(default="", repr=False)


class _Malformed(Exception):
    """Input that cannot be parsed; the text says why."""


class SaslServer:
    """One client's log-in.

    `offer` gives the mechanisms once the client has sent its header; `bare`: a client that skips
    SASL may go on, as an anonymous one.
    """

    def __init__(self, offer: Callable[[], tuple[str, ...]], bare: bool) -> None:
        self.state = State.HEADER
        self.asked: Credentials | None = None
        #: Why it failed, for the operator; contains nothing that the client sent.
        self.reason = ""
        self._offer = offer
        self._offered: tuple[str, ...] = ()
        self._bare = bare
        self._chosen = ""
        self._held = bytearray()
        self._out = bytearray()

    @property
    def over(self) -> bool:
        """Whether the log-in has ended, successfully or not."""
        return self.state in (State.DONE, State.FAILED)

    def receive(self, data: bytes) -> None:
        """Process bytes that the client sent."""
        if self.state is State.FAILED:
            return
        self._held += data
        try:
            while self._READERS[self.state](self):
                pass
        except _Malformed as wrong:
            self._fail(str(wrong))

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and clear them."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def rest(self) -> bytes:
        """Return the bytes behind the log-in, which are the engine's, and clear them."""
        rest = bytes(self._held)
        self._held.clear()
        return rest

    def decide(self, welcome: bool, reason: str = "", *, temporary: bool = False) -> None:
        """Send the outcome: `welcome` or refused. `reason` is for the operator; `temporary`: the
        credentials were not checked and the client may try again."""
        if self.state is not State.ASKED:
            return
        refusal = _SYS_TEMP if temporary else _AUTH
        self._send(_OUTCOME, b"\x50" + bytes([_OK if welcome else refusal]))
        if welcome:
            self.state = State.DONE
        else:
            self._fail(reason)

    # -- what is read in each state ---------------------------------------------------------

    def _read_header(self) -> bool:
        head = bytes(self._held[:HEADER_BYTES])
        if head != AMQP_HEADER[: len(head)] and head != SASL_HEADER[: len(head)]:
            # A server answers an unsupported header with one that it supports (AMQP 1.0, 2.2).
            self._out += SASL_HEADER
            raise _Malformed(_stranger(head))
        if len(head) < HEADER_BYTES:
            return False
        if head == AMQP_HEADER:
            if self._bare:
                self.asked = Credentials("ANONYMOUS")
                self.state = State.DONE
                return False
            self._out += SASL_HEADER
            raise _Malformed("the client does not log in (no SASL)")
        del self._held[:HEADER_BYTES]
        self._out += SASL_HEADER
        self._offered = self._offer()
        names = b"".join(bytes([len(name)]) + name.encode() for name in self._offered)
        array = b"\xe0" + bytes([2 + len(names), len(self._offered)]) + b"\xa3" + names
        self._send(_MECHANISMS, array)
        self.state = State.INIT
        return True

    def _read_init(self) -> bool:
        body = self._frame(_INIT)
        if body is None:
            return False
        fields = _fields(body)
        mechanism = fields[0].decode("ascii", "replace") if fields and fields[0] else ""
        if mechanism not in self._offered:
            self._send(_OUTCOME, b"\x50" + bytes([_AUTH]))
            raise _Malformed("a mechanism that is not offered")
        self._chosen = mechanism
        response = fields[1] if len(fields) > 1 else None
        if response is None and mechanism == "PLAIN":
            self._send(_CHALLENGE, b"\xa0\x00")
            self.state = State.RESPONSE
            return True
        self._ask(response or b"")
        return False

    def _read_response(self) -> bool:
        body = self._frame(_RESPONSE)
        if body is None:
            return False
        fields = _fields(body)
        self._ask((fields[0] if fields else None) or b"")
        return False

    def _wait(self) -> bool:
        if len(self._held) > REST_BYTES_MAX:
            raise _Malformed("too much was sent ahead of the log-in's outcome")
        return False

    def _done(self) -> bool:
        return False

    #: What is read in each state; True: read on.
    _READERS: ClassVar[dict[State, Callable[["SaslServer"], bool]]] = {
        State.HEADER: _read_header,
        State.INIT: _read_init,
        State.RESPONSE: _read_response,
        State.ASKED: _wait,
        State.DONE: _done,
        State.FAILED: _done,
    }

    # -- parts ------------------------------------------------------------------------------

    def _ask(self, response: bytes) -> None:
        """Parse the credentials of the response into `asked`, for a decision. Raises _Malformed."""
        try:
            if self._chosen == "PLAIN":
                authorize, name, password = response.decode().split("\0")
                if authorize not in ("", name) or not name:
                    raise ValueError
                self.asked = Credentials("PLAIN", name, password)
            elif self._chosen == "EXTERNAL":
                self.asked = Credentials("EXTERNAL", response.decode())
            else:
                self.asked = Credentials("ANONYMOUS")
        except ValueError:
            self._send(_OUTCOME, b"\x50" + bytes([_AUTH]))
            raise _Malformed(f"a response that is none of {self._chosen}") from None
        self.state = State.ASKED
        self._wait()

    def _frame(self, wanted: int) -> bytes | None:
        """Return the body of the next frame, which must be a `wanted` one; None while it is
        incomplete. Raises _Malformed."""
        if len(self._held) < 8:
            return None
        size, offset, kind = struct.unpack_from(">IBB", self._held)
        if kind != 1 or offset < 2 or not 4 * offset <= size <= FRAME_BYTES_MAX:
            raise _Malformed("no SASL frame")
        if len(self._held) < size:
            return None
        body = bytes(self._held[4 * offset : size])
        del self._held[:size]
        for head in (b"\x00\x53", b"\x00\x80" + bytes(7)):
            if body.startswith(head + bytes([wanted])):
                return body[len(head) + 1 :]
        raise _Malformed("another SASL frame than the one that is due")

    def _send(self, descriptor: int, field_bytes: bytes) -> None:
        """Queue a frame of one field to be sent."""
        listed = b"\x00\x53" + bytes([descriptor, 0xC0, 1 + len(field_bytes), 1]) + field_bytes
        self._out += struct.pack(">IBBH", 8 + len(listed), 2, 1, 0) + listed

    def _fail(self, reason: str) -> None:
        self.state = State.FAILED
        self.reason = reason
        self.asked = None
        self._held.clear()


def _stranger(head: bytes) -> str:
    """Name what a client speaks that does not speak AMQP 1.0, as far as its first bytes show."""
    if head.startswith(b"\x16"):
        return "the client begins with TLS, and this port has none"
    if head.startswith(b"AMQP"):
        return "another version of AMQP than 1.0"
    return "not AMQP"


def _fields(body: bytes) -> list[bytes | None]:
    """Parse a list of binaries, strings and symbols (AMQP 1.0, 1.6); None for null. Raises
    _Malformed."""
    try:
        return [None if each == b"\x40" else _bytes(each) for each in fields_of(body, 0, len(body))]
    except (IndexError, SectionError):
        raise _Malformed("a list that cannot be read") from None


def _bytes(encoded: bytes) -> bytes:
    """Decode a binary, string or symbol. Raises _Malformed, SectionError."""
    value, _ = decode(encoded, 0)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise _Malformed("a field that is no text")
