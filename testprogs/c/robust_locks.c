/*
 * Locks whose owner dies: in every twentieth op of f0 a thread ends with a robust mutex held, and the next
 * owner must be told (EOWNERDEAD); all other ops take a priority-inheriting mutex that two threads want.
 *
 * f0 = serve; the result counts.
 */
#include "work.h"

#include <errno.h>
#include <pthread.h>

static pthread_mutex_t robust, inheriting;
static volatile int stop;

static void *die_with_it(void *unused)
{
    pthread_mutex_lock(&robust);
    return unused;
}

static void *compete(void *unused)
{
    while (!stop) {
        pthread_mutex_lock(&inheriting);
        spin_us(10);
        pthread_mutex_unlock(&inheriting);
        usleep(50);
    }
    return unused;
}

FUNCTION uint64_t take_over(uint64_t key)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, die_with_it, NULL) != 0)
        abort();
    pthread_join(thread, NULL);
    int error = pthread_mutex_lock(&robust);
    if (error == EOWNERDEAD)
        pthread_mutex_consistent(&robust);
    pthread_mutex_unlock(&robust);
    return mix(key + (uint64_t)(error == EOWNERDEAD));
}

FUNCTION uint64_t serve(uint64_t key)
{
    if (key == PERIOD - 1)
        return take_over(key) + 1;
    pthread_mutex_lock(&inheriting);
    uint64_t sum = mix(key);
    pthread_mutex_unlock(&inheriting);
    return sum + 1;
}

int main(int argc, char **argv)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &kind);
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&inheriting, &kind);
    pthread_t thread;
    if (pthread_create(&thread, NULL, compete, NULL) != 0)
        return 2;
    int status = run_ops(parse_run(argc, argv, 1000), serve);
    stop = 1;
    pthread_join(thread, NULL);
    return status;
}
