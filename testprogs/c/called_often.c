/*
 * A function that each op calls five times, at one place. The longest of these calls does something else than the others.
 *
 * f0 = serve
 * only peak (every op, ~0.55 ms):  serve -> handle -> parse    function
 *                                  serve -> handle -> recover  function
 *     wrong: serve; serve -> handle
 */
#include "work.h"

FUNCTION uint64_t parse(uint64_t key)
{
    spin_us(100);
    return mix(key);
}

FUNCTION uint64_t recover(uint64_t key)
{
    spin_us(150);
    return mix(key + 3);
}

FUNCTION uint64_t handle(uint64_t key)
{
    key = key % 5 == 2 ? recover(key) : parse(key);
    return key + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 5; i++)
        sum += handle(key * 5 + i);
    return sum;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), serve);
}
