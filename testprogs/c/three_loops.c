/*
 * A function whose latency is one loop of three: all work is in the function itself, which calls nothing.
 *
 * f0 = crunch: the peaks differ in the loop
 * fast peak (4 of 5 ops, ~0.3 ms): crunch itself                    function, each of the loops takes as long
 * slow peak (1 of 5 ops, ~5 ms):   crunch itself, the second loop   function, the lines between "the culprit" and its end
 */
#include "work.h"

enum { TENTH_MS = 230000 };

FUNCTION uint64_t crunch(uint64_t key)
{
    uint64_t sum = key, until;
    uint64_t scale = brisk ? 100 : 1;

    until = cycles() + TENTH_MS / scale;
    while (cycles() < until)
        sum += 3;

    /* the culprit */
    until = cycles() + (key % 5 == 4 ? 48 : 1) * TENTH_MS / scale;
    while (cycles() < until)
        sum ^= sum << 1;
    /* its end */

    until = cycles() + TENTH_MS / scale;
    while (cycles() < until)
        sum -= 5;

    NO_TAIL_CALL();
    return mix(key) + (sum == until);
}

static uint64_t op(uint64_t key)
{
    return mix(crunch(key));
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1000), op);
}
