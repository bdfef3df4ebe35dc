/* The ceiling that publishing FIX over multicast is measured against, and a receiver that counts.
 *
 *   fixcast_ceiling send    GROUP_A GROUP_B PORT FILE COUNT RATE BURST CPU
 *   fixcast_ceiling receive GROUP_A GROUP_B PORT OUT BUFFER CPU
 *
 * `send` sends COUNT messages, those of FILE again and again, to both groups: each gets a header
 * with a number of its own, BodyLength and CheckSum; whole messages are packed into datagrams of at
 * most 1,400 bytes, which a token bucket of RATE bytes a second and BURST bytes lets leave, 64 a
 * system call. Where a message's body begins is found beforehand, and nothing is checked, kept or
 * timed: it is the least that a publisher does. It prints what it sent, the seconds that took, and
 * those of the processor.
 * `receive` joins both groups, prints "ready", and writes a record of five 64-bit numbers for each
 * datagram to OUT: line, the kernel's time stamp in ns, bytes, the number of the first message, how
 * many messages. It ends after a second of nothing, or when its input ends, and prints what it got
 * and what the kernel dropped.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <unistd.h>

#include "ceiling.h"

enum { BATCH = 64, SIZE = 1400, SLAB = 2048, OVERHEAD = 66, MESSAGE_MAX = 1000, CONTROL = 128 };

typedef unsigned char byte;

/* -- send --------------------------------------------------------------------------------- */

struct message { const byte *type, *body; size_t type_size, body_size; };

/* The messages of the file: type, and everything behind the header's last field, 52. */
static struct message *find_messages(byte *data, size_t size, size_t *count) {
    struct message *found = malloc((size / 50 + 1) * sizeof *found);
    *count = 0;
    for (byte *at = data; at < data + size;) {
        byte *length = memmem(at, 40, "\x01" "9=", 3), *fields;
        if (!length) die("a message without BodyLength");
        size_t body_size = strtoul((char *)length + 3, (char **)&fields, 10);
        byte *type = fields + 4, *body = memmem(fields, body_size, "\x01" "52=", 4);
        if (!body) die("a message without SendingTime");
        found[(*count)++] = (struct message){type, body + 1, 0,
                                             body_size - (size_t)(body - fields)};
        found[*count - 1].type_size = (size_t)((byte *)memchr(type, 1, 9) - type);
        at = fields + 1 + body_size + 7;
    }
    return found;
}

static byte *put(byte *at, const void *text, size_t size) {
    memcpy(at, text, size);
    return at + size;
}

static byte *put_number(byte *at, uint64_t value) {
    byte digits[20];
    int count = 0;
    do digits[count++] = (byte)('0' + value % 10);
    while (value /= 10);
    while (count) *at++ = digits[--count];
    return at;
}

/* The sum of bytes modulo 256, eight a load: two in each 16 bits, no carry within 128 loads. */
static unsigned sum_of(const byte *at, const byte *end) {
    const uint64_t even = 0x00FF00FF00FF00FFull;
    uint64_t total = 0;
    while (end - at >= 8) {
        uint64_t lanes = 0, word;
        for (int turn = 0; turn < 128 && end - at >= 8; turn++, at += 8) {
            memcpy(&word, at, 8);
            lanes += (word & even) + ((word >> 8) & even);
        }
        total += (lanes & 0xFFFF) + ((lanes >> 16) & 0xFFFF) + ((lanes >> 32) & 0xFFFF) +
                 (lanes >> 48);
    }
    while (at < end) total += *at++;
    return (unsigned)(total & 255);
}

