/* The ceiling that sending is measured against: the bare sendmmsg loop.
 *
 *   send_ceiling CAPTURE GROUP PORT INTERFACE_ADDRESS
 *
 * Reads a whole pcap (Ethernet, IPv4 without options, UDP; written on this machine) into memory and
 * then sends the UDP payloads to the group, 64 a system call, as fast as the kernel takes them. It
 * prints how many, and the seconds of the sending alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>

#include "ceiling.h"

enum { BATCH = 64, FILE_HEADER = 24, RECORD_HEADER = 16, HEADERS = 42, BUFFER = 4 << 20 };

static int open_sender(const char *interface) {
    struct in_addr from;
    int sock = socket(AF_INET, SOCK_DGRAM, 0), buffer = BUFFER;
    if (sock < 0 || inet_pton(AF_INET, interface, &from) != 1) die("socket");
    if (setsockopt(sock, IPPROTO_IP, IP_MULTICAST_IF, &from, sizeof from)) die("interface");
    setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    return sock;
}

int main(int count, char **argument) {
    if (count != 5) return 2;
    size_t size, packets = 0;
    unsigned char *data = read_all(argument[1], &size);
    struct iovec *vectors = malloc(size / HEADERS * sizeof *vectors);
    for (size_t at = FILE_HEADER; at + RECORD_HEADER <= size;) {
        uint32_t length;
        memcpy(&length, data + at + 8, sizeof length);
        at += RECORD_HEADER;
        vectors[packets++] = (struct iovec){data + at + HEADERS, length - HEADERS};
        at += length;
    }
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(argument[3]))};
    if (inet_pton(AF_INET, argument[2], &to.sin_addr) != 1) die(argument[2]);
    int sock = open_sender(argument[4]);
    struct mmsghdr messages[BATCH];
    memset(messages, 0, sizeof messages);
    uint64_t began = clock_ns(CLOCK_MONOTONIC);
    for (size_t done = 0; done < packets;) {
        unsigned int wanted = packets - done < BATCH ? (unsigned int)(packets - done) : BATCH;
        for (unsigned int i = 0; i < wanted; i++)
            messages[i].msg_hdr = (struct msghdr){.msg_name = &to, .msg_namelen = sizeof to,
                                                  .msg_iov = &vectors[done + i], .msg_iovlen = 1};
        int sent = sendmmsg(sock, messages, wanted, MSG_DONTWAIT);
        if (sent < 0) {
            struct pollfd room = {sock, POLLOUT, 0};
            if (errno != EAGAIN && errno != ENOBUFS) die("sendmmsg");
            poll(&room, 1, 10);
            continue;
        }
        done += (size_t)sent;
    }
    printf("{\"sent\": %zu, \"seconds\": %.6f}\n", packets, (double)(clock_ns(CLOCK_MONOTONIC) - began) / 1e9);
    return 0;
}
