"""One connection to a node, with the links on which a subscriber receives.

What it is for: `Attachment.connect` connects, `attach` offers a receiving link, `answer` waits
for what the node says to it. What then arrives is told to `on_arrival`, and stays on the link until
it is taken from there; that one of the links, or all of them, are over is told to `on_end` once
each, after what had arrived before.

What it leaves to others: what the messages are (`inbox`), who consumes them, and what to do about
an end (`subscriber`, `upstream`).
"""

import asyncio
import contextlib
import socket
import ssl  # noqa: F401  (imported early: uvloop needs it loaded before the loop runs)
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from feedhandler.amqp import proton
from feedhandler.amqp.identity import Identity, refusal
from feedhandler.amqp.subscribing.inbox import Inbox
from feedhandler.codecs import PeerError

#: How long connecting and attaching may take.
CONNECT_SECONDS = 10.0
#: How long the goodbye may take.
CLOSE_SECONDS = 2.0
#: Silence of the node after which it counts as dead; it sends empty frames at half of that.
IDLE_TIMEOUT_MS = 30_000
#: Largest message taken: twice the largest batch that a gateway can be configured to send. The
#: engine keeps a message until its last frame has come, so without a bound it would be the node
#: that decides how much memory that takes.
MESSAGE_BYTES_MAX = 1 << 25
#: Receive buffer asked of the kernel.
RECEIVE_BUFFER_BYTES = 1 << 20
#: Conditions that will be the same however often one tries: the request itself is at fault, or
#: what the node sends. After any other end a new connection may help.
FINAL_CONDITIONS = frozenset(
    {
        "amqp:decode-error",
        "amqp:invalid-field",
        "amqp:not-allowed",
        "amqp:not-found",
        "amqp:not-implemented",
        "amqp:unauthorized-access",
        "amqp:link:message-size-exceeded",
    }
)


class Ended(PeerError):
    """A link or connection is over. `condition` is the node's word for it, "" where it gave none;
    `final`: trying again would end the same way."""

    def __init__(self, message: str, hint: str = "", *, condition: str = "") -> None:
        super().__init__(message, hint or condition)
        self.condition = condition
        self.final = condition in FINAL_CONDITIONS


class Intake:
    """One receiving link, and what reads it.

    `over`: nothing more will arrive; what has arrived may still be taken. `error` says why, None
    where we ourselves said goodbye.
    """

    def __init__(
        self, attachment: "Attachment", link: proton.ReceiverLink, inbox: Inbox, credit: int
    ) -> None:
        self.attachment = attachment
        self.link = link
        self.inbox = inbox
        self.credit = credit
        self.over = False
        self.error: Exception | None = None
        self.answered: asyncio.Future[None] = attachment.loop.create_future()
        #: Whether the node was asked to send what it has, and whether it has.
        self.draining = self.drained = False
        self._consumed = 0

    def grant(self, consumed: int) -> None:
        """Give credit back for what was consumed, in halves of the window."""
        self._consumed += consumed
        if self._consumed * 2 >= self.credit and not self.over:
            if self.draining:
                self.link.drain(self._consumed)
            else:
                self.link.flow(self._consumed)
            self._consumed = 0
            self.attachment.work()

    def drain(self) -> None:
        """Have the node send all that it has for this link now; `drained` says when it has come."""
        if not self.over:
            self.draining = True
            self.link.drain()
            self.attachment.work()

    def flowed(self) -> bool:
        """The node has told its credit: what it has given back it gets again. Whether that was
        the end of `drain`."""
        given = self.link.drained()
        if not given:
            return False
        self.link.flow(given)
        ended, self.draining = self.draining, False
        self.drained = self.drained or ended
        return ended


