"""One gateway that a subscriber is attached to, kept attached.

What it is for: `start` attaches; when the link has ended, for whatever reason may pass, it waits
(doubling, jittered), connects again, and asks the node to go on behind what was read last. The
subscriber is called for both, and for an end for good.

    WAITING     between two tries
    CONNECTING  the socket, and the node's answer to the link
    UP          receiving
    CLOSED      the subscriber has left, or the end is for good

What it leaves to others: what the messages are and who consumes them (`subscriber`), what was lost
in between (`resume_state`), the connection itself (`attachment`).
"""

import asyncio
import random
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from feedhandler.amqp import conditions
from feedhandler.amqp.identity import Identity
from feedhandler.amqp.request import Request
from feedhandler.amqp.subscribing.attachment import Attachment, Ended, Intake
from feedhandler.amqp.subscribing.inbox import Inbox, Message, rewritten
from feedhandler.amqp.subscribing.overlap import Overlap
from feedhandler.amqp.subscribing.resume_state import ResumeState
from feedhandler.codecs.errors import FeedhandlerError, PeerError
from feedhandler.retrans.backoff import Backoff

if TYPE_CHECKING:
    from feedhandler.amqp.subscribing.subscriber import Subscriber

#: The first wait before connecting again, and the longest.
RETRY_US = 50_000
RETRY_MOST_US = 5_000_000
#: How long a node that has nothing more to send may take to drain a link that is being replaced.
OVERLAP_SECONDS = 2.0
#: How often in a row that wait is repeated where the links bring something meanwhile: where more
#: is published than is consumed, the former link never comes to its end.
OVERLAP_LOOKS_MAX = 5
#: A connection that lasted this long was a good one: the next wait is the first again.
GOOD_SECONDS = 5.0


class State(Enum):
    """State of the connection to one gateway; the module says what each means."""

    WAITING = "WAITING"
    CONNECTING = "CONNECTING"
    UP = "UP"
    CLOSED = "CLOSED"


class Reconnection(Struct, frozen=True, kw_only=True):
    """Rules by which a subscriber connects again. `give_up_seconds`: None for never."""

    reconnect: bool = True
    resume: bool = True
    give_up_seconds: float | None = None


class ConnectionEvent(Struct, frozen=True):
    """A connection came up or was lost.

    `resumed`: the node resumes the stream, or says itself that it cannot; None where there was
    nothing to resume from.
    """

    url: str
    connected: bool
    reason: str = ""
    resumed: bool | None = None


