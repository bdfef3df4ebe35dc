/* The ceiling that the laboratory is measured against: what C and the kernel alone would take.
 *
 *   lab_ceiling gateway INTERFACE CLIENTS BUFFER GROUP:PORT...
 *   lab_ceiling client PORT
 *
 * `gateway` receives both lines of each service (recvmmsg, the kernel's stamps), takes the first
 * copy of each packet by its sequence number, and writes it to CLIENTS TCP connections: 4 bytes
 * length, 8 bytes stamp, both as the machine has them, then the packet. It holds nothing back and
 * fills no gap. It prints "listening PORT", with all clients there "ready", and at SIGTERM what it
 * took as JSON. A client that falls further behind than the ring is long is closed, and counted.
 *
 * `client` connects and does what stands on its standard input, a line each:
 *   expect SERVICE:FIRST...   begin to count; what is numbered from FIRST on is timed. Says "ok".
 *   count                     how many packets came since.
 *   verdict                   everything, as JSON; latencies in the buckets of feedhandler.histogram.
 * Latency is as the laboratory has it: from the kernel's stamp at the gateway to the return of the
 * client's read, both of CLOCK_REALTIME. It ends with its input.
 *
 * Packets are UTP-MD's: big-endian, the sequence number (u32) at 4, the service (u16) at 12.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ceiling.h"

enum {
    BATCH = 64,            /* datagrams of one recvmmsg */
    SLAB = 2048,           /* bytes of one datagram at most */
    HEADER = 16,           /* of a UTP-MD packet */
    PREFIX = 12,           /* length and stamp before each packet on TCP */
    WINDOW = 1 << 16,      /* sequence numbers of a service that are remembered */
    SERVICES = 1 << 8,     /* services are distinguished by their lowest byte */
    EVENTS = 64,
    LINES_MAX = 64,
    CLIENTS_MAX = 64,
    READ_BYTES = 1 << 18,  /* of one read of a client */
    LINE_BYTES = 1 << 12,  /* of a line of a client's standard input */
    BUCKETS = 32 * 36 + 64 /* of feedhandler.histogram */
};
#define RING ((uint64_t)64 << 20) /* bytes that may wait for the slowest client */

static volatile sig_atomic_t ended;

static void end(int number) {
    (void)number;
    ended = 1;
}

static void watch(int poll, int fd, uint32_t events, uint32_t place, int change) {
    struct epoll_event wanted = {.events = events, .data.u32 = place};
    if (epoll_ctl(poll, change, fd, &wanted)) die("epoll_ctl");
}

static uint32_t sequence_of(const unsigned char *packet) {
    uint32_t value;
    memcpy(&value, packet + 4, sizeof value);
    return ntohl(value);
}

static unsigned service_of(const unsigned char *packet) {
    return (unsigned)(packet[12] << 8 | packet[13]);
}

/* -- gateway ------------------------------------------------------------------------------- */

struct service {
    uint64_t highest;
    uint64_t seen[WINDOW / 64];
};

struct client {
    int fd;
    int waits;         /* its socket is full: epoll reports when it is not */
    uint64_t position; /* how far it has been written to */
};

static struct service services[SERVICES];
static struct client clients[CLIENTS_MAX];
static unsigned char *ring;
static uint64_t ring_end, packets, duplicates, overruns;

