/*
 * Two peaks with known causes: every op looks something up, every fifth also rebuilds.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> lookup             function
 *     wrong: serve; serve -> rebuild -> rehash
 * slow peak (1 of 5 ops, ~2.5 ms):    serve -> rebuild -> rehash  function
 *     wrong: serve; serve -> rebuild; serve -> lookup
 */
#include "work.h"

FUNCTION uint64_t lookup(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t allocate(uint64_t key)
{
    spin_us(20);
    return mix(key + 1);
}

FUNCTION uint64_t rehash(uint64_t key)
{
    spin_us(2500);
    return mix(key + 2);
}

FUNCTION uint64_t rebuild(uint64_t key)
{
    uint64_t table = allocate(key);
    return rehash(table) + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t found = lookup(key);
    if (key % 5 == 4)
        found ^= rebuild(key);
    return found + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1600), serve);
}
