/*
 * Four threads that run f0 at once. The slow ops sleep, so that two cores are enough for all.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> compute                              function
 *     wrong: serve; serve -> wait_for_disk -> … -> clock_nanosleep
 * slow peak (1 of 5 ops, ~5 ms):    serve -> wait_for_disk -> … -> clock_nanosleep   syscall
 *     wrong: serve; serve -> wait_for_disk; serve -> compute
 */
#include "work.h"

#include <pthread.h>

enum { THREADS = 4 };

static struct run run;
static volatile int stopped;

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t wait_for_disk(uint64_t key)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = brisk ? 50000 : 5000000};
    nanosleep(&time, NULL);
    return mix(key + 1);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = compute(key);
    if (key % 5 == 4)
        sum ^= wait_for_disk(key);
    return sum;
}

/* What one thread's periods add up to: all the same, or zero. */
static void *work(void *unused)
{
    (void)unused;
    uint64_t expected = one_period(serve);
    for (uint64_t done = PERIOD; done < run.ops && !stopped; done += PERIOD)
        if (one_period(serve) != expected)
            return NULL;
    return (void *)(uintptr_t)expected;
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 500);
    if (run.waits)
        say_ready();
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0)
            return 2;
    if (run.waits) {
        char byte;
        while (read(0, &byte, 1) > 0)
            ;
        stopped = 1;
    }
    uint64_t expected = 0;
    int differs = 0;
    for (int i = 0; i < THREADS; i++) {
        void *sum;
        pthread_join(threads[i], &sum);
        if (i == 0)
            expected = (uintptr_t)sum;
        differs |= sum == NULL || (uintptr_t)sum != expected;
    }
    return say_checksum(expected, differs);
}
