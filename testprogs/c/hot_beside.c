/*
 * Two threads: what the busier one began with makes no calls, so that there is nothing to divide. The other one began with a function
 * that has the name of one of a C library's.
 *
 * f0 = (of what a process runs, its busiest threads'): hot takes its time itself, so start is divided
 *   start -> serve   what there is to analyse
 */
#include "work.h"

#include <pthread.h>

static struct run run;
static volatile int stopped;
static volatile uint64_t turns;

FUNCTION uint64_t serve(uint64_t key)
{
    spin_us(key % 5 == 4 ? 2500 : 300);
    return mix(key);
}

static void *hot(void *unused)
{
    while (!stopped)
        turns++;
    return unused;
}

void *start(void *sum);
FUNCTION void *start(void *sum)
{
    for (uint64_t done = 0; done < run.ops && !stopped; done += PERIOD) {
        uint64_t found = 0;
        for (uint64_t i = 0; i < PERIOD; i++) {
            found = mix(found ^ serve(i) ^ i);
            usleep(500);
        }
        *(uint64_t *)sum = found;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 20);
    pthread_t threads[2];
    uint64_t sum = 0;
    if (pthread_create(&threads[0], NULL, hot, NULL) != 0
        || pthread_create(&threads[1], NULL, start, &sum) != 0)
        return 2;
    if (run.waits) {
        say_ready();
        char byte;
        while (read(0, &byte, 1) > 0)
            ;
        stopped = 1;
    }
    pthread_join(threads[1], NULL);
    stopped = 1;
    pthread_join(threads[0], NULL);
    return say_checksum(sum, 0);
}
