# Part of proton.pyx: stops frames that a client may not send, before the engine sees them.

cdef enum:
    # Bytes of each frame that are checked: its header, its performative, and its first field.
    _HEAD_BYTES = 32
    # A `begin` of the largest kind: header, ulong descriptor, list32, first field's constructor.
    _OPEN = 0x10
    _BEGIN = 0x11
    _FLOW = 0x13
    _END = 0x17
    _CLOSE = 0x18
    # The fields of a flow that has properties.
    _FLOW_FIELDS = 11

#: The key in a flow's properties by which messages are acquired in a transaction (4.4.3).
cdef bytes _TXN_ID = b"txn-id"
cdef str _ACQUIRES = "a flow with a txn-id: messages are not acquired in a transaction"


cdef class FrameGate:
    """Checks the frames of one client, and refuses those that the engine does not check itself.

    The engine finds a session by its channel, and frees it with the connection or where its peer
    ends it. A `begin` that claims to answer a session of ours (a server begins none), or one on a
    channel that has a session, leaves it with one session under two names: the first `end` frees
    what the other name still leads to. So each channel has one session, from its `begin` to its
    `end`, and `open` comes before either (AMQP 1.0, 2.4.1, 2.5.1). An extended header is refused,
    since the performative stands behind it; no client sends one. What comes behind a `close`, which
    must be a client's last frame (2.7.9), is dropped: the engine would still attach links.

    A flow with a `txn-id` asks that what is sent from now on belongs to a transaction (4.4.3). The
    engine passes nothing on of that, and to send messages that are in none would break the request:
    it is refused here.

    `fault` is what was wrong: nothing more of that client may reach the engine.
    """

    def __init__(self):
        self.begun = set()
        self.fault = ""

    cdef Py_ssize_t admit(self, const unsigned char *data, Py_ssize_t size) except -1:
        """Return how many of the next bytes the engine may have; fewer than `size` where `fault` is
        set, and once the client has closed.

        The engine may have had the beginning of a frame that is refused: it acts on whole ones.
        """
        cdef Py_ssize_t offset = 0
        cdef Py_ssize_t step
        if self.fault:
            return 0
        while offset < size:
            if self.left > 0:  # of a frame that was looked at
                step = min(self.left, size - offset)
                if self.flow and self._acquires(data + offset, step):
                    self.fault = _ACQUIRES
                    return offset
                self.left -= step
                offset += step
                continue
            if self.closing:
                return offset
            step = min(self.wanted - self.have, size - offset) if self.wanted else min(
                8 - self.have, size - offset)
            memcpy(self.head + self.have, data + offset, step)
            self.have += step
            offset += step
            if not self.wanted and self.have == 8:
                self._size_up()
            if self.wanted and self.have == self.wanted:
                self._judge()
                if self.fault:
                    return max(0, offset - self.have)
                self.left = self.frame - self.have
                self.have = self.wanted = 0
        return size

    cdef int _size_up(self) except -1:
        """Read the first eight bytes: a protocol header, or a frame's header with its size."""
        if memcmp(self.head, b"AMQP", 4) == 0:
            self.have = 0
            return 0
        self.frame = (<Py_ssize_t> self.head[0] << 24 | <Py_ssize_t> self.head[1] << 16
                      | <Py_ssize_t> self.head[2] << 8 | self.head[3])
        if self.frame < 8:
            self.frame = 8  # the engine refuses it by its size
        self.wanted = min(self.frame, <Py_ssize_t> _HEAD_BYTES)
        return 0

    cdef int _judge(self) except -1:
        """Check whether the frame, whose head is there, may come now; set `fault` where not."""
        cdef unsigned int channel = <unsigned int> self.head[6] << 8 | self.head[7]
        cdef Py_ssize_t at = 11
        cdef int code
        self.flow = False
        if self.head[5] != 0 or self.frame == 8:
            return 0  # of a log-in, or empty: the line lives
        if self.head[4] != 2:
            self.fault = "a frame with an extended header"
            return 0
        if self.wanted < 11 or self.head[8] != 0:
            return 0  # not to be decoded: the engine says so
        if self.head[9] == 0x53:
            code = self.head[10]
        elif self.head[9] == 0x80 and self.wanted >= 18 and memcmp(
                self.head + 10, b"\0\0\0\0\0\0\0", 7) == 0:
            code, at = self.head[17], 18
        else:
            return 0
        if code == _OPEN:
            self.opened = True
        elif not self.opened and code != _CLOSE:
            self.fault = "a frame before the connection was opened"
        elif code == _CLOSE:
            self.closing = True
        elif code == _BEGIN:
            self._begin(channel, at)
        elif code == _END:
            self.begun.discard(channel)
        elif code == _FLOW and at + 9 <= self.wanted:
            # The count of the list's items, behind a size of one byte or of four.
            self.flow = self.head[at] == 0xC0 and self.head[at + 2] >= _FLOW_FIELDS or (
                self.head[at] == 0xD0 and self.head[at + 8] >= _FLOW_FIELDS)
            self.alike = 0
            if self.flow and self._acquires(self.head + at, self.wanted - at):
                self.fault = _ACQUIRES
        return 0

    cdef bint _acquires(self, const unsigned char *data, Py_ssize_t size) except -1:
        """Return whether a `txn-id` is in these bytes of a flow, or ends there. The fields before
        it are numbers, and too short to contain it."""
        cdef const unsigned char *wanted = _TXN_ID
        cdef Py_ssize_t offset
        for offset in range(size):
            if data[offset] == wanted[self.alike]:
                self.alike += 1
                if self.alike == 6:
                    return True
            else:
                self.alike = 1 if data[offset] == wanted[0] else 0
        return False

    cdef int _begin(self, unsigned int channel, Py_ssize_t at) except -1:
        """Check a `begin`; its list of fields is at `at`, the remote channel first."""
        cdef Py_ssize_t first = at + (3 if self.head[at] == 0xC0 else 9)
        if self.head[at] != 0x45 and first < self.wanted and self.head[first] != 0x40:
            self.fault = "a begin that answers a session which the server has not begun"
        elif channel in self.begun:
            self.fault = f"a begin on channel {channel}, which has a session"
        else:
            self.begun.add(channel)
        return 0


cdef int _let_in(void *transport, FrameGate gate, Py_ssize_t size) except -1:
    """Have the engine process `size` bytes at its tail, except what the gate refuses, which ends
    the connection with the reason, and what comes behind a close."""
    cdef Py_ssize_t good = size
    if gate is not None:
        good = gate.admit(<const unsigned char *> pn_transport_tail(transport), size)
    if good > 0:
        pn_transport_process(transport, good)
    if good < size and gate.fault and pn_transport_capacity(transport) >= 0:
        _set_condition(pn_transport_condition(transport), "amqp:not-allowed", gate.fault)
        pn_transport_close_tail(transport)
    return 0
