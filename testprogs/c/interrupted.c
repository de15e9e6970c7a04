/*
 * A profiler inside the program strikes where probes are: 10,000 times a second a handler of SIGALRM walks the stack
 * with backtrace(), while f0 makes many calls that do next to nothing, direct ones, by pointer and as tail jumps, so
 * that a good part of the time passes in darc's code. Every walk must come by way of serve to main, as natively.
 *
 * f0 = serve; the result counts: "cut=0" (walks that end before main).
 */
#include "walks.h"

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
    return run_walked(parse_run(argc, argv, 20000), serve, ITIMER_REAL, SIGALRM, 100);
}
