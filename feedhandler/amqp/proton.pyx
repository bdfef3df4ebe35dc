"""The AMQP 1.0 engine: qpid-proton, driven without I/O of its own.

What it is for: one connection's protocol state (connection, sessions, links, deliveries), fed with
the bytes of a non-blocking socket and emptied into it. Everything above (node, fan-out,
subscriber) uses the classes here and nothing of proton, so that another engine can replace it.

What it promises: no call blocks; sending never exceeds the credit its caller checked with
`ready`; every delivery is settled, so memory does not grow with the number of messages.

How: the functions of proton's C library are called through pointers taken from the extension
that the `python-qpid-proton` package ships. A call through its Python binding costs a microsecond
or two, a call through a pointer a few nanoseconds, and the fan-out makes four a message.
Not the reactor, not `MessagingHandler`, not `Message.encode`.
"""

import ctypes
from pathlib import Path

import cproton_ffi

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, intptr_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, strlen

from feedhandler.amqp.prefetch cimport prefetch

from feedhandler.codecs.errors import FeedhandlerError


cdef extern from "sys/socket.h" nogil:
    ssize_t c_recv "recv"(int fd, void *buffer, size_t size, int flags)
    ssize_t c_send "send"(int fd, const void *buffer, size_t size, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL


cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char *memory, Py_ssize_t size, int flags)
    enum:
        PyBUF_READ
        PyBUF_WRITE

include "proton_functions.pxi"

from cproton_ffi import lib as _lib

# The engine's events that the layers above act upon; all others are consumed here.
CONNECTION_REMOTE_OPEN = _lib.PN_CONNECTION_REMOTE_OPEN
CONNECTION_REMOTE_CLOSE = _lib.PN_CONNECTION_REMOTE_CLOSE
SESSION_REMOTE_OPEN = _lib.PN_SESSION_REMOTE_OPEN
SESSION_REMOTE_CLOSE = _lib.PN_SESSION_REMOTE_CLOSE
LINK_REMOTE_OPEN = _lib.PN_LINK_REMOTE_OPEN
LINK_REMOTE_CLOSE = _lib.PN_LINK_REMOTE_CLOSE
LINK_REMOTE_DETACH = _lib.PN_LINK_REMOTE_DETACH
LINK_FLOW = _lib.PN_LINK_FLOW
TRANSPORT_ERROR = _lib.PN_TRANSPORT_ERROR
TRANSPORT_CLOSED = _lib.PN_TRANSPORT_CLOSED
#: Ours, not the engine's: a message on a receiving link is larger than the link takes.
MESSAGE_TOO_LARGE = -1
#: Ours: the peer has sent a message on a receiving link for which it had no credit.
CREDIT_EXCEEDED = -2
#: Ours: messages that the peer has sent in part take more than `partial_bytes_max`.
PARTIAL_EXCEEDED = -3

cdef int _CONNECTION_REMOTE_OPEN = CONNECTION_REMOTE_OPEN
cdef int _CONNECTION_REMOTE_CLOSE = CONNECTION_REMOTE_CLOSE
cdef int _SESSION_REMOTE_OPEN = SESSION_REMOTE_OPEN
cdef int _SESSION_REMOTE_CLOSE = SESSION_REMOTE_CLOSE
cdef int _LINK_REMOTE_OPEN = LINK_REMOTE_OPEN
cdef int _LINK_REMOTE_CLOSE = LINK_REMOTE_CLOSE
cdef int _LINK_REMOTE_DETACH = LINK_REMOTE_DETACH
cdef int _LINK_FLOW = LINK_FLOW
cdef int _DELIVERY = _lib.PN_DELIVERY
cdef int _TRANSPORT = _lib.PN_TRANSPORT
cdef int _TRANSPORT_ERROR = TRANSPORT_ERROR
cdef int _TRANSPORT_CLOSED = TRANSPORT_CLOSED
#: Results of `_on_delivery`, by index: nothing, or one of the events above.
cdef tuple _NEWS = (0, MESSAGE_TOO_LARGE, CREDIT_EXCEEDED, PARTIAL_EXCEEDED)
#: Log levels (critical, error, warning) and subsystems whose messages the engine would write to
#: stderr, a line for each mistake of a peer. They are masked: the connection's owner gets the
#: errors.
cdef unsigned short _COMPLAINTS = 0b111
cdef unsigned short _SUBSYSTEMS = 0xFFFF
cdef int _REMOTE_CLOSED = _lib.PN_REMOTE_CLOSED
cdef unsigned long _ACCEPTED = _lib.PN_ACCEPTED
cdef unsigned long _RECEIVED = _lib.PN_RECEIVED
cdef unsigned long _MODIFIED = _lib.PN_MODIFIED
cdef int _RCV_FIRST = _lib.PN_RCV_FIRST

