# Part of proton.pyx: what may stand between a connection's socket and its engine.

cdef enum:
    # Read from the socket, or encrypted for it, at a time: four records of TLS.
    _LAYER_BYTES = 1 << 16
#: Buffer of a read; no other thread runs before it is copied, as the interpreter lock is held.
cdef char _arrived[_LAYER_BYTES]


cdef class Wire:
    """TLS, a client's log-in, or both: bytes of the socket go through `tls` (`security.TlsSession`)
    and, until it is over, `sasl` (`sasl.SaslServer`) into the engine, and the engine's the other
    way. `through`: nothing stands between any more. `broken`: the socket has failed."""

    def __init__(self, object tls, object sasl):
        self.tls = tls
        self.sasl = sasl
        self.unsent = b""

    cdef Py_ssize_t receive(self) except -2:
        """Read what the socket holds; returns as `Connection.receive` does."""
        cdef ssize_t got
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t room = min(self.receive_max, <Py_ssize_t> _LAYER_BYTES)
        while total < self.receive_max:
            got = c_recv(self.fd, _arrived, room, MSG_DONTWAIT)
            if got < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    return total
                got = 0
            if got == 0 and self.tls is not None:
                self.tls.eof()
            if got == 0 or self._receive(PyBytes_FromStringAndSize(_arrived, got)) != 0:
                pn_transport_close_tail(self.transport)
                return -1
            total += got
            if got < room:
                break
        return total

    cdef int _receive(self, bytes data) except -2:
        """Pass on what the socket brought, through TLS where there is any; return -1 at the end."""
        cdef Py_ssize_t got = 0
        cdef Py_ssize_t total = 0
        cdef ssize_t room
        cdef bytearray plain
        if self.tls is None:
            return self._hear(data)
        self.tls.receive(data)
        while self.tls.fault is None and not self.tls.ended:
            if self.sasl is not None:
                plain = bytearray(_LAYER_BYTES)
                got = self.tls.read_into(memoryview(plain))
                if got > 0 and self._hear(bytes(plain[:got])) != 0:
                    return -1
            else:
                room = pn_transport_capacity(self.transport)
                if room <= 0:
                    return -1
                got = self.tls.read_into(
                    PyMemoryView_FromMemory(
                        <char *> pn_transport_tail(self.transport), room, PyBUF_WRITE
                    )
                )
                if got > 0:
                    _let_in(self.transport, self.gate, got)
            if got == 0:
                break
            total += got
        # A TLS close right behind the last bytes waits for the next read: the engine must have
        # answered those bytes before it gets the end of input.
        return -1 if self.tls.fault is not None or self.tls.ended and total == 0 else 0

    cdef int _hear(self, bytes data) except -2:
        """Pass on the peer's plain bytes: to its log-in, as long as that goes on, then to the
        engine."""
        if self.sasl is None:
            return self._push(data)
        self.sasl.receive(data)
        return self.welcome()

    cdef int welcome(self) except -2:
        """Pass to the engine what came behind a successful log-in; return -1 where it takes no
        more."""
        if self.sasl is not None and self.sasl.over and not self.sasl.reason:
            return self._push(self.sasl.rest())
        return 0

    cdef int _push(self, bytes data) except -2:
        """Put bytes into the engine; return -1 where it takes no more."""
        cdef Py_ssize_t offset = 0
        cdef ssize_t room
        while offset < len(data):
            room = pn_transport_capacity(self.transport)
            if room <= 0:
                return -1
            room = min(room, <ssize_t> (len(data) - offset))
            memcpy(pn_transport_tail(self.transport), PyBytes_AS_STRING(data) + offset, room)
            _let_in(self.transport, self.gate, room)
            offset += room
        return 0

    cdef int flush(self) except -2:
        """Write what waits to the socket; returns as `Connection.flush` does."""
        cdef bint last = False
        cdef int state
        while True:
            state = self._send()
            if state != 0:
                return state
            if last:
                return -1
            last = self._prepare()
            if not self.unsent and not last:
                return 0

    cdef Py_ssize_t held(self) except -1:
        """Return the bytes that wait here, either way."""
        return len(self.unsent) - self.offset + (0 if self.tls is None else self.tls.held_bytes)

    cdef int _send(self) except -2:
        """Write what is ready; return 1 where the socket takes no more for now, -1 where it
        failed."""
        cdef ssize_t sent
        while self.offset < len(self.unsent):
            sent = c_send(
                self.fd, PyBytes_AS_STRING(self.unsent) + self.offset,
                len(self.unsent) - self.offset, MSG_DONTWAIT | MSG_NOSIGNAL,
            )
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    return 1
                pn_transport_close_head(self.transport)
                self.broken = True
                return -1
            self.offset += sent
            self.sent += sent
        self.offset = 0
        self.unsent = b""
        return 0

    cdef bint _prepare(self) except -1:
        """Put the next bytes for the socket into `unsent`; return whether they are the last
        ones."""
        cdef bint last = False
        if self.tls is not None and not self.tls.ready:
            self.unsent = self.tls.data_to_send()
            return self.tls.fault is not None
        if self.sasl is not None:
            data = self.sasl.data_to_send()
            if self.tls is None:
                self.unsent = data
            elif data:
                self.tls.write(data)
            if self.sasl.over:
                last = bool(self.sasl.reason)
                if not last:
                    self.sasl = None
                    self.through = self.tls is None
        else:
            last = self._encrypt()
        if self.tls is None:
            return last
        if last:
            self.tls.close()
        self.unsent = self.tls.data_to_send()
        return last or self.tls.fault is not None

    cdef bint _encrypt(self) except -1:
        """Encrypt the engine's pending output; return whether there will be no more."""
        cdef ssize_t pending
        if self.through:
            return False
        pending = pn_transport_pending(self.transport)
        if pending <= 0:
            return pending < 0
        pending = min(pending, <ssize_t> _LAYER_BYTES)
        self.tls.write(
            PyMemoryView_FromMemory(
                <char *> pn_transport_head(self.transport), pending, PyBUF_READ
            )
        )
        pn_transport_pop(self.transport, pending)
        return False
