/*
 * For how long busy threads stand still.
 *
 *   bench_stops THREADS      two threads run f0 = many_sites (50 call sites), the others sleep in the kernel
 *
 * Runs until standard input is at its end, then prints one line for each time that a busy thread did not run:
 *   gap THREAD BEGAN LASTED WAITED
 * all in nanoseconds: when (CLOCK_MONOTONIC), for how long, and for which part of that it was ready and waited for a processor.
 */
#include "work.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>

enum { BUSY = 2, SHORTEST = 20000, MOST_GAPS = 1 << 18, OPS_BETWEEN = 256 };

struct gap {
    uint64_t began, lasted, waited;
};

static struct gap gaps[BUSY][MOST_GAPS];
static volatile uint64_t counts[BUSY];
static int ended;
static int empty_pipe[2];
static pthread_barrier_t asleep;

FUNCTION uint64_t leaf(uint64_t key)
{
    return mix(key);
}

#define TEN(key)                                                                              \
    (leaf(key) + leaf(key + 1) + leaf(key + 2) + leaf(key + 3) + leaf(key + 4) + leaf(key + 5) + \
     leaf(key + 6) + leaf(key + 7) + leaf(key + 8) + leaf(key + 9))

FUNCTION uint64_t many_sites(uint64_t key)
{
    return TEN(key) + TEN(key + 10) + TEN(key + 20) + TEN(key + 30) + TEN(key + 40);
}

/* For how long this thread has waited for a processor (the second number of its schedstat). */
static uint64_t waited(int schedstat)
{
    char text[96];
    ssize_t len = pread(schedstat, text, sizeof text - 1, 0);
    if (len <= 0)
        return 0;
    text[len] = 0;
    char *second = strchr(text, ' ');
    return second ? strtoull(second, NULL, 10) : 0;
}

static uint64_t work(unsigned thread)
{
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
    uint64_t sum = 0, wait = waited(schedstat), last = clock_ns(CLOCK_MONOTONIC);
    for (uint64_t key = 0;; key++) {
        sum += many_sites(key);
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (now - last > SHORTEST) {
            uint64_t all = waited(schedstat), count = counts[thread];
            if (count < MOST_GAPS) {
                gaps[thread][count] = (struct gap){last, now - last, all - wait};
                counts[thread] = count + 1;
            }
            wait = all;
            now = clock_ns(CLOCK_MONOTONIC);
        } else if (key % OPS_BETWEEN == 0) {
            wait = waited(schedstat);
            if (thread == 0 && stdin_closed())
                __atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
            if (__atomic_load_n(&ended, __ATOMIC_RELAXED))
                return sum;
            now = clock_ns(CLOCK_MONOTONIC);
        }
        last = now;
    }
}

static void *busy(void *thread)
{
    return (void *)work((unsigned)(uintptr_t)thread);
}

static void *sleeper(void *number)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    char byte;
    struct epoll_event event;
    struct timespec hour = {.tv_sec = 3600, .tv_nsec = 0};
    pthread_barrier_wait(&asleep);
    switch ((uintptr_t)number % 4) {
    case 0:
        pthread_mutex_lock(&mutex);
        pthread_cond_wait(&never, &mutex);
        break;
    case 1:
        return (void *)read(empty_pipe[0], &byte, 1);
    case 2:
        epoll_wait(epoll_create1(0), &event, 1, -1);
        break;
    default:
        nanosleep(&hour, NULL);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    unsigned long threads = argc > 1 ? strtoul(argv[1], NULL, 10) : BUSY;
    unsigned long sleepers = threads > BUSY ? threads - BUSY : 0;
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_barrier_init(&asleep, NULL, (unsigned)sleepers + 1);
    if (pipe(empty_pipe) != 0)
        return 1;
    for (unsigned long number = 0; number < sleepers; number++)
        if (pthread_create(&thread, &small, sleeper, (void *)number) != 0)
            return 1;
    pthread_barrier_wait(&asleep);
    if (pthread_create(&thread, NULL, busy, (void *)1) != 0)
        return 1;
    say_ready();
    uint64_t sum = work(0);
    void *other;
    pthread_join(thread, &other);
    for (unsigned number = 0; number < BUSY; number++)
        for (uint64_t gap = 0; gap < counts[number]; gap++)
            printf("gap %u %llu %llu %llu\n", number, (unsigned long long)gaps[number][gap].began,
                   (unsigned long long)gaps[number][gap].lasted, (unsigned long long)gaps[number][gap].waited);
    fflush(stdout);
    _exit(sum + (uint64_t)other == 1);
}
