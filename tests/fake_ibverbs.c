/* A libibverbs.so.1 for tests: queue pairs of one process, on devices that do not exist.
 *
 *   gcc -shared -fPIC -O2 -Wl,-soname,libibverbs.so.1 -o DIR/libibverbs.so.1 tests/fake_ibverbs.c -lpthread
 *   LD_LIBRARY_PATH=DIR cargo test ...        (or a test opens DIR/libibverbs.so.1 itself, first: by its soname
 *                                             dlopen("libibverbs.so.1") then finds it)
 *   gcc -g -DFAKE_SELFTEST -fsanitize=thread -o selftest tests/fake_ibverbs.c -lpthread && ./selftest
 *
 * Needs <infiniband/verbs.h> (package libibverbs-dev) to build, nothing to run. RC, UC and UD; READ, WRITE,
 * SEND, each also with immediate data, shared receive queues, completion channels. What a NIC refuses is
 * refused, and it is rather stricter than any one of them where they differ: numbers and keys are never used
 * twice, lkey and rkey differ, queues hold exactly what was asked for, a work request frees its place in the
 * send queue when its completion, or that of a later one, is polled; objects in use cannot be destroyed (EBUSY).
 *
 * Words of 8 aligned bytes are copied at once, as PCIe does; nothing else is. All work happens inside the calls
 * of this library, under one mutex: there are no threads. A SEND that finds no receive waits with rnr_retry 7,
 * and fails at once with less; a lost peer is found at once too (IBV_WC_RETRY_EXC_ERR). Soft-RoCE differs where it
 * is laxer: lkey and rkey are one, unsignalled requests free their places by themselves, more READs in flight than
 * the other side's max_dest_rd_atomic are served, queues are a bit longer than asked for.
 *
 * Settings: environment variables, read when devices are listed or opened; `fake_set(name, value)` sets one in
 * the running process, which outranks the environment (0, or -1 for a name it does not know). SETTINGS below
 * has them all; besides, read when a device is opened:
 *   FAKE_GIDS   entries `[DEVICE.][PORT/]INDEX=TYPE:ADDRESS[@IFINDEX]` between blanks; DEVICE counts from 0,
 *               PORT from 1 (both: all of them, where left out); TYPE ib, v1 or v2; ADDRESS IPv6 or IPv4.
 *               "0=v1:fe80::1 3=v2:192.0.2.1@7 1.2/5=v2:2001:db8::1". By default device D, port P has the
 *               indexes 0 and 1, v1 and v2, of fe80::PDD, then 2 and 3 of 127.0.P.D+1; ifindex 1.
 *   FAKE_PORT_STATE  also words, and a list for the ports: `down,active`
 *   FAKE_LINK_LAYER  also words: ethernet, infiniband (LIDs, and one GID, without need of it)
 *
 * `fake_count(name)`: what happened, COUNTS below (-1 for a name it does not know). `misuse` counts what a
 * real library takes in silence and is wrong all the same; each says what it was on stderr. `fake_set("counts",
 * 0)` counts from 0 again, except for what lives. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

#define SETTINGS(X)                                                                                              \
    X(FAKE_DEVICES, 1)         /* how many; negative: ibv_get_device_list fails with this errno (-38: ENOSYS) */ \
    X(FAKE_PORTS, 1)           /* of each device */                                                              \
    X(FAKE_PORT_STATE, 4)      /* of every port: 1 down, 4 active. A change raises an asynchronous event */      \
    X(FAKE_LINK_LAYER, 2)      /* 2 Ethernet, 1 InfiniBand */                                                    \
    X(FAKE_MTU, 1024)          /* active MTU, bytes */                                                           \
    X(FAKE_MAX_RD_ATOMIC, 16)  /* READs in flight that the device allows, either way */                          \
    X(FAKE_MAX_MESSAGE, 1L << 30) /* bytes of one work request */                                                \
    X(FAKE_MAX_QP_WR, 16384)                                                                                     \
    X(FAKE_MAX_CQE, 65536)                                                                                       \
    X(FAKE_MAX_SRQ_WR, 16384)                                                                                    \
    X(FAKE_NO_UC, 0)           /* 1: queue pairs of type UC cannot be made */                                    \
    X(FAKE_REG_ERRNO, 0)       /* ibv_reg_mr fails with it ... */                                                \
    X(FAKE_REG_SPARED, 0)      /* ... after so many calls that do not, counted down */                           \
    X(FAKE_FAIL_NTH_READ, 0)   /* the n-th READ from when it was set fails, once (-1: each does) ... */ \
    X(FAKE_FAIL_STATUS, 12)    /* ... with this status of enum ibv_wc_status (12: retries exceeded) */           \
    X(FAKE_SHORT_POST, -1)     /* of a chain only so many are taken, then ENOMEM; -1: all */                     \
    X(FAKE_DROP_NTH, 0)        /* the n-th message over UC or UD from when it was set is lost, once */           \
    X(FAKE_TWICE_NTH, 0)       /* the n-th SEND over RC from when it was set arrives twice, once: a peer that repeats itself */ \
    X(FAKE_RENUMBER_NTH, 0)    /* of the n-th SEND from when it was set byte 8 arrives as another, once: a peer that misnumbers its first frame */ \
    X(FAKE_STRAY_NTH, 0)       /* before the n-th datagram from when it was set comes another one, once: of a stranger, and its last byte is another */ \
    X(FAKE_DELAY_READS, 0)     /* so many polls find nothing before a READ completes; arming ends the delay */ \
    X(FAKE_DELAY_SENDS, 0)     /* so many polls do not find a SEND or WRITE that has completed: others pass it; as above */ \
    X(FAKE_HOLD_SHARED, 0)     /* 1: polls do not find receives of shared queues that have completed, and no event tells of a last one; \
                                  0: now they do, and events tell; -1: the same, but only of last ones */ \
    X(FAKE_HANG_UP, -1)        /* a socket. Polls do not find receives of queues that are not shared, until one of an armed queue has found nothing: \
                                  then they are there, and the socket is shut down: a peer that answers and hangs up at once */ \
    X(FAKE_LATE_RECEIVES, 0)   /* 1: polls find a receive only once its queue has been armed after it, and no event tells of that */ \
    X(FAKE_LATE_FLUSH, 0)      /* a queue pair that fails takes one receive more from its shared queue, and flushes it so many polls later */ \
    X(FAKE_REORDER_UNITS, 0)   /* a READ copies its words in random order, with a delay at random polls */       \
    X(FAKE_SEED, 1)            /* of that randomness */

#define COUNTS(X)                                                                                             \
    X(doorbells) /* calls of post_send */                                                                     \
    X(wrs)       /* work requests they accepted */                                                            \
    X(receives)  /* receives posted */                                                                        \
    X(polls) X(armings) X(reads) X(writes) X(sends) X(bytes) /* of the three */                               \
    X(completions) /* polled */                                                                               \
    X(errors)    /* completions without success ... */                                                        \
    X(flushes)   /* ... of which flushed */                                                                   \
    X(drops)     /* messages lost on the way, over UC or UD */                                                \
    X(strays)    /* datagrams of strangers */                                                                 \
    X(lost_receives) /* that went with a queue pair destroyed too early */                                    \
    X(failures)  /* queue pairs that went into the error state */                                             \
    X(queue_full) X(cq_overflows) X(rnr_waits) X(misuse)                                                      \
    X(live) X(live_lists) X(live_contexts) X(live_pds) X(live_mrs) X(live_channels) X(live_cqs) X(live_srqs)  \
    X(live_qps) X(live_ahs)

#define X_SET_ENUM(name, value) SET_##name,
#define X_SET_INIT(name, value) {#name, value, value, false},
#define X_COUNT_ENUM(name) N_##name,
#define X_COUNT_NAME(name) #name,
enum { SETTINGS(X_SET_ENUM) SETTING_COUNT };
enum { COUNTS(X_COUNT_ENUM) COUNT_COUNT };
static struct { const char *name; long value, normal; bool pinned; } settings[] = {SETTINGS(X_SET_INIT)};
static const char *const count_names[] = {COUNTS(X_COUNT_NAME)};
static long counts[COUNT_COUNT];
#define SET(name) (settings[SET_##name].value)
#define COUNT(name) (counts[N_##name])

enum { MAX_DEVICES = 8, MAX_PORTS = 8, GID_PLACES = 256, MAX_SGE = 4, MAX_INLINE = 256, MAX_MR = INT_MAX };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t acknowledged = PTHREAD_COND_INITIALIZER;
static uint32_t next_number = 0x11; /* of queue pairs */
static uint32_t next_key = 0x1001;
static uint64_t dice = 1;
static long reads_until_failure, messages_until_drop, sends_until_twin, sends_until_lie, datagrams_until_stray; /* 0: none to come */

struct port { enum ibv_port_state state; struct ibv_gid_entry gids[GID_PLACES]; bool has[GID_PLACES]; };
struct device { struct ibv_device base; int index; struct port ports[MAX_PORTS]; };
static struct device devices[MAX_DEVICES];

struct event { struct event *next; struct ibv_async_event async; struct cq *cq; };
struct events { struct event *first; int fd; }; /* the eventfd counts them */
struct context { struct context *next; int users; struct events events; struct verbs_context base; };
struct pd { struct ibv_pd base; int users; };
struct mr { struct ibv_mr base; uint64_t iova; unsigned access; struct mr *next; };
struct channel { struct ibv_comp_channel base; int users; struct events events; };
struct recv { uint64_t wr_id; int sges; struct ibv_sge sge[MAX_SGE]; };
struct receives { struct recv *ring; uint32_t size, head, tail, unpolled; }; /* unpolled: consumed, completion not taken */
struct srq { struct ibv_srq base; int users; struct receives queue; uint32_t limit; };
struct cqe { struct ibv_wc wc; struct qp *qp; uint32_t frees; bool is_send, solicited; long polls_left; };
struct cq {
    struct ibv_cq base; int users;
    struct cqe *ring; uint32_t head, tail; bool is_dead; int armed; /* 1: for all, 2: for solicited ones */
    unsigned delivered;
};
struct ah { struct ibv_ah base; struct ibv_ah_attr attr; };
struct send {
    struct ibv_send_wr wr; struct ibv_sge sge[MAX_SGE]; uint8_t inline_data[MAX_INLINE];
    struct ibv_ah_attr to; /* UD */
    bool started, finished; enum ibv_wc_status status; uint32_t length;
    long polls_left; uint32_t units_left, *units; /* of a READ in flight: words not yet copied */
    uint64_t sum; /* of the bytes to send */
};
struct qp {
    struct ibv_qp base; struct qp *next; struct ibv_qp_attr attr; struct ibv_qp_cap cap; bool signal_all;
    enum ibv_qp_state state; /* base.state is what ibv_modify_qp or ibv_query_qp last saw, as everywhere */
    struct send *ring; uint32_t freed, done, tail; /* freed <= done <= tail */
    struct receives queue; bool waits; /* for a receive of the peer */
    unsigned events_taken, events_acknowledged;
    long flush_in; uint64_t kept; /* polls until it flushes the receive that it keeps; 0: it keeps none */
    bool holds_event; /* of its last receive */
};
static struct context *contexts;
static struct mr *mrs;
static struct qp *qps;
static long reads_in_flight, late_flushes;

/* ---- small things ---- */

