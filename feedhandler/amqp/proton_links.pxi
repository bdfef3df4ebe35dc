# The links of the engine: their base, sending, publishing, receiving. Included by `proton.pyx`; a
# file of its own for readability. `proton_queue_links.pxi` has those of durable queues.

cdef bint _asks_to_share(void *link) except -1:
    """Return whether the peer's source names the capability `shared`, alone or among others."""
    cdef void *data = pn_terminus_capabilities(pn_link_remote_source(link))
    cdef ssize_t size = pn_data_encoded_size(data)
    if size <= 0:
        return False
    encoded = bytearray(size)
    pn_data_encode(data, encoded, size)
    return b"\x06shared" in encoded  # a symbol, behind its length


cdef int _put_symbol(void *data, bytes word) except -1:
    cdef Bytes symbol
    symbol.size = len(word)
    symbol.start = word
    pn_data_put_symbol(data, symbol)
    return 0


cdef void *_session(void *connection) noexcept:
    """Begin a session for one link of ours."""
    cdef void *session = pn_session(connection)
    pn_session_open(session)
    return session


cdef Link _attached(Link ours, bint settled=False, size_t message_bytes_max=0, int credit=0):
    """Attach a link of ours, whose termini are set; return it."""
    pn_link_set_max_message_size(ours.link, message_bytes_max)
    pn_link_set_snd_settle_mode(ours.link, _SND_SETTLED if settled else _SND_UNSETTLED)
    pn_link_open(ours.link)
    if not pn_link_is_sender(ours.link):
        pn_link_flow(ours.link, credit)
    return ours


