/*
 * Callees of some 10 and 30 ns, the longer one with a leaf, beside work of f0's own: measuring costs as much as they do, and must
 * not make causes of them.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.4 us):  serve          function
 *     wrong: serve -> tiny; serve -> small; serve -> small -> leaf
 * slow peak (1 of 5 ops, ~30 us):   serve -> grow  function
 *     wrong: serve; serve -> tiny; serve -> small; serve -> small -> leaf
 */
#include "work.h"

FUNCTION uint64_t tiny(uint64_t key)
{
    return mix(key);
}

FUNCTION uint64_t leaf(uint64_t key)
{
    return mix(key + 1);
}

FUNCTION uint64_t small(uint64_t key)
{
    return mix(mix(mix(leaf(key))));
}

FUNCTION uint64_t grow(uint64_t key)
{
    spin_us(30);
    return mix(key + 2);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t found = tiny(key) ^ small(key);
    spin_cycles(900);
    if (key % 5 == 4)
        found ^= grow(key);
    return found + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 100000), serve);
}
