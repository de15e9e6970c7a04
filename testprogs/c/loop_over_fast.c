/*
 * A loop over a fast callee: no single call is long, the loop is.
 *
 * f0 = scan
 * short peak (4 of 5 ops, 100 turns, ~0.04 ms):  scan  loop
 * long peak (1 of 5 ops, 1000 turns, ~0.4 ms):   scan  loop
 *     wrong: scan -> step
 */
#include "work.h"

FUNCTION uint64_t step(uint64_t row)
{
    spin_cycles(brisk ? 9 : 900);
    return mix(row);
}

FUNCTION uint64_t scan(uint64_t key)
{
    uint64_t sum = 0, rows = key % 5 == 4 ? 1000 : 100;
    for (uint64_t row = 0; row < rows; row++)
        sum ^= step(row + key);
    return sum;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 4000), scan);
}
