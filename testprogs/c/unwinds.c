/*
 * A profiler inside the program: 1,000 times a second of CPU time a handler of SIGPROF walks the stack
 * with backtrace(), while f0 and what it calls run. Every walk must reach main, as natively.
 *
 * f0 = serve; the result counts: "cut=0" (walks that end before main).
 */
#include "work.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>

int main(int argc, char **argv);

static volatile uint64_t walks, cut;
static uintptr_t main_begin, main_end;

static void on_profile(int signal)
{
    (void)signal;
    void *frames[64];
    int count = backtrace(frames, 64), reached = 0;
    for (int i = 0; i < count; i++)
        reached |= (uintptr_t)frames[i] >= main_begin && (uintptr_t)frames[i] < main_end;
    walks++;
    cut += !reached;
}

FUNCTION uint64_t lookup(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return lookup(key) + 1;
}

int main(int argc, char **argv)
{
    /* The extent of main, generously: the walk must come to a frame of it. */
    main_begin = (uintptr_t)main;
    main_end = main_begin + 4096;
    void *first[4];
    backtrace(first, 4); /* loads what it needs outside of any handler */
    struct sigaction action = {.sa_handler = on_profile, .sa_flags = SA_RESTART};
    sigaction(SIGPROF, &action, NULL);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    struct run run = parse_run(argc, argv, 2000);
    setitimer(ITIMER_PROF, &every, NULL);
    int status = run_ops(run, serve);
    every = (struct itimerval){{0, 0}, {0, 0}};
    setitimer(ITIMER_PROF, &every, NULL);
    printf("cut=%llu walked=%d\n", (unsigned long long)cut, walks > 0);
    return status;
}