static void misuse(const char *format, ...) {
    va_list args;
    COUNT(misuse)++;
    va_start(args, format);
    fputs("fake_ibverbs: misuse: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}
static void *must(void *memory) { if (!memory) { perror("fake_ibverbs"); abort(); } return memory; }
static uint32_t roll(uint32_t below) {
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return (uint32_t)((dice >> 32) % below);
}
static struct context *context_of(struct ibv_context *context) {
    return (struct context *)((char *)context - offsetof(struct context, base.context));
}
static struct device *device_of(struct ibv_context *context) { return (struct device *)context->device; }
static int failed(int error) { pthread_mutex_unlock(&lock); return error; }
static void *no_object(int error) { pthread_mutex_unlock(&lock); errno = error; return NULL; }
#define BORN(kind) (COUNT(live)++, COUNT(live_##kind)++)
#define DIED(kind) (COUNT(live)--, COUNT(live_##kind)--)

static bool is_of_qp(enum ibv_event_type type) {
    return (type >= IBV_EVENT_QP_FATAL && type <= IBV_EVENT_PATH_MIG_ERR) || type == IBV_EVENT_QP_LAST_WQE_REACHED;
}
static void raise_event(struct events *events, struct event event) {
    struct event **at = &events->first, *new = must(malloc(sizeof *new));
    *new = event;
    new->next = NULL;
    while (*at) at = &(*at)->next;
    *at = new;
    if (eventfd_write(events->fd, 1)) misuse("the eventfd of a channel was closed");
}
static void raise_async(struct ibv_context *context, struct ibv_async_event async) {
    raise_event(&context_of(context)->events, (struct event){.async = async});
}
/* Waits as read(2) does: not at all if the descriptor is O_NONBLOCK. */
static int take_event(struct events *events, struct event *into) {
    for (;;) {
        eventfd_t one;
        if (eventfd_read(events->fd, &one)) return -1;
        pthread_mutex_lock(&lock);
        struct event *event = events->first;
        if (event) {
            *into = *event;
            events->first = event->next;
            free(event);
            if (into->cq) into->cq->delivered++;
            else if (is_of_qp(into->async.event_type)) ((struct qp *)into->async.element.qp)->events_taken++;
            pthread_mutex_unlock(&lock);
            return 0;
        }
        pthread_mutex_unlock(&lock); /* it went with its object */
    }
}
static void forget_events(struct events *events, void *object) {
    for (struct event **at = &events->first; *at;) {
        struct event *event = *at;
        if (event->cq == object || (!event->cq && event->async.element.cq == object)) {
            *at = event->next;
            free(event);
        } else at = &event->next;
    }
}

/* ---- settings ---- */

static void notify(struct cq *cq, bool is_solicited);
static void last_receive(struct qp *qp);
static void apply(int setting) {
    if (setting == SET_FAKE_HOLD_SHARED && SET(FAKE_HOLD_SHARED) <= 0)
        for (struct qp *qp = qps; qp; qp = qp->next) {
            if (qp->holds_event) last_receive(qp);
            if (qp->base.srq && !SET(FAKE_HOLD_SHARED)) notify((struct cq *)qp->base.recv_cq, true);
        }
    if (setting == SET_FAKE_SEED) dice = (uint64_t)SET(FAKE_SEED) * 0x9e3779b97f4a7c15 | 1;
    if (setting == SET_FAKE_FAIL_NTH_READ) reads_until_failure = SET(FAKE_FAIL_NTH_READ);
    if (setting == SET_FAKE_TWICE_NTH) sends_until_twin = SET(FAKE_TWICE_NTH);
    if (setting == SET_FAKE_RENUMBER_NTH) sends_until_lie = SET(FAKE_RENUMBER_NTH);
    if (setting == SET_FAKE_STRAY_NTH) datagrams_until_stray = SET(FAKE_STRAY_NTH);
    if (setting == SET_FAKE_DROP_NTH) messages_until_drop = SET(FAKE_DROP_NTH);
    if (setting != SET_FAKE_PORT_STATE) return;
    for (int d = 0; d < MAX_DEVICES; d++)
        for (int p = 0; p < MAX_PORTS; p++) {
            struct port *port = &devices[d].ports[p];
            if (port->state == (enum ibv_port_state)SET(FAKE_PORT_STATE)) continue;
            port->state = SET(FAKE_PORT_STATE);
            for (struct context *c = contexts; c; c = c->next)
                if (device_of(&c->base.context) == &devices[d] && p < SET(FAKE_PORTS))
                    raise_async(&c->base.context, (struct ibv_async_event){.element.port_num = p + 1,
                        .event_type = port->state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR});
        }
}
static void bad_setting(const char *name, const char *text) {
    fprintf(stderr, "fake_ibverbs: %s=%s makes no sense (the head of fake_ibverbs.c says what does)\n", name, text);
    abort();
}
static long number(const char *name, const char *text) {
    static const struct { const char *word; long value; } words[] =
        {{"ethernet", 2}, {"infiniband", 1}, {"down", 1}, {"init", 2}, {"armed", 3}, {"active", 4}, {"-ENOSYS", -ENOSYS}};
    char *end;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strncmp(text, words[i].word, strlen(words[i].word))) return words[i].value;
    long value = strtol(text, &end, 0);
    if (end == text || (*end && *end != ',')) bad_setting(name, text);
    return value;
}
static void read_settings(void) {
    for (int i = 0; i < SETTING_COUNT; i++) {
        const char *text = getenv(settings[i].name);
        if (!text || settings[i].pinned) continue;
        long value = number(settings[i].name, text);
        if (value == settings[i].value) continue;
        settings[i].value = value;
        apply(i);
    }
    for (int d = 0; d < MAX_DEVICES; d++) {
        const char *text = getenv("FAKE_PORT_STATE");
        for (int p = 0; p < MAX_PORTS; p++) {
            devices[d].ports[p].state = text && !settings[SET_FAKE_PORT_STATE].pinned ? number("FAKE_PORT_STATE", text) : SET(FAKE_PORT_STATE);
            const char *comma = text ? strchr(text, ',') : NULL;
            if (comma) text = comma + 1;
        }
    }
}
static void add_gid(struct device *device, int port, int index, int type, const uint8_t *gid, uint32_t ifindex) {
    struct port *p = &device->ports[port - 1];
    p->has[index] = true;
    p->gids[index] = (struct ibv_gid_entry){.gid_index = index, .port_num = port, .gid_type = type, .ndev_ifindex = ifindex};
    memcpy(p->gids[index].gid.raw, gid, 16);
}
static void read_gids(struct device *device) {
    const char *text = getenv("FAKE_GIDS");
    char *copy = strdup(text ? text : ""), *save = NULL;
    for (int p = 1; p <= MAX_PORTS; p++) {
        memset(device->ports[p - 1].has, 0, sizeof device->ports[p - 1].has);
        if (text) continue;
        uint8_t local[16] = {0xfe, 0x80, [13] = p, [15] = device->index + 1};
        uint8_t v4[16] = {[10] = 0xff, 0xff, 127, 0, p - 1, device->index + 1};
        if (SET(FAKE_LINK_LAYER) == IBV_LINK_LAYER_INFINIBAND) { add_gid(device, p, 0, IBV_GID_TYPE_IB, local, 0); continue; }
        add_gid(device, p, 0, IBV_GID_TYPE_ROCE_V1, local, 1);
        add_gid(device, p, 1, IBV_GID_TYPE_ROCE_V2, local, 1);
        add_gid(device, p, 2, IBV_GID_TYPE_ROCE_V1, v4, 1);
        add_gid(device, p, 3, IBV_GID_TYPE_ROCE_V2, v4, 1);
    }
    for (char *word = strtok_r(copy, " \t\n", &save); word; word = strtok_r(NULL, " \t\n", &save)) {
        char whole[128], *equals = strchr(word, '='), *colon = equals ? strchr(equals, ':') : NULL, *dot, *slash, *at;
        snprintf(whole, sizeof whole, "%s", word);
        if (!colon) bad_setting("FAKE_GIDS", whole);
        *equals = *colon = 0;
        int on_device = -1, on_port = 0, index, type;
        if ((dot = strchr(word, '.'))) on_device = atoi(word), word = dot + 1;
        if ((slash = strchr(word, '/'))) on_port = atoi(word), word = slash + 1;
        index = atoi(word);
        type = !strcmp(equals + 1, "ib") ? IBV_GID_TYPE_IB : !strcmp(equals + 1, "v1") ? IBV_GID_TYPE_ROCE_V1
             : !strcmp(equals + 1, "v2") ? IBV_GID_TYPE_ROCE_V2 : -1;
        uint32_t ifindex = 0;
        if ((at = strchr(colon + 1, '@'))) *at = 0, ifindex = atoi(at + 1);
        uint8_t gid[16] = {[10] = 0xff, 0xff};
        if (type < 0 || index < 0 || index >= GID_PLACES || on_port > MAX_PORTS
            || (inet_pton(AF_INET6, colon + 1, gid) != 1 && inet_pton(AF_INET, colon + 1, gid + 12) != 1))
            bad_setting("FAKE_GIDS", whole);
        if (on_device >= 0 && on_device != device->index) continue;
        for (int p = 1; p <= MAX_PORTS; p++)
            if (!on_port || on_port == p) add_gid(device, p, index, type, gid, ifindex);
    }
    free(copy);
}
int fake_set(const char *name, long value);
long fake_count(const char *name);
int fake_set(const char *name, long value) {
    int result = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_live; i++) if (!strcmp(name, "counts")) counts[i] = 0, result = 0;
    for (int i = 0; i < SETTING_COUNT; i++)
        if (!strcmp(name, settings[i].name)) settings[i].value = value, settings[i].pinned = true, apply(i), result = 0;
    pthread_mutex_unlock(&lock);
    return result;
}
long fake_count(const char *name) {
    long result = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < COUNT_COUNT; i++) if (!strcmp(name, count_names[i])) result = counts[i];
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- devices and ports ---- */

struct ibv_device **ibv_get_device_list(int *count) {
    pthread_mutex_lock(&lock);
    read_settings();
    long n = SET(FAKE_DEVICES);
    if (n < 0) return no_object((int)-n);
    if (n > MAX_DEVICES) n = MAX_DEVICES;
    struct ibv_device **list = must(calloc(n + 1, sizeof *list));
    for (int d = 0; d < n; d++) {
        struct device *device = &devices[d];
        device->index = d;
        device->base.node_type = IBV_NODE_CA;
        device->base.transport_type = IBV_TRANSPORT_IB;
        snprintf(device->base.name, sizeof device->base.name, "fake%d", d);
        snprintf(device->base.dev_name, sizeof device->base.dev_name, "fakeverbs%d", d);
        snprintf(device->base.dev_path, sizeof device->base.dev_path, "/sys/class/infiniband_verbs/fakeverbs%d", d);
        snprintf(device->base.ibdev_path, sizeof device->base.ibdev_path, "/sys/class/infiniband/fake%d", d);
        list[d] = &device->base;
    }
    if (count) *count = (int)n;
    BORN(lists);
    pthread_mutex_unlock(&lock);
    return list;
}
void ibv_free_device_list(struct ibv_device **list) {
    pthread_mutex_lock(&lock);
    DIED(lists);
    pthread_mutex_unlock(&lock);
    free(list);
}
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }
int ibv_get_device_index(struct ibv_device *device) { return ((struct device *)device)->index; }
__be64 ibv_get_device_guid(struct ibv_device *device) {
    return htobe64(0x020000fffe000001 + (uint64_t)((struct device *)device)->index);
}
static int post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int post_recv(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static int post_srq_recv(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **);
static int poll_cq(struct ibv_cq *, int, struct ibv_wc *);
static int req_notify_cq(struct ibv_cq *, int);
static int query_port(struct ibv_context *, uint8_t, struct ibv_port_attr *, size_t);

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct context *context = must(calloc(1, sizeof *context));
    struct ibv_context *base = &context->base.context;
    pthread_mutex_lock(&lock);
    read_settings();
    read_gids((struct device *)device);
    context->events.fd = base->async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    base->cmd_fd = -1;
    base->device = device;
    base->num_comp_vectors = 2;
    base->abi_compat = __VERBS_ABI_IS_EXTENDED;
    pthread_mutex_init(&base->mutex, NULL);
    context->base.sz = sizeof context->base;
    context->base.query_port = query_port;
    base->ops.post_send = post_send;
    base->ops.post_recv = post_recv;
    base->ops.post_srq_recv = post_srq_recv;
    base->ops.poll_cq = poll_cq;
    base->ops.req_notify_cq = req_notify_cq;
    context->next = contexts;
    contexts = context;
    BORN(contexts);
    pthread_mutex_unlock(&lock);
    return base;
}
int ibv_close_device(struct ibv_context *base) {
    struct context *context = context_of(base), **at = &contexts;
    pthread_mutex_lock(&lock);
    if (context->users) {
        misuse("ibv_close_device, but %d objects are left", context->users);
        return failed(EBUSY);
    }
    while (*at != context) at = &(*at)->next;
    *at = context->next;
    for (struct event *e = context->events.first, *next; e; e = next) next = e->next, free(e);
    close(context->events.fd);
    pthread_mutex_destroy(&base->mutex);
    free(context);
    DIED(contexts);
    pthread_mutex_unlock(&lock);
    return 0;
}
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    pthread_mutex_lock(&lock);
    *attr = (struct ibv_device_attr){
        .fw_ver = "fake", .node_guid = ibv_get_device_guid(context->device), .sys_image_guid = ibv_get_device_guid(context->device),
        .max_mr_size = UINT64_MAX, .page_size_cap = 0xfffff000, .max_qp = 1 << 20, .max_qp_wr = SET(FAKE_MAX_QP_WR),
        .max_sge = MAX_SGE, .max_sge_rd = MAX_SGE, .max_cq = 1 << 20, .max_cqe = SET(FAKE_MAX_CQE), .max_mr = 1 << 20,
        .max_pd = 1 << 20, .max_qp_rd_atom = SET(FAKE_MAX_RD_ATOMIC), .max_res_rd_atom = INT_MAX,
        .max_qp_init_rd_atom = SET(FAKE_MAX_RD_ATOMIC), .atomic_cap = IBV_ATOMIC_NONE, .max_ah = 1 << 16, .max_srq = 1 << 16,
        .max_srq_wr = SET(FAKE_MAX_SRQ_WR), .max_srq_sge = MAX_SGE, .max_pkeys = 1, .local_ca_ack_delay = 15,
        .phys_port_cnt = SET(FAKE_PORTS)};
    pthread_mutex_unlock(&lock);
    return 0;
}
static bool is_infiniband(void) { return SET(FAKE_LINK_LAYER) == IBV_LINK_LAYER_INFINIBAND; }
static bool has_port(uint32_t port) { return port >= 1 && (long)port <= SET(FAKE_PORTS) && port <= MAX_PORTS; }
static uint16_t lid_of(struct device *device, int port) { return is_infiniband() ? 1 + device->index * MAX_PORTS + port - 1 : 0; }
static enum ibv_mtu active_mtu(void) {
    enum ibv_mtu mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && (128L << (mtu + 1)) <= SET(FAKE_MTU)) mtu++;
    return mtu;
}
static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *into, size_t size) {
    pthread_mutex_lock(&lock);
    if (!has_port(port)) return failed(EINVAL);
    struct port *p = &device_of(context)->ports[port - 1];
    struct ibv_port_attr attr = {
        .state = p->state, .max_mtu = IBV_MTU_4096, .active_mtu = active_mtu(), .gid_tbl_len = GID_PLACES,
        .port_cap_flags = IBV_PORT_CM_SUP | (is_infiniband() ? 0 : IBV_PORT_IP_BASED_GIDS), .max_msg_sz = SET(FAKE_MAX_MESSAGE),
        .pkey_tbl_len = 1, .lid = lid_of(device_of(context), port), .sm_lid = is_infiniband(), .max_vl_num = 1,
        .active_width = 2, .active_speed = 32, .phys_state = p->state == IBV_PORT_ACTIVE ? 5 : 3, .link_layer = SET(FAKE_LINK_LAYER)};
    memcpy(into, &attr, size < sizeof attr ? size : sizeof attr);
    pthread_mutex_unlock(&lock);
    return 0;
}
/* The exported function knows an older, shorter struct: it ends after link_layer and a byte. */
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr) {
    return query_port(context, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    pthread_mutex_lock(&lock);
    if (!has_port(port) || index < 0 || index >= GID_PLACES) return errno = EINVAL, failed(-1);
    struct port *p = &device_of(context)->ports[port - 1];
    memset(gid, 0, sizeof *gid);
    if (p->has[index]) *gid = p->gids[index].gid;
    pthread_mutex_unlock(&lock);
    return 0;
}
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t size) {
    pthread_mutex_lock(&lock);
    if (!has_port(port) || index >= GID_PLACES || flags || size < sizeof *entry) return failed(EINVAL);
    struct port *p = &device_of(context)->ports[port - 1];
    if (!p->has[index]) return failed(ENODATA);
    *entry = p->gids[index];
    pthread_mutex_unlock(&lock);
    return 0;
}
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t room, uint32_t flags,
                             size_t size) {
    size_t found = 0;
    pthread_mutex_lock(&lock);
    if (flags || size < sizeof *entries) return failed(-EINVAL);
    for (int p = 1; has_port(p); p++)
        for (int i = 0; i < GID_PLACES; i++) {
            if (!device_of(context)->ports[p - 1].has[i]) continue;
            if (found == room) return failed(-EINVAL);
            memcpy((char *)entries + found++ * size, &device_of(context)->ports[p - 1].gids[i], sizeof *entries);
        }
    pthread_mutex_unlock(&lock);
    return (ssize_t)found;
}
int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) {
    (void)context;
    pthread_mutex_lock(&lock);
    bool exists = has_port(port) && index == 0;
    pthread_mutex_unlock(&lock);
    if (!exists) return errno = EINVAL, -1;
    *pkey = htobe16(0xffff);
    return 0;
}
int ibv_fork_init(void) { return 0; }
const char *ibv_node_type_str(enum ibv_node_type type) { return type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown"; }
const char *ibv_port_state_str(enum ibv_port_state state) {
    static const char *const names[] = {"no state change (NOP)", "down", "init", "armed", "active", "active defer"};
    return (unsigned)state < 6 ? names[state] : "unknown";
}
const char *ibv_wc_status_str(enum ibv_wc_status status) {
    static const char *const names[] = {
        "success", "local length error", "local QP operation error", "local EE context operation error", "local protection error",
        "Work Request Flushed Error", "memory management operation error", "bad response error", "local access error",
        "remote invalid request error", "remote access error", "remote operation error", "transport retry counter exceeded",
        "RNR retry counter exceeded", "local RDD violation error", "remote invalid RD request", "aborted error",
        "invalid EE context number", "invalid EE context state", "fatal error", "response timeout error", "general error"};
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown";
}
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *into) {
    struct event event;
    if (take_event(&context_of(context)->events, &event)) return -1;
    *into = event.async;
    return 0;
}
void ibv_ack_async_event(struct ibv_async_event *event) {
    if (!is_of_qp(event->event_type)) return;
    pthread_mutex_lock(&lock);
    struct qp *qp = (struct qp *)event->element.qp;
    if (++qp->events_acknowledged > qp->events_taken) misuse("ibv_ack_async_event of an event that was not taken");
    pthread_cond_broadcast(&acknowledged);
    pthread_mutex_unlock(&lock);
}

