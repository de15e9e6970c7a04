/*
 * One op of 16 rebuilds, which takes a little longer than the longest of the others: too close for a peak of its own, too seldom for
 * much of the time.
 *
 * f0 = serve
 * only peak (every op, ~0.4 ms):  serve -> look_up  function
 *                               serve -> rebuild  function
 *     wrong: serve
 */
#include "work.h"

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(300 + mix(key) % 300);
    return mix(key);
}

FUNCTION uint64_t rebuild(uint64_t key)
{
    spin_us(780);
    return mix(key + 2);
}

FUNCTION uint64_t serve(uint64_t key)
{
    if (mix(key) % 16 == 3)
        return rebuild(key) + 1;
    return look_up(key) + 2;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2400), serve);
}