static size_t stamp(byte *out, const struct message *given, uint64_t number, const char *own) {
    byte text[80], *at = put(text, "\x01" "35=", 4);
    at = put(at, given->type, given->type_size);
    at = put(at, "\x01" "34=", 4);
    at = put_number(at, number);
    at = put(at, own, strlen(own));
    size_t head = (size_t)(at - text);
    at = put(out, "8=FIXT.1.1\x01" "9=", 13);
    at = put_number(at, head - 1 + given->body_size);
    at = put(at, text, head);
    at = put(at, given->body, given->body_size);
    unsigned sum = sum_of(out, at);
    at = put(at, "10=", 3);
    *at++ = (byte)('0' + sum / 100);
    *at++ = (byte)('0' + sum / 10 % 10);
    *at++ = (byte)('0' + sum % 10);
    *at++ = 1;
    return (size_t)(at - out);
}

static double bucket_level, bucket_rate, bucket_size;
static uint64_t bucket_ns;

static void bucket_wait(double wanted) {
    for (;;) {
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        bucket_level += (double)(now - bucket_ns) * bucket_rate / 1e9;
        if (bucket_level > bucket_size) bucket_level = bucket_size;
        bucket_ns = now;
        if (bucket_level >= wanted || bucket_level >= bucket_size) break;
    }
    bucket_level -= wanted;
}

