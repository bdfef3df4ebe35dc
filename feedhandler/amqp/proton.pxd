"""C view of the engine for the fan-out and the subscriber."""

cdef class FrameGate:
    cdef readonly str fault
    cdef set begun
    cdef bint opened
    cdef bint closing
    cdef unsigned char head[32]
    cdef Py_ssize_t have, wanted, frame, left, alike
    cdef bint flow
    cdef Py_ssize_t admit(self, const unsigned char *data, Py_ssize_t size) except -1
    cdef int _size_up(self) except -1
    cdef int _judge(self) except -1
    cdef bint _acquires(self, const unsigned char *data, Py_ssize_t size) except -1
    cdef int _begin(self, unsigned int channel, Py_ssize_t at) except -1


cdef class Wire:
    cdef int fd
    cdef Py_ssize_t receive_max
    cdef void *transport
    cdef FrameGate gate
    cdef readonly object tls
    cdef readonly object sasl
    cdef readonly bint through
    cdef readonly bint broken
    cdef bytes unsent
    cdef Py_ssize_t offset
    cdef Py_ssize_t sent
    cdef Py_ssize_t held(self) except -1
    cdef Py_ssize_t receive(self) except -2
    cdef int _receive(self, bytes data) except -2
    cdef int _hear(self, bytes data) except -2
    cdef int welcome(self) except -2
    cdef int _push(self, bytes data) except -2
    cdef int flush(self) except -2
    cdef int _send(self) except -2
    cdef bint _prepare(self) except -1
    cdef bint _encrypt(self) except -1


cdef class Connection:
    cdef void *connection
    cdef void *transport
    cdef void *collector
    cdef readonly int fd
    cdef readonly bint server
    cdef readonly dict links
    cdef readonly bint broken
    cdef bint deaf
    cdef readonly list news
    cdef readonly tuple session_condition
    cdef public object owner
    cdef public object kind_of
    cdef readonly Wire wire
    cdef FrameGate gate
    cdef Py_ssize_t unsettled_max
    cdef Py_ssize_t receive_max
    cdef Py_ssize_t partial_max
    cdef readonly Py_ssize_t partial_bytes
    cdef readonly Py_ssize_t owed_bytes
    cdef readonly Py_ssize_t lingering_links
    cdef dict lingering
    cdef Py_ssize_t session_room
    cdef Py_ssize_t sessions
    cdef int _owe_link(self, void *link) except -1
    cdef int _linger(self, void *session, int change) except -1
    cdef int _share_room(self, int change) except -1
    cdef Py_ssize_t unencoded
    cdef Py_ssize_t encoded_bytes
    cpdef Py_ssize_t receive(self) except -2
    cpdef int flush(self) except -2
    cpdef list events(self)
    cpdef int turn(self) except -2
    cpdef bint quiet(self)
    cdef int _flush_wire(self) except -2
    cdef int _encode_soon(self) except -1
    cdef int _explain(self) except -1
    cdef int _forbid(self) except -1
    cdef object _link_of(self, void *link)
    cdef int _end_session(self, void *session, list found) except -1
    cdef void _forget(self, object link)


cdef class Link:
    cdef void *link
    cdef void *session
    cdef readonly Connection connection
    cdef readonly str name
    cdef tuple said
    cdef bint left
    cdef public object owner
    cdef _bind(self, Connection connection, void *link)
    cdef int _answer(self) except -1
    cdef int _on_delivery(self, void *delivery) except -1
    cdef bint _hears_flow(self)


cdef class SenderLink(Link):
    cdef unsigned long long next_tag
    cdef readonly bint settled
    cdef readonly Py_ssize_t unsettled
    cdef public bint wants_flow
    cdef readonly unsigned long long accepted
    cdef readonly unsigned long long refused
    cpdef bint ready(self)
    cdef void fetch(self) noexcept
    cdef bint _breached(self, void *delivery) except -1
    cpdef int credit(self)
    cpdef int send(self, const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t size) except -1


cdef class PublisherLink(SenderLink):
    cdef readonly list confirmed
    cdef readonly list returned
    cpdef int send_parts(
        self, unsigned long long number, const unsigned char[::1] lead, bytes data,
        Py_ssize_t skip, Py_ssize_t cut, bytes to) except -1


cdef class ReceiverLink(Link):
    cdef readonly bytearray arena
    cdef readonly bytearray bounds
    cdef readonly Py_ssize_t used
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t bounds_capacity
    cdef size_t message_bytes_max
    cdef bint draining
    cpdef flow(self, int credit)
    cpdef clear(self)


cdef class HandoutLink(SenderLink):
    cdef readonly list dispositions
    cdef dict pending
    cpdef int hand_out(
        self, unsigned long long number, const unsigned char[::1] head, bytes data,
        Py_ssize_t skip, bytes state=*) except -1
    cpdef finish(self, unsigned long long number)
    cpdef disown(self, unsigned long long number)


cdef class IntakeLink(Link):
    cdef readonly list arrived
    cdef readonly Py_ssize_t aborted
    cdef readonly size_t message_bytes_max
    cdef dict pending
    cdef unsigned long long last
    cdef readonly Py_ssize_t partial
    cdef bint dropping
    cdef int _hold(self, Py_ssize_t size) except -1
    cdef int _read_message(self, void *delivery) except -1
    cpdef flow(self, int credit)
    cpdef accept(self, unsigned long long number)
