/*
 * Latencies with a heavy tail (Pareto's distribution): one hump without an end, and one cause wherever in it.
 *
 * f0 = serve
 * only peak (every op, ~0.2 to 12 ms):  serve -> fetch  function
 *     wrong: serve; serve -> check
 */
#include "work.h"

/* Uniform numbers of 16 bits; nobody sees them in the result. */
static uint64_t state = 0x9e3779b97f4a7c15;

FUNCTION uint64_t fetch(uint64_t key)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    uint64_t uniform = (state >> 32 & 0xffff) + 1;
    /* The exponent is one: the mean grows with the longest, which is sixty times the shortest. */
    uint64_t us = 200 * 65536 / uniform;
    spin_us(us < 12000 ? us : 12000);
    return mix(key);
}

FUNCTION uint64_t check(uint64_t key)
{
    spin_us(5);
    return mix(key + 1);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t found = fetch(key);
    return (found ^ check(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), serve);
}
