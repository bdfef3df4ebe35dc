# The links of durable queues: messages received and handed out stay unsettled until their outcome
# is known. Included by `proton.pyx`.


cdef int _discard(void *link, void *delivery) except -1:
    """Read and drop what has come of a message so far."""
    cdef size_t size = pn_delivery_pending(delivery)
    cdef bytearray dropped
    while size > 0:
        dropped = bytearray(min(size, 65536))
        if pn_link_recv(link, dropped, len(dropped)) <= 0:
            break
        size -= len(dropped)
    return 0


cdef int _pass_over(void *link) except -1:
    """Drop what a peer sends on a link that we have closed: it may not know of that yet."""
    cdef void *delivery
    while True:
        delivery = pn_link_current(link)
        if delivery == NULL or not pn_delivery_readable(delivery):
            return 0
        if not pn_delivery_aborted(delivery):
            _discard(link, delivery)
            if pn_delivery_partial(delivery):
                return 0
        pn_link_advance(link)
        pn_delivery_settle(delivery)


cdef bytes _encoded(void *data):
    """Encode a value in proton's own form; b"" for none, and for one that cannot be encoded."""
    cdef ssize_t size = pn_data_encoded_size(data)
    if size <= 0:
        return b""
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, size)
    return encoded if pn_data_encode(data, PyBytes_AS_STRING(encoded), size) == size else b""


cdef void *_open_one(dict pending, void *link, uint64_t number, bint stays=False) except? NULL:
    """Return the delivery of this number, NULL where it is not open; it `stays` open, or not."""
    pointer = pending.get(number) if stays else pending.pop(number, None)
    return NULL if pointer is None or link == NULL else <void *> <uintptr_t> pointer