static void accept_clients(int count) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0) die("socket");
    if (bind(listener, (struct sockaddr *)&here, sizeof here)) die("bind");
    if (listen(listener, count)) die("listen");
    if (getsockname(listener, (struct sockaddr *)&here, &size)) die("getsockname");
    printf("listening %d\n", ntohs(here.sin_port));
    fflush(stdout);
    for (int i = 0; i < count; i++) {
        clients[i].fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (clients[i].fd < 0) die("accept");
        setsockopt(clients[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    close(listener);
}

static int is_first_copy(struct service *service, uint64_t sequence) {
    uint64_t place = sequence % WINDOW, bit = (uint64_t)1 << place % 64;
    if (sequence > service->highest) {
        if (sequence - service->highest >= WINDOW) {
            memset(service->seen, 0, sizeof service->seen);
        } else {
            for (uint64_t next = service->highest + 1; next < sequence; next++)
                service->seen[next % WINDOW / 64] &= ~((uint64_t)1 << next % 64);
        }
        service->highest = sequence;
        service->seen[place / 64] |= bit;
        return 1;
    }
    if (service->highest - sequence >= WINDOW || service->seen[place / 64] & bit) return 0;
    service->seen[place / 64] |= bit;
    return 1;
}

static void append(const void *data, uint64_t size) {
    uint64_t at = ring_end % RING, first = RING - at < size ? RING - at : size;
    memcpy(ring + at, data, first);
    memcpy(ring, (const char *)data + first, size - first);
    ring_end += size;
}

/* Take all that waits on a line, BATCH datagrams at a time. */
static void receive(int line) {
    static unsigned char slab[BATCH][SLAB];
    static char control[BATCH][64];
    struct iovec vectors[BATCH];
    struct mmsghdr messages[BATCH];
    int count = BATCH;
    while (count == BATCH) {
        for (int i = 0; i < BATCH; i++) {
            vectors[i] = (struct iovec){slab[i], SLAB};
            messages[i] = (struct mmsghdr){
                .msg_hdr = {.msg_iov = &vectors[i], .msg_iovlen = 1, .msg_control = control[i],
                            .msg_controllen = sizeof control[i]}};
        }
        count = recvmmsg(line, messages, BATCH, MSG_DONTWAIT, NULL);
        for (int i = 0; i < count; i++) {
            uint32_t size = messages[i].msg_len;
            if (size < HEADER) continue;
            struct service *service = &services[service_of(slab[i]) % SERVICES];
            if (!is_first_copy(service, sequence_of(slab[i]))) {
                duplicates++;
                continue;
            }
            uint64_t stamp = stamp_of(&messages[i].msg_hdr);
            append(&size, sizeof size);
            append(&stamp, sizeof stamp);
            append(slab[i], size);
            packets++;
        }
    }
}

/* Write to a client what it has not got, as far as its socket takes it. */
static void write_to(int poll, int number) {
    struct client *client = &clients[number];
    if (ring_end - client->position > RING) {
        overruns++;
        close(client->fd);
        client->fd = -1;
        return;
    }
    while (client->position < ring_end) {
        uint64_t at = client->position % RING, rest = ring_end - client->position;
        uint64_t first = RING - at < rest ? RING - at : rest;
        struct iovec parts[2] = {{ring + at, first}, {ring, rest - first}};
        ssize_t written = writev(client->fd, parts, first < rest ? 2 : 1);
        if (written < 0) {
            if (errno != EAGAIN) die("a client");
            if (!client->waits) watch(poll, client->fd, EPOLLOUT, (uint32_t)number, EPOLL_CTL_ADD);
            client->waits = 1;
            return;
        }
        client->position += (uint64_t)written;
    }
    if (client->waits) watch(poll, client->fd, 0, 0, EPOLL_CTL_DEL);
    client->waits = 0;
}

static int run_gateway(int count, char **argument) {
    struct epoll_event events[EVENTS];
    struct sigaction action = {.sa_handler = end};
    int lines[LINES_MAX], line_count = count - 3, client_count = atoi(argument[1]);
    int poll = epoll_create1(0);
    uint64_t drops = 0;
    if (line_count > LINES_MAX || client_count > CLIENTS_MAX) return 2;
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    ring = malloc(RING);
    if (!ring) die("memory");
    memset(ring, 0, RING); /* touched before it is needed */
    for (int i = 0; i < line_count; i++) {
        char *port = strchr(argument[3 + i], ':');
        if (!port) die(argument[3 + i]);
        *port++ = 0;
        lines[i] = join_line(argument[0], argument[3 + i], atoi(port), atoi(argument[2]),
                             SOCK_DGRAM | SOCK_NONBLOCK, 1);
        watch(poll, lines[i], EPOLLIN, CLIENTS_MAX + (uint32_t)i, EPOLL_CTL_ADD);
    }
    accept_clients(client_count);
    printf("ready\n");
    fflush(stdout);
    while (!ended) {
        int ready = epoll_wait(poll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++)
            if (events[i].data.u32 >= CLIENTS_MAX) receive(lines[events[i].data.u32 - CLIENTS_MAX]);
            else write_to(poll, (int)events[i].data.u32);
        for (int i = 0; i < client_count; i++)
            if (clients[i].fd >= 0 && !clients[i].waits) write_to(poll, i);
    }
    for (int i = 0; i < line_count; i++) drops += drops_of(lines[i]);
    printf("{\"packets\": %llu, \"duplicates\": %llu, \"drops\": %llu, \"overruns\": %llu}\n",
           (unsigned long long)packets, (unsigned long long)duplicates, (unsigned long long)drops,
           (unsigned long long)overruns);
    return 0;
}

/* -- client -------------------------------------------------------------------------------- */

struct seen {
    uint64_t first, last;
};

static struct seen expected[SERVICES];
static uint64_t buckets[BUCKETS], received, reordered, body_bytes, timed;
static int64_t total_ns, least_ns, most_ns;

static void record(int64_t value) {
    uint64_t top = value > 0 ? (uint64_t)value : 0;
    int exponent = top < 64 ? 0 : 58 - __builtin_clzll(top);
    uint64_t bucket = (uint64_t)exponent * 32 + (top >> exponent);
    buckets[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
    if (!timed || value < least_ns) least_ns = value;
    if (!timed || value > most_ns) most_ns = value;
    total_ns += value;
    timed++;
}

/* What one packet is: counted, and timed where it is of the measured part. */
static void take(const unsigned char *frame, uint32_t size, uint64_t now_ns) {
    const unsigned char *packet = frame + PREFIX;
    struct seen *service = &expected[service_of(packet) % SERVICES];
    uint64_t sequence = sequence_of(packet), stamp_ns;
    memcpy(&stamp_ns, frame + 4, sizeof stamp_ns);
    received++;
    body_bytes += size;
    if (sequence <= service->last) reordered++;
    else service->last = sequence;
    if (sequence >= service->first) record((int64_t)(now_ns - stamp_ns));
}

static int read_packets(int sock) {
    static unsigned char data[READ_BYTES];
    static size_t held;
    struct timespec now;
    size_t at = 0;
    ssize_t got = read(sock, data + held, sizeof data - held);
    clock_gettime(CLOCK_REALTIME, &now);
    if (got <= 0) return 0;
    held += (size_t)got;
    while (held - at >= PREFIX) {
        uint32_t size;
        memcpy(&size, data + at, sizeof size);
        if (held - at < PREFIX + size) break;
        take(data + at, size, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
        at += PREFIX + size;
    }
    memmove(data, data + at, held - at);
    held -= at;
    return 1;
}

static void expect(char *words) {
    memset(expected, 0, sizeof expected);
    memset(buckets, 0, sizeof buckets);
    received = reordered = body_bytes = timed = 0;
    total_ns = least_ns = most_ns = 0;
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        unsigned service;
        unsigned long long first;
        if (sscanf(word, "%u:%llu", &service, &first) == 2)
            expected[service % SERVICES].first = first;
    }
    printf("ok\n");
}

static void verdict(void) {
    const char *comma = "";
    printf("{\"received\": %llu, \"reordered\": %llu, \"body_bytes\": %llu, \"count\": %llu, "
           "\"sum_ns\": %lld, \"min_ns\": %lld, \"max_ns\": %lld, \"buckets\": {",
           (unsigned long long)received, (unsigned long long)reordered,
           (unsigned long long)body_bytes, (unsigned long long)timed, (long long)total_ns,
           (long long)least_ns, (long long)most_ns);
    for (int i = 0; i < BUCKETS; i++)
        if (buckets[i]) {
            printf("%s\"%d\": %llu", comma, i, (unsigned long long)buckets[i]);
            comma = ", ";
        }
    printf("}}\n");
}

/* Do what stands on standard input; 0 at its end. */
static int obey(void) {
    static char text[LINE_BYTES];
    static size_t held;
    char *line = text, *next;
    ssize_t got = read(0, text + held, sizeof text - held - 1);
    if (got <= 0) return 0;
    held += (size_t)got;
    text[held] = 0;
    while ((next = strchr(line, '\n'))) {
        *next++ = 0;
        if (!strncmp(line, "expect", 6)) expect(line + 6);
        else if (!strcmp(line, "verdict")) verdict();
        else printf("%llu\n", (unsigned long long)received);
        fflush(stdout);
        line = next;
    }
    held -= (size_t)(line - text);
    memmove(text, line, held);
    return 1;
}

static int run_client(const char *port) {
    struct sockaddr_in there = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)atoi(port)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event events[2];
    int sock = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), connected = 1;
    if (sock < 0) die("socket");
    if (connect(sock, (struct sockaddr *)&there, sizeof there)) die("connect");
    watch(poll, sock, EPOLLIN, 1, EPOLL_CTL_ADD);
    watch(poll, 0, EPOLLIN, 0, EPOLL_CTL_ADD);
    for (;;) {
        int ready = epoll_wait(poll, events, 2, -1);
        for (int i = 0; i < ready; i++) {
            if (!events[i].data.u32) {
                if (!obey()) return 0;
            } else if (connected && !read_packets(sock)) {
                /* What came is still asked for. */
                watch(poll, sock, 0, 0, EPOLL_CTL_DEL);
                connected = 0;
            }
        }
    }
}

int main(int count, char **argument) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* its parent may be killed */
    if (count > 5 && !strcmp(argument[1], "gateway")) return run_gateway(count - 2, argument + 2);
    if (count == 3 && !strcmp(argument[1], "client")) return run_client(argument[2]);
    fprintf(stderr, "see the head of lab_ceiling.c\n");
    return 2;
}
