"""One client's connection to the embedded node: its socket, its links, its end.

What it is for: the events of one connection's engine (`proton`) are acted upon here: links attach,
join the fan-out and leave it, the socket is read and written, the connection is closed.

What it promises: whatever this client does ends its link or its connection and no other client's;
an internal error in handling it ends it too, and is counted and reported, but never reaches the
event loop; no call blocks; nothing of a connection that has ended is kept.

What it leaves to others: who may connect and when time is up (`node`), what an address means
(`routing`), what a link gets (`fanout`).
"""

import contextlib
import fcntl
import socket
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from feedhandler import __version__
from feedhandler.amqp import conditions, proton
from feedhandler.amqp.durable.links import Answers
from feedhandler.amqp.durable.queues import AnyLink
from feedhandler.amqp.policies import DETACH
from feedhandler.amqp.routing import AddressError, Subscription, without_tags
from feedhandler.amqp.sender_queue import Peer, SenderQueue
from feedhandler.amqp.serving.asking import asked_for, check_limits
from feedhandler.amqp.serving.groups import Group, Member, group_name
from feedhandler.amqp.serving.leftovers import WHOLE_UNITS
from feedhandler.amqp.serving.link_counts import REFUSALS, add_sender_queue
from feedhandler.amqp.serving.login import REFUSAL_SECONDS, Admission, Decision
from feedhandler.amqp.serving.sasl import State
from feedhandler.amqp.stream import Stream
from feedhandler.amqp.users import RateLimit, User
from feedhandler.amqp.work_budget import (
    CONNECTION_UNITS,
    END_UNITS,
    SESSIONS_PER_UNIT,
    attach_units,
    read_units,
)
from feedhandler.counters import NodeCounter

if TYPE_CHECKING:
    from feedhandler.amqp.serving.node import Node

#: How long a client may take to close its side once we have closed ours: from the last byte that it
#: has taken, and in all.
LINGER_SECONDS = 2.0
LINGER_SECONDS_MAX = 30.0
#: Bytes per read, and reads at a time, of what a client sends after the goodbye.
LEAVING_BYTES = 1 << 16
LEAVING_READS = 16
#: Bytes read at a time of what a client sends: other clients, and the feed, wait meanwhile.
TURN_BYTES = 1 << 14
#: Bytes that messages sent in part may take: of one connection, of all of a node's; or this number
#: of the largest messages that a queue takes, where these are more.
PARTIAL_BYTES_MAX = 8 << 20
PARTIAL_BYTES_TOTAL = 64 << 20
PARTIAL_MESSAGES = 4
#: Bytes that answers may take which a client does not read: of one connection, of one that has not
#: logged in, of all of a node's.
OWED_BYTES_MAX = 4 << 20
OWED_BYTES_STRANGER = 256 << 10
OWED_BYTES_TOTAL = 128 << 20
#: Links that a client may leave half closed: closed by us and not yet by the client.
LINGERING_LINKS_MAX = 4096
#: Capability that a JMS client requires before it asks for a shared subscription.
CAPABILITIES = ("SHARED-SUBS",)
#: Bound on sessions and half-closed links of all of a node's connections.
KEPT_TOTAL = 65_536
#: What a connection may keep even while the others have reached that bound; bytes of each.
KEPT_ANYHOW = 16
KEPT_BYTES = 4096
#: Condition and text for a client whose handling has failed by an internal error.
FAULT = conditions.INTERNAL_ERROR, "the gateway has failed in handling this connection; see its log"


def unsent_bytes(sock: socket.socket) -> int:
    """Return how many bytes the kernel has not sent yet, or not had acknowledged (tcp(7),
    SIOCOUTQ)."""
    found = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(found, sys.byteorder)


