"""One connection to a node, with the links on which a subscriber receives.

What it is for: `Attachment.connect` connects, `attach` offers a receiving link, `answer` waits for
the node's answer to it. Messages that arrive are reported to `on_arrival`, and stay on the link
until they are taken from there; the end of a link, or of all of them, is reported to `on_end` once
for each, after the messages that had arrived before.

What it leaves to others: the connection itself (`client`), what the messages are (`inbox`), who
consumes them, and what to do about an end (`subscriber`, `upstream`).
"""

import asyncio
from collections.abc import Callable

from feedhandler.amqp import conditions, proton
from feedhandler.amqp.client import ClientConnection, Ended
from feedhandler.amqp.identity import Identity
from feedhandler.amqp.subscribing.inbox import Inbox

#: Largest message taken: twice the largest batch that a gateway can be configured to send. The
#: engine keeps a message until its last frame has come, so without a bound it would be the node
#: that decides how much memory that takes.
MESSAGE_BYTES_MAX = 1 << 25


class Intake:
    """One receiving link, and the inbox that reads it.

    `over`: nothing more will arrive; what has arrived may still be taken. `error` says why, None
    where we closed the connection.
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
        """Give credit back for `consumed` messages, in halves of the window."""
        self._consumed += consumed
        if self._consumed * 2 >= self.credit and not self.over:
            if self.draining:
                self.link.drain(self._consumed)
            else:
                self.link.flow(self._consumed)
            self._consumed = 0
            self.attachment.work()

    def drain(self) -> None:
        """Drain the link: the node sends all that it has for it; `drained` is set afterwards."""
        if not self.over:
            self.draining = True
            self.link.drain()
            self.attachment.work()

    def flowed(self) -> bool:
        """Grant again the credit that the node gave back in a flow; return whether that ended
        `drain`."""
        given = self.link.drained()
        if not given:
            return False
        self.link.flow(given)
        ended, self.draining = self.draining, False
        self.drained = self.drained or ended
        return ended


class Attachment(ClientConnection):
    """A connection to a node on which we receive.

    `on_arrival` is called with an intake that holds messages, `on_end` with one that has ended;
    both on the event loop's thread.
    """

    def __init__(
        self,
        identity: Identity,
        on_arrival: Callable[[Intake], None],
        on_end: Callable[[Intake], None],
        hostname: str = "",
    ) -> None:
        super().__init__(identity, hostname)
        self.intakes: list[Intake] = []
        self._on_arrival = on_arrival
        self._on_end = on_end

    def attach(self, name: str, address: str, inbox: Inbox, credit: int) -> Intake:
        """Offer a receiving link with this `credit`, in messages; `answer` waits for the node's
        answer."""
        link = self._engine.receiver(
            name, address, settled=True, credit=credit, message_bytes_max=MESSAGE_BYTES_MAX
        )
        intake = Intake(self, link, inbox, credit)
        link.owner = intake
        self.intakes.append(intake)
        self.work()
        return intake

    async def answer(self, intake: Intake) -> None:
        """Wait until the node has accepted the link.

        Raises `Ended` where it refuses, or does not answer in `CONNECT_SECONDS`; a refusal does not
        concern the connection's other links.
        """
        await self.in_time(intake.answered)

    def detach(self, intake: Intake) -> None:
        """Close one link without reporting its end; what it holds may still be taken."""
        if intake.over:
            return
        intake.over = True
        self.intakes.remove(intake)
        intake.link.close()
        self.work()

    def break_off(self, error: Ended) -> None:
        """Abandon the connection without a goodbye; `error` is why the links have ended."""
        self.finish(error)
        self.abandon()

    # -- from the event loop ----------------------------------------------------------------

    def _read(self) -> None:
        for intake in tuple(self.intakes):
            if intake.link.count:
                self._on_arrival(intake)

    def _handle(self, kind: int, link: proton.Link | None) -> None:
        intake: Intake | None = link.owner if link is not None else None
        if kind == proton.LINK_REMOTE_OPEN:
            # A refusal is an attach without a source, followed by a detach that says why.
            if intake is None:
                assert link is not None
                link.refuse(conditions.NOT_ALLOWED, "a subscriber takes no links")
            elif intake.link.source_address and not intake.answered.done():
                intake.answered.set_result(None)
        elif kind in (proton.LINK_REMOTE_CLOSE, proton.LINK_REMOTE_DETACH):
            if intake is not None:
                name, text = intake.link.remote_condition
                intake.link.close()
                why = f"the node ended the link: {text or 'no reason given'}"
                self._end(intake, Ended(why, condition=name))
        elif kind == proton.LINK_FLOW:
            if intake is not None and not intake.over and intake.flowed():
                self._on_arrival(intake)
        elif kind == proton.MESSAGE_TOO_LARGE:
            assert intake is not None
            condition = conditions.MESSAGE_SIZE_EXCEEDED
            intake.link.close(condition, f"at most {MESSAGE_BYTES_MAX}")
            text = f"a message of more than {MESSAGE_BYTES_MAX} bytes"
            self._end(intake, Ended(text, condition=condition))

    def _end(self, intake: Intake, error: Ended | None) -> None:
        """Report that a link has ended: to `on_end`, or to `answer` where that still waits."""
        if intake.over:
            return
        intake.over = True
        intake.error = error
        self.intakes.remove(intake)
        if not intake.answered.done():
            intake.answered.set_exception(error or Ended(f"{self.url} closed the connection"))
            intake.answered.exception()  # retrieved: no error is logged if unawaited
            return
        self._on_end(intake)

    def _gone(self, error: Ended | None) -> None:
        for intake in tuple(self.intakes):
            self._end(intake, error)