/* ---- memory ---- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct pd *pd = must(calloc(1, sizeof *pd));
    pthread_mutex_lock(&lock);
    pd->base.context = context;
    context_of(context)->users++;
    BORN(pds);
    pthread_mutex_unlock(&lock);
    return &pd->base;
}
int ibv_dealloc_pd(struct ibv_pd *base) {
    struct pd *pd = (struct pd *)base;
    pthread_mutex_lock(&lock);
    if (pd->users) return failed(EBUSY);
    context_of(base->context)->users--;
    DIED(pds);
    free(pd);
    pthread_mutex_unlock(&lock);
    return 0;
}
static bool is_mapped(const void *addr, size_t length) {
    unsigned char here[1024];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), step = page * sizeof here;
    uintptr_t at = (uintptr_t)addr & ~(page - 1), end = (uintptr_t)addr + length;
    for (; at < end; at += step)
        if (mincore((void *)at, end - at < step ? end - at : step, here)) return false;
    return true;
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access) {
    pthread_mutex_lock(&lock);
    access &= ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE;
    if (SET(FAKE_REG_ERRNO) && --SET(FAKE_REG_SPARED) < 0) return no_object((int)SET(FAKE_REG_ERRNO));
    if (!length || (access & IBV_ACCESS_REMOTE_WRITE && !(access & IBV_ACCESS_LOCAL_WRITE))) return no_object(EINVAL);
    if (access & ~(unsigned)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)) return no_object(EOPNOTSUPP);
    if ((uintptr_t)addr + length < (uintptr_t)addr || !is_mapped(addr, length)) return no_object(EFAULT);
    struct mr *mr = must(calloc(1, sizeof *mr));
    mr->base = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length, .lkey = next_key, .rkey = next_key + 7};
    next_key += 0x100;
    mr->iova = iova;
    mr->access = access;
    mr->next = mrs;
    mrs = mr;
    ((struct pd *)pd)->users++;
    BORN(mrs);
    pthread_mutex_unlock(&lock);
    return &mr->base;
}
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}
int ibv_dereg_mr(struct ibv_mr *base) {
    struct mr *mr = (struct mr *)base, **at = &mrs;
    pthread_mutex_lock(&lock);
    for (struct qp *qp = qps; qp; qp = qp->next)
        for (uint32_t i = qp->done; i != qp->tail; i++) {
            struct send *send = &qp->ring[i % qp->cap.max_send_wr];
            for (int s = 0; s < send->wr.num_sge; s++)
                if (send->sge[s].lkey == base->lkey && !(send->wr.send_flags & IBV_SEND_INLINE))
                    misuse("ibv_dereg_mr of memory that a work request of queue pair %u uses", qp->base.qp_num);
        }
    while (*at != mr) at = &(*at)->next;
    *at = mr->next;
    ((struct pd *)base->pd)->users--;
    DIED(mrs);
    free(mr);
    pthread_mutex_unlock(&lock);
    return 0;
}
/* Where a range of registered memory is; NULL if it may not be used so. */
static uint8_t *reach(struct ibv_pd *pd, uint64_t addr, uint64_t length, uint32_t key, bool is_remote, unsigned access) {
    for (struct mr *mr = mrs; mr; mr = mr->next) {
        if ((is_remote ? mr->base.rkey : mr->base.lkey) != key) continue;
        bool inside = addr >= mr->iova && length <= mr->base.length && addr - mr->iova <= mr->base.length - length;
        return mr->base.pd == pd && inside && (mr->access & access) == access ? (uint8_t *)mr->base.addr + (addr - mr->iova) : NULL;
    }
    return NULL;
}
/* Pieces of memory, one after the other. */
struct memory { int pieces; struct { uint8_t *at; uint32_t length; } piece[MAX_SGE]; };
static bool reach_all(struct ibv_pd *pd, const struct ibv_sge *sge, int sges, unsigned access, struct memory *memory) {
    memory->pieces = sges;
    for (int i = 0; i < sges; i++) {
        memory->piece[i].length = sge[i].length;
        memory->piece[i].at = sge[i].length ? reach(pd, sge[i].addr, sge[i].length, sge[i].lkey, false, access) : NULL;
        if (sge[i].length && !memory->piece[i].at) return false;
    }
    return true;
}
static uint64_t length_of(const struct ibv_sge *sge, int sges) {
    uint64_t length = 0;
    for (int i = 0; i < sges; i++) length += sge[i].length;
    return length;
}
static uint8_t *at_offset(const struct memory *memory, uint64_t offset, uint64_t *left) {
    int i = 0;
    while (offset >= memory->piece[i].length) offset -= memory->piece[i++].length;
    *left = memory->piece[i].length - offset;
    return memory->piece[i].at + offset;
}
/* Words of 8 aligned bytes at once on either side, the rest byte by byte; other threads may be writing. */
static void copy(const struct memory *to, uint64_t to_offset, const struct memory *from, uint64_t from_offset, uint64_t length) {
    while (length) {
        uint64_t to_left, from_left;
        uint8_t *t = at_offset(to, to_offset, &to_left), *f = at_offset(from, from_offset, &from_left);
        bool t_word = to_left >= 8 && (uintptr_t)t % 8 == 0, f_word = from_left >= 8 && (uintptr_t)f % 8 == 0;
        uint8_t bytes[8];
        uint32_t step = 1;
        if (length >= 8 && to_left >= 8 && from_left >= 8 && (t_word || f_word)) step = 8;
        if (step == 8 && f_word) {
            uint64_t word = __atomic_load_n((uint64_t *)f, __ATOMIC_ACQUIRE);
            memcpy(bytes, &word, 8);
        } else for (uint32_t i = 0; i < step; i++) bytes[i] = __atomic_load_n(f + i, __ATOMIC_ACQUIRE);
        if (step == 8 && t_word) {
            uint64_t word;
            memcpy(&word, bytes, 8);
            __atomic_store_n((uint64_t *)t, word, __ATOMIC_RELEASE);
        } else for (uint32_t i = 0; i < step; i++) __atomic_store_n(t + i, bytes[i], __ATOMIC_RELEASE);
        to_offset += step, from_offset += step, length -= step;
    }
}