cdef class IntakeLink(Link):
    """A link on which we receive, and settle each message later.

    `arrived` are tuples (number, message, settled, state): numbers count from 1, `settled`: the
    peer expects no outcome. The message is None where it is larger than `message_bytes_max`: it was
    read and dropped. `state`: the fields of a transactional state with which it came, encoded;
    None: it came with none. `partial`: bytes of one that came in part. `aborted` counts those that
    the peer gave up half sent: like the others they have used up credit. The caller that reads them
    empties them.
    """

    def __cinit__(self):
        self.arrived = []
        self.pending = {}

    cdef int _answer(self) except -1:
        """Answer with the peer's sender settle mode; we settle first, for it has nothing to add."""
        pn_link_set_snd_settle_mode(self.link, pn_link_remote_snd_settle_mode(self.link))
        pn_link_set_rcv_settle_mode(self.link, _RCV_FIRST)
        Link._answer(self)
        if self.coordinator:
            _put_symbol(
                pn_terminus_capabilities(pn_link_target(self.link)), b"amqp:local-transactions")
        return 0

    def open_for(self, size_t message_bytes_max):
        """Accept the link, and announce how large a message may be."""
        if self.link == NULL:
            return
        self.message_bytes_max = message_bytes_max
        pn_link_set_max_message_size(self.link, message_bytes_max)
        self.open()

    def clear(self):
        """Drop what was read so far."""
        self.arrived.clear()
        self.aborted = 0

    cpdef flow(self, int credit):
        """Grant `credit` more messages."""
        if self.link != NULL:
            pn_link_flow(self.link, credit)

    cpdef accept(self, unsigned long long number):
        """Accept and settle this message; a number that is not open is ignored."""
        cdef void *delivery = _open_one(self.pending, self.link, number)
        if delivery == NULL:
            return
        pn_delivery_update(delivery, _ACCEPTED)
        pn_delivery_settle(delivery)

    def answer(self, unsigned long long number, unsigned long state, bytes fields):
        """Settle this message with a state of part 4; `fields` is its list, encoded."""
        cdef void *delivery = _open_one(self.pending, self.link, number)
        if delivery == NULL:
            return
        _put(pn_disposition_data(pn_delivery_local(delivery)), fields)
        pn_delivery_update(delivery, state)
        pn_delivery_settle(delivery)

    def enlist(self, unsigned long long number, bytes fields):
        """Send this message's outcome in a transaction; `fields` is the list of a transactional
        state, encoded. The message stays open."""
        cdef void *delivery = _open_one(self.pending, self.link, number, True)
        if delivery == NULL:
            return
        _put(pn_disposition_data(pn_delivery_local(delivery)), fields)
        pn_delivery_update(delivery, _TRANSACTIONAL)

    def give_back(self, unsigned long long number, unsigned long outcome, str condition="",
                  str description=""):
        """Settle this message as not accepted: `REJECTED` with a reason, `RELEASED`, or `MODIFIED`,
        which counts as a failed delivery."""
        cdef void *delivery = _open_one(self.pending, self.link, number)
        if delivery == NULL:
            return
        if outcome == _MODIFIED:
            pn_disposition_set_failed(pn_delivery_local(delivery), True)
        else:
            _set_condition(
                pn_disposition_condition(pn_delivery_local(delivery)), condition, description)
        pn_delivery_update(delivery, outcome)
        pn_delivery_settle(delivery)

    cdef int _on_delivery(self, void *event_delivery) except -1:
        """Read every whole message that waits on the link; return an index into `_NEWS`."""
        cdef void *delivery
        cdef int more
        if pn_link_remote_credit(self.link) < 0:
            return 2
        while True:
            delivery = pn_link_current(self.link)
            if delivery == NULL or not pn_delivery_readable(delivery):
                return 0
            if pn_delivery_aborted(delivery):
                self._hold(0)
                pn_link_advance(self.link)
                pn_delivery_settle(delivery)
                self.aborted += 1
                self.dropping = False
                continue
            more = self._read_message(delivery)
            if more != 0:
                return 3 if self.connection.partial_bytes > self.connection.partial_max else 0

    cdef int _hold(self, Py_ssize_t size) except -1:
        """Count `size` bytes of a message that came in part as held, in place of those before."""
        self.connection.partial_bytes += size - self.partial
        self.partial = size
        return 0

    cdef int _read_message(self, void *delivery) except -1:
        """Read one message; return 1 where more of it is to come."""
        cdef size_t size = pn_delivery_pending(delivery)
        cdef bytes data = None
        cdef bytes state = None
        cdef bint settled
        if size > self.message_bytes_max:
            self.dropping = True
        if self.dropping:
            _discard(self.link, delivery)
            size = 0
        if pn_delivery_partial(delivery):
            self._hold(size)
            return 1
        self._hold(0)
        if not self.dropping:
            data = PyBytes_FromStringAndSize(NULL, size)
            if size > 0:
                pn_link_recv(self.link, PyBytes_AS_STRING(data), size)
        self.dropping = False
        settled = pn_delivery_settled(delivery)
        if pn_delivery_remote_state(delivery) == _TRANSACTIONAL:
            state = _encoded(pn_disposition_data(pn_delivery_remote(delivery)))
        pn_link_advance(self.link)
        self.last += 1
        if settled:
            pn_delivery_settle(delivery)
        else:
            self.pending[self.last] = <uintptr_t> delivery
        self.arrived.append((self.last, data, settled, state))
        return 0

    def release(self):
        """Free the link as any other; what came in part is dropped at once."""
        cdef void *delivery
        if self.link != NULL and self.partial > 0:
            self._hold(0)
            delivery = pn_link_current(self.link)
            if delivery != NULL:
                _discard(self.link, delivery)
        Link.release(self)


