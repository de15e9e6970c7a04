/*
 * A profiler inside the program strikes where probes are: 10,000 times a second a handler of SIGALRM walks the stack
 * with backtrace(), while f0 makes many calls that do next to nothing, direct ones, by pointer and as tail jumps, so
 * that a good part of the time passes in darc's code. Every walk must come by way of serve to main, as natively.
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

static void on_alarm(int signal)
{
    (void)signal;
    void *frames[64];
    int count = backtrace(frames, 64), reached = 0;
    for (int i = 0; i < count; i++)
        reached |= (uintptr_t)frames[i] >= main_begin && (uintptr_t)frames[i] < main_end;
    walks++;
    cut += !reached;
}

FUNCTION uint64_t step(uint64_t key)
{
    return mix(key);
}

static uint64_t (*volatile by_pointer)(uint64_t) = step;

FUNCTION uint64_t hand_on(uint64_t key)
{
    return step(key ^ 1);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = 0;
    for (int i = 0; i < 200; i++)
        sum += step(key + i) + by_pointer(key - i) + hand_on(sum);
    return sum;
}

int main(int argc, char **argv)
{
    /* The extent of main, generously: the walk must come to a frame of it. */
    main_begin = (uintptr_t)main;
    main_end = main_begin + 4096;
    void *first[4];
    backtrace(first, 4); /* loads what it needs outside of any handler */
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 100}, {0, 100}};
    struct run run = parse_run(argc, argv, 20000);
    setitimer(ITIMER_REAL, &every, NULL);
    int status = run_ops(run, serve);
    every = (struct itimerval){{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    printf("cut=%llu walked=%d\n", (unsigned long long)cut, walks > 0);
    return status;
}