/* ---- completions ---- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct channel *channel = must(calloc(1, sizeof *channel));
    pthread_mutex_lock(&lock);
    channel->base.context = context;
    channel->events.fd = channel->base.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    context_of(context)->users++;
    BORN(channels);
    pthread_mutex_unlock(&lock);
    return &channel->base;
}
int ibv_destroy_comp_channel(struct ibv_comp_channel *base) {
    struct channel *channel = (struct channel *)base;
    pthread_mutex_lock(&lock);
    if (channel->users) return failed(EBUSY);
    close(channel->events.fd);
    context_of(base->context)->users--;
    DIED(channels);
    free(channel);
    pthread_mutex_unlock(&lock);
    return 0;
}
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector) {
    pthread_mutex_lock(&lock);
    if (cqe < 1 || cqe > SET(FAKE_MAX_CQE) || vector < 0 || vector >= context->num_comp_vectors) return no_object(EINVAL);
    struct cq *cq = must(calloc(1, sizeof *cq));
    cq->base = (struct ibv_cq){.context = context, .channel = channel, .cq_context = cq_context, .cqe = cqe};
    pthread_mutex_init(&cq->base.mutex, NULL);
    pthread_cond_init(&cq->base.cond, NULL);
    cq->ring = must(calloc(cqe, sizeof *cq->ring));
    if (channel) channel->refcnt++, ((struct channel *)channel)->users++;
    context_of(context)->users++;
    BORN(cqs);
    pthread_mutex_unlock(&lock);
    return &cq->base;
}
int ibv_destroy_cq(struct ibv_cq *base) {
    struct cq *cq = (struct cq *)base;
    struct timespec until;
    pthread_mutex_lock(&lock);
    if (cq->users) return failed(EBUSY);
    if (base->channel) forget_events(&((struct channel *)base->channel)->events, cq);
    forget_events(&context_of(base->context)->events, cq);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    while (base->comp_events_completed != cq->delivered)
        if (pthread_cond_timedwait(&acknowledged, &lock, &until)) {
            fprintf(stderr, "fake_ibverbs: ibv_destroy_cq would wait for ever: %u events were taken, %u acknowledged\n",
                    cq->delivered, base->comp_events_completed);
            abort();
        }
    if (base->channel) base->channel->refcnt--, ((struct channel *)base->channel)->users--;
    context_of(base->context)->users--;
    DIED(cqs);
    pthread_mutex_destroy(&base->mutex);
    pthread_cond_destroy(&base->cond);
    free(cq->ring);
    free(cq);
    pthread_mutex_unlock(&lock);
    return 0;
}
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    struct event event;
    if (take_event(&((struct channel *)channel)->events, &event)) return -1;
    *cq = &event.cq->base;
    *cq_context = event.cq->base.cq_context;
    return 0;
}
void ibv_ack_cq_events(struct ibv_cq *base, unsigned count) {
    pthread_mutex_lock(&lock);
    base->comp_events_completed += count;
    if (base->comp_events_completed > ((struct cq *)base)->delivered) misuse("ibv_ack_cq_events of more events than were taken");
    pthread_cond_broadcast(&acknowledged);
    pthread_mutex_unlock(&lock);
}
static void enter_error(struct qp *qp);
static void notify(struct cq *cq, bool is_solicited) {
    if (!cq->armed || (cq->armed == 2 && !is_solicited)) return;
    cq->armed = 0;
    if (cq->base.channel) raise_event(&((struct channel *)cq->base.channel)->events, (struct event){.cq = cq});
}
static void complete(struct cq *cq, struct cqe cqe) {
    if (cqe.wc.status != IBV_WC_SUCCESS) COUNT(errors)++;
    if (cqe.wc.status == IBV_WC_WR_FLUSH_ERR) COUNT(flushes)++;
    if (cq->is_dead) return;
    if (cq->tail - cq->head == (uint32_t)cq->base.cqe) {
        fprintf(stderr, "fake_ibverbs: a completion queue of %d overflowed: it is dead\n", cq->base.cqe);
        COUNT(cq_overflows)++;
        cq->is_dead = true;
        raise_async(cq->base.context, (struct ibv_async_event){.element.cq = &cq->base, .event_type = IBV_EVENT_CQ_ERR});
        for (struct qp *qp = qps; qp; qp = qp->next)
            if (qp->base.send_cq == &cq->base || qp->base.recv_cq == &cq->base) enter_error(qp);
        return;
    }
    cq->ring[cq->tail++ % cq->base.cqe] = cqe;
    notify(cq, cqe.solicited || cqe.wc.status != IBV_WC_SUCCESS);
}
/* The SENDs that polls did not find: they complete only now. Receives are marked: -1, armed since. */
static void release_sends(struct cq *cq) {
    bool any = false;
    for (uint32_t i = cq->head; i != cq->tail; i++) {
        struct cqe *cqe = &cq->ring[i % cq->base.cqe];
        any |= cqe->polls_left > 0;
        cqe->polls_left = cqe->is_send ? 0 : -1;
    }
    if (any) notify(cq, false);
}
static void purge(struct cq *cq, struct qp *qp) { /* completions of a queue pair that is no more */
    uint32_t kept = cq->head;
    for (uint32_t i = cq->head; i != cq->tail; i++) {
        struct cqe cqe = cq->ring[i % cq->base.cqe];
        if (cqe.qp != qp) cq->ring[kept++ % cq->base.cqe] = cqe;
        else if (!cqe.is_send && qp->base.srq) ((struct srq *)qp->base.srq)->queue.unpolled--;
    }
    cq->tail = kept;
}
static bool is_held(const struct cqe *cqe) { /* a receive that polls do not find yet */
    if (cqe->is_send || cqe->wc.status != IBV_WC_SUCCESS) return false;
    if (SET(FAKE_LATE_RECEIVES) && cqe->polls_left >= 0) return true;
    return cqe->qp->base.srq ? SET(FAKE_HOLD_SHARED) > 0 : SET(FAKE_HANG_UP) >= 0;
}
/* The memory of a SEND or WRITE is the device's until its completion is polled: it must not change before. */
static uint64_t sum_of(struct qp *qp, const struct send *send) {
    struct memory from;
    uint64_t sum = 0xcbf29ce484222325;
    if (send->wr.opcode == IBV_WR_RDMA_READ || send->wr.send_flags & IBV_SEND_INLINE) return sum;
    if (!reach_all(qp->base.pd, send->sge, send->wr.num_sge, 0, &from)) return 0; /* it is gone, as it may be */
    for (int i = 0; i < from.pieces; i++)
        for (uint32_t n = 0; n < from.piece[i].length; n++)
            sum = (sum ^ __atomic_load_n(from.piece[i].at + n, __ATOMIC_RELAXED)) * 0x100000001b3;
    return sum;
}
static void free_places(struct qp *qp, uint32_t until) {
    for (; (int32_t)(until - qp->freed) > 0; qp->freed++) {
        const struct send *send = &qp->ring[qp->freed % qp->cap.max_send_wr];
        uint64_t sum = sum_of(qp, send);
        if (sum && send->sum && sum != send->sum)
            misuse("memory was written that work request %llu of queue pair %u sends", (unsigned long long)send->wr.wr_id, qp->base.qp_num);
    }
}
static void progress(struct qp *qp, bool is_poll, bool at_once);
static void flush_late(struct cq *cq, bool at_once);
static int poll_cq(struct ibv_cq *base, int room, struct ibv_wc *wc) {
    struct cq *cq = (struct cq *)base;
    int n = 0;
    pthread_mutex_lock(&lock);
    COUNT(polls)++;
    if (reads_in_flight)
        for (struct qp *qp = qps; qp; qp = qp->next)
            if (qp->base.send_cq == base) progress(qp, true, false);
    flush_late(cq, false);
    uint32_t at = cq->head, held = cq->head;
    bool hangs_up = false;
    for (; n < room && at != cq->tail; at++) {
        struct cqe cqe = cq->ring[at % base->cqe];
        if (cqe.polls_left > 0 && SET(FAKE_DELAY_SENDS)) {
            cqe.polls_left--;
            cq->ring[held++ % base->cqe] = cqe;
            continue;
        }
        if (is_held(&cqe)) {
            hangs_up |= cq->armed && !cqe.qp->base.srq;
            cq->ring[held++ % base->cqe] = cqe;
            continue;
        }
        wc[n++] = cqe.wc;
        COUNT(completions)++;
        if (cqe.is_send) free_places(cqe.qp, cqe.frees);
        else if (cqe.qp->base.srq) ((struct srq *)cqe.qp->base.srq)->queue.unpolled--;
        else cqe.qp->queue.unpolled--;
    }
    while (held != cq->head) cq->ring[--at % base->cqe] = cq->ring[--held % base->cqe];
    cq->head = at;
    if (hangs_up && !n) {
        shutdown((int)SET(FAKE_HANG_UP), SHUT_RDWR);
        SET(FAKE_HANG_UP) = -1;
        notify(cq, true);
    }
    pthread_mutex_unlock(&lock);
    return n;
}
static int req_notify_cq(struct ibv_cq *base, int solicited_only) {
    pthread_mutex_lock(&lock);
    COUNT(armings)++;
    if (base->channel == NULL) misuse("req_notify_cq without a channel");
    ((struct cq *)base)->armed = solicited_only ? 2 : 1;
    if (reads_in_flight) /* nobody polls now, and there are no threads here */
        for (struct qp *qp = qps; qp; qp = qp->next)
            if (qp->base.send_cq == base) progress(qp, true, true);
    release_sends((struct cq *)base);
    flush_late((struct cq *)base, true);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- receives ---- */

static void wake_senders(void) {
    for (struct qp *qp = qps; qp; qp = qp->next) if (qp->waits) progress(qp, false, false);
}
static int post_receives(struct receives *queue, uint32_t max_sge, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    for (; wr; wr = wr->next) {
        *bad = wr;
        if (wr->num_sge < 0 || (uint32_t)wr->num_sge > max_sge) return EINVAL;
        if (queue->tail - queue->head + queue->unpolled >= queue->size) { COUNT(queue_full)++; return ENOMEM; }
        struct recv *recv = &queue->ring[queue->tail++ % queue->size];
        recv->wr_id = wr->wr_id;
        recv->sges = wr->num_sge;
        if (wr->num_sge) memcpy(recv->sge, wr->sg_list, wr->num_sge * sizeof *recv->sge);
        COUNT(receives)++;
    }
    return 0;
}
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init) {
    pthread_mutex_lock(&lock);
    if (!init->attr.max_wr || (long)init->attr.max_wr > SET(FAKE_MAX_SRQ_WR) || init->attr.max_sge > MAX_SGE) return no_object(EINVAL);
    struct srq *srq = must(calloc(1, sizeof *srq));
    srq->base.context = pd->context;
    srq->base.srq_context = init->srq_context;
    srq->base.pd = pd;
    srq->queue.size = init->attr.max_wr;
    srq->queue.ring = must(calloc(srq->queue.size, sizeof *srq->queue.ring));
    ((struct pd *)pd)->users++;
    BORN(srqs);
    pthread_mutex_unlock(&lock);
    return &srq->base;
}
int ibv_modify_srq(struct ibv_srq *base, struct ibv_srq_attr *attr, int mask) {
    struct srq *srq = (struct srq *)base;
    pthread_mutex_lock(&lock);
    if (mask & ~IBV_SRQ_LIMIT || (mask && attr->srq_limit > srq->queue.size)) return failed(EINVAL);
    if (mask) srq->limit = attr->srq_limit;
    pthread_mutex_unlock(&lock);
    return 0;
}
int ibv_query_srq(struct ibv_srq *base, struct ibv_srq_attr *attr) {
    struct srq *srq = (struct srq *)base;
    pthread_mutex_lock(&lock);
    *attr = (struct ibv_srq_attr){.max_wr = srq->queue.size, .max_sge = MAX_SGE, .srq_limit = srq->limit};
    pthread_mutex_unlock(&lock);
    return 0;
}
int ibv_destroy_srq(struct ibv_srq *base) {
    struct srq *srq = (struct srq *)base;
    pthread_mutex_lock(&lock);
    if (srq->users) return failed(EBUSY);
    forget_events(&context_of(base->context)->events, srq);
    ((struct pd *)base->pd)->users--;
    DIED(srqs);
    free(srq->queue.ring);
    free(srq);
    pthread_mutex_unlock(&lock);
    return 0;
}
static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    pthread_mutex_lock(&lock);
    int error = post_receives(&((struct srq *)srq)->queue, MAX_SGE, wr, bad);
    wake_senders();
    return failed(error);
}
static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct qp *qp = (struct qp *)base;
    pthread_mutex_lock(&lock);
    *bad = wr;
    if (base->srq || qp->state == IBV_QPS_RESET) return failed(EINVAL);
    int error = post_receives(&qp->queue, qp->cap.max_recv_sge, wr, bad);
    if (qp->state == IBV_QPS_ERR) enter_error(qp);
    wake_senders();
    return failed(error);
}

