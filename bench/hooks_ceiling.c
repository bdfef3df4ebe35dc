/* Programs of user space that the overlay's hooks are measured against, and unchanged programs.
 *
 *   hooks_ceiling HOW MESSAGES BYTES READER COPIES SENDER ADDRESS:PORT...
 *   hooks_ceiling HOW MESSAGES BYTES READER COPIES PROGRAM FRAME
 *
 * SENDER and READER are descriptors of UDP sockets, which the caller opened in their namespaces;
 * READER is -1 where no socket is read. HOW is
 *
 *   once     each message is sent once, to the first address
 *   each     one sendto() for each address, as a program does that knows of no multicast
 *   batch    one sendmmsg() for all addresses
 *   plain    each message has a header and is sent COPIES times; what comes is read
 *   judge    as plain, and of what comes the first of each id is kept, as Appendix A does it
 *
 * and `frames` and `frames-judge` the same with frames that an XDP program, PROGRAM, makes of FRAME (in
 * hex digits) and sends as a card does: BPF_PROG_TEST_RUN with live frames.
 *
 * Prints: ns of processor time of sending (what the kernel does at the receiving end of a veth pair
 * is done in it), ns of reading, datagrams read, and first copies among them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ceiling.h"

enum { HEADER = 56, BYTES_MAX = 1456, TARGETS_MAX = 64, BATCH = 64, SLOTS = 1 << 16 };
/* Messages sent before what came is read: with three copies each they fit a veth pair's ring. */
enum { BURST = 64 };
/* What has not come by then has been lost; after so many bursts with losses it stops. */
enum { WAIT_MS = 300, SHORT_MAX = 5 };

static struct sockaddr_in targets[TARGETS_MAX];
static unsigned char data[BATCH][BYTES_MAX], room[BATCH][2048];
static uint64_t slots[SLOTS];

static void send_all(int sender, struct mmsghdr *messages, unsigned count) {
    while (count) {
        int sent = sendmmsg(sender, messages, count, 0);
        if (sent < 0) die("sendmmsg");
        messages += sent, count -= (unsigned)sent;
    }
}

/* One message to every target. */
static void send_message(const char *how, int sender, size_t bytes, unsigned count) {
    static struct mmsghdr messages[TARGETS_MAX];
    struct iovec vector = {data[0], bytes};
    if (strcmp(how, "batch")) {
        unsigned number = strcmp(how, "each") ? 1 : count;
        for (unsigned at = 0; at < number; at++)
            if (sendto(sender, data[0], bytes, 0, (void *)&targets[at], sizeof targets[at]) < 0)
                die("sendto");
        return;
    }
    for (unsigned at = 0; at < count; at++)
        messages[at].msg_hdr = (struct msghdr){&targets[at], sizeof targets[at], &vector, 1, 0, 0, 0};
    send_all(sender, messages, count);
}

/* Ids from `first` on, each `copies` times; the copies come as from as many proxies. */
static void send_copies(int sender, size_t bytes, uint64_t first, unsigned count, unsigned copies) {
    static struct mmsghdr messages[BATCH];
    static struct iovec vectors[BATCH];
    unsigned filled = 0;
    for (unsigned at = 0; at < count * copies; at++) {
        uint64_t id = first + at / copies;
        memcpy(data[filled] + 16, &id, sizeof id);
        vectors[filled] = (struct iovec){data[filled], bytes};
        messages[filled].msg_hdr =
            (struct msghdr){&targets[0], sizeof targets[0], &vectors[filled], 1, 0, 0, 0};
        if (++filled == BATCH || at + 1 == count * copies) send_all(sender, messages, filled), filled = 0;
    }
}

/* Have the program make and send so many frames. */
static void send_frames(int program, const unsigned char *frame, unsigned bytes, unsigned count) {
    struct xdp_md context = {.data_end = bytes};
    union bpf_attr attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.test.prog_fd = (unsigned)program;
    attributes.test.data_in = (uintptr_t)frame, attributes.test.data_size_in = bytes;
    attributes.test.ctx_in = (uintptr_t)&context, attributes.test.ctx_size_in = sizeof context;
    attributes.test.repeat = count;
    attributes.test.flags = BPF_F_TEST_XDP_LIVE_FRAMES;
    if (syscall(SYS_bpf, BPF_PROG_TEST_RUN, &attributes, sizeof attributes)) die("live frames");
}

