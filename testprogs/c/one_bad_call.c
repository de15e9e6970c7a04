/*
 * A hundred calls of one function in an op; in some ops one of them takes long.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.4 ms):  serve -> handle            function
 *     wrong: serve; serve -> handle -> repair
 * slow peak (1 of 5 ops, ~2.9 ms):  serve -> handle -> repair  function
 *     wrong: serve; serve -> handle
 */
#include "work.h"

FUNCTION uint64_t repair(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION uint64_t handle(uint64_t key, int is_bad)
{
    spin_us(4);
    return is_bad ? repair(key) + 1 : mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 100; i++)
        sum ^= handle(key + i, key % 5 == 4 && i == 63);
    return sum + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), serve);
}