cdef class Link:
    """One end of a link; `owner` is an object of the layer above."""

    cdef _bind(self, Connection connection, void *link):
        self.connection = connection
        self.link = link
        self.session = pn_link_session(link)
        self.name = _text(pn_link_name(link))
        self.said = ("", "")
        pn_incref(link)  # or each message's end would take its count to 0 and back
        pn_link_set_context(link, <void *> self)
        connection.links[id(self)] = self

    cdef int _on_delivery(self, void *delivery) except -1:
        return 0

    cdef bint _hears_flow(self):
        return False

    @property
    def source_address(self):
        """Address of the peer's source; "" once the link is closed."""
        if self.link == NULL:
            return ""
        return _text(pn_terminus_get_address(pn_link_remote_source(self.link)))

    @property
    def target_address(self):
        """Address of the peer's target; "" where it gave none, or the link is closed."""
        if self.link == NULL:
            return ""
        return _text(pn_terminus_get_address(pn_link_remote_target(self.link)))

    @property
    def target_given(self):
        """Whether the peer has a target for the link: without one it is about to refuse it."""
        return self.link != NULL and (
            pn_terminus_get_type(pn_link_remote_target(self.link)) != _UNSPECIFIED
        )

    @property
    def target_capabilities(self):
        """Capabilities of the peer's target."""
        if self.link == NULL:
            return ()
        found = _value(pn_terminus_capabilities(pn_link_remote_target(self.link)))
        several = getattr(found, "elements", found if isinstance(found, list) else None)
        return tuple(str(each) for each in ([found] if several is None else several) if each)

    @property
    def remote_condition(self):
        """(name, description) with which the peer closed the link, empty until then."""
        if self.link == NULL:
            return self.said
        return _condition(pn_link_remote_condition(self.link))

    @property
    def dynamic(self):
        """Whether the peer asks for a node to be made for this link (AMQP 1.0, 3.5.3)."""
        return self.link != NULL and (
            pn_terminus_is_dynamic(pn_link_remote_source(self.link))
            or pn_terminus_is_dynamic(pn_link_remote_target(self.link))
        )

    @property
    def coordinator(self):
        """Whether the link is to a transaction coordinator (AMQP 1.0, 4.2)."""
        return self.link != NULL and (
            pn_terminus_get_type(pn_link_remote_target(self.link)) == _COORDINATOR
        )

    @property
    def browsing(self):
        """Whether the peer asks for copies, which leave messages for others (AMQP 1.0, 3.5.7)."""
        return self.link != NULL and (
            pn_terminus_get_distribution_mode(pn_link_remote_source(self.link)) == _COPY
        )

    @property
    def filters(self):
        """Names of the filters that the peer asks for, selectors among them; `?` for what is no map
        of filters."""
        if self.link == NULL:
            return ()
        cdef void *data = pn_terminus_filter(pn_link_remote_source(self.link))
        found = _value(data)
        if isinstance(found, dict):
            return tuple(str(key) for key in found)
        return ("?",) if found is not None or pn_data_encoded_size(data) > 1 else ()

    def open(self):
        """Accept the link that the peer attached, with its own termini."""
        if self.link == NULL:
            return
        self._answer()
        pn_link_open(self.link)

    def refuse(self, str condition, str description):
        """Refuse an attach: open without a terminus, then close with the reason (AMQP 1.0, 2.6.3).
        """
        if self.link == NULL:
            return
        self._answer()
        pn_terminus_set_type(
            pn_link_source(self.link) if pn_link_is_sender(self.link)
            else pn_link_target(self.link), _UNSPECIFIED)
        pn_link_open(self.link)
        self.close(condition, description)

    cdef int _answer(self) except -1:
        """Set our termini to what the peer asked for, less what we do not support: the attach that
        answers has "the filters actually in place" (AMQP 1.0, 3.5.3), and nothing survives a link.
        """
        cdef void *terminus
        pn_terminus_copy(pn_link_source(self.link), pn_link_remote_source(self.link))
        pn_terminus_copy(pn_link_target(self.link), pn_link_remote_target(self.link))
        pn_data_clear(pn_terminus_filter(pn_link_source(self.link)))
        for end in range(2):
            terminus = pn_link_target(self.link) if end else pn_link_source(self.link)
            pn_data_clear(pn_terminus_capabilities(terminus))
            pn_data_clear(pn_terminus_properties(terminus))
            pn_terminus_set_durability(terminus, _NONDURABLE)
            pn_terminus_set_timeout(terminus, 0)
            pn_terminus_set_dynamic(terminus, False)
        return 0

    def close(self, str condition="", str description=""):
        """Close the link, with a condition. The wrapper must not be used afterwards."""
        if self.link == NULL:
            return
        _set_condition(pn_link_condition(self.link), condition, description)
        pn_link_close(self.link)
        self.release()

    def release(self):
        """Free the engine's link, once both ends have closed it or we have."""
        if self.link == NULL:
            return
        self.said = _condition(pn_link_remote_condition(self.link))
        if not self.left:
            self.connection._linger(self.session, 1)
        pn_link_set_context(self.link, NULL)
        pn_link_free(self.link)
        pn_decref(self.link)
        self.link = NULL
        self.connection._forget(self)


