/* The ceiling of one hot key: what C and the kernel alone would take for a turn.
 *
 *   keyed_ceiling FILE TURNS
 *
 * A server sends a message over TCP on loopback; a client, a process of its own, answers it; the
 * server writes the answer to FILE and waits until that is on the disk (pwrite, fdatasync), and only
 * then sends the next message. That is what a keyed queue with one key and `run = 1` does at least.
 * The file is filled with zeros before, as the journal's blocks are. Prints {"turns", "seconds"}.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ceiling.h"

enum {
    MESSAGE = 200,        /* bytes of a message, with what AMQP puts around it */
    ANSWER = 40,          /* of a disposition */
    PAGE = 4096,          /* what is written in a turn */
    FILE_BYTES = 8 << 20, /* the file; begun anew at its end */
};

static void transfer(int descriptor, char *bytes, size_t size, int reading) {
    size_t done = 0;
    while (done < size) {
        ssize_t some = reading ? read(descriptor, bytes + done, size - done)
                               : write(descriptor, bytes + done, size - done);
        if (some <= 0) die(reading ? "read" : "write");
        done += (size_t)some;
    }
}

static void answer_all(struct sockaddr_in address, long turns) {
    char message[MESSAGE], answer[ANSWER] = {0};
    int one = 1, server = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(server, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (long turn = 0; turn < turns; turn++) {
        transfer(server, message, MESSAGE, 1);
        transfer(server, answer, ANSWER, 0);
    }
    exit(0);
}

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "usage: keyed_ceiling FILE TURNS\n");
        return 2;
    }
    long turns = atol(words[2]);
    char *zeros = calloc(1, FILE_BYTES), page[PAGE] = {1}, message[MESSAGE] = {0};
    int file = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || zeros == NULL || pwrite(file, zeros, FILE_BYTES, 0) != FILE_BYTES || fsync(file))
        die(words[1]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1)) die("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &size)) die("getsockname");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) answer_all(address, turns);
    int client = accept(listener, NULL, NULL);
    if (client < 0) die("accept");
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    uint64_t began = clock_ns(CLOCK_MONOTONIC);
    for (long turn = 0; turn < turns; turn++) {
        transfer(client, message, MESSAGE, 0);
        transfer(client, page, ANSWER, 1);
        if (pwrite(file, page, PAGE, (off_t)(turn % (FILE_BYTES / PAGE)) * PAGE) != PAGE)
            die("pwrite");
        if (fdatasync(file)) die("fdatasync");
    }
    printf("{\"turns\": %ld, \"seconds\": %.6f}\n", turns, (double)(clock_ns(CLOCK_MONOTONIC) - began) / 1e9);
    waitpid(child, NULL, 0);
    return 0;
}
