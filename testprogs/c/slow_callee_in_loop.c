/*
 * A loop with one slow call among faster ones: the callee is found, not the loop.
 *
 * f0 = batch
 * fast peak (4 of 5 ops, 10 turns, ~0.3 ms):  batch -> handle              function
 * slow peak (1 of 5 ops, one turn of ~2.5 ms):   batch -> handle -> repair  function
 *     wrong: batch
 */
#include "work.h"

FUNCTION uint64_t repair(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION uint64_t handle(uint64_t key, int is_broken)
{
    if (is_broken)
        return repair(key) + 1;
    spin_us(30);
    return mix(key);
}

FUNCTION uint64_t batch(uint64_t key)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 10; i++)
        sum ^= handle(key + i, key % 5 == 4 && i == 7);
    return sum;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1600), batch);
}
