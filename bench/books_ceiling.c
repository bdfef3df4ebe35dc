/* Order books by the same records, as C does them without bounds, priority or checks: a hash of
 * orders, and for each side of an instrument a sorted array of price levels.
 *
 *     books_ceiling FILE PASSES
 *
 * FILE holds MBO records of 56 bytes. Prints the records a second of the median pass, and how many
 * orders stand at the end.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOTS (1u << 21)
#define INSTRUMENTS 1024
#define LEVELS 1024

struct record {
    uint8_t length, rtype;
    uint16_t publisher;
    uint32_t instrument;
    uint64_t event_ns, order_id;
    int64_t price;
    uint32_t size;
    uint8_t flags, channel;
    char action, side;
    uint64_t received_ns;
    int32_t delta;
    uint32_t sequence;
};
struct order { uint64_t id; int64_t key; uint32_t size, side; };
struct level { int64_t key; uint64_t size; uint32_t count; };
struct side { uint32_t length; struct level levels[LEVELS]; };

static struct order orders[SLOTS];
static struct side sides[2 * INSTRUMENTS];
static uint64_t standing;

static uint32_t home(uint64_t id) { return (id * 0x9E3779B97F4A7C15ull >> 32) & (SLOTS - 1); }

static struct order *find(uint64_t id) {
    uint32_t at = home(id);
    while (orders[at].id && orders[at].id != id) at = (at + 1) & (SLOTS - 1);
    return &orders[at];
}

static void forget(struct order *order) {
    uint32_t gap = order - orders, at = (gap + 1) & (SLOTS - 1);
    while (orders[at].id) {
        if (((at - home(orders[at].id)) & (SLOTS - 1)) >= ((at - gap) & (SLOTS - 1))) {
            orders[gap] = orders[at];
            gap = at;
        }
        at = (at + 1) & (SLOTS - 1);
    }
    orders[gap].id = 0;
    standing--;
}

static struct level *level_of(struct side *side, int64_t key) {
    uint32_t at = side->length;
    while (at && side->levels[at - 1].key >= key) at--;
    if (at < side->length && side->levels[at].key == key) return &side->levels[at];
    if (side->length == LEVELS) exit(2);
    memmove(&side->levels[at + 1], &side->levels[at], (side->length - at) * sizeof(struct level));
    side->levels[at] = (struct level){key, 0, 0};
    side->length++;
    return &side->levels[at];
}

static void take(struct order *order, uint32_t size) {
    struct side *side = &sides[order->side];
    struct level *level = level_of(side, order->key);
    if (size > order->size) size = order->size;
    level->size -= size;
    order->size -= size;
    if (order->size) return;
    forget(order);
    if (--level->count) return;
    memmove(level, level + 1, (char *)&side->levels[side->length] - (char *)(level + 1));
    side->length--;
}

static void add(const struct record *record) {
    uint32_t ask = record->side == 'A', side = 2 * (record->instrument % INSTRUMENTS) + ask;
    struct order *order = find(record->order_id);
    struct level *level;
    *order = (struct order){record->order_id, ask ? -record->price : record->price, record->size, side};
    level = level_of(&sides[side], order->key);
    level->size += record->size;
    level->count++;
    standing++;
}

static void apply(const struct record *record) {
    struct order *order = find(record->order_id);
    if (record->action == 'A') {
        add(record);
    } else if (!order->id) {
        return;
    } else if (record->action == 'C') {
        take(order, record->size);
    } else if (record->action == 'M') {
        take(order, order->size);
        add(record);
    }
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
    int passes = argc == 3 ? atoi(argv[2]) : 0;
    if (!file || passes < 1) return 2;
    fseek(file, 0, SEEK_END);
    size_t count = ftell(file) / sizeof(struct record);
    rewind(file);
    struct record *records = malloc(count * sizeof *records);
    double *rates = malloc(passes * sizeof *rates);
    if (!records || !rates || fread(records, sizeof *records, count, file) != count) return 2;
    for (int pass = 0; pass < passes; pass++) {
        struct timespec began, ended;
        memset(orders, 0, sizeof orders);
        memset(sides, 0, sizeof sides);
        standing = 0;
        clock_gettime(CLOCK_MONOTONIC, &began);
        for (size_t i = 0; i < count; i++) apply(&records[i]);
        clock_gettime(CLOCK_MONOTONIC, &ended);
        rates[pass] = count / (ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) * 1e-9);
    }
    qsort(rates, passes, sizeof *rates, rising);
    printf("%.0f %llu\n", rates[passes / 2], (unsigned long long)standing);
    return 0;
}