#: A peer's outcomes for a message that we sent it; none of them: settled without an outcome.
ACCEPTED = _lib.PN_ACCEPTED
REJECTED = _lib.PN_REJECTED
RELEASED = _lib.PN_RELEASED
MODIFIED = _lib.PN_MODIFIED
#: Ours: modified with `undeliverable-here`, a refusal for good.
UNDELIVERABLE = -2
#: Ours: settled without an outcome.
UNTOLD = 0
cdef int _UNDELIVERABLE = UNDELIVERABLE
#: States of part 4, which the engine passes on as they are: a transaction was declared (sent by
#: us), and something belongs to one.
DECLARED = 0x33
TRANSACTIONAL = 0x34
cdef unsigned long _TRANSACTIONAL = TRANSACTIONAL
cdef unsigned long _DECLARED = DECLARED
#: Address that `kind_of` gets for a link to a transaction coordinator.
COORDINATOR = "$coordinator"
cdef int _UNSPECIFIED = _lib.PN_UNSPECIFIED
cdef int _SOURCE = _lib.PN_SOURCE
cdef int _TARGET = _lib.PN_TARGET
cdef int _COORDINATOR = _lib.PN_COORDINATOR
cdef int _COPY = _lib.PN_DIST_MODE_COPY
cdef int _DURABLE = _lib.PN_CONFIGURATION
cdef int _SND_UNSETTLED = _lib.PN_SND_UNSETTLED
cdef int _SND_SETTLED = _lib.PN_SND_SETTLED
cdef int _NONDURABLE = _lib.PN_NONDURABLE

#: Bytes that one session may hold unsent in the engine before `ready` returns False. A turn of
#: ordinary traffic fits; past it messages wait in the link's own bounded queue, where they count.
SESSION_OUTGOING_BYTES_MAX = 1 << 20
cdef Py_ssize_t _OUTGOING_MAX = SESSION_OUTGOING_BYTES_MAX
#: Messages that are put into frames together: soon, while what the engine keeps of each link and
#: message still lies near the processor. With a thousand links that is a fifth of the cost.
cdef Py_ssize_t _ENCODED_TOGETHER = 16
#: Where the engine (0.40, 64 bits) keeps of a link what each message needs: its count of references,
#: its type, and its handle, credit, messages and modes. With other versions, a fetch in vain.
cdef enum:
    _COUNT_AT = -16
    _TYPE_AT = 112
    _STATE_AT = 608
    _STATE_BYTES = 160
#: Frames that may wait for the socket before the engine is left to hold messages: those count.
ENCODED_BYTES_MAX = 1 << 18
cdef Py_ssize_t _ENCODED_MAX = ENCODED_BYTES_MAX

#: Unsettled messages that one link may have in flight: the engine keeps a record of each, so a
#: subscriber that grants credit and never settles must not make it keep ever more.
UNSETTLED_MAX = 10_000

#: Longest description of a condition: it must fit the smallest frame a peer may insist on (512).
DESCRIPTION_CHARS_MAX = 200

#: Description of the error for a peer that sends a message on a link on which it receives.
cdef str _MISPLACED = "a message on a link whose sender is the other side"

#: Bytes that one `receive` call reads at most by default, so that one peer cannot monopolise the
#: loop.
RECEIVE_BYTES_MAX = 1 << 20
#: Bytes of messages sent in part that one connection may make us hold, by default.
PARTIAL_BYTES_MAX = 8 << 20

#: Whether a sending link may be lent a credit that it gives back at once. The engine answers a
#: drain only where there is credit to give back; `pn_link_flow` would lend it some, but a library
#: built with its assertions keeps that function for receiving links, and ends the process.
cdef bint _LENDS_CREDIT = (
    b"pn_link_is_receiver(receiver)" not in Path(cproton_ffi.__file__).read_bytes())


cdef void _unwritten(intptr_t context, int subsystem, int severity, const char *text) noexcept nogil:
    """Discard a log message of the engine: of a frame size that is too small it writes one whatever
    the masks are."""


