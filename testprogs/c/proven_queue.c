/*
 * Ops of `serve` on six threads that stand in a queue: a call that is longer makes each op longer by that of all before it.
 *
 * Each takes 6.5 ms: six times critical, which sleeps for 1 ms, the own one and those of who came before.
 */
#include "helper.h"

enum { THREADS = 6 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_next = PTHREAD_COND_INITIALIZER;
static uint64_t tickets, next;

FUNCTION void critical(void)
{
    sleep_us(1000);
    NO_TAIL_CALL();
}

FUNCTION uint64_t serve(uint64_t key)
{
    pthread_mutex_lock(&mutex);
    uint64_t own = tickets++;
    while (next != own)
        pthread_cond_wait(&is_next, &mutex);
    pthread_mutex_unlock(&mutex);
    critical();
    pthread_mutex_lock(&mutex);
    next++;
    pthread_cond_broadcast(&is_next);
    pthread_mutex_unlock(&mutex);
    return mix(key);
}

static void *serves(void *nothing)
{
    for (;;)
        serve(0);
    return nothing;
}

int main(int argc, char **argv)
{
    struct run of = parse_run(argc, argv, 1000);
    for (int i = 1; i < THREADS; i++)
        start(serves, NULL);
    return run_ops(of, serve);
}