/* ---- queue pairs ---- */

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    struct ibv_qp_cap *cap = &init->cap;
    pthread_mutex_lock(&lock);
    if (init->qp_type != IBV_QPT_RC && init->qp_type != IBV_QPT_UC && init->qp_type != IBV_QPT_UD) return no_object(EOPNOTSUPP);
    if (init->qp_type == IBV_QPT_UC && SET(FAKE_NO_UC)) return no_object(EOPNOTSUPP);
    if (!init->send_cq || !init->recv_cq || (long)cap->max_send_wr > SET(FAKE_MAX_QP_WR) || (long)cap->max_recv_wr > SET(FAKE_MAX_QP_WR)
        || cap->max_send_sge > MAX_SGE || cap->max_recv_sge > MAX_SGE || cap->max_inline_data > MAX_INLINE)
        return no_object(EINVAL);
    if (init->srq && init->srq->pd != pd) return no_object(EINVAL);
    struct qp *qp = must(calloc(1, sizeof *qp));
    if (init->srq) cap->max_recv_wr = cap->max_recv_sge = 0;
    qp->cap = *cap;
    qp->signal_all = init->sq_sig_all;
    qp->base = (struct ibv_qp){.context = pd->context, .qp_context = init->qp_context, .pd = pd, .send_cq = init->send_cq,
        .recv_cq = init->recv_cq, .srq = init->srq, .qp_num = next_number++ & 0xffffff, .state = IBV_QPS_RESET, .qp_type = init->qp_type};
    qp->base.handle = qp->base.qp_num;
    pthread_mutex_init(&qp->base.mutex, NULL);
    pthread_cond_init(&qp->base.cond, NULL);
    qp->ring = must(calloc(cap->max_send_wr + 1, sizeof *qp->ring));
    qp->queue.size = cap->max_recv_wr;
    qp->queue.ring = must(calloc(cap->max_recv_wr + 1, sizeof *qp->queue.ring));
    qp->next = qps;
    qps = qp;
    ((struct pd *)pd)->users++;
    ((struct cq *)init->send_cq)->users++;
    ((struct cq *)init->recv_cq)->users++;
    if (init->srq) ((struct srq *)init->srq)->users++;
    BORN(qps);
    pthread_mutex_unlock(&lock);
    return &qp->base;
}
static void stop_read(struct send *send) {
    if (!send->units) return;
    free(send->units);
    send->units = NULL;
    reads_in_flight--;
}
static void empty(struct qp *qp) { /* RESET: as new, and silent */
    for (uint32_t i = qp->done; i != qp->tail; i++) stop_read(&qp->ring[i % qp->cap.max_send_wr]);
    purge((struct cq *)qp->base.send_cq, qp);
    purge((struct cq *)qp->base.recv_cq, qp);
    qp->freed = qp->done = qp->tail = 0;
    qp->queue.head = qp->queue.tail = qp->queue.unpolled = 0;
    qp->waits = false;
    if (qp->flush_in) late_flushes--, COUNT(lost_receives)++;
    qp->flush_in = 0;
}
int ibv_destroy_qp(struct ibv_qp *base) {
    struct qp *qp = (struct qp *)base, **at = &qps;
    pthread_mutex_lock(&lock);
    empty(qp);
    forget_events(&context_of(base->context)->events, qp);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    while (qp->events_taken != qp->events_acknowledged)
        if (pthread_cond_timedwait(&acknowledged, &lock, &until)) {
            misuse("ibv_destroy_qp would wait for ever: %u events were taken, %u acknowledged", qp->events_taken, qp->events_acknowledged);
            break;
        }
    while (*at != qp) at = &(*at)->next;
    *at = qp->next;
    ((struct pd *)base->pd)->users--;
    ((struct cq *)base->send_cq)->users--;
    ((struct cq *)base->recv_cq)->users--;
    if (base->srq) ((struct srq *)base->srq)->users--;
    DIED(qps);
    pthread_mutex_destroy(&base->mutex);
    pthread_cond_destroy(&base->cond);
    free(qp->ring);
    free(qp->queue.ring);
    free(qp);
    wake_senders(); /* whoever waited for its receives waits no longer */
    pthread_mutex_unlock(&lock);
    return 0;
}
static enum ibv_wc_opcode opcode_of(enum ibv_wr_opcode opcode) {
    switch (opcode) {
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_RDMA_WRITE: case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    default: return IBV_WC_SEND;
    }
}
static void complete_send(struct qp *qp, struct send *send, enum ibv_wc_status status) {
    qp->done++;
    if (status == IBV_WC_SUCCESS && !qp->signal_all && !(send->wr.send_flags & IBV_SEND_SIGNALED)) return;
    struct ibv_wc wc = {.wr_id = send->wr.wr_id, .status = status, .opcode = opcode_of(send->wr.opcode),
        .vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x80 + status, .byte_len = send->length, .qp_num = qp->base.qp_num};
    complete((struct cq *)qp->base.send_cq, (struct cqe){.wc = wc, .qp = qp, .frees = qp->done, .is_send = true,
        .polls_left = wc.opcode != IBV_WC_RDMA_READ ? SET(FAKE_DELAY_SENDS) : 0});
}
static void complete_recv(struct qp *qp, uint64_t wr_id, struct ibv_wc wc, bool solicited) {
    wc.wr_id = wr_id;
    wc.qp_num = qp->base.qp_num;
    if (qp->base.srq) ((struct srq *)qp->base.srq)->queue.unpolled++;
    else qp->queue.unpolled++;
    complete((struct cq *)qp->base.recv_cq, (struct cqe){.wc = wc, .qp = qp, .solicited = solicited});
}
static void last_receive(struct qp *qp) {
    qp->holds_event = SET(FAKE_HOLD_SHARED) > 0;
    if (qp->holds_event) return;
    raise_async(qp->base.context, (struct ibv_async_event){.element.qp = &qp->base, .event_type = IBV_EVENT_QP_LAST_WQE_REACHED});
}
static void flush_late(struct cq *cq, bool at_once) {
    for (struct qp *qp = qps; qp && late_flushes; qp = qp->next) {
        if (qp->base.recv_cq != &cq->base || !qp->flush_in || (--qp->flush_in && !at_once)) continue;
        qp->flush_in = 0;
        late_flushes--;
        complete_recv(qp, qp->kept, (struct ibv_wc){.status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV}, false);
        last_receive(qp);
    }
}
/* ERR: everything outstanding is flushed. */
static void enter_error(struct qp *qp) {
    if (qp->state != IBV_QPS_ERR) COUNT(failures)++;
    if (qp->base.srq && qp->state != IBV_QPS_ERR) {
        struct receives *queue = &((struct srq *)qp->base.srq)->queue;
        if (SET(FAKE_LATE_FLUSH) && queue->head != queue->tail) {
            qp->kept = queue->ring[queue->head++ % queue->size].wr_id;
            qp->flush_in = SET(FAKE_LATE_FLUSH);
            late_flushes++;
        } else last_receive(qp);
    }
    qp->state = IBV_QPS_ERR;
    qp->waits = false;
    while (qp->done != qp->tail) {
        struct send *send = &qp->ring[qp->done % qp->cap.max_send_wr];
        stop_read(send);
        complete_send(qp, send, IBV_WC_WR_FLUSH_ERR);
    }
    while (qp->queue.head != qp->queue.tail)
        complete_recv(qp, qp->queue.ring[qp->queue.head++ % qp->queue.size].wr_id,
                      (struct ibv_wc){.status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV}, false);
}
/* Is this a way that the port can send? */
static bool is_route(struct ibv_context *context, const struct ibv_ah_attr *to) {
    if (!has_port(to->port_num)) return false;
    if (!to->is_global) return is_infiniband() && to->dlid;
    static const uint8_t zero[16];
    return device_of(context)->ports[to->port_num - 1].has[to->grh.sgid_index] && memcmp(to->grh.dgid.raw, zero, 16);
}
int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask) {
    enum { SETUP = IBV_QP_PKEY_INDEX | IBV_QP_PORT, PATH = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN };
    struct qp *qp = (struct qp *)base;
    pthread_mutex_lock(&lock);
    enum ibv_qp_state from = qp->state, to = mask & IBV_QP_STATE ? attr->qp_state : from;
    bool is_rc = base->qp_type == IBV_QPT_RC, is_ud = base->qp_type == IBV_QPT_UD;
    int must_have = 0, may_have = IBV_QP_CUR_STATE;
    if (to == IBV_QPS_INIT && (from == IBV_QPS_RESET || from == IBV_QPS_INIT)) {
        int all = SETUP | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
        if (from == IBV_QPS_RESET) must_have = all; else may_have |= all;
    } else if (to == IBV_QPS_RTR && from == IBV_QPS_INIT) {
        must_have = is_ud ? 0 : PATH | (is_rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
        may_have |= IBV_QP_PKEY_INDEX | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    } else if (to == IBV_QPS_RTS && from == IBV_QPS_RTR) {
        must_have = IBV_QP_SQ_PSN | (is_rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
        may_have |= is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
    } else if (to == IBV_QPS_RTS && from == IBV_QPS_RTS) {
        may_have |= is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
    } else if (to != IBV_QPS_ERR && to != IBV_QPS_RESET) return failed(EINVAL);
    mask &= ~IBV_QP_STATE;
    if ((mask & must_have) != must_have || mask & ~(must_have | may_have)) return failed(EINVAL);
    if ((mask & IBV_QP_PORT && !has_port(attr->port_num)) || (mask & IBV_QP_PKEY_INDEX && attr->pkey_index)
        || (mask & IBV_QP_AV && !is_route(base->context, &attr->ah_attr))
        || (mask & IBV_QP_PATH_MTU && (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > active_mtu()))
        || (mask & IBV_QP_MAX_QP_RD_ATOMIC && attr->max_rd_atomic > SET(FAKE_MAX_RD_ATOMIC))
        || (mask & IBV_QP_MAX_DEST_RD_ATOMIC && attr->max_dest_rd_atomic > SET(FAKE_MAX_RD_ATOMIC))
        || (mask & IBV_QP_TIMEOUT && attr->timeout > 31) || (mask & IBV_QP_RETRY_CNT && attr->retry_cnt > 7)
        || (mask & IBV_QP_RNR_RETRY && attr->rnr_retry > 7) || (mask & IBV_QP_MIN_RNR_TIMER && attr->min_rnr_timer > 31))
        return failed(EINVAL);
    struct ibv_qp_attr *now = &qp->attr;
    if (mask & IBV_QP_PORT) now->port_num = attr->port_num;
    if (mask & IBV_QP_QKEY) now->qkey = attr->qkey;
    if (mask & IBV_QP_ACCESS_FLAGS) now->qp_access_flags = attr->qp_access_flags;
    if (mask & IBV_QP_AV) now->ah_attr = attr->ah_attr;
    if (mask & IBV_QP_PATH_MTU) now->path_mtu = attr->path_mtu;
    if (mask & IBV_QP_DEST_QPN) now->dest_qp_num = attr->dest_qp_num & 0xffffff;
    if (mask & IBV_QP_RQ_PSN) now->rq_psn = attr->rq_psn & 0xffffff;
    if (mask & IBV_QP_SQ_PSN) now->sq_psn = attr->sq_psn & 0xffffff;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) now->max_dest_rd_atomic = attr->max_dest_rd_atomic;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC) now->max_rd_atomic = attr->max_rd_atomic;
    if (mask & IBV_QP_MIN_RNR_TIMER) now->min_rnr_timer = attr->min_rnr_timer;
    if (mask & IBV_QP_TIMEOUT) now->timeout = attr->timeout;
    if (mask & IBV_QP_RETRY_CNT) now->retry_cnt = attr->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY) now->rnr_retry = attr->rnr_retry;
    base->state = to;
    if (to == IBV_QPS_ERR) enter_error(qp);
    qp->state = to;
    if (to == IBV_QPS_RESET) empty(qp), memset(now, 0, sizeof *now);
    wake_senders();
    pthread_mutex_unlock(&lock);
    return 0;
}
int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
    struct qp *qp = (struct qp *)base;
    (void)mask;
    pthread_mutex_lock(&lock);
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = base->state = qp->state;
    attr->cap = qp->cap;
    *init = (struct ibv_qp_init_attr){.qp_context = base->qp_context, .send_cq = base->send_cq, .recv_cq = base->recv_cq,
        .srq = base->srq, .cap = qp->cap, .qp_type = base->qp_type, .sq_sig_all = qp->signal_all};
    pthread_mutex_unlock(&lock);
    return 0;
}
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) {
    pthread_mutex_lock(&lock);
    if (!is_route(pd->context, attr)) return no_object(EINVAL);
    struct ah *ah = must(calloc(1, sizeof *ah));
    ah->base.context = pd->context;
    ah->base.pd = pd;
    ah->attr = *attr;
    ((struct pd *)pd)->users++;
    BORN(ahs);
    pthread_mutex_unlock(&lock);
    return &ah->base;
}
int ibv_destroy_ah(struct ibv_ah *base) {
    pthread_mutex_lock(&lock);
    for (struct qp *qp = qps; qp; qp = qp->next)
        for (uint32_t i = qp->freed; qp->base.qp_type == IBV_QPT_UD && i != qp->tail; i++)
            if (qp->ring[i % qp->cap.max_send_wr].wr.wr.ud.ah == base) {
                misuse("ibv_destroy_ah of an address that a SEND of queue pair %u names", qp->base.qp_num);
                break;
            }
    ((struct pd *)base->pd)->users--;
    DIED(ahs);
    free(base);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- the wire ---- */

/* The queue pair that packets of `qp` to `number` by way of `to` arrive at; NULL if they are lost. */
static struct qp *arrive(struct qp *qp, const struct ibv_ah_attr *to, uint32_t number) {
    struct device *device = device_of(qp->base.context);
    struct port *out = &device->ports[to->port_num - 1];
    if (out->state != IBV_PORT_ACTIVE || to->port_num != qp->attr.port_num) return NULL;
    for (struct qp *peer = qps; peer; peer = peer->next) {
        if (peer->base.qp_num != number || peer->base.qp_type != qp->base.qp_type) continue;
        if (peer->state != IBV_QPS_RTR && peer->state != IBV_QPS_RTS) return NULL;
        struct device *there = device_of(peer->base.context);
        struct port *in = &there->ports[peer->attr.port_num - 1];
        if (in->state != IBV_PORT_ACTIVE) return NULL;
        if (is_infiniband() && to->dlid && to->dlid != lid_of(there, peer->attr.port_num)) return NULL;
        if (is_infiniband() && to->dlid) return peer;
        for (int i = 0; i < GID_PLACES; i++) /* the same kind of packets on both sides */
            if (in->has[i] && !memcmp(in->gids[i].gid.raw, to->grh.dgid.raw, 16)
                && in->gids[i].gid_type == out->gids[to->grh.sgid_index].gid_type) return peer;
        return NULL;
    }
    return NULL;
}
static struct receives *receives_of(struct qp *qp) { return qp->base.srq ? &((struct srq *)qp->base.srq)->queue : &qp->queue; }
static bool next_receive(struct qp *peer, struct recv *recv) {
    struct receives *queue = receives_of(peer);
    if (queue->head == queue->tail) return false;
    *recv = queue->ring[queue->head++ % queue->size];
    struct srq *srq = (struct srq *)peer->base.srq;
    if (srq && queue->tail - queue->head < srq->limit) {
        srq->limit = 0;
        raise_async(srq->base.context, (struct ibv_async_event){.element.srq = &srq->base, .event_type = IBV_EVENT_SRQ_LIMIT_REACHED});
    }
    return true;
}
/* The other side of a reliable connection that refused something is broken too. */
static enum ibv_wc_status refuse(struct qp *peer, enum ibv_wc_status status) {
    if (peer->base.qp_type != IBV_QPT_RC) { COUNT(drops)++; return IBV_WC_SUCCESS; }
    raise_async(peer->base.context, (struct ibv_async_event){.element.qp = &peer->base,
        .event_type = status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR});
    enter_error(peer);
    return status;
}
static bool is_read(const struct send *send) { return send->wr.opcode == IBV_WR_RDMA_READ; }
static bool carries_immediate(const struct send *send) {
    return send->wr.opcode == IBV_WR_SEND_WITH_IMM || send->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
static struct qp *peer_of(struct qp *qp) {
    struct qp *peer = arrive(qp, &qp->attr.ah_attr, qp->attr.dest_qp_num);
    bool talks = peer && peer->attr.dest_qp_num == qp->base.qp_num && peer->attr.rq_psn == qp->attr.sq_psn;
    return talks ? peer : NULL;
}
/* The words of a READ that are boundaries: unit i covers the i-th aligned 8 bytes that the range touches. */
static void read_unit(const struct memory *to, const struct memory *from, uint64_t address, uint32_t length, uint32_t unit) {
    uint64_t first = unit ? unit * 8ull - address % 8 : 0, last = unit * 8ull + 8 - address % 8;
    copy(to, first, from, first, (last < length ? last : length) - first);
}
/* Copies some of the words of a READ, or all that are left. */
static void advance_read(struct qp *qp, struct send *send, bool all) {
    struct qp *peer = peer_of(qp);
    struct memory to, from = {1, {{NULL, send->length}}};
    if (!peer) send->status = IBV_WC_RETRY_EXC_ERR;
    else if (!(from.piece[0].at = reach(peer->base.pd, send->wr.wr.rdma.remote_addr, send->length, send->wr.wr.rdma.rkey, true, IBV_ACCESS_REMOTE_READ)))
        send->status = refuse(peer, IBV_WC_REM_ACCESS_ERR);
    else if (!reach_all(qp->base.pd, send->sge, send->wr.num_sge, IBV_ACCESS_LOCAL_WRITE, &to)) send->status = IBV_WC_LOC_PROT_ERR;
    else {
        uint32_t now = all ? send->units_left : roll(send->units_left + 1);
        while (now--) {
            read_unit(&to, &from, (uintptr_t)from.piece[0].at, send->length, send->units[--send->units_left]);
            if (SET(FAKE_REORDER_UNITS) && roll(16) == 0) sched_yield();
        }
        if (send->units_left) return;
    }
    if (all || send->status != IBV_WC_SUCCESS) send->finished = true;
}
static enum ibv_wc_status start_read(struct qp *qp, struct qp *peer, struct send *send) {
    uint32_t waiting = 0;
    COUNT(reads)++;
    if (reads_until_failure < 0 || (reads_until_failure && --reads_until_failure == 0)) return (enum ibv_wc_status)SET(FAKE_FAIL_STATUS);
    if (!qp->attr.max_rd_atomic) return IBV_WC_LOC_QP_OP_ERR;
    if (!peer) return IBV_WC_RETRY_EXC_ERR;
    for (uint32_t i = qp->done; i != qp->tail; i++) waiting += is_read(&qp->ring[i % qp->cap.max_send_wr]);
    if (waiting > qp->attr.max_rd_atomic) waiting = qp->attr.max_rd_atomic;
    if (!(peer->attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) || waiting > peer->attr.max_dest_rd_atomic || qp->attr.path_mtu > peer->attr.path_mtu)
        return refuse(peer, IBV_WC_REM_INV_REQ_ERR);
    if (send->length && !reach(peer->base.pd, send->wr.wr.rdma.remote_addr, send->length, send->wr.wr.rdma.rkey, true, IBV_ACCESS_REMOTE_READ))
        return refuse(peer, IBV_WC_REM_ACCESS_ERR);
    struct memory to;
    if (!reach_all(qp->base.pd, send->sge, send->wr.num_sge, IBV_ACCESS_LOCAL_WRITE, &to)) return IBV_WC_LOC_PROT_ERR;
    COUNT(bytes) += send->length;
    if (!send->length) { send->finished = true; return IBV_WC_SUCCESS; }
    /* Words from the last to the first: they are taken from the end of the list. */
    uintptr_t source = (uintptr_t)reach(peer->base.pd, send->wr.wr.rdma.remote_addr, send->length, send->wr.wr.rdma.rkey, true, 0);
    send->units_left = (source % 8 + send->length + 7) / 8;
    send->units = must(malloc(send->units_left * sizeof *send->units));
    reads_in_flight++;
    for (uint32_t i = 0; i < send->units_left; i++) {
        uint32_t j = SET(FAKE_REORDER_UNITS) ? roll(i + 1) : i;
        send->units[i] = send->units[j];
        send->units[j] = send->units_left - 1 - i;
    }
    if (!SET(FAKE_REORDER_UNITS)) for (uint32_t i = 0; i < send->units_left; i++) send->units[i] = send->units_left - 1 - i;
    send->polls_left = SET(FAKE_DELAY_READS);
    advance_read(qp, send, send->polls_left <= 0);
    return send->status;
}
/* WRITE and SEND. False: there is no receive yet, and the sender is to wait. */
static bool is_stray; /* it comes from a stranger */
static bool deliver(struct qp *qp, struct qp *peer, struct send *send) {
    bool is_rc = qp->base.qp_type == IBV_QPT_RC, is_ud = qp->base.qp_type == IBV_QPT_UD, solicited = send->wr.send_flags & IBV_SEND_SOLICITED;
    bool is_write = send->wr.opcode == IBV_WR_RDMA_WRITE || send->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    bool takes_receive = !is_write || carries_immediate(send);
    uint32_t header = is_ud ? 40 : 0;
    struct memory from, to;
    struct recv recv;
    if (send->wr.send_flags & IBV_SEND_INLINE) from = (struct memory){1, {{send->inline_data, send->length}}};
    else if (!reach_all(qp->base.pd, send->sge, send->wr.num_sge, 0, &from)) { send->status = IBV_WC_LOC_PROT_ERR; return true; }
    if (send->length > (is_ud ? 128u << active_mtu() : (uint64_t)SET(FAKE_MAX_MESSAGE))) { send->status = IBV_WC_LOC_LEN_ERR; return true; }
    bool is_lost = !peer || (!is_rc && messages_until_drop && --messages_until_drop == 0);
    if (is_ud && peer) {
        uint32_t key = send->wr.wr.ud.remote_qkey;
        is_lost |= peer->attr.qkey != (key >> 31 ? qp->attr.qkey : key);
    }
    if (is_lost || (!is_ud && qp->attr.path_mtu > peer->attr.path_mtu)) {
        if (is_rc) send->status = peer ? refuse(peer, IBV_WC_REM_INV_REQ_ERR) : IBV_WC_RETRY_EXC_ERR;
        else COUNT(drops)++;
        return true;
    }
    if (is_ud && send->length && datagrams_until_stray && --datagrams_until_stray == 0) {
        COUNT(strays)++;
        is_stray = true;
        deliver(qp, peer, send);
        is_stray = false;
    }
    uint8_t *target = NULL;
    if (is_write) {
        if (!(peer->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) { send->status = refuse(peer, IBV_WC_REM_INV_REQ_ERR); return true; }
        target = reach(peer->base.pd, send->wr.wr.rdma.remote_addr, send->length, send->wr.wr.rdma.rkey, true, IBV_ACCESS_REMOTE_WRITE);
        if (send->length && !target) { send->status = refuse(peer, IBV_WC_REM_ACCESS_ERR); return true; }
    }
    if (takes_receive && receives_of(peer)->head == receives_of(peer)->tail) {
        if (is_rc && qp->attr.rnr_retry == 7) { COUNT(rnr_waits) += !qp->waits; return false; }
        if (is_rc) send->status = IBV_WC_RNR_RETRY_EXC_ERR;
        else COUNT(drops)++;
        return true;
    }
    if (takes_receive) next_receive(peer, &recv);
    struct ibv_wc wc = {.byte_len = send->length + header, .opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
        .src_qp = is_ud ? qp->base.qp_num ^ (is_stray ? 1u << 23 : 0) : 0, .slid = lid_of(device_of(qp->base.context), qp->attr.port_num),
        .wc_flags = (carries_immediate(send) ? IBV_WC_WITH_IMM : 0) | (is_ud && send->to.is_global ? IBV_WC_GRH : 0),
        .imm_data = carries_immediate(send) ? send->wr.imm_data : 0};
    if (is_write) to = (struct memory){1, {{target, send->length}}};
    else {
        uint64_t room = length_of(recv.sge, recv.sges);
        if (!reach_all(peer->base.pd, recv.sge, recv.sges, IBV_ACCESS_LOCAL_WRITE, &to)) wc.status = IBV_WC_LOC_PROT_ERR;
        else if (room < (uint64_t)send->length + header) wc.status = IBV_WC_LOC_LEN_ERR;
        if (wc.status != IBV_WC_SUCCESS) {
            wc.byte_len = 0;
            complete_recv(peer, recv.wr_id, wc, true);
            send->status = refuse(peer, wc.status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
            if (!is_rc) enter_error(peer);
            return true;
        }
        if (is_ud && send->to.is_global) {
            struct ibv_grh grh = {.version_tclass_flow = htobe32(6u << 28), .paylen = htobe16(send->length), .next_hdr = 0x1b,
                .hop_limit = send->to.grh.hop_limit, .dgid = send->to.grh.dgid,
                .sgid = device_of(qp->base.context)->ports[send->to.port_num - 1].gids[send->to.grh.sgid_index].gid};
            struct memory head = {1, {{(uint8_t *)&grh, sizeof grh}}};
            copy(&to, 0, &head, 0, sizeof grh);
        }
    }
    copy(&to, is_write ? 0 : header, &from, 0, send->length);
    if (is_stray) {
        uint8_t last;
        struct memory end = {1, {{&last, 1}}};
        copy(&end, 0, &to, header + send->length - 1, 1);
        last ^= 1;
        copy(&to, header + send->length - 1, &end, 0, 1);
    }
    if (!is_write && send->length > 8 && sends_until_lie && --sends_until_lie == 0) {
        uint8_t number = 0;
        struct memory lie = {1, {{&number, 1}}};
        copy(&lie, 0, &to, header + 8, 1);
        number++;
        copy(&to, header + 8, &lie, 0, 1);
    }
    *(is_write ? &COUNT(writes) : &COUNT(sends)) += 1;
    COUNT(bytes) += send->length;
    if (takes_receive) complete_recv(peer, recv.wr_id, wc, solicited);
    bool is_twin = is_rc && !is_write && sends_until_twin && --sends_until_twin == 0;
    return !is_twin || deliver(qp, peer, send);
}
/* Starts what can start, finishes what is due, completes in order. */
static void progress(struct qp *qp, bool is_poll, bool at_once) {
    uint32_t in_flight = 0;
    qp->waits = false;
    for (uint32_t i = qp->done; i != qp->tail && qp->state == IBV_QPS_RTS; i++) {
        struct send *send = &qp->ring[i % qp->cap.max_send_wr];
        if (!send->started) {
            if (is_read(send) && in_flight && in_flight >= qp->attr.max_rd_atomic) break;
            if (i != qp->done && send->wr.send_flags & IBV_SEND_FENCE && in_flight) break;
            if (is_read(send)) send->status = start_read(qp, peer_of(qp), send);
            else {
                bool is_ud = qp->base.qp_type == IBV_QPT_UD;
                struct qp *peer = is_ud ? arrive(qp, &send->to, send->wr.wr.ud.remote_qpn) : peer_of(qp);
                if (!deliver(qp, peer, send)) { qp->waits = true; break; }
                send->finished = true;
            }
            send->started = true;
            if (qp->state != IBV_QPS_RTS) return; /* its own peer refused it */
        } else if (!send->finished && is_poll) advance_read(qp, send, send->polls_left-- <= 0);
        if (at_once && !send->finished && send->status == IBV_WC_SUCCESS) advance_read(qp, send, true);
        if (send->status != IBV_WC_SUCCESS) send->finished = true;
        if (send->finished) stop_read(send);
        else in_flight++;
        if (send->status != IBV_WC_SUCCESS) break;
    }
    while (qp->state == IBV_QPS_RTS && qp->done != qp->tail) {
        struct send *send = &qp->ring[qp->done % qp->cap.max_send_wr];
        if (!send->started || !send->finished) break;
        enum ibv_wc_status status = send->status;
        complete_send(qp, send, status);
        if (status != IBV_WC_SUCCESS && qp->state == IBV_QPS_RTS) enter_error(qp);
    }
}
static int check_send(struct qp *qp, struct ibv_send_wr *wr) {
    enum ibv_qp_type type = qp->base.qp_type;
    uint64_t length = wr->num_sge > 0 && wr->num_sge <= MAX_SGE ? length_of(wr->sg_list, wr->num_sge) : 0;
    if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) return EINVAL;
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge || length > (uint64_t)SET(FAKE_MAX_MESSAGE)) return EINVAL;
    switch (wr->opcode) {
    case IBV_WR_SEND: case IBV_WR_SEND_WITH_IMM: break;
    case IBV_WR_RDMA_WRITE: case IBV_WR_RDMA_WRITE_WITH_IMM: if (type == IBV_QPT_UD) return EINVAL; break;
    case IBV_WR_RDMA_READ: if (type != IBV_QPT_RC || wr->send_flags & IBV_SEND_INLINE) return EINVAL; break;
    default: return EINVAL;
    }
    if (wr->send_flags & IBV_SEND_INLINE && length > qp->cap.max_inline_data) return EINVAL;
    if (type == IBV_QPT_UD && (!wr->wr.ud.ah || wr->wr.ud.ah->pd != qp->base.pd)) return EINVAL;
    if (qp->tail - qp->freed >= qp->cap.max_send_wr) { COUNT(queue_full)++; return ENOMEM; }
    return 0;
}
static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct qp *qp = (struct qp *)base;
    int error = 0;
    pthread_mutex_lock(&lock);
    COUNT(doorbells)++;
    for (long n = 0; wr; wr = wr->next, n++) {
        *bad = wr;
        error = SET(FAKE_SHORT_POST) >= 0 && n >= SET(FAKE_SHORT_POST) ? ENOMEM : check_send(qp, wr);
        if (error) break;
        struct send *send = &qp->ring[qp->tail++ % qp->cap.max_send_wr];
        *send = (struct send){.wr = *wr, .length = wr->num_sge ? (uint32_t)length_of(wr->sg_list, wr->num_sge) : 0};
        if (wr->num_sge) memcpy(send->sge, wr->sg_list, wr->num_sge * sizeof *send->sge);
        if (base->qp_type == IBV_QPT_UD) send->to = ((struct ah *)wr->wr.ud.ah)->attr;
        for (int i = 0, at = 0; wr->send_flags & IBV_SEND_INLINE && i < wr->num_sge; at += wr->sg_list[i++].length)
            memcpy(send->inline_data + at, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
        send->sum = sum_of(qp, send);
        COUNT(wrs)++;
    }
    if (qp->state == IBV_QPS_ERR) enter_error(qp);
    else progress(qp, false, false);
    return failed(error);
}

#ifdef FAKE_SELFTEST
#define CHECK(condition) do { if (!(condition)) { \
    fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); abort(); } } while (0)
