/*
 * A thread waits in pselect, whose mask holds a signal back that comes meanwhile: its handler runs when the call has ended, and
 * the call ends with what it waited for. f0 sends both.
 *
 * f0 = serve
 */
#define _GNU_SOURCE
#include "work.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/select.h>

static int wake[2], done[2];
static volatile sig_atomic_t handled;

static void handle(int signal)
{
    (void)signal;
    handled++;
}

static void *wait_for_it(void *unused)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGUSR1);
    for (;;) {
        fd_set set;
        char byte = 'x';
        FD_ZERO(&set);
        FD_SET(wake[0], &set);
        int ready = pselect(wake[0] + 1, &set, NULL, NULL, NULL, &held);
        if (ready != 1)
            byte = errno == EINTR ? 'i' : 'e';
        else if (read(wake[0], &byte, 1) != 1)
            byte = 'r';
        if (write(done[1], &byte, 1) != 1)
            abort();
    }
    return unused;
}

FUNCTION uint64_t pass_time(uint64_t key)
{
    spin_us(2000);
    return mix(key);
}

static pthread_t waiter;

FUNCTION uint64_t serve(uint64_t key)
{
    char byte = 'x';
    sig_atomic_t before = handled;
    pthread_kill(waiter, SIGUSR1);
    uint64_t passed = pass_time(key);
    if (write(wake[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1)
        abort();
    /* The next call must not begin before the handler has run. */
    while (handled == before)
        ;
    return passed ^ (uint64_t)byte;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    if (pipe(wake) != 0 || pipe(done) != 0 || pthread_create(&waiter, NULL, wait_for_it, NULL) != 0)
        return 1;
    return run_ops(parse_run(argc, argv, 200), serve);
}
