/*
 * Ops of `serve` that wait for other threads: whose time makes them long, and whose does not.
 *
 * One of four takes 0.4 ms: the worker's fetch, which sleeps for 0.3 ms; what waits for it (reply) costs nothing. One takes 1.1 ms:
 * the keeper's rebuild, which has the lock that the op wants (guarded). One takes 3 ms: for two workers at a time, of which left
 * needs 3 ms and right 1.5 ms, so that longer calls of right cost nothing. One takes 8 ms: for relay on another thread, which waits
 * for produce on a third; 1.3 ms of its own meanwhile (encode) cost nothing. Another thread calls logline all the while, for nobody,
 * and in the handler of a signal noted.
 */
#include "helper.h"
#include <signal.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_held = PTHREAD_COND_INITIALIZER;
static int holds;

FUNCTION void fetch(void)
{
    sleep_us(300);
    NO_TAIL_CALL();
}

/* Says that it has the lock, and keeps it. */
FUNCTION void rebuild(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_lock(&held);
    holds = 1;
    pthread_cond_signal(&is_held);
    pthread_mutex_unlock(&held);
    sleep_us(1000);
    pthread_mutex_unlock(&lock);
    NO_TAIL_CALL();
}

FUNCTION void left(void)
{
    sleep_us(3000);
    NO_TAIL_CALL();
}

FUNCTION void right(void)
{
    sleep_us(1500);
    NO_TAIL_CALL();
}

FUNCTION void produce(void)
{
    sleep_us(8000);
    NO_TAIL_CALL();
}

static struct helper producer;

FUNCTION void relay(void)
{
    ask(&producer);
    wait_for(&producer);
    NO_TAIL_CALL();
}

static struct helper fetcher = HELPER(fetch), keeper = HELPER(rebuild), lefter = HELPER(left), righter = HELPER(right),
                     relayer = HELPER(relay), producer = HELPER(produce);

/* For nobody. */
FUNCTION void logline(void)
{
    spin_us(20);
}

FUNCTION void noted(void)
{
    spin_us(5);
}

static void handler(int signal)
{
    (void)signal;
    noted();
    NO_TAIL_CALL();
}

static void *logs(void *nothing)
{
    for (;;) {
        logline();
        raise(SIGUSR1);
        sleep_us(700);
    }
    return nothing;
}

FUNCTION void reply(void)
{
    wait_for(&fetcher);
    NO_TAIL_CALL();
}

FUNCTION void guarded(void)
{
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    NO_TAIL_CALL();
}

FUNCTION void encode(void)
{
    spin_us(1300);
}

FUNCTION uint64_t serve(uint64_t key)
{
    switch (key % 4) {
    case 0:
        ask(&fetcher);
        reply();
        break;
    case 1:
        ask(&keeper);
        pthread_mutex_lock(&held);
        while (!holds)
            pthread_cond_wait(&is_held, &held);
        holds = 0;
        pthread_mutex_unlock(&held);
        guarded();
        wait_for(&keeper);
        break;
    case 2:
        ask(&lefter);
        ask(&righter);
        wait_for(&lefter);
        wait_for(&righter);
        break;
    default:
        ask(&relayer);
        encode();
        wait_for(&relayer);
    }
    return mix(key);
}

int main(int argc, char **argv)
{
    struct run of = parse_run(argc, argv, 1000);
    signal(SIGUSR1, handler);
    struct helper *helpers[] = {&fetcher, &keeper, &lefter, &righter, &relayer, &producer};
    for (size_t i = 0; i < sizeof(helpers) / sizeof(*helpers); i++)
        start(run, helpers[i]);
    start(logs, NULL);
    return run_ops(of, serve);
}
