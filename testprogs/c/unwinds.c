/*
 * A profiler inside the program: 1,000 times a second of CPU time a handler of SIGPROF walks the stack
 * with backtrace(), while f0 and what it calls run. Every walk must reach main, as natively.
 *
 * f0 = serve; the result counts: "cut=0" (walks that end before main).
 */
#include "walks.h"

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
    return run_walked(parse_run(argc, argv, 2000), serve, ITIMER_PROF, SIGPROF, 1000);
}