include "proton_values.pxi"


#: Estimated bytes of an answer to the peer until it is sent: the engine keeps a link, a session or
#: a delivery until its answer is in a frame.
OWED_LINK_BYTES = 4096
OWED_SESSION_BYTES = 2048
OWED_DELIVERY_BYTES = 512
cdef Py_ssize_t _OWED_LINK = OWED_LINK_BYTES
cdef Py_ssize_t _OWED_SESSION = OWED_SESSION_BYTES
cdef Py_ssize_t _OWED_DELIVERY = OWED_DELIVERY_BYTES
#: Ratio of an answer's bytes in memory to those of its frames: each byte that the socket takes
#: frees so many.
cdef Py_ssize_t _OWED_RATIO = 8
#: Bytes that all sessions of a connection together may hold unsent in the engine; but each of them
#: may hold the second.
CONNECTION_OUTGOING_BYTES_MAX = 8 << 20
SESSION_OUTGOING_BYTES_MIN = 1 << 14

#: Every outcome of a message that we understand, for brokers that want them announced.
_OUTCOMES = _symbols((
    "amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list",
))


include "proton_gate.pxi"
include "proton_wire.pxi"


cdef class Connection:
    """One AMQP connection over one non-blocking stream socket.

    `server`: take the server's part. `container`: our container id. `hostname`: the virtual host
    asked for (client). `max_frame_bytes`: largest frame we take. `idle_timeout_ms`: silence after
    which the peer counts as dead, 0 for never; needs `tick` to be called. `user`, `password`: our
    credentials (client, SASL PLAIN); SASL ANONYMOUS where `user` is empty; `external`: log in by
    the client certificate. `sessions_max`: sessions that the peer may have. `unsettled_max`:
    unsettled messages in flight on one link, at most. `receive_bytes_max`: bytes that one `receive`
    reads at most. `partial_bytes_max`: bound on bytes of messages that came in part, on all links;
    `partial_bytes`: how many there are. `owed_bytes`: estimated bytes of answers to the peer that
    are not sent yet. `lingering_links`: links that we have closed and the peer has not.

    `properties`: connection properties of our `open` (text to text). A server should have some:
    with them, the last field, its `open` has every field, and some clients read no shorter one.
    `capabilities`: offered capabilities, for clients that use only what is offered.

    `kind_of(sending, address)`, where it is set, chooses the class of a link that the peer attaches;
    None leaves it to the engine.

    Between socket and engine may stand `tls`, a `security.TlsSession`, and `sasl`, a
    `sasl.SaslServer` that processes a client's log-in before the engine gets any bytes.
    """

    def __init__(
        self, int fd, *, bint server, str container, str hostname="",
        uint32_t max_frame_bytes=65536, uint32_t idle_timeout_ms=0,
        str user="", str password="", bint external=False,
        object tls=None, object sasl=None,
        int sessions_max=0, Py_ssize_t unsettled_max=UNSETTLED_MAX,
        Py_ssize_t receive_bytes_max=RECEIVE_BYTES_MAX,
        Py_ssize_t partial_bytes_max=PARTIAL_BYTES_MAX,
        dict properties=None, tuple capabilities=(),
    ):
        self.fd = fd
        self.server = server
        self.unsettled_max = unsettled_max
        self.receive_max = receive_bytes_max
        self.partial_max = partial_bytes_max
        self.links = {}
        self.lingering = {}
        self.session_room = SESSION_OUTGOING_BYTES_MAX
        self.connection = pn_connection()
        self.transport = pn_transport()
        self.collector = pn_collector()
        pn_connection_collect(self.connection, self.collector)
        pn_logger_reset_mask(pn_transport_logger(self.transport), _SUBSYSTEMS, _COMPLAINTS)
        pn_logger_set_log_sink(pn_transport_logger(self.transport), _unwritten, 0)
        if server:
            pn_transport_set_server(self.transport)
            self.gate = FrameGate()
        pn_transport_require_auth(self.transport, False)
        if sasl is None:
            pn_sasl_allowed_mechs(
                pn_sasl(self.transport),
                b"EXTERNAL ANONYMOUS" if external else b"PLAIN" if user else b"ANONYMOUS",
            )
        if sessions_max:
            pn_transport_set_channel_max(self.transport, min(sessions_max, 32768) - 1)
        if user:
            pn_sasl_set_allow_insecure_mechs(pn_sasl(self.transport), True)
            pn_connection_set_user(self.connection, user.encode())
            pn_connection_set_password(self.connection, password.encode())
        pn_transport_set_max_frame(self.transport, max_frame_bytes)
        if idle_timeout_ms:
            pn_transport_set_idle_timeout(self.transport, idle_timeout_ms)
        pn_connection_set_container(self.connection, container.encode())
        if capabilities:
            _put(pn_connection_offered_capabilities(self.connection), _symbols(capabilities))
        if properties:
            _put(pn_connection_properties(self.connection), _texts(properties))
        if hostname:
            pn_connection_set_hostname(self.connection, hostname.encode())
        if tls is not None or sasl is not None:
            self.wire = Wire(tls, sasl)
            self.wire.fd, self.wire.transport, self.wire.gate = fd, self.transport, self.gate
            self.wire.receive_max = min(receive_bytes_max, RECEIVE_BYTES_MAX)
        pn_transport_bind(self.transport, self.connection)
        if not server:
            pn_connection_open(self.connection)

    def __dealloc__(self):
        if self.transport != NULL:
            pn_transport_unbind(self.transport)
            pn_transport_free(self.transport)
        if self.collector != NULL:
            pn_collector_release(self.collector)
        if self.connection != NULL:
            pn_connection_free(self.connection)
        if self.collector != NULL:
            pn_collector_free(self.collector)

    cpdef Py_ssize_t receive(self) except -2:
        """Read what the socket holds into the engine.

        Returns the bytes read, or -1 when the peer has gone or sent what is not AMQP.
        """
        cdef ssize_t room, got
        cdef Py_ssize_t total = 0
        if self.wire is not None:
            total = self.wire.receive()
            self.broken = self.broken or total < 0
            self._explain()
            return total
        while total < self.receive_max:
            room = pn_transport_capacity(self.transport)
            if room < 0:
                self.broken = True
                return -1
            if room == 0:
                break
            room = min(room, <ssize_t> (self.receive_max - total))
            got = c_recv(self.fd, pn_transport_tail(self.transport), room, MSG_DONTWAIT)
            if got < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    break
                got = 0
            if got == 0:
                pn_transport_close_tail(self.transport)
                self.broken = True
                return -1
            _let_in(self.transport, self.gate, got)
            total += got
            if got < room:
                break
        self._explain()
        return total

    cdef int _explain(self) except -1:
        """Close with a reason where the engine takes no more input.

        The engine reports most errors to the peer; a frame whose performative it cannot decode it
        does not, and the connection would stay, half dead, until either side sends something.
        """
        if self.deaf or pn_transport_capacity(self.transport) >= 0:
            return 0
        self.deaf = True
        if pn_connection_state(self.connection) & _REMOTE_CLOSED:
            return 0
        if not _condition(pn_transport_condition(self.transport))[0]:
            self.close("amqp:decode-error", "a frame that cannot be decoded")
        return 0

    cdef int _forbid(self) except -1:
        """End the connection of a peer that has sent a message on a link that we send on, as the
        engine does for other breaches of the protocol.

        The engine takes such a transfer, and from then on mistakes it for one of ours: it is what
        the link sends next, under the peer's tag and number, and with its end the message of ours
        that has this number is forgotten. So nothing is sent any more, by `ready`, nor settled.
        """
        self.unsettled_max = 0
        if pn_transport_capacity(self.transport) < 0:
            return 0  # it is over already
        _set_condition(pn_transport_condition(self.transport), "amqp:not-allowed", _MISPLACED)
        pn_transport_close_tail(self.transport)
        return 0

    cpdef int flush(self) except -2:
        """Write the engine's pending output to the socket.

        Returns 0 when all is written, 1 when the socket takes no more for now, -1 when the
        connection is over.
        """
        cdef ssize_t pending, sent
        if self.wire is not None:
            return self._flush_wire()
        while True:
            pending = pn_transport_pending(self.transport)
            if pending == 0:
                self.encoded_bytes = self.owed_bytes = 0
                return 0
            if pending < 0:
                return -1
            sent = c_send(
                self.fd, pn_transport_head(self.transport), pending, MSG_DONTWAIT | MSG_NOSIGNAL
            )
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    return 1
                pn_transport_close_head(self.transport)
                self.broken = True
                return -1
            pn_transport_pop(self.transport, sent)
            self.owed_bytes = max(0, self.owed_bytes - _OWED_RATIO * sent)

    cdef int _encode_soon(self) except -1:
        """Count one more message in the engine; encode those that have gathered, unless the socket
        lags.

        The engine's events of that are dropped at once, while their links are in the cache.
        """
        cdef bint silent
        self.unencoded += 1
        if self.unencoded >= _ENCODED_TOGETHER and self.encoded_bytes < _ENCODED_MAX:
            self.unencoded = 0
            silent = self.quiet()
            self.encoded_bytes = pn_transport_pending(self.transport)
            if silent:
                self.quiet()
        return 0

    cdef int _flush_wire(self) except -2:
        """Flush by way of TLS and SASL, as long as they stand between."""
        cdef Py_ssize_t before = self.wire.sent
        cdef int state = self.wire.flush()
        self.broken = self.broken or self.wire.broken
        self.owed_bytes = max(0, self.owed_bytes - _OWED_RATIO * (self.wire.sent - before))
        if state == 0:
            self.encoded_bytes = self.owed_bytes = 0
        if state == 0 and self.wire.through:
            self.wire = None
            return self.flush()
        return state

    def welcome(self):
        """Pass to the engine what came behind a client's log-in, which was decided."""
        if self.wire is not None and self.wire.welcome() != 0:
            self.broken = True

    cpdef list events(self):
        """Take the engine's events: a list of (event, link or None).

        Deliveries are consumed here: a receiving link appends them to its arena, a sending link
        settles what its peer has disposed of.
        """
        cdef list found = []
        cdef void *event
        cdef void *link
        cdef void *owner
        cdef void *delivery
        cdef int kind
        cdef int news
        while True:
            event = pn_collector_peek(self.collector)
            if event == NULL:
                return found
            kind = pn_event_type(event)
            if kind == _DELIVERY:
                self.owed_bytes += _OWED_DELIVERY
                delivery = pn_event_delivery(event)
                link = pn_delivery_link(delivery)
                if link != NULL:  # or the delivery ended with its link, before its event came
                    owner = pn_link_get_context(link)
                    if owner == NULL:
                        if not pn_link_is_sender(link):
                            if self.server:
                                _pass_over(link)
                        elif pn_delivery_get_context(delivery) == NULL:
                            self._forbid()
                    else:
                        news = (<Link> <object> owner)._on_delivery(delivery)
                        if news != 0:
                            found.append((_NEWS[news], <object> owner))
            elif kind == _LINK_FLOW:
                # The engine reports it after each transfer, too: only links that wait for credit,
                # or were asked to drain it, are notified.
                link = pn_link_get_context(pn_event_link(event))
                if link != NULL and (<Link> <object> link)._hears_flow():
                    found.append((kind, <object> link))
            elif kind == _LINK_REMOTE_OPEN:
                found.append((kind, self._link_of(pn_event_link(event))))
                self._owe_link(pn_event_link(event))
            elif kind == _LINK_REMOTE_CLOSE or kind == _LINK_REMOTE_DETACH:
                self.owed_bytes += _OWED_LINK
                link = pn_link_get_context(pn_event_link(event))
                if link != NULL:
                    (<Link> <object> link).left = True
                else:
                    self._linger(pn_link_session(pn_event_link(event)), -1)
                found.append((kind, <object> link if link != NULL else None))
            elif kind == _SESSION_REMOTE_OPEN:
                self.owed_bytes += _OWED_SESSION
                if self.server:
                    pn_session_open(pn_event_session(event))
                    self._share_room(1)
            elif kind == _SESSION_REMOTE_CLOSE:
                self._end_session(pn_event_session(event), found)
            elif (
                kind == _CONNECTION_REMOTE_OPEN or kind == _CONNECTION_REMOTE_CLOSE
                or kind == _TRANSPORT_ERROR or kind == _TRANSPORT_CLOSED
            ):
                found.append((kind, None))
            pn_collector_pop(self.collector)

    cpdef int turn(self) except -2:
        """Take a reader's whole turn: read, take the events, write.

        Returns 0 when there was nothing but deliveries and all is written; 1 when `news` holds
        events or the socket takes no more; -1 when the peer has gone (`news` may hold events).
        """
        cdef Py_ssize_t got = self.receive()
        self.news = self.events()
        if got < 0:
            return -1
        if self.news:
            return 1
        return 0 if self.flush() == 0 else 1

    cpdef bint quiet(self):
        """Drop the events of ordinary sending; return whether no other is left.

        For a caller that has just written everything and waits for nothing. The engine has a flow
        event for each message sent, and a transport event for each write. The flow of a peer that
        drains its credit came with a read, and `events` has returned it.
        """
        cdef void *event
        cdef int kind
        while True:
            event = pn_collector_peek(self.collector)
            if event == NULL:
                return True
            kind = pn_event_type(event)
            if kind != _LINK_FLOW and kind != _TRANSPORT:
                return False
            pn_collector_pop(self.collector)

    cdef object _link_of(self, void *link):
        """Return the wrapper of a link; make it where the peer opened the link."""
        cdef void *known = pn_link_get_context(link)
        if known != NULL:
            return <object> known
        cdef bint sending = pn_link_is_sender(link)
        kind = None
        if self.kind_of is not None:
            coordinates = pn_terminus_get_type(pn_link_remote_target(link)) == _COORDINATOR
            kind = self.kind_of(sending, COORDINATOR if coordinates else _text(
                pn_terminus_get_address(
                    pn_link_remote_source(link) if sending else pn_link_remote_target(link))))
        if kind is not None:
            wrapper = kind()
        elif not sending:
            wrapper = ReceiverLink()
        else:  # what is shared goes to another member where this one does not take it
            wrapper = PublisherLink() if _asks_to_share(link) else SenderLink()
        (<Link> wrapper)._bind(self, link)
        return wrapper

    cdef int _owe_link(self, void *link) except -1:
        """Count the answer to a link, which repeats its name and its addresses, as owed."""
        cdef Py_ssize_t size = (
            _length(pn_link_name(link))
            + _length(pn_terminus_get_address(pn_link_remote_source(link)))
            + _length(pn_terminus_get_address(pn_link_remote_target(link)))
        )
        self.owed_bytes += _OWED_LINK + 3 * size
        return 0

    cdef int _linger(self, void *session, int change) except -1:
        """Count one link more (1), or less (-1), that we have closed and the peer has not."""
        cdef object key = <uintptr_t> session
        cdef object count = self.lingering.get(key, 0) + change
        if count >= 0:
            self.lingering[key] = count
            self.lingering_links += change
        return 0

    cdef int _share_room(self, int change) except -1:
        """Count one session more (1), or less (-1), and share the room for unsent bytes among
        all."""
        self.sessions += change
        self.session_room = max(
            <Py_ssize_t> SESSION_OUTGOING_BYTES_MIN,
            min(_OUTGOING_MAX, <Py_ssize_t> CONNECTION_OUTGOING_BYTES_MAX // max(self.sessions, 1)),
        )
        return 0

    cdef int _end_session(self, void *session, list found) except -1:
        """End a session that the peer has ended, and its links with it.

        They are not detached one by one: rhea answers that on the channel which it has ended.
        """
        cdef Link wrapper
        self.owed_bytes += _OWED_SESSION
        if self.server:
            self._share_room(-1)
        for wrapper in list(self.links.values()):
            if wrapper.session == session:
                found.append((_LINK_REMOTE_CLOSE, wrapper))
                wrapper.left = True
                wrapper.release()
        self.lingering_links -= self.lingering.pop(<uintptr_t> session, 0)
        self.session_condition = _condition(pn_session_remote_condition(session))
        pn_session_close(session)
        pn_session_free(session)
        return 0

    cdef void _forget(self, object link):
        """Drop the reference that keeps a link's wrapper alive."""
        self.links.pop(id(link), None)
        if not self.links:
            self.news = []  # it may name the link, which would keep the connection alive

    def open(self):
        """Answer the peer's open (server)."""
        pn_connection_open(self.connection)

    def close(self, str condition="", str description=""):
        """Close the connection, with a condition; `flush` sends it."""
        _set_condition(pn_connection_condition(self.connection), condition, description)
        pn_connection_close(self.connection)

    def tick(self, int64_t now_ms):
        """Let the engine see the time; return when it must see it again (ms, 0: never)."""
        return pn_transport_tick(self.transport, now_ms)

    @property
    def frames_received(self):
        """Number of frames that the peer has sent."""
        return pn_transport_get_frames_input(self.transport)

    @property
    def session_count(self):
        """Number of sessions that the peer has begun and not ended."""
        return self.sessions

    @property
    def held_bytes(self):
        """`owed_bytes`, and the bytes that wait in TLS either way."""
        return self.owed_bytes + (0 if self.wire is None else self.wire.held())

    @property
    def closed(self):
        """Whether both directions are closed."""
        return pn_transport_closed(self.transport)

    @property
    def remote_max_frame_bytes(self):
        """The largest frame that the peer takes; 0 for any."""
        return pn_transport_get_remote_max_frame(self.transport)

    @property
    def remote_properties(self):
        """Connection properties of the peer's `open`: product, version and the like, as text."""
        found = _value(pn_connection_remote_properties(self.connection))
        if not isinstance(found, dict):
            return {}
        return {str(key): str(value) for key, value in found.items()}

    @property
    def remote_condition(self):
        """(name, description) with which the peer closed."""
        return _condition(pn_connection_remote_condition(self.connection))

    @property
    def transport_condition(self):
        """(name, description) of the error that the engine found in the peer's bytes."""
        return _condition(pn_transport_condition(self.transport))

    def receiver(
        self, str name, str address, *, bint settled, int credit, size_t message_bytes_max=0,
        Link beside=None,
    ):
        """Attach a receiving link to `address`; grant it `credit`.

        A message of more than `message_bytes_max` bytes (0: any) is an event, not received. The
        link has a session of its own, or that of the link `beside`: for many links of one client
        that costs both sides less.
        """
        if beside is not None and beside.link == NULL:
            raise ValueError("the link is closed")
        cdef void *session = _session(self.connection) if beside is None else beside.session
        cdef ReceiverLink wrapper = ReceiverLink()
        wrapper.message_bytes_max = message_bytes_max
        wrapper._bind(self, pn_receiver(session, name.encode()))
        pn_terminus_set_address(pn_link_source(wrapper.link), address.encode())
        return _attached(wrapper, settled, message_bytes_max, credit)

    def taker(self, str name, str address, *, int credit, size_t message_bytes_max):
        """Attach a link that receives from `address` and settles each message later; grant
        `credit`.

        A message of more than `message_bytes_max` is None; an empty address asks for a dynamic one.
        """
        cdef IntakeLink wrapper = IntakeLink()
        wrapper.message_bytes_max = message_bytes_max
        wrapper._bind(self, pn_receiver(_session(self.connection), name.encode()))
        if address:
            pn_terminus_set_address(pn_link_source(wrapper.link), address.encode())
        else:
            pn_terminus_set_dynamic(pn_link_source(wrapper.link), True)
        return _attached(wrapper, False, message_bytes_max, credit)

    def putter(self, str name, str address):
        """Attach a link that sends to `address` (`COORDINATOR`: to the transaction coordinator) and
        reports the outcome of each message."""
        cdef HandoutLink wrapper = HandoutLink()
        wrapper._bind(self, pn_sender(_session(self.connection), name.encode()))
        if address == COORDINATOR:
            pn_terminus_set_type(pn_link_target(wrapper.link), _COORDINATOR)
        else:
            pn_terminus_set_address(pn_link_target(wrapper.link), address.encode())
        return _attached(wrapper)

    def publisher(
        self, str name, str address, str capability="", bint durable=False, bint outcomes=False
    ):
        """Attach a sending link to `address` in a session of its own; its peer settles.

        Without an address each message has its own. `capability`: the target's capability;
        `durable`: the target is to outlive its peer's restart. `outcomes`: announce those that we
        understand.
        """
        cdef PublisherLink wrapper = PublisherLink()
        wrapper._bind(self, pn_sender(_session(self.connection), name.encode()))
        cdef void *target = pn_link_target(wrapper.link)
        pn_terminus_set_type(target, _TARGET)
        if address:
            pn_terminus_set_address(target, address.encode())
        if durable:
            pn_terminus_set_durability(target, _DURABLE)
        if capability:
            _put(pn_terminus_capabilities(target), _symbols((capability,)))
        if outcomes:
            pn_terminus_set_type(pn_link_source(wrapper.link), _SOURCE)
            _put(pn_terminus_outcomes(pn_link_source(wrapper.link)), _OUTCOMES)
        return _attached(wrapper)


include "proton_links.pxi"
include "proton_queue_links.pxi"
