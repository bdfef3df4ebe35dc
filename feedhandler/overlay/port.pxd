from feedhandler.ingest.system_calls cimport iovec, mmsghdr, msghdr, sockaddr_in

cdef enum:
    _BATCH = 64
    _DATAGRAM_BYTES = 2048
    _CONTROL_BYTES = 64


cdef class _Targets:
    cdef int count
    cdef sockaddr_in *addresses
    cdef mmsghdr *messages
    cdef iovec vector


cdef class Port:
    cdef readonly dict errors
    cdef readonly unsigned long long sent
    cdef readonly unsigned long long received
    cdef readonly unsigned long long oversize
    cdef readonly unsigned long long kernel_drops
    cdef unsigned int _drops
    cdef object _keep
    cdef dict _targets
    cdef dict _names
    cdef _Targets _last
    cdef tuple _last_addresses
    cdef int _fd
    # Slots for received datagrams, and the kernel's message header of each.
    cdef mmsghdr *_messages
    cdef iovec *_vectors
    cdef sockaddr_in *_senders
    cdef unsigned char *_room
    cdef unsigned char *_control

    cdef int _prepare(self, sock, int slots) except -1
    cdef void _empty(self, int slot) noexcept nogil
    cdef void _refused(self, int reason) noexcept
    cdef object _datagram(self, int slot)
    cdef long long _stamp(self, msghdr *message) noexcept nogil
    cdef object _name(self, int slot)
    cdef _Targets _aimed(self, bytes datagram, tuple addresses)
    cdef _Targets _kept(self, tuple addresses)
