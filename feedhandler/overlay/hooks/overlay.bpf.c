/* Kernel programs for unchanged senders and receivers: replicate, forward, receive.
 *
 * replicate  TC, egress, at the sender: a plain UDP datagram to the group becomes one overlay
 *            datagram for each first-layer proxy. To insert the header, the datagram grows by 56
 *            bytes at its end and the payload moves, so that the offset where a device begins its
 *            checksum (CHECKSUM_PARTIAL) does not change.
 * forward    TC, ingress, at a proxy: the first copy of each id goes to every child, later ones end.
 * receive    XDP, at the receiver: the first copy loses its header and goes on to the plain program,
 *            later ones end before an skb is made of them.
 *
 * Contexts are those of the kernel's stable interface and maps have BTF, so one object serves every
 * kernel from 6.6 on; what the maps hold is laid out in abi.py, which a test compares.
 *
 * The kernel lets only programs with a licence that it accepts look routes up: this file declares one
 * at its end, beside the project's licence.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define LOOPBACK_INDEX 1     /* the first device of each network namespace */
#define WAY_NS 100000000     /* a neighbour or route that changes is followed after a tenth of a second */
#define OVERLAY_BYTES 56
#define SEALED_BYTES 40      /* what the seal covers */
#define PAYLOAD_MAX 1400     /* the wire's bound; the device's MTU may set a lower one */
#define TARGETS_MAX 64
#define EPOCH_TRIES 4        /* few packets announce a restart at once, one for each processor */
#define HEADERS_BYTES (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define IP_MORE_OR_OFFSET 0x3fff
#define CHECKSUM_AT (sizeof(struct ethhdr) + sizeof(struct iphdr) + __builtin_offsetof(struct udphdr, check))
#define OVERLAY_MAGIC 0x564f /* "OV" */
#define OVERLAY_VERSION 1
#define KIND_DATA 1

struct overlay_header {
    __u16 magic;
    __u8 version, kind;
    __u16 tree, payload_bytes;
    __u64 epoch, id;
    __s64 sent_ns, deadline_ns;
    __u64 seal[2];
};

struct udp_frame {
    struct ethhdr eth;
    struct iphdr ip;
    struct udphdr udp;
} __attribute__((packed, aligned(2))); /* without `aligned` every field is read byte by byte */

struct settings {
    __be32 match_address;      /* whose datagrams are taken; 0: any of this host's */
    __be16 match_port;
    __u16 tree;
    __be32 plain_address;      /* receive: where the payload goes; forward: the source it leaves by */
    __be16 plain_port;
    __u16 sealed;
    __u32 targets, payload_max;
    __u64 epoch;               /* replicate: this start of the sender */
    __s64 hold_ns;             /* 0: deliver at once */
    __s64 clock_offset_ns;     /* from TAI to the clock of sent_ns */
    __u64 key[2];
    __u32 slot_mask, device;
};

struct target {
    __be32 address;
    __be16 port;
    __u16 unused;
};

/* The route to a target, looked up again when it is old; per processor, so that none is torn. */
struct way {
    __u64 until_ns;
    __u32 device;
    __u8 link_addresses[2 * ETH_ALEN]; /* destination and source, as a frame begins */
};

struct numbering {
    struct bpf_spin_lock lock;
    __u32 unused;
    __u64 last_id;
    __s64 last_deadline_ns;
};

struct slot {
    struct bpf_spin_lock lock;
    __u32 unused;
    __u64 epoch, id;
};

