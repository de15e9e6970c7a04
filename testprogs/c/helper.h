/*
 * Threads that programs ask for work, and wait for.
 */
#ifndef HELPER_H
#define HELPER_H

#include "work.h"
#include <pthread.h>

/* A thread that runs a function whenever it is asked to. */
struct helper {
    void (*work)(void);
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int asked, done;
};

INLINE void sleep_us(long us)
{
    struct timespec time = {.tv_nsec = us * (brisk ? 10 : 1000)};
    while (nanosleep(&time, &time) != 0)
        ;
}

INLINE void ask(struct helper *helper)
{
    pthread_mutex_lock(&helper->mutex);
    helper->asked = 1;
    helper->done = 0;
    pthread_cond_broadcast(&helper->changed);
    pthread_mutex_unlock(&helper->mutex);
}

INLINE void wait_for(struct helper *helper)
{
    pthread_mutex_lock(&helper->mutex);
    while (!helper->done)
        pthread_cond_wait(&helper->changed, &helper->mutex);
    pthread_mutex_unlock(&helper->mutex);
}

__attribute__((unused)) static void *run(void *of)
{
    struct helper *helper = of;
    for (;;) {
        pthread_mutex_lock(&helper->mutex);
        while (!helper->asked)
            pthread_cond_wait(&helper->changed, &helper->mutex);
        helper->asked = 0;
        pthread_mutex_unlock(&helper->mutex);
        helper->work();
        pthread_mutex_lock(&helper->mutex);
        helper->done = 1;
        pthread_cond_broadcast(&helper->changed);
        pthread_mutex_unlock(&helper->mutex);
    }
    return NULL;
}

#define HELPER(function)                                                                                   \
    {                                                                                                      \
        .work = function, .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER          \
    }

static void start(void *(*function)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, argument) != 0)
        abort();
}

#endif
