/*
 * Recursion through f0: a call of f0 inside an op is a child, not a new op.
 *
 * f0 = walk
 * fast peak (4 of 5 ops, ~0.3 ms):  walk -> leaf                                      function
 *     wrong: walk; walk -> descend -> walk -> descend -> walk -> leaf
 * slow peak (1 of 5 ops, ~2.5 ms):    walk -> descend -> walk -> descend -> walk -> leaf  function
 *     wrong: walk; walk -> descend; walk -> descend -> walk; walk -> descend -> walk -> descend; walk -> descend -> walk -> descend -> walk
 * The number of ops is the number of calls of walk by main, not of all its calls.
 */
#include "work.h"

FUNCTION uint64_t walk(uint64_t key, uint64_t depth);

FUNCTION uint64_t leaf(uint64_t key, uint64_t us)
{
    spin_us(us);
    return mix(key);
}

FUNCTION uint64_t descend(uint64_t key, uint64_t depth)
{
    return mix(walk(key + 1, depth - 1)) + 1;
}

FUNCTION uint64_t walk(uint64_t key, uint64_t depth)
{
    if (depth > 0)
        return mix(descend(key, depth)) + depth;
    return leaf(key, key % 5 == 1 ? 2500 : 300) + 1;
}

/* Two levels down an op with key 4 has become key 6. */
static uint64_t op(uint64_t key)
{
    key %= 5;
    return key == 4 ? walk(key, 2) : walk(key == 1 ? 2 : key, 0);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2400), op);
}