static int open_sender(const char *group, int port) {
    struct in_addr loopback = {.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in to = address(group, port);
    int sock = socket(AF_INET, SOCK_DGRAM, 0), buffer = 4 << 20;
    if (sock < 0) die("socket");
    setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    if (setsockopt(sock, IPPROTO_IP, IP_MULTICAST_IF, &loopback, sizeof loopback)) die("interface");
    if (connect(sock, (struct sockaddr *)&to, sizeof to)) die(group);
    return sock;
}

static void send_batch(const int *lines, struct mmsghdr *messages, int count) {
    double bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += (double)messages[i].msg_hdr.msg_iov->iov_len + OVERHEAD;
    bucket_wait(bytes);
    for (int line = 0; line < 2; line++)
        for (int done = 0; done < count;) {
            int got = sendmmsg(lines[line], messages + done, (unsigned)(count - done), 0);
            if (got < 0) die("sendmmsg");
            done += got;
        }
}

static int run_sender(char **argument) {
    static byte slab[BATCH][SIZE + MESSAGE_MAX];
    static struct iovec vectors[BATCH];
    static struct mmsghdr messages[BATCH];
    size_t size, known;
    byte *data = read_all(argument[3], &size);
    struct message *given = find_messages(data, size, &known);
    uint64_t total = strtoull(argument[4], NULL, 10), datagrams = 0;
    bucket_rate = atof(argument[5]);
    bucket_level = bucket_size = atof(argument[6]);
    pin(atoi(argument[7]));
    int port = atoi(argument[2]);
    int lines[2] = {open_sender(argument[0], port), open_sender(argument[1], port)};
    for (int i = 0; i < BATCH; i++) {
        vectors[i].iov_base = slab[i];
        messages[i].msg_hdr.msg_iov = &vectors[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    uint64_t began = clock_ns(CLOCK_MONOTONIC), used = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    bucket_ns = began;
    int filled = 0;
    size_t at = 0;
    /* What is sent at once must fit the bucket. */
    int batch = bucket_size < BATCH * (SIZE + OVERHEAD) ? (int)(bucket_size / (SIZE + OVERHEAD))
                                                        : BATCH;
    if (batch < 1) batch = 1;
    for (uint64_t number = 1; number <= total; number++) {
        byte *out = slab[filled] + at;
        size_t one = stamp(out, &given[(number - 1) % known], number,
                           "\x01" "50=1764000000000000000\x01" "49=PUB\x01" "56=c");
        if (at + one > SIZE) {
            vectors[filled].iov_len = at;
            datagrams++;
            if (filled + 1 == batch) {
                send_batch(lines, messages, batch);
                memcpy(slab[0], out, one);
                filled = 0;
            } else {
                memcpy(slab[++filled], out, one);
            }
            at = 0;
        }
        at += one;
    }
    vectors[filled].iov_len = at;
    send_batch(lines, messages, filled + 1);
    double seconds = (double)(clock_ns(CLOCK_MONOTONIC) - began) / 1e9;
    double processor = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - used) / 1e9;
    printf("{\"messages\": %llu, \"datagrams\": %llu, \"seconds\": %.6f, \"processor\": %.6f}\n",
           (unsigned long long)total, (unsigned long long)datagrams + 1, seconds, processor);
    return 0;
}

/* -- receive ------------------------------------------------------------------------------ */

/* The number of the first application message, and how many there are; the session's own count
 * nothing. */
static void look(const byte *data, size_t size, uint64_t *first, uint64_t *count) {
    const byte *at = data, *end = data + size;
    *first = *count = 0;
    while (at + 30 < end) {
        const byte *length = memmem(at, 30, "\x01" "9=", 3);
        if (!length) return;
        char *fields;
        size_t body = strtoul((const char *)length + 3, &fields, 10);
        const byte *type = (const byte *)fields + 4;
        int session = type[1] == 1 && (type[0] == '0' || type[0] == 'A' || type[0] == '5' ||
                                       type[0] == '4');
        const byte *number = memmem(type, 20, "\x01" "34=", 4);
        if (number && !session) {
            if (!*count) *first = strtoull((const char *)number + 4, NULL, 10);
            ++*count;
        }
        at = (const byte *)fields + 1 + body + 7;
    }
}

static int run_receiver(char **argument) {
    static byte slab[BATCH][SLAB], control[BATCH][CONTROL];
    struct iovec vectors[BATCH];
    struct mmsghdr messages[BATCH];
    struct pollfd lines[3];
    uint64_t got = 0, drops = 0;
    FILE *out = fopen(argument[3], "wb");
    if (!out) die(argument[3]);
    setvbuf(out, NULL, _IOFBF, 1 << 20);
    pin(atoi(argument[5]));
    for (int line = 0; line < 2; line++)
        lines[line] = (struct pollfd){
            join_line("127.0.0.1", argument[line], atoi(argument[2]), atoi(argument[4]),
                      SOCK_DGRAM, 1),
            POLLIN, 0};
    lines[2] = (struct pollfd){0, POLLIN, 0};
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        int ready = poll(lines, 3, got ? 1000 : 60000);
        if (ready <= 0 || (ready == 1 && lines[2].revents)) break;
        for (int line = 0; line < 2; line++) {
            if (!lines[line].revents) continue;
            for (int i = 0; i < BATCH; i++) {
                vectors[i] = (struct iovec){slab[i], SLAB};
                messages[i] = (struct mmsghdr){
                    .msg_hdr = {.msg_iov = &vectors[i], .msg_iovlen = 1,
                                .msg_control = control[i], .msg_controllen = CONTROL}};
            }
            int count = recvmmsg(lines[line].fd, messages, BATCH, MSG_DONTWAIT, NULL);
            for (int i = 0; i < count; i++) {
                uint64_t record[5] = {(uint64_t)line, stamp_of(&messages[i].msg_hdr),
                                      messages[i].msg_len, 0, 0};
                look(slab[i], messages[i].msg_len, &record[3], &record[4]);
                fwrite(record, sizeof record, 1, out);
            }
            if (count > 0) got += (uint64_t)count;
        }
    }
    for (int line = 0; line < 2; line++) drops += drops_of(lines[line].fd);
    fclose(out);
    printf("{\"received\": %llu, \"drops\": %llu}\n", (unsigned long long)got,
           (unsigned long long)drops);
    return 0;
}

int main(int count, char **argument) {
    if (count == 10 && !strcmp(argument[1], "send")) return run_sender(argument + 2);
    if (count == 8 && !strcmp(argument[1], "receive")) return run_receiver(argument + 2);
    fprintf(stderr, "see the head of fixcast_ceiling.c\n");
    return 2;
}
