/*
 * A queue of one request with a slow consumer: submit hands a request over and waits until it is done. The consumer
 * wakes the submitter from finish.
 *
 * f0 = submit: the peaks differ in who ends the wait
 * fast peak (4 of 5 ops, ~0.3 ms):    submit -> … -> futex   syscall, woken by the thread "consumer" in finish
 * slow peak (1 of 5 ops, ~3 ms):      submit -> … -> futex   the same
 * enqueue=submit:arg1, serve=digest:arg1 (f0 is the function that enqueues): requests of the fast peak are served
 * for ~0.3 ms, those of the slow peak for ~3 ms
 */
#include "work.h"

#include <pthread.h>
#include <sys/prctl.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum { EMPTY, ASKED, DONE } state;
static uint64_t request, answer;

FUNCTION uint64_t digest(uint64_t key)
{
    spin_us(key % 5 == 4 ? 3000 : 300);
    return mix(key);
}

FUNCTION void finish(uint64_t result)
{
    pthread_mutex_lock(&lock);
    answer = result;
    state = DONE;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void *consumer(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "consumer");
    for (;;) {
        pthread_mutex_lock(&lock);
        while (state != ASKED)
            pthread_cond_wait(&changed, &lock);
        uint64_t key = request;
        pthread_mutex_unlock(&lock);
        finish(digest(key));
    }
    return NULL;
}

FUNCTION uint64_t submit(uint64_t key)
{
    pthread_mutex_lock(&lock);
    request = key;
    state = ASKED;
    pthread_cond_broadcast(&changed);
    while (state != DONE)
        pthread_cond_wait(&changed, &lock);
    state = EMPTY;
    uint64_t result = answer;
    pthread_mutex_unlock(&lock);
    return result + 1;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1600);
    pthread_t thread;
    if (pthread_create(&thread, NULL, consumer, NULL) != 0)
        return 2;
    return run_ops(run, submit);
}