enum counter {
    COUNT_MESSAGES,          /* replicated, forwarded, or handed to the plain program */
    COUNT_COPIES,            /* datagrams sent */
    COUNT_DUPLICATES,
    COUNT_VIOLATIONS,        /* an id older than its slot's: Appendix A's assumption does not hold */
    COUNT_OLD_EPOCHS,
    COUNT_RESTARTS,
    COUNT_FORGED,
    COUNT_MALFORMED,
    COUNT_OTHER_KINDS,       /* heartbeats and control datagrams, passed as they are */
    COUNT_TOO_LONG,
    COUNT_FRAGMENTS,
    COUNT_SEGMENTED,         /* UDP_SEGMENT: many datagrams in one */
    COUNT_OPTIONS,           /* IP options */
    COUNT_NO_NEIGHBOUR,      /* a copy not sent: no route, or its link address is not known yet */
    COUNT_FAILED,            /* a helper of the kernel refused: out of memory */
    COUNTERS,
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct settings);
} settings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, TARGETS_MAX);
    __type(key, __u32);
    __type(value, struct target);
} targets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, TARGETS_MAX);
    __type(key, __u32);
    __type(value, struct way);
} ways SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct numbering);
} numbering SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} newest_epoch SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 65536);
    __type(key, __u32);
    __type(value, struct slot);
} slots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} counters SEC(".maps");

struct scratch {
    struct overlay_header header;
    __u8 payload[2048]; /* a power of two above PAYLOAD_MAX, for the verifier */
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scratch);
} scratch SEC(".maps");

_Static_assert(sizeof(struct udp_frame) == HEADERS_BYTES, "no padding before the overlay header");
_Static_assert(sizeof(struct overlay_header) == OVERLAY_BYTES, "the wire's header");

static const __u32 ZERO = 0;

static __always_inline void count(__u32 which)
{
    __u64 *value = bpf_map_lookup_elem(&counters, &which);
    if (value)
        ++*value;
}

/* ---- Checksums: sums of 16-bit words, as the wire has them. ---- */