def _contained(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method that the loop or the node calls: an exception ends this connection only."""

    @wraps(method)
    def contained(self: "NodeConnection", *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except Exception as error:  # whatever it is: others' connections go on
            self.fail(error)

    return contained


class NodeConnection(Peer):
    """One client's connection.

    `peer` is its host:port, `admission` its log-in state, `user` its user once it has logged in.
    """

    def __init__(self, node: "Node", sock: socket.socket, peer: str, admission: Admission) -> None:
        super().__init__(node.fanout.dirty_peers)
        self.node = node
        self.sock = sock
        self.peer = peer
        self.sender_queues: dict[proton.Link, Any] = {}
        self.queue_links: dict[proton.Link, AnyLink] = {}
        #: Those of them on which transactions are discharged.
        self._coordinators: dict[proton.Link, AnyLink] = {}
        self.members: list[Member] = []
        self.parted = False
        self.orderly = False
        self.goodbye = False  # the client closed by itself: nothing has failed
        self.leave_by: float | None = None
        self._leave_end = 0.0
        self._unsent_bytes = 0  # what the kernel still had to send when that was looked at last
        self.open_by: float | None = node.loop.time() + node.open_seconds
        self.admission = admission
        admission.crowd_out = self._crowd_out
        self.user: User | None = None
        limits = node.gate.limits
        self._events: deque[tuple[int, Any]] = deque()
        self._waits = False
        self._partial_bytes = self.owed_bytes = self.kept = 0
        self.attaches = RateLimit(limits.attaches_per_s, time.monotonic_ns())
        self.engine = proton.Connection(
            sock.fileno(),
            server=True,
            container=node.container,
            max_frame_bytes=node.settings.max_frame_bytes,
            idle_timeout_ms=node.settings.idle_timeout_ms,
            tls=admission.tls,
            sasl=admission.sasl,
            sessions_max=limits.sessions_per_connection,
            unsettled_max=limits.unsettled_per_link,
            receive_bytes_max=TURN_BYTES,
            partial_bytes_max=max(
                PARTIAL_BYTES_MAX, PARTIAL_MESSAGES * node.queues.message_bytes_max
            ),
            capabilities=CAPABILITIES,
            properties={"product": "feedhandler", "version": __version__},
        )
        self.engine.kind_of = node.kind_of
        node.loop.add_reader(sock.fileno(), self.on_readable)

    # -- from the event loop ----------------------------------------------------------------

    @_contained
    def on_readable(self) -> None:
        """Read from the socket and act on what the client sent, as far as this turn has units."""
        if self.leave_by is not None:
            self._read_to_the_end()
            return
        if self._events or self._waits:
            return  # what it sent before comes first, in a later turn
        budget = self.node.budget
        if budget.left <= 0:
            self._wait_for_turn()
            return
        heard = self.engine.frames_received
        received = self.engine.receive()
        if received >= 0:
            agreeing = self.user is None and self.admission.tls is not None
            budget.spend(read_units(self.engine.frames_received - heard, agreeing))
        if self.user is None:
            self._log_in()
        self.work()
        if received < 0:
            self.end()

    def on_writable(self) -> None:
        """Continue as the socket takes bytes again."""
        self.work()

    @_contained
    def on_tick(self, now_ms: int) -> None:
        """End the connection where a deadline has passed, else let the engine see the time, in
        ms."""
        if self.gone:
            return
        due = self.leave_by or self.open_by
        if due is not None and self.node.loop.time() >= due and not self._linger_on():
            self.node.counts[NodeCounter.LOGINS_LATE] += self.leave_by is None
            self.end()
        elif self.leave_by is None:
            if self.user is not None:
                self.engine.tick(now_ms)
            # uvloop reports a reset only once, which may be while there is something to read before
            # it, or before this connection's turn has come.
            self.on_readable()

    @_contained
    def work(self) -> None:
        """Act upon the engine's events and write, until neither brings anything new.

        Writing frees room in the engine, which lets queued messages follow, which are written: it
        ends because each round needs messages that waited, or the socket stops it.
        """
        self.dirty = False
        if self.leave_by is not None:
            return
        while not self.gone:
            self._act()
            for member in self.members:
                member.process_outcomes()
            for queue_link in list(self.queue_links.values()):
                queue_link.work()
            if self.overruns:
                self._detach_overruns()
            if self.gone:
                return
            state = self.engine.flush()
            self._count_owed()
            if self.gone:
                return
            if state != 0:
                self._wait_writable(state)
                return
            self._stop_waiting()
            if self._events or (not self.dirty and not self._drain()):
                break
            self.dirty = False
        if self.engine.closed and not self._events:
            self.end()

    def _act(self) -> None:
        """Act upon the engine's events as far as this turn of the loop has units; leave the rest
        for the next.

        A client's open is answered without regard to units: the engine has already answered the
        sessions behind it, and loses that answer if it is to write before the open is answered.
        """
        budget, events, left = self.node.budget, self._events, CONNECTION_UNITS
        if not events:
            events.extend(self.engine.events())
            self._count_partial()
        while events and left > 0 and not self.gone:
            kind, link = events[0]
            attaches = kind == proton.LINK_REMOTE_OPEN
            units = attach_units(f"{link.source_address}{link.target_address}") if attaches else 1
            if kind == proton.CONNECTION_REMOTE_OPEN:
                budget.spend(units)
            elif not budget.try_spend(units):
                break
            left -= units
            events.popleft()
            self._handle(kind, link)
        if events and not self._waits:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        self._waits = True
        self.node.budget.wait(self._go_on)

    def _count_owed(self) -> None:
        """Account for answers that the client has not read. Past a bound, end this connection, or
        of all the one that owes most."""
        node, engine = self.node, self.engine
        held = engine.held_bytes
        node.owed_bytes += held - self.owed_bytes
        grown, self.owed_bytes = held > self.owed_bytes, held
        most = OWED_BYTES_STRANGER if self.user is None else OWED_BYTES_MAX
        if held > most:
            self._give_up_unread(held)
        elif engine.lingering_links > LINGERING_LINKS_MAX:
            self._give_up_unread(KEPT_BYTES * engine.lingering_links)
        elif grown and node.owed_bytes > OWED_BYTES_TOTAL:
            debtor = max(node.connections, key=lambda each: each.owed_bytes)
            if debtor.owed_bytes > KEPT_ANYHOW * KEPT_BYTES:
                debtor._give_up_unread(debtor.owed_bytes)
        else:
            self._count_kept()

    def _count_kept(self) -> None:
        """Account for sessions and half-closed links, those of ended connections that are not freed
        yet included. Past the bound of all, end the connection that has most of them."""
        node, kept = self.node, self.engine.session_count + self.engine.lingering_links
        node.kept += kept - self.kept
        grown, self.kept = kept > self.kept, kept
        if grown and node.kept > KEPT_TOTAL:
            fullest = max(node.connections, key=lambda each: each.kept)
            if fullest.kept > KEPT_ANYHOW:
                fullest._give_up_unread(KEPT_BYTES * fullest.kept)

    def _give_up_unread(self, held_bytes: int) -> None:
        """End a connection whose client does not read, or leaves too much open; without a goodbye,
        which the client would not read."""
        self.node.counts[NodeCounter.CONNECTIONS_UNREAD] += 1
        if self.node.observer is not None:
            self.node.observer.unread(self.peer, held_bytes)
        self.end()

    def _count_partial(self) -> None:
        """Account for messages that came in part; past the bound of all connections, queue the end
        of the links here that hold one."""
        node, held = self.node, self.engine.partial_bytes
        node.partial_bytes += held - self._partial_bytes
        grown, self._partial_bytes = held > self._partial_bytes, held
        most = max(PARTIAL_BYTES_TOTAL, PARTIAL_MESSAGES * node.queues.message_bytes_max)
        if grown and node.partial_bytes > most:
            self._events.extend(
                (proton.PARTIAL_EXCEEDED, link)
                for link in self.queue_links
                if isinstance(link, proton.IntakeLink) and link.partial
            )

    @_contained
    def _go_on(self) -> None:
        """Continue in a later turn of the loop."""
        self._waits = False
        if self.gone or self.leave_by is not None:
            return
        if self._events:
            self.work()
        else:
            self.on_readable()

    @_contained
    def attend(self) -> None:
        """Do what the fan-out left to do for this connection; write where the socket takes
        bytes."""
        if not self.writing:
            self.work()
            return
        self.dirty = False  # the socket is full: `on_writable` goes on
        if self.overruns:
            self._detach_overruns()

    def _drain(self) -> bool:
        """Move waiting messages into the engine; return whether any went."""
        for queue_link in list(self.queue_links.values()):
            if queue_link.blocked:
                queue_link.flow()
        if not self.backlog:
            return self.dirty
        for sender_queue in self.sender_queues.values():
            if sender_queue.behind:
                self._drain_link(sender_queue)
        return self.dirty

    def _drain_link(self, sender_queue: SenderQueue, asked: bool = False) -> None:
        """Send what waits for one link; return unused credit where the client drains it
        (`asked`)."""
        sender_queue.drain()
        if sender_queue.catching:
            if sender_queue.accepts_more():
                self.node.catch_up_soon()
        elif not sender_queue.behind:
            sender_queue.sender.drained(asked=asked)

    def _wait_writable(self, state: int) -> None:
        if state < 0:
            if self.user is None and self.admission.tls is not None:
                self.admission.tls.eof()
                self._log_in()
            self._leave()
        elif not self.writing:
            self.writing = True
            self.node.loop.add_writer(self.sock.fileno(), self.on_writable)

    def _stop_waiting(self) -> None:
        if self.writing:
            self.writing = False
            self.node.loop.remove_writer(self.sock.fileno())

    # -- log-in -----------------------------------------------------------------------------

    def _log_in(self) -> None:
        """Advance the log-in: report its failure, or have the client's credentials decided."""
        node, admission = self.node, self.admission
        if admission.pending:
            return
        tls, sasl = admission.tls, admission.sasl
        if tls is not None and tls.fault is not None:
            admission.pending = True
            node.counts[NodeCounter.TLS_FAILED] += 1
            self._report_refused("TLS", "", tls.fault.reason)
        elif sasl.state is State.FAILED:
            admission.pending = True
            node.counts[NodeCounter.LOGINS_REFUSED] += 1
            self._report_refused("", "", sasl.reason)
        elif sasl.asked is not None:
            admission.pending = True
            decided = node.gate.at_once(admission, sasl.asked)
            if decided is not None:
                self._decide(decided)
            else:
                node.check_password(self, sasl.asked)

    @_contained
    def decided(self, decision: Decision) -> None:
        """Act on the outcome of a password check."""
        if not self.gone and self.leave_by is None:
            self._decide(decision)
            self.work()

    def _crowd_out(self) -> None:
        """End this connection, which has not logged in, to make room for another address."""
        self.node.counts[NodeCounter.CONNECTIONS_CROWDED] += 1
        self.end()

    def _decide(self, decision: Decision) -> None:
        """Admit the client as the decision's user, or refuse it after `REFUSAL_SECONDS`."""
        node, sasl, user = self.node, self.admission.sasl, decision.user
        assert sasl.asked is not None
        if user is None:
            if decision.temporary:
                node.counts[NodeCounter.LOGINS_DEFERRED] += 1
            else:
                node.counts[NodeCounter.LOGINS_REFUSED] += 1
                node.gate.failed(self.admission)
            self._report_refused(sasl.asked.mechanism, sasl.asked.name, decision.reason)
            node.loop.call_later(REFUSAL_SECONDS, self._turn_away, decision)
            return
        self.user = user
        node.counts[NodeCounter.LOGINS] += 1
        node.gate.welcome(self.admission, user, node.full)
        sasl.decide(True)
        self.engine.welcome()

    @_contained
    def _turn_away(self, decision: Decision) -> None:
        """Send the refusal of the log-in, for good or for now."""
        if not self.gone and self.leave_by is None:
            self.admission.sasl.decide(False, decision.reason, temporary=decision.temporary)
            self.work()

    def _report_refused(self, mechanism: str, user: str, reason: str) -> None:
        if self.node.observer is not None:
            self.node.observer.login_refused(self.peer, user, mechanism, reason)

    # -- protocol events --------------------------------------------------------------------

    def _handle(self, kind: int, link: Any) -> None:
        if kind == proton.LINK_FLOW:
            if link in self.queue_links:
                self.queue_links[link].flow()
            sender_queue = self.sender_queues.get(link)
            if sender_queue is not None:
                self._drain_link(sender_queue, asked=True)
        elif kind == proton.LINK_REMOTE_OPEN:
            self._attach(link)
        elif kind in (proton.CREDIT_EXCEEDED, proton.PARTIAL_EXCEEDED):
            self._end_sender(kind, link)
        elif kind in (proton.LINK_REMOTE_CLOSE, proton.LINK_REMOTE_DETACH):
            if link is not None:
                self._detach(link, orderly=True)
                link.close()
        elif kind == proton.CONNECTION_REMOTE_OPEN:
            self.open_by = None
            self.engine.open()
            if self.admission.excess:
                self.node.counts[NodeCounter.CONNECTIONS_LIMITED] += 1
                self.orderly = True
                self.engine.close(conditions.RESOURCE_LIMIT_EXCEEDED, self.admission.excess)
        elif kind == proton.CONNECTION_REMOTE_CLOSE:
            self.goodbye |= not self.orderly
            self.orderly = True
            self.engine.close()

    def _attach(self, link: Any) -> None:
        """Attach a link that receives: parse its address, join the fan-out, send the quality."""
        if self.node.queues.concerns(link):
            self._attach_to_queue(link)
            return
        try:
            subscription = asked_for(self, link)
        except AddressError as refusal:
            self._refuse(link, refusal)
            return
        if link.shared:
            self._share(link, subscription)
            return
        link.open()
        resumption = self.node.resumption
        found = resumption.find(subscription)
        sender_queue = self._join(link, subscription, list(found))
        concerned = self._report_quality(sender_queue)
        afresh = resumption.join(sender_queue, found)
        if subscription.snapshot and subscription.schema:
            self.node.send_records(sender_queue, concerned)
        elif subscription.snapshot:
            self.node.send_snapshots(sender_queue, concerned + afresh)
        if sender_queue.catching:
            self.node.catch_up_soon()

    def _attach_to_queue(self, link: Any) -> None:
        """Attach a link that puts into a durable queue, gets from it or manages it."""
        node = self.node
        try:
            check_limits(self, link, f"{link.source_address}{link.target_address}")
            assert self.user is not None
            others = self.queue_links.values
            made = node.queues.attach(self, link, self.user, self._forget, self._answers, others)
        except AddressError as refusal:
            self._refuse(link, refusal)
            return
        self.queue_links[link] = made
        if made.coordinates:
            self._coordinators[link] = made
        node.links += 1
        node.counts[NodeCounter.LINKS_OPENED] += 1
        made.flow()

    def _end_sender(self, kind: int, link: Any) -> None:
        """End a link on which the client sends more than it may; `kind` is the engine's event."""
        queue_link = self.queue_links.get(link)
        if queue_link is None:
            return
        if kind == proton.CREDIT_EXCEEDED:
            self.node.counts[NodeCounter.LINKS_OVER_CREDIT] += 1
            queue_link.end(
                conditions.TRANSFER_LIMIT_EXCEEDED, "a message for which there was no credit"
            )
        else:
            self.node.counts[NodeCounter.LINKS_PARTIAL] += 1
            queue_link.end(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                "messages that came in part take too much memory",
            )
        self._count_partial()

    def _answers(self, address: str) -> Answers | None:
        """Return this connection's link that has this address for answers; None where there is
        none."""
        for link in self.queue_links.values():
            if isinstance(link, Answers) and link.address == address:
                return link
        return None

    def _forget(self, link: Any) -> None:
        """Remove a queue's link that has ended."""
        if self.queue_links.pop(link, None) is not None:
            self._coordinators.pop(link, None)
            self.node.links -= 1

    def _share(self, link: Any, subscription: Subscription) -> None:
        """Attach a link as a member of a group of links that share a stream."""
        node = self.node
        try:
            if subscription.full not in (None, DETACH):
                raise AddressError("links that share a stream are detached when it is full")
            if subscription.schema:
                raise AddressError("links that share a stream take no normalised records")
            assert self.user is not None
            name = group_name(self.user.name, link.name)
            group = node.groups.find(name, subscription)
            if group is None:
                group = self._new_group(name, subscription)
            member = group.join(self, link)
        except AddressError as refusal:
            self._refuse(link, refusal)
            return
        link.open()
        self.members.append(member)
        self._count(link, member)
        self._report_quality(member, group)

    def _new_group(self, name: str, subscription: Subscription) -> Group:
        node = self.node
        group = Group(
            name,
            subscription,
            node.fanout.dirty_peers,
            node.settings.queue_bytes,
            node.settings.batch_max_bytes,
        )
        node.groups.add(group)
        node.fanout.add(group)
        return group

    @property
    def links(self) -> int:
        """Number of links that this connection has now."""
        return len(self.sender_queues) + len(self.queue_links)

    def _refuse(self, link: Any, refusal: AddressError) -> None:
        """Refuse a link, with the condition and the reason."""
        self.node.counts[NodeCounter.LINKS_REFUSED] += 1
        if refusal.condition in REFUSALS:
            self.node.counts[REFUSALS[refusal.condition]] += 1
        taking = isinstance(link, proton.ReceiverLink | proton.IntakeLink)
        address = link.target_address if taking else link.source_address  # none once it is refused
        link.refuse(refusal.condition, refusal.message)
        if self.node.observer is not None:
            self.node.observer.refused(self.peer, address, refusal.condition, refusal.message)

    def _join(self, link: Any, subscription: Subscription, resumed: list[Stream]) -> SenderQueue:
        """Add an accepted link to the fan-out, except to the streams that it resumes."""
        node = self.node
        sender_queue = node.sender_queue(self, link, subscription)
        node.fanout.add(sender_queue, resumed)
        self._count(link, sender_queue)
        return sender_queue

    def _count(self, link: Any, sender_queue: Any) -> None:
        """Register and count an attached link, and report it to the observer."""
        node = self.node
        self.sender_queues[link] = sender_queue
        node.links += 1
        node.counts[NodeCounter.LINKS_OPENED] += 1
        if node.observer is not None:
            address = without_tags(link.source_address)
            node.observer.attached(sender_queue, self.peer, address)

    def _report_quality(self, sender_queue: Any, group: Group | None = None) -> list[Stream]:
        """Send a new link the state of each service; return the services that concern it, or its
        group."""
        node = self.node
        whole = group or sender_queue
        concerned = [stream for stream in node.fanout.streams if whole in stream.concerned]
        for stream in concerned:
            body = node.qualities[stream.index].attached(stream.next_sequence or None)
            node.fanout.quality(stream, body, [sender_queue])
        return concerned

    def _detach(self, link: proton.Link, orderly: bool = False) -> None:
        """Remove a link that has ended; `orderly`: the client closed it."""
        if link in self.queue_links:
            for each in list(self._coordinators.values()):
                each.work()  # a discharge that came with the end counts
        queue_link = self.queue_links.get(link)
        if queue_link is not None:
            self._forget(link)
            queue_link.leave(orderly)
            return
        sender_queue = self.sender_queues.pop(link, None)
        if sender_queue is not None:
            add_sender_queue(self.node.counts, sender_queue)
            if self.node.observer is not None:
                self.node.observer.ended(sender_queue)
            if isinstance(sender_queue, Member):
                self._leave_group(sender_queue)
            else:
                self.node.resumption.catch_ups.remove(sender_queue)
                self.node.fanout.remove(sender_queue)
                self.leave(sender_queue.queue)
            self.backlog -= sender_queue.behind  # only now: leaving a history or a group changes it
            self.node.links -= 1

    def leave(self, queue: deque[bytes]) -> None:
        """Free the messages of a queue in shares: there may be many, of many links."""
        self.node.leftovers.leave(queue)

    def _leave_group(self, member: Member) -> None:
        """Remove a member from its group: its unsettled messages go to the others; remove the group
        after its last member."""
        member.process_outcomes()
        self.members.remove(member)
        member.group.leave(member)
        if not member.group.members:
            self.node.fanout.remove(member.group)
            self.node.groups.remove(member.group)

    def _detach_overruns(self) -> None:
        """Detach the links whose queue overran; the connection and its other links stay."""
        for sender_queue in self.overruns:
            link = sender_queue.sender
            if link not in self.sender_queues:
                continue
            if self.node.observer is not None:
                self.node.observer.overrun(sender_queue, self.peer)
            self._detach(link)
            self.node.counts[NodeCounter.LINKS_OVERRUN] += 1
            link.close(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"more than {sender_queue.queue_bytes_max} bytes waited for this link",
            )
        self.overruns.clear()

    # -- the end ----------------------------------------------------------------------------

    def waiting(self) -> bool:
        """Return whether messages or frames still have to be sent."""
        if self.leave_by is not None:
            return False
        return self.writing or any(
            sender_queue.behind for sender_queue in self.sender_queues.values()
        )

    @_contained
    def close(self, condition: str = "", description: str = "") -> None:
        """Close the AMQP connection; the socket closes when the client answers or `end` is
        called."""
        if self.user is None:
            self.end()
        elif not self.gone:
            self.orderly = True
            self.engine.close(condition, description)
            self.work()

    def _leave(self) -> None:
        """Shut our side of the socket, all being written, and wait for the client to close its
        side.

        Closing the socket at once would make the kernel drop what it still has to send as soon as
        the client sends anything more (RFC 1122, 4.2.2.13), and with it the last messages.
        """
        if self.gone or self.leave_by is not None:
            return
        self._part()
        self._stop_waiting()
        self.leaving = True
        now = self.node.loop.time()
        self.leave_by, self._leave_end = now + LINGER_SECONDS, now + LINGER_SECONDS_MAX
        self._unsent_bytes = unsent_bytes(self.sock)
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:  # the client is gone already
            self.end()
            return
        if self.engine.broken:
            self.end()

    def _linger_on(self) -> bool:
        """Give a client that we are leaving `LINGER_SECONDS` more, within its bound, where it has
        taken some of what the kernel still had to send; return whether it got them."""
        now = self.node.loop.time()
        if self.leave_by is None or now >= self._leave_end:
            return False
        before, self._unsent_bytes = self._unsent_bytes, unsent_bytes(self.sock)
        if self._unsent_bytes >= before:
            return False
        self.leave_by = min(now + LINGER_SECONDS, self._leave_end)
        return True

    def _read_to_the_end(self) -> None:
        """Discard what the client still sends until it closes; the loop calls again for more."""
        try:
            for _ in range(LEAVING_READS):
                if not self.sock.recv(LEAVING_BYTES):
                    break
            else:
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.end()

    def _part(self) -> None:
        """Remove all links from the fan-out; count a client that did not say goodbye as failed."""
        for link in [*self.sender_queues, *self.queue_links]:
            self._detach(link, self.goodbye)
        if not self.parted and not self.orderly:
            self.node.counts[NodeCounter.CONNECTIONS_FAILED] += 1
        self.parted = True

    def end(self) -> None:
        """Close the socket and free all that this connection holds. Does nothing the second
        time."""
        if self.gone:
            return
        self.gone = True
        if any(kind == proton.CONNECTION_REMOTE_CLOSE for kind, _ in self._events):
            self.goodbye |= not self.orderly
            self.orderly = True
        self._events.clear()
        try:
            self._part()
            for link in list(self.engine.links.values()):
                link.release()  # or engine and links would keep each other alive
        finally:
            self.node.loop.remove_reader(self.sock.fileno())
            self._stop_waiting()
            self.sock.close()
            self._count_partial()
            self.node.connections.discard(self)
            self.node.gate.leave(self.admission)
            # The engine is freed with the last that leads here; one with many sessions takes long.
            # Until then what it has kept, and what it owes, counts.
            self.node.budget.spend(END_UNITS)
            sessions = self.engine.session_count + self.owed_bytes // KEPT_BYTES
            units = WHOLE_UNITS + sessions // SESSIONS_PER_UNIT
            freed = partial(self.node.forget_kept, self.kept, self.owed_bytes)
            self.node.leftovers.leave(self, units, freed)
            self.node.check_idle()

    def fail(self, error: Exception) -> None:
        """Report an internal error in handling this client to it and to the log, and end it."""
        self.node.fault(self.peer, error)
        if self.user is not None and not self.gone:
            with contextlib.suppress(Exception):  # a broken engine may fail to close, too
                self.engine.close(*FAULT)
                self.engine.flush()
        try:
            self.end()
        except Exception as another:  # in leaving; the socket is closed all the same
            self.node.fault(self.peer, another)
