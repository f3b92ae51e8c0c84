/*
 * One launch: its blocks one after the other, the threads of a block as fibers that run until they
 * wait for each other.
 *
 * What it looks for: threads that wait in different places or for ever, memory that nobody has
 * written (shared memory starts as NaN), bytes written behind the shared memory that was asked for,
 * and, by changing the order of threads from block to block, results that depend on that order.
 */
#include "block.h"
#include "fibers.h"

#include <mutex>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

/* Dynamic shared memory, under all names that kernels give it. */
__thread float4 hti_shared[HOST_SHARED / sizeof(float4)] __align__(1024);
#define HOST_NAME(name)                                                              \
    ".globl " #name "\n.hidden " #name "\n.type " #name ", @tls_object\n.set " #name \
    ", hti_shared\n"
/* also in the namespaces of element.h */
#define HOST_NAMES(length, name)                  \
    HOST_NAME(_ZN12bf16_kernels##length##name##E) \
    HOST_NAME(_ZN11f16_kernels##length##name##E)
asm(HOST_NAMES(12, shared_bytes) HOST_NAMES(4, sums) HOST_NAMES(11, column_sums)
        HOST_NAMES(10, hti_shared));

namespace host {

enum { MOST_THREADS = 1024, WARPS = MOST_THREADS / 32, MEETINGS = 8, STACK = 256 << 10 };
enum { POISON = 0xff, MOST_COPIES = 256, BASE = 1 << 24 };

struct copy {
    uint32_t to;
    const void *from;
    int bytes, there, group;
};

/* Lanes of a warp that wait for each other, as often as the same ones do. */
struct meeting {
    uint32_t mask, arrived;
    int turn; /* which of two sets of slots: the other may still be read */
    const char *what;
    line at;
    void (*join)(slot *all, uint32_t mask);
    slot slots[2][32];
};

struct thread {
    fiber f;
    int number, done;
    int groups, copies; /* cp.async: groups closed so far, copies under way */
    copy pending[MOST_COPIES];
};

static struct {
    thread threads[MOST_THREADS], *now;
    fiber main;
    meeting meetings[WARPS][MEETINGS];
    int queue[MOST_THREADS], head, waiting; /* a ring of those that can run */
    int count, alive, arrived, votes, vote; /* of the block's barrier */
    line at;
    uint32_t dice;
    int sleeping[MOST_THREADS]; /* at the block's barrier */
    void (*call)(const void *, const void *);
    const void *kernel, *args;
} b;

void fault(const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (b.now) {
        fprintf(stderr, "emulated device: block (%u, %u, %u), thread %d of %d: %s\n", blockIdx.x,
                blockIdx.y, blockIdx.z, b.now->number, b.count, text);
    } else {
        fprintf(stderr, "emulated device: %s\n", text);
    }
    abort();
}

/* ---- who runs ---- */

static void wake(int number) { b.queue[(b.head + b.waiting++) % MOST_THREADS] = number; }

static thread *next_thread() {
    if (b.waiting == 0) return NULL;
    thread *t = &b.threads[b.queue[b.head]];
    b.head = (b.head + 1) % MOST_THREADS, b.waiting--;
    return t;
}

static void set_now(thread *t) {
    b.now = t;
    if (t) threadIdx = {(unsigned)t->number, 0, 0};
}

static const char *short_name(const char *file) {
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

[[noreturn]] static void fault_stuck() {
    for (int w = 0; w < WARPS; w++)
        for (int m = 0; m < MEETINGS; m++) {
            meeting &k = b.meetings[w][m];
            if (!k.arrived) continue;
            fault("waits for ever: lanes %08x of %08x of warp %d are in %s, %s:%d, and %d of %d "
                  "threads in a barrier of the block, %s:%d",
                  k.arrived, k.mask, w, k.what, short_name(k.at.file), k.at.number, b.arrived,
                  b.alive, b.arrived ? short_name(b.at.file) : "none", b.at.number);
        }
    fault("waits for ever: %d of %d threads are in a barrier, %s:%d", b.arrived, b.alive,
          b.arrived ? short_name(b.at.file) : "none", b.at.number);
}

/* The thread that runs waits until it is woken. */
static void sleep_here() {
    thread *me = b.now, *t = next_thread();
    if (!t) fault_stuck();
    if (t == me) return;
    set_now(t);
    fiber_switch(&me->f, &t->f);
}

static uint32_t roll() {
    b.dice = b.dice * 1664525u + 1013904223u;
    return b.dice >> 8;
}

/* 0 ... count - 1 upwards, downwards or mixed. */
static void make_order(int *order, int count) {
    int kind = (int)(roll() % 3);
    for (int i = 0; i < count; i++) order[i] = kind == 1 ? count - 1 - i : i;
    for (int i = count - 1; kind == 2 && i > 0; i--) {
        int j = (int)(roll() % (unsigned)(i + 1)), x = order[i];
        order[i] = order[j], order[j] = x;
    }
}

/* ---- the block's barrier ---- */

static void open_barrier(int but) {
    int order[MOST_THREADS];
    b.vote = b.votes, b.votes = 0, b.arrived = 0;
    make_order(order, b.count);
    for (int i = 0; i < b.count; i++) {
        int t = order[i];
        if (t == but || !b.sleeping[t]) continue;
        b.sleeping[t] = 0;
        wake(t);
    }
}

int all_threads_or(int value, line at) {
    if (b.arrived == 0) b.at = at;
    if (b.at.number != at.number || strcmp(b.at.file, at.file) != 0)
        fault("is at the barrier %s:%d while others are at %s:%d", short_name(at.file), at.number,
              short_name(b.at.file), b.at.number);
    b.votes |= value != 0;
    if (++b.arrived == b.alive) {
        open_barrier(b.now->number);
    } else {
        b.sleeping[b.now->number] = 1;
        sleep_here();
    }
    return b.vote; /* nobody comes to the next barrier's end before all have read it */
}

/* ---- meetings of a warp ---- */

int lane() { return b.now->number % 32; }

static uint32_t live_lanes(int warp) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) {
        int t = 32 * warp + i;
        bits |= (t < b.count && !b.threads[t].done ? 1u : 0u) << i;
    }
    return bits;
}

static meeting *find_meeting(int warp, uint32_t mask, const char *what, line at) {
    meeting *unused = NULL;
    for (int i = 0; i < MEETINGS; i++) {
        meeting *m = &b.meetings[warp][i];
        if (m->arrived && m->mask != mask && m->mask & mask)
            fault("waits in %s, %s:%d, for lanes %08x while lanes %08x wait in %s, %s:%d", what,
                  short_name(at.file), at.number, mask, m->arrived, m->what, short_name(m->at.file),
                  m->at.number);
        if (m->mask == mask) return m;
        if (m->mask == 0 && !unused) unused = m;
    }
    if (!unused) fault("uses more than %d sets of lanes", MEETINGS);
    unused->mask = mask;
    return unused;
}

static void end_meeting(meeting *m, int warp, int but) {
    int order[32];
    if (m->join) m->join(m->slots[m->turn], m->arrived);
    make_order(order, 32);
    for (int i = 0; i < 32; i++) {
        int t = 32 * warp + order[i];
        if (t != but && m->arrived >> order[i] & 1) wake(t);
    }
    m->arrived = 0, m->turn ^= 1;
}

slot *meet(const char *what, uint32_t mask, const slot &mine, void (*join)(slot *, uint32_t),
           line at) {
    thread *me = b.now;
    int warp = me->number / 32, my = me->number % 32;
    if (!(mask >> my & 1)) fault("is not in its own mask %08x of %s", mask, what);
    meeting *m = find_meeting(warp, mask, what, at);
    slot *all = m->slots[m->turn];
    if (!m->arrived) {
        m->what = what, m->at = at, m->join = join;
        memset(all, POISON, 32 * sizeof(slot));
    } else if (strcmp(m->what, what) != 0 || m->at.number != at.number ||
               strcmp(m->at.file, at.file) != 0) {
        fault("is in %s, %s:%d, while lanes %08x of its warp are in %s, %s:%d", what,
              short_name(at.file), at.number, m->arrived, m->what, short_name(m->at.file),
              m->at.number);
    }
    all[my] = mine;
    m->arrived |= 1u << my;
    if ((mask & live_lanes(warp) & ~m->arrived) == 0) {
        end_meeting(m, warp, me->number);
    } else {
        sleep_here();
    }
    return &all[my];
}

/* ---- shared memory ---- */

static size_t shared_size;

uint32_t shared_address(const void *p) {
    const char *at = (const char *)p, *first = (const char *)hti_shared;
    if (at < first || at >= first + HOST_SHARED)
        fault("takes the shared address of something that is not in dynamic shared memory");
    return (uint32_t)(BASE + (at - first));
}

void *shared_at(uint32_t address, size_t bytes, size_t align) {
    uint32_t at = address - BASE;
    if (address < BASE || at + bytes > shared_size || at % align)
        fault("reads or writes %zu bytes at shared address %u; the block has %zu bytes", bytes, at,
              shared_size);
    return (char *)hti_shared + at;
}

/* The end of what is looked at behind the block's own bytes. */
static size_t behind(size_t bytes) {
    size_t most = HOST_SHARED;
    return bytes + 4096 < most ? bytes + 4096 : most;
}

static void poison_shared(size_t bytes) {
#ifdef HOST_ASAN
    __asan_unpoison_memory_region(hti_shared, HOST_SHARED);
#endif
    memset(hti_shared, POISON, behind(bytes));
#ifdef HOST_ASAN
    __asan_poison_memory_region((char *)hti_shared + bytes, HOST_SHARED - bytes);
#endif
    shared_size = bytes;
}

/* What lies behind is as it was. */
static void check_shared() {
#ifndef HOST_ASAN
    size_t end = behind(shared_size);
    for (size_t i = shared_size; i < end; i++)
        if (((unsigned char *)hti_shared)[i] != POISON)
            fault("byte %zu of shared memory was written; the block has %zu", i, shared_size);
#endif
}

/* ---- cp.async ---- */

void copy_async(uint32_t to, const void *from, int bytes, int there) {
    thread *t = b.now;
    if (t->copies == MOST_COPIES) fault("has more than %d copies under way", MOST_COPIES);
    t->pending[t->copies++] = {to, from, bytes, there, t->groups};
}

void copies_commit() { b.now->groups++; }

void copies_wait(int groups_left) {
    thread *t = b.now;
    int kept = 0;
    for (int i = 0; i < t->copies; i++) {
        copy c = t->pending[i];
        if (c.group >= t->groups - groups_left) {
            t->pending[kept++] = c;
            continue;
        }
        char *to = (char *)shared_at(c.to, (size_t)c.bytes, (size_t)c.bytes);
        if (c.there && (uintptr_t)c.from % (uintptr_t)c.bytes)
            fault("copies %d bytes from an address that is no multiple of it", c.bytes);
        if (c.there) memcpy(to, c.from, (size_t)c.bytes);
        if (!c.there) memset(to, 0, (size_t)c.bytes);
    }
    t->copies = kept;
}

/* ---- a block from beginning to end ---- */

__attribute__((no_sanitize("address"))) static void run_thread() {
#ifdef HOST_ASAN
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    for (;;) {
        thread *me = b.now;
        b.call(b.kernel, b.args);
        me->done = 1;
        b.alive--;
        if (b.alive > 0 && b.arrived == b.alive) open_barrier(-1);
        int warp = me->number / 32;
        for (int i = 0; i < MEETINGS; i++) { /* nobody waits for a thread that has ended */
            meeting *m = &b.meetings[warp][i];
            if (m->arrived && (m->mask & live_lanes(warp) & ~m->arrived) == 0)
                end_meeting(m, warp, -1);
        }
        thread *t = next_thread();
        if (!t && b.alive > 0) fault_stuck();
        set_now(t);
        fiber_switch(&me->f, t ? &t->f : &b.main);
    }
}

static void make_stacks(int count) {
    for (int i = 0; i < count; i++) {
        fiber &f = b.threads[i].f;
        if (f.stack) continue;
        char *at = (char *)mmap(NULL, STACK + 4096, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED || mprotect(at, 4096, PROT_NONE) != 0)
            fault("no memory for the stacks of %d threads", count);
        f.stack = at + 4096, f.bytes = STACK;
        fiber_set(&f, run_thread);
    }
}

static void run_block() {
    int order[MOST_THREADS];
    make_order(order, b.count);
    memset(b.meetings, 0, sizeof b.meetings[0] * (size_t)((b.count + 31) / 32));
    b.alive = b.count, b.arrived = b.votes = b.head = b.waiting = 0;
    for (int i = 0; i < b.count; i++) {
        thread &t = b.threads[i];
        t.number = i, t.done = t.groups = t.copies = 0;
        wake(order[i]);
    }
    set_now(next_thread());
    fiber_switch(&b.main, &b.now->f);
    b.now = NULL;
    check_shared();
}

void run_launch(const launch &l) {
    static std::mutex one;
    static uint32_t number;
    static thread_local int inside;
    if (inside) fault("a launch before this one never came to its end");
    std::lock_guard<std::mutex> lock(one);
    inside = 1;
    blockDim = l.threads, gridDim = l.grid;
    b.count = (int)l.threads.x;
    b.call = l.call, b.kernel = l.kernel, b.args = l.args;
    b.dice = ++number * 2654435761u;
    make_stacks(b.count);
#ifdef HOST_ASAN
    pthread_attr_t about;
    void *bottom;
    pthread_getattr_np(pthread_self(), &about);
    pthread_attr_getstack(&about, &bottom, &b.main.bytes);
    pthread_attr_destroy(&about);
    b.main.stack = (char *)bottom;
#endif
    uint64_t count = (uint64_t)l.grid.x * l.grid.y * l.grid.z;
    int backwards = (int)(roll() % 2); /* blocks come in no order */
    for (uint64_t i = 0; i < count; i++) {
        uint64_t k = backwards ? count - 1 - i : i, yz = k / l.grid.x;
        blockIdx.x = (unsigned)(k % l.grid.x);
        blockIdx.y = (unsigned)(yz % l.grid.y), blockIdx.z = (unsigned)(yz / l.grid.y);
        poison_shared(l.shared);
        run_block();
    }
    inside = 0;
}

} // namespace host
