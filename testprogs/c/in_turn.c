/*
 * Two causes of one peak: three of five ops look something up, two of five decode, and both take as long. Fetching is
 * done at two sites, and is one cause.
 *
 * f0 = serve
 * only peak (every op, ~0.5 ms):  serve -> look_up -> fetch  function
 *                                 serve -> decode            function
 *     wrong: serve; serve -> look_up
 */
#include "work.h"

FUNCTION uint64_t fetch(uint64_t key)
{
    spin_us(500);
    return mix(key);
}

FUNCTION uint64_t look_up(uint64_t key)
{
    if (key % 2 == 0)
        return fetch(key) + 1;
    return fetch(key + 7) ^ 5;
}

FUNCTION uint64_t decode(uint64_t key)
{
    spin_us(500);
    return mix(key + 2);
}

FUNCTION uint64_t serve(uint64_t key)
{
    if (key % 5 < 3)
        return look_up(key) + 1;
    return decode(key) + 2;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), serve);
}
