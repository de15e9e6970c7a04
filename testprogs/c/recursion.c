/*
 * Direct recursion of a callee: every instance of the call in the path is an fnode of its own.
 * Slow ops go four levels down and work there, the others work at the first level.
 *
 * f0 = search
 * shallow peak (4 of 5 ops, ~0.3 ms):  search -> visit                                                function
 *     wrong: search
 * deep peak (1 of 5 ops, ~2.5 ms):       search -> visit -> visit -> visit -> visit -> visit -> expand  function
 *     wrong: search; search -> visit; search -> visit -> visit; search -> visit -> visit -> visit; search -> visit -> visit -> visit -> visit
 */
#include "work.h"

FUNCTION uint64_t expand(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION uint64_t visit(uint64_t key, uint64_t levels, uint64_t depth)
{
    if (depth < levels)
        return mix(visit(key + 1, levels, depth + 1)) + depth; /* mix: no loop can be made of it */
    if (levels > 0)
        return expand(key) + 1;
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t search(uint64_t key)
{
    return visit(key, key % 5 == 4 ? 4 : 0, 0) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 4000), search);
}
