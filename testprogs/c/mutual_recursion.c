/*
 * Two functions that call each other: each instance of a call in the path is an fnode of its own.
 *
 * f0 = evaluate
 * fast peak (4 of 5 ops, ~0.3 ms):  evaluate -> expression                                          function
 *     wrong: evaluate
 * slow peak (1 of 5 ops, ~2.5 ms):    evaluate -> expression -> term -> expression -> term -> reduce  function
 *     wrong: evaluate; evaluate -> expression; evaluate -> expression -> term; evaluate -> expression -> term -> expression; evaluate -> expression -> term -> expression -> term
 */
#include "work.h"

FUNCTION uint64_t term(uint64_t key, uint64_t depth);

FUNCTION uint64_t reduce(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION uint64_t expression(uint64_t key, uint64_t depth)
{
    if (depth > 0)
        return mix(term(key + 1, depth - 1)) + depth;
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t term(uint64_t key, uint64_t depth)
{
    if (depth > 0)
        return mix(expression(key + 2, depth - 1)) + depth;
    return reduce(key) + 3;
}

FUNCTION uint64_t evaluate(uint64_t key)
{
    return expression(key, key % 5 == 4 ? 3 : 0) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2400), evaluate);
}
