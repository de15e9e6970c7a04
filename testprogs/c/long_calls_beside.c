/*
 * Threads that begin with one function: four make short calls and sleep between, two are in long ones, which wait for a lock
 * that somebody holds for a while.
 *
 * f0 = begin (of what a process runs, its busiest threads'): it runs all the time, so its time is divided
 *   begin -> serving -> nanosleep   half of the time: waiting
 *   begin -> serving -> serve       a tenth: short calls
 *   begin -> waiting -> lock_row    a third: calls of 60 ms
 *     wrong: a tenth and less for lock_row
 */
#include "work.h"

#include <pthread.h>
#include <semaphore.h>

enum { SHORT = 4, LONG = 2, HELD_MS = 60 };

static struct run run;
static volatile int stopped;
static pthread_mutex_t rows[LONG];
static sem_t held[LONG], taken[LONG];

FUNCTION uint64_t serve(uint64_t key)
{
    spin_us(15);
    return mix(key);
}

static void pause_us(int us)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = us * 1000L};
    nanosleep(&time, NULL);
}

/* Takes a lock that its holder has taken before. */
FUNCTION void lock_row(int row)
{
    pthread_mutex_lock(&rows[row]);
    pthread_mutex_unlock(&rows[row]);
}

/* However busy the machine is, the lock is held when it is asked for. */
static void *holder(void *number)
{
    intptr_t row = (intptr_t)number;
    while (!stopped) {
        pthread_mutex_lock(&rows[row]);
        sem_post(&held[row]);
        pause_us(HELD_MS * 1000);
        pthread_mutex_unlock(&rows[row]);
        sem_wait(&taken[row]);
    }
    sem_post(&held[row]);
    return NULL;
}

FUNCTION uint64_t serving(void)
{
    uint64_t sum = 0;
    while (!stopped) {
        pause_us(60);
        sum = serve(sum);
    }
    return sum;
}

FUNCTION uint64_t waiting(int row)
{
    while (!stopped) {
        sem_wait(&held[row]);
        lock_row(row);
        sem_post(&taken[row]);
    }
    sem_post(&taken[row]);
    return 0;
}

FUNCTION void *begin(void *number)
{
    intptr_t at = (intptr_t)number;
    uint64_t result = at < SHORT ? serving() : waiting((int)(at - SHORT));
    return (void *)(intptr_t)(result == 1);
}

static uint64_t op(uint64_t key)
{
    pause_us(1000);
    return mix(key);
}

int main(int argc, char **argv)
{
    pthread_t threads[SHORT + LONG], holders[LONG];
    run = parse_run(argc, argv, 2000);
    for (intptr_t row = 0; row < LONG; row++) {
        pthread_mutex_init(&rows[row], NULL);
        sem_init(&held[row], 0, 0);
        sem_init(&taken[row], 0, 0);
        if (pthread_create(&holders[row], NULL, holder, (void *)row) != 0)
            return 2;
    }
    for (intptr_t at = 0; at < SHORT + LONG; at++)
        if (pthread_create(&threads[at], NULL, begin, (void *)at) != 0)
            return 2;
    int ended = run_ops(run, op);
    stopped = 1;
    for (int at = 0; at < SHORT + LONG; at++)
        pthread_join(threads[at], NULL);
    for (int row = 0; row < LONG; row++)
        pthread_join(holders[row], NULL);
    return ended;
}