#define N(name) fake_count(#name)

struct side { struct ibv_context *context; struct ibv_pd *pd; struct ibv_comp_channel *channel; struct ibv_cq *cq; struct ibv_srq *srq;
              struct ibv_qp *qp; struct ibv_mr *mr; uint64_t words[64] __attribute__((aligned(64))); };
enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };
static uint8_t test_gid = 3, test_rnr = 7, test_dest_reads = 16, test_psn = 5;

static void open_side(struct side *side, int device, enum ibv_qp_type type, int depth, int cqe, bool with_srq) {
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n > device);
    CHECK((side->context = ibv_open_device(list[device])));
    ibv_free_device_list(list);
    CHECK((side->pd = ibv_alloc_pd(side->context)));
    CHECK((side->channel = ibv_create_comp_channel(side->context)));
    CHECK(!fcntl(side->channel->fd, F_SETFL, O_NONBLOCK));
    CHECK((side->cq = ibv_create_cq(side->context, cqe, side, side->channel, 0)));
    CHECK((side->mr = ibv_reg_mr(side->pd, side->words, sizeof side->words, ALL)));
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 8, .max_sge = 1}};
    side->srq = with_srq ? ibv_create_srq(side->pd, &srq) : NULL;
    struct ibv_qp_init_attr init = {.send_cq = side->cq, .recv_cq = side->cq, .srq = side->srq, .qp_type = type,
        .cap = {.max_send_wr = depth, .max_recv_wr = with_srq ? 0 : 8, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 32}};
    CHECK((side->qp = ibv_create_qp(side->pd, &init)));
}
static void close_side(struct side *side) {
    CHECK(ibv_dealloc_pd(side->pd) == EBUSY && ibv_destroy_cq(side->cq) == EBUSY && ibv_destroy_comp_channel(side->channel) == EBUSY);
    CHECK(!side->srq || ibv_destroy_srq(side->srq) == EBUSY);
    CHECK(!ibv_destroy_qp(side->qp) && (!side->srq || !ibv_destroy_srq(side->srq)) && !ibv_destroy_cq(side->cq));
    CHECK(!ibv_destroy_comp_channel(side->channel) && !ibv_dereg_mr(side->mr) && !ibv_dealloc_pd(side->pd) && !ibv_close_device(side->context));
}
static int init_qp(struct side *side) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL, .qkey = 7};
    return ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (side->qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}