static __always_inline __u16 fold(__u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

/* RFC 1624: the checksum after `before` (a sum) became `after`. */
static __always_inline __u16 updated(__u16 checksum, __u64 before, __u64 after)
{
    return ~fold((__u64)(__u16)~checksum + (__u16)~fold(before) + after);
}

static __always_inline __u64 address_sum(__be32 address)
{
    return (address & 0xffff) + (address >> 16);
}

static __always_inline __u64 pseudo_sum(const struct udp_frame *frame)
{
    return address_sum(frame->ip.saddr) + address_sum(frame->ip.daddr) + bpf_htons(IPPROTO_UDP)
           + frame->udp.len;
}

/* ---- Seals: SipHash-2-4 of the header's first 40 bytes. ---- */

#define ROTATED(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

struct sip {
    __u64 a, b, c, d;
};

static __always_inline void sip_round(struct sip *v)
{
    v->a += v->b, v->b = ROTATED(v->b, 13) ^ v->a, v->a = ROTATED(v->a, 32);
    v->c += v->d, v->d = ROTATED(v->d, 16) ^ v->c;
    v->a += v->d, v->d = ROTATED(v->d, 21) ^ v->a;
    v->c += v->b, v->b = ROTATED(v->b, 17) ^ v->c, v->c = ROTATED(v->c, 32);
}

static __always_inline void sip_word(struct sip *v, __u64 word)
{
    v->d ^= word;
    sip_round(v);
    sip_round(v);
    v->a ^= word;
}

static __always_inline __u64 seal_of(const struct overlay_header *header, const __u64 *key)
{
    struct sip v = {
        key[0] ^ 0x736f6d6570736575ULL,
        key[1] ^ 0x646f72616e646f6dULL,
        key[0] ^ 0x6c7967656e657261ULL,
        key[1] ^ 0x7465646279746573ULL,
    };
    sip_word(&v, (__u64)header->magic | (__u64)header->version << 16 | (__u64)header->kind << 24
                 | (__u64)header->tree << 32 | (__u64)header->payload_bytes << 48);
    sip_word(&v, header->epoch);
    sip_word(&v, header->id);
    sip_word(&v, header->sent_ns);
    sip_word(&v, header->deadline_ns);
    sip_word(&v, (__u64)SEALED_BYTES << 56);
    v.c ^= 0xff;
    sip_round(&v), sip_round(&v), sip_round(&v), sip_round(&v);
    return v.a ^ v.b ^ v.c ^ v.d;
}

/* ---- Matching. ---- */

enum verdict { OURS, NOT_OURS, PASSED, REFUSED };

/* Whether a frame is a whole UDP datagram over IPv4 to the matched address and port. */
static __always_inline int matches(const struct udp_frame *frame, void *end,
                                   const struct settings *set)
{
    if ((void *)(frame + 1) > end)
        return NOT_OURS;
    if (frame->eth.h_proto != bpf_htons(ETH_P_IP) || frame->ip.protocol != IPPROTO_UDP)
        return NOT_OURS;
    if (set->match_address && frame->ip.daddr != set->match_address)
        return NOT_OURS;
    if (frame->ip.version != 4)
        return NOT_OURS;
    if (frame->ip.frag_off & bpf_htons(IP_MORE_OR_OFFSET)) {
        /* Later fragments have no port: without an address to match they may be any program's. */
        if (frame->ip.frag_off & bpf_htons(0x1fff) ? !set->match_address
                                                   : frame->udp.dest != set->match_port)
            return NOT_OURS;
        count(COUNT_FRAGMENTS);
        return PASSED;
    }
    if (frame->ip.ihl != 5) {
        count(COUNT_OPTIONS);
        return PASSED;
    }
    return frame->udp.dest == set->match_port ? OURS : NOT_OURS;
}

/* Whether what is behind the UDP header is a data datagram of our tree; the frame matches. */
static __always_inline int is_data(const struct udp_frame *frame, void *end,
                                   const struct settings *set, __u32 frame_bytes)
{
    const struct overlay_header *header = (const void *)(frame + 1);
    __u32 udp_bytes = bpf_ntohs(frame->udp.len);
    if ((void *)(header + 1) > end || header->magic != OVERLAY_MAGIC
        || header->version != OVERLAY_VERSION || header->tree != set->tree
        || header->payload_bytes > PAYLOAD_MAX) {
        count(COUNT_MALFORMED);
        return REFUSED;
    }
    if (header->kind != KIND_DATA) {
        count(COUNT_OTHER_KINDS);
        return PASSED;
    }
    if (header->id == 0
        || udp_bytes != sizeof(struct udphdr) + OVERLAY_BYTES + header->payload_bytes
        || bpf_ntohs(frame->ip.tot_len) != sizeof(struct iphdr) + udp_bytes
        || sizeof(struct ethhdr) + sizeof(struct iphdr) + udp_bytes > frame_bytes) {
        count(COUNT_MALFORMED);
        return REFUSED;
    }
    if (header->seal[0] != (set->sealed ? seal_of(header, set->key) : 0) || header->seal[1]) {
        count(COUNT_FORGED);
        return REFUSED;
    }
    return OURS;
}

/* Make `epoch` the newest, unless a newer one is known; returns whether it is the newest. */
static __always_inline int epoch_is_current(__u64 epoch)
{
    __u64 *newest = bpf_map_lookup_elem(&newest_epoch, &ZERO);
    if (!newest)
        return 0;
    __u64 known = *(volatile __u64 *)newest;
    for (int tries = 0; tries < EPOCH_TRIES; tries++) {
        if (epoch <= known)
            break;
        __u64 found = __sync_val_compare_and_swap(newest, known, epoch);
        if (found == known) {
            if (known)
                count(COUNT_RESTARTS);
            return 1;
        }
        known = found;
    }
    if (epoch >= known)
        return 1;
    count(COUNT_OLD_EPOCHS);
    return 0;
}

/* Appendix A, with epochs: returns whether (epoch, id) is above its slot's, and then stores it. */
static __always_inline int is_first(__u64 epoch, __u64 id, const struct settings *set)
{
    __u32 index = id & set->slot_mask;
    struct slot *slot = bpf_map_lookup_elem(&slots, &index);
    if (!slot || !epoch_is_current(epoch))
        return 0;
    bpf_spin_lock(&slot->lock);
    __u64 slot_epoch = slot->epoch, slot_id = slot->id;
    int first = epoch > slot_epoch || (epoch == slot_epoch && id > slot_id);
    if (first) {
        slot->epoch = epoch;
        slot->id = id;
    }
    bpf_spin_unlock(&slot->lock);
    if (first)
        return 1;
    if (epoch < slot_epoch)
        count(COUNT_OLD_EPOCHS);
    else if (id == slot_id)
        count(COUNT_DUPLICATES);
    else
        count(COUNT_VIOLATIONS);
    return 0;
}

/* ---- Copies to targets, by both TC programs. ---- */

/* Readdress the datagram; the kernel's helper knows whether a device completes the checksum. */
static __always_inline int readdress(struct __sk_buff *skb, const struct target *to)
{
    struct udp_frame *frame = (void *)(long)skb->data;
    if ((void *)(frame + 1) > (void *)(long)skb->data_end)
        return -1;
    __be32 address = frame->ip.daddr;
    __be16 port = frame->udp.dest;
    frame->ip.check = updated(frame->ip.check, address_sum(address), address_sum(to->address));
    frame->ip.daddr = to->address;
    frame->udp.dest = to->port;
    if (port != to->port
        && bpf_l4_csum_replace(skb, CHECKSUM_AT, port, to->port, BPF_F_MARK_MANGLED_0 | 2))
        return -1;
    return bpf_l4_csum_replace(skb, CHECKSUM_AT, address, to->address,
                               BPF_F_MARK_MANGLED_0 | BPF_F_PSEUDO_HDR | 4);
}

/* Look up the route to a target: returns 0, or bpf_fib_lookup's result. The lookup requires that the
 * device it is said to come from may forward: that is loopback, as for what a host sends itself, so
 * that no other device need forward. */
static __always_inline long look_up(struct __sk_buff *skb, const struct target *to, struct way *way,
                                    __u64 now_ns)
{
    struct bpf_fib_lookup route = {
        .family = AF_INET,
        .l4_protocol = IPPROTO_UDP,
        .ifindex = LOOPBACK_INDEX,
        .ipv4_dst = to->address,
    };
    long result = bpf_fib_lookup(skb, &route, sizeof(route), 0);
    way->device = route.ifindex;
    if (result)
        return result;
    __builtin_memcpy(way->link_addresses, route.dmac, ETH_ALEN);
    __builtin_memcpy(way->link_addresses + ETH_ALEN, route.smac, ETH_ALEN);
    way->until_ns = now_ns + WAY_NS;
    return 0;
}

/* Send a clone to one target, or to the last one the datagram itself: where its neighbour is not
 * known the kernel resolves it and keeps the datagram until then. The last target is another one for
 * each message, so all are resolved in turn. Returns the program's result for the last; 0 for others. */
static __always_inline int send_to(struct __sk_buff *skb, __u32 at, __u64 now_ns, int last)
{
    const struct target *to = bpf_map_lookup_elem(&targets, &at);
    struct way *way = bpf_map_lookup_elem(&ways, &at);
    if (!to || !way)
        return TC_ACT_SHOT;
    long result = now_ns < way->until_ns ? 0 : look_up(skb, to, way, now_ns);
    if (result && !(last && result == BPF_FIB_LKUP_RET_NO_NEIGH)) {
        count(COUNT_NO_NEIGHBOUR);
        return TC_ACT_SHOT;
    }
    struct udp_frame *frame = (void *)(long)skb->data;
    if ((void *)(frame + 1) > (void *)(long)skb->data_end)
        return TC_ACT_SHOT;
    if (!result)
        __builtin_memcpy(&frame->eth, way->link_addresses, 2 * ETH_ALEN);
    if (readdress(skb, to) || (!last && bpf_clone_redirect(skb, way->device, 0))) {
        count(COUNT_FAILED);
        return TC_ACT_SHOT;
    }
    count(COUNT_COPIES);
    if (!last)
        return TC_ACT_OK;
    return result ? bpf_redirect_neigh(way->device, NULL, 0, 0) : bpf_redirect(way->device, 0);
}

/* Send to all targets, beginning at another one for each message, so that each is first as often. */
static __always_inline int send_copies(struct __sk_buff *skb, const struct settings *set, __u64 id)
{
    __u32 number = set->targets;
    if (number == 0 || number > TARGETS_MAX)
        return TC_ACT_SHOT;
    __u32 at = id % number;
    __u64 now_ns = bpf_ktime_get_coarse_ns();
    count(COUNT_MESSAGES);
    for (__u32 turn = 1; turn < TARGETS_MAX; turn++) {
        if (turn >= number)
            break;
        send_to(skb, at, now_ns, 0);
        at = at + 1 == number ? 0 : at + 1;
    }
    return send_to(skb, at, now_ns, 1);
}

/* ---- The sender. ---- */

/* The next id and its deadline, which is never before the one of an earlier id. */
static __always_inline int number(struct overlay_header *header, const struct settings *set)
{
    struct numbering *state = bpf_map_lookup_elem(&numbering, &ZERO);
    if (!state)
        return -1;
    __s64 now_ns = bpf_ktime_get_tai_ns() + set->clock_offset_ns;
    __s64 hold_ns = set->hold_ns, deadline_ns = 0;
    bpf_spin_lock(&state->lock);
    __u64 id = ++state->last_id;
    if (hold_ns > 0) {
        deadline_ns = now_ns + hold_ns;
        if (deadline_ns < state->last_deadline_ns)
            deadline_ns = state->last_deadline_ns;
        state->last_deadline_ns = deadline_ns;
    }
    bpf_spin_unlock(&state->lock);
    header->id = id;
    header->sent_ns = now_ns;
    header->deadline_ns = deadline_ns;
    return 0;
}

/* Grow a datagram by the header: at its end, then the payload moves. The rest of the checksum is
 * for what no device completes; the helper leaves it alone where one does. */
static __always_inline int insert_header(struct __sk_buff *skb, struct scratch *room,
                                         __u32 payload_bytes)
{
    __u32 grown = HEADERS_BYTES + OVERLAY_BYTES + payload_bytes;
    if (payload_bytes > PAYLOAD_MAX)
        return -1;
    if (payload_bytes > 0
        && bpf_skb_load_bytes(skb, HEADERS_BYTES, room->payload, payload_bytes & 2047))
        return -1;
    if (bpf_skb_change_tail(skb, grown, 0))
        return -1;
    if (bpf_skb_store_bytes(skb, HEADERS_BYTES, room, OVERLAY_BYTES + (payload_bytes & 2047), 0))
        return -1;
    struct udp_frame *frame = (void *)(long)skb->data;
    if ((void *)(frame + 1) > (void *)(long)skb->data_end)
        return -1;
    __be16 before = frame->udp.len, after = bpf_htons(bpf_ntohs(before) + OVERLAY_BYTES);
    __be16 total = bpf_htons(bpf_ntohs(frame->ip.tot_len) + OVERLAY_BYTES);
    frame->ip.check = updated(frame->ip.check, frame->ip.tot_len, total);
    frame->ip.tot_len = total;
    frame->udp.len = after;
    /* The length is in the sum twice: in the pseudo header, and in the header itself. */
    if (bpf_l4_csum_replace(skb, CHECKSUM_AT, before, after,
                            BPF_F_MARK_MANGLED_0 | BPF_F_PSEUDO_HDR | 2)
        || bpf_l4_csum_replace(skb, CHECKSUM_AT, before, after, BPF_F_MARK_MANGLED_0 | 2))
        return -1;
    __s64 added = bpf_csum_diff(NULL, 0, (__be32 *)&room->header, OVERLAY_BYTES, 0);
    return bpf_l4_csum_replace(skb, CHECKSUM_AT, 0, added, BPF_F_MARK_MANGLED_0);
}

SEC("tc")
int replicate(struct __sk_buff *skb)
{
    const struct settings *set = bpf_map_lookup_elem(&settings, &ZERO);
    if (!set)
        return TC_ACT_OK;
    struct udp_frame *frame = (void *)(long)skb->data;
    if (matches(frame, (void *)(long)skb->data_end, set) != OURS)
        return TC_ACT_OK;
    struct scratch *room = bpf_map_lookup_elem(&scratch, &ZERO);
    if (!room)
        return TC_ACT_OK;
    if (skb->gso_size) {
        count(COUNT_SEGMENTED);
        return TC_ACT_OK;
    }
    __u32 udp_bytes = bpf_ntohs(frame->udp.len);
    if (udp_bytes < sizeof(struct udphdr)
        || skb->len != sizeof(struct ethhdr) + sizeof(struct iphdr) + udp_bytes) {
        count(COUNT_MALFORMED);
        return TC_ACT_OK;
    }
    __u32 payload_bytes = udp_bytes - sizeof(struct udphdr);
    if (payload_bytes > set->payload_max || payload_bytes > PAYLOAD_MAX) {
        count(COUNT_TOO_LONG);
        return TC_ACT_OK;
    }
    struct overlay_header *header = &room->header;
    header->magic = OVERLAY_MAGIC;
    header->version = OVERLAY_VERSION;
    header->kind = KIND_DATA;
    header->tree = set->tree;
    header->payload_bytes = payload_bytes;
    header->epoch = set->epoch;
    if (number(header, set))
        return TC_ACT_OK;
    header->seal[0] = set->sealed ? seal_of(header, set->key) : 0;
    header->seal[1] = 0;
    __u64 id = header->id;
    if (insert_header(skb, room, payload_bytes)) {
        count(COUNT_FAILED);
        return TC_ACT_SHOT;
    }
    return send_copies(skb, set, id);
}

/* ---- A proxy. ---- */

/* Give the datagram this host's own source address, because some networks refuse others. */
static __always_inline int own_source(struct __sk_buff *skb, const struct settings *set)
{
    struct udp_frame *frame = (void *)(long)skb->data;
    if ((void *)(frame + 1) > (void *)(long)skb->data_end)
        return -1;
    __be32 address = frame->ip.saddr;
    __be16 port = frame->udp.source;
    frame->ip.check = updated(frame->ip.check, address_sum(address),
                              address_sum(set->plain_address));
    frame->ip.saddr = set->plain_address;
    frame->udp.source = set->plain_port;
    if (bpf_l4_csum_replace(skb, CHECKSUM_AT, port, set->plain_port, BPF_F_MARK_MANGLED_0 | 2))
        return -1;
    return bpf_l4_csum_replace(skb, CHECKSUM_AT, address, set->plain_address,
                               BPF_F_MARK_MANGLED_0 | BPF_F_PSEUDO_HDR | 4);
}

SEC("tc")
int forward(struct __sk_buff *skb)
{
    const struct settings *set = bpf_map_lookup_elem(&settings, &ZERO);
    if (!set)
        return TC_ACT_OK;
    /* A card's frames may have the headers alone where programs can read; shorter ones are not ours. */
    if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_pull_data(skb, HEADERS_BYTES + OVERLAY_BYTES))
        return TC_ACT_OK;
    struct udp_frame *frame = (void *)(long)skb->data;
    void *end = (void *)(long)skb->data_end;
    if (matches(frame, end, set) != OURS)
        return TC_ACT_OK;
    if (skb->gso_size) {
        count(COUNT_SEGMENTED);
        return TC_ACT_OK;
    }
    int verdict = is_data(frame, end, set, skb->len);
    if (verdict != OURS)
        return verdict == REFUSED ? TC_ACT_SHOT : TC_ACT_OK;
    const struct overlay_header *header = (const void *)(frame + 1);
    if ((void *)(header + 1) > end)
        return TC_ACT_OK;
    __u64 id = header->id;
    if (!is_first(header->epoch, id, set))
        return TC_ACT_SHOT;
    if (own_source(skb, set)) {
        count(COUNT_FAILED);
        return TC_ACT_SHOT;
    }
    return send_copies(skb, set, id);
}

