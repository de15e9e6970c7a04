/*
 * A consumer that waits for a condition variable where the producer is slow: most entries are there already.
 *
 * f0 = take
 * fast peak (4 of 5 ops, ~0.3 ms):       take -> decode                       function
 *     wrong: take; take -> wait_for_entry
 * slow peak (1 of 5 ops, ~2.5 to 6 ms):  take -> wait_for_entry -> … -> futex  syscall
 *     wrong: take; take -> decode; take -> wait_for_entry
 */
#include "work.h"

#include <pthread.h>
#include <sys/prctl.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER, made = PTHREAD_COND_INITIALIZER;
static int is_asked, is_made;

static void *producer(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "producer");
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!is_asked)
            pthread_cond_wait(&asked, &lock);
        is_asked = 0;
        pthread_mutex_unlock(&lock);
        spin_us(3000);
        pthread_mutex_lock(&lock);
        is_made = 1;
        pthread_cond_signal(&made);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

FUNCTION uint64_t decode(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION void wait_for_entry(void)
{
    while (!is_made)
        pthread_cond_wait(&made, &lock);
    NO_TAIL_CALL();
}

FUNCTION uint64_t take(uint64_t key)
{
    pthread_mutex_lock(&lock);
    wait_for_entry();
    pthread_mutex_unlock(&lock);
    return decode(key) + 1;
}

static uint64_t op(uint64_t key)
{
    pthread_mutex_lock(&lock);
    is_made = key % 5 != 4;
    if (!is_made) {
        is_asked = 1;
        pthread_cond_signal(&asked);
    }
    pthread_mutex_unlock(&lock);
    return take(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1200);
    pthread_t thread;
    if (pthread_create(&thread, NULL, producer, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