static struct ibv_ah_attr address(struct side *from, struct side *to) {
    struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = test_gid, .hop_limit = 64}};
    struct ibv_port_attr port;
    (void)from;
    CHECK(!ibv_query_port(to->context, 1, (struct _compat_ibv_port_attr *)&port));
    ah.dlid = port.lid;
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) ah.is_global = 0;
    else CHECK(!ibv_query_gid(to->context, 1, test_gid, &ah.grh.dgid));
    return ah;
}
static int ready(struct side *side, struct side *peer) {
    bool is_rc = side->qp->qp_type == IBV_QPT_RC, is_ud = side->qp->qp_type == IBV_QPT_UD;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp->qp_num, .rq_psn = 5,
        .max_dest_rd_atomic = test_dest_reads, .min_rnr_timer = 12};
    if (!is_ud) attr.ah_attr = address(side, peer);
    int error = ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | (is_ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
                              | (is_rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
    if (error) return error;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = test_psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = test_rnr, .max_rd_atomic = 16};
    return ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN
                         | (is_rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
}
static void connect_sides(struct side *a, struct side *b) { CHECK(!init_qp(a) && !init_qp(b) && !ready(a, b) && !ready(b, a)); }
static void pair(struct side *a, struct side *b, enum ibv_qp_type type, int depth, int cqe, bool with_srq) {
    open_side(a, 0, type, depth, cqe, false);
    open_side(b, 1, type, depth, cqe, with_srq);
    connect_sides(a, b);
}
/* `count` requests for `words` words each, of which every `every`-th shows. */
static int post_some(struct side *a, struct side *b, enum ibv_wr_opcode opcode, int count, int words, int every, unsigned flags) {
    struct ibv_send_wr wr[32], *bad = NULL;
    struct ibv_sge sge[32];
    for (int i = 0; i < count; i++) {
        sge[i] = (struct ibv_sge){.addr = (uintptr_t)a->words, .length = words * 8, .lkey = a->mr->lkey};
        wr[i] = (struct ibv_send_wr){.wr_id = i, .next = i + 1 < count ? &wr[i + 1] : NULL, .sg_list = &sge[i], .num_sge = 1, .opcode = opcode,
            .send_flags = flags | ((i + 1) % every ? 0 : IBV_SEND_SIGNALED), .imm_data = htobe32(77),
            .wr.rdma = {.remote_addr = (uintptr_t)b->words, .rkey = b->mr->rkey}};
    }
    return ibv_post_send(a->qp, wr, &bad);
}
static int post_receive(struct side *side, uint64_t id, uint32_t length) {
    struct ibv_sge sge = {.addr = (uintptr_t)side->words, .length = length, .lkey = side->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return side->srq ? ibv_post_srq_recv(side->srq, &wr, &bad) : ibv_post_recv(side->qp, &wr, &bad);
}
static struct ibv_wc one(struct side *side) {
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(side->cq, 1, &wc) == 1);
    return wc;
}
static bool none(struct side *side) { struct ibv_wc wc; return ibv_poll_cq(side->cq, 1, &wc) == 0; }
static enum ibv_qp_state state_of(struct side *side) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(side->qp, &attr, IBV_QP_STATE, &init));
    return attr.qp_state;
}
static bool is_readable(int fd) { struct pollfd p = {.fd = fd, .events = POLLIN}; return poll(&p, 1, 0) == 1; }

