/*
 * Threads of two names that run f0 at once.
 *
 * f0 = serve
 * fast peak (2 of 3 ops, ~0.2 ms):  serve -> compute                           function
 *     wrong: serve; serve -> read_disk -> … -> clock_nanosleep
 * slow peak (1 of 3 ops, ~3 ms):     serve -> read_disk -> … -> clock_nanosleep   syscall
 *     wrong: serve; serve -> read_disk; serve -> compute
 * The fast ones are those of the two threads "quick", the slow ones those of the thread "slow". With the threads of one name
 * the other peak and its cause are wrong to name.
 */
#include "work.h"

#include <pthread.h>
#include <sys/prctl.h>

enum { QUICK = 2 };

static struct run run;
static volatile int stopped;
static pthread_barrier_t named;

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(200);
    return mix(key);
}

FUNCTION uint64_t read_disk(uint64_t key)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = 3000000};
    nanosleep(&time, NULL);
    return mix(key + 1);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t result = key < PERIOD ? compute(key) : read_disk(key);
    return result + 1;
}

/* Leaves the processors to others between two ops. */
static uint64_t serve_quickly(uint64_t key)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = 1000000};
    nanosleep(&time, NULL);
    return serve(key);
}

static uint64_t serve_slowly(uint64_t key)
{
    return serve(key + PERIOD);
}

/* What one thread's periods add up to, or zero where they differ. */
static void *work(void *name)
{
    uint64_t (*op)(uint64_t) = strcmp(name, "slow") == 0 ? serve_slowly : serve_quickly;
    prctl(PR_SET_NAME, name);
    pthread_barrier_wait(&named);
    uint64_t expected = one_period(op);
    for (uint64_t done = PERIOD; done < run.ops && !stopped; done += PERIOD)
        if (one_period(op) != expected)
            return NULL;
    return (void *)(uintptr_t)expected;
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 500);
    pthread_barrier_init(&named, NULL, QUICK + 2);
    pthread_t threads[QUICK + 1];
    for (int i = 0; i <= QUICK; i++)
        if (pthread_create(&threads[i], NULL, work, i < QUICK ? "quick" : "slow") != 0)
            return 2;
    pthread_barrier_wait(&named);
    if (run.waits) {
        say_ready();
        char byte;
        while (read(0, &byte, 1) > 0)
            ;
        stopped = 1;
    }
    uint64_t expected[2] = {0, 0};
    int differs = 0;
    for (int i = 0; i <= QUICK; i++) {
        void *sum;
        pthread_join(threads[i], &sum);
        if (expected[i == QUICK] == 0)
            expected[i == QUICK] = (uintptr_t)sum;
        differs |= sum == NULL || (uintptr_t)sum != expected[i == QUICK];
    }
    return say_checksum(mix(expected[0]) ^ expected[1], differs);
}
