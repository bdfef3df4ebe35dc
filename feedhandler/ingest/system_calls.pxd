# Linux system calls of threads that receive and send datagrams, as the headers declare them.

from posix.time cimport timespec

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int ppoll(pollfd *fds, unsigned long count, const timespec *timeout, const void *mask)
    int POLLIN
    int POLLOUT

cdef extern from "<sys/timerfd.h>" nogil:
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *when, itimerspec *before)
    int TFD_NONBLOCK
    int TFD_CLOEXEC
    int TFD_TIMER_ABSTIME

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        unsigned int s_addr
    struct sockaddr_in:
        unsigned short sin_family
        unsigned short sin_port
        in_addr sin_addr
    unsigned int htonl(unsigned int value)
    unsigned short htons(unsigned short value)
    unsigned int ntohl(unsigned int value)
    unsigned short ntohs(unsigned short value)
    int AF_INET

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        void *msg_name
        unsigned int msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    struct cmsghdr:
        int cmsg_level
        int cmsg_type
    int recvmmsg(int fd, mmsghdr *messages, unsigned int count, int flags, timespec *timeout)
    int sendmmsg(int fd, mmsghdr *messages, unsigned int count, int flags)
    cmsghdr *CMSG_FIRSTHDR(msghdr *message)
    cmsghdr *CMSG_NXTHDR(msghdr *message, cmsghdr *control)
    unsigned char *CMSG_DATA(cmsghdr *control)
    int MSG_DONTWAIT
    int MSG_TRUNC
    int MSG_WAITFORONE
    int SOL_SOCKET
    int SO_TIMESTAMPNS
    int SO_RCVTIMEO
    int SO_RXQ_OVFL


cdef inline void fill_address(sockaddr_in *to, unsigned int host, unsigned short port) noexcept nogil:
    """Set an address, both parts in the machine's order."""
    to.sin_family = <unsigned short>AF_INET
    to.sin_port = htons(port)
    to.sin_addr.s_addr = htonl(host)