cdef class SenderLink(Link):
    """A link on which we send. `settled`: messages are sent settled; otherwise the peer settles."""

    cdef int _answer(self) except -1:
        """Answer with the peer's settle modes, too: clients give up links with other modes, even
        links that are refused."""
        self.settled = pn_link_remote_snd_settle_mode(self.link) != _SND_UNSETTLED
        pn_link_set_snd_settle_mode(self.link, _SND_SETTLED if self.settled else _SND_UNSETTLED)
        pn_link_set_rcv_settle_mode(self.link, pn_link_remote_rcv_settle_mode(self.link))
        Link._answer(self)
        if _asks_to_share(self.link):
            _put_symbol(pn_terminus_capabilities(pn_link_source(self.link)), b"shared")
        return 0

    def open_at(self, str address):
        """Accept a link whose source the peer left to us (dynamic), with this address."""
        if self.link == NULL:
            return
        self._answer()
        pn_terminus_set_address(pn_link_source(self.link), address.encode())
        pn_terminus_set_dynamic(pn_link_source(self.link), True)
        pn_link_open(self.link)

    @property
    def shared(self):
        """Whether the peer asks for the source capability `shared`: one stream, several links."""
        return self.link != NULL and _asks_to_share(self.link)

    cdef bint _hears_flow(self):
        return self.wants_flow or pn_link_get_drain(self.link)

    cpdef int credit(self):
        """Return the messages for which the peer has given credit."""
        return 0 if self.link == NULL else pn_link_credit(self.link)

    cpdef bint ready(self):
        """Return whether one more message may be sent now: credit, and room in the engine."""
        return (
            self.link != NULL and pn_link_credit(self.link) > 0
            and self.unsettled < self.connection.unsettled_max
            and pn_session_outgoing_bytes(self.session) < <size_t> self.connection.session_room
        )

    cdef void fetch(self) noexcept:
        """Prefetch what the engine keeps of the link, as a message is about to be sent."""
        if self.link != NULL:
            prefetch(<char *> self.link + _COUNT_AT, 1)
            prefetch(<char *> self.link + _TYPE_AT, 1)
            prefetch(<char *> self.link + _STATE_AT, _STATE_BYTES)

    cpdef int send(self, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size) except -1:
        """Send one encoded message, `data[start : start + size]`; the caller has checked `ready`.

        Raises IndexError outside the buffer, ValueError where the link is closed.
        """
        cdef Bytes tag
        cdef void *delivery
        if start < 0 or size <= 0 or start + size > data.shape[0]:
            raise IndexError("message outside the buffer")
        if self.link == NULL:
            raise ValueError("the link is closed")
        self.next_tag += 1
        tag.size = sizeof(self.next_tag)
        tag.start = <const char *> &self.next_tag
        delivery = pn_delivery(self.link, tag)
        pn_link_send(self.link, <const char *> &data[start], size)
        pn_link_advance(self.link)
        if self.settled:
            pn_delivery_settle(delivery)
        else:
            pn_delivery_set_context(delivery, <void *> self)
            self.unsettled += 1
        self.connection._encode_soon()
        return 0

    cdef bint _breached(self, void *delivery) except -1:
        """Return whether a delivery is not one that we sent; end the connection then."""
        if pn_delivery_get_context(delivery) == <void *> self:
            return False
        self.connection._forbid()
        return True

    def drained(self, bint asked=False):
        """Give unused credit back where the peer asked to drain.

        `asked`: it has just done so, and waits for an answer even where it left no credit, as
        go-amqp does.
        """
        if self.link == NULL or not pn_link_get_drain(self.link):
            return
        if asked and pn_link_credit(self.link) == 0 and _LENDS_CREDIT:
            pn_link_flow(self.link, 1)
        pn_link_drained(self.link)

    cdef int _on_delivery(self, void *delivery) except -1:
        """Count the outcome of a message, and settle it.

        A state and the settlement may come one after the other in one read, and so as two events:
        the first settles, and clears what the second would report.
        """
        cdef unsigned long state
        if self._breached(delivery) or not pn_delivery_updated(delivery):
            return 0
        state = pn_delivery_remote_state(delivery)
        if (state == 0 or state == _RECEIVED) and not pn_delivery_settled(delivery):
            return 0
        if state == _ACCEPTED:
            self.accepted += 1
        else:
            self.refused += 1
        self.unsettled -= 1
        pn_delivery_clear(delivery)
        pn_delivery_settle(delivery)
        return 0


