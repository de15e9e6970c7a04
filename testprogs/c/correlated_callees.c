/*
 * Two callees that are slow in the same ops, each for half of the time: neither is the cause alone.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> look_up  function
 *                                   serve -> decode   function
 *     wrong: serve; serve -> check
 * slow peak (1 of 5 ops, ~2.6 ms):  serve -> look_up  function
 *                                   serve -> decode   function
 *     wrong: serve; serve -> check
 */
#include "work.h"

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(key % 5 == 4 ? 1300 : 150);
    return mix(key);
}

FUNCTION uint64_t check(uint64_t key)
{
    spin_us(5);
    return mix(key + 1);
}

FUNCTION uint64_t decode(uint64_t key)
{
    spin_us(key % 5 == 4 ? 1300 : 150);
    return mix(key + 2);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t found = look_up(key);
    found ^= check(key);
    return (found ^ decode(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), serve);
}