cdef class HandoutLink(SenderLink):
    """A link on which the caller numbers messages, which stay open until it has recorded their
    outcome.

    `dispositions` are tuples (number, outcome, failed, state, settled) of the peer: an
    outcome as of `PublisherLink`, and whether it declares the delivery failed (modified). For an
    outcome of `TRANSACTIONAL` or `DECLARED`, `state` are its fields, encoded, and else None;
    `settled`: the peer has settled. The caller that reads them empties them, and calls `finish` for
    each; there may be several dispositions of one number.
    """

    def __cinit__(self):
        self.dispositions = []
        self.pending = {}

    cdef int _answer(self) except -1:
        """Answer with the peer's settle mode; send settled only where it asks for just that, as a
        message may be given up only by its consumer.
        """
        SenderLink._answer(self)
        self.settled = pn_link_remote_snd_settle_mode(self.link) == _SND_SETTLED
        pn_link_set_snd_settle_mode(self.link, pn_link_remote_snd_settle_mode(self.link))
        return 0

    cpdef int hand_out(
        self, uint64_t number, const unsigned char[::1] head, bytes data, Py_ssize_t skip,
        bytes state=None,
    ) except -1:
        """Send `head` and `data[skip:]` under this number, which must not be open on the link; in a
        transaction, where `state` has a transactional state's fields. The caller has checked
        `ready`.
        """
        cdef Bytes tag
        cdef void *delivery
        cdef const char *start = data
        cdef Py_ssize_t size = len(data)
        if head.shape[0] == 0 or not 0 <= skip <= size:
            raise IndexError("parts outside the message")
        if self.link == NULL:
            raise ValueError("the link is closed")
        tag.size = sizeof(number)
        tag.start = <const char *> &number
        delivery = pn_delivery(self.link, tag)
        if state is not None:
            _put(pn_disposition_data(pn_delivery_local(delivery)), state)
            pn_delivery_update(delivery, _TRANSACTIONAL)
        pn_link_send(self.link, <const char *> &head[0], head.shape[0])
        if skip < size:
            pn_link_send(self.link, start + skip, size - skip)
        pn_link_advance(self.link)
        if self.settled:
            pn_delivery_settle(delivery)
        else:
            pn_delivery_set_context(delivery, <void *> self)
            self.pending[number] = <uintptr_t> delivery
            self.unsettled += 1
        self.connection._encode_soon()
        return 0

    cpdef finish(self, uint64_t number):
        """Settle a message whose outcome is recorded; one that is not open is ignored."""
        cdef void *delivery = _open_one(self.pending, self.link, number)
        cdef unsigned long state
        if delivery == NULL:
            return
        self.unsettled -= 1
        state = pn_delivery_remote_state(delivery)
        # Of a committed transaction's messages, only accepted ones come here.
        pn_delivery_update(delivery, _ACCEPTED if state == _TRANSACTIONAL else state)
        pn_delivery_settle(delivery)

    def reason(self, uint64_t number):
        """Return why the peer has not accepted an open message: a condition's name, and its
        text."""
        cdef void *delivery = _open_one(self.pending, self.link, number, True)
        if delivery == NULL:
            return "", ""
        return _condition(pn_disposition_condition(pn_delivery_remote(delivery)))

    cpdef disown(self, uint64_t number):
        """Release a message that this link does not hold any more: its outcome comes too late. One
        that is not open is ignored."""
        cdef void *delivery = _open_one(self.pending, self.link, number)
        if delivery == NULL:
            return
        self.unsettled -= 1
        pn_delivery_update(delivery, RELEASED)
        pn_delivery_settle(delivery)

    cdef int _on_delivery(self, void *delivery) except -1:
        """Record the peer's disposition of a message; state and settlement may come apart."""
        cdef unsigned long state
        cdef uint64_t number
        cdef object outcome
        cdef void *disposition
        cdef bint failed = False
        cdef bytes fields = None
        if self._breached(delivery) or not pn_delivery_updated(delivery):
            return 0
        state = pn_delivery_remote_state(delivery)
        if (state == 0 or state == _RECEIVED) and not pn_delivery_settled(delivery):
            return 0
        number = (<uint64_t *> pn_delivery_tag(delivery).start)[0]
        pn_delivery_clear(delivery)
        outcome = UNTOLD if state == _RECEIVED else state
        if state == _TRANSACTIONAL or state == _DECLARED:
            fields = _encoded(pn_disposition_data(pn_delivery_remote(delivery)))
        elif state == _ACCEPTED:
            self.accepted += 1
        else:
            self.refused += 1
        if state == _MODIFIED:
            disposition = pn_delivery_remote(delivery)
            failed = pn_disposition_is_failed(disposition)
            if pn_disposition_is_undeliverable(disposition):
                outcome = _UNDELIVERABLE
        self.dispositions.append((number, outcome, failed, fields, bool(pn_delivery_settled(delivery))))
        return 0
