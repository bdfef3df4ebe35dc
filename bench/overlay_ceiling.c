/* What the overlay's members are measured against, in C.
 *
 *   overlay_ceiling forward PORT MESSAGES TARGET_PORT...
 *
 * binds 127.0.0.1:PORT and sends each datagram that comes to each target by sendmmsg, without
 * looking into it, until MESSAGES have come. Prints the processor seconds of that, as JSON.
 *
 *   overlay_ceiling wait RECEIVERS BEGIN_NS PERIOD_NS COUNT
 *
 * waits for COUNT instants of CLOCK_REALTIME and at each asks the clock once for each receiver, as
 * if it released a message to it. Prints how late each was, ns, a line an instant.
 */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <sys/resource.h>

#include "ceiling.h"

enum { BATCH = 64, BYTES = 2048, TARGETS = 256, BUFFER = 4 << 20 };

static double processor(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec / 1e6 +
           (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec / 1e6;
}

static struct sockaddr_in local(const char *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static int forward(int count, char **argument) {
    struct sockaddr_in own = local(argument[2]), to[TARGETS];
    long left = atol(argument[3]), messages = left;
    int targets = count - 4, sock = socket(AF_INET, SOCK_DGRAM, 0), buffer = BUFFER;
    static unsigned char room[BATCH][BYTES];
    struct mmsghdr in[BATCH], out[TARGETS];
    struct iovec vectors[BATCH];
    if (targets < 1 || targets > TARGETS) return 2;
    setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    if (sock < 0 || bind(sock, (struct sockaddr *)&own, sizeof own)) die("bind");
    memset(in, 0, sizeof in);
    memset(out, 0, sizeof out);
    for (int i = 0; i < BATCH; i++) {
        vectors[i] = (struct iovec){room[i], BYTES};
        in[i].msg_hdr.msg_iov = &vectors[i];
        in[i].msg_hdr.msg_iovlen = 1;
    }
    for (int i = 0; i < targets; i++) {
        to[i] = local(argument[4 + i]);
        out[i].msg_hdr.msg_name = &to[i];
        out[i].msg_hdr.msg_namelen = sizeof to[i];
        out[i].msg_hdr.msg_iovlen = 1;
    }
    fputs("ready\n", stdout);
    fflush(stdout);
    double began = processor();
    while (left > 0) {
        int got = recvmmsg(sock, in, BATCH, MSG_WAITFORONE, NULL);
        if (got < 0) die("recvmmsg");
        for (int i = 0; i < got; i++) {
            struct iovec payload = {room[i], in[i].msg_len};
            for (int k = 0; k < targets; k++) out[k].msg_hdr.msg_iov = &payload;
            for (int done = 0; done < targets;) {
                int sent = sendmmsg(sock, out + done, (unsigned int)(targets - done), 0);
                done += sent > 0 ? sent : 1;
            }
        }
        left -= got;
    }
    printf("{\"messages\": %ld, \"processor_s\": %.6f}\n", messages, processor() - began);
    return 0;
}

static int wait_for(char **argument) {
    int receivers = atoi(argument[2]);
    long long begin = atoll(argument[3]), period = atoll(argument[4]), count = atoll(argument[5]);
    long long *late = calloc((size_t)receivers, sizeof *late);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    for (long long n = 0; n < count; n++) {
        long long at = begin + n * period;
        struct timespec when = {at / 1000000000, at % 1000000000}, now;
        while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &when, NULL)) {}
        for (int k = 0; k < receivers; k++) {
            clock_gettime(CLOCK_REALTIME, &now);
            late[k] = now.tv_sec * 1000000000LL + now.tv_nsec - at;
        }
        for (int k = 0; k < receivers; k++) printf("%lld ", late[k]);
        putchar('\n');
    }
    return 0;
}

int main(int count, char **argument) {
    if (count > 4 && !strcmp(argument[1], "forward")) return forward(count, argument);
    if (count == 6 && !strcmp(argument[1], "wait")) return wait_for(argument);
    return 2;
}