class Attachment:
    """A connection to the node that `identity` has, as whom it says we are.

    `on_arrival` is called with an intake that holds messages, `on_end` with one that is over.
    `hostname`: what the connection is opened with, where that is not the host's name (a broker's
    virtual host).
    """

    def __init__(
        self,
        identity: Identity,
        on_arrival: Callable[[Intake], None],
        on_end: Callable[[Intake], None],
        hostname: str = "",
    ) -> None:
        self.identity = identity
        self.hostname = hostname
        endpoint = identity.endpoint
        self.url = endpoint.shown
        self.host, self.port = endpoint.host, endpoint.port
        self._tls = self.identity.session()
        self.loop = asyncio.get_running_loop()
        self.intakes: list[Intake] = []
        self.over = False
        self._on_arrival = on_arrival
        self._on_end = on_end
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._engine: proton.Connection = None  # type: ignore[assignment]  # until connected
        self._writing = False
        self._closing = False
        self._closed: asyncio.Future[None] = self.loop.create_future()

    # -- connecting and leaving -------------------------------------------------------------

    async def connect(self) -> None:
        """Connect to the node. Raises `Ended` where it cannot be reached in `CONNECT_SECONDS`."""
        await self._in_time(self._connect())

    async def _in_time(self, step: Awaitable[None]) -> None:
        """Wait for a step that the node has part in; without an answer the connection is over."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await step
        except TimeoutError:
            self.abandon()
            raise Ended(
                f"{self.url} did not answer within {CONNECT_SECONDS:.0f} s",
                "is it an AMQP 1.0 node?",
            ) from None

    async def _connect(self) -> None:
        try:
            sock = await self._open_socket()
        except OSError as error:
            reason = error.strerror or str(error)
            raise Ended(
                f"cannot connect to {self.host}:{self.port}: {reason}", "is the gateway running?"
            ) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._engine = proton.Connection(
            sock.fileno(),
            server=False,
            container=f"feedhandler-{uuid.uuid4().hex[:12]}",
            hostname=self.hostname or self.host,
            idle_timeout_ms=IDLE_TIMEOUT_MS,
            user=self.identity.user,
            password=self.identity.password,
            external=self.identity.external,
            tls=self._tls,
        )
        self.loop.add_reader(sock.fileno(), self._on_readable)
        self._tick()

    async def _open_socket(self) -> socket.socket:
        """Connect to the first of the host's addresses that answers; OSError where none does."""
        found = await self.loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for place, (family, kind, protocol, _, where) in enumerate(found):
            self._sock = socket.socket(family, kind, protocol)
            self._sock.setblocking(False)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            try:
                await self.loop.sock_connect(self._sock, where)
                break
            except OSError:
                self._sock.close()
                if place == len(found) - 1:
                    self._sock = None
                    raise
        assert self._sock is not None
        return self._sock

    def attach(self, name: str, address: str, inbox: Inbox, credit: int) -> Intake:
        """Offer a receiving link; `answer` tells what the node says to it."""
        link = self._engine.receiver(
            name, address, settled=True, credit=credit, message_bytes_max=MESSAGE_BYTES_MAX
        )
        intake = Intake(self, link, inbox, credit)
        link.owner = intake
        self.intakes.append(intake)
        self.work()
        return intake

    async def answer(self, intake: Intake) -> None:
        """Wait until the node has taken the link.

        Raises `Ended` where it refuses, or does not answer in `CONNECT_SECONDS`; a refusal does
        not concern the connection's other links.
        """
        await self._in_time(intake.answered)

    def detach(self, intake: Intake) -> None:
        """Let go of one link; what it holds may still be taken."""
        if intake.over:
            return
        intake.over = True
        self.intakes.remove(intake)
        intake.link.close()
        self.work()

    async def close(self) -> None:
        """Say goodbye and wait a while for the node's; messages not taken yet are dropped."""
        if self._sock is not None and not self.over:
            self._closing = True
            self._engine.close()
            self.work()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._closed
        self.abandon()

    def break_off(self, error: Ended) -> None:
        """Leave without a word; `error` is why the links are over."""
        self._finish(error)
        self.abandon()

    def abandon(self) -> None:
        """Close the socket, whatever state things are in."""
        self._finish(None)
        if self._sock is None:
            return
        self._sock.close()
        self._sock = None
        if self._engine is not None:
            for link in list(self._engine.links.values()):
                link.release()  # or engine and links would keep each other alive

    # -- from the event loop ----------------------------------------------------------------

    def _on_readable(self) -> None:
        said = self._engine.turn()
        # Almost always there are messages and nothing else to do.
        if said != 0 or self._writing or self.over:
            self.work(self._engine.news)
            if said < 0:
                self._finish(self._why())
            return
        for intake in self.intakes:
            if intake.link.count:
                self._on_arrival(intake)

    def _tick(self) -> None:
        """Let the engine see the time: a dead node is noticed, our own empty frames go out."""
        self._engine.tick(time.monotonic_ns() // 1_000_000)
        self._timer = self.loop.call_later(1.0, self._tick)
        self.work()

    def work(self, news: Sequence[tuple[int, Any]] = ()) -> None:
        """Act upon the engine's events, then write: on every read, or settlements pile up."""
        if self.over:
            return
        told = (*news, *self._engine.events())
        for intake in tuple(self.intakes):  # what came before an end is told before it
            if intake.link.count:
                self._on_arrival(intake)
        for kind, link in told:
            self._handle(kind, link)
        if self.over:
            return
        state = self._engine.flush()
        assert self._sock is not None
        if state == 1 and not self._writing:
            self._writing = True
            self.loop.add_writer(self._sock.fileno(), self.work)
        elif state == 0 and self._writing:
            self._writing = False
            self.loop.remove_writer(self._sock.fileno())
        elif state < 0:
            self._finish(self._why())

    def _handle(self, kind: int, link: proton.Link | None) -> None:
        intake: Intake | None = link.owner if link is not None else None
        if kind == proton.LINK_REMOTE_OPEN:
            # A refusal is an attach without a source, followed by a detach that says why.
            if intake is None:
                assert link is not None
                link.refuse("amqp:not-allowed", "a subscriber takes no links")
            elif intake.link.source_address and not intake.answered.done():
                intake.answered.set_result(None)
        elif kind in (proton.LINK_REMOTE_CLOSE, proton.LINK_REMOTE_DETACH):
            if intake is not None:
                name, text = intake.link.remote_condition
                intake.link.close()
                why = f"the node ended the link: {text or 'no reason given'}"
                self._end(intake, Ended(why, condition=name))
        elif kind == proton.CONNECTION_REMOTE_CLOSE:
            name, text = self._engine.remote_condition
            self._engine.close()
            why = f"the node closed the connection: {text}"
            self._finish(Ended(why, condition=name) if name else None)
        elif kind == proton.TRANSPORT_ERROR:
            self._finish(self._why())
        elif kind == proton.LINK_FLOW:
            if intake is not None and not intake.over and intake.flowed():
                self._on_arrival(intake)
        elif kind == proton.MESSAGE_TOO_LARGE:
            assert intake is not None
            condition = "amqp:link:message-size-exceeded"
            intake.link.close(condition, f"at most {MESSAGE_BYTES_MAX}")
            text = f"a message of more than {MESSAGE_BYTES_MAX} bytes"
            self._end(intake, Ended(text, condition=condition))

    def _why(self) -> Ended | None:
        """Why the transport is over; None where we ourselves said goodbye."""
        name, text = self._engine.transport_condition
        if self._tls is not None and self._tls.fault is not None:
            fault = self._tls.fault
            return Ended(f"{self.url}: no TLS: {fault.reason}", fault.remedy)
        refused = refusal(name, text, self.identity.user, self._tls is not None)
        if refused is not None:
            return Ended(f"{self.url}: {refused.reason}", refused.remedy, condition=name)
        if name:
            # Whatever the transport's complaint, a new connection begins anew.
            return Ended(f"connection to {self.url} failed: {text}", name)
        return None if self._closing else Ended(f"{self.url} closed the connection")

    def _end(self, intake: Intake, error: Ended | None) -> None:
        """A link is over."""
        if intake.over:
            return
        intake.over = True
        intake.error = error
        self.intakes.remove(intake)
        if not intake.answered.done():
            intake.answered.set_exception(error or Ended(f"{self.url} closed the connection"))
            intake.answered.exception()  # whoever waits gets it; nobody must
            return
        self._on_end(intake)

    def _finish(self, error: Ended | None) -> None:
        """The connection is over, and every link with it; what was received may still be taken."""
        if self.over:
            return
        self.over = True
        if self._sock is not None:
            if self._engine is not None:
                self._engine.flush()
            self.loop.remove_reader(self._sock.fileno())
            self.loop.remove_writer(self._sock.fileno())
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed.done():
            self._closed.set_result(None)
        for intake in tuple(self.intakes):
            self._end(intake, error)
