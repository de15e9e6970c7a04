/*
 * Threads that all begin with one function, which calls what each is for. Three wait for something to do all the time; one
 * serves, and sleeps between.
 *
 * f0 = begin (of what a process runs, its busiest threads'): it runs all the time, so its time is divided
 *   begin -> idle -> pthread_cond_wait     nearly all of the time: waiting
 *   begin -> serving -> nanosleep          waiting
 *   begin -> serving -> serve              some hundredths; what there is to analyse
 */
#include "work.h"

#include <pthread.h>

enum { IDLE = 3 };

static struct run run;
static volatile int stopped;
static uint64_t result;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;

FUNCTION uint64_t serve(uint64_t key)
{
    spin_us(15);
    return mix(key);
}

FUNCTION void idle(void)
{
    pthread_mutex_lock(&lock);
    while (!stopped)
        pthread_cond_wait(&wake, &lock);
    pthread_mutex_unlock(&lock);
}

FUNCTION void serving(void)
{
    uint64_t expected = 0;
    for (uint64_t done = 0; done == 0 || (done < run.ops && !stopped); done += PERIOD) {
        uint64_t sum = 0;
        for (uint64_t i = 0; i < PERIOD; i++) {
            struct timespec time = {.tv_sec = 0, .tv_nsec = 400000};
            nanosleep(&time, NULL);
            sum = mix(sum ^ serve(i) ^ i);
        }
        if (done == 0)
            expected = sum;
        else if (sum != expected)
            return;
    }
    result = expected;
}

typedef void (*role)(void);

static void *begin(void *what)
{
    ((role)what)();
    NO_TAIL_CALL();
    return NULL;
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 20);
    if (run.waits)
        say_ready();
    pthread_t threads[IDLE + 1];
    for (int i = 0; i < IDLE + 1; i++)
        if (pthread_create(&threads[i], NULL, begin, (void *)(i < IDLE ? idle : serving)) != 0)
            return 2;
    if (run.waits) {
        char byte;
        while (read(0, &byte, 1) > 0)
            ;
        stopped = 1;
    }
    pthread_join(threads[IDLE], NULL);
    pthread_mutex_lock(&lock);
    stopped = 1;
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < IDLE; i++)
        pthread_join(threads[i], NULL);
    return say_checksum(result, result == 0);
}