class Upstream:
    """A connection to one gateway that is kept up.

    `intake` is the link that is received on, ended or not. `merged`: it is one of several, and its
    quality messages are handed on as they are, to the merge. While the request is being changed
    there is an `overlap` of two links, read together.
    """

    def __init__(
        self,
        identity: Identity,
        request: Request,
        *,
        feed: object,
        references: dict[Any, Any],
        credit: int,
        how: Reconnection,
        owner: "Subscriber",
        merged: bool = False,
    ) -> None:
        self.identity = identity
        self.url = identity.endpoint.shown
        self.merged = merged
        self.request = request
        self.credit = credit
        self.how = how
        self.owner = owner
        self.state = State.CONNECTING
        self.reason = ""
        self.connects = 0
        self.failures = 0
        self.feed = feed
        self.references = references
        self.inbox = self._inbox(request)
        self.overlap: Overlap | None = None
        #: Last tags of services of which `inbox` has not read anything.
        self._tags: dict[int, bytes] = {}
        self._changes = 0
        self._moved: list[asyncio.Future[None]] = []
        self.resume_state = ResumeState()
        self.intake: Intake
        self._loop = asyncio.get_running_loop()
        self._attachment: Attachment | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None]
        self._up_since = 0.0
        self._tries = 0
        self._backoff = Backoff(RETRY_US, RETRY_MOST_US, random.getrandbits(32))

    def _inbox(self, request: Request) -> Inbox:
        """Make an inbox for a link with this request."""
        batches = request.grain == "batch"
        schema = request.grain if request.holds_records else ""
        return Inbox(self.feed, batches, references=self.references, schema=schema)

    # -- beginning and end ------------------------------------------------------------------

    async def start(self, *, wait: bool = False) -> None:
        """Attach for the first time. Raises PeerError where that fails; with `wait` it is tried
        again in the background instead, unless the request itself is at fault."""
        try:
            await self._attach(None)
        except Ended as error:
            if not wait or error.final:
                raise
            self.reason = error.message
        if self.how.reconnect:
            self._task = self._loop.create_task(self._keep())

    async def close(self) -> None:
        """Close the connection and stop reconnecting."""
        await self.stop_trying()
        self.state = State.CLOSED
        self._report_moved()
        if self._attachment is not None:
            await self._attachment.close()

    async def stop_trying(self) -> None:
        """Stop reconnecting."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- keeping it up ----------------------------------------------------------------------

    async def _keep(self) -> None:
        """Reconnect after each end of the link, until one is for good."""
        try:
            while True:
                if self.state is State.UP:
                    await self._over
                if self.state is State.CLOSED:  # for good, just as it was attached
                    return
                lost_at = self._loop.time()
                if lost_at - self._up_since > GOOD_SECONDS:
                    self._tries = 0
                await self._come_back(lost_at)
        except FeedhandlerError as error:
            self.state = State.CLOSED
            self.reason = error.message
            self._report_moved()
            self.owner.ended(self, error)

    async def _come_back(self, lost_at: float) -> None:
        """Try until attached. Raises what ends it for good."""
        while True:
            self.state = State.WAITING
            self._tries += 1
            await asyncio.sleep(self._backoff.delay_ns(self._tries) / 1e9)
            lost_at += await self._wait_for_owner()
            limit = self.how.give_up_seconds
            if limit is not None and self._loop.time() - lost_at > limit:
                raise PeerError(
                    f"{self.url} is gone for more than {limit:g} s: {self.reason}",
                    "is the gateway running?",
                )
            try:
                await self._attach(self.owner.tags(self))
                return
            except Ended as error:
                self.failures += 1
                self.reason = error.message
                if error.final:
                    raise

    async def _wait_for_owner(self) -> float:
        """Wait until the owner can take what a connection brings; return for how many seconds."""
        began = self._loop.time()
        await self.owner.ready_to_attach()
        return self._loop.time() - began

    async def _attach(self, tags: dict[int, bytes] | None) -> None:
        """Connect and attach; `tags`: the last ones read, None at the very start. Raises Ended."""
        self.state = State.CONNECTING
        if self._attachment is not None:
            self._attachment.abandon()
        self._attachment = Attachment(self.identity, self.owner.arrived, self._on_end)
        self.inbox.begin()
        self._over = self._loop.create_future()
        try:
            resumed = await self._ask(self._attachment, tags)
        except BaseException:
            self._attachment.abandon()
            raise
        self._up_since = self._loop.time()
        if self.intake.over:  # it ended in the very read that brought the node's answer
            return
        self.state = State.UP
        self.connects += 1
        self.owner.changed(self, ConnectionEvent(self.url, True, "", resumed))
        self._report_moved()

    async def _ask(self, attachment: Attachment, tags: dict[int, bytes] | None) -> bool | None:
        """Attach, without what the node does not offer; return whether it resumes, None without
        `tags`."""
        resumes = self.how.resume and not self.request.holds_records
        asked = self.resume_state.ask(tags) if tags and resumes else []
        again = tags is not None
        extra = again and self.resume_state.wants_snapshot and not self.merged
        await attachment.connect()
        while True:
            state = self.request.holds_state and (self.request.snapshot or extra)
            self.resume_state.attached(asked, state, self.request.snapshot or extra)
            hears = again or self.merged
            address = self.request.address(asked, snapshot=extra, quality=hears)
            try:
                self.intake = attachment.attach("feed", address, self.inbox, self.credit)
                await attachment.answer(self.intake)
            except Ended as refusal:
                if refusal.condition != conditions.NOT_IMPLEMENTED or not (asked or extra):
                    raise
                extra = extra and bool(asked)
                asked = []
                continue
            return bool(asked) if tags else None

    def _on_end(self, intake: Intake) -> None:
        """Hand over what was received on an ended link, then reconnect or end for good."""
        overlap = self.overlap
        concerned = (self.intake,) if overlap is None else (overlap.old, overlap.new)
        if intake not in concerned or self.state is State.CLOSED:
            return
        self.owner.lost(self, intake)
        if overlap is not None:
            self._leave_overlap(overlap, intake)
        self.failures += 1
        error = intake.error
        self.reason = error.message if isinstance(error, FeedhandlerError) else "closed"
        self.state = State.WAITING
        if not self.how.reconnect or (isinstance(error, Ended) and error.final):
            self.state = State.CLOSED
            self.owner.changed(self, ConnectionEvent(self.url, False, self.reason))
            self._report_moved()
            self.owner.ended(self, error)
            return
        self.resume_state.lose(self.owner.tags(self))
        self.owner.changed(self, ConnectionEvent(self.url, False, self.reason))
        if not self._over.done():
            self._over.set_result(None)

    @property
    def tags(self) -> dict[int, bytes]:
        """Last tag handed on of each service."""
        return {**self._tags, **self.inbox.last_tags()}

    # -- another request --------------------------------------------------------------------

    async def change(self, request: Request) -> None:
        """Change to another request; returns once the node has accepted it.

        What is received is handed out by `read_links` from then on, until the two links are one
        stream again. Raises PeerError where the node refuses it, and the former request goes on, or
        where it is gone for good. While it cannot be reached, this waits.
        """
        while True:
            while self.state is not State.UP:
                if self.state is State.CLOSED:
                    raise PeerError(f"{self.url} is gone: {self.reason}", "subscribe anew")
                await self._move()
            attachment = self._attachment
            assert attachment is not None
            try:
                return await self._attach_beside(attachment, request)
            except Ended:
                if not attachment.over:
                    raise

    async def _move(self) -> None:
        """Wait until the connection is up, or has ended for good."""
        moved = self._loop.create_future()
        self._moved.append(moved)
        await moved

    def _report_moved(self) -> None:
        for moved in self._moved:
            if not moved.done():
                moved.set_result(None)
        self._moved.clear()

    async def _attach_beside(self, attachment: Attachment, request: Request) -> None:
        """Attach a link for the new request; the present one goes on meanwhile."""
        self._changes += 1
        inbox = self._inbox(request)
        name, address = f"feed-{self._changes}", request.address(quality=True)
        new = attachment.attach(name, address, inbox, self.credit)
        overlap = Overlap(self.intake, new, self.tags, request.grain)
        self.overlap = overlap
        try:
            await attachment.answer(new)
        except BaseException:
            accepted = new.answered.done() and new.answered.exception() is None
            if not accepted:
                attachment.detach(new)
                self.overlap = None
                raise
            self._accept(overlap, request)
            raise
        self._accept(overlap, request)

    def _accept(self, overlap: Overlap, request: Request) -> None:
        """Switch to a request whose link the node has accepted, and watch the overlap."""
        self.request = request
        if self.overlap is overlap:
            overlap.accepted()
            self._loop.call_later(OVERLAP_SECONDS, self._watch_overlap, overlap, overlap.received)

    def _watch_overlap(self, overlap: Overlap, received: int, looks: int = 1) -> None:
        """End an overlap that the node does not bring to an end, once all it sent is consumed.

        A new connection then goes on from where the stream is. `received`: the count at the last
        look; a consumer may be slow as long as it makes progress.
        """
        if self.overlap is not overlap:
            return
        gets_on = overlap.received != received and looks < OVERLAP_LOOKS_MAX
        if overlap.waiting or gets_on:
            again = (overlap, overlap.received, looks + 1)
            self._loop.call_later(OVERLAP_SECONDS, self._watch_overlap, *again)
            return
        error = Ended(f"{self.url} did not drain a link within {looks * OVERLAP_SECONDS:g} s")
        overlap.new.attachment.break_off(error)

    def go_on(self) -> None:
        """Advance the overlap; the caller has stored what it handed out."""
        overlap = self.overlap
        if overlap is None:
            return
        overlap.go_on()
        if overlap.over and self.overlap is overlap:
            self.overlap = None
            self.intake, self.inbox = overlap.new, overlap.new.inbox
            self._tags = overlap.tags

    def _leave_overlap(self, overlap: Overlap, intake: Intake) -> None:
        """End both links of an overlap because one has ended; the stream was handed out up to its
        tags."""
        if self.overlap is overlap:
            self.overlap = None
            self.intake = intake
            self.inbox = self._inbox(self.request)
            self._tags = overlap.tags
        attachment = overlap.new.attachment
        self._loop.call_soon(attachment.abandon)

    # -- quality messages of the node -------------------------------------------------------

    def process_quality(self, message: Message) -> list[Message]:
        """Process a quality message of this gateway; return the messages to hand out in its
        place."""
        if self.merged:
            return [message]
        try:
            bodies = self.resume_state.process_quality(message.body, message.service)
        except (msgspec.DecodeError, KeyError, TypeError):
            return [message]  # the subscriber, which decodes it, raises the error
        if bodies is None:
            return [message]
        return [rewritten(message, body) for body in bodies]
