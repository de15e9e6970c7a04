/*
 * A small hump on the flank of a large one, with a cause of its own.
 *
 * f0 = serve
 * large peak (3 of 4 ops, ~0.3 ms):   serve -> look_up            function
 *     wrong: serve; serve -> evict
 * flank peak (1 of 4 ops, ~0.6 ms):   serve -> evict -> write_back  function
 *     wrong: serve; serve -> evict
 */
#include "work.h"

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t write_back(uint64_t key)
{
    spin_us(600);
    return mix(key);
}

FUNCTION uint64_t evict(uint64_t key)
{
    return write_back(key) + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    return (key % 4 == 3 ? evict(key) : look_up(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2000), serve);
}
