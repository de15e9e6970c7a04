/*
 * Two threads that begin with different functions and come by the same calls, as the threads of an interpreter do. One spins; the
 * other stores something each millisecond.
 *
 * f0 = calculate (of what a process runs, its busiest threads'): it runs all the time, so its time is divided
 *   calculate -> evaluate -> step -> spin     all of it
 *   store and nanosleep are of the other thread, and nothing of calculate's
 */
#include "work.h"

#include <pthread.h>

static struct run run;
static volatile int stopped;

typedef uint64_t (*work)(uint64_t);

FUNCTION uint64_t spin(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t store(uint64_t key)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = 1000000};
    nanosleep(&time, NULL);
    spin_us(50);
    return mix(key);
}

FUNCTION uint64_t step(work what, uint64_t key)
{
    return what(key) + 1;
}

FUNCTION uint64_t evaluate(work what)
{
    uint64_t sum = 0;
    for (uint64_t done = 0; done < run.ops && !stopped; done++)
        sum = mix(sum ^ step(what, done));
    return sum;
}

static void *calculate(void *nothing)
{
    (void)nothing;
    evaluate(spin);
    NO_TAIL_CALL();
    return NULL;
}

static void *save(void *nothing)
{
    (void)nothing;
    evaluate(store);
    NO_TAIL_CALL();
    return NULL;
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 20);
    if (run.waits)
        say_ready();
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, calculate, NULL) != 0
        || pthread_create(&threads[1], NULL, save, NULL) != 0)
        return 2;
    if (run.waits) {
        char byte;
        while (read(0, &byte, 1) > 0)
            ;
        stopped = 1;
    }
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return say_checksum(mix(1), 0);
}