/* ---- The receiver. ---- */

/* The sum of the header that is taken out; its 28 words, from the packet. */
static __always_inline __u64 header_sum(const struct overlay_header *header)
{
    const __u32 *words = (const void *)header;
    __u64 sum = 0;
#pragma unroll
    for (int at = 0; at < OVERLAY_BYTES / 4; at++)
        sum += words[at];
    return sum;
}

/* The UDP checksum after the header is out and the addresses are the plain program's. One that
 * only holds the pseudo header's sum was left to a device to complete and never left this machine:
 * nothing is to be verified, and 0 says so. A whole one that happens to be equal does the same. */
static __always_inline __u16 plain_checksum(const struct udp_frame *frame,
                                            const struct overlay_header *header,
                                            const struct settings *set, __be16 plain_bytes)
{
    __u16 now = frame->udp.check;
    if (now == 0 || now == fold(pseudo_sum(frame)))
        return 0;
    /* The length is in the sum twice. */
    __u64 before = header_sum(header) + address_sum(frame->ip.daddr) + frame->udp.dest
                   + (__u64)frame->udp.len * 2;
    __u64 after = address_sum(set->plain_address) + set->plain_port + (__u64)plain_bytes * 2;
    __u16 sum = updated(now, before, after);
    return sum ? sum : 0xffff;
}