cdef class PublisherLink(SenderLink):
    """A link on which the caller numbers every message and gets its outcome by that number.

    `confirmed` are the numbers that the peer has accepted, `returned` tuples (number, outcome, the
    peer's text) of those it has not; the caller that reads them empties them. A number must not be
    sent again before it was returned.
    """

    def __cinit__(self):
        self.confirmed = []
        self.returned = []

    cpdef int send_parts(
        self, uint64_t number, const unsigned char[::1] lead, bytes data, Py_ssize_t skip,
        Py_ssize_t cut, bytes to,
    ) except -1:
        """Send one encoded message under this number: `lead`, then `data`. Where there is a `to`:
        `lead`, `data[skip:cut]`, `to`, `data[cut + 1:]`. The caller has checked `ready`."""
        cdef Bytes tag
        cdef const char *start = data
        cdef Py_ssize_t size = len(data)
        if lead.shape[0] == 0 or skip < 0 or (to and not skip <= cut < size):
            raise IndexError("parts outside the message")
        if self.link == NULL:
            raise ValueError("the link is closed")
        tag.size = sizeof(number)
        tag.start = <const char *> &number
        pn_delivery_set_context(pn_delivery(self.link, tag), <void *> self)
        pn_link_send(self.link, <const char *> &lead[0], lead.shape[0])
        if to:
            pn_link_send(self.link, start + skip, cut - skip)
            pn_link_send(self.link, <const char *> to, len(to))
            pn_link_send(self.link, start + cut + 1, size - cut - 1)
        else:
            pn_link_send(self.link, start, size)
        pn_link_advance(self.link)
        self.unsettled += 1
        return 0

    cdef int _on_delivery(self, void *delivery) except -1:
        """Record the message's number with its outcome, then proceed as any sending link."""
        cdef unsigned long state
        cdef uint64_t number
        cdef object outcome
        cdef void *disposition
        cdef tuple condition
        if self._breached(delivery) or not pn_delivery_updated(delivery):
            return 0
        state = pn_delivery_remote_state(delivery)
        if (state == 0 or state == _RECEIVED) and not pn_delivery_settled(delivery):
            return 0
        number = (<uint64_t *> pn_delivery_tag(delivery).start)[0]
        if state == _ACCEPTED:
            self.confirmed.append(number)
        else:
            disposition = pn_delivery_remote(delivery)
            condition = _condition(pn_disposition_condition(disposition))
            outcome = UNTOLD if state == _RECEIVED else state
            if state == _MODIFIED and pn_disposition_is_undeliverable(disposition):
                outcome = _UNDELIVERABLE
            self.returned.append((number, outcome, " ".join(filter(None, condition))))
        return SenderLink._on_delivery(self, delivery)


cdef class ReceiverLink(Link):
    """A link on which we receive. Whole messages are appended to `arena`.

    Message i (0 <= i < count) is `arena[b[i] : b[i + 1]]` with b the native int64 of `bounds`.
    `clear` empties it.
    """

    def __cinit__(self):
        self.arena = bytearray(1 << 16)
        self.bounds_capacity = 1 << 12
        self.bounds = bytearray(8 * self.bounds_capacity)

    cpdef clear(self):
        """Drop the messages read so far."""
        self.used = 0
        self.count = 0

    cpdef flow(self, int credit):
        """Grant `credit` more messages."""
        if self.link != NULL:
            pn_link_flow(self.link, credit)

    def drain(self, int credit=0):
        """Grant `credit` more, and have the peer send what it has and give the rest back; from now
        on its flows are events, and `drained` returns what has come back."""
        if self.link != NULL:
            self.draining = True
            pn_link_drain(self.link, credit)

    def drained(self):
        """Return the credit that the peer has given back since the last call."""
        return 0 if self.link == NULL else pn_link_drained(self.link)

    cdef bint _hears_flow(self):
        return self.draining

    cdef int _on_delivery(self, void *event_delivery) except -1:
        """Read every whole message that waits on the link; accept and settle it.

        Returns 1 where a message is, or has so far grown, larger than the link takes.
        """
        cdef void *delivery
        cdef size_t size
        cdef ssize_t got
        cdef Py_ssize_t needed
        while True:
            delivery = pn_link_current(self.link)
            if delivery == NULL or not pn_delivery_readable(delivery):
                return 0
            if pn_delivery_aborted(delivery):
                pn_link_advance(self.link)
                pn_delivery_settle(delivery)
                continue
            size = pn_delivery_pending(delivery)
            if self.message_bytes_max and size > self.message_bytes_max:
                return 1
            if pn_delivery_partial(delivery):
                return 0
            needed = self.used + <Py_ssize_t> size
            if needed > len(self.arena):
                self.arena.extend(bytes(max(needed - len(self.arena), len(self.arena))))
            if self.count + 2 > self.bounds_capacity:
                self.bounds.extend(bytes(len(self.bounds)))
                self.bounds_capacity *= 2
            got = pn_link_recv(self.link, (<char *> self.arena) + self.used, size)
            pn_link_advance(self.link)
            if not pn_delivery_settled(delivery):
                pn_delivery_update(delivery, _ACCEPTED)
            pn_delivery_settle(delivery)
            if got < 0:
                continue
            (<int64_t *> <char *> self.bounds)[self.count] = self.used
            self.used += got
            self.count += 1
            (<int64_t *> <char *> self.bounds)[self.count] = self.used
