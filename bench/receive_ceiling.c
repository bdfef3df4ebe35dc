/* The ceiling that receiving is measured against, and the sender for both sides.
 *
 *   receive_ceiling send    GROUP_A GROUP_B PORT RATE SECONDS CPU
 *   receive_ceiling receive GROUP_A GROUP_B PORT EXPECTED BUFFER CPU
 *
 * `send` sends RATE unique packets a second to both groups: 336 bytes, a UTP-MD header and five
 * order updates of 64 bytes, in sendmmsg batches on an absolute schedule. It prints what it sent
 * and by how much it was behind at worst, in nanoseconds.
 * `receive` is the bare loop: recvmmsg of 64 on two sockets, nothing done with the bytes. It
 * prints "ready", and after EXPECTED datagrams or half a second of nothing what it got and what
 * the kernel dropped.
 */
#define _GNU_SOURCE
#include <poll.h>

#include "ceiling.h"

enum { BATCH = 64, SIZE = 336, MESSAGES = 5, SLAB = 2048 };

static void build(unsigned char *packet) {
    static const unsigned char header[16] = {SIZE >> 8, SIZE & 255, 1, 245, 0, 0, 0, 0,
                                             0, 0, 0, 0, 0, 104, 0, MESSAGES};
    static const unsigned char message[4] = {0, 62, 0, 230};
    memset(packet, 0, SIZE);
    memcpy(packet, header, sizeof header);
    for (int i = 0; i < MESSAGES; i++) memcpy(packet + 16 + 64 * i, message, sizeof message);
}

static int run_sender(char **argument) {
    struct sockaddr_in to[2];
    static unsigned char packets[BATCH][SIZE];
    struct iovec vectors[BATCH];
    struct mmsghdr messages[2][BATCH];
    struct in_addr loopback = {.s_addr = htonl(INADDR_LOOPBACK)};
    double rate = atof(argument[3]), seconds = atof(argument[4]);
    uint64_t total = (uint64_t)(rate * seconds), sent = 0, behind = 0;
    int sock = socket(AF_INET, SOCK_DGRAM, 0), buffer = 8 << 20;
    if (sock < 0) die("socket");
    pin(atoi(argument[5]));
    setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    if (setsockopt(sock, IPPROTO_IP, IP_MULTICAST_IF, &loopback, sizeof loopback)) die("interface");
    for (int i = 0; i < BATCH; i++) {
        build(packets[i]);
        vectors[i] = (struct iovec){packets[i], SIZE};
    }
    for (int line = 0; line < 2; line++) {
        to[line] = address(argument[line], atoi(argument[2]));
        for (int i = 0; i < BATCH; i++)
            messages[line][i] = (struct mmsghdr){
                .msg_hdr = {.msg_name = &to[line], .msg_namelen = sizeof to[line],
                            .msg_iov = &vectors[i], .msg_iovlen = 1}};
    }
    /* About 5,000 batches a second at most: bursts as an exchange's, not one packet a call. */
    int batch = (int)(rate / 5000) + 1;
    if (batch > BATCH) batch = BATCH;
    uint64_t start = clock_ns(CLOCK_MONOTONIC);
    while (sent < total) {
        uint64_t due = start + (uint64_t)((double)sent * 1e9 / rate), now = clock_ns(CLOCK_MONOTONIC);
        while (now < due) {
            if (due - now > 100000) {
                struct timespec rest = {0, (long)(due - now - 60000)};
                nanosleep(&rest, NULL);
            }
            now = clock_ns(CLOCK_MONOTONIC);
        }
        if (now - due > behind) behind = now - due;
        int count = total - sent < (uint64_t)batch ? (int)(total - sent) : batch;
        for (int i = 0; i < count; i++) {
            uint32_t sequence = htonl((uint32_t)(sent + (uint64_t)i + 1));
            memcpy(packets[i] + 4, &sequence, 4);
        }
        for (int line = 0; line < 2; line++)
            for (int done = 0; done < count;) {
                int got = sendmmsg(sock, messages[line] + done, (unsigned)(count - done), 0);
                if (got < 0) die("sendmmsg");
                done += got;
            }
        sent += (uint64_t)count;
    }
    double took = (double)(clock_ns(CLOCK_MONOTONIC) - start) / 1e9;
    printf("{\"sent\": %llu, \"behind_ns\": %llu, \"seconds\": %.6f}\n", (unsigned long long)sent,
           (unsigned long long)behind, took);
    return 0;
}

static int run_receiver(char **argument) {
    static unsigned char slab[BATCH][SLAB];
    struct iovec vectors[BATCH];
    struct mmsghdr messages[BATCH];
    struct pollfd lines[2];
    uint64_t expected = strtoull(argument[3], NULL, 10), got = 0, drops = 0;
    pin(atoi(argument[5]));
    for (int i = 0; i < BATCH; i++) {
        vectors[i] = (struct iovec){slab[i], SLAB};
        messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &vectors[i], .msg_iovlen = 1}};
    }
    for (int line = 0; line < 2; line++)
        lines[line] = (struct pollfd){
            join_line("127.0.0.1", argument[line], atoi(argument[2]), atoi(argument[4]),
                      SOCK_DGRAM, 0),
            POLLIN, 0};
    printf("ready\n");
    fflush(stdout);
    while (got < expected) {
        int ready = poll(lines, 2, got ? 500 : 10000);
        if (ready <= 0) break;
        for (int line = 0; line < 2; line++) {
            if (!lines[line].revents) continue;
            int count = recvmmsg(lines[line].fd, messages, BATCH, MSG_DONTWAIT, NULL);
            if (count > 0) got += (uint64_t)count;
        }
    }
    for (int line = 0; line < 2; line++) drops += drops_of(lines[line].fd);
    printf("{\"received\": %llu, \"drops\": %llu}\n", (unsigned long long)got,
           (unsigned long long)drops);
    return 0;
}

int main(int count, char **argument) {
    if (count == 8 && !strcmp(argument[1], "send")) return run_sender(argument + 2);
    if (count == 8 && !strcmp(argument[1], "receive")) return run_receiver(argument + 2);
    fprintf(stderr, "see the head of receive_ceiling.c\n");
    return 2;
}
