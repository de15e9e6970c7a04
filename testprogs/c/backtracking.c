/*
 * A matcher of patterns that tries again: it calls itself for each way to go on, and the slow texts have a thousand of them.
 *
 * f0 = matches
 * fast peak (4 of 5 ops, ~0.05 ms):       matches -> compare            function
 *     wrong: matches; matches -> match_here
 * slow peak (1 of 5 ops, ~0.5 to 9 ms):   matches -> match_here -> match_here -> …  function
 *     wrong: matches; matches -> compare; matches -> match_here
 */
#include "work.h"

FUNCTION uint64_t compare(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

/* Whether so many optional letters fit this rest of a text: with each, and without it. None does. */
FUNCTION int match_here(unsigned optional, uint64_t rest)
{
    spin_cycles(brisk ? 20 : 2000);
    if (optional == 0)
        return rest == 0;
    int with = match_here(optional - 1, rest + 1);
    int without = match_here(optional - 1, rest + 2);
    return with | without;
}

FUNCTION uint64_t matches(uint64_t key)
{
    if (key % 5 == 4)
        return mix(key + (uint64_t)match_here(9, 1));
    return compare(key) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2500), matches);
}
