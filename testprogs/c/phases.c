/*
 * Two phases: for two seconds one function takes the time, from then on another one.
 *
 * f0 = serve
 * only peak (every op, ~0.5 ms):  serve -> load           function
 *                                 serve -> work -> decode  function
 *     wrong: serve; serve -> work
 */
#include "work.h"

static uint64_t began;

FUNCTION uint64_t load(uint64_t key)
{
    spin_us(500);
    return mix(key);
}

FUNCTION uint64_t decode(uint64_t key)
{
    spin_us(500);
    return mix(key);
}

FUNCTION uint64_t work(uint64_t key)
{
    key = decode(key);
    NO_TAIL_CALL();
    return key;
}

FUNCTION uint64_t serve(uint64_t key)
{
    if (began == 0)
        began = cycles();
    if (cycles() - began < 2000000ull * CYCLES_PER_US)
        key = load(key);
    else
        key = work(key);
    return key + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 9000), serve);
}
