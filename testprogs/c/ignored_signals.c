/*
 * Signals that are ignored must not end a blocked call: a thread sits in epoll_wait while SIGWINCH,
 * SIGCHLD, SIGURG (ignored by default) and SIGUSR1 (ignored on request) are sent to it in every op.
 * The last line also says how many calls returned early: natively none.
 *
 * f0 = serve: peaks do not matter here.
 */
#include "work.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

static volatile int early, is_blocked;
static pthread_t sleeper;

static void *sleep_in_epoll(void *unused)
{
    (void)unused;
    int epoll = epoll_create1(0);
    struct epoll_event event;
    is_blocked = 1;
    for (;;)
        if (epoll_wait(epoll, &event, 1, -1) != 0)
            early++;
    return NULL;
}

FUNCTION uint64_t part(uint64_t key)
{
    spin_us(100);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return part(key) + 1;
}

static uint64_t op(uint64_t key)
{
    static const int ignored[4] = {SIGWINCH, SIGCHLD, SIGURG, SIGUSR1};
    pthread_kill(sleeper, ignored[key % 4]);
    return serve(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1000);
    signal(SIGUSR1, SIG_IGN);
    if (pthread_create(&sleeper, NULL, sleep_in_epoll, NULL) != 0)
        return 2;
    while (!is_blocked)
        ;
    int status = run_ops(run, op);
    printf("early=%d\n", early);
    return status;
}