/* The address of a link that stands for a group (RFC 1112, 6.4). */
static __always_inline void group_link_address(__u8 *link, __be32 address)
{
    const __u8 *parts = (const __u8 *)&address;
    link[0] = 0x01, link[1] = 0x00, link[2] = 0x5e;
    link[3] = parts[1] & 0x7f, link[4] = parts[2], link[5] = parts[3];
}

SEC("xdp")
int receive(struct xdp_md *context)
{
    const struct settings *set = bpf_map_lookup_elem(&settings, &ZERO);
    if (!set)
        return XDP_PASS;
    struct udp_frame *frame = (void *)(long)context->data;
    void *end = (void *)(long)context->data_end;
    if (matches(frame, end, set) != OURS)
        return XDP_PASS;
    int verdict = is_data(frame, end, set, end - (void *)frame);
    if (verdict != OURS)
        return verdict == REFUSED ? XDP_DROP : XDP_PASS;
    const struct overlay_header *header = (const void *)(frame + 1);
    if ((void *)(header + 1) > end)
        return XDP_PASS;
    if (!is_first(header->epoch, header->id, set))
        return XDP_DROP;
    struct udp_frame plain = *frame;
    plain.udp.len = bpf_htons(bpf_ntohs(frame->udp.len) - OVERLAY_BYTES);
    plain.udp.check = plain_checksum(frame, header, set, plain.udp.len);
    plain.udp.dest = set->plain_port;
    plain.ip.tot_len = bpf_htons(bpf_ntohs(frame->ip.tot_len) - OVERLAY_BYTES);
    plain.ip.daddr = set->plain_address;
    plain.ip.check = updated(frame->ip.check, (__u64)frame->ip.tot_len + address_sum(frame->ip.daddr),
                             (__u64)plain.ip.tot_len + address_sum(plain.ip.daddr));
    if ((plain.ip.daddr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000))
        group_link_address(plain.eth.h_dest, plain.ip.daddr);
    if (bpf_xdp_adjust_head(context, OVERLAY_BYTES)) {
        count(COUNT_FAILED);
        return XDP_DROP;
    }
    frame = (void *)(long)context->data;
    if ((void *)(frame + 1) > (void *)(long)context->data_end)
        return XDP_DROP;
    *frame = plain;
    count(COUNT_MESSAGES);
    return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
