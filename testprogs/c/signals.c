/*
 * A timer's signal handler that calls f0 too, a thousand times a second, whenever it meets an op at
 * work: such a call is nested and not an op.
 *
 * f0 = serve
 * fast peak (4 of 5 ops of main, ~0.3 ms):  serve -> lookup   function
 *     wrong: serve; serve -> rebuild
 * slow peak (1 of 5 ops of main, ~2.5 ms):    serve -> rebuild  function
 *     wrong: serve; serve -> lookup
 */
#include "work.h"

#include <signal.h>
#include <sys/time.h>

enum { FROM_HANDLER = 1000 };

static volatile sig_atomic_t is_at_work, wrong, handled;
static uint64_t expected_in_handler;

FUNCTION uint64_t lookup(uint64_t key)
{
    is_at_work = 1;
    spin_us(300);
    is_at_work = 0;
    return mix(key);
}

FUNCTION uint64_t rebuild(uint64_t key)
{
    is_at_work = 1;
    spin_us(2500);
    is_at_work = 0;
    return mix(key + 1);
}

FUNCTION uint64_t serve(uint64_t key)
{
    if (key == FROM_HANDLER)
        return mix(key);
    if (key % 5 == 4)
        return rebuild(key) + 1;
    return lookup(key) + 1;
}

static void on_alarm(int signal)
{
    (void)signal;
    if (!is_at_work)
        return;
    wrong |= serve(FROM_HANDLER) != expected_in_handler;
    handled = 1;
}

static uint64_t op(uint64_t key)
{
    return serve(key) + (uint64_t)wrong;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 800);
    expected_in_handler = serve(FROM_HANDLER);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    int status = run_ops(run, op);
    return status | (handled == 0);
}