static unsigned from_hex(const char *text, unsigned char *to) {
    unsigned bytes = 0, value;
    for (; bytes < BYTES_MAX + 42 && sscanf(text, "%2x", &value) == 1; text += 2) to[bytes++] = (unsigned char)value;
    return bytes;
}

/* Read what is there, `expected` at most; those that are first, or all. */
static unsigned read_some(int reader, int judging, unsigned expected, uint64_t *firsts) {
    static struct mmsghdr messages[BATCH];
    static struct iovec vectors[BATCH];
    unsigned total = 0;
    while (total < expected) {
        for (unsigned at = 0; at < BATCH; at++) {
            vectors[at] = (struct iovec){room[at], sizeof room[at]};
            messages[at].msg_hdr = (struct msghdr){0, 0, &vectors[at], 1, 0, 0, 0};
        }
        int got = recvmmsg(reader, messages, BATCH, MSG_DONTWAIT, 0);
        if (got < 0) {
            struct pollfd waiting = {reader, POLLIN, 0};
            if (errno != EAGAIN) die("recvmmsg");
            if (poll(&waiting, 1, WAIT_MS) <= 0) return total;
            continue;
        }
        for (int at = 0; at < got; at++) {
            uint64_t id, *slot;
            memcpy(&id, room[at] + 16, sizeof id);
            slot = &slots[id & (SLOTS - 1)];
            if (!judging) ++*firsts;
            else if (*slot < id) *slot = id, ++*firsts;
        }
        total += (unsigned)got;
    }
    return total;
}

int main(int count, char **argument) {
    if (count < 8 || count > 7 + TARGETS_MAX) return 2;
    const char *how = argument[1];
    unsigned messages = (unsigned)atoi(argument[2]), copies = (unsigned)atoi(argument[5]);
    size_t bytes = (size_t)atoi(argument[3]);
    int reader = atoi(argument[4]), sender = atoi(argument[6]);
    int framed = !strncmp(how, "frames", 6), judging = strstr(how, "judge") != 0;
    int hedged = judging || !strcmp(how, "plain");
    static unsigned char frame[BYTES_MAX + 42];
    unsigned frame_bytes = framed ? from_hex(argument[7], frame) : 0;
    if (bytes < HEADER || bytes > BYTES_MAX) return 2;
    for (int at = 7; at < count && !framed; at++) {
        char *port = strchr(argument[at], ':');
        if (!port) return 2;
        *port = 0;
        targets[at - 7] = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port + 1))};
        if (inet_pton(AF_INET, argument[at], &targets[at - 7].sin_addr) != 1) return 2;
    }
    /* A header of tree 7, of an epoch that begins now, without a seal. */
    uint16_t payload = (uint16_t)(bytes - HEADER), tree = 7;
    struct timespec start;
    clock_gettime(CLOCK_REALTIME, &start);
    uint64_t epoch = (uint64_t)start.tv_sec * 1000000000u + (uint64_t)start.tv_nsec;
    unsigned short_bursts = 0;
    uint64_t sending = 0, reading = 0, firsts = 0, received = 0;
    for (int at = 0; at < BATCH; at++) {
        memcpy(data[at], "OV\1\1", 4);
        memcpy(data[at] + 4, &tree, 2), memcpy(data[at] + 6, &payload, 2);
        memcpy(data[at] + 8, &epoch, 8);
    }
    for (unsigned at = 0; at < messages; at += BURST) {
        unsigned burst = messages - at < BURST ? messages - at : BURST;
        uint64_t began = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        if (framed) send_frames(sender, frame, frame_bytes, burst * copies);
        else if (hedged) send_copies(sender, bytes, at + 1, burst, copies);
        else
            for (unsigned each = 0; each < burst; each++)
                send_message(how, sender, bytes, (unsigned)count - 7);
        uint64_t sent = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        sending += sent - began;
        if (reader >= 0) {
            unsigned expected = judging ? burst * copies : burst;
            unsigned got = read_some(reader, judging, expected, &firsts);
            received += got;
            reading += clock_ns(CLOCK_THREAD_CPUTIME_ID) - sent;
            if (got < expected && ++short_bursts == SHORT_MAX) break;
        }
    }
    printf("%llu %llu %llu %llu\n", (unsigned long long)sending, (unsigned long long)reading,
           (unsigned long long)received, (unsigned long long)firsts);
    return 0;
}
