/*
 * What measuring costs: the same op in three copies, run in turn in short slices. "bare" is never
 * measured; "probed" is what a tool attaches to; "floor" holds the least that a measurement can be,
 * written into the program: two reads of the time stamp counter around every call, each when all that was
 * read from memory before has come, count, sum, maximum and a bucket of the logarithm.
 *
 *   bench_calls SCENE THREADS
 *
 * f0 = probed_SCENE. Runs until standard input is at its end; each slice prints
 *   <copy> <nanoseconds of CPU time per op> <nanoseconds of wall-clock time per op> <ops>
 */
#include "work.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { MOST_THREADS = 64, SLICE_US = 3000, BYTES = 4096 };

struct statistics {
    uint64_t count, sum, max, buckets[64];
};

static __thread struct statistics statistics[8];

INLINE void account(int slot, uint64_t latency)
{
    struct statistics *of = &statistics[slot];
    of->count++;
    of->sum += latency;
    if (latency > of->max)
        of->max = latency;
    of->buckets[63 - __builtin_clzll(latency | 1)]++;
}

/* Without the fence a call's time may seem to be that of what comes after it. */
INLINE uint64_t ordered_cycles(void)
{
    __asm__ volatile("lfence" ::: "memory");
    return cycles();
}

#define UNMEASURED(slot, call) (call)
#define MEASURED(slot, call)                  \
    ({                                        \
        uint64_t start_##slot = ordered_cycles(); \
        __typeof__(call) result = (call);     \
        account(slot, ordered_cycles() - start_##slot); \
        result;                               \
    })

typedef uint64_t leaf_function(uint64_t);

#define LEAF(name, constant)             \
    FUNCTION uint64_t name(uint64_t key) \
    {                                    \
        __asm__ volatile("");            \
        return key + (constant);         \
    }

LEAF(leaf_a, 3)
LEAF(leaf_b, 5)
LEAF(leaf_c, 7)

static leaf_function *volatile leaves[] = {leaf_a, leaf_b, leaf_c};
static __thread unsigned seed;
static __thread char buffer[BYTES];
static int cached;

/* Some 100 microseconds that do not look at a clock: a measurement that disturbs them makes them longer. */
FUNCTION uint64_t long_work(uint64_t key)
{
    for (int i = 0; i < 60000; i++)
        key = mix(key + 1);
    return key;
}

/* Some 100 ns at the bottom of the deep path, so that a descent by latency arrives there. */
INLINE uint64_t some_work(uint64_t key)
{
    for (int i = 0; i < 48; i++)
        key = mix(key + 1);
    return key;
}

#define COPY(copy, CALL)                                                             \
    FUNCTION uint64_t copy##_direct(uint64_t key)                                    \
    {                                                                                \
        return CALL(1, leaf_a(key)) + CALL(2, leaf_b(key)) + CALL(3, leaf_c(key));   \
    }                                                                                \
    FUNCTION uint64_t copy##_level5(uint64_t key) { return some_work(key); }         \
    FUNCTION uint64_t copy##_level4(uint64_t key) { return CALL(5, copy##_level5(key)) + 1; } \
    FUNCTION uint64_t copy##_level3(uint64_t key) { return CALL(4, copy##_level4(key)) + 1; } \
    FUNCTION uint64_t copy##_level2(uint64_t key) { return CALL(3, copy##_level3(key)) + 1; } \
    FUNCTION uint64_t copy##_level1(uint64_t key) { return CALL(2, copy##_level2(key)) + 1; } \
    FUNCTION uint64_t copy##_deep(uint64_t key) { return CALL(1, copy##_level1(key)) + 1; }   \
    FUNCTION uint64_t copy##_indirect(uint64_t key)                                  \
    {                                                                                \
        return CALL(1, leaves[0](key)) + CALL(2, leaves[1](key)) + CALL(3, leaves[2](key)); \
    }                                                                                \
    FUNCTION uint64_t copy##_plt(uint64_t key)                                       \
    {                                                                                \
        uint64_t a = (uint64_t)CALL(1, rand_r(&seed));                               \
        uint64_t b = (uint64_t)CALL(2, rand_r(&seed));                               \
        return key + a + b + (uint64_t)CALL(3, rand_r(&seed));                       \
    }                                                                                \
    FUNCTION uint64_t copy##_stat(uint64_t key)                                      \
    {                                                                                \
        struct stat status;                                                          \
        return key + (CALL(1, stat("/", &status)) == 0);                             \
    }                                                                                \
    FUNCTION uint64_t copy##_pread(uint64_t key)                                     \
    {                                                                                \
        return key + (uint64_t)CALL(1, pread(cached, buffer, BYTES, 0));             \
    }                                                                                \
    FUNCTION uint64_t copy##_long(uint64_t key) { return CALL(1, long_work(key)) + 1; } \
    LOOP(copy, direct, CALL)                                                         \
    LOOP(copy, deep, CALL)                                                           \
    LOOP(copy, indirect, CALL)                                                       \
    LOOP(copy, plt, CALL)                                                            \
    LOOP(copy, stat, CALL)                                                           \
    LOOP(copy, pread, CALL)                                                          \
    LOOP(copy, long, CALL)

#define LOOP(copy, scene, CALL)                                     \
    FUNCTION uint64_t copy##_##scene##_ops(uint64_t ops)            \
    {                                                               \
        uint64_t sum = 0;                                           \
        for (uint64_t i = 0; i < ops; i++)                          \
            sum += CALL(0, copy##_##scene(i));                      \
        return sum;                                                 \
    }

COPY(bare, UNMEASURED)
COPY(probed, UNMEASURED)
COPY(floor, MEASURED)

enum { COPIES = 3 };
static const char *const copies[COPIES] = {"bare", "probed", "floor"};

#define SCENE(name, batch) {#name, batch, {bare_##name##_ops, probed_##name##_ops, floor_##name##_ops}}

static const struct scene {
    const char *name;
    uint64_t batch;
    uint64_t (*ops[COPIES])(uint64_t);
} scenes[] = {
    SCENE(direct, 64), SCENE(deep, 64),  SCENE(indirect, 64), SCENE(plt, 64),
    SCENE(stat, 16),   SCENE(pread, 16), SCENE(long, 2),
};

static const struct scene *scene;
static volatile int copy, ended;
static pthread_barrier_t begin, end;
static struct result {
    uint64_t ops, cpu, wall, sum;
} results[MOST_THREADS];

static uint64_t nanoseconds(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void slice(struct result *result)
{
    uint64_t ops = 0, cpu = nanoseconds(CLOCK_THREAD_CPUTIME_ID), wall = nanoseconds(CLOCK_MONOTONIC);
    uint64_t start = cycles();
    while (cycles() - start < SLICE_US * CYCLES_PER_US) {
        result->sum += scene->ops[copy](scene->batch);
        ops += scene->batch;
    }
    result->ops = ops;
    result->wall = nanoseconds(CLOCK_MONOTONIC) - wall;
    result->cpu = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
}

static void *worker(void *result)
{
    for (;;) {
        pthread_barrier_wait(&begin);
        if (ended)
            return NULL;
        slice(result);
        pthread_barrier_wait(&end);
    }
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (argc > 1 && strcmp(argv[1], scenes[i].name) == 0)
            scene = &scenes[i];
    if (scene == NULL || threads == 0 || threads > MOST_THREADS)
        return 2;
    cached = memfd_create("cached", 0);
    if (cached < 0 || write(cached, buffer, BYTES) != BYTES)
        return 3;
    pthread_barrier_init(&begin, NULL, threads);
    pthread_barrier_init(&end, NULL, threads);
    for (unsigned i = 1; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, &results[i]) != 0)
            return 4;
    }
    for (;; copy = (copy + 1) % COPIES) {
        ended = stdin_closed();
        pthread_barrier_wait(&begin);
        if (ended)
            return 0;
        slice(&results[0]);
        pthread_barrier_wait(&end);
        struct result all = {0};
        for (unsigned i = 0; i < threads; i++) {
            all.ops += results[i].ops;
            all.cpu += results[i].cpu;
            all.wall += results[i].wall;
        }
        printf("%s %.3f %.3f %llu\n", copies[copy], (double)all.cpu / (double)all.ops,
               (double)all.wall / (double)all.ops, (unsigned long long)all.ops);
        fflush(stdout);
    }
}
