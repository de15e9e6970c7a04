/*
 * A timer whose handler takes long: it strikes wherever the program happens to be.
 *
 * f0 = serve: handlers are told where the kernel lets darc see them
 * fast peak (19 of 20 ops, ~0.5 ms):  serve -> parse              function
 * slow peak (1 of 20 ops, ~3.5 ms):   serve -> (SIGALRM: tick)    signal
 */
#include "work.h"

#include <signal.h>
#include <sys/time.h>

static void tick(int signal)
{
    (void)signal;
    spin_us(3000);
}

FUNCTION uint64_t parse(uint64_t key)
{
    spin_us(500);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return parse(key) + 1;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 3000);
    struct itimerval often = {{0, 12000}, {0, 12000}};
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    if (sigaction(SIGALRM, &action, NULL) != 0 || setitimer(ITIMER_REAL, &often, NULL) != 0)
        return 2;
    return run_ops(run, serve);
}
