/* What the ceilings share: errors, clocks, processors, and lines of multicast on loopback. */
#ifndef CEILING_H
#define CEILING_H
#include <arpa/inet.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#ifndef IP_MULTICAST_ALL
#define IP_MULTICAST_ALL 49
#endif
#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

/* A clock's time, in nanoseconds. */
static inline uint64_t clock_ns(clockid_t which) {
    struct timespec now;
    clock_gettime(which, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void pin(int cpu) {
    cpu_set_t set;
    if (cpu < 0) return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static inline struct sockaddr_in address(const char *group, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, group, &to.sin_addr) != 1) die(group);
    return to;
}

/* A socket that has joined a group; `kind` as of socket(), each datagram stamped where `stamps`. */
static inline int join_line(const char *interface, const char *group, int port, int buffer,
                            int kind, int stamps) {
    struct sockaddr_in here = address(group, port);
    struct ip_mreq join = {.imr_multiaddr = here.sin_addr};
    int sock = socket(AF_INET, kind, 0), one = 1, zero = 0;
    if (sock < 0) die("socket");
    if (inet_pton(AF_INET, interface, &join.imr_interface) != 1) die(interface);
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(sock, IPPROTO_IP, IP_MULTICAST_ALL, &zero, sizeof zero);
    setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    setsockopt(sock, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
    if (stamps && setsockopt(sock, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one)) die("stamps");
    if (bind(sock, (struct sockaddr *)&here, sizeof here)) die("bind");
    if (setsockopt(sock, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join)) die("join");
    return sock;
}

/* The kernel's stamp of a datagram, in nanoseconds; 0 where it has none. */
static inline uint64_t stamp_of(struct msghdr *message) {
    for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each; each = CMSG_NXTHDR(message, each))
        if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec when;
            memcpy(&when, CMSG_DATA(each), sizeof when);
            return (uint64_t)when.tv_sec * 1000000000u + (uint64_t)when.tv_nsec;
        }
    return 0;
}

/* A file's bytes, with a zero behind them. */
static inline unsigned char *read_all(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*size + 1);
    if (!data || fread(data, 1, *size, file) != *size) die(path);
    fclose(file);
    data[*size] = 0;
    return data;
}

/* How many datagrams the kernel dropped for want of room. */
static inline uint64_t drops_of(int sock) {
    uint32_t memory[9] = {0};
    socklen_t size = sizeof memory;
    getsockopt(sock, SOL_SOCKET, SO_MEMINFO, memory, &size);
    return memory[8];
}
#endif