static void test_reads(void) {
    static struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 16, 32, false);
    for (int i = 0; i < 64; i++) b.words[i] = i * 0x0101010101010101;
    CHECK(!post_some(&a, &b, IBV_WR_RDMA_READ, 4, 64, 4, 0) && one(&a).wr_id == 3 && none(&a) && !memcmp(a.words, b.words, sizeof a.words));
    CHECK(post_some(&a, &b, IBV_WR_RDMA_READ, 17, 1, 17, 0) == ENOMEM && N(queue_full) == 1); /* unsignalled: nothing frees them */
    CHECK(none(&a) && post_some(&a, &b, IBV_WR_RDMA_READ, 1, 1, 1, 0) == ENOMEM);
    close_side(&a), close_side(&b);
    pair(&a, &b, IBV_QPT_RC, 16, 32, false);
    for (int i = 0; i < 10; i++) CHECK(!post_some(&a, &b, IBV_WR_RDMA_READ, 16, 1, 16, 0) && one(&a).wr_id == 15);
    /* an odd place and an odd length, into two pieces */
    struct ibv_sge two[2] = {{(uintptr_t)a.words + 1, 10, a.mr->lkey}, {(uintptr_t)a.words + 100, 21, a.mr->lkey}};
    struct ibv_send_wr wr = {.sg_list = two, .num_sge = 2, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {(uintptr_t)b.words + 5, b.mr->rkey}}, *bad;
    CHECK(!ibv_post_send(a.qp, &wr, &bad) && one(&a).byte_len == 31);
    CHECK(!memcmp((char *)a.words + 1, (char *)b.words + 5, 10) && !memcmp((char *)a.words + 100, (char *)b.words + 15, 21));
    /* delayed and torn, each word whole, in order of posting */
    fake_set("FAKE_DELAY_READS", 3), fake_set("FAKE_REORDER_UNITS", 1);
    memset(a.words, 0xee, sizeof a.words);
    CHECK(!post_some(&a, &b, IBV_WR_RDMA_READ, 2, 64, 1, 0) && none(&a) && none(&a) && none(&a) && one(&a).wr_id == 0 && one(&a).wr_id == 1);
    CHECK(!memcmp(a.words, b.words, sizeof a.words));
    bool is_mixed = false;
    for (int i = 0; i < 20; i++) {
        memset(a.words, 0xee, sizeof a.words);
        CHECK(!post_some(&a, &b, IBV_WR_RDMA_READ, 1, 64, 1, 0));
        for (int w = 1; w < 64; w++) is_mixed |= a.words[w] == b.words[w] && a.words[w - 1] != b.words[w - 1];
        while (none(&a)) {}
    }
    CHECK(is_mixed);
    CHECK(!ibv_req_notify_cq(a.cq, 0) && !is_readable(a.channel->fd));
    CHECK(!post_some(&a, &b, IBV_WR_RDMA_READ, 1, 8, 1, 0) && !is_readable(a.channel->fd) && !ibv_req_notify_cq(a.cq, 0) && is_readable(a.channel->fd));
    struct ibv_cq *cq; void *cq_context;
    CHECK(!ibv_get_cq_event(a.channel, &cq, &cq_context) && cq == a.cq && cq_context == &a && !is_readable(a.channel->fd));
    CHECK(ibv_get_cq_event(a.channel, &cq, &cq_context) == -1 && errno == EAGAIN);
    ibv_ack_cq_events(a.cq, 1);
    CHECK(one(&a).status == IBV_WC_SUCCESS);
    /* in flight when its memory goes: told, and harmless */
    CHECK(!post_some(&a, &b, IBV_WR_RDMA_READ, 1, 8, 1, 0));
    long before = N(misuse);
    struct ibv_mr *own = a.mr;
    a.mr = ibv_reg_mr(a.pd, a.words, sizeof a.words, ALL);
    CHECK(!ibv_dereg_mr(own) && N(misuse) == before + 1);
    while (none(&a)) {}
    fake_set("FAKE_DELAY_READS", 0), fake_set("FAKE_REORDER_UNITS", 0);
    close_side(&a), close_side(&b);
}
static void test_refusals(void) {
    static struct side a, b;
    const struct { int what; enum ibv_wc_status status; } cases[] = {
        {0, IBV_WC_REM_ACCESS_ERR}, {1, IBV_WC_REM_ACCESS_ERR}, {2, IBV_WC_LOC_PROT_ERR}, {3, IBV_WC_REM_INV_REQ_ERR},
        {4, IBV_WC_RETRY_EXC_ERR}, {5, IBV_WC_RETRY_EXC_ERR}, {6, IBV_WC_RESP_TIMEOUT_ERR}, {7, IBV_WC_REM_INV_REQ_ERR},
        {8, IBV_WC_RETRY_EXC_ERR}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_dest_reads = cases[i].what == 7 ? 1 : 16;
        test_psn = cases[i].what == 8 ? 6 : 5;
        pair(&a, &b, IBV_QPT_RC, 16, 32, false);
        CHECK(!post_receive(&a, 90, 64) && !post_receive(&b, 91, 64));
        struct ibv_mr b_mr = *b.mr, a_mr = *a.mr, *b_real = b.mr, *a_real = a.mr;
        struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .qp_state = IBV_QPS_ERR};
        switch (cases[i].what) {
        case 0: b_mr.rkey = b_mr.lkey, b.mr = &b_mr; break;
        case 2: a_mr.lkey = a_mr.rkey, a.mr = &a_mr; break;
        case 3: CHECK(!ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS)); break;
        case 4: fake_set("FAKE_PORT_STATE", IBV_PORT_DOWN); break;
        case 5: CHECK(!ibv_modify_qp(b.qp, &attr, IBV_QP_STATE)); break;
        case 6: fake_set("FAKE_FAIL_STATUS", IBV_WC_RESP_TIMEOUT_ERR), fake_set("FAKE_FAIL_NTH_READ", 1); break;
        }
        if (cases[i].what == 1) { /* one byte too far */
            struct ibv_sge sge = {(uintptr_t)a.words, 8, a.mr->lkey};
            struct ibv_send_wr wr = {.wr_id = 0, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .wr.rdma = {(uintptr_t)b.words + sizeof b.words - 7, b.mr->rkey}}, *bad;
            CHECK(!ibv_post_send(a.qp, &wr, &bad));
        } else CHECK(!post_some(&a, &b, IBV_WR_RDMA_READ, 2, 1, 5, 0)); /* none signalled: errors show all the same */
        struct ibv_wc wc = one(&a);
        CHECK(wc.status == cases[i].status && wc.wr_id == 0 && wc.vendor_err);
        if (cases[i].what != 1) { wc = one(&a); CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 1); }
        wc = one(&a);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 90 && none(&a) && state_of(&a) == IBV_QPS_ERR);
        CHECK(!post_some(&a, &b, IBV_WR_RDMA_READ, 1, 1, 1, 0) && one(&a).status == IBV_WC_WR_FLUSH_ERR);
        fake_set("FAKE_PORT_STATE", IBV_PORT_ACTIVE);
        a.mr = a_real, b.mr = b_real;
        close_side(&a), close_side(&b);
    }
    test_dest_reads = 16, test_psn = 5;
    open_side(&a, 0, IBV_QPT_RC, 16, 32, false), open_side(&b, 1, IBV_QPT_RC, 16, 32, false);
    CHECK(post_some(&a, &b, IBV_WR_RDMA_READ, 1, 1, 1, 0) == EINVAL && ready(&a, &b) == EINVAL && !init_qp(&a) && init_qp(&a) == 0);
    test_gid = 9; CHECK(ready(&a, &b) == EINVAL); test_gid = 3;
    CHECK(!ready(&a, &b) && !post_some(&a, &b, IBV_WR_RDMA_READ, 1, 1, 1, 0) && one(&a).status == IBV_WC_RETRY_EXC_ERR); /* b is not ready */
    CHECK(!ibv_reg_mr(a.pd, (void *)(uintptr_t)0x10000, 4096, ALL) && errno == EFAULT);
    fake_set("FAKE_REG_ERRNO", ENOMEM); CHECK(!ibv_reg_mr(a.pd, a.words, 8, ALL) && errno == ENOMEM); fake_set("FAKE_REG_ERRNO", 0);
    CHECK(!ibv_reg_mr(a.pd, a.words, 8, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    long before = N(misuse);
    CHECK(ibv_close_device(a.context) == EBUSY && N(misuse) == before + 1);
    close_side(&a), close_side(&b);
}
static void test_messages(bool with_srq) {
    static struct side a, b;
    pair(&a, &b, IBV_QPT_RC, 4, 16, with_srq);
    a.words[0] = 0x1234;
    CHECK(!post_some(&a, &b, IBV_WR_SEND_WITH_IMM, 1, 1, 1, IBV_SEND_SOLICITED) && none(&a)); /* waits for a receive */
    CHECK(N(rnr_waits) && !ibv_req_notify_cq(b.cq, 1) && !post_receive(&b, 5, 64) && is_readable(b.channel->fd));
    struct ibv_cq *cq; void *cq_context;
    CHECK(!ibv_get_cq_event(b.channel, &cq, &cq_context));
    ibv_ack_cq_events(cq, 1);
    struct ibv_wc wc = one(&b);
    CHECK(one(&a).status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.opcode == IBV_WC_RECV && wc.byte_len == 8 && wc.imm_data == htobe32(77)
          && wc.wc_flags == IBV_WC_WITH_IMM && wc.qp_num == b.qp->qp_num && b.words[0] == 0x1234);
    a.words[0] = 0x99;
    CHECK(!post_some(&a, &b, IBV_WR_RDMA_WRITE, 1, 1, 1, IBV_SEND_INLINE) && one(&a).opcode == IBV_WC_RDMA_WRITE && b.words[0] == 0x99 && none(&b));
    CHECK(post_some(&a, &b, IBV_WR_RDMA_WRITE, 1, 5, 1, IBV_SEND_INLINE) == EINVAL);
    CHECK(!post_receive(&b, 6, 64) && !post_some(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 1, 1, IBV_SEND_SOLICITED) && one(&a).status == IBV_WC_SUCCESS);
    wc = one(&b);
    CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wr_id == 6 && wc.byte_len == 8);
    CHECK(!is_readable(b.channel->fd)); /* armed once, told once */
    /* the answer passes its message; arming brings what is late */
    fake_set("FAKE_DELAY_SENDS", 3);
    CHECK(!post_receive(&b, 7, 64) && !post_receive(&a, 7, 64) && !post_some(&a, &b, IBV_WR_SEND, 1, 1, 1, 0) && one(&b).wr_id == 7);
    CHECK(!post_some(&b, &a, IBV_WR_SEND, 1, 1, 1, 0) && one(&a).wr_id == 7 && none(&a) && none(&a) && one(&a).opcode == IBV_WC_SEND && none(&a));
    CHECK(!ibv_req_notify_cq(b.cq, 0) && is_readable(b.channel->fd) && one(&b).opcode == IBV_WC_SEND);
    CHECK(!ibv_get_cq_event(b.channel, &cq, &cq_context));
    ibv_ack_cq_events(cq, 1);
    fake_set("FAKE_DELAY_SENDS", 0);
    fake_set("FAKE_SHORT_POST", 1);
    CHECK(post_some(&a, &b, IBV_WR_RDMA_WRITE, 3, 1, 1, 0) == ENOMEM && one(&a).wr_id == 0 && none(&a));
    fake_set("FAKE_SHORT_POST", -1);
    for (int i = 0; i < 8; i++) CHECK(!post_receive(&b, i, 64));
    CHECK(post_receive(&b, 8, 64) == ENOMEM);
    CHECK(!post_some(&a, &b, IBV_WR_SEND, 1, 1, 1, 0) && post_receive(&b, 8, 64) == ENOMEM); /* free when its completion is polled */
    CHECK(one(&a).status == IBV_WC_SUCCESS && one(&b).wr_id == 0 && !post_receive(&b, 8, 64));
    if (with_srq) {
        struct ibv_srq_attr limit = {.srq_limit = 8};
        struct ibv_async_event event;
        CHECK(!ibv_modify_srq(b.srq, &limit, IBV_SRQ_LIMIT) && !is_readable(b.context->async_fd));
        CHECK(!post_some(&a, &b, IBV_WR_SEND, 1, 1, 1, 0) && is_readable(b.context->async_fd) && !ibv_get_async_event(b.context, &event));
        CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == b.srq && one(&b).status == IBV_WC_SUCCESS);
        ibv_ack_async_event(&event);
        one(&a);
    }
    close_side(&a), close_side(&b);
    test_rnr = 3;
    pair(&a, &b, IBV_QPT_RC, 4, 16, with_srq);
    test_rnr = 7;
    CHECK(!post_some(&a, &b, IBV_WR_SEND, 1, 1, 1, 0) && one(&a).status == IBV_WC_RNR_RETRY_EXC_ERR);
    close_side(&a), close_side(&b);
    pair(&a, &b, IBV_QPT_RC, 4, 16, with_srq); /* too long for the receive: both sides break */
    CHECK(!post_receive(&b, 1, 4) && !post_some(&a, &b, IBV_WR_SEND, 1, 1, 1, 0));
    CHECK(one(&a).status == IBV_WC_REM_INV_REQ_ERR && one(&b).status == IBV_WC_LOC_LEN_ERR && state_of(&b) == IBV_QPS_ERR);
    close_side(&a), close_side(&b);
    pair(&a, &b, IBV_QPT_RC, 8, 2, with_srq);
    long before = N(cq_overflows);
    CHECK(!post_some(&a, &b, IBV_WR_RDMA_WRITE, 3, 1, 1, 0) && N(cq_overflows) == before + 1 && state_of(&a) == IBV_QPS_ERR && is_readable(a.context->async_fd));
    close_side(&a), close_side(&b);
}
static void test_unreliable(void) {
    static struct side a, b;
    pair(&a, &b, IBV_QPT_UC, 4, 16, false);
    a.words[0] = 3, b.words[0] = 4;
    CHECK(!post_some(&a, &b, IBV_WR_RDMA_WRITE, 1, 1, 1, 0) && one(&a).status == IBV_WC_SUCCESS && b.words[0] == 3);
    CHECK(post_some(&a, &b, IBV_WR_RDMA_READ, 1, 1, 1, 0) == EINVAL);
    a.words[0] = 5;
    fake_set("FAKE_DROP_NTH", 1);
    long before = N(drops);
    CHECK(!post_some(&a, &b, IBV_WR_RDMA_WRITE, 1, 1, 1, 0) && one(&a).status == IBV_WC_SUCCESS && b.words[0] == 3 && N(drops) == before + 1);
    close_side(&a), close_side(&b);
    pair(&a, &b, IBV_QPT_UD, 4, 16, true);
    struct ibv_ah_attr to = address(&a, &b);
    struct ibv_ah *ah = ibv_create_ah(a.pd, &to);
    struct ibv_sge sge = {(uintptr_t)a.words, 16, a.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .wr.ud = {ah, b.qp->qp_num, 7}}, *bad;
    CHECK(ah && !post_receive(&b, 1, 56) && !ibv_post_send(a.qp, &wr, &bad) && one(&a).status == IBV_WC_SUCCESS);
    struct ibv_wc wc = one(&b);
    CHECK(wc.byte_len == 56 && wc.src_qp == a.qp->qp_num && !memcmp(b.words + 5, a.words, 16));
    bool on_ethernet = to.is_global;
    CHECK(wc.wc_flags == (on_ethernet ? IBV_WC_GRH : 0u) && (!on_ethernet || !memcmp((char *)b.words + 24, to.grh.dgid.raw, 16)));
    before = N(drops);
    long strays = N(strays);
    wr.wr.ud.remote_qkey = 8; /* the wrong key, then no receive */
    CHECK(!post_receive(&b, 2, 56) && !ibv_post_send(a.qp, &wr, &bad) && one(&a).status == IBV_WC_SUCCESS && none(&b) && N(drops) == before + 1);
    wr.wr.ud.remote_qkey = 7;
    CHECK(!ibv_post_send(a.qp, &wr, &bad) && one(&b).wr_id == 2 && !ibv_post_send(a.qp, &wr, &bad) && none(&b) && N(drops) == before + 2);
    /* a stranger's comes before it */
    fake_set("FAKE_STRAY_NTH", 1);
    CHECK(!post_receive(&b, 3, 56) && !post_receive(&b, 4, 56) && !ibv_post_send(a.qp, &wr, &bad) && one(&a).status == IBV_WC_SUCCESS);
    wc = one(&b);
    CHECK(wc.wr_id == 3 && wc.src_qp != a.qp->qp_num);
    wc = one(&b);
    CHECK(wc.wr_id == 4 && wc.src_qp == a.qp->qp_num && !memcmp(b.words + 5, a.words, 16) && N(strays) == strays + 1);
    /* memory, and then an address, that a SEND may still need */
    before = N(misuse);
    CHECK(!ibv_post_send(a.qp, &wr, &bad));
    a.words[1]++;
    CHECK(one(&a).status == IBV_WC_SUCCESS && N(misuse) == before + 1);
    CHECK(!ibv_post_send(a.qp, &wr, &bad) && !ibv_destroy_ah(ah) && N(misuse) == before + 2);
    close_side(&a), close_side(&b);
}
static void test_devices(void) {
    struct ibv_gid_entry gids[64];
    struct ibv_device_attr attr;
    struct { struct ibv_port_attr attr; uint8_t guard; } port = {.guard = 0x55};
    static struct side a;
    setenv("FAKE_GIDS", "0=v1:fe80::1 3=v2:192.0.2.1@7 1.2/5=v2:2001:db8::1", 1);
    setenv("FAKE_PORTS", "2", 1), setenv("FAKE_PORT_STATE", "down,active", 1), setenv("FAKE_MTU", "4096", 1);
    open_side(&a, 1, IBV_QPT_RC, 4, 4, false);
    CHECK(!ibv_query_device(a.context, &attr) && attr.phys_port_cnt == 2 && attr.max_qp_rd_atom == 16);
    port.attr.port_cap_flags2 = 0x7777;
    CHECK(!ibv_query_port(a.context, 1, (struct _compat_ibv_port_attr *)&port.attr) && port.attr.state == IBV_PORT_DOWN && port.attr.port_cap_flags2 == 0x7777);
    CHECK(!ibv_query_port(a.context, 2, (struct _compat_ibv_port_attr *)&port.attr) && port.attr.state == IBV_PORT_ACTIVE
          && port.attr.active_mtu == IBV_MTU_4096 && port.attr.link_layer == IBV_LINK_LAYER_ETHERNET);
    CHECK(ibv_query_port(a.context, 3, (struct _compat_ibv_port_attr *)&port.attr) == EINVAL);
    CHECK(_ibv_query_gid_table(a.context, gids, 64, 0, sizeof *gids) == 5 && gids[1].gid_index == 3 && gids[1].ndev_ifindex == 7
          && gids[1].gid_type == IBV_GID_TYPE_ROCE_V2 && gids[1].gid.raw[10] == 0xff && gids[1].gid.raw[12] == 192);
    CHECK(gids[4].port_num == 2 && gids[4].gid_index == 5 && gids[4].gid.raw[1] == 1);
    CHECK(_ibv_query_gid_table(a.context, gids, 4, 0, sizeof *gids) == -EINVAL && _ibv_query_gid_ex(a.context, 1, 1, gids, 0, sizeof *gids) == ENODATA);
    close_side(&a);
    unsetenv("FAKE_GIDS"), unsetenv("FAKE_PORTS"), unsetenv("FAKE_PORT_STATE"), unsetenv("FAKE_MTU");
    fake_set("FAKE_PORTS", 1), fake_set("FAKE_MTU", 1024), fake_set("FAKE_PORT_STATE", 4);
    fake_set("FAKE_DEVICES", -ENOSYS);
    CHECK(!ibv_get_device_list(NULL) && errno == ENOSYS && fake_set("FAKE_NONSENSE", 1) == -1 && fake_count("nonsense") == -1);
    fake_set("FAKE_DEVICES", 2);
}
/* One thread writes, another waits on its channel for what a third one sends it; READs see whole words. */
static struct side writer, reader;
static int stop;
static void *write_words(void *unused) {
    for (uint64_t n = 1; !__atomic_load_n(&stop, __ATOMIC_RELAXED); n++)
        for (int i = 0; i < 64; i++) __atomic_store_n(&writer.words[i], n * 0x100000001, __ATOMIC_RELAXED);
    return unused;
}
static void *receive_words(void *unused) {
    for (int left = 200; left;) {
        struct ibv_wc wc;
        struct ibv_cq *cq; void *cq_context;
        CHECK(!ibv_req_notify_cq(writer.cq, 0));
        while (ibv_poll_cq(writer.cq, 1, &wc) == 1) { CHECK(wc.status == IBV_WC_SUCCESS); left--; }
        struct pollfd p = {.fd = writer.channel->fd, .events = POLLIN};
        if (left && poll(&p, 1, 10000) == 1) { CHECK(!ibv_get_cq_event(writer.channel, &cq, &cq_context)); ibv_ack_cq_events(cq, 1); }
    }
    return unused;
}
static void test_threads(void) {
    pthread_t threads[2];
    fake_set("FAKE_DELAY_READS", 4), fake_set("FAKE_REORDER_UNITS", 1);
    pair(&reader, &writer, IBV_QPT_RC, 16, 64, true);
    struct ibv_mr *inbox = writer.mr;
    static uint64_t messages[8];
    writer.mr = ibv_reg_mr(writer.pd, messages, sizeof messages, ALL);
    CHECK(!pthread_create(&threads[0], NULL, write_words, NULL) && !pthread_create(&threads[1], NULL, receive_words, NULL));
    for (int i = 0; i < 200; i++) {
        struct ibv_sge sge = {(uintptr_t)messages, sizeof messages, writer.mr->lkey};
        struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
        while (ibv_post_srq_recv(writer.srq, &wr, &bad)) sched_yield();
        CHECK(!post_some(&reader, &writer, IBV_WR_SEND, 1, 1, 1, 0));
        while (none(&reader)) {}
    }
    struct ibv_mr *outbox = writer.mr;
    writer.mr = inbox;
    long torn = 0;
    for (time_t start = time(NULL); time(NULL) < start + 3 || (!torn && time(NULL) < start + 60);) {
        CHECK(!post_some(&reader, &writer, IBV_WR_RDMA_READ, 1, 64, 1, 0));
        while (none(&reader)) sched_yield();
        for (int w = 0; w < 64; w++) {
            CHECK(reader.words[w] >> 32 == (reader.words[w] & 0xffffffff)); /* no word is torn */
            torn += reader.words[w] != reader.words[0];
        }
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(threads[0], NULL), pthread_join(threads[1], NULL);
    CHECK(torn > 0); /* but READs are */
    CHECK(!ibv_dereg_mr(outbox));
    fake_set("FAKE_DELAY_READS", 0), fake_set("FAKE_REORDER_UNITS", 0);
    close_side(&reader), close_side(&writer);
}
int main(void) {
    fake_set("FAKE_DEVICES", 2);
    test_devices(); /* while the environment still counts */
    for (int link = IBV_LINK_LAYER_ETHERNET; link >= IBV_LINK_LAYER_INFINIBAND; link--) {
        fake_set("FAKE_LINK_LAYER", link);
        if (link == IBV_LINK_LAYER_ETHERNET) test_reads(), test_refusals();
        test_messages(false), test_messages(true), test_unreliable();
    }
    fake_set("FAKE_LINK_LAYER", IBV_LINK_LAYER_ETHERNET);
    test_threads();
    CHECK(N(live) == 0 && N(live_lists) == 0 && N(reads) > 200);
    puts("fake_ibverbs: all passed");
    return 0;
}
#endif
