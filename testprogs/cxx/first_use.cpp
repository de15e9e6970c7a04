/*
 * Settings that are read when they are needed first, by whoever comes first: who comes second waits until they have been read.
 *
 * f0 = get
 * fast peak (4 of 5 ops, ~0.3 ms):         get -> apply                    function
 *     wrong: get; get -> read_once; get -> read_once -> … -> read_settings
 * slow peak (1 of 5 ops, ~2.5 to 6.5 ms):  get -> read_once -> … -> futex  syscall
 *     wrong: get; get -> apply; get -> read_once; get -> read_once -> … -> read_settings
 */
#include "work.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

static pthread_once_t once[PERIOD];
static volatile int current;
static sem_t start, started;
static volatile int waits;

FUNCTION static void read_settings()
{
    sem_post(&started);
    while (!waits)
        sched_yield();
    spin_us(3000);
}

/* Comes first, where it is told to. */
static void *first(void *unused)
{
    for (;;) {
        while (sem_wait(&start) != 0)
            ;
        pthread_once(&once[current], read_settings);
    }
    return unused;
}

FUNCTION uint64_t apply(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION void read_once()
{
    pthread_once(&once[current], read_settings);
    NO_TAIL_CALL();
}

FUNCTION uint64_t get(uint64_t key)
{
    waits = 1;
    read_once();
    return apply(key) + 1;
}

/* Settings that have been read already, or are to be read now. */
static uint64_t op(uint64_t key)
{
    if (key % 5 == 4) {
        current = (int)key;
        once[current] = PTHREAD_ONCE_INIT;
        waits = 0;
        sem_post(&start);
        while (sem_wait(&started) != 0)
            ;
    }
    return get(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1200);
    pthread_t thread;
    sem_init(&start, 0, 0);
    sem_init(&started, 0, 0);
    pthread_once(&once[0], [] {});
    if (pthread_create(&thread, NULL, first, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
