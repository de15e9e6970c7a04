/*
 * A document that is walked to its leaves, which are numbers in text. Each node of three levels has ten below it: calls of the walk are
 * many, and short from the third level on.
 *
 * f0 = total
 * fast peak (4 of 5 ops, ~0.015 ms):     total -> check                                  function
 *     wrong: total; total -> add_up
 * slow peak (1 of 5 ops, ~0.07 to 0.3 ms):  total -> add_up -> add_up -> add_up -> add_up -> parse  function
 *     wrong: total; total -> check; total -> add_up; total -> add_up -> add_up; total -> add_up -> add_up -> add_up
 */
#include "work.h"

FUNCTION uint64_t check(uint64_t key)
{
    spin_us(15);
    return mix(key);
}

FUNCTION uint64_t parse(uint64_t key)
{
    spin_cycles(150);
    return mix(key);
}

FUNCTION uint64_t add_up(uint64_t key, int levels)
{
    uint64_t sum = 0;
    if (levels == 0)
        return parse(key) + 1;
    for (int child = 0; child < 10; child++)
        sum += add_up(key + (uint64_t)child, levels - 1);
    return sum;
}

FUNCTION uint64_t total(uint64_t key)
{
    if (key % 5 == 4)
        return mix(add_up(key, 3));
    return check(key) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 20000), total);
}
